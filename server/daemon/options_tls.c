/* Whether what is spoken to a coordinator is guarded, and this process's certificate is one for what it is. */
#include <string.h>

#include "common/control/address.h"
#include "common/net/net.h"
#include "server/daemon/options.h"

bool zps_options_is_open(const struct zps_options *options) {
  struct zps_address address;
  const struct zps_tls_files files = zps_options_tls(options);
  if (!zps_options_is_coordinator(options) || zps_tls_files_any(&files)) return false;
  return zps_address_parse(options->control_listen, &address, NULL) != ZPS_OK || !zps_address_is_loopback(&address);
}

bool zps_options_is_shared(const struct zps_options *options) {
  struct zps_address address;
  const struct zps_tls_files files = zps_options_tls(options);
  return zps_options_is_coordinator(options) && !zps_tls_files_any(&files) && !zps_options_is_open(options) &&
         zps_address_parse(options->control_listen, &address, NULL) == ZPS_OK && !address.is_unix;
}

static zps_err_t refuse_open(const struct zps_options *options, struct zps_error *error) {
  if (!zps_options_is_open(options) || options->control_insecure) return ZPS_OK;
  return zps_fail(
      error, ZPS_ERR_INVALID,
      "%s (%.100s) is reached by other hosts, and without TLS anybody there may be a server or a rank: set tls.ca, "
      "tls.cert and tls.key (zenpsctl certs makes them), or control.insecure = yes where the network keeps strangers "
      "out",
      zps_config_label("control.listen"), options->control_listen);
}

static bool encrypts(const struct zps_options *options) {
  return options->fabric_encrypt || strcmp(options->fabric_provider, "tls") == 0;
}

static zps_err_t refuse_plain(const struct zps_options *options, struct zps_error *error) {
  const struct zps_net_config config = {.provider = options->fabric_provider, .encrypt = options->fabric_encrypt};
  return zps_options_is_server(options) ? zps_net_check_encrypt(&config, error) : ZPS_OK;
}

static zps_err_t refuse_encrypt(const struct zps_options *options, struct zps_error *error) {
  if (!zps_options_is_server(options) || !encrypts(options)) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID,
                  "%s is \"%.60s\" and %s %s: encrypted gradients need certificates: set tls.ca, tls.cert and tls.key "
                  "(zenpsctl certs makes them)",
                  zps_config_label("fabric.provider"), options->fabric_provider, zps_config_label("fabric.encrypt"),
                  options->fabric_encrypt ? "yes" : "no");
}

/* Read to have them checked; the daemon reads them for itself. */
zps_err_t zps_options_check_tls(const struct zps_options *options, struct zps_error *error) {
  const struct zps_tls_files files = zps_options_tls(options);
  struct zps_tls *tls;
  struct zps_error why;
  char names[ZPS_TLS_SERVERS_MAX];
  zps_err_t err = refuse_plain(options, error);
  if (err) return err;
  if (!zps_tls_files_any(&files)) {
    err = refuse_encrypt(options, error);
    return err ? err : refuse_open(options, error);
  }
  err = zps_tls_create(&files, &tls, &why);
  if (err)
    return zps_fail(error, err, "%s, %s and %s: %.400s", zps_config_label("tls.ca"), zps_config_label("tls.cert"),
                    zps_config_label("tls.key"), why.text);
  const unsigned found = zps_tls_roles(tls);
  const enum zps_tls_serves serves = zps_tls_serves(tls, options->server_name, names);
  zps_tls_unref(tls);
  if (zps_options_is_coordinator(options) && !(found & ZPS_TLS_COORDINATOR))
    return zps_fail(
        error, ZPS_ERR_INVALID, "%s (%.200s) is no coordinator's: %s = %s needs one with zenps://coordinator/NAME",
        zps_config_label("tls.cert"), options->tls_cert, zps_config_label("roles"), zps_options_roles(options));
  if (zps_options_is_server(options) && !(found & ZPS_TLS_SERVER))
    return zps_fail(error, ZPS_ERR_INVALID, "%s (%.200s) is no server's: %s = %s needs one with zenps://server/NAME",
                    zps_config_label("tls.cert"), options->tls_cert, zps_config_label("roles"),
                    zps_options_roles(options));
  if (zps_options_is_server(options) && serves == ZPS_TLS_SERVES_NOT)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "%.130s (%.100s) is for servers of the name %.120s, and %.130s is '%.100s' (by default the host's "
                    "name): coordinators refuse it; give it a certificate of its own (zenpsctl certs init DIR "
                    "--servers=NAME), or a server.name that fits",
                    zps_config_label("tls.cert"), options->tls_cert, names, zps_config_label("server.name"),
                    options->server_name);
  return ZPS_OK;
}

/* From a provider's name to the backend: the only place that knows which ones there are. */
#include <stdio.h>
#include <string.h>

#include "common/base/config.h"
#include "common/net/backend.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

/* The in-process fabric of test programs (tests/support/fabrics/loop.h). NULL in all others. */
extern zps_net_open_t zps_net_loop_open __attribute__((weak, visibility("hidden")));

static const char fault_prefix[] = "fault+", tls[] = "tls";

static zps_err_t config_check(const struct zps_net_config *config, struct zps_error *error) {
  if (!config->provider || !config->provider[0])
    return zps_fail(error, ZPS_ERR_INVALID,
                    "the fabric's provider is not set: give \"auto\" or a libfabric provider such as \"net\"");
  if (config->max_msg < 1 || config->max_msg > ZPS_NET_MSG_MAX)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "the fabric's largest message is %zu bytes: it must be 1 to %u; larger payloads are read",
                    config->max_msg, ZPS_NET_MSG_MAX);
  if (config->port_low > config->port_high || (config->port_low == 0) != (config->port_high == 0))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "the fabric's port range %u-%u (fabric.port_low, fabric.port_high) is not one: give low-high, or "
                    "0-0 for any port",
                    config->port_low, config->port_high);
  if (config->rails > ZPS_NET_RAILS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "fabric.rails is %u: must be 1 to %u", config->rails, ZPS_NET_RAILS_MAX);
  return ZPS_OK;
}

static const char *without_faults(const char *provider) {
  const size_t len = sizeof fault_prefix - 1;
  return strncmp(provider, fault_prefix, len) == 0 ? provider + len : provider;
}

zps_err_t zps_net_check_encrypt(const struct zps_net_config *config, struct zps_error *error) {
  const char *const provider = without_faults(config->provider);
  if (!config->encrypt || strcmp(provider, "auto") == 0 || strcmp(provider, tls) == 0) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID,
                  "%s is set, and provider \"%s\" does not encrypt: set the provider to \"tls\" or \"auto\", or "
                  "fabric.encrypt to no",
                  zps_config_label("fabric.encrypt"), provider);
}

zps_err_t zps_net_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                       struct zps_net **net_p, struct zps_error *error) {
  zps_err_t code = config_check(config, error);
  if (code != ZPS_OK) return code;
  if (!handler->on_message || !handler->on_peer_error)
    return zps_fail(error, ZPS_ERR_INVALID, "a fabric needs both handlers, for messages and for peers' errors");
  if (without_faults(config->provider) != config->provider) {
    struct zps_net_config inner = *config;
    inner.provider = without_faults(config->provider);
    code = config_check(&inner, error);
    if (code == ZPS_OK) code = zps_net_fault_open(&inner, handler, zps_net_open, net_p, error);
  } else if (config->fault && *config->fault) {
    code = zps_fail(error, ZPS_ERR_INVALID, "fault rules '%s' are for provider \"fault+%s\", not for \"%s\"",
                    config->fault, config->provider, config->provider);
  } else if (strcmp(config->provider, tls) == 0 || (config->encrypt && strcmp(config->provider, "auto") == 0)) {
    if (config->rails > 1) zps_log_warn("fabric.rails is %u: provider tls takes one card", config->rails);
    code = zps_net_tls_open(config, handler, net_p, error);
  } else {
    zps_net_open_t *const open =
        zps_net_loop_open && strcmp(config->provider, "loop") == 0 ? zps_net_loop_open : zps_net_ofi_open;
    if (config->connections > 1)
      zps_log_info("fabric.connections is %u: several connections are for provider tls", config->connections);
    code = zps_net_check_encrypt(config, error);
    if (code == ZPS_OK)
      code = config->rails > 1 ? zps_net_rails_open(config, handler, open, net_p, error)
                               : open(config, handler, net_p, error);
  }
  if (code == ZPS_OK) (*net_p)->info.max_msg = config->max_msg;
  return code;
}

struct list {
  void (*line)(void *ctx, const char *text);
  void *ctx;
};

/* Where libfabric has TCP, there is TLS over TCP, too. */
static void list_line(void *ctx, const char *text) {
  const struct list *const list = ctx;
  char line[200];
  list->line(list->ctx, text);
  if (strncmp(text, "net ", 4) != 0 && strncmp(text, "tcp ", 4) != 0) return;
  const char *const rail = strstr(text, ", rail "); /* tls has one card */
  snprintf(line, sizeof line, "%s %.*s", tls, rail ? (int)(rail - text - 4) : (int)sizeof line, text + 4);
  list->line(list->ctx, line);
}

void zps_net_list(const struct zps_net_config *config, void (*line)(void *ctx, const char *text), void *ctx) {
  struct list list = {line, ctx};
  zps_net_ofi_list(config, list_line, &list);
}

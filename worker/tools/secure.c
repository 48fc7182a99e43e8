#include "worker/tools/secure.h"

#include <stdlib.h>

#include "common/control/address.h"

static const char *variable(const char *name) {
  const char *const text = getenv(name);
  return text && *text ? text : NULL;
}

static bool is_reached(const char *coordinator) {
  struct zps_address address;
  return coordinator &&
         (zps_address_parse(coordinator, &address, NULL) != ZPS_OK || !zps_address_is_loopback(&address));
}

zps_err_t zps_secure_run(const char *coordinator, struct zps_tls **tls_p, struct zps_error *error) {
  const struct zps_tls_files files = {.ca = variable("ZENPS_TLS_CA"),
                                      .cert = variable("ZENPS_TLS_CERT"),
                                      .key = variable("ZENPS_TLS_KEY"),
                                      .crl = variable("ZENPS_TLS_CRL")};
  struct zps_error why;
  *tls_p = NULL;
  if (!is_reached(coordinator)) { /* what the user has is for another coordinator */
    unsetenv("ZENPS_TLS_CA");
    unsetenv("ZENPS_TLS_CERT");
    unsetenv("ZENPS_TLS_KEY");
    unsetenv("ZENPS_TLS_CRL");
    return ZPS_OK;
  }
  if (!zps_tls_files_any(&files))
    return variable("ZENPS_CONTROL_INSECURE")
               ? ZPS_OK
               : zps_fail(
                     error, ZPS_ERR_INVALID,
                     "other hosts reach the coordinator at %.100s: set ZENPS_TLS_CA, ZENPS_TLS_CERT and "
                     "ZENPS_TLS_KEY on all of them to the files of a run (zenpsctl certs init DIR --runs=NAME), or "
                     "ZENPS_CONTROL_INSECURE=yes where the network keeps strangers out",
                     coordinator);
  const zps_err_t err = zps_tls_create(&files, tls_p, &why);
  if (err) return zps_fail(error, err, "ZENPS_TLS_CA, ZENPS_TLS_CERT and ZENPS_TLS_KEY: %.420s", why.text);
  const unsigned wanted = ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER | ZPS_TLS_WORKER;
  if ((zps_tls_roles(*tls_p) & wanted) == wanted) return ZPS_OK;
  zps_tls_unref(*tls_p);
  *tls_p = NULL;
  return zps_fail(
      error, ZPS_ERR_INVALID,
      "ZENPS_TLS_CERT (%.200s) is that of no run, whose processes are coordinator, servers and ranks: zenpsctl "
      "certs init DIR --runs=NAME makes one",
      files.cert);
}

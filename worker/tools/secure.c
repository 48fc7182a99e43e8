#include "worker/tools/secure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/secret.h"
#include "common/control/address.h"
#include "common/tls/store.h"
#include "common/token/token.h"

#define YEAR_S (365LL * 24 * 3600)

static const char *variable(const char *name) {
  const char *const text = getenv(name);
  return text && *text ? text : NULL;
}

static bool is_reached(const char *coordinator) {
  struct zps_address address;
  return coordinator &&
         (zps_address_parse(coordinator, &address, NULL) != ZPS_OK || !zps_address_is_loopback(&address));
}

#define ROLES (ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER | ZPS_TLS_WORKER)

static zps_err_t read_files(struct zps_tls **tls_p, struct zps_error *error) {
  const struct zps_tls_files files = {.ca = variable("ZENPS_TLS_CA"),
                                      .cert = variable("ZENPS_TLS_CERT"),
                                      .key = variable("ZENPS_TLS_KEY"),
                                      .crl = variable("ZENPS_TLS_CRL")};
  struct zps_error why;
  const zps_err_t err = zps_tls_create(&files, tls_p, &why);
  if (err) return zps_fail(error, err, "ZENPS_TLS_CA, ZENPS_TLS_CERT and ZENPS_TLS_KEY: %.420s", why.text);
  if ((zps_tls_roles(*tls_p) & ROLES) == ROLES) return ZPS_OK;
  zps_tls_unref(*tls_p);
  *tls_p = NULL;
  return zps_fail(
      error, ZPS_ERR_INVALID,
      "ZENPS_TLS_CERT (%.200s) is that of no run, whose processes are coordinator, servers and ranks: zenpsctl "
      "certs init DIR --runs=NAME makes one",
      files.cert);
}

zps_err_t zps_secure_run(const char *coordinator, bool encrypts, struct zps_tls **tls_p, struct zps_error *error) {
  *tls_p = NULL;
  if (!is_reached(coordinator) && !encrypts) { /* what the user has is for another coordinator */
    unsetenv("ZENPS_TLS_CA");
    unsetenv("ZENPS_TLS_CERT");
    unsetenv("ZENPS_TLS_KEY");
    unsetenv("ZENPS_TLS_CRL");
    return ZPS_OK;
  }
  if (variable("ZENPS_TLS_CA") || variable("ZENPS_TLS_CERT") || variable("ZENPS_TLS_KEY"))
    return read_files(tls_p, error);
  if (encrypts)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "encrypted gradients need certificates: set ZENPS_TLS_CA, ZENPS_TLS_CERT and ZENPS_TLS_KEY for all "
                    "ranks to the files of a run (zenpsctl certs init DIR --runs=NAME); with -n zenpsrun makes them "
                    "itself");
  if (variable("ZENPS_CONTROL_INSECURE")) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID,
                  "other hosts reach the coordinator at %.100s: set ZENPS_TLS_CA, ZENPS_TLS_CERT and "
                  "ZENPS_TLS_KEY on all of them to the files of a run (zenpsctl certs init DIR --runs=NAME), or "
                  "ZENPS_CONTROL_INSECURE=yes where the network keeps strangers out",
                  coordinator);
}

static bool set(const char *name, const char *dir, const char *file) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", dir, file);
  return setenv(name, path, 1) == 0;
}

zps_err_t zps_secure_own(const char *dir, struct zps_tls **tls_p, struct zps_error *error) {
  struct zps_certs_store store;
  bool is_new;
  zps_err_t err = zps_certs_store_open(dir, &store, &is_new, error);
  if (err) return err;
  err = zps_certs_store_make(&store, ROLES, "run", "run", (long long)time(NULL) + YEAR_S, error);
  zps_certs_store_close(&store);
  if (err) return err;
  unsetenv("ZENPS_TLS_CRL");
  if (!set("ZENPS_TLS_CA", dir, "ca.pem") || !set("ZENPS_TLS_CERT", dir, "run.pem") ||
      !set("ZENPS_TLS_KEY", dir, "run.key"))
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the environment");
  return read_files(tls_p, error);
}

/* ------------------------------------------------------------ the key and the token */

zps_err_t zps_pass_make(const char *dir, const char *key_file, struct zps_pass *pass, struct zps_error *error) {
  struct zps_token_keys keys;
  char token[ZPS_TOKEN_SIZE];
  *pass = (struct zps_pass){.key_file = key_file};
  zps_err_t err = ZPS_OK;
  if (!key_file) {
    snprintf(pass->own_key, sizeof pass->own_key, "%s/key", dir);
    err = zps_token_key_create(pass->own_key, error);
    pass->key_file = pass->own_key;
  }
  if (!err) err = zps_token_keys_read(pass->key_file, &keys, error);
  if (!err) err = zps_token_make(&keys, "*", 0, token, error);
  if (err) return err;
  snprintf(pass->token, sizeof pass->token, "%s/token", dir);
  pass->token_file = pass->token;
  return zps_private_create(pass->token, "token file", token, error);
}

#include "tests/conform/conform_certs.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common/tls/store.h"

#define FOLDER "CONFORM_CERTS"
enum { DAY_S = 86400 };

static bool is_maker;

static zps_err_t make(const char *folder, struct zps_error *error) {
  struct zps_certs_store store;
  bool is_new;
  zps_err_t err = zps_certs_store_open(folder, &store, &is_new, error);
  if (err) return err;
  err =
      zps_certs_store_make(&store, ZPS_TLS_SERVER | ZPS_TLS_WORKER, "end", "end", (long long)time(NULL) + DAY_S, error);
  zps_certs_store_close(&store);
  return err;
}

struct zps_tls *conform_certs_open(void) {
  char made[] = "/tmp/zenps-conform-XXXXXX", ca[200], cert[200], key[200];
  struct zps_error error = {.text = "no folder can be made in /tmp"};
  struct zps_tls *tls = NULL;
  if (!getenv(FOLDER)) {
    is_maker = mkdtemp(made) && make(made, &error) == ZPS_OK && setenv(FOLDER, made, 1) == 0;
    if (!is_maker) fprintf(stderr, "# no certificates: %s\n", error.text);
    if (!is_maker) return NULL;
  }
  const char *const folder = getenv(FOLDER);
  snprintf(ca, sizeof ca, "%s/ca.pem", folder);
  snprintf(cert, sizeof cert, "%s/end.pem", folder);
  snprintf(key, sizeof key, "%s/end.key", folder);
  if (zps_tls_create(&(struct zps_tls_files){.ca = ca, .cert = cert, .key = key}, &tls, &error) != ZPS_OK)
    fprintf(stderr, "# no certificates: %s\n", error.text);
  return tls;
}

void conform_certs_close(struct zps_tls *tls) {
  static const char *const files[] = {"ca.pem", "ca.key", "end.pem", "end.key"};
  char path[200];
  zps_tls_unref(tls);
  if (!is_maker) return;
  for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++) {
    snprintf(path, sizeof path, "%s/%s", getenv(FOLDER), files[i]);
    unlink(path);
  }
  rmdir(getenv(FOLDER));
}

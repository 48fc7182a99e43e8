#include "common/tls/store.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/secret.h"
#include "common/tls/tls_internal.h"

#define DAY_S 86400LL
#define AUTHORITY_DAYS 3650
#define CLOCKS_DIFFER_S 600

zps_err_t zps_certs_file_read(const char *path, char *text, size_t size, struct zps_error *error) {
  FILE *file = fopen(path, "re");
  if (!file) return zps_fail_errno(error, ZPS_ERR_IO, errno, "%.300s: cannot be opened", path);
  const size_t len = fread(text, 1, size, file);
  const bool failed = ferror(file);
  const int why = errno;
  fclose(file);
  if (failed) return zps_fail_errno(error, ZPS_ERR_IO, why, "%.300s: cannot be read", path);
  if (len == size) return zps_fail(error, ZPS_ERR_INVALID, "%.300s: must have less than %zu bytes", path, size);
  text[len] = '\0';
  return ZPS_OK;
}

static zps_err_t path_of(const struct zps_certs_store *store, const char *file, const char *suffix, char path[PATH_MAX],
                         struct zps_error *error) {
  if (snprintf(path, PATH_MAX, "%s/%s%s", store->folder, file, suffix) < PATH_MAX) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID, "%.300s: the path of %s%s has %zu bytes: must have at most %d", store->folder,
                  file, suffix, strlen(store->folder) + 1 + strlen(file) + strlen(suffix), PATH_MAX - 1);
}

/* Beside the old one, then in its place. A certificate is for everybody to read, and its key is not. */
static zps_err_t replace(const struct zps_certs_store *store, const char *file, const char *suffix, const char *text,
                         mode_t mode, struct zps_error *error) {
  char path[PATH_MAX], beside[PATH_MAX];
  char ending[16];
  snprintf(ending, sizeof ending, "%s.new", suffix);
  zps_err_t err = path_of(store, file, suffix, path, error);
  if (!err) err = path_of(store, file, ending, beside, error);
  if (err) return err;
  unlink(beside); /* left behind by one that was killed */
  err = zps_private_create(beside, "file", text, error);
  if (err) return err;
  if (chmod(beside, mode) == 0 && rename(beside, path) == 0) return ZPS_OK;
  err = zps_fail_errno(error, ZPS_ERR_IO, errno, "%.300s: cannot be written", path);
  unlink(beside);
  return err;
}

static zps_err_t write_pair(const struct zps_certs_store *store, const char *file, const struct zps_certs_pair *pair,
                            struct zps_error *error) {
  const zps_err_t err = replace(store, file, ".key", pair->key, 0600, error);
  return err ? err : replace(store, file, ".pem", pair->cert, 0644, error);
}

static zps_err_t make_authority(struct zps_certs_store *store, struct zps_error *error) {
  const long long now_s = (long long)time(NULL);
  const struct zps_certs_span span = {now_s - CLOCKS_DIFFER_S, now_s + AUTHORITY_DAYS * DAY_S};
  struct zps_certs_pair pair = {NULL, NULL};
  zps_err_t err = zps_authority_make(&span, &store->authority, error);
  if (!err) err = zps_authority_write(store->authority, &pair, error);
  if (!err) err = write_pair(store, "ca", &pair, error);
  zps_certs_pair_fini(&pair);
  return err;
}

static zps_err_t read_authority(struct zps_certs_store *store, const char *cert, const char *key,
                                struct zps_error *error) {
  struct zps_certs_pair pair = {calloc(1, ZPS_TLS_FILE_MAX), calloc(1, ZPS_TLS_FILE_MAX)};
  struct zps_error why;
  zps_err_t err = pair.cert && pair.key ? ZPS_OK : zps_fail(error, ZPS_ERR_NOMEM, "no memory for an authority");
  if (!err) err = zps_certs_file_read(cert, pair.cert, ZPS_TLS_FILE_MAX, error);
  if (!err) err = zps_private_read(key, "private key", pair.key, ZPS_TLS_FILE_MAX, error);
  if (!err && zps_authority_read(&pair, &store->authority, &why))
    err = zps_fail(error, why.code, "authority %.200s and .key: %.200s", cert, why.text);
  zps_certs_pair_fini(&pair);
  return err;
}

zps_err_t zps_certs_store_open(const char *folder, struct zps_certs_store *store_p, bool *is_new_p,
                               struct zps_error *error) {
  char cert[PATH_MAX], key[PATH_MAX];
  if (mkdir(folder, 0700) < 0 && errno != EEXIST)
    return zps_fail_errno(error, ZPS_ERR_IO, errno, "%.300s: cannot make the folder", folder);
  struct zps_certs_store store = {.folder = strdup(folder)};
  if (!store.folder) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %.300s", folder);
  zps_err_t err = path_of(&store, "ca", ".pem", cert, error);
  if (!err) err = path_of(&store, "ca", ".key", key, error);
  if (!err) {
    *is_new_p = access(cert, F_OK) < 0 && access(key, F_OK) < 0;
    err = *is_new_p ? make_authority(&store, error) : read_authority(&store, cert, key, error);
  }
  if (err)
    zps_certs_store_close(&store);
  else
    *store_p = store;
  return err;
}

void zps_certs_store_close(struct zps_certs_store *store) {
  zps_authority_destroy(store->authority);
  free(store->folder);
  *store = (struct zps_certs_store){.folder = NULL};
}

zps_err_t zps_certs_store_make(const struct zps_certs_store *store, unsigned roles, const char *name, const char *file,
                               long long until_s, struct zps_error *error) {
  const struct zps_certs_span span = {(long long)time(NULL) - CLOCKS_DIFFER_S, until_s};
  struct zps_certs_pair pair;
  zps_err_t err = zps_certs_make(store->authority, roles, name, &span, &pair, error);
  if (err) return err;
  err = write_pair(store, file, &pair, error);
  zps_certs_pair_fini(&pair);
  return err;
}

static zps_err_t read_cert(const struct zps_certs_store *store, const char *file, char **text_p,
                           struct zps_error *error) {
  char path[PATH_MAX];
  const bool is_path = strchr(file, '/') || strstr(file, ".pem");
  const zps_err_t err = is_path ? ZPS_OK : path_of(store, file, ".pem", path, error);
  *text_p = malloc(ZPS_TLS_FILE_MAX);
  if (err) return err;
  if (!*text_p) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for certificate %.300s", file);
  return zps_certs_file_read(is_path ? file : path, *text_p, ZPS_TLS_FILE_MAX, error);
}

/* NULL: there is none yet. */
static zps_err_t read_list(const struct zps_certs_store *store, char path[PATH_MAX], char **text_p,
                           struct zps_error *error) {
  *text_p = NULL;
  const zps_err_t err = path_of(store, "crl", ".pem", path, error);
  if (err || access(path, F_OK) < 0) return err;
  *text_p = malloc(ZPS_CRL_FILE_MAX);
  if (!*text_p) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %.300s", path);
  return zps_certs_file_read(path, *text_p, ZPS_CRL_FILE_MAX, error);
}

/* One by one, so that an error names the file. */
static zps_err_t add_to_list(const struct zps_certs_store *store, const char *path, const char *file, char **list,
                             struct zps_certs_list *list_p, struct zps_error *error) {
  struct zps_error why;
  char *cert = NULL;
  zps_err_t err = file ? read_cert(store, file, &cert, error) : ZPS_OK;
  if (!err && zps_authority_revoke(store->authority, *list, (const char *const *)&cert, file != NULL, list_p, &why))
    err = zps_fail(error, why.code, "%.300s: %.150s", file ? file : path, why.text);
  free(cert);
  if (err) return err;
  free(*list);
  *list = list_p->text;
  list_p->text = NULL;
  return ZPS_OK;
}

zps_err_t zps_certs_store_revoke(const struct zps_certs_store *store, char *const *files, unsigned n,
                                 struct zps_certs_list *list_p, struct zps_error *error) {
  char path[PATH_MAX], *list = NULL;
  zps_err_t err = read_list(store, path, &list, error);
  if (!err) err = add_to_list(store, path, NULL, &list, list_p, error); /* What is there is a list of this authority. */
  for (unsigned i = 0; i < n && !err; i++) err = add_to_list(store, path, files[i], &list, list_p, error);
  if (!err) err = replace(store, "crl", ".pem", list, 0644, error);
  free(list);
  return err;
}

#include "tests/unit/tls/tls_rig.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

long long rig_now(void) {
  return (long long)time(NULL);
}

const char *rig_path(const struct rig *rig, const char *name, const char *suffix, char buf[160]) {
  snprintf(buf, 160, "%s/%s%s", rig->folder, name, suffix);
  return buf;
}

void rig_write(const char *path, const char *text, unsigned mode) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(chmod(path, mode), 0);
}

void rig_open(struct rig *rig) {
  const struct zps_certs_span span = {rig_now() - 100 * RIG_DAY_S, rig_now() + 100 * RIG_DAY_S};
  struct zps_certs_pair pair;
  char path[160];
  strcpy(rig->folder, "/tmp/zenps-tls-XXXXXX");
  assert_non_null(mkdtemp(rig->folder));
  assert_int_equal(zps_authority_make(&span, &rig->authority, NULL), ZPS_OK);
  assert_int_equal(zps_authority_write(rig->authority, &pair, NULL), ZPS_OK);
  rig_write(rig_path(rig, "ca", ".pem", path), pair.cert, 0644);
  rig_write(rig_path(rig, "ca", ".key", path), pair.key, 0600);
  zps_certs_pair_fini(&pair);
}

void rig_close(struct rig *rig) {
  char path[400];
  DIR *folder = opendir(rig->folder);
  assert_non_null(folder);
  for (struct dirent *entry; (entry = readdir(folder));) {
    snprintf(path, sizeof path, "%s/%s", rig->folder, entry->d_name);
    if (entry->d_name[0] != '.') unlink(path);
  }
  closedir(folder);
  assert_int_equal(rmdir(rig->folder), 0);
  zps_authority_destroy(rig->authority);
}

void rig_cert(struct rig *rig, const char *name, unsigned roles, long long from_s, long long until_s) {
  const struct zps_certs_span span = {rig_now() + from_s, rig_now() + until_s};
  struct zps_certs_pair pair;
  char path[160];
  assert_int_equal(zps_certs_make(rig->authority, roles, name, &span, &pair, NULL), ZPS_OK);
  rig_write(rig_path(rig, name, ".pem", path), pair.cert, 0644);
  rig_write(rig_path(rig, name, ".key", path), pair.key, 0600);
  zps_certs_pair_fini(&pair);
}

zps_err_t rig_try(const struct rig *rig, const char *name, const struct rig *trusted, struct zps_tls **tls_p,
                  struct zps_error *error) {
  char ca[160], cert[160], key[160];
  const struct zps_tls_files files = {.ca = rig_path(trusted, "ca", ".pem", ca),
                                      .cert = rig_path(rig, name, ".pem", cert),
                                      .key = rig_path(rig, name, ".key", key)};
  error->text[0] = '\0';
  return zps_tls_create(&files, tls_p, error);
}

struct zps_tls *rig_tls(const struct rig *rig, const char *name, const struct rig *trusted) {
  struct zps_tls *tls = NULL;
  struct zps_error error;
  const zps_err_t err = rig_try(rig, name, trusted, &tls, &error);
  assert_string_equal(error.text, "");
  assert_int_equal(err, ZPS_OK);
  return tls;
}

char *rig_text(const struct rig *rig, const char *name) {
  char path[160], *const text = calloc(1, 65536);
  FILE *const file = fopen(rig_path(rig, name, ".pem", path), "r");
  assert_non_null(file);
  assert_non_null(text);
  assert_true(fread(text, 1, 65535, file) > 0);
  fclose(file);
  return text;
}

void rig_revoke(const struct rig *rig, const char *name, bool is_first) {
  char path[160], *const before = is_first ? NULL : rig_text(rig, "crl"),
                         *const cert = name ? rig_text(rig, name) : NULL;
  struct zps_certs_list list;
  assert_int_equal(zps_authority_revoke(rig->authority, before, (const char *const *)&cert, name != NULL, &list, NULL),
                   ZPS_OK);
  rig_write(rig_path(rig, "crl", ".pem", path), list.text, 0644);
  free(list.text);
  free(before);
  free(cert);
}

struct zps_tls *rig_identity(struct rig *rig, const char *name, unsigned roles) {
  rig_cert(rig, name, roles, -RIG_DAY_S, 10 * RIG_DAY_S);
  return rig_tls(rig, name, rig);
}

void rig_pair_open(struct rig_pair *pair, struct zps_tls *listener, struct zps_tls *client) {
  memset(pair, 0, sizeof *pair);
  assert_int_equal(zps_tls_session_create(listener, true, &pair->listener.session, NULL), ZPS_OK);
  assert_int_equal(zps_tls_session_create(client, false, &pair->client.session, NULL), ZPS_OK);
}

static void hear(struct rig_end *end, const char *bytes, size_t len) {
  size_t n = 0;
  end->err = zps_tls_take(end->session, bytes, len, &end->error);
  while (!end->err) {
    end->err = zps_tls_read(end->session, end->said + end->n_said, sizeof end->said - 1 - end->n_said, &n, &end->error);
    if (n == 0) return;
    end->n_said += n;
  }
}

/* Whether there was something. */
static bool carry(struct rig_end *from, struct rig_end *to, size_t chunk) {
  char *bytes = NULL;
  size_t len;
  assert_int_equal(zps_tls_send(from->session, &bytes, &len), ZPS_OK);
  for (size_t at = 0; at < len && !to->err; at += chunk) hear(to, bytes + at, len - at < chunk ? len - at : chunk);
  free(bytes);
  return len > 0;
}

void rig_pair_run(struct rig_pair *pair, size_t chunk) {
  bool again = true;
  while (again) {
    again = carry(&pair->client, &pair->listener, chunk);
    again |= carry(&pair->listener, &pair->client, chunk);
  }
}

void rig_pair_close(struct rig_pair *pair) {
  zps_tls_session_destroy(pair->listener.session);
  zps_tls_session_destroy(pair->client.session);
}

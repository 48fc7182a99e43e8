/* An identity: the files of a process, read into a context that sessions are made from. */
#include "common/tls/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/secret.h"
#include "common/tls/tls_internal.h"

#define ZPS_LOG_COMPONENT "tls"
#include "common/base/log.h"

enum { CA, CERT, KEY, CRL, N_FILES };
static const char *const what[N_FILES] = {"authority", "certificate", "private key", "revocation list"};

struct stamp { /* of a file, as it was last looked at */
  dev_t dev;
  ino_t ino;
  off_t size;
  struct timespec changed;
};

struct zps_tls {
  atomic_uint refs;
  atomic_uint times_read;
  char *paths[N_FILES]; /* CRL: NULL where there is none. */
  pthread_mutex_t lock; /* of what follows */
  SSL_CTX *context;
  struct stamp stamps[N_FILES];
  long long time_s; /* 0: now */
};

/* A key with a password would ask for it at a terminal. */
static int no_password(char *buf, int size, int writes, void *ctx) {
  (void)buf, (void)size, (void)writes, (void)ctx;
  return -1;
}

static zps_err_t read_key(const char *path, EVP_PKEY **key_p, struct zps_error *error) {
  char reason[200], *text = malloc(ZPS_TLS_FILE_MAX);
  if (!text) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for private key %.300s", path);
  zps_err_t err = zps_private_read(path, what[KEY], text, ZPS_TLS_FILE_MAX, error);
  BIO *bio = err ? NULL : BIO_new_mem_buf(text, -1);
  EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;
  if (!err && !bio)
    err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for private key %.300s", path);
  else if (!err && !key)
    err = zps_fail(error, ZPS_ERR_INVALID, "private key %.200s: no PEM of a key without a password: %.150s", path,
                   zps_tls_reason(reason, sizeof reason));
  BIO_free(bio);
  OPENSSL_cleanse(text, ZPS_TLS_FILE_MAX);
  free(text);
  if (!err) *key_p = key;
  return err;
}

/* OpenSSL opens a file itself, and does not say what hinders it. */
static zps_err_t check_readable(const char *path, int file, struct zps_error *error) {
  FILE *opened = fopen(path, "re");
  if (!opened) return zps_fail_errno(error, ZPS_ERR_IO, errno, "%s %.300s: cannot be opened", what[file], path);
  fclose(opened);
  return ZPS_OK;
}

static zps_err_t check_own(SSL_CTX *context, const char *path, struct zps_error *error) {
  X509 *cert = SSL_CTX_get0_certificate(context);
  char name[ZPS_TLS_NAME_MAX], dates[160];
  if (!zps_tls_cert_roles(cert, name))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "certificate %.200s: has no role: one of its alternative names must be a URI zenps://ROLE/NAME, "
                    "ROLE being coordinator, server, worker or admin (zenpsctl certs makes such ones)",
                    path);
  const char *const refused = zps_tls_dates_refuse(cert, time(NULL), dates, sizeof dates);
  if (refused) return zps_fail(error, ZPS_ERR_INVALID, "certificate %.200s (%.120s): %s", path, name, refused);
  return ZPS_OK;
}

static zps_err_t load_into(SSL_CTX *context, char *const paths[N_FILES], struct zps_error *error) {
  char reason[200];
  EVP_PKEY *key = NULL;
  zps_err_t err = check_readable(paths[CA], CA, error);
  if (!err) err = check_readable(paths[CERT], CERT, error);
  if (!err) err = read_key(paths[KEY], &key, error);
  if (err) return err;
  if (SSL_CTX_load_verify_file(context, paths[CA]) != 1)
    err = zps_fail(error, ZPS_ERR_INVALID, "authority %.200s: no certificates (PEM): %.150s", paths[CA],
                   zps_tls_reason(reason, sizeof reason));
  else if (SSL_CTX_use_certificate_chain_file(context, paths[CERT]) != 1)
    err = zps_fail(error, ZPS_ERR_INVALID, "certificate %.200s: no certificate (PEM): %.150s", paths[CERT],
                   zps_tls_reason(reason, sizeof reason));
  else if (SSL_CTX_use_PrivateKey(context, key) != 1 || SSL_CTX_check_private_key(context) != 1)
    err = zps_fail(error, ZPS_ERR_INVALID, "private key %.200s: is none of certificate %.200s: %.80s", paths[KEY],
                   paths[CERT], zps_tls_reason(reason, sizeof reason));
  EVP_PKEY_free(key);
  if (!err) err = check_own(context, paths[CERT], error);
  return err || !paths[CRL] ? err : zps_crl_load(context, paths[CRL], error);
}

/* Sessions are not taken up again, so there are no tickets: what a certificate says is looked at each time. */
static zps_err_t load(char *const paths[N_FILES], SSL_CTX **context_p, struct zps_error *error) {
  ERR_clear_error();
  SSL_CTX *context = SSL_CTX_new(TLS_method());
  if (!context || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_num_tickets(context, 0) != 1) {
    SSL_CTX_free(context);
    ERR_clear_error();
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for TLS");
  }
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, zps_tls_verify);
  const zps_err_t err = load_into(context, paths, error);
  if (err)
    SSL_CTX_free(context);
  else
    *context_p = context;
  return err;
}

/* ---- Files that change ---- */

static void look(char *const paths[N_FILES], struct stamp stamps[N_FILES]) {
  memset(stamps, 0, N_FILES * sizeof *stamps);
  for (int i = 0; i < N_FILES; i++) {
    struct stat stat_;
    if (!paths[i] || stat(paths[i], &stat_) < 0) continue;
    stamps[i].dev = stat_.st_dev;
    stamps[i].ino = stat_.st_ino;
    stamps[i].size = stat_.st_size;
    stamps[i].changed = stat_.st_mtim;
  }
}

static void set_time(const struct zps_tls *tls, SSL_CTX *context) {
  if (tls->time_s) X509_VERIFY_PARAM_set_time(SSL_CTX_get0_param(context), (time_t)tls->time_s);
}

/* Call with the lock held. Files that change while they are read are read again the next time. */
static zps_err_t read_again(struct zps_tls *tls, const struct stamp stamps[N_FILES], struct zps_error *error) {
  SSL_CTX *context = NULL;
  memcpy(tls->stamps, stamps, sizeof tls->stamps);
  const zps_err_t err = load(tls->paths, &context, error);
  if (err) return err;
  set_time(tls, context);
  SSL_CTX_free(tls->context);
  tls->context = context;
  atomic_fetch_add(&tls->times_read, 1);
  return ZPS_OK;
}

zps_err_t zps_tls_reload(struct zps_tls *tls, struct zps_error *error) {
  struct stamp stamps[N_FILES];
  pthread_mutex_lock(&tls->lock);
  look(tls->paths, stamps);
  const zps_err_t err = read_again(tls, stamps, error);
  pthread_mutex_unlock(&tls->lock);
  return err;
}

SSL_CTX *zps_tls_context(struct zps_tls *tls) {
  struct stamp stamps[N_FILES];
  struct zps_error error;
  pthread_mutex_lock(&tls->lock);
  look(tls->paths, stamps);
  if (memcmp(stamps, tls->stamps, sizeof stamps) != 0) {
    if (read_again(tls, stamps, &error))
      zps_log_warn("%s: the previous certificate stays in use", error.text);
    else
      zps_log_info("certificate %s: read again, for connections to come", tls->paths[CERT]);
  }
  SSL_CTX *context = tls->context;
  SSL_CTX_up_ref(context);
  pthread_mutex_unlock(&tls->lock);
  return context;
}

unsigned zps_tls_times_read(const struct zps_tls *tls) {
  return atomic_load(&tls->times_read);
}

unsigned zps_tls_roles(struct zps_tls *tls) {
  char name[ZPS_TLS_NAME_MAX];
  pthread_mutex_lock(&tls->lock);
  const unsigned roles = zps_tls_cert_roles(SSL_CTX_get0_certificate(tls->context), name);
  pthread_mutex_unlock(&tls->lock);
  return roles;
}

zps_err_t zps_tls_owner(struct zps_tls *tls, uint8_t owner_p[ZPS_TLS_OWNER_BYTES], struct zps_error *error) {
  char name[ZPS_TLS_NAME_MAX];
  pthread_mutex_lock(&tls->lock);
  zps_tls_cert_roles(SSL_CTX_get0_certificate(tls->context), name);
  pthread_mutex_unlock(&tls->lock);
  return zps_tls_owner_of(name, owner_p, error);
}

long long zps_tls_ends_s(struct zps_tls *tls) {
  SSL_CTX *const context = zps_tls_context(tls);
  const long long ends_s = zps_tls_seconds(X509_get0_notAfter(SSL_CTX_get0_certificate(context)));
  SSL_CTX_free(context);
  return ends_s;
}

enum zps_tls_serves zps_tls_serves(struct zps_tls *tls, const char *name, char names_p[ZPS_TLS_SERVERS_MAX]) {
  pthread_mutex_lock(&tls->lock);
  const enum zps_tls_serves serves = zps_tls_cert_serves(SSL_CTX_get0_certificate(tls->context), name, names_p);
  pthread_mutex_unlock(&tls->lock);
  return serves;
}

void zps_tls_set_time(struct zps_tls *tls, long long time_s) {
  pthread_mutex_lock(&tls->lock);
  tls->time_s = time_s;
  set_time(tls, tls->context);
  pthread_mutex_unlock(&tls->lock);
}

/* ---- Life ---- */

static void destroy(struct zps_tls *tls) {
  for (int i = 0; i < N_FILES; i++) free(tls->paths[i]);
  SSL_CTX_free(tls->context);
  pthread_mutex_destroy(&tls->lock);
  free(tls);
}

zps_err_t zps_tls_create(const struct zps_tls_files *files, struct zps_tls **tls_p, struct zps_error *error) {
  const char *const paths[N_FILES] = {files->ca, files->cert, files->key, files->crl};
  for (int i = 0; i < N_FILES; i++)
    if (!paths[i] && i != CRL)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "the file of the %s is not named: TLS needs the authority's certificate (ca), one of its own "
                      "(cert) and the private key of that (key)",
                      what[i]);
  struct zps_tls *tls = calloc(1, sizeof *tls);
  if (!tls) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for TLS");
  atomic_init(&tls->refs, 1);
  pthread_mutex_init(&tls->lock, NULL);
  zps_err_t err = ZPS_OK;
  for (int i = 0; i < N_FILES && !err; i++) {
    tls->paths[i] = paths[i] ? strdup(paths[i]) : NULL;
    if (paths[i] && !tls->paths[i]) err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for TLS");
  }
  if (!err) err = zps_tls_reload(tls, error);
  if (err)
    destroy(tls);
  else
    *tls_p = tls;
  return err;
}

struct zps_tls *zps_tls_ref(struct zps_tls *tls) {
  if (tls) atomic_fetch_add(&tls->refs, 1);
  return tls;
}

void zps_tls_unref(struct zps_tls *tls) {
  if (tls && atomic_fetch_sub(&tls->refs, 1) == 1) destroy(tls);
}

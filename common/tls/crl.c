/* Revocation lists (CRL): read for a context, looked up, and made by an authority. */
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <time.h>

#include "common/tls/certs.h"
#include "common/tls/store.h"
#include "common/tls/tls_internal.h"

#define CLOCKS_DIFFER_S 600

/* ---- Reading ---- */

static zps_err_t check_dates(const char *path, const X509_CRL *list, struct zps_error *error) {
  char date[40];
  const ASN1_TIME *const next = X509_CRL_get0_nextUpdate(list);
  if (!next || X509_cmp_current_time(next) > 0) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID,
                  "revocation list %.300s: expired at %s: zenpsctl certs revoke DIR makes it anew, with what it has",
                  path, zps_tls_time_text(next, date, sizeof date));
}

/* A file has one list per authority, one behind the other. */
static zps_err_t add_all(X509_STORE *store, const char *path, BIO *bio, struct zps_error *error) {
  char reason[200];
  unsigned n = 0;
  for (X509_CRL *list; (list = PEM_read_bio_X509_CRL(bio, NULL, NULL, NULL)) != NULL; n++) {
    const zps_err_t err = check_dates(path, list, error);
    const bool added = !err && X509_STORE_add_crl(store, list) == 1;
    X509_CRL_free(list);
    if (err) return err;
    if (!added) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for revocation list %.300s", path);
  }
  if (n > 0 && ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE) {
    ERR_clear_error();
    return ZPS_OK;
  }
  return zps_fail(error, ZPS_ERR_INVALID, "revocation list %.200s: %s (PEM): %.150s", path,
                  n > 0 ? "the last one is damaged" : "no list", zps_tls_reason(reason, sizeof reason));
}

zps_err_t zps_crl_load(SSL_CTX *context, const char *path, struct zps_error *error) {
  struct zps_error why;
  X509_STORE *const store = SSL_CTX_get_cert_store(context);
  char *const text = malloc(ZPS_CRL_FILE_MAX);
  if (!text) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for revocation list %.300s", path);
  zps_err_t err = zps_certs_file_read(path, text, ZPS_CRL_FILE_MAX, &why);
  if (err) err = zps_fail(error, err, "revocation list %.400s", why.text);
  BIO *const bio = err ? NULL : BIO_new_mem_buf(text, -1);
  if (!err && !bio) err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for revocation list %.300s", path);
  if (!err) err = add_all(store, path, bio, error);
  if (!err) X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
  BIO_free(bio);
  free(text);
  return err;
}

bool zps_crl_has(const SSL_CTX *context, X509 *cert) {
  STACK_OF(X509_OBJECT) *const objects = X509_STORE_get0_objects(SSL_CTX_get_cert_store(context));
  for (int i = 0; i < sk_X509_OBJECT_num(objects); i++) {
    X509_CRL *const list = X509_OBJECT_get0_X509_CRL(sk_X509_OBJECT_value(objects, i));
    X509_REVOKED *entry = NULL;
    if (!list || X509_NAME_cmp(X509_CRL_get_issuer(list), X509_get_issuer_name(cert)) != 0) continue;
    if (X509_CRL_get0_by_cert(list, &entry, cert) == 1) return true;
  }
  return false;
}

/* ---- Making ---- */

static zps_err_t cannot(struct zps_error *error) {
  char reason[200];
  return zps_fail(error, ZPS_ERR_INTERNAL, "cannot make a revocation list: %s", zps_tls_reason(reason, sizeof reason));
}

/* NULL: the text is none of this authority. */
static X509_CRL *parse(const struct zps_authority *authority, const char *text) {
  BIO *const bio = BIO_new_mem_buf(text, -1);
  X509_CRL *list = bio ? PEM_read_bio_X509_CRL(bio, NULL, NULL, NULL) : NULL;
  BIO_free(bio);
  if (list && X509_CRL_verify(list, authority->key) == 1) return list;
  X509_CRL_free(list);
  return NULL;
}

static bool add(X509_CRL *list, X509 *cert, time_t now) {
  X509_REVOKED *there = NULL, *const entry = X509_REVOKED_new();
  if (X509_CRL_get0_by_cert(list, &there, cert) == 1) {
    X509_REVOKED_free(entry);
    return true;
  }
  ASN1_TIME *const at = ASN1_TIME_set(NULL, now);
  const bool added = entry && at && X509_REVOKED_set_serialNumber(entry, X509_get_serialNumber(cert)) == 1 &&
                     X509_REVOKED_set_revocationDate(entry, at) == 1 && X509_CRL_add0_revoked(list, entry) == 1;
  ASN1_TIME_free(at);
  if (!added) X509_REVOKED_free(entry);
  return added;
}

static bool set_dates(X509_CRL *list, const struct zps_authority *authority, time_t now) {
  ASN1_TIME *const from = ASN1_TIME_set(NULL, now - CLOCKS_DIFFER_S);
  const bool is_set = from && X509_CRL_set1_lastUpdate(list, from) == 1 &&
                      X509_CRL_set1_nextUpdate(list, X509_get0_notAfter(authority->cert)) == 1;
  ASN1_TIME_free(from);
  return is_set;
}

static zps_err_t add_texts(X509_CRL *list, const struct zps_authority *authority, const char *const *certs, unsigned n,
                           time_t now, struct zps_error *error) {
  for (unsigned i = 0; i < n; i++) {
    X509 *const cert = zps_tls_cert_read(certs[i]);
    const bool is_ours = cert && X509_verify(cert, authority->key) == 1;
    const bool is_own = is_ours && X509_cmp(cert, authority->cert) == 0;
    const bool added = is_ours && !is_own && add(list, cert, now);
    X509_free(cert);
    ERR_clear_error();
    if (is_own) return zps_fail(error, ZPS_ERR_INVALID, "is the authority itself: to be rid of it, make another one");
    if (!is_ours)
      return zps_fail(error, ZPS_ERR_INVALID, cert ? "was made by another authority" : "no certificate (PEM)");
    if (!added) return cannot(error);
  }
  return ZPS_OK;
}

zps_err_t zps_authority_revoke(const struct zps_authority *authority, const char *before, const char *const *certs,
                               unsigned n, struct zps_certs_list *list_p, struct zps_error *error) {
  const time_t now = time(NULL);
  ERR_clear_error();
  X509_CRL *const list = before ? parse(authority, before) : X509_CRL_new();
  if (!list && before) return zps_fail(error, ZPS_ERR_INVALID, "is no revocation list (PEM) of this authority");
  if (!list) return cannot(error);
  BIO *const bio = BIO_new(BIO_s_mem());
  zps_err_t err = add_texts(list, authority, certs, n, now, error);
  const bool made = !err && bio && X509_CRL_set_version(list, X509_CRL_VERSION_2) == 1 &&
                    X509_CRL_set_issuer_name(list, X509_get_subject_name(authority->cert)) == 1 &&
                    set_dates(list, authority, now) && X509_CRL_sort(list) == 1 &&
                    X509_CRL_sign(list, authority->key, EVP_sha256()) > 0 && PEM_write_bio_X509_CRL(bio, list) == 1;
  *list_p = (struct zps_certs_list){.text = made ? zps_tls_bio_text(bio) : NULL};
  const STACK_OF(X509_REVOKED) *const entries = X509_CRL_get_REVOKED(list);
  list_p->n = entries ? (unsigned)sk_X509_REVOKED_num(entries) : 0;
  zps_tls_time_text(X509_get0_notAfter(authority->cert), list_p->until, sizeof list_p->until);
  if (!err && !list_p->text) err = cannot(error);
  BIO_free(bio);
  X509_CRL_free(list);
  return err;
}

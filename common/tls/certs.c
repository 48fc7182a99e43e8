/* Making certificates, and telling what one says. */
#include "common/tls/certs.h"

#include <arpa/inet.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/text.h"
#include "common/tls/tls_internal.h"

#define NAME_LEN_MAX 64u

static zps_err_t cannot(const char *what, struct zps_error *error) {
  char reason[200];
  return zps_fail(error, ZPS_ERR_INTERNAL, "cannot make %s: %s", what, zps_tls_reason(reason, sizeof reason));
}

/* ---- Making ---- */

static bool extend(X509 *cert, X509 *issuer, int nid, const char *value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
  X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
  const bool added = extension && X509_add_ext(cert, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

static bool set_serial(X509 *cert) {
  unsigned char bytes[16];
  if (RAND_bytes(bytes, sizeof bytes) != 1) return false;
  bytes[0] = (bytes[0] & 0x3f) | 0x40; /* neither negative nor short */
  BIGNUM *number = BN_bin2bn(bytes, sizeof bytes, NULL);
  const bool is_set = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert));
  BN_free(number);
  return is_set;
}

static bool set_name(X509 *cert, const char *name) {
  X509_NAME *subject = X509_get_subject_name(cert);
  return X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC, (const unsigned char *)"zenps", -1, -1, 0) == 1 &&
         X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0) == 1;
}

/* All but its extensions and its signature. */
static X509 *begin(const char *name, EVP_PKEY *key, const struct zps_certs_span *span) {
  X509 *cert = X509_new();
  if (cert && X509_set_version(cert, X509_VERSION_3) == 1 && set_serial(cert) && set_name(cert, name) &&
      ASN1_TIME_set(X509_getm_notBefore(cert), (time_t)span->from_s) &&
      ASN1_TIME_set(X509_getm_notAfter(cert), (time_t)span->until_s) && X509_set_pubkey(cert, key) == 1)
    return cert;
  X509_free(cert);
  return NULL;
}

zps_err_t zps_authority_make(const struct zps_certs_span *span, struct zps_authority **authority_p,
                             struct zps_error *error) {
  unsigned char random[4] = {0};
  char name[40];
  ERR_clear_error();
  struct zps_authority *authority = calloc(1, sizeof *authority);
  if (!authority) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for an authority");
  const bool has_random = RAND_bytes(random, sizeof random) == 1; /* those of two clusters have other names */
  snprintf(name, sizeof name, "authority %02x%02x%02x%02x", random[0], random[1], random[2], random[3]);
  authority->key = has_random ? EVP_EC_gen("P-256") : NULL;
  authority->cert = authority->key ? begin(name, authority->key, span) : NULL;
  X509 *cert = authority->cert;
  if (cert && X509_set_issuer_name(cert, X509_get_subject_name(cert)) == 1 &&
      extend(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
      extend(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign") &&
      extend(cert, cert, NID_subject_key_identifier, "hash") && X509_sign(cert, authority->key, EVP_sha256()) > 0) {
    *authority_p = authority;
    return ZPS_OK;
  }
  zps_authority_destroy(authority);
  return cannot("an authority", error);
}

void zps_authority_destroy(struct zps_authority *authority) {
  if (!authority) return;
  X509_free(authority->cert);
  EVP_PKEY_free(authority->key);
  free(authority);
}

/* Of servers a certificate may be for several: all whose names begin alike. */
static bool is_name(unsigned roles, const char *name) {
  size_t len = strlen(name);
  if (len == 1 && roles == ZPS_TLS_SERVER && name[0] == '*') return true;
  if (len > 1 && roles == ZPS_TLS_SERVER && name[len - 1] == '*') len--;
  return len > 0 && len <= NAME_LEN_MAX &&
         strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~") == len;
}

/* "URI:zenps://coordinator/a,URI:zenps://server/a,DNS:a". Other programs, such as Prometheus, know a server by the last
 * one, a host's name or address. */
static const char *names_of(unsigned roles, const char *name, char *buf, size_t size) {
  char word[60];
  buf[0] = '\0';
  for (unsigned role = 1; role <= ZPS_TLS_ADMIN; role *= 2)
    if (roles & role)
      zps_text_add(buf, size, "%sURI:" ZPS_TLS_URI "%s/%s", buf[0] ? "," : "",
                   zps_tls_roles_text(role, word, sizeof word), name);
  struct in_addr v4;
  if (inet_pton(AF_INET, name, &v4) == 1)
    zps_text_add(buf, size, ",IP:%s", name);
  else if (!strpbrk(name, "*_~"))
    zps_text_add(buf, size, ",DNS:%s", name);
  return buf;
}

zps_err_t zps_certs_check_name(unsigned roles, const char *name, struct zps_error *error) {
  if (is_name(roles, name)) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID,
                  "'%.100s' is no name for a certificate: must be 1 to %u letters, digits, '-', '.', '_' or '~'%s",
                  name, NAME_LEN_MAX,
                  roles == ZPS_TLS_SERVER ? ", and may end in '*', for all servers whose names begin so" : "");
}

zps_err_t zps_certs_make(const struct zps_authority *authority, unsigned roles, const char *name,
                         const struct zps_certs_span *span, struct zps_certs_pair *pair_p, struct zps_error *error) {
  char names[5 * ZPS_TLS_NAME_MAX];
  const zps_err_t named = zps_certs_check_name(roles, name, error);
  if (named) return named;
  ERR_clear_error();
  const long long until_s = zps_tls_seconds(X509_get0_notAfter(authority->cert));
  const struct zps_certs_span within = {span->from_s, span->until_s < until_s ? span->until_s : until_s};
  EVP_PKEY *key = EVP_EC_gen("P-256");
  X509 *cert = key ? begin(name, key, &within) : NULL;
  const bool made = cert && X509_set_issuer_name(cert, X509_get_subject_name(authority->cert)) == 1 &&
                    extend(cert, authority->cert, NID_basic_constraints, "critical,CA:FALSE") &&
                    extend(cert, authority->cert, NID_key_usage, "critical,digitalSignature") &&
                    extend(cert, authority->cert, NID_ext_key_usage, "serverAuth,clientAuth") &&
                    extend(cert, authority->cert, NID_subject_key_identifier, "hash") &&
                    extend(cert, authority->cert, NID_authority_key_identifier, "keyid") &&
                    extend(cert, authority->cert, NID_subject_alt_name, names_of(roles, name, names, sizeof names)) &&
                    X509_sign(cert, authority->key, EVP_sha256()) > 0;
  const struct zps_authority pair = {cert, key};
  const zps_err_t err = made ? zps_authority_write(&pair, pair_p, error) : cannot("a certificate", error);
  X509_free(cert);
  EVP_PKEY_free(key);
  return err;
}

/* ---- To text and back ---- */

char *zps_tls_bio_text(BIO *bio) {
  char *bytes = NULL;
  const long len = bio ? BIO_get_mem_data(bio, &bytes) : 0;
  char *text = len > 0 ? malloc((size_t)len + 1) : NULL;
  if (!text) return NULL;
  memcpy(text, bytes, (size_t)len);
  text[len] = '\0';
  return text;
}

zps_err_t zps_authority_write(const struct zps_authority *authority, struct zps_certs_pair *pair_p,
                              struct zps_error *error) {
  BIO *cert = BIO_new(BIO_s_mem()), *key = BIO_new(BIO_s_secmem());
  struct zps_certs_pair pair = {NULL, NULL};
  if (cert && PEM_write_bio_X509(cert, authority->cert) == 1) pair.cert = zps_tls_bio_text(cert);
  if (key && PEM_write_bio_PKCS8PrivateKey(key, authority->key, NULL, NULL, 0, NULL, NULL) == 1)
    pair.key = zps_tls_bio_text(key);
  BIO_free(cert);
  BIO_free(key);
  if (!pair.cert || !pair.key) {
    zps_certs_pair_fini(&pair);
    return cannot("the text of a certificate", error);
  }
  *pair_p = pair;
  return ZPS_OK;
}

void zps_certs_pair_fini(struct zps_certs_pair *pair) {
  free(pair->cert);
  if (pair->key) OPENSSL_cleanse(pair->key, strlen(pair->key));
  free(pair->key);
  *pair = (struct zps_certs_pair){NULL, NULL};
}

X509 *zps_tls_cert_read(const char *text) {
  BIO *bio = BIO_new_mem_buf(text, -1);
  X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
  BIO_free(bio);
  return cert;
}

zps_err_t zps_authority_read(const struct zps_certs_pair *pair, struct zps_authority **authority_p,
                             struct zps_error *error) {
  ERR_clear_error();
  struct zps_authority *authority = calloc(1, sizeof *authority);
  BIO *bio = authority ? BIO_new_mem_buf(pair->key, -1) : NULL;
  if (!bio) {
    free(authority);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for an authority");
  }
  authority->cert = zps_tls_cert_read(pair->cert);
  authority->key = PEM_read_bio_PrivateKey(bio, NULL, NULL, (void *)"");
  BIO_free(bio);
  zps_err_t err = ZPS_OK;
  if (!authority->cert || !authority->key)
    err = zps_fail(error, ZPS_ERR_INVALID, "no %s (PEM) that can be read",
                   authority->cert ? "private key" : "certificate");
  else if (X509_check_ca(authority->cert) != 1)
    err = zps_fail(error, ZPS_ERR_INVALID, "the certificate is not that of an authority");
  else if (X509_check_private_key(authority->cert, authority->key) != 1)
    err = zps_fail(error, ZPS_ERR_INVALID, "the private key is another certificate's");
  ERR_clear_error();
  if (err)
    zps_authority_destroy(authority);
  else
    *authority_p = authority;
  return err;
}

/* ---- Looking ---- */

static void print_name(X509_NAME *name, char *buf, size_t size) {
  BIO *bio = BIO_new(BIO_s_mem());
  char *text = bio && X509_NAME_print_ex(bio, name, 0, XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB) >= 0
                   ? zps_tls_bio_text(bio)
                   : NULL;
  snprintf(buf, size, "%s", text ? text : "?");
  zps_text_sanitize(buf, strlen(buf));
  free(text);
  BIO_free(bio);
}

zps_err_t zps_certs_look(const char *pem, struct zps_certs_facts *facts_p, struct zps_error *error) {
  char reason[200];
  ERR_clear_error();
  X509 *cert = zps_tls_cert_read(pem);
  if (!cert)
    return zps_fail(error, ZPS_ERR_INVALID, "has no certificate (PEM): %s", zps_tls_reason(reason, sizeof reason));
  struct zps_certs_facts facts = {.is_authority = X509_check_ca(cert) == 1};
  print_name(X509_get_subject_name(cert), facts.subject, sizeof facts.subject);
  print_name(X509_get_issuer_name(cert), facts.issuer, sizeof facts.issuer);
  zps_tls_cert_uris(cert, facts.roles, sizeof facts.roles);
  if (facts.is_authority) snprintf(facts.roles, sizeof facts.roles, "authority");
  zps_tls_time_text(X509_get0_notBefore(cert), facts.from, sizeof facts.from);
  zps_tls_time_text(X509_get0_notAfter(cert), facts.until, sizeof facts.until);
  facts.until_s = zps_tls_seconds(X509_get0_notAfter(cert));
  facts.has_expired = X509_cmp_current_time(X509_get0_notAfter(cert)) < 0;
  X509_free(cert);
  *facts_p = facts;
  return ZPS_OK;
}

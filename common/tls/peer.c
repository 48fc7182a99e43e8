/* Certificates: the role that one names, whether a peer's is taken, and the words when it is not. */
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"
#include "common/tls/tls_internal.h"

static const struct {
  const char *word;
  unsigned role;
} roles[] = {{"coordinator", ZPS_TLS_COORDINATOR},
             {"server", ZPS_TLS_SERVER},
             {"worker", ZPS_TLS_WORKER},
             {"admin", ZPS_TLS_ADMIN}};
enum { N_ROLES = sizeof roles / sizeof roles[0] };

const char *zps_tls_roles_text(unsigned set, char *buf, size_t size) {
  const char *words[N_ROLES];
  unsigned n = 0;
  buf[0] = '\0';
  for (unsigned i = 0; i < N_ROLES; i++)
    if (set & roles[i].role) words[n++] = roles[i].word;
  for (unsigned i = 0; i < n; i++) {
    const size_t len = strlen(buf);
    snprintf(buf + len, size - len, "%s%s", i == 0 ? "" : i + 1 == n ? " or " : ", ", words[i]);
  }
  return buf;
}

long long zps_tls_seconds(const ASN1_TIME *time) {
  struct tm tm;
  return ASN1_TIME_to_tm(time, &tm) == 1 ? (long long)timegm(&tm) : 0;
}

const char *zps_tls_time_text(const ASN1_TIME *time, char *buf, size_t size) {
  struct tm tm;
  if (ASN1_TIME_to_tm(time, &tm) != 1 || strftime(buf, size, "%Y-%m-%d %H:%M:%S UTC", &tm) == 0)
    snprintf(buf, size, "?");
  return buf;
}

const char *zps_tls_dates_refuse(X509 *cert, time_t now_s, char *buf, size_t size) {
  const bool has_expired = X509_cmp_time(X509_get0_notAfter(cert), &now_s) < 0;
  if (!has_expired && X509_cmp_time(X509_get0_notBefore(cert), &now_s) <= 0) return NULL;
  char date[40], today[40] = "a time out of range";
  ASN1_TIME *const now = ASN1_TIME_set(NULL, now_s);
  if (now) zps_tls_time_text(now, today, sizeof today);
  ASN1_TIME_free(now);
  snprintf(buf, size, "%s %s: this host's clock says %s", has_expired ? "expired at" : "is not valid before",
           zps_tls_time_text(has_expired ? X509_get0_notAfter(cert) : X509_get0_notBefore(cert), date, sizeof date),
           today);
  return buf;
}

/* 0: the text is none of ours. */
static unsigned role_of(const char *uri, size_t len) {
  const size_t head = sizeof ZPS_TLS_URI - 1;
  if (len >= ZPS_TLS_NAME_MAX || len < head || strncmp(uri, ZPS_TLS_URI, head) != 0) return 0;
  if (zps_text_printable(uri, len) != len) return 0;
  for (unsigned i = 0; i < N_ROLES; i++) {
    const size_t n = strlen(roles[i].word);
    const char *name = uri + head + n + 1;
    if (len > head + n + 1 && strncmp(uri + head, roles[i].word, n) == 0 && name[-1] == '/' &&
        !memchr(name, '/', len - (head + n + 1)))
      return roles[i].role;
  }
  return 0;
}

/* Calls `each` for every URI that names a role. */
static void for_each_uri(X509 *cert, void (*each)(void *ctx, const char *uri, size_t len, unsigned role), void *ctx) {
  GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
  for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
    const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) continue;
    const char *uri = (const char *)ASN1_STRING_get0_data(name->d.uniformResourceIdentifier);
    const int len = ASN1_STRING_length(name->d.uniformResourceIdentifier);
    const unsigned role = len > 0 ? role_of(uri, (size_t)len) : 0;
    if (role) each(ctx, uri, (size_t)len, role);
  }
  GENERAL_NAMES_free(names);
}

struct found {
  unsigned roles;
  char *name; /* of ZPS_TLS_NAME_MAX bytes */
};

static void add_role(void *ctx, const char *uri, size_t len, unsigned role) {
  struct found *found = ctx;
  if (!found->roles) {
    memcpy(found->name, uri, len);
    found->name[len] = '\0';
  }
  found->roles |= role;
}

unsigned zps_tls_cert_roles(X509 *cert, char name_p[ZPS_TLS_NAME_MAX]) {
  struct found found = {.name = name_p};
  name_p[0] = '\0';
  for_each_uri(cert, add_role, &found);
  return found.roles;
}

zps_err_t zps_tls_owner_of(const char *name, uint8_t owner_p[ZPS_TLS_OWNER_BYTES], struct zps_error *error) {
  uint8_t hash[EVP_MAX_MD_SIZE];
  if (EVP_Digest(name, strlen(name), hash, NULL, EVP_sha256(), NULL) != 1) {
    ERR_clear_error();
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the hash of a certificate's name");
  }
  memcpy(owner_p, hash, ZPS_TLS_OWNER_BYTES);
  return ZPS_OK;
}

struct text {
  char *buf;
  size_t size;
};

static void add_uri(void *ctx, const char *uri, size_t len, unsigned role) {
  const struct text *text = ctx;
  (void)role;
  zps_text_add(text->buf, text->size, "%s%.*s", text->buf[0] ? " " : "", (int)len, uri);
}

void zps_tls_cert_uris(X509 *cert, char *buf, size_t size) {
  struct text text = {buf, size};
  buf[0] = '\0';
  for_each_uri(cert, add_uri, &text);
}

/* ---- Which server ---- */

struct served {
  const char *name;
  enum zps_tls_serves serves;
  char *names; /* of ZPS_TLS_SERVERS_MAX bytes */
};

static enum zps_tls_serves fits(const char *pattern, size_t len, const char *name) {
  if (len == 0 || pattern[len - 1] != '*')
    return strlen(name) == len && memcmp(pattern, name, len) == 0 ? ZPS_TLS_SERVES_NAMED : ZPS_TLS_SERVES_NOT;
  if (strncmp(pattern, name, len - 1) != 0) return ZPS_TLS_SERVES_NOT;
  return len == 1 ? ZPS_TLS_SERVES_ANY : ZPS_TLS_SERVES_SOME;
}

static void add_server(void *ctx, const char *uri, size_t len, unsigned role) {
  static const size_t head = sizeof ZPS_TLS_URI "server/" - 1;
  struct served *served = ctx;
  if (role == ZPS_TLS_COORDINATOR) served->serves = ZPS_TLS_SERVES_ALL;
  if (role != ZPS_TLS_SERVER) return;
  const enum zps_tls_serves serves = fits(uri + head, len - head, served->name);
  if (serves > served->serves) served->serves = serves;
  zps_text_add(served->names, ZPS_TLS_SERVERS_MAX, "%s%.*s", served->names[0] ? ", " : "", (int)(len - head),
               uri + head);
}

enum zps_tls_serves zps_tls_cert_serves(X509 *cert, const char *name, char names_p[ZPS_TLS_SERVERS_MAX]) {
  struct served served = {.name = name, .names = names_p};
  names_p[0] = '\0';
  for_each_uri(cert, add_server, &served);
  zps_text_sanitize(names_p, strlen(names_p)); /* it may have been cut in the middle of a character */
  return names_p[0] ? served.serves : ZPS_TLS_SERVES_NOT;
}

/* ---- A peer's ---- */

/* Of the certificate that the trouble is with: its URI, or what is printable of its subject. */
static void name_cert(X509 *cert, char *buf, size_t size) {
  char name[ZPS_TLS_NAME_MAX];
  if (!cert) {
    snprintf(buf, size, "none");
  } else if (zps_tls_cert_roles(cert, name)) {
    snprintf(buf, size, "%s", name);
  } else {
    X509_NAME_oneline(X509_get_subject_name(cert), name, sizeof name);
    name[zps_text_printable(name, strlen(name))] = '\0';
    snprintf(buf, size, "'%s'", name);
  }
}

#define REVOKED "its certificate, of %s, has been revoked (tls.crl)"

/* The fault is with a list of this end, which no alert of TLS says: the peer hears of an internal error. */
static ZPS_PRINTF(3, 4) void refuse_list(struct zps_tls_session *session, X509_STORE_CTX *store, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  zps_vfail(&session->refusal, ZPS_ERR_REFUSED, fmt, args);
  va_end(args);
  X509_STORE_CTX_set_error(store, X509_V_ERR_UNSPECIFIED);
}

/* By which the chain is looked at. */
static time_t time_of(X509_STORE_CTX *store) {
  const time_t told_s = X509_VERIFY_PARAM_get_time(X509_STORE_CTX_get0_param(store));
  return told_s ? told_s : time(NULL);
}

static void refuse_chain(struct zps_tls_session *session, X509_STORE_CTX *store) {
  const int why = X509_STORE_CTX_get_error(store);
  X509 *cert = X509_STORE_CTX_get_current_cert(store);
  char name[160], date[40], dates[160] = "is out of date";
  name_cert(cert, name, sizeof name);
  switch (why) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      zps_tls_dates_refuse(cert, time_of(store), dates, sizeof dates);
      zps_fail(&session->refusal, ZPS_ERR_REFUSED, "its certificate, of %s, %s", name, dates);
      break;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      name_cert(X509_STORE_CTX_get0_cert(store), name, sizeof name);
      zps_fail(&session->refusal, ZPS_ERR_REFUSED,
               "its certificate, of %s, was made by an authority that is unknown here (tls.ca)", name);
      break;
    case X509_V_ERR_CERT_REVOKED:
      zps_fail(&session->refusal, ZPS_ERR_REFUSED, REVOKED, name);
      break;
    case X509_V_ERR_UNABLE_TO_GET_CRL:
      refuse_list(
          session, store,
          "its certificate, of %s, was made by an authority whose revocation list is not among those of tls.crl: "
          "zenpsctl certs revoke DIR makes it",
          name);
      break;
    case X509_V_ERR_CRL_HAS_EXPIRED:
      zps_tls_time_text(X509_CRL_get0_nextUpdate(X509_STORE_CTX_get0_current_crl(store)), date, sizeof date);
      refuse_list(
          session, store,
          "its certificate, of %s, cannot be looked up: the revocation list of its authority (tls.crl) expired at "
          "%s: zenpsctl certs revoke DIR makes it anew",
          name, date);
      break;
    case X509_V_ERR_CRL_NOT_YET_VALID:
      refuse_list(session, store,
                  "its certificate, of %s, cannot be looked up: the revocation list of its authority (tls.crl) is not "
                  "valid yet: is the clock of this host right?",
                  name);
      break;
    case X509_V_ERR_CRL_SIGNATURE_FAILURE:
      refuse_list(session, store,
                  "its certificate, of %s, cannot be looked up: the revocation list in the name of its authority "
                  "(tls.crl) was signed by another one",
                  name);
      break;
    default:
      zps_fail(&session->refusal, ZPS_ERR_REFUSED, "its certificate, of %s, is not taken: %s", name,
               X509_verify_cert_error_string(why));
  }
}

zps_err_t zps_tls_recheck(struct zps_tls_session *session, struct zps_error *error) {
  const unsigned times_read = zps_tls_times_read(session->tls);
  if (times_read == session->times_read) return ZPS_OK;
  char name[160];
  SSL_CTX *const context = zps_tls_context(session->tls);
  X509 *const cert = SSL_get0_peer_certificate(session->ssl);
  const bool is_revoked = cert && zps_crl_has(context, cert);
  SSL_CTX_free(context);
  session->times_read = times_read;
  if (!is_revoked) return ZPS_OK;
  name_cert(cert, name, sizeof name);
  zps_fail(&session->refusal, ZPS_ERR_REFUSED, REVOKED, name);
  return zps_tls_session_fail(session, error);
}

static bool check_role(struct zps_tls_session *session, X509 *cert) {
  char text[60];
  session->roles = zps_tls_cert_roles(cert, session->name);
  if (session->roles & session->takes) return true;
  char name[160];
  name_cert(cert, name, sizeof name);
  zps_fail(&session->refusal, ZPS_ERR_REFUSED, "its certificate is that of %s, but here a %s is spoken to", name,
           zps_tls_roles_text(session->takes, text, sizeof text));
  return false;
}

int zps_tls_verify(int ok, X509_STORE_CTX *store) {
  const SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
  struct zps_tls_session *session = SSL_get_app_data(ssl);
  if (!ok) {
    refuse_chain(session, store);
    return 0;
  }
  if (X509_STORE_CTX_get_error_depth(store) > 0) return 1;
  if (check_role(session, X509_STORE_CTX_get_current_cert(store))) return 1;
  X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

/* ---- Words ---- */

const char *zps_tls_reason(char *buf, size_t size) {
  const unsigned long code = ERR_peek_last_error();
  const char *reason = code ? ERR_reason_error_string(code) : NULL;
  if (reason)
    snprintf(buf, size, "%s", reason);
  else if (code && ERR_SYSTEM_ERROR(code))
    snprintf(buf, size, "%s", strerror(ERR_GET_REASON(code)));
  else
    snprintf(buf, size, "no reason is given");
  ERR_clear_error();
  return buf;
}

/* What the peer says of our certificate, by a number. */
static const char *alert_text(int alert) {
  switch (alert) {
    case SSL_AD_CERTIFICATE_EXPIRED:
      return "this end's certificate has expired";
    case SSL_AD_BAD_CERTIFICATE:
      return "this end's certificate is bad, or not valid yet: are the clocks of both hosts right?";
    case SSL_AD_CERTIFICATE_REVOKED:
      return "this end's certificate has been revoked";
    case SSL_AD_INTERNAL_ERROR:
      return "it cannot look up this end's certificate: its log says why";
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_DECRYPT_ERROR:
      return "this end's certificate was made by an authority that is unknown there (tls.ca)";
    case SSL_AD_HANDSHAKE_FAILURE:
      return "this end's certificate is of a role that is not spoken to there";
    case SSL_AD_CERTIFICATE_REQUIRED:
      return "this end shows no certificate";
    case SSL_AD_PROTOCOL_VERSION:
      return "it does not speak TLS 1.3";
    default:
      return SSL_alert_desc_string_long(alert);
  }
}

zps_err_t zps_tls_session_fail(const struct zps_tls_session *session, struct zps_error *error) {
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_REASON(code);
  char buf[200];
  if (session->refusal.code) {
    ERR_clear_error();
    return zps_fail(error, session->refusal.code, "%s", session->refusal.text);
  }
  if (ERR_GET_LIB(code) == ERR_LIB_SSL && reason > SSL_AD_REASON_OFFSET) {
    ERR_clear_error();
    return zps_fail(error, ZPS_ERR_REFUSED, "refuses the connection: %s", alert_text(reason - SSL_AD_REASON_OFFSET));
  }
  if (ERR_GET_LIB(code) == ERR_LIB_SSL && reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    ERR_clear_error();
    return zps_fail(error, ZPS_ERR_REFUSED, "shows no certificate");
  }
  if (reason == ERR_R_MALLOC_FAILURE) {
    ERR_clear_error();
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for TLS");
  }
  return zps_fail(error, ZPS_ERR_PROTOCOL, "speaks no TLS 1.3 that can be gone on with: %s",
                  zps_tls_reason(buf, sizeof buf));
}

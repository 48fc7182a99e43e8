/* Shared by the files of common/tls: nothing that speaks of OpenSSL leaves this folder. */
#ifndef ZPS_TLS_TLS_INTERNAL_H
#define ZPS_TLS_TLS_INTERNAL_H

#include <openssl/ssl.h>

#include "common/tls/tls.h"

#define ZPS_TLS_FILE_MAX (256u << 10)
#define ZPS_CRL_FILE_MAX (4u << 20)
#define ZPS_TLS_URI "zenps://"
#define ZPS_TLS_KEY_RECORDS (1u << 23) /* under one key: AES-GCM is sure of 2^24.5 */
#define ZPS_TLS_RECORD_MAX 16384u      /* bytes */

struct zps_authority {
  X509 *cert;
  EVP_PKEY *key;
};

struct zps_tls_session {
  struct zps_tls *tls;
  unsigned times_read; /* Of the files, when the peer's certificate was last looked at. */
  SSL *ssl;
  BIO *in, *out;      /* the SSL's; NULL: it is over a socket */
  BIO *waiting;       /* to be said when both ends know each other */
  int fd;             /* the socket */
  size_t may_take;    /* bytes of it, until the owner allows more */
  unsigned n_records; /* said under this key */
  unsigned takes;     /* roles, one of which the peer must have */
  bool listens, has_begun, is_plain, is_set;
  bool is_greeted; /* the first record has come */
  unsigned roles;
  char name[ZPS_TLS_NAME_MAX];
  struct zps_error refusal; /* of the peer's certificate, by us */
};

/* ---- tls.c ---- */

/* The context of sessions that begin now; the caller's to free. */
SSL_CTX *zps_tls_context(struct zps_tls *tls);

/* How often the files have been read. */
unsigned zps_tls_times_read(const struct zps_tls *tls);

/* ---- session.c ---- */

/* A session without a way for its bytes; NULL: no memory. */
struct zps_tls_session *zps_tls_session_new(struct zps_tls *tls, bool listens, unsigned takes);

/* ---- certs.c ---- */

/* The first certificate of the text, the caller's to free; NULL: there is none. */
X509 *zps_tls_cert_read(const char *text);
/* What was written to it, the caller's to free; NULL: nothing, or no memory. */
char *zps_tls_bio_text(BIO *bio);

/* ---- crl.c: revocation lists ---- */

/* From now on the context looks for peers' certificates in the lists of the file. ZPS_ERR_INVALID: it has no list, or
 * one that has expired; ZPS_ERR_IO. */
zps_err_t zps_crl_load(SSL_CTX *context, const char *path, struct zps_error *error) ZPS_MUSTCHECK;
/* Whether the certificate is in one of them. */
bool zps_crl_has(const SSL_CTX *context, X509 *cert);

/* ---- peer.c: certificates ---- */

/* A session is set up, and the files were read since: ends it where the peer's certificate has been revoked. */
zps_err_t zps_tls_recheck(struct zps_tls_session *session, struct zps_error *error) ZPS_MUSTCHECK;

/* The roles that a certificate's URIs name, and the first such URI; 0: none. */
unsigned zps_tls_cert_roles(X509 *cert, char name_p[ZPS_TLS_NAME_MAX]);
/* Which server of this name its owner may be, and the names in it. */
enum zps_tls_serves zps_tls_cert_serves(X509 *cert, const char *name, char names_p[ZPS_TLS_SERVERS_MAX]);
/* A hash of such a URI. */
zps_err_t zps_tls_owner_of(const char *name, uint8_t owner_p[ZPS_TLS_OWNER_BYTES],
                           struct zps_error *error) ZPS_MUSTCHECK;
/* All of them, with blanks in between. */
void zps_tls_cert_uris(X509 *cert, char *buf, size_t size);
/* The words for roles, "server or admin". */
const char *zps_tls_roles_text(unsigned roles, char *buf, size_t size);
/* "2026-11-27 06:15:00 UTC" */
const char *zps_tls_time_text(const ASN1_TIME *time, char *buf, size_t size);
/* Why a certificate is refused by its dates, with the time that the clock shows; NULL: it is valid. */
const char *zps_tls_dates_refuse(X509 *cert, time_t now_s, char *buf, size_t size);
/* Seconds of the calendar; 0: it is no time. */
long long zps_tls_seconds(const ASN1_TIME *time);
/* SSL_CTX_set_verify()'s: looks at the chain, and at the role of its end; fills in the session. */
int zps_tls_verify(int ok, X509_STORE_CTX *store);
/* Why the handshake, or what followed it, has failed: from OpenSSL's queue of errors, which is emptied, and from the
 * session's own refusal. */
zps_err_t zps_tls_session_fail(const struct zps_tls_session *session, struct zps_error *error);
/* The last thing that OpenSSL has to say; empties its queue. Static text, or `buf`. */
const char *zps_tls_reason(char *buf, size_t size);

#endif

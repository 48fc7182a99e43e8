/* Shared by the files of common/tls: nothing that speaks of OpenSSL leaves this folder. */
#ifndef ZPS_TLS_TLS_INTERNAL_H
#define ZPS_TLS_TLS_INTERNAL_H

#include <openssl/ssl.h>

#include "common/tls/tls.h"

#define ZPS_TLS_FILE_MAX (256u << 10)
#define ZPS_TLS_URI "zenps://"
#define ZPS_TLS_LISTENER_TAKES (ZPS_TLS_SERVER | ZPS_TLS_WORKER | ZPS_TLS_ADMIN)

struct zps_tls_session {
  SSL *ssl;
  BIO *in, *out; /* the SSL's */
  BIO *waiting;  /* to be said when both ends know each other */
  bool listens, has_begun, is_plain, is_set;
  unsigned roles;
  char name[ZPS_TLS_NAME_MAX];
  struct zps_error refusal; /* of the peer's certificate, by us */
};

/* ---- tls.c ---- */

/* The context of sessions that begin now; the caller's to free. */
SSL_CTX *zps_tls_context(struct zps_tls *tls);

/* ---- peer.c: certificates ---- */

/* The roles that a certificate's URIs name, and the first such URI; 0: none. */
unsigned zps_tls_cert_roles(X509 *cert, char name_p[ZPS_TLS_NAME_MAX]);
/* Which server of this name its owner may be, and the names in it. */
enum zps_tls_serves zps_tls_cert_serves(X509 *cert, const char *name, char names_p[ZPS_TLS_SERVERS_MAX]);
/* All of them, with blanks in between. */
void zps_tls_cert_uris(X509 *cert, char *buf, size_t size);
/* The words for roles, "server or admin". */
const char *zps_tls_roles_text(unsigned roles, char *buf, size_t size);
/* "2026-11-27 06:15:00 UTC" */
const char *zps_tls_time_text(const ASN1_TIME *time, char *buf, size_t size);
/* SSL_CTX_set_verify()'s: looks at the chain, and at the role of its end; fills in the session. */
int zps_tls_verify(int ok, X509_STORE_CTX *store);
/* Why the handshake, or what followed it, has failed: from OpenSSL's queue of errors, which is emptied, and from the
 * session's own refusal. */
zps_err_t zps_tls_session_fail(const struct zps_tls_session *session, struct zps_error *error);
/* The last thing that OpenSSL has to say; empties its queue. Static text, or `buf`. */
const char *zps_tls_reason(char *buf, size_t size);

#endif

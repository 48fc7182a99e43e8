/* A session: bytes of the peer's to what they say, and back. */
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>

#include "common/tls/tls_internal.h"

#define RECORD_HANDSHAKE 0x16 /* the first byte of TLS; an object of JSON begins with another one */
#define RECORD_ALERT 0x15
enum { RECORD_HEAD = 5, RECORD_MAX = 1 << 14 }; /* bytes, the latter without the head */

struct zps_tls_session *zps_tls_session_new(struct zps_tls *tls, bool listens, unsigned takes) {
  struct zps_tls_session *session = calloc(1, sizeof *session);
  if (!session) return NULL;
  SSL_CTX *context = zps_tls_context(tls);
  session->tls = zps_tls_ref(tls);
  session->times_read = zps_tls_times_read(tls);
  session->listens = listens;
  session->takes = takes;
  session->ssl = SSL_new(context);
  SSL_CTX_free(context);
  if (session->ssl && SSL_set_app_data(session->ssl, session) == 1) return session;
  zps_tls_session_destroy(session);
  return NULL;
}

zps_err_t zps_tls_session_create(struct zps_tls *tls, bool listens, struct zps_tls_session **session_p,
                                 struct zps_error *error) {
  const unsigned takes = listens ? ZPS_TLS_SERVER | ZPS_TLS_WORKER | ZPS_TLS_ADMIN : ZPS_TLS_COORDINATOR;
  struct zps_tls_session *session = zps_tls_session_new(tls, listens, takes);
  BIO *in = session ? BIO_new(BIO_s_mem()) : NULL, *out = in ? BIO_new(BIO_s_mem()) : NULL;
  if (out) session->waiting = BIO_new(BIO_s_mem());
  if (!out || !session->waiting) {
    BIO_free(in);
    BIO_free(out);
    zps_tls_session_destroy(session);
    ERR_clear_error();
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for TLS");
  }
  BIO_set_mem_eof_return(in, -1); /* no bytes yet: none of the end */
  SSL_set_bio(session->ssl, in, out);
  session->in = in;
  session->out = out;
  if (listens) {
    SSL_set_accept_state(session->ssl);
  } else {
    SSL_set_connect_state(session->ssl);
    SSL_do_handshake(session->ssl); /* the greeting; the peer's bytes are wanted from here on */
    ERR_clear_error();
  }
  *session_p = session;
  return ZPS_OK;
}

void zps_tls_session_destroy(struct zps_tls_session *session) {
  if (!session) return;
  SSL_free(session->ssl);
  BIO_free(session->waiting);
  zps_tls_unref(session->tls);
  free(session);
}

/* What has waited, now that both ends know each other. */
static zps_err_t say_what_waits(struct zps_tls_session *session, struct zps_error *error) {
  char *bytes = NULL;
  const long len = BIO_get_mem_data(session->waiting, &bytes);
  session->is_set = true;
  const zps_err_t err = len > 0 ? zps_tls_write(session, bytes, (size_t)len, error) : ZPS_OK;
  if (len > 0) OPENSSL_cleanse(bytes, (size_t)len);
  BIO_free(session->waiting);
  session->waiting = NULL;
  return err;
}

static zps_err_t shake_hands(struct zps_tls_session *session, struct zps_error *error) {
  ERR_clear_error();
  const int status = SSL_do_handshake(session->ssl);
  if (status == 1) return say_what_waits(session, error);
  return SSL_get_error(session->ssl, status) == SSL_ERROR_WANT_READ ? ZPS_OK : zps_tls_session_fail(session, error);
}

bool zps_tls_is_greeting(const void *bytes, size_t len) {
  const unsigned char *head = bytes;
  return len >= 3 && head[0] == RECORD_HANDSHAKE && head[1] == 3 && head[2] <= 4;
}

/* The first record has come, or can be none of TLS, which OpenSSL says. */
static bool has_greeting(const struct zps_tls_session *session) {
  char *bytes = NULL;
  const long len = BIO_get_mem_data(session->in, &bytes);
  if (len < RECORD_HEAD) return false;
  const unsigned char *const head = (const unsigned char *)bytes;
  const long record = RECORD_HEAD + (head[3] << 8 | head[4]);
  return len >= record || record > RECORD_HEAD + RECORD_MAX || !zps_tls_is_greeting(bytes, (size_t)len);
}

static zps_err_t check_first(struct zps_tls_session *session, const unsigned char *bytes, struct zps_error *error) {
  if (session->has_begun) return ZPS_OK;
  session->has_begun = true;
  session->is_plain = bytes[0] != RECORD_HANDSHAKE && bytes[0] != RECORD_ALERT;
  if (!session->is_plain) return ZPS_OK;
  return session->listens ? zps_fail(error, ZPS_ERR_PROTOCOL,
                                     "speaks without TLS where TLS is spoken: it needs the files of an authority, a "
                                     "certificate and a key (tls.ca, tls.cert and tls.key, or ZENPS_TLS_CA, "
                                     "ZENPS_TLS_CERT and ZENPS_TLS_KEY)")
                          : zps_fail(error, ZPS_ERR_PROTOCOL,
                                     "speaks without TLS, which is wanted here: it needs tls.ca, tls.cert and tls.key");
}

zps_err_t zps_tls_take(struct zps_tls_session *session, const void *bytes, size_t len, struct zps_error *error) {
  if (len == 0) return ZPS_OK;
  zps_err_t err = check_first(session, bytes, error);
  if (!err && session->is_set) err = zps_tls_recheck(session, error);
  if (err) return err;
  if (BIO_write(session->in, bytes, (int)len) != (int)len)
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for what came over TLS");
  if (session->is_set) return ZPS_OK;
  /* OpenSSL keeps 17 KiB for a record that is not whole. A stranger who sends half of a greeting gets none of it. */
  session->is_greeted = session->is_greeted || !session->listens || has_greeting(session);
  return session->is_greeted ? shake_hands(session, error) : ZPS_OK;
}

zps_err_t zps_tls_read(struct zps_tls_session *session, void *buf, size_t size, size_t *len_p,
                       struct zps_error *error) {
  *len_p = 0;
  if (!session->is_set) return ZPS_OK;
  ERR_clear_error();
  if (SSL_read_ex(session->ssl, buf, size, len_p) == 1) return ZPS_OK;
  *len_p = 0;
  switch (SSL_get_error(session->ssl, 0)) {
    case SSL_ERROR_WANT_READ:
      return ZPS_OK;
    case SSL_ERROR_ZERO_RETURN: /* the end of what the peer says; that of the connection follows */
      return ZPS_OK;
    default:
      return zps_tls_session_fail(session, error);
  }
}

zps_err_t zps_tls_write(struct zps_tls_session *session, const void *bytes, size_t len, struct zps_error *error) {
  if (len == 0) return ZPS_OK;
  ERR_clear_error();
  if (!session->is_set)
    return BIO_write(session->waiting, bytes, (int)len) == (int)len
               ? ZPS_OK
               : zps_fail(error, ZPS_ERR_NOMEM, "no memory for what is to go over TLS");
  size_t n;
  return SSL_write_ex(session->ssl, bytes, len, &n) == 1 ? ZPS_OK : zps_tls_session_fail(session, error);
}

void zps_tls_end(struct zps_tls_session *session) {
  if (session->is_set) SSL_shutdown(session->ssl);
  ERR_clear_error();
}

zps_err_t zps_tls_send(struct zps_tls_session *session, char **bytes_p, size_t *len_p) {
  char *bytes = NULL;
  const long len = BIO_get_mem_data(session->out, &bytes);
  *bytes_p = NULL;
  *len_p = 0;
  if (len <= 0) return ZPS_OK;
  char *copy = malloc((size_t)len);
  if (!copy) return ZPS_ERR_NOMEM;
  memcpy(copy, bytes, (size_t)len);
  (void)BIO_reset(session->out);
  *bytes_p = copy;
  *len_p = (size_t)len;
  return ZPS_OK;
}

unsigned zps_tls_peer_roles(const struct zps_tls_session *session) {
  return session->is_set ? session->roles : 0;
}

long long zps_tls_peer_ends_s(const struct zps_tls_session *session) {
  X509 *const cert = SSL_get0_peer_certificate(session->ssl);
  return cert ? zps_tls_seconds(X509_get0_notAfter(cert)) : 0;
}

zps_err_t zps_tls_peer_owner(const struct zps_tls_session *session, uint8_t owner_p[ZPS_TLS_OWNER_BYTES],
                             struct zps_error *error) {
  return zps_tls_owner_of(session->name, owner_p, error);
}

const char *zps_tls_peer_name(const struct zps_tls_session *session) {
  return session->name;
}

enum zps_tls_serves zps_tls_peer_serves(const struct zps_tls_session *session, const char *name,
                                        char names_p[ZPS_TLS_SERVERS_MAX]) {
  names_p[0] = '\0';
  X509 *cert = session->is_set ? SSL_get0_peer_certificate(session->ssl) : NULL;
  return cert ? zps_tls_cert_serves(cert, name, names_p) : ZPS_TLS_SERVES_NOT;
}

bool zps_tls_peer_is_plain(const struct zps_tls_session *session) {
  return session->is_plain;
}

/* A session over a socket: OpenSSL takes the peer's bytes from it, and puts ours there. */
#include <errno.h>
#include <openssl/err.h>
#include <pthread.h>
#include <sys/socket.h>

#include "common/tls/tls_internal.h"

enum { READ_AHEAD = 64 << 10 }; /* bytes taken from the socket at a time: about four records */

/* ---- OpenSSL's own BIO of sockets raises SIGPIPE, which is the program's ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static BIO_METHOD *method; /* of all sessions; NULL: there was no memory for it */

static bool is_for_later(void) {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/* At most what the owner allows: records without data, such as new keys, never end by themselves. */
static int bio_read(BIO *bio, char *to, int size) {
  struct zps_tls_session *const session = BIO_get_data(bio);
  size_t most = (size_t)size;
  BIO_clear_retry_flags(bio);
  if (most > session->may_take) most = session->may_take;
  if (most == 0) errno = EAGAIN;
  const ssize_t n = most > 0 ? recv(session->fd, to, most, 0) : -1;
  if (n > 0) session->may_take -= (size_t)n;
  if (n < 0 && is_for_later()) BIO_set_retry_read(bio);
  return (int)n;
}

static int bio_write(BIO *bio, const char *from, int len) {
  const struct zps_tls_session *const session = BIO_get_data(bio);
  const ssize_t n = send(session->fd, from, (size_t)len, MSG_NOSIGNAL);
  BIO_clear_retry_flags(bio);
  if (n < 0 && is_for_later()) BIO_set_retry_write(bio);
  return (int)n;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer) {
  (void)bio, (void)number, (void)pointer;
  return command == BIO_CTRL_FLUSH;
}

static void method_make(void) {
  method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without signals");
  if (!method) return;
  BIO_meth_set_read(method, bio_read);
  BIO_meth_set_write(method, bio_write);
  BIO_meth_set_ctrl(method, bio_ctrl);
}

/* ---- The session ---- */

zps_err_t zps_tls_socket_create(struct zps_tls *tls, int fd, bool listens, unsigned takes,
                                struct zps_tls_session **session_p, struct zps_error *error) {
  struct zps_tls_session *const session = zps_tls_session_new(tls, listens, takes);
  pthread_once(&once, method_make);
  BIO *const bio = session && method ? BIO_new(method) : NULL;
  if (!bio) {
    zps_tls_session_destroy(session);
    ERR_clear_error();
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for TLS");
  }
  session->fd = fd;
  BIO_set_data(bio, session);
  BIO_set_init(bio, 1);
  SSL_set_bio(session->ssl, bio, bio);
  SSL_set_mode(session->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (listens)
    SSL_set_accept_state(session->ssl);
  else
    SSL_set_connect_state(session->ssl);
  *session_p = session;
  return ZPS_OK;
}

/* After a call that has not done its work: ZPS_OK where the socket has to be waited for. */
static zps_err_t why_not(const struct zps_tls_session *session, int status, struct zps_error *error) {
  const int err_number = errno;
  switch (SSL_get_error(session->ssl, status)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return ZPS_OK;
    case SSL_ERROR_ZERO_RETURN:
      return zps_fail(error, ZPS_ERR_CLOSED, "the peer has ended the connection");
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      if (err_number == 0) return zps_fail(error, ZPS_ERR_CLOSED, "the connection has ended");
      return zps_fail_errno(error, ZPS_ERR_CLOSED, err_number, "the connection has ended");
    default:
      return zps_tls_session_fail(session, error);
  }
}

void zps_tls_socket_allow(struct zps_tls_session *session, size_t n_bytes) {
  session->may_take = n_bytes;
}

zps_err_t zps_tls_socket_shake(struct zps_tls_session *session, bool *is_set_p, struct zps_error *error) {
  ERR_clear_error();
  errno = 0;
  const int status = SSL_do_handshake(session->ssl);
  *is_set_p = session->is_set = status == 1;
  if (status != 1) return why_not(session, status, error);
  SSL_set_default_read_buffer_len(session->ssl, READ_AHEAD);
  SSL_set_read_ahead(session->ssl, 1);
  return ZPS_OK;
}

bool zps_tls_socket_is_full(const struct zps_tls_session *session) {
  return SSL_want_write(session->ssl);
}

zps_err_t zps_tls_socket_read(struct zps_tls_session *session, void *buf, size_t size, size_t *len_p,
                              struct zps_error *error) {
  *len_p = 0;
  const zps_err_t err = zps_tls_recheck(session, error);
  if (err) return err;
  ERR_clear_error();
  errno = 0;
  if (SSL_read_ex(session->ssl, buf, size, len_p) == 1) return ZPS_OK;
  *len_p = 0;
  return why_not(session, 0, error);
}

/* The next call of write says that a new key follows. Without memory the old one is used once more. */
static void count_records(struct zps_tls_session *session, size_t len) {
  session->n_records += (unsigned)(len / ZPS_TLS_RECORD_MAX) + 1;
  if (session->n_records < ZPS_TLS_KEY_RECORDS) return;
  if (SSL_key_update(session->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) session->n_records = 0;
  ERR_clear_error();
}

zps_err_t zps_tls_socket_write(struct zps_tls_session *session, const void *bytes, size_t len, size_t *len_p,
                               struct zps_error *error) {
  ERR_clear_error();
  errno = 0;
  if (SSL_write_ex(session->ssl, bytes, len, len_p) == 1) {
    count_records(session, *len_p);
    return ZPS_OK;
  }
  *len_p = 0;
  return why_not(session, 0, error);
}

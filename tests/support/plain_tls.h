/* TLS that hands the bytes on, for one file of a test program that is linked without common/tls. */
#ifndef ZPS_TESTS_PLAIN_TLS_H
#define ZPS_TESTS_PLAIN_TLS_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/tls/tls.h"

struct zps_tls_session {
  int fd;
};

struct zps_tls *zps_tls_ref(struct zps_tls *tls) {
  return tls;
}
void zps_tls_unref(struct zps_tls *tls) {
  (void)tls;
}
void zps_tls_session_destroy(struct zps_tls_session *session) {
  free(session);
}
zps_err_t zps_tls_socket_create(struct zps_tls *tls, int fd, bool listens, unsigned takes,
                                struct zps_tls_session **session_p, struct zps_error *error) {
  (void)tls, (void)listens, (void)takes;
  *session_p = malloc(sizeof **session_p);
  if (!*session_p) return zps_fail(error, ZPS_ERR_NOMEM, "no memory");
  (*session_p)->fd = fd;
  return ZPS_OK;
}
void zps_tls_socket_allow(struct zps_tls_session *session, size_t n_bytes) {
  (void)session, (void)n_bytes;
}
zps_err_t zps_tls_socket_shake(struct zps_tls_session *session, bool *is_set_p, struct zps_error *error) {
  (void)session, (void)error;
  *is_set_p = true;
  return ZPS_OK;
}
bool zps_tls_socket_is_full(const struct zps_tls_session *session) {
  (void)session;
  return false;
}
static zps_err_t plain_outcome(ssize_t n, size_t *len_p, struct zps_error *error) {
  *len_p = n > 0 ? (size_t)n : 0;
  if (n > 0 || (n < 0 && errno == EAGAIN)) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_CLOSED, "the connection has ended");
}
zps_err_t zps_tls_socket_read(struct zps_tls_session *session, void *buf, size_t size, size_t *len_p,
                              struct zps_error *error) {
  return plain_outcome(recv(session->fd, buf, size, 0), len_p, error);
}
zps_err_t zps_tls_socket_write(struct zps_tls_session *session, const void *bytes, size_t len, size_t *len_p,
                               struct zps_error *error) {
  return plain_outcome(send(session->fd, bytes, len, MSG_NOSIGNAL), len_p, error);
}

/* Whoever connects is this one. */
static uint8_t plain_peer[ZPS_TLS_OWNER_BYTES];

zps_err_t zps_tls_owner(struct zps_tls *tls, uint8_t owner_p[ZPS_TLS_OWNER_BYTES], struct zps_error *error) {
  (void)tls, (void)error;
  memset(owner_p, 0, ZPS_TLS_OWNER_BYTES);
  return ZPS_OK;
}
zps_err_t zps_tls_peer_owner(const struct zps_tls_session *session, uint8_t owner_p[ZPS_TLS_OWNER_BYTES],
                             struct zps_error *error) {
  (void)session, (void)error;
  memcpy(owner_p, plain_peer, sizeof plain_peer);
  return ZPS_OK;
}
const char *zps_tls_peer_name(const struct zps_tls_session *session) {
  (void)session;
  return "zenps://worker/plain";
}

#endif

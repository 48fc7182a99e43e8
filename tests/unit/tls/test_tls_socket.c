/* Sessions over a socket: what a peer may cost, and new keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/tls/tls_internal.h"
#include "tests/unit/tls/tls_rig.h"

enum { MUCH = 1 << 20, TURN = 64 << 10 };

struct fixture {
  struct rig rig;
  struct zps_tls *server, *rank;
  struct zps_tls_session *listener, *client;
  int fds[2];
};

static void shake(struct zps_tls_session *session, bool *is_set_p) {
  if (*is_set_p) return;
  zps_tls_socket_allow(session, MUCH);
  assert_int_equal(zps_tls_socket_shake(session, is_set_p, NULL), ZPS_OK);
}

static void open_both(struct fixture *fixture) {
  bool listener_is_set = false, client_is_set = false;
  rig_open(&fixture->rig);
  fixture->server = rig_identity(&fixture->rig, "s", ZPS_TLS_SERVER);
  fixture->rank = rig_identity(&fixture->rig, "w", ZPS_TLS_WORKER);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fixture->fds), 0);
  assert_int_equal(
      zps_tls_socket_create(fixture->server, fixture->fds[0], true, ZPS_TLS_WORKER, &fixture->listener, NULL), ZPS_OK);
  assert_int_equal(zps_tls_socket_create(fixture->rank, fixture->fds[1], false, ZPS_TLS_SERVER, &fixture->client, NULL),
                   ZPS_OK);
  while (!listener_is_set || !client_is_set) {
    shake(fixture->client, &client_is_set);
    shake(fixture->listener, &listener_is_set);
  }
}

static void close_both(struct fixture *fixture) {
  zps_tls_session_destroy(fixture->client);
  zps_tls_session_destroy(fixture->listener);
  close(fixture->fds[0]);
  close(fixture->fds[1]);
  zps_tls_unref(fixture->rank);
  zps_tls_unref(fixture->server);
  rig_close(&fixture->rig);
}

/* Puts records with new keys and no data into the socket, more than one turn takes. */
static void send_keys(struct fixture *fixture) {
  BIO *const records = BIO_new(BIO_s_mem());
  char *bytes = NULL;
  SSL_set0_wbio(fixture->client->ssl, records);
  while (BIO_get_mem_data(records, &bytes) < TURN + TURN / 2) {
    assert_int_equal(SSL_key_update(fixture->client->ssl, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
    assert_int_equal(SSL_do_handshake(fixture->client->ssl), 1);
  }
  assert_int_equal(SSL_write(fixture->client->ssl, "end", 3), 3);
  const long len = BIO_get_mem_data(records, &bytes);
  assert_int_equal(send(fixture->fds[1], bytes, (size_t)len, 0), len);
}

static size_t hear(struct fixture *fixture, char buf[16]) {
  size_t len = 0;
  assert_int_equal(zps_tls_socket_read(fixture->listener, buf, 16, &len, NULL), ZPS_OK);
  return len;
}

static void new_keys_without_end_let_a_call_return(void **state) {
  (void)state;
  struct fixture fixture;
  char buf[16], byte;
  open_both(&fixture);
  send_keys(&fixture);
  zps_tls_socket_allow(fixture.listener, TURN);
  assert_int_equal(hear(&fixture, buf), 0);
  assert_int_equal(recv(fixture.fds[0], &byte, 1, MSG_PEEK), 1); /* there is more */
  assert_int_equal(hear(&fixture, buf), 0);
  zps_tls_socket_allow(fixture.listener, TURN);
  assert_int_equal(hear(&fixture, buf), 3);
  assert_memory_equal(buf, "end", 3);
  close_both(&fixture);
}

/* What an end says of itself is what the other one sees. */
static void both_ends_know_the_owners(void **state) {
  (void)state;
  struct fixture fixture;
  uint8_t own[ZPS_TLS_OWNER_BYTES], seen[ZPS_TLS_OWNER_BYTES];
  open_both(&fixture);
  assert_int_equal(zps_tls_owner(fixture.rank, own, NULL), ZPS_OK);
  assert_int_equal(zps_tls_peer_owner(fixture.listener, seen, NULL), ZPS_OK);
  assert_memory_equal(own, seen, sizeof own);
  assert_int_equal(zps_tls_owner(fixture.server, own, NULL), ZPS_OK);
  assert_memory_not_equal(own, seen, sizeof own);
  assert_int_equal(zps_tls_peer_owner(fixture.client, seen, NULL), ZPS_OK);
  assert_memory_equal(own, seen, sizeof own);
  close_both(&fixture);
}

/* Whether a new key goes ahead of the next bytes, after these. */
static bool renews(struct fixture *fixture) {
  char buf[16];
  size_t len = 0;
  assert_int_equal(zps_tls_socket_write(fixture->client, "word", 4, &len, NULL), ZPS_OK);
  assert_int_equal(len, 4);
  zps_tls_socket_allow(fixture->listener, MUCH);
  assert_int_equal(hear(fixture, buf), 4);
  assert_memory_equal(buf, "word", 4);
  return SSL_get_key_update_type(fixture->client->ssl) == SSL_KEY_UPDATE_NOT_REQUESTED;
}

static void many_records_take_a_new_key(void **state) {
  (void)state;
  struct fixture fixture;
  open_both(&fixture);
  fixture.client->n_records = ZPS_TLS_KEY_RECORDS - 2;
  assert_false(renews(&fixture));
  assert_true(renews(&fixture));
  assert_false(renews(&fixture)); /* the listener has understood the new key */
  assert_int_equal(fixture.client->n_records, 1);
  close_both(&fixture);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(new_keys_without_end_let_a_call_return),
                                     cmocka_unit_test(both_ends_know_the_owners),
                                     cmocka_unit_test(many_records_take_a_new_key)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Connections of the encrypted fabric: what others cost an endpoint. TLS is empty here. */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/net/tls/impl.h"
#include "tests/support/logs.h"
#include "tests/support/plain_tls.h"

enum { HELLO = TLSNET_HEAD_BYTES + TLSNET_HELLO_BYTES, MANY = 9000 };

static struct zps_net *net;
static unsigned n_messages;

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx, (void)data, (void)len;
  n_messages++;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer, (void)code, (void)text;
}

static uint8_t identity; /* never looked at */

static int net_open(void **state) {
  const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};
  const struct zps_net_config config = {.provider = "tls",
                                        .interface = "lo",
                                        .max_msg = 512,
                                        .n_recv = 4,
                                        .connect_timeout_ms = 3600 * 1000,
                                        .tls = (struct zps_tls *)(void *)&identity};
  (void)state;
  n_messages = 0;
  return zps_net_tls_open(&config, &handler, &net, NULL) == ZPS_OK ? 0 : -1;
}

static int net_close(void **state) {
  (void)state;
  zps_net_close(net);
  return 0;
}

static unsigned count_conns(void) {
  unsigned n = 0;
  const struct tlsnet_conn *conn;
  LIST_FOREACH(conn, &tlsnet_of(net)->conns, all_link) n++;
  return n;
}

/* A connection that the endpoint has taken. */
static int dial(void) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), much = 1 << 20;
  const unsigned n = count_conns();
  assert_true(fd >= 0);
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &much, sizeof much), 0);
  assert_int_equal(connect(fd, (const struct sockaddr *)&tlsnet_of(net)->address.at, sizeof(struct sockaddr_in)), 0);
  while (count_conns() == n) zps_net_progress(net);
  return fd;
}

static void hello_make(uint8_t *bytes, uint8_t name, uint32_t slot) {
  struct tlsnet_hello hello = {.slot = slot, .name = {name}};
  memcpy(hello.to, tlsnet_of(net)->address.name, sizeof hello.to);
  zps_tlsnet_head_write(TLSNET_HELLO, TLSNET_HELLO_BYTES, bytes);
  zps_tlsnet_hello_write(&hello, bytes + TLSNET_HEAD_BYTES);
}

static void put(int fd, const void *bytes, size_t len) {
  assert_int_equal(send(fd, bytes, len, MSG_NOSIGNAL), len);
}

static int dial_as(uint8_t name, uint32_t slot) {
  uint8_t hello[HELLO];
  const int fd = dial();
  hello_make(hello, name, slot);
  put(fd, hello, sizeof hello);
  while (!LIST_FIRST(&tlsnet_of(net)->conns)->is_named) zps_net_progress(net);
  return fd;
}

/* The last one of those that are ready goes, and the one that ends it has more to say. */
static void a_turn_ends_though_its_last_connection_does(void **state) {
  (void)state;
  static uint8_t bytes[HELLO + MANY * TLSNET_HEAD_BYTES];
  const int replaced = dial_as(1, 7), by = dial();
  hello_make(bytes, 1, 7);
  for (unsigned i = 0; i < MANY; i++)
    zps_tlsnet_head_write(TLSNET_MESSAGE, 0, bytes + HELLO + (size_t)i * TLSNET_HEAD_BYTES);
  put(by, bytes, sizeof bytes);
  put(replaced, bytes + HELLO, 1);
  zps_net_progress(net);
  assert_int_equal(count_conns(), 1);
  assert_in_range(n_messages, 1, MANY - 1);
  while (n_messages < MANY) zps_net_progress(net);
  close(by);
  close(replaced);
}

static struct zps_net_peer *add_rank(uint8_t name) {
  const struct tlsnet_address address = {.name = {name}, .family = AF_INET};
  struct zps_net_peer *peer = NULL;
  assert_int_equal(zps_net_peer_add(net, &address, sizeof address, NULL, &peer, NULL), ZPS_OK);
  return peer;
}

/* The name that an end makes up does not let it stay. */
static void a_name_without_a_peer_is_a_strangers(void **state) {
  (void)state;
  struct tlsnet *const end = tlsnet_of(net);
  const int first = dial_as(1, 0), second = dial_as(1, 1), other = dial_as(2, 0);
  uint8_t ask[TLSNET_HEAD_BYTES + TLSNET_READ_BYTES] = {0}, answer[TLSNET_HEAD_BYTES];
  struct tlsnet_conn *const of_other = LIST_FIRST(&end->conns), *const of_second = LIST_NEXT(of_other, all_link);
  assert_int_equal(end->n_strangers, 3);
  zps_tlsnet_head_write(TLSNET_READ, TLSNET_READ_BYTES, ask);
  put(second, ask, sizeof ask);
  while (recv(second, answer, sizeof answer, MSG_DONTWAIT) != sizeof answer) zps_net_progress(net);
  assert_true(of_second->deadline_ns != ZPS_NEVER); /* An answer changes nothing. */
  struct zps_net_peer *const peer = add_rank(1);
  assert_int_equal(end->n_strangers, 1);
  assert_true(of_second->deadline_ns == ZPS_NEVER);
  const int third = dial_as(1, 2);
  assert_int_equal(end->n_strangers, 1);
  zps_net_peer_evict(peer);
  assert_int_equal(end->n_strangers, 4);
  zps_tlsnet_deadline_set(end, &of_other->deadline_ns, zps_clock_ns());
  zps_net_progress(net);
  assert_int_equal(end->n_strangers, 3);
  assert_int_equal(count_conns(), 3);
  close(first);
  close(second);
  close(third);
  close(other);
}

static void one_end_has_so_many_connections(void **state) {
  (void)state;
  static int fds[TLSNET_SLOTS_MAX + 1];
  struct zps_net_peer *const peer = add_rank(1);
  logs_start();
  logs_expect(ZPS_LOG_WARN, "has 256 connections already");
  for (unsigned i = 0; i < TLSNET_SLOTS_MAX; i++) fds[i] = dial_as(1, i);
  assert_int_equal(count_conns(), TLSNET_SLOTS_MAX);
  uint8_t hello[HELLO];
  fds[TLSNET_SLOTS_MAX] = dial();
  hello_make(hello, 1, TLSNET_SLOTS_MAX);
  put(fds[TLSNET_SLOTS_MAX], hello, sizeof hello);
  while (count_conns() > TLSNET_SLOTS_MAX) zps_net_progress(net);
  logs_finish();
  assert_int_equal(tlsnet_of(net)->n_strangers, 0);
  for (unsigned i = 0; i <= TLSNET_SLOTS_MAX; i++) close(fds[i]);
  zps_net_peer_evict(peer);
}

/* Another one knows the name and the slot of a rank, but has no certificate of its owner. */
static void a_name_is_its_owners_alone(void **state) {
  (void)state;
  struct tlsnet *const end = tlsnet_of(net);
  struct zps_net_peer *const peer = add_rank(1);
  plain_peer[0] = 1;
  const int thief = dial_as(1, 0);
  assert_int_equal(end->n_strangers, 1);
  assert_null(tlsnet_peer_of(peer)->conn);
  plain_peer[0] = 0;
  const int owner = dial_as(1, 0);
  assert_int_equal(end->n_strangers, 1);
  assert_int_equal(count_conns(), 2);
  assert_ptr_equal(tlsnet_peer_of(peer)->conn, LIST_FIRST(&end->conns));
  plain_peer[0] = 1;
  const int again = dial_as(1, 0); /* takes the place of the thief's alone */
  assert_int_equal(count_conns(), 2);
  assert_non_null(tlsnet_peer_of(peer)->conn);
  plain_peer[0] = 0;
  close(thief);
  close(owner);
  close(again);
  zps_net_peer_evict(peer);
}

/* Accepting was to go on later. */
static void a_shut_end_waits_for_nothing(void **state) {
  (void)state;
  struct tlsnet *const end = tlsnet_of(net);
  zps_tlsnet_deadline_set(end, &end->accept_at_ns, zps_clock_ns());
  zps_net_shut(net);
  zps_net_progress(net);
  assert_true(end->next_deadline_ns == ZPS_NEVER);
}

static void a_key_of_the_fabric_is_refused(void **state) {
  (void)state;
  const struct zps_net_config config = {
      .provider = "tls", .auth_key_file = "/dev/null", .tls = (struct zps_tls *)(void *)&identity};
  const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_error error;
  assert_int_equal(zps_net_tls_open(&config, &handler, &net, &error), ZPS_ERR_UNSUPPORTED);
  assert_non_null(strstr(error.text, "fabric.auth_key"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_turn_ends_though_its_last_connection_does, net_open, net_close),
      cmocka_unit_test_setup_teardown(a_name_without_a_peer_is_a_strangers, net_open, net_close),
      cmocka_unit_test_setup_teardown(one_end_has_so_many_connections, net_open, net_close),
      cmocka_unit_test(a_key_of_the_fabric_is_refused),
      cmocka_unit_test_setup_teardown(a_name_is_its_owners_alone, net_open, net_close),
      cmocka_unit_test_setup_teardown(a_shut_end_waits_for_nothing, net_open, net_close),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

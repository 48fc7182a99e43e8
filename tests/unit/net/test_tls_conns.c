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
#include "tests/support/net_pair.h"
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

static void hello_make_further(uint8_t *bytes, uint8_t name, uint32_t slot, uint32_t number) {
  struct tlsnet_hello hello = {.slot = slot, .number = number, .name = {name}};
  memcpy(hello.to, tlsnet_of(net)->address.name, sizeof hello.to);
  zps_tlsnet_head_write(TLSNET_HELLO, TLSNET_HELLO_BYTES, bytes);
  zps_tlsnet_hello_write(&hello, bytes + TLSNET_HEAD_BYTES);
}

static void hello_make(uint8_t *bytes, uint8_t name, uint32_t slot) {
  hello_make_further(bytes, name, slot, 0);
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
  const int first = dial_as(1, 0), asks = dial_as(1, 1), other = dial_as(2, 0);
  uint8_t ask[TLSNET_HEAD_BYTES + TLSNET_READ_BYTES] = {0}, answer;
  struct tlsnet_conn *const of_other = LIST_FIRST(&end->conns);
  struct patience patience = {0};
  assert_int_equal(end->n_strangers, 3);
  zps_tlsnet_head_write(TLSNET_READ, TLSNET_READ_BYTES, ask);
  put(asks, ask, sizeof ask);
  while (count_conns() > 2 && !patience_is_over(&patience)) zps_net_progress(net);
  assert_int_equal(recv(asks, &answer, sizeof answer, MSG_DONTWAIT), 0); /* no answer, and the end */
  close(asks);
  const int second = dial_as(1, 1);
  const struct tlsnet_conn *const of_second = LIST_FIRST(&end->conns);
  assert_true(end->n_strangers == 3 && of_second->deadline_ns != ZPS_NEVER);
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

/* ---- further connections ---- */

/* Says HELLO, and waits until it is taken or refused. */
static int dial_further(uint8_t name, uint32_t slot, uint32_t number) {
  uint8_t hello[HELLO];
  const unsigned n = count_conns();
  const int fd = dial();
  const struct tlsnet_conn *const conn = LIST_FIRST(&tlsnet_of(net)->conns);
  hello_make_further(hello, name, slot, number);
  put(fd, hello, sizeof hello);
  while (count_conns() > n && !conn->is_named) zps_net_progress(net);
  return fd;
}

static unsigned count_further(const struct tlsnet_conn *first) {
  unsigned n = 0;
  const struct tlsnet_conn *conn;
  LIST_FOREACH(conn, &first->further, further_link) n++;
  return n;
}

/* It belongs to a first one of the same name, owner and slot. Without one it ends. */
static void a_further_one_needs_its_first(void **state) {
  (void)state;
  struct tlsnet *const end = tlsnet_of(net);
  struct zps_net_peer *const peer = add_rank(1);
  int fds[8] = {dial_further(1, 0, 1)}; /* there is no first one yet */
  assert_int_equal(count_conns(), 0);
  fds[1] = dial_as(1, 0);
  const struct tlsnet_conn *const first = LIST_FIRST(&end->conns);
  fds[2] = dial_further(1, 1, 1); /* another slot */
  fds[3] = dial_further(2, 0, 1); /* another name */
  plain_peer[0] = 1;
  fds[4] = dial_further(1, 0, 1); /* the name, and the certificate of somebody else */
  plain_peer[0] = 0;
  assert_int_equal(count_conns(), 1);
  assert_int_equal(count_further(first), 0);
  fds[5] = dial_further(1, 0, 1);
  fds[6] = dial_further(1, 0, 31);
  assert_int_equal(count_further(first), 2);
  fds[7] = dial_further(1, 0, 31); /* again: it replaces the former one */
  assert_int_equal(count_further(first), 2);
  assert_int_equal(end->n_strangers, 0);
  assert_ptr_equal(tlsnet_peer_of(peer)->conn, first);
  for (unsigned i = 0; i < 8; i++) close(fds[i]);
  zps_net_peer_evict(peer);
}

/* Of an end without a peer all its connections are strangers, and the first one takes the others along. */
static void further_ones_of_a_stranger_are_strangers(void **state) {
  (void)state;
  struct tlsnet *const end = tlsnet_of(net);
  const int first = dial_as(1, 0), further = dial_further(1, 0, 1), last = dial_further(1, 0, 2);
  assert_int_equal(end->n_strangers, 3);
  struct zps_net_peer *const peer = add_rank(1);
  assert_int_equal(end->n_strangers, 0);
  zps_net_peer_evict(peer);
  assert_int_equal(end->n_strangers, 3);
  close(first);
  while (count_conns() > 0) zps_net_progress(net);
  assert_int_equal(end->n_strangers, 0);
  close(further);
  close(last);
}

static void a_number_beyond_the_last_is_refused(void **state) {
  (void)state;
  const int first = dial_as(1, 0);
  logs_start();
  logs_expect(ZPS_LOG_WARN, "has a connection of number 32: numbers are 0 to 31");
  const int further = dial_further(1, 0, 32);
  assert_int_equal(count_conns(), 1);
  logs_finish();
  close(first);
  close(further);
}

/* One end opens 10,000 connections. It gets 128 further ones, and other ends get theirs. */
static void one_end_has_so_many_further_ones(void **state) {
  (void)state;
  enum { TRIES = 10000 };
  static int fds[TLSNET_FURTHER_MAX];
  struct tlsnet *const end = tlsnet_of(net);
  struct zps_net_peer *const peer = add_rank(1), *const other = add_rank(2);
  int firsts[8];
  unsigned n = 0;
  logs_start();
  logs_expect(ZPS_LOG_WARN, "has 128 further connections already");
  for (unsigned slot = 0; slot < 8; slot++) firsts[slot] = dial_as(1, slot);
  for (; n < TLSNET_FURTHER_MAX; n++) fds[n] = dial_further(1, n / 31, 1 + n % 31);
  assert_int_equal(count_conns(), 8 + TLSNET_FURTHER_MAX);
  for (; n < TRIES; n++) close(dial_further(1, 7, 1 + n % 31));
  assert_int_equal(count_conns(), 8 + TLSNET_FURTHER_MAX);
  const int another = dial_as(1, 8), others = dial_as(2, 0), others_further = dial_further(2, 0, 1);
  assert_int_equal(count_conns(), 8 + TLSNET_FURTHER_MAX + 3);
  assert_int_equal(end->n_strangers, 0);
  logs_finish();
  for (unsigned slot = 0; slot < 8; slot++) close(firsts[slot]);
  for (unsigned i = 0; i < TLSNET_FURTHER_MAX; i++) close(fds[i]);
  close(another);
  close(others);
  close(others_further);
  zps_net_peer_evict(peer);
  zps_net_peer_evict(other);
}

/* Messages have an order, and the first connection has it. */
static void a_message_over_a_further_one_ends_it(void **state) {
  (void)state;
  struct tlsnet *const end = tlsnet_of(net);
  struct zps_net_peer *const peer = add_rank(1);
  const int first = dial_as(1, 0), further = dial_further(1, 0, 1);
  uint8_t head[TLSNET_HEAD_BYTES];
  zps_tlsnet_head_write(TLSNET_MESSAGE, 0, head);
  put(further, head, sizeof head);
  while (count_conns() > 1) zps_net_progress(net);
  assert_int_equal(n_messages, 0);
  assert_ptr_equal(tlsnet_peer_of(peer)->conn, LIST_FIRST(&end->conns));
  close(first);
  close(further);
  zps_net_peer_evict(peer);
}

/* It asks for much, and reads nothing. Its first connection goes on, and so do the reads of this end. */
static void a_further_one_that_takes_nothing_ends(void **state) {
  (void)state;
  enum { MUCH = 32 << 20 };
  struct tlsnet *const end = tlsnet_of(net);
  struct zps_net_peer *const peer = add_rank(1);
  struct zps_net_mem mem;
  uint8_t *const bytes = calloc(1, MUCH), question[TLSNET_HEAD_BYTES + TLSNET_READ_BYTES], got[sizeof question];
  assert_non_null(bytes);
  assert_int_equal(zps_net_mem_register(net, bytes, MUCH, &mem, NULL), ZPS_OK);
  const int first = dial_as(1, 0), further = dial_further(1, 0, 1);
  struct tlsnet_conn *const conn = LIST_FIRST(&end->conns);
  zps_tlsnet_head_write(TLSNET_READ, TLSNET_READ_BYTES, question);
  zps_tlsnet_ask_write(&(struct tlsnet_ask){.key = mem.key, .len = MUCH}, question + TLSNET_HEAD_BYTES);
  put(further, question, sizeof question);
  while (!conn->is_full) zps_net_progress(net);
  assert_true(conn->room_ns != ZPS_NEVER);
  struct read_record record;
  record_init(&record, &mem, &mem, 64);
  assert_int_equal(zps_net_read(peer, &record.read), ZPS_OK);
  while (recv(first, got, sizeof got, MSG_DONTWAIT) != sizeof got) zps_net_progress(net);
  zps_tlsnet_deadline_set(end, &conn->room_ns, zps_clock_ns());
  zps_net_progress(net);
  assert_int_equal(count_conns(), 1);
  assert_true(tlsnet_peer_of(peer)->state == TLSNET_PEER_LIVE);
  close(first);
  close(further);
  zps_net_peer_evict(peer);
  zps_net_progress(net);
  zps_net_mem_release(net, &mem);
  free(bytes);
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
      cmocka_unit_test_setup_teardown(a_further_one_needs_its_first, net_open, net_close),
      cmocka_unit_test_setup_teardown(further_ones_of_a_stranger_are_strangers, net_open, net_close),
      cmocka_unit_test_setup_teardown(a_number_beyond_the_last_is_refused, net_open, net_close),
      cmocka_unit_test_setup_teardown(one_end_has_so_many_further_ones, net_open, net_close),
      cmocka_unit_test_setup_teardown(a_message_over_a_further_one_ends_it, net_open, net_close),
      cmocka_unit_test_setup_teardown(a_further_one_that_takes_nothing_ends, net_open, net_close),
      cmocka_unit_test_setup_teardown(a_shut_end_waits_for_nothing, net_open, net_close),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

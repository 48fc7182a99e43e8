/* The in-process fabric: its behaviour beyond the conformance suite, which runs over it too. */
#include "tests/support/net_pair.h"
#include "tests/support/oom.h"

#include <pthread.h>

static void test_messages_keep_their_order(void **state) {
  (void)state;
  struct end ends[2];
  pair_open(ends, "loop", NULL, 8);
  for (unsigned i = 0; i < 1000; i++) {
    assert_int_equal(zps_net_send(ends[0].peer, &i, sizeof i), ZPS_OK);
    TURN_UNTIL(ends, ends[1].n_messages == i + 1);
    assert_memory_equal(ends[1].last, &i, sizeof i);
  }
  assert_int_equal(zps_net_counters(ends[0].net)->msgs_sent, 1000);
  assert_int_equal(zps_net_counters(ends[1].net)->msg_bytes_received, 1000 * sizeof(unsigned));
  assert_int_equal(zps_net_counters(ends[1].net)->unmatched, 0);
  pair_close(ends);
}

static void test_unmatched_messages_block_their_stream(void **state) {
  (void)state;
  struct end ends[2];
  static uint8_t theirs[64] = {42}, mine[64];
  pair_open(ends, "loop", NULL, 0);
  struct zps_net_mem remote = end_register(&ends[1], theirs, sizeof theirs);
  struct zps_net_mem local = end_register(&ends[0], mine, sizeof mine);
  struct read_record record;
  record_init(&record, &local, &remote, sizeof mine);
  assert_int_equal(zps_net_send(ends[0].peer, "x", 1), ZPS_OK);
  assert_int_equal(zps_net_read(ends[0].peer, &record.read), ZPS_OK);
  for (int i = 0; i < 10; i++) {
    zps_net_progress(ends[0].net);
    zps_net_progress(ends[1].net);
  }
  assert_int_equal(ends[1].n_messages, 0);
  assert_int_equal(record.n_done, 0);
  assert_int_equal(zps_net_counters(ends[1].net)->unmatched, 1);
  assert_int_equal(zps_net_reserve(ends[1].net, 1), ZPS_OK);
  TURN_UNTIL(ends, ends[1].n_messages == 1 && record.n_done == 1);
  assert_int_equal(record.code, ZPS_OK);
  assert_int_equal(mine[0], 42);
  assert_int_equal(zps_net_reserve(ends[1].net, -1), ZPS_OK);
  assert_int_equal(zps_net_reserve(ends[1].net, -1), ZPS_ERR_INVALID);
  pair_close(ends);
}

static void test_push_back_is_an_event(void **state) {
  (void)state;
  struct end ends[2];
  pair_open(ends, "loop", NULL, 0);
  zps_err_t code;
  unsigned sent = 0;
  while ((code = zps_net_send(ends[0].peer, "x", 1)) == ZPS_OK) sent++;
  assert_int_equal(code, ZPS_ERR_AGAIN);
  zps_net_wait(ends[0].net, ZPS_NEVER); /* returns though nothing arrives */
  assert_int_equal(zps_net_progress(ends[0].net), 1);
  assert_int_equal(zps_net_progress(ends[0].net), 0);
  assert_int_equal(zps_net_counters(ends[0].net)->again, 1);
  assert_int_equal(zps_net_reserve(ends[1].net, 4), ZPS_OK);
  TURN_UNTIL(ends, ends[1].n_messages == sent);
  assert_int_equal(zps_net_send(ends[0].peer, "x", 1), ZPS_OK);
  pair_close(ends);
}

static zps_err_t read_once(struct end ends[2], const struct zps_net_mem *local, const struct zps_net_mem *remote,
                           size_t len) {
  struct read_record record;
  record_init(&record, local, remote, len);
  assert_int_equal(zps_net_read(ends[0].peer, &record.read), ZPS_OK);
  assert_int_equal(record.n_done, 0); /* never from the call that starts it */
  TURN_UNTIL(ends, record.n_done == 1);
  return record.code;
}

static void test_reads_are_checked(void **state) {
  (void)state;
  struct end ends[2];
  uint8_t theirs[256], mine[256];
  for (unsigned i = 0; i < sizeof theirs; i++) theirs[i] = (uint8_t)i;
  pair_open(ends, "loop", NULL, 1);
  struct zps_net_mem remote = end_register(&ends[1], theirs, sizeof theirs), moved = remote;
  struct zps_net_mem local = end_register(&ends[0], mine, sizeof mine);
  assert_int_equal(read_once(ends, &local, &remote, sizeof mine), ZPS_OK);
  assert_memory_equal(mine, theirs, sizeof mine);
  assert_int_equal(zps_net_counters(ends[0].net)->read_bytes, sizeof mine);
  moved.addr = remote.addr + 1;
  assert_int_equal(read_once(ends, &local, &moved, sizeof mine), ZPS_ERR_FABRIC);
  assert_int_equal(read_once(ends, &local, &moved, sizeof mine - 1), ZPS_OK);
  moved.addr = remote.addr - 1;
  assert_int_equal(read_once(ends, &local, &moved, 1), ZPS_ERR_FABRIC);
  moved = remote;
  moved.key += 12345;
  assert_int_equal(read_once(ends, &local, &moved, 1), ZPS_ERR_FABRIC);
  moved = remote;
  zps_net_mem_release(ends[1].net, &remote);
  assert_int_equal(read_once(ends, &local, &moved, 1), ZPS_ERR_FABRIC);
  pair_close(ends);
}

static void test_eviction_calls_back_by_progress(void **state) {
  (void)state;
  struct end ends[2];
  uint8_t theirs[16] = {1}, mine[16] = {0};
  pair_open(ends, "loop", NULL, 1);
  struct zps_net_mem remote = end_register(&ends[1], theirs, sizeof theirs);
  struct zps_net_mem local = end_register(&ends[0], mine, sizeof mine);
  struct read_record record;
  record_init(&record, &local, &remote, sizeof mine);
  assert_int_equal(zps_net_read(ends[0].peer, &record.read), ZPS_OK);
  zps_net_peer_evict(ends[0].peer);
  assert_int_equal(record.n_done, 0);
  assert_true(zps_net_progress(ends[0].net) > 0);
  assert_int_equal(record.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(record.n_released, 1);
  assert_int_equal(mine[0], 0);
  pair_close(ends);
}

static void test_a_closed_endpoint_is_a_dead_peer(void **state) {
  (void)state;
  struct end ends[2];
  uint8_t theirs[16], mine[16];
  pair_open(ends, "loop", NULL, 1);
  struct zps_net_mem remote = end_register(&ends[1], theirs, sizeof theirs);
  struct zps_net_mem local = end_register(&ends[0], mine, sizeof mine);
  zps_net_close(ends[1].net);
  struct read_record record;
  record_init(&record, &local, &remote, sizeof mine);
  assert_int_equal(zps_net_read(ends[0].peer, &record.read), ZPS_OK);
  assert_int_equal(zps_net_send(ends[0].peer, "x", 1), ZPS_OK);
  zps_net_progress(ends[0].net);
  assert_int_equal(record.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(record.n_released, 1);
  assert_int_equal(ends[0].n_errors, 1);
  assert_int_equal(ends[0].error, ZPS_ERR_CONNECT);
  assert_int_equal(zps_net_send(ends[0].peer, "x", 1), ZPS_ERR_PEER_LOST);
  zps_net_progress(ends[0].net);
  assert_int_equal(ends[0].n_errors, 1);
  zps_net_close(ends[0].net);
}

static void test_a_read_finds_out_that_its_peer_is_gone(void **state) {
  (void)state;
  struct end ends[2];
  uint8_t theirs[16], mine[16];
  pair_open(ends, "loop", NULL, 1);
  struct zps_net_mem remote = end_register(&ends[1], theirs, sizeof theirs);
  struct zps_net_mem local = end_register(&ends[0], mine, sizeof mine);
  zps_net_close(ends[1].net);
  struct read_record record;
  record_init(&record, &local, &remote, sizeof mine);
  assert_int_equal(zps_net_read(ends[0].peer, &record.read), ZPS_OK);
  zps_net_progress(ends[0].net);
  assert_int_equal(record.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(record.n_released, 1);
  assert_int_equal(ends[0].n_errors, 1);
  assert_int_equal(zps_net_send(ends[0].peer, "x", 1), ZPS_ERR_PEER_LOST);
  zps_net_close(ends[0].net);
}

struct closing_read {
  struct read_record record;
  struct end *end;
  struct zps_net_mem *mem;
};

static void release_while_closing(struct zps_net_read *read, zps_err_t code) {
  struct closing_read *closing = (struct closing_read *)read->ctx;
  record_done(read, code);
  assert_int_equal(zps_net_send(closing->end->peer, "x", 1), ZPS_ERR_CLOSED);
  assert_int_equal(zps_net_read(closing->end->peer, read), ZPS_ERR_CLOSED);
  zps_net_peer_evict(closing->end->peer);
  zps_net_mem_release(closing->end->net, closing->mem);
}

static void check_close(const char *provider, const char *fault) {
  struct end ends[2];
  uint8_t theirs[16], mine[16];
  pair_open(ends, provider, fault, 1);
  struct zps_net_mem remote = end_register(&ends[1], theirs, sizeof theirs);
  struct zps_net_mem local = end_register(&ends[0], mine, sizeof mine);
  struct closing_read closing = {.end = &ends[0], .mem = &local};
  record_init(&closing.record, &local, &remote, sizeof mine);
  closing.record.read.done = release_while_closing;
  assert_int_equal(zps_net_read(ends[0].peer, &closing.record.read), ZPS_OK);
  pair_close(ends);
  assert_int_equal(closing.record.n_done, 1);
  assert_int_equal(closing.record.code, ZPS_ERR_CLOSED);
}

static void test_close_calls_back_what_is_outstanding(void **state) {
  (void)state;
  check_close("loop", NULL);
  check_close("fault+loop", NULL);
  check_close("fault+loop", "kill=0,delay=1:1s");
}

static void test_foreign_addresses_are_refused(void **state) {
  (void)state;
  struct end end;
  struct zps_net_peer *peer = NULL;
  struct zps_error error;
  end_open(&end, "loop", NULL, 1);
  assert_int_equal(zps_net_peer_add(end.net, "127.0.0.1:1234/x", 16, NULL, &peer, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "not of provider loop"));
  assert_int_equal(zps_net_peer_add(end.net, "zpsloop", 8, NULL, &peer, &error), ZPS_ERR_INVALID);
  assert_null(peer);
  zps_net_close(end.net);
}

enum { ROUND_TRIPS = 3000 };

static void echo(struct end *end, const void *data, size_t len) {
  if (end->n_messages < ROUND_TRIPS) assert_int_equal(zps_net_send(end->peer, data, len), ZPS_OK);
}

static void *drive(void *arg) {
  struct end *end = arg;
  while (end->n_messages < ROUND_TRIPS)
    if (zps_net_progress(end->net) == 0) zps_net_wait(end->net, ZPS_NEVER);
  return NULL;
}

static void test_each_endpoint_has_its_thread(void **state) {
  (void)state;
  struct end ends[2];
  pthread_t thread;
  pair_open(ends, "loop", NULL, 1);
  ends[0].on_message = ends[1].on_message = echo;
  assert_int_equal(zps_net_send(ends[0].peer, "ball", 4), ZPS_OK);
  assert_int_equal(zps_net_send(ends[1].peer, "ball", 4), ZPS_OK);
  assert_int_equal(pthread_create(&thread, NULL, drive, &ends[1]), 0);
  drive(&ends[0]);
  pthread_join(thread, NULL);
  pair_close(ends);
}

static void *wake_it(void *net) {
  zps_net_wake(net);
  return NULL;
}

static void test_wake_ends_a_wait(void **state) {
  (void)state;
  struct end end;
  pthread_t thread;
  end_open(&end, "loop", NULL, 1);
  assert_int_equal(pthread_create(&thread, NULL, wake_it, end.net), 0);
  zps_net_wait(end.net, ZPS_NEVER);
  pthread_join(thread, NULL);
  zps_net_wake(end.net);
  zps_net_wait(end.net, ZPS_NEVER); /* a wake before the wait counts too */
  zps_net_close(end.net);
}

/* An endpoint with a peer (itself) and a registration. */
static void test_out_of_memory(void **state) {
  (void)state;
  struct net_sweep sweep = {.config = {.provider = "loop", .max_msg = 64}};
  oom_sweep(net_sweep_create, net_sweep_destroy, &sweep, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_messages_keep_their_order),
      cmocka_unit_test(test_unmatched_messages_block_their_stream),
      cmocka_unit_test(test_push_back_is_an_event),
      cmocka_unit_test(test_reads_are_checked),
      cmocka_unit_test(test_eviction_calls_back_by_progress),
      cmocka_unit_test(test_a_closed_endpoint_is_a_dead_peer),
      cmocka_unit_test(test_a_read_finds_out_that_its_peer_is_gone),
      cmocka_unit_test(test_close_calls_back_what_is_outstanding),
      cmocka_unit_test(test_foreign_addresses_are_refused),
      cmocka_unit_test(test_each_endpoint_has_its_thread),
      cmocka_unit_test(test_wake_ends_a_wait),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}

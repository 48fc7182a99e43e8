/* Receiver-driven bulk reads: order and budgets. */
#include "common/net/bulk_impl.h"
#include "tests/unit/net/bulk_reader.h"

#include "tests/support/oom.h"

static struct reader reader;

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

/* Each look takes a microsecond: a busy machine makes no link slow. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
  static uint64_t now_ns = ZPS_NS_PER_S;
  if (clock != CLOCK_MONOTONIC) return __real_clock_gettime(clock, now);
  now_ns += 1000;
  *now = zps_clock_timespec(now_ns);
  return 0;
}

static void test_pieces_go_round_the_peers(void **state) {
  (void)state;
  struct transfer large, small[2];
  const struct zps_bulk_config config = {
      .piece_bytes = PIECE, .budget_bytes = 4 * PIECE, .peer_budget_bytes = 2 * PIECE};
  reader_open(&reader, "loop", NULL, &config);
  start(&reader, 0, &large, 0, 60 * PIECE);
  start(&reader, 1, &small[0], 0, 2 * PIECE + 1);
  start(&reader, 2, &small[1], 0, 1);
  while (large.n_done == 0) {
    zps_bulk_progress(reader.bulk);
    assert_true(zps_bulk_in_flight(reader.bulk) <= config.budget_bytes);
    zps_net_progress(reader.end.net);
  }
  assert_int_equal(small[1].order, 0); /* one piece, issued in the first round */
  assert_int_equal(small[0].order, 1);
  assert_int_equal(large.order, 2);
  assert_int_equal(zps_bulk_in_flight(reader.bulk), 0);
  assert_int_equal(zps_bulk_peer_landed(reader.sources[0].bulk_peer), 60 * PIECE);
  assert_int_equal(zps_bulk_peer_landed(reader.sources[1].bulk_peer), 2 * PIECE + 1);
  assert_memory_equal(reader.bytes[0], reader.sources[0].bytes, 60 * PIECE);
  assert_memory_equal(reader.bytes[1], reader.sources[1].bytes, 2 * PIECE + 1);
  assert_int_equal(reader.bytes[1][2 * PIECE + 1], 0);
  assert_int_equal(zps_net_counters(reader.end.net)->reads, 60 + 3 + 1);
  reader_close(&reader);
}

/* A job's peers share its turns: one of two has half as much as the only one of another job of the same weight. */
static void test_jobs_have_turns_by_weight(void **state) {
  (void)state;
  struct transfer transfers[SOURCES];
  struct zps_read_flow many = {.weight = 1}, one = {.weight = 1};
  const struct zps_bulk_config config = {.piece_bytes = PIECE, .budget_bytes = PIECE, .peer_budget_bytes = PIECE};
  reader_open(&reader, "loop", NULL, &config);
  zps_bulk_peer_join(reader.sources[0].bulk_peer, &many);
  start(&reader, 1, &transfers[1], 0, 20 * PIECE);
  zps_bulk_peer_join(reader.sources[1].bulk_peer, &many); /* joins while something is to be read */
  zps_bulk_peer_join(reader.sources[2].bulk_peer, &one);
  start(&reader, 0, &transfers[0], 0, 20 * PIECE);
  start(&reader, 2, &transfers[2], 0, 20 * PIECE);
  while (transfers[2].n_done == 0) {
    zps_bulk_progress(reader.bulk);
    zps_net_progress(reader.end.net);
  }
  for (int i = 0; i < 2; i++) assert_in_range(zps_bulk_peer_landed(reader.sources[i].bulk_peer), 9 * PIECE, 11 * PIECE);
  for (int i = 0; i < 2; i++) run_until(&reader, &transfers[i].n_done, 1);
  reader_close(&reader);
}

static void test_budgets_bound_what_is_in_flight(void **state) {
  (void)state;
  struct transfer transfers[2];
  const struct zps_bulk_config config = {
      .piece_bytes = PIECE, .budget_bytes = 5 * PIECE, .peer_budget_bytes = 3 * PIECE};
  reader_open(&reader, "loop", NULL, &config);
  start(&reader, 0, &transfers[0], 0, 20 * PIECE);
  assert_int_equal(zps_bulk_progress(reader.bulk), 3); /* the peer's */
  assert_int_equal(zps_bulk_progress(reader.bulk), 0);
  start(&reader, 1, &transfers[1], 0, 20 * PIECE);
  assert_int_equal(zps_bulk_progress(reader.bulk), 2); /* the part of the whole limit that the peer left */
  assert_int_equal(zps_bulk_in_flight(reader.bulk), 5 * PIECE);
  for (int i = 0; i < 2; i++) run_until(&reader, &transfers[i].n_done, 1);
  reader_close(&reader);
}

static void spin_until_done(const struct transfer *transfer) {
  while (transfer->n_done == 0) { /* spins, because no thread sleeps */
    zps_net_progress(reader.end.net);
    zps_bulk_progress(reader.bulk);
  }
}

/* The bytes in flight right after a transfer of all bytes was started. */
static uint64_t asked_at_once(int source) {
  struct transfer transfer;
  start(&reader, source, &transfer, 0, BYTES);
  zps_bulk_progress(reader.bulk);
  const uint64_t in_flight = zps_bulk_in_flight(reader.bulk);
  spin_until_done(&transfer);
  return in_flight;
}

/* Trips that are waits for processors say nothing of queues: all is asked for at once, unless links are slow. */
static void test_windows_where_processors_are_short(void **state) {
  (void)state;
  struct transfer transfers[SOURCES];
  reader_open(&reader, "loop", NULL, &(struct zps_bulk_config){.piece_bytes = 0});
  zps_bulk_waited(reader.bulk, 5 * ZPS_NS_PER_MS);
  assert_true(asked_at_once(0) < BYTES); /* the speed of links is not known */
  for (unsigned i = 0; i < 1000 && zps_bulk_measure(reader.bulk).bytes_per_s < 5e7; i++) {
    for (int source = 0; source < SOURCES; source++) start(&reader, source, &transfers[source], 0, BYTES);
    for (int source = 0; source < SOURCES; source++) spin_until_done(&transfers[source]);
  }
  zps_bulk_waited(reader.bulk, ZPS_NS_PER_MS);
  assert_true(asked_at_once(1) < BYTES);
  zps_bulk_waited(reader.bulk, 2 * ZPS_NS_PER_MS);
  assert_int_equal(asked_at_once(2), BYTES);
  zps_bulk_waited(reader.bulk, ZPS_NS_PER_MS); /* not yet over */
  assert_int_equal(asked_at_once(1), BYTES);
  zps_bulk_waited(reader.bulk, ZPS_NS_PER_MS / 2);
  assert_true(asked_at_once(2) < BYTES);
  reader_close(&reader);
}

/* Pieces of links with many connections are small, and many of them make up the budget. */
static void test_small_pieces_use_the_whole_budget(void **state) {
  (void)state;
  enum { SMALL = 16, FIT = 2048 };
  struct transfer transfer;
  const struct zps_bulk_config config = {.piece_bytes = SMALL,
                                         .budget_bytes = (uint64_t)FIT * ZPS_WINDOW_PIECE_BYTES,
                                         .peer_budget_bytes = (uint64_t)FIT * ZPS_WINDOW_PIECE_BYTES};
  reader_open(&reader, "loop", NULL, &config);
  start(&reader, 0, &transfer, 0, BYTES);
  assert_int_equal(zps_bulk_progress(reader.bulk), FIT);
  assert_int_equal(zps_bulk_in_flight(reader.bulk), FIT * SMALL);
  run_until(&reader, &transfer.n_done, 1);
  reader_close(&reader);
}

static void test_a_piece_always_fits_its_budget(void **state) {
  (void)state;
  struct transfer transfer;
  const struct zps_bulk_config config = {.piece_bytes = 1 << 20, .budget_bytes = 100, .peer_budget_bytes = 1 << 30};
  reader_open(&reader, "loop", NULL, &config);
  start(&reader, 0, &transfer, 0, 1001);
  run_until(&reader, &transfer.n_done, 1);
  assert_int_equal(zps_net_counters(reader.end.net)->reads, 11);
  reader_close(&reader);
}

static void test_empty_transfers_are_done_by_progress(void **state) {
  (void)state;
  struct transfer busy, empty;
  reader_open(&reader, "loop", NULL, &(struct zps_bulk_config){.piece_bytes = PIECE, .peer_budget_bytes = PIECE});
  start(&reader, 0, &busy, 0, 10 * PIECE);
  start(&reader, 0, &empty, 0, 0);
  assert_int_equal(empty.n_done, 0);
  zps_bulk_progress(reader.bulk);
  assert_int_equal(empty.n_done, 1);
  assert_int_equal(empty.code, ZPS_OK);
  run_until(&reader, &busy.n_done, 1);
  reader_close(&reader);
}

static void test_a_callback_may_start_the_next(void **state) {
  (void)state;
  struct transfer first, second;
  reader_open(&reader, "loop", NULL, &(struct zps_bulk_config){.piece_bytes = PIECE});
  start(&reader, 0, &second, 0, 3 * PIECE);
  run_until(&reader, &second.n_done, 1);
  second.n_done = 0;
  start(&reader, 1, &first, 0, 2 * PIECE);
  first.then = &second;
  first.then_from = reader.sources[0].bulk_peer;
  run_until(&reader, &second.n_done, 1);
  assert_int_equal(first.n_done, 1);
  reader_close(&reader);
}

static zps_err_t sweep_create(void *ctx) {
  struct end *end = ctx;
  struct zps_bulk_peer *peer;
  zps_err_t code = zps_bulk_create(end->net, &(struct zps_bulk_config){0}, &reader.bulk);
  if (code != ZPS_OK) return code;
  code = zps_bulk_peer_add(reader.bulk, end->peer, &peer);
  if (code != ZPS_OK) zps_bulk_destroy(reader.bulk);
  return code;
}

static void sweep_destroy(void *ctx) {
  (void)ctx;
  zps_bulk_destroy(reader.bulk);
}

static void test_out_of_memory(void **state) {
  (void)state;
  struct end ends[2];
  pair_open(ends, "loop", NULL, 0);
  oom_sweep(sweep_create, sweep_destroy, &ends[0], 3);
  pair_close(ends);
}

/* Of two reads in flight the last one is lost with its peer: what the first one brought is not counted for another
 * period. */
static void test_a_lost_read_ends_a_period(void **state) {
  (void)state;
  struct transfer lost, other;
  reader_open(&reader, "loop", NULL, &(struct zps_bulk_config){.piece_bytes = 0});
  start(&reader, 0, &other, 0, PIECE);
  start(&reader, 1, &lost, 0, PIECE);
  zps_bulk_progress(reader.bulk);
  assert_int_equal(reader.bulk->n_pieces, 2);
  evict(&reader, 1);
  spin_until_done(&other);
  spin_until_done(&lost);
  assert_int_equal(lost.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(reader.bulk->n_pieces, 0);
  assert_int_equal(reader.bulk->meter.period_bytes, 0);
  reader_close(&reader);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pieces_go_round_the_peers),
      cmocka_unit_test(test_jobs_have_turns_by_weight),
      cmocka_unit_test(test_budgets_bound_what_is_in_flight),
      cmocka_unit_test(test_windows_where_processors_are_short),
      cmocka_unit_test(test_a_lost_read_ends_a_period),
      cmocka_unit_test(test_small_pieces_use_the_whole_budget),
      cmocka_unit_test(test_a_piece_always_fits_its_budget),
      cmocka_unit_test(test_empty_transfers_are_done_by_progress),
      cmocka_unit_test(test_a_callback_may_start_the_next),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests_name("bulk", tests, NULL, NULL);
}

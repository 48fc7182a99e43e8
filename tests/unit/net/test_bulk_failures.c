/* Receiver-driven bulk reads: failures, eviction, and all of it at random. */
#include "tests/unit/net/bulk_reader.h"

static struct reader reader;

static void test_a_failed_piece_fails_its_transfer_alone(void **state) {
  (void)state;
  struct transfer wrong, right;
  reader_open(&reader, "loop", NULL, &(struct zps_bulk_config){.piece_bytes = PIECE, .peer_budget_bytes = 4 * PIECE});
  start(&reader, 0, &wrong, 0, 50 * PIECE);
  wrong.read.addr += BYTES - 2 * PIECE; /* the third piece leaves the source's memory */
  start(&reader, 0, &right, 0, 5 * PIECE);
  run_until(&reader, &right.n_done, 1);
  assert_int_equal(wrong.n_done, 1);
  assert_int_equal(wrong.code, ZPS_ERR_FABRIC);
  assert_int_equal(wrong.n_released, 0);
  assert_int_equal(right.code, ZPS_OK);
  assert_int_equal(zps_bulk_in_flight(reader.bulk), 0);
  /* Far fewer pieces than it had were tried. */
  assert_in_range(zps_net_counters(reader.end.net)->reads, 5 + 2, 5 + 8);
  reader_close(&reader);
}

static void test_what_the_net_refuses_fails(void **state) {
  (void)state;
  struct transfer transfer;
  reader_open(&reader, "loop", NULL, &(struct zps_bulk_config){.piece_bytes = PIECE});
  start(&reader, 0, &transfer, 0, PIECE);
  transfer.read.local = &transfer; /* not registered */
  zps_bulk_progress(reader.bulk);
  assert_int_equal(transfer.n_done, 1);
  assert_int_equal(transfer.code, ZPS_ERR_INVALID);
  reader_close(&reader);
}

static void test_eviction_fails_queued_and_flying(void **state) {
  (void)state;
  struct transfer flying, queued, other;
  reader_open(&reader, "fault+loop", "hold=1ms",
              &(struct zps_bulk_config){.piece_bytes = PIECE, .peer_budget_bytes = 4 * PIECE});
  start(&reader, 0, &flying, 0, 10 * PIECE);
  start(&reader, 0, &queued, 0, 10 * PIECE);
  start(&reader, 1, &other, 0, 10 * PIECE);
  zps_bulk_progress(reader.bulk);
  evict(&reader, 0);
  assert_int_equal(flying.n_done + queued.n_done, 0);
  turn(&reader);
  assert_int_equal(flying.n_done + queued.n_done, 2);
  assert_int_equal(flying.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(queued.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(queued.n_released, 1); /* the fabric never had any of it */
  run_until(&reader, &flying.n_released, 1);
  assert_int_equal(reader.bytes[0][0], 0xdb); /* the injector wrote before it let go, and not after */
  run_until(&reader, &other.n_done, 1);
  assert_int_equal(other.code, ZPS_OK);
  assert_memory_equal(reader.bytes[1], reader.sources[1].bytes, 10 * PIECE);
  assert_int_equal(zps_bulk_in_flight(reader.bulk), 0);
  reader_close(&reader);
}

static void test_a_silent_peer_does_not_hold_the_budget(void **state) {
  (void)state;
  struct transfer silent, other;
  const struct zps_bulk_config config = {
      .piece_bytes = PIECE, .budget_bytes = 2 * PIECE, .peer_budget_bytes = 2 * PIECE};
  reader_open(&reader, "fault+loop", "delay=1:3600s,hold=3600s", &config);
  start(&reader, 0, &silent, 0, 2 * PIECE);
  zps_bulk_progress(reader.bulk);
  zps_net_progress(reader.end.net);
  start(&reader, 1, &other, 0, PIECE);
  assert_int_equal(zps_bulk_progress(reader.bulk), 0);
  evict(&reader, 0);
  zps_net_progress(reader.end.net);
  assert_int_equal(silent.n_done, 1);
  assert_int_equal(silent.n_released, 0);
  assert_int_equal(zps_bulk_progress(reader.bulk), 1);
  reader_close(&reader);
  assert_int_equal(silent.n_released, 1);
  assert_int_equal(other.code, ZPS_ERR_CLOSED);
}

static void test_closing_ends_everything(void **state) {
  (void)state;
  struct transfer flying, partly, queued;
  reader_open(&reader, "loop", NULL, &(struct zps_bulk_config){.piece_bytes = PIECE, .peer_budget_bytes = 4 * PIECE});
  start(&reader, 0, &flying, 0, 2 * PIECE);
  start(&reader, 0, &partly, 0, 10 * PIECE);
  zps_bulk_progress(reader.bulk);
  start(&reader, 1, &queued, 0, PIECE);
  reader_close(&reader);
  assert_int_equal(flying.code, ZPS_ERR_CLOSED);
  assert_int_equal(partly.code, ZPS_ERR_CLOSED);
  assert_int_equal(queued.code, ZPS_ERR_CLOSED);
  assert_int_equal(flying.n_done + partly.n_done + queued.n_done, 3);
  zps_bulk_destroy(NULL);
  zps_bulk_peer_remove(NULL);
}

static void run_at_random(const char *fault, uint64_t seed, bool with_eviction) {
  enum { N = 100 };
  static struct transfer transfers[N];
  struct zps_rng rng = {.state = seed};
  const struct zps_bulk_config config = {.piece_bytes = 1 + zps_rng_below(&rng, 5000),
                                         .budget_bytes = 1 + zps_rng_below(&rng, 50000),
                                         .peer_budget_bytes = 1 + zps_rng_below(&rng, 20000)};
  bool evicted = false;
  int from[N];
  reader_open(&reader, "fault+loop", fault, &config);
  for (int i = 0; i < N; i++) {
    const size_t len = zps_rng_below(&rng, 3) ? zps_rng_below(&rng, BYTES / 4) : 0;
    from[i] = (int)zps_rng_below(&rng, evicted ? SOURCES - 1 : SOURCES);
    start(&reader, from[i], &transfers[i], zps_rng_below(&rng, BYTES - len), len);
    if (zps_rng_below(&rng, 2)) turn(&reader);
    if (with_eviction && i == N / 2) {
      evict(&reader, SOURCES - 1);
      evicted = true;
    }
    assert_true(zps_bulk_in_flight(reader.bulk) <= config.budget_bytes);
  }
  for (int i = 0; i < N; i++) {
    run_until(&reader, &transfers[i].n_done, 1);
    if (transfers[i].code == ZPS_OK) continue;
    assert_true(evicted && from[i] == SOURCES - 1);
    assert_int_equal(transfers[i].code, ZPS_ERR_PEER_LOST);
    run_until(&reader, &transfers[i].n_released, 1);
  }
  for (int i = 0; i < N; i++) {
    if (from[i] == SOURCES - 1 && evicted) continue;
    const size_t offset = (size_t)((uint8_t *)transfers[i].read.local - reader.bytes[from[i]]);
    assert_memory_equal(transfers[i].read.local, reader.sources[from[i]].bytes + offset, transfers[i].read.len);
  }
  assert_int_equal(zps_bulk_in_flight(reader.bulk), 0);
  reader_close(&reader);
}

static void test_random_transfers(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 20; seed++) run_at_random("delay=0.05:100us,hold=200us", seed, seed % 2 == 0);
}

/* First, in the middle and last of their peer's queue; one that is all asked for goes on. */
static void test_what_is_given_up_is_read_no_further(void **state) {
  (void)state;
  struct transfer transfers[5];
  const struct zps_bulk_config config = {
      .piece_bytes = PIECE, .budget_bytes = 3 * PIECE, .peer_budget_bytes = 3 * PIECE};
  reader_open(&reader, "loop", NULL, &config);
  start(&reader, 0, &transfers[0], 0, PIECE);
  for (unsigned i = 1; i < 4; i++) start(&reader, 0, &transfers[i], 10 * i * PIECE, 10 * PIECE);
  assert_int_equal(zps_bulk_progress(reader.bulk), 3);
  zps_bulk_give_up(&transfers[0].read, ZPS_ERR_CANCELED);
  zps_bulk_give_up(&transfers[3].read, ZPS_ERR_CANCELED);
  start(&reader, 0, &transfers[4], 40 * PIECE, PIECE);
  zps_bulk_give_up(&transfers[2].read, ZPS_ERR_CANCELED);
  zps_bulk_give_up(&transfers[1].read, ZPS_ERR_CANCELED);
  for (unsigned i = 0; i < 4; i++) assert_int_equal(transfers[i].n_done, 0);
  for (unsigned i = 0; i < 5; i++) run_until(&reader, &transfers[i].n_done, 1);
  assert_int_equal(transfers[0].code, ZPS_OK);
  for (unsigned i = 1; i < 4; i++) assert_int_equal(transfers[i].code, ZPS_ERR_CANCELED);
  assert_int_equal(transfers[4].code, ZPS_OK);
  assert_int_equal(zps_net_counters(reader.end.net)->reads, 1 + 2 + 1);
  assert_int_equal(zps_bulk_in_flight(reader.bulk), 0);
  reader_close(&reader);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_failed_piece_fails_its_transfer_alone),
      cmocka_unit_test(test_what_the_net_refuses_fails),
      cmocka_unit_test(test_eviction_fails_queued_and_flying),
      cmocka_unit_test(test_a_silent_peer_does_not_hold_the_budget),
      cmocka_unit_test(test_closing_ends_everything),
      cmocka_unit_test(test_random_transfers),
      cmocka_unit_test(test_what_is_given_up_is_read_no_further),
  };
  return cmocka_run_group_tests_name("bulk failures", tests, NULL, NULL);
}

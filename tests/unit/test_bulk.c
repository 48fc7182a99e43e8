/* Receiver-driven bulk reads: order, budgets, failures, eviction. One reader and several sources over the in-process
 * fabric, driven step by step. */
#include "tests/support/net_pair.h"
#include "tests/support/oom.h"

#include "common/base/rng.h"
#include "common/net/bulk.h"

enum { SOURCES = 3, BYTES = 1 << 16, PIECE = 1000 };

struct source {
  struct end end;
  struct zps_net_peer *peer; /* the reader's handle */
  struct zps_bulk_peer *bulk_peer;
  uint8_t bytes[BYTES];
  struct zps_net_mem mem;
};

struct reader {
  struct end end;
  struct zps_bulk *bulk;
  struct source sources[SOURCES];
  uint8_t bytes[SOURCES][BYTES];
  struct zps_net_mem mem;
};

struct transfer {
  struct zps_bulk_read read;
  unsigned n_done, n_released, order;
  zps_err_t code;
  struct transfer *then; /* started by done() */
  struct zps_bulk_peer *then_from;
};

static unsigned n_finished; /* orders the transfers of a test */

static void on_done(struct zps_bulk_read *read, zps_err_t code) {
  struct transfer *transfer = read->ctx;
  assert_int_equal(transfer->n_done, 0);
  assert_int_equal(transfer->n_released, 0);
  transfer->n_done++;
  transfer->code = code;
  transfer->order = n_finished++;
  if (transfer->then) zps_bulk_start(transfer->then_from, &transfer->then->read);
}

static void on_release(struct zps_bulk_read *read) {
  struct transfer *transfer = read->ctx;
  assert_int_equal(transfer->n_done, 1);
  assert_int_equal(transfer->code, ZPS_ERR_PEER_LOST);
  transfer->n_released++;
}

static void reader_open(struct reader *reader, const char *provider, const char *fault,
                        const struct zps_bulk_config *config) {
  end_open(&reader->end, provider, fault, 4);
  memset(reader->bytes, 0, sizeof reader->bytes);
  reader->mem = end_register(&reader->end, reader->bytes, sizeof reader->bytes);
  assert_int_equal(zps_bulk_create(reader->end.net, config, &reader->bulk), ZPS_OK);
  n_finished = 0;
  struct zps_rng rng = {.state = 1};
  for (int i = 0; i < SOURCES; i++) {
    struct source *source = &reader->sources[i];
    end_open(&source->end, "loop", NULL, 4);
    for (unsigned j = 0; j < BYTES; j++) source->bytes[j] = (uint8_t)zps_rng_u64(&rng);
    source->mem = end_register(&source->end, source->bytes, BYTES);
    end_connect(&reader->end, &source->end);
    source->peer = reader->end.peer;
    assert_int_equal(zps_bulk_peer_add(reader->bulk, source->peer, &source->bulk_peer), ZPS_OK);
  }
}

static void reader_close(struct reader *reader) {
  zps_net_close(reader->end.net);
  zps_bulk_destroy(reader->bulk);
  for (int i = 0; i < SOURCES; i++) zps_net_close(reader->sources[i].end.net);
}

static void start(struct reader *reader, int source, struct transfer *transfer, size_t offset, size_t len) {
  struct source *from = &reader->sources[source];
  *transfer = (struct transfer){.read = {.local = reader->bytes[source] + offset,
                                         .mem = &reader->mem,
                                         .len = len,
                                         .addr = from->mem.addr + offset,
                                         .key = from->mem.key,
                                         .done = on_done,
                                         .release = on_release,
                                         .ctx = transfer}};
  zps_bulk_start(from->bulk_peer, &transfer->read);
}

static void evict(struct reader *reader, int source) {
  zps_net_peer_evict(reader->sources[source].peer);
  zps_bulk_peer_remove(reader->sources[source].bulk_peer);
}

static void turn(struct reader *reader) {
  if (zps_net_progress(reader->end.net) + zps_bulk_progress(reader->bulk) == 0)
    zps_net_wait(reader->end.net, ZPS_NS_PER_MS / 10);
}

static void run_until(struct reader *reader, const unsigned *counter, unsigned value) {
  const uint64_t give_up = zps_clock_ns() + 10 * ZPS_NS_PER_S;
  while (*counter < value) {
    if (zps_clock_ns() > give_up) fail_msg("still %u of %u after 10 s", *counter, value);
    turn(reader);
  }
}

static struct reader reader;

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
  assert_memory_equal(reader.bytes[0], reader.sources[0].bytes, 60 * PIECE);
  assert_memory_equal(reader.bytes[1], reader.sources[1].bytes, 2 * PIECE + 1);
  assert_int_equal(reader.bytes[1][2 * PIECE + 1], 0);
  assert_int_equal(zps_net_counters(reader.end.net)->reads, 60 + 3 + 1);
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
  assert_int_equal(zps_bulk_progress(reader.bulk), 2); /* what the peer left of the whole */
  assert_int_equal(zps_bulk_in_flight(reader.bulk), 5 * PIECE);
  for (int i = 0; i < 2; i++) run_until(&reader, &transfers[i].n_done, 1);
  reader_close(&reader);
}

static void spin_until_done(const struct transfer *transfer) {
  while (transfer->n_done == 0) { /* as fast as can be: nobody sleeps */
    zps_net_progress(reader.end.net);
    zps_bulk_progress(reader.bulk);
  }
}

/* What is in flight right after a transfer of all bytes was started. */
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
  assert_true(asked_at_once(0) < BYTES); /* nobody knows how fast links are */
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pieces_go_round_the_peers),
      cmocka_unit_test(test_budgets_bound_what_is_in_flight),
      cmocka_unit_test(test_windows_where_processors_are_short),
      cmocka_unit_test(test_a_piece_always_fits_its_budget),
      cmocka_unit_test(test_empty_transfers_are_done_by_progress),
      cmocka_unit_test(test_a_callback_may_start_the_next),
      cmocka_unit_test(test_a_failed_piece_fails_its_transfer_alone),
      cmocka_unit_test(test_what_the_net_refuses_fails),
      cmocka_unit_test(test_eviction_fails_queued_and_flying),
      cmocka_unit_test(test_a_silent_peer_does_not_hold_the_budget),
      cmocka_unit_test(test_closing_ends_everything),
      cmocka_unit_test(test_random_transfers),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests_name("bulk", tests, NULL, NULL);
}

/* Transfers over several rails of the in-process fabric, some of which are lost. */
#include <stdio.h>

#include "common/net/bulk.h"
#include "tests/unit/net/rails_rig.h"

struct transfer {
  struct zps_bulk_read read;
  unsigned n_done, n_released;
  zps_err_t code;
};

static void on_done(struct zps_bulk_read *read, zps_err_t code) {
  struct transfer *const transfer = read->ctx;
  transfer->n_done++;
  transfer->code = code;
}

static void on_release(struct zps_bulk_read *read) {
  ++((struct transfer *)read->ctx)->n_released;
}

static uint8_t source_bytes[BYTES], target_bytes[BYTES];

/* A reader, and the owner of the source. */
struct reader {
  struct end ends[2];
  struct zps_net_mem target, source;
  struct zps_bulk *bulk;
  struct zps_bulk_peer *from;
  struct transfer transfer;
  unsigned n_warnings;
};

static void reader_open_with(struct reader *reader, unsigned rails) {
  const struct zps_bulk_config config = {
      .piece_bytes = PIECE, .budget_bytes = 8 * PIECE, .peer_budget_bytes = 2 * PIECE};
  *reader = (struct reader){.n_warnings = 0};
  railed_pair(reader->ends, rails, rails);
  zps_log_set_sink(log_count, &reader->n_warnings);
  for (unsigned i = 0; i < BYTES; i++) source_bytes[i] = (uint8_t)(i * 31 + i / 256);
  reader->target = end_register(&reader->ends[0], target_bytes, BYTES);
  reader->source = end_register(&reader->ends[1], source_bytes, BYTES);
  assert_int_equal(zps_bulk_create(reader->ends[0].net, &config, &reader->bulk), ZPS_OK);
  assert_int_equal(zps_bulk_peer_add(reader->bulk, reader->ends[0].peer, &reader->from), ZPS_OK);
}

static void reader_open(struct reader *reader) {
  reader_open_with(reader, 2);
}

static void reader_close(struct reader *reader) {
  zps_log_set_sink(NULL, NULL);
  pair_close(reader->ends);
  zps_bulk_destroy(reader->bulk);
}

static void transfer_start(struct reader *reader) {
  memset(target_bytes, 0, BYTES);
  reader->transfer = (struct transfer){.read = {.local = target_bytes,
                                                .mem = &reader->target,
                                                .len = BYTES,
                                                .addr = reader->source.addr,
                                                .key = reader->source.key,
                                                .more = reader->source.more,
                                                .done = on_done,
                                                .release = on_release,
                                                .ctx = &reader->transfer}};
  zps_bulk_start(reader->from, &reader->transfer.read);
}

/* `meanwhile` is called with reads in flight; NULL: nothing is. */
static void reader_turn(struct reader *reader, void (*meanwhile)(struct reader *reader)) {
  const unsigned n_issued = zps_bulk_progress(reader->bulk);
  if (meanwhile) meanwhile(reader);
  zps_net_progress(reader->ends[1].net);
  if (n_issued + zps_net_progress(reader->ends[0].net) == 0) zps_net_wait(reader->ends[0].net, ZPS_NS_PER_MS / 10);
}

/* Reads all of the source. `halfway` is called when half has come. */
static void reader_run(struct reader *reader, void (*halfway)(struct reader *reader)) {
  const uint64_t before = zps_bulk_peer_landed(reader->from);
  struct patience patience = {0};
  transfer_start(reader);
  while (reader->transfer.n_done == 0) {
    const uint64_t landed = zps_bulk_peer_landed(reader->from) - before;
    if (patience_is_over_at(&patience, (unsigned)landed)) fail_msg("the transfer stands still");
    const bool is_half = halfway && landed > BYTES / 2;
    reader_turn(reader, is_half ? halfway : NULL);
    if (is_half) halfway = NULL;
  }
  assert_null(halfway);
  assert_int_equal(reader->transfer.code, ZPS_OK);
  assert_memory_equal(target_bytes, source_bytes, BYTES);
}

static uint64_t read_by(unsigned rail) {
  return zps_net_counters(opened[rail])->read_bytes;
}

static void transfers_are_striped(void **state) {
  (void)state;
  struct reader reader;
  reader_open(&reader);
  reader_run(&reader, NULL);
  assert_int_equal(read_by(0) + read_by(1), BYTES);
  assert_true(read_by(0) < read_by(1) + 4 * PIECE && read_by(1) < read_by(0) + 4 * PIECE);
  assert_int_equal(reader.n_warnings, 0);
  reader_close(&reader);
}

/* The second or third of three cards refuses the memory of the reader, or that of the owner. */
static void refused_memory_is_read_over_fewer_rails(void **state) {
  (void)state;
  const unsigned refusing[] = {1, 2, 3 + 1, 3 + 2};
  for (unsigned i = 0; i < 4; i++) {
    struct reader reader;
    struct read_record record;
    const unsigned n_left = refusing[i] % 3;
    uint64_t sum = 0;
    refuse_memory = 1u << refusing[i];
    reader_open_with(&reader, 3);
    assert_int_equal(reader.n_warnings, 1);
    reader_run(&reader, NULL);
    for (unsigned k = 0; k < n_left; k++) {
      assert_true(read_by(k) >= BYTES / n_left - 4 * PIECE);
      sum += read_by(k);
    }
    assert_int_equal(sum, BYTES);
    record_init(&record, &reader.target, &reader.source, PIECE);
    record.read.more = reader.source.more;
    record.read.rail = (uint8_t)n_left;
    assert_int_equal(zps_net_read(reader.ends[0].peer, &record.read), ZPS_ERR_INVALID);
    reader_close(&reader);
  }
}

static void shut_second_rail(struct reader *reader) {
  assert_true(zps_bulk_in_flight(reader->bulk) > 2 * PIECE); /* some of it over the second rail */
  zps_net_shut(opened[3]);
}

static void a_lost_rail_costs_its_reads_a_retry(void **state) {
  (void)state;
  struct reader reader;
  struct patience patience = {0};
  reader_open(&reader);
  reader_run(&reader, shut_second_rail);
  assert_int_equal(read_by(0) + read_by(1), BYTES);
  assert_true(read_by(1) < read_by(0) && read_by(1) > BYTES / 8);
  /* It is lost a second time, and told of when reads have landed over the other rail. */
  while (zps_net_counters(reader.ends[0].net)->rails_lost == 0) {
    if (patience_is_over(&patience)) fail_msg("nobody tells of the lost rail");
    assert_int_equal(reader.n_warnings, 0);
    reader_run(&reader, NULL);
    zps_net_wait(reader.ends[0].net, ZPS_NS_PER_MS);
  }
  assert_int_equal(reader.n_warnings, 1);
  assert_int_equal(zps_net_counters(reader.ends[0].net)->rails_out, 1);
  assert_int_equal(zps_net_peer_rails(reader.ends[0].peer), 1);
  zps_net_peer_renew(reader.ends[0].peer);
  zps_net_progress(reader.ends[0].net);
  assert_int_equal(zps_net_counters(reader.ends[0].net)->rails_out, 0);
  assert_int_equal(zps_net_peer_rails(reader.ends[0].peer), 3);
  reader_close(&reader);
}

static void cut_second_rail(struct reader *reader) {
  assert_true(zps_bulk_in_flight(reader->bulk) > 2 * PIECE);
  rail_cut(last_peer[1]);
}

/* Good reads come over it in between. */
static void a_rail_that_comes_and_goes_is_told_of(void **state) {
  (void)state;
  struct reader reader;
  struct patience patience = {0};
  reader_open(&reader);
  for (int i = 0; i < 3; i++) {
    const uint64_t before = read_by(1);
    assert_int_equal(reader.n_warnings, 0);
    reader_run(&reader, cut_second_rail);
    assert_true(read_by(1) > before);
    if (i < 2) TURN_UNTIL(reader.ends, zps_net_peer_rails(reader.ends[0].peer) == 3);
  }
  while (zps_net_counters(reader.ends[0].net)->rails_out == 0) {
    if (patience_is_over(&patience)) fail_msg("nobody tells of the rail");
    reader_run(&reader, NULL);
    zps_net_wait(reader.ends[0].net, ZPS_NS_PER_MS);
  }
  assert_int_equal(reader.n_warnings, 1);
  assert_int_equal(zps_net_counters(reader.ends[0].net)->rails_lost, 1);
  assert_int_equal(zps_net_peer_rails(reader.ends[0].peer), 1);
  reader_close(&reader);
}

/* Reads go over it, and no loss was counted or told of. */
static void assert_second_rail_reads(struct reader *reader) {
  const uint64_t before = read_by(1);
  reader_run(reader, NULL);
  assert_true(read_by(1) > before + BYTES / 4);
  assert_int_equal(zps_net_counters(reader->ends[0].net)->rails_lost, 0);
  assert_int_equal(reader->n_warnings, 0);
}

static void a_rail_that_is_cut_is_soon_tried_again(void **state) {
  (void)state;
  struct reader reader;
  reader_open(&reader);
  reader_run(&reader, cut_second_rail);
  TURN_UNTIL(reader.ends, zps_net_peer_rails(reader.ends[0].peer) == 3);
  assert_second_rail_reads(&reader);
  reader_close(&reader);
}

static void a_sleep_ends_when_a_rail_is_to_be_tried(void **state) {
  (void)state;
  struct reader reader;
  has_rest = true;
  reader_open(&reader);
  zps_net_wait(reader.ends[0].net, 600 * ZPS_NS_PER_S);
  assert_int_equal(rest_ns, 600 * ZPS_NS_PER_S);
  reader_run(&reader, cut_second_rail);
  if (zps_net_peer_rails(reader.ends[0].peer) == 1) {
    rest_ns = 0; /* It stays so where the rail is due already. */
    zps_net_wait(reader.ends[0].net, 600 * ZPS_NS_PER_S);
    assert_true(rest_ns <= ZPS_NS_PER_S);
  }
  reader_close(&reader);
}

/* As a link does (common/session/resume.c). */
static void renew_and_go_on(struct end *end) {
  const struct reader *const reader = end->ctx;
  zps_net_peer_renew(end->peer);
  if (reader) zps_bulk_peer_go_on(reader->from);
}

static void cut_peer(struct reader *reader) {
  assert_true(zps_bulk_in_flight(reader->bulk) > 2 * PIECE);
  reader->ends[0].ctx = reader;
  reader->ends[0].on_error = reader->ends[1].on_error = renew_and_go_on;
  zps_bulk_peer_hold(reader->from);
  zps_net_peer_cut(reader->ends[0].peer);
}

static void a_cut_of_all_rails_is_no_loss_of_one(void **state) {
  (void)state;
  struct reader reader;
  reader_open(&reader);
  for (int i = 0; i < 3; i++) {
    reader_run(&reader, cut_peer);
    TURN_UNTIL(reader.ends, zps_net_peer_rails(reader.ends[0].peer) == 3);
  }
  assert_int_equal(reader.ends[0].n_errors, 3);
  assert_second_rail_reads(&reader);
  reader_close(&reader);
}

/* The fabric ends connections of peers on one host together. Three losses of the other peer are not told. */
static void a_cut_of_another_peer_is_no_loss(void **state) {
  (void)state;
  struct reader reader;
  struct end other;
  struct zps_net_peer *stalled;
  reader_open(&reader);
  struct zps_net_peer *const second_rail = last_peer[1];
  railed_open(&other, 2);
  const struct zps_net_info *const info = zps_net_info(other.net);
  assert_int_equal(zps_net_peer_add(reader.ends[0].net, info->addr, info->addr_len, NULL, &stalled, NULL), ZPS_OK);
  for (int i = 0; i < 3; i++) {
    stalled->net->ops->cut(stalled, false, false);
    rail_cut(second_rail);
    TURN_UNTIL(reader.ends, zps_net_peer_rails(reader.ends[0].peer) == 1);
    while (zps_net_peer_rails(reader.ends[0].peer) == 1) {
      reader_run(&reader, NULL);
      assert_int_equal(reader.n_warnings, 0);
      zps_net_wait(reader.ends[0].net, ZPS_NS_PER_MS);
    }
  }
  assert_second_rail_reads(&reader);
  zps_net_close(other.net);
  reader_close(&reader);
}

/* ---- Under the fault injector, which holds lost reads for longer than the fabric ---- */

static uint64_t cut_ns;

static void cut_and_note(struct reader *reader) {
  cut_second_rail(reader);
  cut_ns = zps_clock_ns();
}

/* Their buffers are overwritten at the end of the hold, so a read that comes again too early has wrong bytes. */
static void lost_reads_come_again_after_the_hold(void **state) {
  (void)state;
  struct reader reader;
  fault = "hold=30ms";
  reader_open(&reader);
  reader_run(&reader, cut_and_note);
  assert_true(zps_clock_ns() - cut_ns >= 30 * ZPS_NS_PER_MS);
  assert_int_equal(zps_net_counters(reader.ends[0].net)->quarantined, 0);
  assert_int_equal(zps_net_peer_rails(reader.ends[0].peer) & 1, 1);
  reader_run(&reader, NULL);
  reader_close(&reader);
}

static void a_peer_is_evicted_during_the_hold(void **state) {
  (void)state;
  struct reader reader;
  struct patience patience = {0};
  fault = "hold=3600s";
  reader_open(&reader);
  transfer_start(&reader);
  while (zps_bulk_peer_landed(reader.from) < BYTES / 2) {
    if (patience_is_over_at(&patience, (unsigned)zps_bulk_peer_landed(reader.from))) fail_msg("no read lands");
    reader_turn(&reader, NULL);
  }
  reader_turn(&reader, cut_second_rail);
  while (zps_net_counters(reader.ends[0].net)->quarantined == 0) {
    if (patience_is_over(&patience)) fail_msg("no read is lost");
    reader_turn(&reader, NULL);
  }
  zps_bulk_peer_remove(reader.from);
  zps_net_peer_evict(reader.ends[0].peer);
  while (reader.transfer.n_done == 0) {
    if (patience_is_over(&patience)) fail_msg("the transfer does not end");
    reader_turn(&reader, NULL);
  }
  assert_int_equal(reader.transfer.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(reader.transfer.n_released, 0);
  reader_close(&reader);
  assert_int_equal(reader.transfer.n_released, 1);
}

/* Connections of all rails are cut: both ends are told of it, one or none. */
static void transfers_outlive_cuts_and_holds(void **state) {
  (void)state;
  char rules[80];
  unsigned n_errors = 0;
  for (unsigned seed = 1; seed <= 10; seed++) {
    struct reader reader;
    snprintf(rules, sizeof rules, "seed=%u,delay=0.05:100us,hold=200us,cut=0.03", seed);
    fault = rules;
    reader_open(&reader);
    reader.ends[0].ctx = &reader;
    reader.ends[0].on_error = reader.ends[1].on_error = renew_and_go_on;
    for (int i = 0; i < 3; i++) reader_run(&reader, NULL);
    n_errors += reader.ends[0].n_errors;
    reader_close(&reader);
  }
  assert_true(n_errors > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(transfers_are_striped, rails_start),
      cmocka_unit_test_setup(refused_memory_is_read_over_fewer_rails, rails_start),
      cmocka_unit_test_setup(a_lost_rail_costs_its_reads_a_retry, rails_start),
      cmocka_unit_test_setup(a_rail_that_is_cut_is_soon_tried_again, rails_start),
      cmocka_unit_test_setup(a_rail_that_comes_and_goes_is_told_of, rails_start),
      cmocka_unit_test_setup(a_sleep_ends_when_a_rail_is_to_be_tried, rails_start),
      cmocka_unit_test_setup(a_cut_of_all_rails_is_no_loss_of_one, rails_start),
      cmocka_unit_test_setup(a_cut_of_another_peer_is_no_loss, rails_start),
      cmocka_unit_test_setup(lost_reads_come_again_after_the_hold, rails_start),
      cmocka_unit_test_setup(a_peer_is_evicted_during_the_hold, rails_start),
      cmocka_unit_test_setup(transfers_outlive_cuts_and_holds, rails_start),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

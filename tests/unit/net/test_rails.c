/* Several endpoints as one, over the in-process fabric. */
#include "common/base/bundle.h"
#include "common/net/backend.h"
#include "common/net/bulk.h"
#include "tests/support/net_pair.h"

enum { BYTES = 1 << 20, PIECE = 10000 };

/* The endpoints that are opened as rails, for the test's own hands. */
static struct zps_net *opened[8];
static unsigned n_opened, n_cards;

static zps_err_t open_rail(const struct zps_net_config *config, const struct zps_net_handler *handler,
                           struct zps_net **net_p, struct zps_error *error) {
  if (config->rail >= n_cards) return zps_fail(error, ZPS_ERR_FABRIC, "there is no card number %u", config->rail);
  const zps_err_t code = zps_net_loop_open(config, handler, net_p, error);
  if (code == ZPS_OK) opened[n_opened++] = *net_p;
  return code;
}

static void railed_open(struct end *end, unsigned rails) {
  const struct zps_net_config config = {.provider = "loop", .max_msg = 8192, .n_recv = 8, .rails = rails};
  const struct zps_net_handler handler = {.ctx = end, .on_message = end_on_message, .on_peer_error = end_on_peer_error};
  struct zps_error error = {.text = ""};
  memset(end, 0, sizeof *end);
  if (zps_net_rails_open(&config, &handler, open_rail, &end->net, &error) != ZPS_OK) fail_msg("%s", error.text);
  end->net->info.max_msg = config.max_msg;
}

static void railed_pair(struct end ends[2], unsigned rails_0, unsigned rails_1) {
  n_opened = 0;
  n_cards = ZPS_NET_RAILS_MAX;
  railed_open(&ends[0], rails_0);
  railed_open(&ends[1], rails_1);
  for (int i = 0; i < 2; i++) end_connect(&ends[i], &ends[1 - i]);
}

static void addresses_are_bundled(void **state) {
  (void)state;
  uint8_t bundle[32];
  size_t len = 0, part;
  assert_ptr_equal(zps_bundle_get((const uint8_t *)"alone", 5, 0, &part), "alone");
  assert_null(zps_bundle_get((const uint8_t *)"alone", 5, 1, &part));
  assert_true(zps_bundle_add(bundle, &len, sizeof bundle, (const uint8_t *)"first", 5));
  assert_true(zps_bundle_add(bundle, &len, sizeof bundle, (const uint8_t *)"second", 6));
  assert_int_equal(len, 4 + 6 + 7);
  assert_memory_equal(zps_bundle_get(bundle, len, 1, &part), "second", 6);
  assert_int_equal(part, 6);
  assert_memory_equal(zps_bundle_get(bundle, len, 0, &part), "first", 5);
  assert_null(zps_bundle_get(bundle, len, 2, &part));
  assert_false(zps_bundle_add(bundle, &len, len + 3, (const uint8_t *)"third", 5));
  /* Of a bundle that is cut short, or goes on, nothing is taken for an address of its own. */
  assert_ptr_equal(zps_bundle_get(bundle, len - 1, 0, &part), bundle);
  assert_ptr_equal(zps_bundle_get(bundle, len + 1, 0, &part), bundle);
  assert_null(zps_bundle_get(bundle, len - 1, 1, &part));
}

static void reads_come_over_each_rail(void **state) {
  (void)state;
  static uint8_t from[3 * PIECE], to[3 * PIECE];
  struct end ends[2];
  struct read_record records[3];
  railed_pair(ends, 3, 3);
  assert_int_equal(zps_net_info(ends[0].net)->n_rails, 3);
  assert_int_equal(zps_net_peer_rails(ends[0].peer), 7);
  for (unsigned i = 0; i < sizeof from; i++) from[i] = (uint8_t)(i * 7);
  struct zps_net_mem target = end_register(&ends[0], to, sizeof to), source = end_register(&ends[1], from, sizeof from);
  assert_int_equal(source.more.n, 2);
  for (uint8_t k = 0; k < 3; k++) {
    record_init(&records[k], &target, &source, PIECE);
    records[k].read.local = to + k * PIECE;
    records[k].read.addr += k * PIECE;
    records[k].read.more = source.more;
    records[k].read.rail = k;
    assert_int_equal(zps_net_read(ends[0].peer, &records[k].read), ZPS_OK);
  }
  TURN_UNTIL(ends, records[0].n_done && records[1].n_done && records[2].n_done);
  assert_memory_equal(to, from, sizeof to);
  for (int k = 0; k < 3; k++) assert_int_equal(zps_net_counters(opened[k])->read_bytes, PIECE);
  assert_int_equal(zps_net_counters(ends[0].net)->read_bytes, 3 * PIECE);
  records[0].read.rail = 3;
  assert_int_equal(zps_net_read(ends[0].peer, &records[0].read), ZPS_ERR_INVALID);
  assert_int_equal(zps_net_send(ends[0].peer, "hello", 5), ZPS_OK);
  TURN_UNTIL(ends, ends[1].n_messages == 1);
  assert_int_equal(zps_net_counters(opened[0])->msgs_sent, 1);
  zps_net_mem_release(ends[0].net, &target);
  zps_net_mem_release(ends[1].net, &source);
  assert_int_equal(zps_net_counters(ends[0].net)->mem_registered_bytes, 0);
  pair_close(ends);
}

static void peers_with_fewer_rails_use_these(void **state) {
  (void)state;
  struct end ends[2];
  railed_pair(ends, 2, 4);
  assert_int_equal(zps_net_peer_rails(ends[0].peer), 3);
  assert_int_equal(zps_net_peer_rails(ends[1].peer), 3);
  pair_close(ends);
  n_opened = 0;
  railed_open(&ends[0], 2);
  end_open(&ends[1], "loop", NULL, 8);
  for (int i = 0; i < 2; i++) end_connect(&ends[i], &ends[1 - i]);
  assert_int_equal(zps_net_peer_rails(ends[0].peer), 1);
  assert_int_equal(zps_net_peer_rails(ends[1].peer), 1);
  assert_int_equal(zps_net_send(ends[1].peer, "hello", 5), ZPS_OK);
  TURN_UNTIL(ends, ends[0].n_messages == 1);
  pair_close(ends);
  unsigned n_warnings = 0;
  n_opened = 0;
  n_cards = 2;
  zps_log_set_sink(log_count, &n_warnings);
  railed_open(&ends[0], 3);
  zps_log_set_sink(NULL, NULL);
  assert_int_equal(n_warnings, 1);
  assert_int_equal(zps_net_info(ends[0].net)->n_rails, 2);
  zps_net_close(ends[0].net);
}

/* A rail refuses: the others do not keep the memory. */
static void a_failed_registration_leaves_nothing(void **state) {
  (void)state;
  static uint8_t bytes[PIECE];
  struct end ends[2];
  struct zps_net_mem mem;
  struct zps_error error;
  railed_pair(ends, 3, 3);
  zps_net_shut(opened[1]);
  assert_int_equal(zps_net_mem_register(ends[0].net, bytes, sizeof bytes, &mem, &error), ZPS_ERR_CLOSED);
  for (int k = 0; k < 3; k++) assert_int_equal(zps_net_counters(opened[k])->mem_registered_bytes, 0);
  pair_close(ends);
}

/* Memory that its owner leaves registered is gone with the endpoint: of all rails, without a leak. */
static void closing_frees_registrations(void **state) {
  (void)state;
  static uint8_t bytes[PIECE];
  struct end ends[2];
  railed_pair(ends, 2, 2);
  (void)end_register(&ends[0], bytes, sizeof bytes);
  pair_close(ends);
}

struct transfer {
  struct zps_bulk_read read;
  unsigned n_done;
  zps_err_t code;
};

static void on_done(struct zps_bulk_read *read, zps_err_t code) {
  struct transfer *const transfer = read->ctx;
  transfer->n_done++;
  transfer->code = code;
}

static uint8_t source_bytes[BYTES], target_bytes[BYTES];

/* Reads all of the source; `rail_ends`: the second rail of its owner is shut when half has come. */
static void transfer_all(bool rail_ends, unsigned *n_warnings_p) {
  struct end ends[2];
  struct zps_bulk *bulk;
  struct zps_bulk_peer *from;
  const struct zps_bulk_config config = {
      .piece_bytes = PIECE, .budget_bytes = 8 * PIECE, .peer_budget_bytes = 2 * PIECE};
  railed_pair(ends, 2, 2);
  for (unsigned i = 0; i < BYTES; i++) source_bytes[i] = (uint8_t)(i * 31 + i / 256);
  memset(target_bytes, 0, BYTES);
  const struct zps_net_mem target = end_register(&ends[0], target_bytes, BYTES),
                           source = end_register(&ends[1], source_bytes, BYTES);
  assert_int_equal(zps_bulk_create(ends[0].net, &config, &bulk), ZPS_OK);
  assert_int_equal(zps_bulk_peer_add(bulk, ends[0].peer, &from), ZPS_OK);
  struct transfer transfer = {.read = {.local = target_bytes,
                                       .mem = &target,
                                       .len = BYTES,
                                       .addr = source.addr,
                                       .key = source.key,
                                       .more = source.more,
                                       .done = on_done,
                                       .ctx = &transfer}};
  zps_bulk_start(from, &transfer.read);
  struct patience patience = {0};
  bool has_ended = false;
  zps_log_set_sink(log_count, n_warnings_p);
  while (transfer.n_done == 0) {
    if (patience_is_over_at(&patience, (unsigned)zps_bulk_peer_landed(from))) fail_msg("the transfer stands still");
    if (rail_ends && !has_ended && zps_bulk_peer_landed(from) > BYTES / 2) {
      zps_net_shut(opened[3]);
      has_ended = true;
    }
    zps_net_progress(ends[1].net);
    if (zps_bulk_progress(bulk) + zps_net_progress(ends[0].net) == 0) zps_net_wait(ends[0].net, ZPS_NS_PER_MS / 10);
  }
  zps_log_set_sink(NULL, NULL);
  assert_int_equal(transfer.code, ZPS_OK);
  assert_memory_equal(target_bytes, source_bytes, BYTES);
  const uint64_t first = zps_net_counters(opened[0])->read_bytes, second = zps_net_counters(opened[1])->read_bytes;
  assert_int_equal(first + second, BYTES);
  if (rail_ends)
    assert_true(second < first && second > BYTES / 8);
  else
    assert_true(first < second + 4 * PIECE && second < first + 4 * PIECE);
  assert_int_equal(zps_net_peer_rails(ends[0].peer), rail_ends ? 1 : 3);
  /* Told some seconds later: a process that dies loses all of its rails. */
  assert_int_equal(zps_net_counters(ends[0].net)->rails_lost, 0);
  assert_int_equal(*n_warnings_p, 0);
  zps_log_set_sink(log_count, n_warnings_p);
  if (rail_ends) TURN_UNTIL(ends, zps_net_counters(ends[0].net)->rails_lost == 1);
  zps_log_set_sink(NULL, NULL);
  zps_net_peer_renew(ends[0].peer);
  assert_int_equal(zps_net_peer_rails(ends[0].peer), 3);
  pair_close(ends);
  zps_bulk_destroy(bulk);
}

static void transfers_are_striped(void **state) {
  (void)state;
  unsigned n_warnings = 0;
  transfer_all(false, &n_warnings);
  assert_int_equal(n_warnings, 0);
}

static void a_lost_rail_costs_its_reads_a_retry(void **state) {
  (void)state;
  unsigned n_warnings = 0;
  transfer_all(true, &n_warnings);
  assert_int_equal(n_warnings, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(addresses_are_bundled),
      cmocka_unit_test(reads_come_over_each_rail),
      cmocka_unit_test(peers_with_fewer_rails_use_these),
      cmocka_unit_test(a_failed_registration_leaves_nothing),
      cmocka_unit_test(closing_frees_registrations),
      cmocka_unit_test(transfers_are_striped),
      cmocka_unit_test(a_lost_rail_costs_its_reads_a_retry),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Several endpoints as one, over the in-process fabric. */
#include "common/base/bundle.h"
#include "common/net/backend.h"
#include "common/net/bulk.h"
#include "tests/support/net_pair.h"

enum { BYTES = 1 << 20, PIECE = 10000 };

/* The endpoints that are opened as rails, for the test's own hands. */
static struct zps_net *opened[8];
static unsigned n_opened, n_cards, spin_us, refusing_rail = ZPS_NET_RAILS_MAX;
static unsigned refuse_memory; /* a bit for each of `opened` */
static struct zps_net_config asked[8];

/* The in-process fabric, with a cut that both ends see. */
static struct zps_net_ops rail_ops;
static const struct zps_net_ops *loop_ops;
static struct zps_net_peer *last_peer[8]; /* of each endpoint */

static void rail_cut(struct zps_net_peer *peer) {
  loop_ops->cut(peer, true, true);
}

static unsigned index_of(const struct zps_net *net) {
  unsigned i = 0;
  while (opened[i] != net) i++;
  return i;
}

static zps_err_t rail_mem_register(struct zps_net *net, void *base, size_t len, const struct zps_net_device *device,
                                   struct zps_net_mem *mem_p, struct zps_error *error) {
  if (refuse_memory & 1u << index_of(net)) return zps_fail(error, ZPS_ERR_NOMEM, "the card has no room");
  return loop_ops->mem_register(net, base, len, device, mem_p, error);
}

static zps_err_t rail_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx,
                               struct zps_net_peer **peer_p, struct zps_error *error) {
  const zps_err_t code = loop_ops->peer_add(net, addr, len, ctx, peer_p, error);
  const unsigned i = index_of(net);
  if (asked[i].rail == refusing_rail) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a peer");
  if (code == ZPS_OK) last_peer[i] = *peer_p;
  return code;
}

/* A rail with nothing to sleep on. */
static bool has_rest;
static unsigned n_rests;
static uint64_t rest_ns;

static bool rail_rest(struct zps_net *net, struct zps_net_rest *rest) {
  (void)net;
  n_rests++;
  rest_ns = rest->timeout_ns;
  return rest->timeout_ns <= ZPS_NS_PER_MS; /* of a longer sleep the test knows enough */
}

static void rail_rested(struct zps_net *net) {
  (void)net;
}

static zps_err_t open_rail(const struct zps_net_config *config, const struct zps_net_handler *handler,
                           struct zps_net **net_p, struct zps_error *error) {
  if (config->rail >= n_cards) return zps_fail(error, ZPS_ERR_FABRIC, "there is no card number %u", config->rail);
  const zps_err_t code = zps_net_loop_open(config, handler, net_p, error);
  if (code != ZPS_OK) return code;
  loop_ops = loop_ops ? loop_ops : (*net_p)->ops;
  rail_ops = *loop_ops;
  rail_ops.peer_cut = rail_cut;
  rail_ops.peer_add = rail_peer_add;
  rail_ops.mem_register = rail_mem_register;
  rail_ops.rest = has_rest ? rail_rest : NULL;
  rail_ops.rested = rail_rested;
  (*net_p)->ops = &rail_ops;
  asked[n_opened] = *config;
  opened[n_opened++] = *net_p;
  return ZPS_OK;
}

static void railed_open(struct end *end, unsigned rails) {
  const struct zps_net_config config = {
      .provider = "loop", .max_msg = 8192, .n_recv = 8, .rails = rails, .spin_us = spin_us};
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

/* A lost rail shows sooner than a lost peer: on all connections, since sockets do not tell their rail. */
static void dead_connections_show_soon(void **state) {
  (void)state;
  const unsigned given_ms[] = {60000, 1000, 0}, wanted_ms[] = {2000, 1000, 0};
  n_cards = 3;
  for (int i = 0; i < 3; i++) {
    const struct zps_net_config config = {
        .provider = "loop", .max_msg = 512, .rails = 3, .keepalive_ms = given_ms[i], .connect_timeout_ms = 10000};
    const struct zps_net_handler handler = {.on_message = end_on_message, .on_peer_error = end_on_peer_error};
    struct zps_net *net;
    n_opened = 0;
    assert_int_equal(zps_net_rails_open(&config, &handler, open_rail, &net, NULL), ZPS_OK);
    for (int k = 0; k < 3; k++) {
      assert_int_equal(asked[k].keepalive_ms, wanted_ms[i]);
      assert_int_equal(asked[k].connect_timeout_ms, k == 0 ? 10000 : 2000);
    }
    zps_net_close(net);
  }
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

static void a_rail_without_a_peer_is_out(void **state) {
  (void)state;
  struct end ends[2];
  unsigned n_warnings = 0;
  zps_log_set_sink(log_count, &n_warnings);
  refusing_rail = 1;
  railed_pair(ends, 3, 3);
  refusing_rail = ZPS_NET_RAILS_MAX;
  zps_log_set_sink(NULL, NULL);
  assert_int_equal(zps_net_peer_rails(ends[0].peer), 5);
  zps_net_progress(ends[0].net);
  assert_int_equal(zps_net_counters(ends[0].net)->rails_lost, 1);
  assert_int_equal(zps_net_counters(ends[0].net)->rails_out, 1);
  zps_net_peer_renew(ends[0].peer);
  assert_int_equal(zps_net_peer_rails(ends[0].peer), 5);
  zps_net_peer_evict(ends[0].peer);
  zps_net_progress(ends[0].net);
  assert_int_equal(zps_net_counters(ends[0].net)->rails_out, 0);
  pair_close(ends);
}

static uint64_t registered_by(unsigned rail) {
  return zps_net_counters(opened[rail])->mem_registered_bytes;
}

/* Peers read it over fewer rails. The log says why, once for each card. */
static void memory_that_a_card_refuses_has_fewer_keys(void **state) {
  (void)state;
  static uint8_t bytes[PIECE];
  struct end ends[2];
  unsigned n_warnings = 0;
  railed_pair(ends, 3, 3);
  zps_log_set_sink(log_count, &n_warnings);
  const unsigned refusing[] = {2, 1, 1}, n_further[] = {1, 0, 0}, n_told[] = {1, 2, 2};
  for (unsigned i = 0; i < 3; i++) {
    refuse_memory = 1u << refusing[i];
    struct zps_net_mem mem = end_register(&ends[0], bytes, sizeof bytes);
    assert_int_equal(mem.more.n, n_further[i]);
    for (unsigned k = 0; k < 3; k++) assert_int_equal(registered_by(k), k <= n_further[i] ? PIECE : 0);
    assert_int_equal(n_warnings, n_told[i]);
    assert_int_equal(zps_net_counters(ends[0].net)->rails_refused, i + 1);
    zps_net_mem_release(ends[0].net, &mem);
    for (unsigned k = 0; k < 3; k++) assert_int_equal(registered_by(k), 0);
  }
  refuse_memory = 0;
  zps_log_set_sink(NULL, NULL);
  pair_close(ends);
}

static void memory_that_the_first_card_refuses_is_an_error(void **state) {
  (void)state;
  static uint8_t bytes[PIECE];
  struct end ends[2];
  struct zps_net_mem mem;
  struct zps_error error;
  railed_pair(ends, 3, 3);
  refuse_memory = 1;
  assert_int_equal(zps_net_mem_register(ends[0].net, bytes, sizeof bytes, &mem, &error), ZPS_ERR_NOMEM);
  assert_string_equal(error.text, "the card has no room");
  for (unsigned k = 0; k < 3; k++) assert_int_equal(registered_by(k), 0);
  assert_int_equal(zps_net_counters(ends[0].net)->rails_refused, 0);
  refuse_memory = 0;
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

/* A reader, and the owner of the source, with two rails each. */
struct reader {
  struct end ends[2];
  struct zps_net_mem target, source;
  struct zps_bulk *bulk;
  struct zps_bulk_peer *from;
  struct transfer transfer;
  unsigned n_warnings;
};

static void reader_open(struct reader *reader) {
  const struct zps_bulk_config config = {
      .piece_bytes = PIECE, .budget_bytes = 8 * PIECE, .peer_budget_bytes = 2 * PIECE};
  *reader = (struct reader){.n_warnings = 0};
  railed_pair(reader->ends, 2, 2);
  zps_log_set_sink(log_count, &reader->n_warnings);
  for (unsigned i = 0; i < BYTES; i++) source_bytes[i] = (uint8_t)(i * 31 + i / 256);
  reader->target = end_register(&reader->ends[0], target_bytes, BYTES);
  reader->source = end_register(&reader->ends[1], source_bytes, BYTES);
  assert_int_equal(zps_bulk_create(reader->ends[0].net, &config, &reader->bulk), ZPS_OK);
  assert_int_equal(zps_bulk_peer_add(reader->bulk, reader->ends[0].peer, &reader->from), ZPS_OK);
}

static void reader_close(struct reader *reader) {
  zps_log_set_sink(NULL, NULL);
  pair_close(reader->ends);
  zps_bulk_destroy(reader->bulk);
}

/* Reads all of the source. `halfway` is called when half has come. */
static void reader_run(struct reader *reader, void (*halfway)(struct reader *reader)) {
  const uint64_t before = zps_bulk_peer_landed(reader->from);
  struct patience patience = {0};
  memset(target_bytes, 0, BYTES);
  reader->transfer = (struct transfer){.read = {.local = target_bytes,
                                                .mem = &reader->target,
                                                .len = BYTES,
                                                .addr = reader->source.addr,
                                                .key = reader->source.key,
                                                .more = reader->source.more,
                                                .done = on_done,
                                                .ctx = &reader->transfer}};
  zps_bulk_start(reader->from, &reader->transfer.read);
  while (reader->transfer.n_done == 0) {
    const uint64_t landed = zps_bulk_peer_landed(reader->from) - before;
    if (patience_is_over_at(&patience, (unsigned)landed)) fail_msg("the transfer stands still");
    const unsigned n_issued = zps_bulk_progress(reader->bulk);
    const bool is_half = halfway && landed > BYTES / 2;
    if (is_half) halfway(reader);
    if (is_half) halfway = NULL;
    zps_net_progress(reader->ends[1].net);
    if (n_issued + zps_net_progress(reader->ends[0].net) == 0) zps_net_wait(reader->ends[0].net, ZPS_NS_PER_MS / 10);
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

/* Of the reader's own memory, and of that of the owner. */
static void refused_memory_is_read_over_fewer_rails(void **state) {
  (void)state;
  for (unsigned refusing = 1; refusing < 4; refusing += 2) {
    struct reader reader;
    struct read_record record;
    refuse_memory = 1u << refusing;
    reader_open(&reader);
    assert_int_equal(reader.n_warnings, 1);
    reader_run(&reader, NULL);
    assert_int_equal(read_by(0), BYTES);
    record_init(&record, &reader.target, &reader.source, PIECE);
    record.read.more = reader.source.more;
    record.read.rail = 1;
    assert_int_equal(zps_net_read(reader.ends[0].peer, &record.read), ZPS_ERR_INVALID);
    refuse_memory = 0;
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
    zps_net_wait(reader.ends[0].net, 600 * ZPS_NS_PER_S);
    assert_true(rest_ns <= ZPS_NS_PER_S);
  }
  reader_close(&reader);
  has_rest = false;
}

/* The thread spins for fabric.spin_us before it sleeps. */
static void a_thread_with_rails_spins(void **state) {
  (void)state;
  struct end end;
  has_rest = true;
  n_opened = 0;
  n_cards = 2;
  spin_us = 200;
  railed_open(&end, 2);
  n_rests = 0;
  for (int i = 0; i < 50; i++) zps_net_wait(end.net, ZPS_NS_PER_MS);
  assert_true(n_rests > 2 * 50);
  zps_net_close(end.net);
  spin_us = 0;
  railed_open(&end, 2);
  n_rests = 0;
  for (int i = 0; i < 50; i++) zps_net_wait(end.net, ZPS_NS_PER_MS);
  assert_int_equal(n_rests, 2 * 50);
  zps_net_close(end.net);
  has_rest = false;
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

static void eviction_ends_reads_of_each_rail(void **state) {
  (void)state;
  struct end ends[2];
  struct read_record records[2];
  railed_pair(ends, 2, 2);
  struct zps_net_mem target = end_register(&ends[0], target_bytes, BYTES),
                     source = end_register(&ends[1], source_bytes, BYTES);
  for (uint8_t k = 0; k < 2; k++) {
    record_init(&records[k], &target, &source, PIECE);
    records[k].read.local = target_bytes + k * PIECE;
    records[k].read.more = source.more;
    records[k].read.rail = k;
    assert_int_equal(zps_net_read(ends[0].peer, &records[k].read), ZPS_OK);
  }
  zps_net_peer_evict(ends[0].peer);
  TURN_UNTIL(ends, records[0].n_released + records[1].n_released == 2);
  for (int k = 0; k < 2; k++) assert_int_equal(records[k].code, ZPS_ERR_PEER_LOST);
  assert_int_equal(zps_net_counters(ends[0].net)->reads, 0);
  pair_close(ends);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(addresses_are_bundled),
      cmocka_unit_test(reads_come_over_each_rail),
      cmocka_unit_test(dead_connections_show_soon),
      cmocka_unit_test(peers_with_fewer_rails_use_these),
      cmocka_unit_test(a_rail_without_a_peer_is_out),
      cmocka_unit_test(memory_that_a_card_refuses_has_fewer_keys),
      cmocka_unit_test(memory_that_the_first_card_refuses_is_an_error),
      cmocka_unit_test(closing_frees_registrations),
      cmocka_unit_test(transfers_are_striped),
      cmocka_unit_test(refused_memory_is_read_over_fewer_rails),
      cmocka_unit_test(a_lost_rail_costs_its_reads_a_retry),
      cmocka_unit_test(a_rail_that_is_cut_is_soon_tried_again),
      cmocka_unit_test(a_sleep_ends_when_a_rail_is_to_be_tried),
      cmocka_unit_test(a_thread_with_rails_spins),
      cmocka_unit_test(a_cut_of_all_rails_is_no_loss_of_one),
      cmocka_unit_test(eviction_ends_reads_of_each_rail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

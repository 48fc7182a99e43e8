/* Several endpoints as one, over the in-process fabric. */
#include "common/base/bundle.h"
#include "tests/unit/net/rails_rig.h"

static uint8_t source_bytes[BYTES], target_bytes[BYTES];

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

struct notes {
  unsigned n_warnings, n_of_keepalive;
};

static void note(void *ctx, const struct zps_log_line *line) {
  struct notes *const notes = ctx;
  notes->n_warnings += line->level <= ZPS_LOG_WARN;
  notes->n_of_keepalive += strstr(line->text, "fabric.keepalive is 60.0 s: over TCP with several cards") != NULL;
}

/* A lost rail shows sooner than a lost peer: on all connections, since sockets do not tell their rail. The log says so
 * where the option asks for longer, and there are several cards. */
static void dead_connections_show_soon(void **state) {
  (void)state;
  const unsigned given_ms[] = {60000, 1000, 0, 60000}, wanted_ms[] = {2000, 1000, 0, 2000}, cards[] = {3, 3, 3, 1};
  zps_log_set_level(ZPS_LOG_INFO);
  for (int i = 0; i < 4; i++) {
    const struct zps_net_config config = {
        .provider = "loop", .max_msg = 512, .rails = 3, .keepalive_ms = given_ms[i], .connect_timeout_ms = 10000};
    const struct zps_net_handler handler = {.on_message = end_on_message, .on_peer_error = end_on_peer_error};
    struct zps_net *net;
    struct notes notes = {0};
    n_opened = 0;
    n_cards = cards[i];
    zps_log_set_sink(note, &notes);
    assert_int_equal(zps_net_rails_open(&config, &handler, open_rail, &net, NULL), ZPS_OK);
    zps_log_set_sink(NULL, NULL);
    assert_int_equal(notes.n_of_keepalive, i == 0);
    assert_int_equal(notes.n_warnings, cards[i] < 3);
    for (unsigned k = 0; k < cards[i]; k++) {
      assert_int_equal(asked[k].keepalive_ms, wanted_ms[i]);
      assert_int_equal(asked[k].connect_timeout_ms, k == 0 ? 10000 : 2000);
    }
    zps_net_close(net);
  }
  zps_log_set_level(ZPS_LOG_WARN);
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

/* Peers read it over fewer rails, and it is counted while it is held. The log says why. */
static void memory_that_a_card_refuses_has_fewer_keys(void **state) {
  (void)state;
  static uint8_t bytes[PIECE];
  struct end ends[2];
  unsigned n_warnings = 0;
  railed_pair(ends, 3, 3);
  zps_log_set_sink(log_count, &n_warnings);
  const unsigned refusing[] = {2, 1}, n_further[] = {1, 0};
  for (unsigned i = 0; i < 2; i++) {
    refuse_memory = 1u << refusing[i];
    struct zps_net_mem mem = end_register(&ends[0], bytes, sizeof bytes);
    assert_int_equal(mem.more.n, n_further[i]);
    for (unsigned k = 0; k < 3; k++) assert_int_equal(registered_by(k), k <= n_further[i] ? PIECE : 0);
    assert_int_equal(n_warnings, i + 1);
    refuse_memory = 0;
    struct zps_net_mem whole = end_register(&ends[0], bytes, sizeof bytes);
    assert_int_equal(zps_net_counters(ends[0].net)->rails_refused, 1);
    zps_net_mem_release(ends[0].net, &mem);
    assert_int_equal(zps_net_counters(ends[0].net)->rails_refused, 0);
    zps_net_mem_release(ends[0].net, &whole);
    assert_int_equal(zps_net_counters(ends[0].net)->rails_refused, 0);
    for (unsigned k = 0; k < 3; k++) assert_int_equal(registered_by(k), 0);
  }
  zps_log_set_sink(NULL, NULL);
  pair_close(ends);
}

/* Its owner then tries another path, over all cards (worker/device/device.c). */
static void device_memory_that_a_card_refuses_is_an_error(void **state) {
  (void)state;
  static uint8_t bytes[PIECE];
  const struct zps_net_device device = {.dmabuf_fd = -1};
  struct end ends[2];
  struct zps_net_mem mem;
  struct zps_error error;
  railed_pair(ends, 3, 3);
  for (unsigned refusing = 0; refusing < 3; refusing++) {
    refuse_memory = 1u << refusing;
    assert_int_equal(zps_net_mem_register_device(ends[0].net, bytes, sizeof bytes, &device, &mem, &error),
                     ZPS_ERR_NOMEM);
    assert_string_equal(error.text, "the card has no room");
    for (unsigned k = 0; k < 3; k++) assert_int_equal(registered_by(k), 0);
    assert_int_equal(zps_net_counters(ends[0].net)->rails_refused, 0);
  }
  refuse_memory = 0;
  assert_int_equal(zps_net_mem_register_device(ends[0].net, bytes, sizeof bytes, &device, &mem, &error), ZPS_OK);
  assert_int_equal(mem.more.n, 2);
  zps_net_mem_release(ends[0].net, &mem);
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
      cmocka_unit_test_setup(addresses_are_bundled, rails_start),
      cmocka_unit_test_setup(reads_come_over_each_rail, rails_start),
      cmocka_unit_test_setup(dead_connections_show_soon, rails_start),
      cmocka_unit_test_setup(peers_with_fewer_rails_use_these, rails_start),
      cmocka_unit_test_setup(a_rail_without_a_peer_is_out, rails_start),
      cmocka_unit_test_setup(memory_that_a_card_refuses_has_fewer_keys, rails_start),
      cmocka_unit_test_setup(memory_that_the_first_card_refuses_is_an_error, rails_start),
      cmocka_unit_test_setup(device_memory_that_a_card_refuses_is_an_error, rails_start),
      cmocka_unit_test_setup(closing_frees_registrations, rails_start),
      cmocka_unit_test_setup(a_thread_with_rails_spins, rails_start),
      cmocka_unit_test_setup(eviction_ends_reads_of_each_rail, rails_start),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

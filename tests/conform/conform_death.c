/* Eviction, addresses without a listener, and closing with everything outstanding. */
#include <stdlib.h>
#include <string.h>

#include "tests/conform/conform.h"

enum { N_READS = 8, READ_LEN = 1 << 20, SEED = 9 };

struct death_fixture {
  struct conform_pair pair;
  uint8_t *source, *target;
  struct zps_net_mem source_mem, target_mem;
  struct conform_read reads[N_READS];
};

static void send_text(struct conform_pair *pair) {
  const unsigned before = pair->b.n_messages;
  conform_send(pair->a_to_b, "hello", 5, CONFORM_NODES(&pair->a, &pair->b));
  conform_until(pair->b.n_messages == before + 1, &pair->a, &pair->b);
}

static void fixture_open(struct death_fixture *fixture) {
  const struct zps_net_config config = conform_config();
  memset(fixture, 0, sizeof *fixture);
  conform_pair_open(&fixture->pair, &config);
  fixture->source = malloc(N_READS * READ_LEN);
  fixture->target = calloc(N_READS, READ_LEN);
  assert_true(fixture->source && fixture->target);
  conform_fill(fixture->source, SEED, N_READS * READ_LEN);
  fixture->source_mem = conform_register(&fixture->pair.b, fixture->source, N_READS * READ_LEN);
  fixture->target_mem = conform_register(&fixture->pair.a, fixture->target, N_READS * READ_LEN);
  send_text(&fixture->pair); /* so that what follows finds a connection */
}

static void fixture_close(struct death_fixture *fixture) {
  conform_pair_close(&fixture->pair);
  free(fixture->source);
  free(fixture->target);
}

static void reads_start(struct death_fixture *fixture) {
  for (size_t i = 0; i < N_READS; i++)
    conform_read_start(&fixture->reads[i], fixture->pair.a_to_b, fixture->target + i * READ_LEN, &fixture->target_mem,
                       READ_LEN, fixture->source_mem.addr + i * READ_LEN, fixture->source_mem.key);
}

/* b makes no progress until its peer has given up on it: done comes at once, release when the fabric is through. */
void conform_evict_reads(void **state) {
  (void)state;
  struct death_fixture fixture;
  fixture_open(&fixture);
  struct conform_node *a = &fixture.pair.a;
  reads_start(&fixture);
  zps_net_peer_evict(fixture.pair.a_to_b);
  for (size_t i = 0; i < N_READS; i++) assert_int_equal(fixture.reads[i].n_done, 0);
  zps_net_progress(a->net);
  for (size_t i = 0; i < N_READS; i++) {
    conform_until(fixture.reads[i].n_done, a);
    assert_int_equal(fixture.reads[i].code, ZPS_ERR_PEER_LOST);
  }
  for (size_t i = 0; i < N_READS; i++) conform_until(fixture.reads[i].n_released == 1, a, &fixture.pair.b);
  assert_int_equal(zps_net_counters(a->net)->quarantined, 0);
  fixture.pair.a_to_b = conform_peer_add(a, &fixture.pair.b);
  send_text(&fixture.pair);
  for (size_t i = 0; i < N_READS; i++) assert_int_equal(fixture.reads[i].n_done + fixture.reads[i].n_released, 2);
  fixture_close(&fixture);
}

/* An endpoint goes on working for other peers when a peer goes, with anything in that peer's queues. */
void conform_evict_sends(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  struct conform_node c;
  uint8_t data[CONFORM_MAX_MSG] = {0};
  conform_pair_open(&pair, &config);
  conform_node_open(&c, &config);
  send_text(&pair);
  for (int i = 0; i < 200; i++) {
    const zps_err_t code = zps_net_send(pair.a_to_b, data, sizeof data);
    assert_true(code == ZPS_OK || code == ZPS_ERR_AGAIN);
  }
  zps_net_peer_evict(pair.a_to_b);
  pair.a_to_b = conform_peer_add(&pair.a, &c);
  conform_send(pair.a_to_b, data, 10, CONFORM_NODES(&pair.a, &c));
  conform_until(c.n_messages == 1, &pair.a, &c);
  conform_node_close(&c);
  conform_pair_close(&pair);
}

void conform_evict_and_return(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  conform_pair_open(&pair, &config);
  for (int i = 0; i < 20; i++) {
    struct zps_net_peer *twin = conform_peer_add(&pair.a, &pair.b); /* two handles for one address */
    send_text(&pair);
    zps_net_peer_evict(pair.a_to_b);
    pair.a_to_b = twin;
    send_text(&pair);
    zps_net_peer_evict(pair.a_to_b);
    pair.a_to_b = conform_peer_add(&pair.a, &pair.b);
    send_text(&pair);
  }
  assert_int_equal(pair.a.n_errors, 0);
  conform_pair_close(&pair);
}

void conform_dead_address(void **state) {
  (void)state;
  struct zps_net_config config = conform_config();
  struct conform_pair pair;
  uint8_t memory[64];
  config.connect_timeout_ms = 300;
  conform_pair_open(&pair, &config);
  struct zps_net_mem mem = conform_register(&pair.a, memory, sizeof memory);
  conform_node_close(&pair.b);
  conform_send(pair.a_to_b, "anyone?", 7, CONFORM_NODES(&pair.a));
  conform_until(pair.a.n_errors == 1, &pair.a);
  assert_ptr_equal(pair.a.failed, pair.a_to_b);
  assert_int_not_equal(pair.a.error, ZPS_OK);
  conform_expect_lost(pair.a_to_b);
  struct conform_read read;
  conform_read_start(&read, pair.a_to_b, memory, &mem, sizeof memory, 0, 1);
  conform_until(read.n_done, &pair.a);
  assert_int_not_equal(read.code, ZPS_OK);
  if (read.code == ZPS_ERR_PEER_LOST) conform_until(read.n_released, &pair.a);
  zps_net_peer_evict(pair.a_to_b);
  conform_node_close(&pair.a);
}

/* Reads and messages go in both directions, and no endpoint progresses: every read is called back once, and closing
 * takes hardly any time. */
void conform_close_outstanding(void **state) {
  (void)state;
  struct death_fixture fixture;
  uint8_t data[CONFORM_MAX_MSG] = {0};
  fixture_open(&fixture);
  if (conform_target->leaks_when_stuck) conform_allow_warnings(1);
  reads_start(&fixture);
  for (int i = 0; i < 100; i++) {
    const zps_err_t there = zps_net_send(fixture.pair.a_to_b, data, sizeof data);
    const zps_err_t back = zps_net_send(fixture.pair.b_to_a, data, sizeof data);
    assert_true((there == ZPS_OK || there == ZPS_ERR_AGAIN) && (back == ZPS_OK || back == ZPS_ERR_AGAIN));
  }
  const uint64_t start = zps_clock_ns();
  conform_node_close(&fixture.pair.a);
  assert_true(zps_clock_ns() - start < CONFORM_SOON_NS);
  for (size_t i = 0; i < N_READS; i++) {
    assert_int_equal(fixture.reads[i].n_done, 1);
    assert_int_equal(fixture.reads[i].code, ZPS_ERR_CLOSED);
    assert_int_equal(fixture.reads[i].n_released, 0);
  }
  conform_node_close(&fixture.pair.b);
  free(fixture.source);
  free(fixture.target);
}

void conform_close_idle(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  for (unsigned i = 0; i < conform_scale(3); i++) {
    struct conform_pair pair;
    conform_pair_open(&pair, &config);
    send_text(&pair);
    const uint64_t start = zps_clock_ns();
    conform_pair_close(&pair);
    assert_true(zps_clock_ns() - start < CONFORM_SOON_NS);
  }
}

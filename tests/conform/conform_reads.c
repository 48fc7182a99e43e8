/* Reads: sizes, offsets, many at once, wrong keys. */
#include <stdlib.h>

#include "tests/conform/conform.h"

enum { SEED = 5, SOURCE_LEN = (8 << 20) + 4096 };

struct read_fixture {
  struct conform_pair pair;
  uint8_t *source, *target; /* b's and a's */
  struct zps_net_mem source_mem, target_mem;
};

static void fixture_open(struct read_fixture *fixture) {
  const struct zps_net_config config = conform_config();
  conform_pair_open(&fixture->pair, &config);
  fixture->source = malloc(SOURCE_LEN);
  fixture->target = calloc(1, SOURCE_LEN);
  assert_true(fixture->source && fixture->target);
  conform_fill(fixture->source, SEED, SOURCE_LEN);
  fixture->source_mem = conform_register(&fixture->pair.b, fixture->source, SOURCE_LEN);
  fixture->target_mem = conform_register(&fixture->pair.a, fixture->target, SOURCE_LEN);
}

static void fixture_close(struct read_fixture *fixture) {
  zps_net_mem_release(fixture->pair.a.net, &fixture->target_mem);
  zps_net_mem_release(fixture->pair.b.net, &fixture->source_mem);
  conform_pair_close(&fixture->pair);
  free(fixture->source);
  free(fixture->target);
}

static void read_start(struct read_fixture *fixture, struct conform_read *read, size_t to, size_t from, size_t len) {
  conform_read_start(read, fixture->pair.a_to_b, fixture->target + to, &fixture->target_mem, len,
                     fixture->source_mem.addr + from, fixture->source_mem.key);
}

/* As the owner of memory does: it offers the bytes, and tells the reader. */
static void announce(struct read_fixture *fixture, size_t from, size_t len) {
  struct conform_pair *const pair = &fixture->pair;
  const unsigned n_messages = pair->a.n_messages;
  zps_net_offer(pair->b_to_a, fixture->source_mem.addr + from, fixture->source_mem.key, len);
  conform_send(pair->b_to_a, "read!", 5, CONFORM_NODES(&pair->a, &pair->b));
  conform_until(pair->a.n_messages > n_messages, &pair->a, &pair->b);
}

void conform_read_sizes(void **state) {
  (void)state;
  static const size_t sizes[] = {1, 2, 7, 64, 4095, 4096, 4097, 65537, 1 << 20, (1 << 20) + 1, 8 << 20};
  struct read_fixture fixture;
  uint64_t bytes = 0;
  fixture_open(&fixture);
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    struct conform_read read;
    const size_t to = 1 + 13 * i, from = 3 + 101 * i;
    fixture.target[to - 1] = fixture.target[to + sizes[i]] = 0xa5;
    if (i % 2 == 0) announce(&fixture, from, sizes[i]);
    read_start(&fixture, &read, to, from, sizes[i]);
    if (conform_target->offers && i > 0 && sizes[i] < 65536) assert_int_equal(read.read.is_offered, i % 2 == 0);
    conform_until(read.n_done, &fixture.pair.a, &fixture.pair.b);
    assert_int_equal(read.code, ZPS_OK);
    assert_true(conform_check(fixture.target + to, SEED, from, sizes[i]));
    assert_int_equal(fixture.target[to - 1], 0xa5);
    assert_int_equal(fixture.target[to + sizes[i]], 0xa5);
    assert_int_equal(read.n_released, 0);
    bytes += sizes[i];
  }
  assert_int_equal(zps_net_counters(fixture.pair.a.net)->read_bytes, bytes);
  assert_int_equal(zps_net_counters(fixture.pair.a.net)->reads, sizeof sizes / sizeof sizes[0]);
  fixture_close(&fixture);
}

void conform_read_many(void **state) {
  (void)state;
  enum { N_MAX = 500, LEN = 8192, STEP = 16384 };
  static struct conform_read reads[N_MAX];
  const size_t n = conform_scale(N_MAX);
  struct read_fixture fixture;
  fixture_open(&fixture);
  for (size_t i = 0; i < n; i++)
    if (i % 3 != 0) announce(&fixture, (n - 1 - i) * STEP + i, LEN + i);
  for (size_t i = 0; i < n; i++) read_start(&fixture, &reads[i], i * STEP, (n - 1 - i) * STEP + i, LEN + i);
  for (size_t i = 0; i < n; i++) conform_until(reads[i].n_done, &fixture.pair.a, &fixture.pair.b);
  for (size_t i = 0; i < n; i++) {
    assert_int_equal(reads[i].n_done, 1);
    assert_int_equal(reads[i].code, ZPS_OK);
    assert_true(conform_check(fixture.target + i * STEP, SEED, (n - 1 - i) * STEP + i, LEN + i));
  }
  fixture_close(&fixture);
}

void conform_read_wrong_key(void **state) {
  (void)state;
  struct read_fixture fixture;
  struct conform_read read;
  fixture_open(&fixture);
  conform_read_start(&read, fixture.pair.a_to_b, fixture.target, &fixture.target_mem, 4096, fixture.source_mem.addr,
                     fixture.source_mem.key ^ 0x55);
  if (conform_target->trusts_keys) conform_allow_warnings(1);
  if (conform_target->loses_wrong_keys) {
    struct conform_read right;
    read_start(&fixture, &right, 4096, 0, 4096);
    conform_until(right.n_done, &fixture.pair.a, &fixture.pair.b);
    assert_int_equal(right.code, ZPS_OK);
    assert_int_equal(read.n_done, 0);
    zps_net_peer_evict(fixture.pair.a_to_b);
    fixture.pair.a_to_b = NULL;
    conform_until(read.n_done, &fixture.pair.a, &fixture.pair.b);
    assert_int_equal(read.code, ZPS_ERR_PEER_LOST);
    fixture_close(&fixture);
    assert_int_equal(read.n_released, 1);
    return;
  }
  conform_until(read.n_done, &fixture.pair.a, &fixture.pair.b);
  if (!conform_target->trusts_keys) assert_int_not_equal(read.code, ZPS_OK);
  if (read.code == ZPS_ERR_PEER_LOST) conform_until(read.n_released, &fixture.pair.a, &fixture.pair.b);
  fixture_close(&fixture);
}

/* Large reads and messages share a connection; neither is lost. */
void conform_read_and_messages(void **state) {
  (void)state;
  enum { N = 6 };
  struct read_fixture fixture;
  struct conform_read reads[N];
  fixture_open(&fixture);
  for (unsigned i = 0; i < N; i++) {
    uint8_t text[100];
    conform_fill(text, i, sizeof text);
    read_start(&fixture, &reads[i], i << 20, i << 20, 1 << 20);
    conform_send(fixture.pair.a_to_b, text, sizeof text, CONFORM_NODES(&fixture.pair.a, &fixture.pair.b));
    conform_send(fixture.pair.b_to_a, text, sizeof text, CONFORM_NODES(&fixture.pair.a, &fixture.pair.b));
  }
  for (unsigned i = 0; i < N; i++) {
    conform_until(reads[i].n_done, &fixture.pair.a, &fixture.pair.b);
    assert_int_equal(reads[i].code, ZPS_OK);
  }
  conform_until(fixture.pair.a.n_messages == N && fixture.pair.b.n_messages == N, &fixture.pair.a, &fixture.pair.b);
  assert_true(conform_check(fixture.target, SEED, 0, N << 20));
  fixture_close(&fixture);
}

/* Registered buffers: classes, sharing of registrations, limit, cache, memory given back, shutdown. */
#include "tests/support/net_pair.h"
#include "tests/support/oom.h"

#include "common/base/rng.h"
#include "common/net/slab.h"

enum { KIB = 1024, MIB = 1024 * KIB };

static struct end end;

static struct zps_slab *slab_open(uint64_t limit, uint64_t cache) {
  struct zps_slab *slab = NULL;
  end_open(&end, "loop", NULL, 0);
  assert_int_equal(zps_slab_create(end.net, limit, cache, &slab), ZPS_OK);
  return slab;
}

static void slab_close(struct zps_slab *slab) {
  zps_slab_destroy(slab);
  assert_int_equal(zps_net_counters(end.net)->mem_registered_bytes, 0);
  zps_net_close(end.net);
}

static struct zps_slab_stats stats(const struct zps_slab *slab) {
  struct zps_slab_stats s;
  zps_slab_stats(slab, &s);
  assert_int_equal(s.in_use_bytes + s.cached_bytes, zps_net_counters(end.net)->mem_registered_bytes);
  assert_true(s.high_water_bytes >= s.in_use_bytes + s.cached_bytes);
  return s;
}

static void test_buffers_are_as_described(void **state) {
  (void)state;
  struct zps_slab *slab = slab_open(64 * MIB, 64 * MIB);
  const size_t sizes[] = {0, 1, 4096, 4097, 100 * KIB, 512 * KIB, 512 * KIB + 1, MIB, MIB + 1, 5 * MIB};
  const size_t caps[] = {4096, 4096, 4096, 8192, 128 * KIB, 512 * KIB, MIB, MIB, 2 * MIB, 8 * MIB};
  for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    struct zps_buf buf;
    assert_int_equal(zps_slab_get(slab, sizes[i], &buf), ZPS_OK);
    assert_int_equal(buf.cap, caps[i]);
    assert_int_equal((uintptr_t)buf.data % 64, 0);
    const size_t offset = (size_t)((uint8_t *)buf.data - (uint8_t *)buf.mem->base);
    assert_true(offset + buf.cap <= buf.mem->len);
    assert_int_equal(buf.addr, buf.mem->addr + offset);
    assert_int_equal(buf.key, buf.mem->key);
    memset(buf.data, 1, buf.cap);
    zps_slab_put(slab, &buf);
    assert_null(buf.data);
    zps_slab_put(slab, &buf); /* zeroed: allowed */
  }
  assert_int_equal(stats(slab).in_use_bytes, 0);
  slab_close(slab);
}

static void test_small_buffers_share_a_registration(void **state) {
  (void)state;
  struct zps_slab *slab = slab_open(64 * MIB, 0);
  enum { N = 257 };
  struct zps_buf bufs[N];
  for (unsigned i = 0; i < N; i++) {
    assert_int_equal(zps_slab_get(slab, 4096, &bufs[i]), ZPS_OK);
    memset(bufs[i].data, (int)i, 4096);
    if (i == 255) assert_int_equal(zps_net_counters(end.net)->mem_registered_bytes, MIB);
  }
  assert_int_equal(stats(slab).in_use_bytes, N * 4096);
  assert_int_equal(zps_net_counters(end.net)->mem_registered_bytes, 2 * MIB);
  for (unsigned i = 0; i < N; i++) {
    const uint8_t *bytes = bufs[i].data;
    for (unsigned j = 0; j < 4096; j++) assert_int_equal(bytes[j], (uint8_t)i);
    zps_slab_put(slab, &bufs[i]);
  }
  assert_int_equal(zps_net_counters(end.net)->mem_registered_bytes, 2 * MIB); /* small ones stay for the next */
  slab_close(slab);
}

static bool overlap(const struct zps_net_mem *a, const struct zps_net_mem *b) {
  return (uint8_t *)a->base < (uint8_t *)b->base + b->len && (uint8_t *)b->base < (uint8_t *)a->base + a->len;
}

/* Of two jobs that get and put buffers of all sizes by turns, no key reads what the other has, or has had. */
static void test_arenas_have_registrations_of_their_own(void **state) {
  (void)state;
  enum { N = 64, ROUNDS = 4000 };
  struct zps_slab *slab = slab_open(64 * MIB, 8 * MIB);
  struct zps_slab_arena *arenas[2];
  static struct {
    struct zps_buf buf;
    unsigned arena;
  } taken[N];
  struct zps_rng rng = {.state = 7};
  struct zps_account accounts[2] = {{0}, {0}};
  uint64_t keys[2][ROUNDS], bytes[2] = {0, 0};
  unsigned n_keys[2] = {0, 0};
  memset(taken, 0, sizeof taken);
  for (unsigned i = 0; i < 2; i++) assert_int_equal(zps_slab_arena_open(slab, &accounts[i], &arenas[i]), ZPS_OK);
  for (unsigned i = 0; i < ROUNDS; i++) {
    const unsigned at = (unsigned)zps_rng_below(&rng, N), arena = (unsigned)zps_rng_below(&rng, 2);
    zps_slab_age(slab, i * ZPS_NS_PER_S / 2);
    if (taken[at].buf.data) {
      bytes[taken[at].arena] -= taken[at].buf.cap;
      zps_slab_put(slab, &taken[at].buf);
      continue;
    }
    const zps_err_t code = zps_slab_get_for(arenas[arena], (size_t)1 << zps_rng_below(&rng, 22), &taken[at].buf);
    if (code == ZPS_ERR_AGAIN) continue;
    assert_int_equal(code, ZPS_OK);
    taken[at].arena = arena;
    bytes[arena] += taken[at].buf.cap;
    for (unsigned j = 0; j < N; j++)
      if (taken[j].buf.data && taken[j].arena != arena) assert_false(overlap(taken[j].buf.mem, taken[at].buf.mem));
    keys[arena][n_keys[arena]++] = taken[at].buf.key;
    for (unsigned j = 0; j < n_keys[!arena]; j++) assert_true(keys[!arena][j] != taken[at].buf.key);
    for (unsigned j = 0; j < 2; j++) assert_int_equal(accounts[j].bytes, bytes[j]);
  }
  for (unsigned i = 0; i < N; i++) zps_slab_put(slab, &taken[i].buf);
  for (unsigned i = 0; i < 2; i++) zps_slab_arena_close(arenas[i]);
  slab_close(slab);
}

/* A small job takes little, and a large one has few registrations. */
static void test_an_arenas_slabs_grow(void **state) {
  (void)state;
  enum { N = 1000 };
  static struct zps_buf bufs[N];
  struct zps_slab *slab = slab_open(64 * MIB, 0);
  struct zps_slab_arena *arena;
  assert_int_equal(zps_slab_arena_open(slab, NULL, &arena), ZPS_OK);
  unsigned n_regions = 0;
  uint64_t before = 0;
  for (unsigned i = 0; i < N; i++) {
    assert_int_equal(zps_slab_get_for(arena, 4096, &bufs[i]), ZPS_OK);
    const uint64_t now = zps_net_counters(end.net)->mem_registered_bytes;
    n_regions += now > before;
    before = now;
    if (i == 15) assert_int_equal(now, 64 * KIB);
    if (i == 16) assert_int_equal(now, 192 * KIB);
  }
  assert_int_equal(n_regions, 7);
  assert_int_equal(before, 4 * MIB - 64 * KIB);
  for (unsigned i = 0; i < N; i++) zps_slab_put(slab, &bufs[i]);
  assert_int_equal(zps_slab_get_for(arena, 512 * KIB, &bufs[0]), ZPS_OK);
  assert_int_equal(bufs[0].mem->len, 512 * KIB);
  zps_slab_put(slab, &bufs[0]);
  zps_slab_arena_close(arena);
  slab_close(slab);
}

struct fetch {
  struct zps_net_read read;
  bool is_done;
  zps_err_t code;
};

static void on_fetched(struct zps_net_read *read, zps_err_t code) {
  struct fetch *fetch = read->ctx;
  fetch->is_done = true;
  fetch->code = code;
}

/* How a peer's read of what it was once told of ends. */
static zps_err_t read_by(struct end *peer, const struct zps_net_mem *to, uint64_t addr, uint64_t key) {
  struct fetch fetch = {
      .read = {.local = to->base, .mem = to, .len = 4096, .addr = addr, .key = key, .done = on_fetched, .ctx = &fetch}};
  assert_int_equal(zps_net_read(peer->peer, &fetch.read), ZPS_OK);
  while (!fetch.is_done) {
    zps_net_progress(peer->net);
    zps_net_progress(end.net);
  }
  return fetch.code;
}

/* What nobody has any more is gone at once, the rest when it is put; another job's stays. */
static void test_keys_end_with_their_arena(void **state) {
  (void)state;
  static uint8_t bytes[4096];
  struct zps_slab *slab = slab_open(64 * MIB, 64 * MIB);
  struct zps_slab_arena *arena, *others;
  struct zps_buf small, held, large, other;
  struct end peer;
  end_open(&peer, "loop", NULL, 0);
  end_connect(&peer, &end);
  struct zps_net_mem to = end_register(&peer, bytes, sizeof bytes);
  assert_int_equal(zps_slab_arena_open(slab, NULL, &arena), ZPS_OK);
  assert_int_equal(zps_slab_arena_open(slab, NULL, &others), ZPS_OK);
  assert_int_equal(zps_slab_get_for(arena, 4096, &small), ZPS_OK);
  assert_int_equal(zps_slab_get_for(arena, 8192, &held), ZPS_OK);
  assert_int_equal(zps_slab_get_for(arena, 4 * MIB, &large), ZPS_OK);
  assert_int_equal(zps_slab_get_for(others, 4096, &other), ZPS_OK);
  const struct zps_buf told[] = {small, held, large, other};
  zps_slab_put(slab, &small);
  zps_slab_put(slab, &large);
  for (unsigned i = 0; i < 4; i++) assert_int_equal(read_by(&peer, &to, told[i].addr, told[i].key), ZPS_OK);
  zps_slab_arena_close(arena);
  for (uint64_t now_ns = 1; zps_slab_age(slab, now_ns) <= now_ns;) continue;
  assert_int_equal(read_by(&peer, &to, told[0].addr, told[0].key), ZPS_ERR_FABRIC);
  assert_int_equal(read_by(&peer, &to, told[1].addr, told[1].key), ZPS_OK);
  assert_int_equal(read_by(&peer, &to, told[2].addr, told[2].key), ZPS_ERR_FABRIC);
  zps_slab_put(slab, &held);
  for (uint64_t now_ns = 2; zps_slab_age(slab, now_ns) <= now_ns;) continue;
  assert_int_equal(read_by(&peer, &to, told[1].addr, told[1].key), ZPS_ERR_FABRIC);
  assert_int_equal(read_by(&peer, &to, told[3].addr, told[3].key), ZPS_OK);
  assert_int_equal(stats(slab).cached_bytes, 64 * KIB - 4096);
  zps_slab_put(slab, &other);
  zps_slab_arena_close(others);
  zps_net_close(peer.net);
  slab_close(slab);
}

static void test_the_limit_pushes_back(void **state) {
  (void)state;
  struct zps_slab *slab = slab_open(4 * MIB, 4 * MIB);
  struct zps_buf small, large, more;
  assert_int_equal(zps_slab_get(slab, 1, &small), ZPS_OK);
  assert_int_equal(zps_slab_get(slab, 2 * MIB, &large), ZPS_OK);
  assert_int_equal(zps_slab_get(slab, 2 * MIB, &more), ZPS_ERR_AGAIN);
  zps_slab_put(slab, &large);
  assert_int_equal(zps_slab_get(slab, 2 * MIB, &more), ZPS_OK);
  zps_slab_put(slab, &more);
  zps_slab_put(slab, &small);
  /* Idle buffers of other classes make room. */
  assert_int_equal(zps_slab_get(slab, 4 * MIB, &large), ZPS_OK);
  assert_int_equal(zps_net_counters(end.net)->mem_registered_bytes, 4 * MIB);
  assert_int_equal(zps_slab_get(slab, 1, &small), ZPS_ERR_AGAIN);
  zps_slab_put(slab, &large);
  assert_int_equal(zps_slab_get(slab, 1, &small), ZPS_OK);
  zps_slab_put(slab, &small);
  assert_int_equal(stats(slab).high_water_bytes, 4 * MIB);
  slab_close(slab);
}

/* Half of a limit that is small, in buffers of many classes: any class finds memory in the other half. */
static void test_classes_do_not_keep_each_other_out(void **state) {
  (void)state;
  enum { CLASSES = 6 };
  struct zps_slab *slab = slab_open(4 * MIB, 0);
  struct zps_buf bufs[CLASSES], more;
  for (unsigned i = 0; i < CLASSES - 1; i++) assert_int_equal(zps_slab_get(slab, (4 * KIB) << i, &bufs[i]), ZPS_OK);
  assert_int_equal(zps_slab_get(slab, MIB, &bufs[CLASSES - 1]), ZPS_OK);
  for (unsigned i = 0; i < 9; i++) {
    assert_int_equal(zps_slab_get(slab, (4 * KIB) << i, &more), ZPS_OK);
    zps_slab_put(slab, &more);
  }
  for (unsigned i = 0; i < CLASSES; i++) zps_slab_put(slab, &bufs[i]);
  slab_close(slab);
}

static void test_what_can_never_fit_is_refused(void **state) {
  (void)state;
  struct zps_slab *slab = slab_open(4 * MIB, 4 * MIB);
  unsigned logged = 0;
  struct zps_buf buf;
  zps_log_set_sink(log_count, &logged);
  assert_int_equal(zps_slab_get(slab, 4 * MIB + 1, &buf), ZPS_ERR_NOMEM);
  zps_log_set_sink(NULL, NULL);
  assert_int_equal(logged, 1);
  assert_int_equal(zps_slab_get(slab, SIZE_MAX, &buf), ZPS_ERR_NOMEM);
  slab_close(slab);
}

static void test_the_cache_is_bounded(void **state) {
  (void)state;
  struct zps_slab *slab = slab_open(64 * MIB, 3 * MIB);
  struct zps_buf bufs[4];
  for (unsigned i = 0; i < 4; i++) assert_int_equal(zps_slab_get(slab, MIB, &bufs[i]), ZPS_OK);
  void *kept = bufs[2].data;
  for (unsigned i = 0; i < 4; i++) zps_slab_put(slab, &bufs[i]);
  assert_int_equal(stats(slab).cached_bytes, 3 * MIB);
  assert_int_equal(zps_slab_get(slab, MIB, &bufs[0]), ZPS_OK);
  assert_ptr_equal(bufs[0].data, kept);
  zps_slab_put(slab, &bufs[0]);
  slab_close(slab);
}

static void test_what_nobody_uses_is_given_back(void **state) {
  (void)state;
  struct zps_slab *slab = slab_open(64 * MIB, 64 * MIB);
  const uint64_t second = ZPS_NS_PER_S, idle = ZPS_SLAB_IDLE_NS;
  struct zps_buf large, larger, small, other;
  assert_int_equal(zps_slab_age(slab, second), ZPS_NEVER);
  assert_int_equal(zps_slab_get(slab, MIB, &large), ZPS_OK);
  assert_int_equal(zps_slab_get(slab, 4 * MIB, &larger), ZPS_OK);
  assert_int_equal(zps_slab_get(slab, 4096, &small), ZPS_OK);
  assert_int_equal(zps_slab_get(slab, 4096, &other), ZPS_OK);
  assert_int_equal(zps_slab_age(slab, 100 * idle), ZPS_NEVER); /* in use, however long */
  const uint64_t start = 100 * idle + second;
  zps_slab_age(slab, start);
  zps_slab_put(slab, &large);
  zps_slab_put(slab, &small); /* the other one is in the same registration */
  assert_int_equal(zps_slab_age(slab, start + second), start + idle);
  zps_slab_put(slab, &larger);
  assert_int_equal(zps_slab_age(slab, start + idle - 1), start + idle);
  assert_int_equal(stats(slab).cached_bytes, 6 * MIB - 4096);
  const uint64_t next = zps_slab_age(slab, start + idle);
  assert_true(next > start + idle && next < start + idle + second);
  assert_int_equal(stats(slab).cached_bytes, 5 * MIB - 4096);
  /* The buffer was used meanwhile: its time begins again. */
  assert_int_equal(zps_slab_get(slab, 4 * MIB, &larger), ZPS_OK);
  memset(larger.data, 1, larger.cap);
  assert_int_equal(zps_slab_age(slab, next), ZPS_NEVER);
  zps_slab_put(slab, &larger);
  zps_slab_put(slab, &other);
  assert_int_equal(zps_slab_age(slab, start + idle + second), next + idle);
  /* Two at the same time go one after the other, the pages' work being long. */
  const uint64_t then = zps_slab_age(slab, next + idle);
  assert_true(then > next + idle && then < next + idle + second);
  assert_true(stats(slab).cached_bytes > 0);
  const uint64_t last = zps_slab_age(slab, then);
  assert_int_equal(stats(slab).cached_bytes, 0);
  assert_int_equal(zps_slab_age(slab, last), ZPS_NEVER);
  slab_close(slab);
}

static void test_trimmed_it_goes_sooner(void **state) {
  (void)state;
  struct zps_slab *slab = slab_open(64 * MIB, 64 * MIB);
  const uint64_t second = ZPS_NS_PER_S, start = 100 * second, soon = 2 * second;
  struct zps_buf first, second_one;
  zps_slab_age(slab, start);
  assert_int_equal(zps_slab_get(slab, MIB, &first), ZPS_OK);
  assert_int_equal(zps_slab_get(slab, 2 * MIB, &second_one), ZPS_OK);
  zps_slab_put(slab, &first);
  assert_int_equal(zps_slab_age(slab, start), start + ZPS_SLAB_IDLE_NS);
  /* Buffers that are idle already go sooner, too. */
  zps_slab_trim(slab, soon);
  assert_int_equal(zps_slab_age(slab, start + 1), start + soon);
  zps_slab_put(slab, &second_one);
  assert_int_equal(zps_slab_age(slab, start + soon - 1), start + soon);
  assert_int_equal(stats(slab).cached_bytes, 3 * MIB);
  const uint64_t next = zps_slab_age(slab, start + soon);
  assert_int_equal(stats(slab).cached_bytes, 2 * MIB);
  zps_slab_age(slab, next);
  assert_int_equal(stats(slab).cached_bytes, 0);
  /* No call has trimmed for a while: buffers are kept as before. */
  const uint64_t later = start + ZPS_SLAB_IDLE_NS;
  zps_slab_age(slab, later);
  assert_int_equal(zps_slab_get(slab, MIB, &first), ZPS_OK);
  zps_slab_put(slab, &first);
  assert_int_equal(zps_slab_age(slab, later + soon), later + ZPS_SLAB_IDLE_NS);
  assert_int_equal(stats(slab).cached_bytes, MIB);
  zps_slab_trim(slab, soon); /* with nothing that waits for its time */
  zps_slab_age(slab, later + soon + 1);
  assert_int_equal(stats(slab).cached_bytes, 0);
  assert_int_equal(zps_slab_age(slab, later + 3 * soon), ZPS_NEVER);
  zps_slab_trim(slab, soon);
  assert_int_equal(zps_slab_age(slab, later + 4 * soon), ZPS_NEVER);
  slab_close(slab);
}

static void test_random_use(void **state) {
  (void)state;
  struct zps_slab *slab = slab_open(32 * MIB, 8 * MIB);
  enum { N = 64 };
  struct zps_buf bufs[N] = {0};
  struct zps_rng rng = {.state = 5};
  for (unsigned i = 0; i < 20000; i++) {
    struct zps_buf *buf = &bufs[zps_rng_below(&rng, N)];
    if (buf->data) {
      assert_int_equal(*(uint8_t *)buf->data, (uint8_t)(buf - bufs));
      zps_slab_put(slab, buf);
    } else {
      const zps_err_t code = zps_slab_get(slab, (size_t)1 << zps_rng_below(&rng, 23), buf);
      if (code == ZPS_OK) *(uint8_t *)buf->data = (uint8_t)(buf - bufs);
      if (code != ZPS_OK) assert_int_equal(code, ZPS_ERR_AGAIN);
    }
    assert_true(zps_net_counters(end.net)->mem_registered_bytes <= 32 * MIB);
  }
  for (unsigned i = 0; i < N; i++) zps_slab_put(slab, &bufs[i]);
  assert_int_equal(stats(slab).in_use_bytes, 0);
  slab_close(slab);
}

static void test_buffers_outlive_the_net(void **state) {
  (void)state;
  struct zps_slab *slab = slab_open(64 * MIB, 0);
  struct zps_buf small, large, late;
  assert_int_equal(zps_slab_get(slab, 1, &small), ZPS_OK);
  assert_int_equal(zps_slab_get(slab, 2 * MIB, &large), ZPS_OK);
  zps_net_close(end.net);
  zps_slab_net_closed(slab);
  assert_int_equal(zps_slab_get(slab, 1, &late), ZPS_ERR_CLOSED);
  zps_slab_put(slab, &large);
  zps_slab_put(slab, &small);
  zps_slab_destroy(slab);
}

static void test_what_the_fabric_keeps_is_left_to_it(void **state) {
  (void)state;
  static struct zps_buf held; /* static: a leak that is meant must stay reachable */
  unsigned logged = 0;
  struct zps_slab *slab = slab_open(64 * MIB, 0);
  assert_int_equal(zps_slab_get(slab, 2 * MIB, &held), ZPS_OK);
  zps_log_set_sink(log_count, &logged);
  zps_slab_destroy(slab);
  zps_log_set_sink(NULL, NULL);
  assert_int_equal(logged, 1);
  memset(held.data, 7, held.cap);
  zps_net_close(end.net);
  zps_slab_destroy(NULL);
}

static zps_err_t sweep_create(void *ctx) {
  struct zps_slab **slab_p = ctx;
  struct zps_buf buf;
  zps_err_t code = zps_slab_create(end.net, 64 * MIB, 0, slab_p);
  if (code != ZPS_OK) return code;
  code = zps_slab_get(*slab_p, MIB, &buf);
  if (code == ZPS_OK) {
    zps_slab_put(*slab_p, &buf);
  } else {
    zps_slab_destroy(*slab_p);
  }
  return code;
}

static void sweep_destroy(void *ctx) {
  zps_slab_destroy(*(struct zps_slab **)ctx);
}

static void test_out_of_memory(void **state) {
  (void)state;
  unsigned logged = 0;
  struct zps_slab *slab;
  end_open(&end, "loop", NULL, 0);
  zps_log_set_sink(log_count, &logged);
  oom_sweep(sweep_create, sweep_destroy, &slab, 3);
  zps_log_set_sink(NULL, NULL);
  assert_int_equal(logged, 1); /* memory that the fabric refused to register */
  zps_net_close(end.net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_buffers_are_as_described),
      cmocka_unit_test(test_small_buffers_share_a_registration),
      cmocka_unit_test(test_arenas_have_registrations_of_their_own),
      cmocka_unit_test(test_an_arenas_slabs_grow),
      cmocka_unit_test(test_keys_end_with_their_arena),
      cmocka_unit_test(test_the_limit_pushes_back),
      cmocka_unit_test(test_classes_do_not_keep_each_other_out),
      cmocka_unit_test(test_what_can_never_fit_is_refused),
      cmocka_unit_test(test_the_cache_is_bounded),
      cmocka_unit_test(test_what_nobody_uses_is_given_back),
      cmocka_unit_test(test_trimmed_it_goes_sooner),
      cmocka_unit_test(test_random_use),
      cmocka_unit_test(test_buffers_outlive_the_net),
      cmocka_unit_test(test_what_the_fabric_keeps_is_left_to_it),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests_name("slab", tests, NULL, NULL);
}

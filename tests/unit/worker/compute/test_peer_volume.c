/* The bytes of the lossless rank-to-rank schemes, counted in the simulator byte by byte, against the papers' formulas.
 * In the paper's policy a row takes its values and an index of 4 bytes; a dense row its values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/sim.h"
#include "tests/support/sim_grads.h"
#include "tests/support/threadless.h"
#include "worker/schemes/gather_ranges.h"

enum {
  ROWS = 5040,
  ROW_BYTES = 4,
  ENTRY_BYTES = 8
}; /* divided by every number of ranks up to 10, and 12, 14, 15, 16 */

static struct sim sim_of(const char *name, uint32_t n) {
  struct sim sim = {
      .scheme = zps_peer_scheme_find(name),
      .plan = {.n = n, .rows = ROWS, .width = 1, .chunks = 1},
      .compute = {.dtype = ZPS_DTYPE_F32, .width = 1, .op = ZPS_OP_SUM, .policy = ZPS_CODEC_PAPER},
      .seed = n,
  };
  assert_non_null(sim.scheme);
  return sim;
}

/* One round with gradients of this density; overlap as in sim_grads.h. Returns the gradients. */
static struct sim_grads run(struct sim *sim, double density, int overlap) {
  struct zps_rng rng = {sim->plan.n * 100 + (uint64_t)(overlap + 1)};
  struct sim_grads grads =
      sim_grads_draw(&rng, sim->plan.n, ROWS, 1, ZPS_DTYPE_F32, density, overlap, SIM_DYADIC, false);
  sim_open(sim);
  sim_run(sim, grads.inputs);
  return grads;
}

/* Rows that at least one of the ranks [first, first + n) has. */
static uint64_t rows_of_union(const struct sim_grads *grads, uint32_t first, uint32_t n) {
  struct sim_grads some = *grads;
  uint64_t n_union;
  some.inputs += first;
  some.n = n;
  free(sim_grads_sum(&some, &n_union));
  return n_union;
}

static bool is_beyond(double delta, uint64_t rows) {
  return delta > 0 ? (double)rows > delta * ROWS : rows * ENTRY_BYTES > (uint64_t)ROWS * ROW_BYTES;
}

/* Rows of the stream that ranks [first, first + n) have made, all of them if it is dense: SparCML's switch, of two
 * streams by the rows that they have together. */
static uint64_t stream_rows(const struct sim_grads *grads, double delta, uint32_t first, uint32_t n) {
  const uint64_t rows = rows_of_union(grads, first, n);
  if (n == 1) return is_beyond(delta, rows) ? ROWS : rows;
  const uint64_t lower = stream_rows(grads, delta, first, n / 2),
                 upper = stream_rows(grads, delta, first + n / 2, n / 2);
  return lower == ROWS || upper == ROWS || is_beyond(delta, lower + upper) ? ROWS : rows;
}

/* Stage t: the union over the 2^t ranks of the own half, for any sets; dense from delta on, which may be lower than
 * where bytes break even. */
static void test_recursive_doubling(void **state) {
  (void)state;
  static const double densities[] = {0.01, 0.2, 0.45}, deltas[] = {0, 0.3, 0.05, 0.9};
  for (unsigned d = 0; d < 12; d++) {
    for (uint32_t n = 2; n <= 16; n *= 2) {
      for (int overlap = -1; overlap <= 1; overlap++) {
        struct sim sim = sim_of("recursive-doubling", n);
        sim.compute.delta = deltas[d / 3];
        struct sim_grads grads = run(&sim, densities[d % 3], overlap);
        for (uint32_t me = 0; me < n; me++) {
          uint64_t bytes = 0, n_stages = 0;
          for (uint32_t distance = 1; distance < n; distance *= 2, n_stages++) {
            const uint64_t rows = stream_rows(&grads, deltas[d / 3], me & ~(distance - 1), distance);
            bytes += rows * (rows == ROWS ? ROW_BYTES : ENTRY_BYTES);
          }
          assert_int_equal(sim_out(&sim, me).row_bytes, bytes);
          assert_int_equal(sim_out(&sim, me).n_messages, n_stages);
        }
        sim_grads_free(&grads);
        sim_close(&sim);
      }
    }
  }
}

/* Disjoint: log2(P) alpha + (P - 1) k beta; the same rows everywhere: log2(P) k beta (SparCML, 5.3.1). */
static void test_recursive_doubling_bounds(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 16; n *= 2) {
    for (int overlap = -1; overlap <= 1; overlap += 2) {
      struct sim sim = sim_of("recursive-doubling", n);
      struct sim_grads grads = run(&sim, 0.02 * (overlap < 0 ? n : 1), overlap);
      uint64_t all = 0, log2_n = 0;
      for (uint32_t i = 0; i < n; i++) all += sim_grads_nnz(&grads, i);
      while (1u << log2_n < n) log2_n++;
      uint64_t in = 0;
      for (uint32_t i = 0; i < n; i++) in += sim_in(&sim, i).row_bytes;
      const uint64_t factor = overlap < 0 ? n - 1 : log2_n;
      assert_int_equal(in, factor * all * ENTRY_BYTES);
      sim_grads_free(&grads);
      sim_close(&sim);
    }
  }
}

static uint64_t rows_between(const struct sim_grads *grads, uint32_t i, uint64_t lo, uint64_t hi) {
  double *const dense = sim_grads_dense(grads, i);
  uint64_t n = 0;
  for (uint64_t row = lo; row < hi; row++) n += dense[row] != 0;
  free(dense);
  return n;
}

/* Rows of [lo, hi) that any rank has. */
static uint64_t union_between(const struct sim_grads *grads, uint64_t lo, uint64_t hi) {
  uint64_t n = 0;
  for (uint64_t row = lo; row < hi; row++) {
    bool present = false;
    for (uint32_t i = 0; i < grads->n && !present; i++) present = ((const float *)grads->inputs[i].values)[row] != 0;
    n += present;
  }
  return n;
}

/* In: the other ranks' rows of the rank's own range, and the sums of all other ranges. Between 2 (P - 1) / P k and P k
 * entries (SparCML, 5.3.2). */
static void test_split_allgather(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 16; n++) {
    for (int overlap = -1; overlap <= 1; overlap++) {
      struct sim sim = sim_of("split-allgather", n);
      struct sim_grads grads = run(&sim, 0.02 * (overlap < 0 ? n : 1), overlap);
      uint64_t all = 0, in = 0, n_union;
      for (uint32_t i = 0; i < n; i++) all += sim_grads_nnz(&grads, i);
      free(sim_grads_sum(&grads, &n_union));
      for (uint32_t me = 0; me < n; me++) {
        const uint64_t lo = zps_peer_bound(ROWS, n, me), hi = zps_peer_bound(ROWS, n, me + 1);
        uint64_t split = 0;
        const uint64_t mine = union_between(&grads, lo, hi);
        for (uint32_t i = 0; i < n; i++) split += i == me ? 0 : rows_between(&grads, i, lo, hi);
        assert_int_equal(sim_in(&sim, me).row_bytes, (split + n_union - mine) * ENTRY_BYTES);
        assert_int_equal(sim_in(&sim, me).n_messages, 2 * (n - 1));
        in += sim_in(&sim, me).row_bytes;
      }
      assert_true(in >= 2 * (n - 1) * all / n * ENTRY_BYTES);
      assert_true(in <= n * all * ENTRY_BYTES);
      sim_grads_free(&grads);
      sim_close(&sim);
    }
  }
}

/* Messages of a second half by doubling: log2 P; where P is no power of two, p is the one below, and the odd ones of
 * the first P - p pairs take part through the even ones. */
static uint32_t doubling_messages(uint32_t n, uint32_t me, bool out) {
  const uint32_t core = 1u << (31 - __builtin_clz(n)), pairs = n - core, stages = (uint32_t)__builtin_ctz(core);
  if (me >= 2 * pairs) return stages;
  if (me % 2 != 0) return out ? 1 : 2; /* the result comes in two halves */
  return stages + (out ? 2 : 1);
}

/* (P - 1) + log2 P messages, and the bytes that go straight: the streams are joined, and nothing is sent twice. */
static void test_gather_by_doubling(void **state) {
  (void)state;
  static const char *const names[] = {"split-allgather", "dsar"};
  for (unsigned s = 0; s < 2; s++) {
    for (uint32_t n = 2; n <= 16; n++) {
      struct sim straight = sim_of(names[s], n), sim = sim_of(names[s], n);
      sim.plan.allgather = ZPS_ALLGATHER_DOUBLING;
      struct sim_grads grads = run(&straight, 0.02, 0), same = run(&sim, 0.02, 0);
      for (uint32_t me = 0; me < n; me++) {
        assert_int_equal(sim_out(&sim, me).n_messages, n - 1 + doubling_messages(n, me, true));
        assert_int_equal(sim_in(&sim, me).n_messages, n - 1 + doubling_messages(n, me, false));
        if ((n & (n - 1)) == 0) assert_int_equal(sim_in(&sim, me).row_bytes, sim_in(&straight, me).row_bytes);
        assert_int_equal(sim_result_rows(&sim, me), sim_result_rows(&straight, me));
        assert_memory_equal(sim_result(&sim, me), sim_result(&straight, me), ROWS * ROW_BYTES);
      }
      sim_grads_free(&grads);
      sim_grads_free(&same);
      sim_close(&straight);
      sim_close(&sim);
    }
  }
}

/* All ranks choose alike, by the plan: small results double, large ones and rounded ones go straight. */
static void test_gather_is_chosen(void **state) {
  (void)state;
  struct zps_peer_plan plan = {.n = 8, .rows = 16384, .width = 1, .value_bytes = 4};
  assert_true(zps_peer_gathers_by_doubling(&plan));
  plan.rows++;
  assert_false(zps_peer_gathers_by_doubling(&plan));
  plan.k = 1024;
  assert_true(zps_peer_gathers_by_doubling(&plan)); /* 8 ranks' k entries of 8 bytes */
  plan.k++;
  assert_false(zps_peer_gathers_by_doubling(&plan));
  plan.k = 10;
  plan.n = 3; /* two messages each way */
  assert_false(zps_peer_gathers_by_doubling(&plan));
  plan.allgather = ZPS_ALLGATHER_DOUBLING;
  assert_true(zps_peer_gathers_by_doubling(&plan));
  plan.bits = 4;
  assert_false(zps_peer_gathers_by_doubling(&plan));
}

/* The second half: (P - 1) / P of the dense tensor, or `bits` for each value and 4 bytes for each bucket. */
static void test_dsar(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 16; n++) {
    for (uint32_t bits = 0; bits <= 8; bits = bits ? 2 * bits : 2) {
      if (ROWS % (n * 4) != 0) continue; /* levels fill their words */
      struct sim sim = sim_of("dsar", n);
      sim.plan.bits = bits;
      struct sim_grads grads = run(&sim, 0.05, 0);
      const uint64_t part = ROWS / n, buckets = (part + ZPS_VALUES_BUCKET - 1) / ZPS_VALUES_BUCKET;
      const uint64_t dense = bits ? (part * bits + 31) / 32 * 4 + 4 * buckets : part * ROW_BYTES;
      for (uint32_t me = 0; me < n; me++) {
        uint64_t split = 0;
        for (uint32_t i = 0; i < n; i++) split += i == me ? 0 : rows_between(&grads, i, me * part, (me + 1) * part);
        assert_int_equal(sim_in(&sim, me).row_bytes, split * ENTRY_BYTES + (n - 1) * dense);
        assert_int_equal(sim_out(&sim, me).n_messages, 2 * (n - 1));
      }
      sim_grads_free(&grads);
      sim_close(&sim);
    }
  }
}

/* A bit for each row, and the present rows: of each rank's range, and of the sum, which has all rows where most are
 * present. */
static void test_bitmap_split(void **state) {
  (void)state;
  static const double densities[] = {0.03, 0.9};
  for (unsigned d = 0; d < 2; d++) {
    for (uint32_t n = 2; n <= 16; n++) {
      struct sim sim = sim_of("bitmap-split", n);
      struct sim_grads grads = run(&sim, densities[d], 0);
      for (uint32_t me = 0; me < n; me++) {
        const uint64_t lo = zps_peer_bound(ROWS, n, me), hi = zps_peer_bound(ROWS, n, me + 1);
        const uint64_t bits = zps_codec_index_bytes(ZPS_CODEC_BITMAP, (uint32_t)(hi - lo), 0);
        uint64_t in = 0;
        for (uint32_t i = 0; i < n; i++) {
          if (i == me) continue;
          const uint64_t first = zps_peer_bound(ROWS, n, i), end = zps_peer_bound(ROWS, n, i + 1);
          const uint64_t some = zps_codec_index_bytes(ZPS_CODEC_BITMAP, (uint32_t)(end - first), 0) +
                                union_between(&grads, first, end) * ROW_BYTES;
          in += bits + rows_between(&grads, i, lo, hi) * ROW_BYTES + (d > 0 ? (end - first) * ROW_BYTES : some);
        }
        assert_int_equal(sim_in(&sim, me).row_bytes, in);
        assert_int_equal(sim_in(&sim, me).n_messages, 2 * (n - 1));
      }
      sim_grads_free(&grads);
      sim_close(&sim);
    }
  }
}

static void test_agsparse(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= 16; n++) {
    struct sim sim = sim_of("agsparse", n);
    struct sim_grads grads = run(&sim, 0.05, 0);
    uint64_t all = 0;
    for (uint32_t i = 0; i < n; i++) all += sim_grads_nnz(&grads, i);
    for (uint32_t i = 0; i < n; i++) {
      const uint64_t own = sim_grads_nnz(&grads, i);
      assert_int_equal(sim_out(&sim, i).row_bytes, (n - 1) * own * ENTRY_BYTES);
      assert_int_equal(sim_in(&sim, i).row_bytes, (all - own) * ENTRY_BYTES);
    }
    sim_grads_free(&grads);
    sim_close(&sim);
  }
}

/* Each way, of a rank: P - 1 in a ring, log2 P recursively. */
static uint32_t messages_of(const char *scheme, uint32_t n) {
  const bool straight = strcmp(scheme, "ring") == 0 || strcmp(scheme, "dense-split") == 0;
  return straight || (n & (n - 1)) != 0 ? n - 1 : (uint32_t)__builtin_ctz(n);
}

/* 2 M (P - 1) / P each way; rows that P does not divide: to a row for each message. */
static void test_dense_schemes(void **state) {
  (void)state;
  static const char *const names[] = {"ring", "blueconnect", "rabenseifner", "dense-split"};
  for (unsigned s = 0; s < sizeof names / sizeof names[0]; s++) {
    for (uint32_t n = 1; n <= 16; n++) {
      for (uint32_t chunks = 1; chunks <= 4; chunks += 3) {
        if (s == 2 && (n & (n - 1)) != 0) continue; /* powers of two alone are optimal there */
        struct sim sim = sim_of(names[s], n);
        sim.plan.chunks = chunks;
        struct sim_grads grads = run(&sim, 0.5, 0);
        const double bytes = 2.0 * (n - 1) / n * ROWS * ROW_BYTES, slack = 2.0 * n * chunks * ROW_BYTES;
        for (uint32_t i = 0; i < n; i++) {
          const double out = (double)sim_out(&sim, i).row_bytes, in = (double)sim_in(&sim, i).row_bytes;
          if (chunks == 1 && ROWS % n == 0) assert_true(out == bytes && in == bytes);
          assert_int_equal(sim_out(&sim, i).n_messages, 2 * chunks * messages_of(names[s], n));
          assert_true(out <= bytes + slack && out >= bytes - slack && in <= bytes + slack && in >= bytes - slack);
        }
        sim_grads_free(&grads);
        sim_close(&sim);
      }
    }
  }
}

/* Rabenseifner of another P: the 2^q as ever, and a whole tensor each way between each extra rank and the rank that
 * serves it. */
static void test_rabenseifner_extras(void **state) {
  (void)state;
  for (uint32_t n = 3; n <= 15; n++) {
    if ((n & (n - 1)) == 0) continue;
    struct sim sim = sim_of("rabenseifner", n);
    struct sim_grads grads = run(&sim, 0.5, 0);
    uint32_t core = 1;
    while (core <= n / 2) core *= 2;
    const uint64_t tensor = (uint64_t)ROWS * ROW_BYTES;
    for (uint32_t i = 0; i < n; i++) {
      const uint64_t bytes = i >= core ? tensor : 2 * (core - 1) * tensor / core + (i + core < n ? tensor : 0);
      assert_int_equal(sim_out(&sim, i).row_bytes, bytes);
      assert_int_equal(sim_in(&sim, i).row_bytes, bytes);
      const uint32_t messages = i >= core ? 1 : 2 * messages_of("rabenseifner", core) + (i + core < n);
      assert_int_equal(sim_out(&sim, i).n_messages, messages);
      assert_int_equal(sim_in(&sim, i).n_messages, messages);
    }
    sim_grads_free(&grads);
    sim_close(&sim);
  }
}

/* BlueConnect, equation 6: level i moves 2 (p_i - 1) / p_i of M / (p_0 ... p_(i-1)), between ranks that differ in digit
 * i alone, in p_i - 1 messages each way, or log2 p_i. */
static void test_blueconnect_levels(void **state) {
  (void)state;
  static const uint32_t levels[][3] = {{2, 2, 3}, {3, 2, 2}, {4, 3, 1}, {1, 4, 3}, {6, 2, 1}};
  for (unsigned which = 0; which < sizeof levels / sizeof levels[0]; which++) {
    struct sim sim = sim_of("blueconnect", 12);
    memcpy(sim.plan.levels, levels[which], sizeof levels[which]);
    sim.plan.n_levels = 3;
    struct sim_grads grads = run(&sim, 0.5, 0);
    for (uint32_t me = 0; me < 12; me++) {
      uint64_t expected = 2 * ROWS * ROW_BYTES, all = 0;
      for (uint32_t i = 0, stride = 1; i < 3; stride *= levels[which][i++]) {
        const uint32_t p = levels[which][i];
        uint64_t bytes = 0, messages = 0;
        for (uint32_t to = 0; to < 12; to++) {
          const bool in_group = to != me && to % stride == me % stride && to / (stride * p) == me / (stride * p);
          if (in_group) bytes += sim.counts[me * 12 + to].row_bytes;
          if (in_group) messages += sim.counts[me * 12 + to].n_messages;
        }
        expected /= p;
        assert_int_equal(bytes, (p - 1) * expected);
        assert_int_equal(messages, 2 * messages_of("blueconnect", p));
        all += bytes;
      }
      assert_int_equal(all, sim_out(&sim, me).row_bytes); /* nothing goes across */
    }
    sim_grads_free(&grads);
    sim_close(&sim);
  }
}

/* The far links carry the part that is left after the hosts' own stage. */
static void test_blueconnect_hosts(void **state) {
  (void)state;
  static const uint32_t hosts[] = {7, 8, 7, 8, 7, 8, 7, 8};
  struct sim sim = sim_of("blueconnect", 8);
  sim.plan.hosts = hosts;
  struct sim_grads grads = run(&sim, 0.5, 0);
  for (uint32_t me = 0; me < 8; me++) {
    uint64_t far = 0;
    for (uint32_t to = 0; to < 8; to++) far += hosts[to] != hosts[me] ? sim.counts[me * 8 + to].row_bytes : 0;
    assert_int_equal(far, (uint64_t)ROWS * ROW_BYTES / 4);
  }
  sim_grads_free(&grads);
  sim_close(&sim);
}

/* Racks of hosts, dealt out in any order: the links between racks carry what is left of the tensor after both inner
 * levels, by blueconnect and between masters. */
static void test_blueconnect_racks(void **state) {
  (void)state;
  static const uint32_t racks[] = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};
  static const uint32_t hosts[] = {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5};
  static const uint32_t levels[] = {2, 2, 3};
  const uint64_t tensor = (uint64_t)ROWS * ROW_BYTES;
  for (unsigned nested = 0; nested < 2; nested++) {
    struct sim sim = sim_of(nested ? "hierarchical" : "blueconnect", 12);
    sim.plan.inner = nested ? zps_peer_scheme_find("blueconnect") : NULL;
    memcpy(sim.plan.levels, levels, sizeof levels);
    sim.plan.n_levels = 3;
    sim.plan.hosts = hosts;
    sim.plan.racks = racks;
    sim.compute.policy = nested ? ZPS_CODEC_AUTO : ZPS_CODEC_PAPER;
    struct sim_grads grads = run(&sim, 0.5, 0);
    for (uint32_t me = 0; me < 12; me++) {
      uint64_t on_host = 0, in_rack = 0, far = 0;
      for (uint32_t to = 0; to < 12; to++) {
        const uint64_t bytes = sim.counts[me * 12 + to].row_bytes;
        *(racks[to] != racks[me] ? &far : hosts[to] != hosts[me] ? &in_rack : &on_host) += bytes;
      }
      const bool speaks = !nested || me < 6; /* six masters of two ranks each, two in a rack */
      const uint64_t share = nested ? tensor : tensor / 2;
      assert_int_equal(in_rack, speaks ? 2 * share / 2 : 0);
      assert_int_equal(far, speaks ? 2 * (share / 2) * 2 / 3 : 0);
      if (!nested) assert_int_equal(on_host, 2 * tensor / 2);
    }
    sim_grads_free(&grads);
    sim_close(&sim);
  }
}

/* A level of a power of two as a ring: as many bytes, p - 1 messages each way in place of log2 p. */
static void test_blueconnect_algorithms(void **state) {
  (void)state;
  static const uint32_t levels[] = {8, 2};
  static const uint32_t algorithms[][2] = {
      {ZPS_LEVEL_AUTO, ZPS_LEVEL_AUTO}, {ZPS_LEVEL_RING, ZPS_LEVEL_AUTO}, {ZPS_LEVEL_DOUBLING, ZPS_LEVEL_RING}};
  static const uint32_t n_messages[] = {2 * (3 + 1), 2 * (7 + 1), 2 * (3 + 1)};
  for (unsigned i = 0; i < 3; i++) {
    struct sim sim = sim_of("blueconnect", 16);
    memcpy(sim.plan.levels, levels, sizeof levels);
    sim.plan.n_levels = 2;
    memcpy(sim.plan.algorithms, algorithms[i], sizeof algorithms[i]);
    struct sim_grads grads = run(&sim, 0.5, 0);
    for (uint32_t me = 0; me < 16; me++) {
      assert_int_equal(sim_out(&sim, me).n_messages, n_messages[i]);
      assert_int_equal(sim_out(&sim, me).row_bytes, 2 * 15 * (uint64_t)ROWS * ROW_BYTES / 16);
    }
    sim_grads_free(&grads);
    sim_close(&sim);
  }
}

/* A tensor from each rank to its master and back; a ring of masters. */
static void test_two_level(void **state) {
  (void)state;
  static const uint32_t hosts[] = {1, 1, 1, 2, 2, 3};
  static const uint64_t n_ranks[] = {3, 0, 0, 2, 0, 1};
  struct sim sim = sim_of("two-level", 6);
  sim.plan.hosts = hosts;
  struct sim_grads grads = run(&sim, 0.5, 0);
  const uint64_t tensor = (uint64_t)ROWS * ROW_BYTES;
  for (uint32_t me = 0; me < 6; me++) {
    const uint64_t bytes = n_ranks[me] ? 2 * 2 * tensor / 3 + (n_ranks[me] - 1) * tensor : tensor;
    assert_int_equal(sim_out(&sim, me).row_bytes, bytes);
    assert_int_equal(sim_in(&sim, me).row_bytes, bytes);
  }
  sim_grads_free(&grads);
  sim_close(&sim);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_recursive_doubling),
      cmocka_unit_test(test_recursive_doubling_bounds),
      cmocka_unit_test(test_split_allgather),
      cmocka_unit_test(test_dsar),
      cmocka_unit_test(test_bitmap_split),
      cmocka_unit_test(test_agsparse),
      cmocka_unit_test(test_dense_schemes),
      cmocka_unit_test(test_rabenseifner_extras),
      cmocka_unit_test(test_blueconnect_levels),
      cmocka_unit_test(test_blueconnect_hosts),
      cmocka_unit_test(test_two_level),
      cmocka_unit_test(test_blueconnect_racks),
      cmocka_unit_test(test_blueconnect_algorithms),
      cmocka_unit_test(test_gather_by_doubling),
      cmocka_unit_test(test_gather_is_chosen),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

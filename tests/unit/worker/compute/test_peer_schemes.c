/* Every lossless rank-to-rank scheme in the simulator: for any number of ranks the result is the sum, the same bits
 * on all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/oom.h"
#include "tests/support/sim.h"
#include "tests/support/sim_grads.h"
#include "tests/support/threadless.h"

enum { N_MAX = 16 };

static const char *const names[] = {
    "recursive-doubling", "split-allgather", "dsar",         "agsparse",    "ring",        "rabenseifner",
    "two-level",          "blueconnect",     "hierarchical", "dense-split", "bitmap-split"};
enum { N_NAMES = sizeof names / sizeof names[0] };

struct setting {
  uint32_t n, width;
  uint64_t rows;
  enum zps_dtype dtype;
  enum zps_codec_policy policy;
  enum zps_op op;
  double density;
  int overlap;
  double delta;
  uint32_t chunks;
  const uint32_t *hosts, *levels;
  uint32_t n_levels;
  const char *inner; /* hierarchical */
};

static struct sim sim_of(const char *name, const struct setting *setting, uint64_t seed) {
  static uint32_t ranks[N_MAX]; /* of a job with more ranks than take part */
  for (uint32_t i = 0; i < N_MAX; i++) ranks[i] = 3 * i + 1;
  struct sim sim = {.scheme = zps_peer_scheme_find(name),
                    .plan = {.n = setting->n,
                             .ranks = seed % 2 ? ranks : NULL,
                             .rows = setting->rows,
                             .width = setting->width,
                             .hosts = setting->hosts,
                             .n_levels = setting->n_levels,
                             .inner = setting->inner ? zps_peer_scheme_find(setting->inner) : NULL,
                             .value_bytes = 4,
                             .allgather = seed % 3, /* automatic: tensors are small */
                             .chunks = setting->chunks},
                    .compute = {.dtype = setting->dtype,
                                .width = setting->width,
                                .op = setting->op ? setting->op : ZPS_OP_SUM,
                                .policy = setting->policy,
                                .delta = setting->delta},
                    .seed = seed};
  for (uint32_t i = 0; i < setting->n_levels; i++) sim.plan.levels[i] = setting->levels[i];
  assert_non_null(sim.scheme);
  assert_string_equal(sim.scheme->name, name);
  return sim;
}

/* Rows of the result that are not zero. */
static uint64_t count_rows(const struct sim *sim) {
  uint64_t n = 0;
  for (uint64_t row = 0; row < sim->plan.rows; row++) {
    bool zero = true;
    for (uint32_t i = 0; i < sim->plan.width; i++)
      zero &= sim_load(sim->compute.dtype, sim_result(sim, 0), row * sim->plan.width + i) == 0;
    n += !zero;
  }
  return n;
}

/* Twice, so that state and memory of a round do not reach into the next. */
static void check(const char *name, const struct setting *setting, enum sim_values values, uint64_t seed) {
  struct zps_rng rng = {seed};
  struct sim sim = sim_of(name, setting, seed);
  sim_open(&sim);
  for (unsigned round = 0; round < 2; round++) {
    struct sim_grads grads = sim_grads_draw(&rng, setting->n, setting->rows, setting->width, setting->dtype,
                                            setting->density, setting->overlap, values, seed % 3 == 0);
    sim_run(&sim, grads.inputs);
    uint64_t n_union;
    double *const sum = sim_grads_sum(&grads, &n_union);
    const double factor = setting->op == ZPS_OP_MEAN ? 1.0 / setting->n : 1;
    for (uint64_t i = 0; i < setting->rows * setting->width; i++) {
      const double got = sim_load(setting->dtype, sim_result(&sim, 0), i);
      if ((values == SIM_RANDOM && !zps_plan_scheme_exact_order(sim.scheme->number)) || got == sum[i] * factor)
        continue;
      fail_msg("%s, n = %u, rows %llu x %u: value %llu is %.17g instead of %.17g", name, setting->n,
               (unsigned long long)setting->rows, setting->width, (unsigned long long)i, got, sum[i] * factor);
    }
    const bool dense = sim.scheme->sends_zeros || (sim.plan.inner && sim.plan.inner->sends_zeros);
    /* A range with all of its rows loses those that sum up to zero when it is joined to others. */
    uint64_t least = n_union;
    if (sim.plan.allgather != ZPS_ALLGATHER_DIRECT) least = count_rows(&sim);
    if (!dense && setting->policy == ZPS_CODEC_AUTO)
      assert_true(sim_result_rows(&sim, 0) <= n_union && sim_result_rows(&sim, 0) >= least);
    /* bitmap-split sends zeros only where most rows are there. */
    const bool all_rows = sim.scheme->sends_zeros && strcmp(name, "bitmap-split") != 0;
    if (all_rows) assert_int_equal(sim_result_rows(&sim, 0), setting->rows);
    free(sum);
    sim_grads_free(&grads);
  }
  sim_close(&sim);
}

static void any_n(enum sim_values values) {
  static const double densities[] = {0, 0.01, 0.3, 1};
  static const uint64_t rows[] = {1, 7, 150, 333};
  uint64_t seed = 1;
  for (unsigned s = 0; s < N_NAMES; s++) {
    for (uint32_t n = 1; n <= N_MAX; n++) {
      for (unsigned d = 0; d < 4; d++, seed++) {
        struct zps_rng rng = {seed};
        uint32_t hosts[N_MAX];
        for (uint32_t i = 0; i < n; i++) hosts[i] = (uint32_t)zps_rng_below(&rng, 3) * 1000;
        const struct setting setting = {.n = n,
                                        .width = 1 + (uint32_t)zps_rng_below(&rng, 3),
                                        .rows = rows[zps_rng_below(&rng, 4)],
                                        .dtype = seed % 2 ? ZPS_DTYPE_F32 : ZPS_DTYPE_F64,
                                        .policy = seed % 3 ? ZPS_CODEC_AUTO : ZPS_CODEC_PAPER,
                                        .density = densities[d],
                                        .overlap = (int)zps_rng_below(&rng, 3) - 1,
                                        .chunks = 1 + (uint32_t)zps_rng_below(&rng, 3),
                                        .hosts = seed % 4 ? hosts : NULL};
        check(names[s], &setting, values, seed);
      }
    }
  }
}

static void test_sums_are_exact(void **state) {
  (void)state;
  any_n(SIM_DYADIC);
}

static void test_all_ranks_get_the_same_bits(void **state) {
  (void)state;
  any_n(SIM_RANDOM);
}

/* The bits hang on nothing but the gradients: not on the order in which things happen. */
static void test_same_bits_in_every_run(void **state) {
  (void)state;
  for (unsigned s = 0; s < N_NAMES; s++) {
    const struct setting setting = {
        .n = 7, .width = 2, .rows = 100, .dtype = ZPS_DTYPE_F32, .policy = ZPS_CODEC_AUTO, .density = 0.5, .chunks = 2};
    struct zps_rng rng = {s};
    struct sim_grads grads =
        sim_grads_draw(&rng, setting.n, setting.rows, setting.width, setting.dtype, 0.5, 0, SIM_RANDOM, false);
    float first[200];
    for (uint64_t run = 0; run < 6; run++) {
      struct sim sim = sim_of(names[s], &setting, 10 + run);
      sim_open(&sim);
      sim_run(&sim, grads.inputs);
      if (run == 0) memcpy(first, sim_result(&sim, 0), sizeof first);
      assert_memory_equal(first, sim_result(&sim, 0), sizeof first);
      sim_close(&sim);
    }
    sim_grads_free(&grads);
  }
}

/* Where a stream becomes dense changes how rows are added and how they travel, never a bit of their sums. */
static void test_same_bits_whatever_delta(void **state) {
  (void)state;
  static const double deltas[] = {0, 1e-9, 0.1, 0.4, 1};
  for (unsigned s = 0; s < N_NAMES; s++) {
    for (uint32_t n = 2; n <= 9; n++) {
      struct setting setting = {.n = n, .width = 2, .rows = 150, .dtype = ZPS_DTYPE_F32, .density = 0.3, .chunks = 1};
      struct zps_rng rng = {s * 10 + n};
      struct sim_grads grads = sim_grads_draw(&rng, n, 150, 2, ZPS_DTYPE_F32, 0.15, 0, SIM_RANDOM, false);
      float first[300];
      for (unsigned d = 0; d < 10; d++) {
        setting.policy = d < 5 ? ZPS_CODEC_AUTO : ZPS_CODEC_PAPER;
        setting.delta = deltas[d % 5];
        struct sim sim = sim_of(names[s], &setting, 3 + d);
        sim_open(&sim);
        sim_run(&sim, grads.inputs);
        if (d == 0) memcpy(first, sim_result(&sim, 0), sizeof first);
        assert_memory_equal(first, sim_result(&sim, 0), sizeof first);
        sim_close(&sim);
      }
      sim_grads_free(&grads);
    }
  }
}

/* Every scheme among hosts, of any number of ranks each. */
static void test_hierarchical_of_every_scheme(void **state) {
  (void)state;
  uint64_t seed = 1;
  for (unsigned s = 0; s < N_NAMES; s++) {
    if (zps_peer_scheme_find(names[s])->nests) continue;
    for (uint32_t n = 1; n <= N_MAX; n += 1 + n / 5) {
      for (uint32_t n_hosts = 1; n_hosts <= 5; n_hosts++, seed++) {
        struct zps_rng rng = {seed};
        uint32_t hosts[N_MAX];
        for (uint32_t i = 0; i < n; i++) hosts[i] = (uint32_t)zps_rng_below(&rng, n_hosts);
        const struct setting setting = {.n = n,
                                        .width = 1 + (uint32_t)zps_rng_below(&rng, 3),
                                        .rows = 1 + zps_rng_below(&rng, 300),
                                        .dtype = seed % 2 ? ZPS_DTYPE_F32 : ZPS_DTYPE_F64,
                                        .policy = seed % 3 ? ZPS_CODEC_AUTO : ZPS_CODEC_PAPER,
                                        .density = seed % 5 * 0.1,
                                        .chunks = 1 + (uint32_t)zps_rng_below(&rng, 3),
                                        .hosts = hosts,
                                        .inner = names[s]};
        check("hierarchical", &setting, SIM_DYADIC, seed);
        check("hierarchical", &setting, SIM_RANDOM, seed);
      }
    }
  }
}

/* ((0 + 1) + 2) + (3 + 4), to the bit: ranks of a host, then hosts. In pieces. */
static void test_hierarchical_adds_by_host(void **state) {
  (void)state;
  enum { ROWS = 70000, N = 5 };
  static const uint32_t hosts[N] = {7, 7, 7, 2, 2};
  static const char *const inners[] = {NULL, "split-allgather", "agsparse", "recursive-doubling"};
  struct zps_rng rng = {5};
  struct sim_grads grads = sim_grads_draw(&rng, N, ROWS, 1, ZPS_DTYPE_F32, 0.4, 0, SIM_RANDOM, false);
  for (unsigned i = 0; i < 4; i++) {
    const struct setting setting = {.n = N,
                                    .width = 1,
                                    .rows = ROWS,
                                    .dtype = ZPS_DTYPE_F32,
                                    .policy = ZPS_CODEC_AUTO,
                                    .chunks = 1,
                                    .hosts = hosts,
                                    .inner = inners[i]};
    struct sim sim = sim_of("hierarchical", &setting, i);
    sim_open(&sim);
    sim_run(&sim, grads.inputs);
    for (uint32_t row = 0; row < ROWS; row++) {
      float value[N];
      for (uint32_t r = 0; r < N; r++) value[r] = ((const float *)grads.inputs[r].values)[row];
      const float sum = ((value[0] + value[1]) + value[2]) + (value[3] + value[4]);
      assert_true(((const float *)sim_result(&sim, 0))[row] == sum);
    }
    sim_close(&sim);
  }
  sim_grads_free(&grads);
}

static void test_mean(void **state) {
  (void)state;
  for (unsigned s = 0; s < N_NAMES; s++) {
    const struct setting setting = {.n = 8,
                                    .width = 1,
                                    .rows = 100,
                                    .dtype = ZPS_DTYPE_F32,
                                    .policy = ZPS_CODEC_AUTO,
                                    .op = ZPS_OP_MEAN,
                                    .density = 0.5,
                                    .chunks = 1};
    check(names[s], &setting, SIM_DYADIC, s);
  }
}

/* Of the ranks that hold the row: the rows that a rank does not have are no zeros. */
static void check_extreme(const char *name, enum zps_op op, uint32_t n) {
  enum { ROWS = 200 };
  const struct setting setting = {
      .n = n, .width = 1, .rows = ROWS, .dtype = ZPS_DTYPE_F32, .policy = ZPS_CODEC_PAPER, .op = op};
  struct zps_rng rng = {n};
  struct sim sim = sim_of(name, &setting, n);
  struct sim_grads grads = sim_grads_draw(&rng, n, ROWS, 1, ZPS_DTYPE_F32, 0.1, 0, SIM_RANDOM, false);
  sim_open(&sim);
  sim_run(&sim, grads.inputs);
  for (uint32_t row = 0; row < ROWS; row++) {
    double expected = 0;
    for (uint32_t i = 0; i < n; i++) {
      const double value = sim_load(ZPS_DTYPE_F32, grads.inputs[i].values, row);
      const bool further = op == ZPS_OP_MAX ? value > expected : value < expected;
      if (value != 0 && (expected == 0 || further)) expected = value;
    }
    assert_true(sim_load(ZPS_DTYPE_F32, sim_result(&sim, 0), row) == expected);
  }
  sim_close(&sim);
  sim_grads_free(&grads);
}

static void test_extremes(void **state) {
  (void)state;
  for (unsigned s = 0; s < N_NAMES; s++) {
    if (zps_peer_scheme_find(names[s])->sends_zeros) continue;
    for (uint32_t n = 1; n <= N_MAX; n++) {
      check_extreme(names[s], ZPS_OP_MAX, n);
      check_extreme(names[s], ZPS_OP_MIN, n);
    }
  }
}

static void test_topologies(void **state) {
  (void)state;
  static const uint32_t levels[][3] = {{2, 2, 3}, {3, 4, 1}, {12, 1, 1}, {1, 6, 2}, {4, 3, 1}, {2, 5, 1}, {0, 12, 1}};
  for (unsigned i = 0; i < sizeof levels / sizeof levels[0]; i++) {
    const struct setting setting = {.n = 12,
                                    .width = 1,
                                    .rows = 500,
                                    .dtype = ZPS_DTYPE_F32,
                                    .policy = ZPS_CODEC_AUTO,
                                    .density = 0.5,
                                    .chunks = 2,
                                    .levels = levels[i],
                                    .n_levels = 3};
    check("blueconnect", &setting, SIM_DYADIC, i);
    check("two-level", &setting, SIM_DYADIC, i);
    check("hierarchical", &setting, SIM_DYADIC, i);
  }
}

/* Levels of n bits: unbiased, and never further off than a step of the scale. */
static void test_dsar_of_few_bits(void **state) {
  (void)state;
  enum { ROWS = 4000, ROUNDS = 64 };
  for (uint32_t bits = 2; bits <= 8; bits *= 2) {
    const struct setting setting = {.n = 3, .width = 1, .rows = ROWS, .dtype = ZPS_DTYPE_F32, .policy = ZPS_CODEC_AUTO};
    struct sim sim = sim_of("dsar", &setting, bits);
    struct zps_rng rng = {bits};
    struct sim_grads grads = sim_grads_draw(&rng, 3, ROWS, 1, ZPS_DTYPE_F32, 0.5, 0, SIM_RANDOM, false);
    uint64_t n_union;
    double *const sum = sim_grads_sum(&grads, &n_union), bias = 0;
    sim.plan.bits = bits;
    sim_open(&sim);
    const double step = 1.5 / ((1 << (bits - 1)) - 1); /* no sum of three is greater than 1.5 */
    for (unsigned round = 0; round < ROUNDS; round++) {
      sim_run(&sim, grads.inputs);
      for (uint32_t i = 0; i < ROWS; i++) {
        const double off = sim_load(ZPS_DTYPE_F32, sim_result(&sim, 0), i) - sum[i];
        assert_true(off < step * 1.0001 && off > -step * 1.0001);
        bias += off;
      }
    }
    bias /= (double)ROWS * ROUNDS;
    /* a value's deviation is at most step / 2; five of the mean's */
    assert_true(bias * bias < 25 * step * step / 4 / ((double)ROWS * ROUNDS));
    /* (n - 1) parts of a third of the rows; 4 bytes for each bucket of 1024 */
    assert_true(sim_in(&sim, 0).row_bytes < (uint64_t)ROWS * bits / 8 + ROWS * 2 / 3 * 5 + 64);
    sim_close(&sim);
    free(sum);
    sim_grads_free(&grads);
  }
}

/* A sum of one, too: -0.0 comes out as +0.0, as it does of every other scheme. */
static void test_negative_zero(void **state) {
  (void)state;
  const float values[] = {-0.0f, 1}, zeros[] = {0, 0};
  for (unsigned s = 0; s < N_NAMES; s++) {
    for (uint32_t n = 1; n <= 3; n++) {
      const struct setting setting = {
          .n = n, .width = 2, .rows = 1, .dtype = ZPS_DTYPE_F32, .policy = ZPS_CODEC_AUTO, .chunks = 1};
      struct sim sim = sim_of(names[s], &setting, 0);
      struct zps_own_input inputs[3];
      for (uint32_t i = 0; i < 3; i++)
        inputs[i] = (struct zps_own_input){.n_rows = 1, .width = 2, .dtype = ZPS_DTYPE_F32, .values = zeros};
      inputs[n / 2].values = values;
      sim_open(&sim);
      sim_run(&sim, inputs);
      const float expected[] = {0, 1};
      assert_memory_equal(sim_result(&sim, 0), expected, sizeof expected);
      sim_close(&sim);
    }
  }
}

static void test_names(void **state) {
  (void)state;
  assert_null(zps_peer_scheme_find("balanced"));
  assert_null(zps_peer_scheme_find(""));
}

struct built {
  const struct zps_peer_scheme *scheme;
  struct zps_peer_plan plan;
  struct zps_program program;
};

static void built_destroy(void *ctx) {
  struct built *const built = ctx;
  zps_program_fini(&built->program);
}

static zps_err_t built_create(void *ctx) {
  struct built *const built = ctx;
  built->scheme->build(&built->plan, &built->program);
  const zps_err_t code = built->program.code;
  if (code != ZPS_OK) zps_program_fini(&built->program);
  return code;
}

static void test_oom(void **state) {
  (void)state;
  static const uint32_t hosts[] = {0, 0, 1, 1, 2, 2};
  for (unsigned s = 0; s < N_NAMES; s++) {
    for (uint32_t me = 0; me < 6; me++) {
      struct built built = {
          .scheme = zps_peer_scheme_find(names[s]),
          .plan = {.n = 6, .me = me, .rows = 100, .width = 1, .hosts = hosts, .chunks = 2},
      };
      oom_sweep(built_create, built_destroy, &built, 3);
      if (zps_peer_scheme_find(names[s])->nests) continue;
      built.plan.inner = built.scheme;
      built.scheme = zps_peer_scheme_find("hierarchical");
      oom_sweep(built_create, built_destroy, &built, 3);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sums_are_exact),
      cmocka_unit_test(test_all_ranks_get_the_same_bits),
      cmocka_unit_test(test_same_bits_in_every_run),
      cmocka_unit_test(test_hierarchical_of_every_scheme),
      cmocka_unit_test(test_hierarchical_adds_by_host),
      cmocka_unit_test(test_same_bits_whatever_delta),
      cmocka_unit_test(test_mean),
      cmocka_unit_test(test_extremes),
      cmocka_unit_test(test_topologies),
      cmocka_unit_test(test_dsar_of_few_bits),
      cmocka_unit_test(test_negative_zero),
      cmocka_unit_test(test_oom),
      cmocka_unit_test(test_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Parts of Ok-Topk and Gaussiank that can be left out, in the simulator: with and without each of them the result is
 * what the definition says, and what the part is good for shows. [Ok-Topk figures 2, 4, 6, 7, table 1] */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/sim_grads.h"
#include "tests/support/sim_impl.h"
#include "tests/support/threadless.h"
#include "worker/schemes/oktopk.h"
#include "worker/tools/lossy.h"

enum { ROWS = 4000, K = 200, N_MAX = 16, WORD = 4 };

struct bench {
  struct sim sim;
  struct lossy *lossy;
};

static void bench_open(struct bench *bench, const char *scheme, uint32_t n, unsigned without) {
  bench->sim = (struct sim){
      .scheme = zps_peer_scheme_find(scheme),
      .plan = {.n = n, .rows = ROWS, .width = 1, .k = K, .chunks = 1, .without = without},
      .compute = {.dtype = ZPS_DTYPE_F32, .width = 1, .op = ZPS_OP_SUM, .policy = ZPS_CODEC_PAPER},
      .seed = n,
  };
  const struct lossy_config config = {
      .scheme = scheme, .n = n, .rows = ROWS, .k = K, .width = 1, .period = 32, .without = without, .f32 = true};
  assert_int_equal(lossy_create(&config, &bench->lossy), ZPS_OK);
  sim_open(&bench->sim);
}

static void bench_close(struct bench *bench) {
  sim_close(&bench->sim);
  lossy_destroy(bench->lossy);
}

static void load(void *ctx, uint32_t rank, double *values) {
  double *const dense = sim_grads_dense(ctx, rank);
  memcpy(values, dense, ROWS * sizeof *values);
  free(dense);
}

/* A round, and that its result is the reference's next. */
static void run(struct bench *bench, struct sim_grads *grads) {
  const double *const expected = lossy_next(bench->lossy, load, grads);
  sim_run(&bench->sim, grads->inputs);
  for (uint64_t i = 0; i < ROWS; i++) {
    const double got = sim_load(ZPS_DTYPE_F32, sim_result(&bench->sim, 0), i);
    if (got != expected[i])
      fail_msg("%s without 0x%x, n = %u: value %u is %.9g instead of %.9g", bench->sim.scheme->name,
               bench->sim.plan.without, bench->sim.plan.n, (unsigned)i, got, expected[i]);
  }
}

static struct sim_grads draw(uint32_t n, double density, int overlap, uint64_t seed) {
  struct zps_rng rng = {seed};
  return sim_grads_draw(&rng, n, ROWS, 1, ZPS_DTYPE_F32, density, overlap, SIM_RANDOM, false);
}

/* All gradients have their greatest values at their beginning. */
static int descending(const void *a, const void *b) {
  const double x = fabs((double)*(const float *)a), y = fabs((double)*(const float *)b);
  return (x < y) - (x > y);
}

static void sort(struct sim_grads *grads) {
  for (uint32_t i = 0; i < grads->n; i++)
    qsort((void *)(uintptr_t)grads->inputs[i].values, ROWS, sizeof(float), descending);
}

/* Values of a Laplace distribution to the power of `power`, times `scale`, on all rows. */
static void fill(struct sim_grads *grads, struct zps_rng *rng, int power, double scale) {
  for (uint32_t i = 0; i < grads->n; i++) {
    float *const values = (float *)(uintptr_t)grads->inputs[i].values;
    for (uint32_t row = 0; row < ROWS; row++) {
      const double value = scale * pow(-log(((double)zps_rng_below(rng, 1 << 30) + 1) / (1 << 30)), power);
      values[row] = (float)(zps_rng_below(rng, 2) ? value : -value);
    }
  }
}

static uint32_t stages(uint32_t n) {
  uint32_t stage = 0;
  while (1u << stage < n) stage++;
  return stage;
}

/* ------------------------------------------------------------ every combination */

static void test_every_combination(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= N_MAX; n += n < 5 ? 1 : 3) {
    for (unsigned without = 0; without <= zps_without_of(ZPS_PLAN_OKTOPK); without++) {
      struct bench bench;
      bench_open(&bench, "oktopk", n, without);
      sim_close(&bench.sim);
      bench.sim.plan.chunks = 1 + without % 4;
      bench.sim.plan.boundary_period = 2;
      bench.sim.plan.threshold_period = 32;
      sim_open(&bench.sim);
      for (unsigned round = 0; round < 5; round++) {
        struct sim_grads grads = draw(n, 0.3, (int)(round % 3) - 1, 1000 * n + round);
        if (round == 3) sort(&grads);
        run(&bench, &grads);
        sim_grads_free(&grads);
      }
      bench_close(&bench);
    }
  }
}

/* ------------------------------------------------------------ messages, and their order */

/* RECVs of the last round of payloads of the split (or of an exchange), in the program's order. */
static uint32_t peers_read(const struct sim *sim, uint32_t me, uint32_t tag, uint32_t *peers) {
  const struct zps_program *const program = &sim->ranks[me].program;
  uint32_t n = 0;
  for (uint32_t i = 0; i < program->n_instrs; i++)
    if (program->instrs[i].type == ZPS_INSTR_RECV && program->instrs[i].tag == tag)
      peers[n++] = program->instrs[i].peer;
  return n;
}

/* With rotation no two ranks read of the same one at a time; without, all begin with rank 0. */
static void test_rotation(void **state) {
  (void)state;
  enum { N = 8 };
  static const uint32_t tags[][4] = {
      {ZPS_OKTOPK_TAG_SPLIT, ZPS_OKTOPK_TAG_GREATEST, ZPS_OKTOPK_TAG_COUNTS, ZPS_OKTOPK_TAG_BOUNDS},
      {ZPS_OKTOPK_TAG_AHEAD, ZPS_OKTOPK_TAG_COUNTS, ZPS_OKTOPK_TAG_AHEAD, ZPS_OKTOPK_TAG_AHEAD}};
  for (int rotates = 0; rotates <= 1; rotates++) {
    struct bench bench;
    bench_open(&bench, "oktopk", N, rotates ? 0 : ZPS_WITHOUT_ROTATION);
    struct sim_grads grads = draw(N, 0.5, 0, 7);
    for (unsigned round = 0; round < 2; round++) { /* one that renews all, one that renews nothing */
      run(&bench, &grads);
      for (unsigned t = 0; t < 4; t++) {
        uint32_t peers[N][N];
        for (uint32_t me = 0; me < N; me++)
          assert_int_equal(peers_read(&bench.sim, me, tags[round][t], peers[me]), N - 1);
        for (uint32_t s = 1; s < N; s++) {
          for (uint32_t me = 0; me < N; me++)
            assert_int_equal(peers[me][s - 1], rotates ? (me + s) % N : s - 1 + (s > me));
        }
      }
    }
    bench_close(&bench);
    sim_grads_free(&grads);
  }
}

/* A round that renews nothing: P-1 messages of agreement, as many of each bucket and of counts, ceil(log2 P) of the
 * gather. The paper's 2P + 2 log2 P have no agreement and count by doubling, but balance: P. */
static void test_messages(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= N_MAX; n++) {
    for (uint32_t n_buckets = 1; n_buckets <= 3; n_buckets++) {
      for (int buckets = 0; buckets <= 1; buckets++) {
        struct bench bench;
        bench_open(&bench, "oktopk", n, buckets ? 0 : ZPS_WITHOUT_BUCKETING);
        sim_close(&bench.sim);
        bench.sim.plan.chunks = n_buckets;
        sim_open(&bench.sim);
        struct sim_grads grads = draw(n, 0.5, 0, n);
        for (unsigned round = 0; round < 2; round++) run(&bench, &grads);
        const uint32_t wanted = (n - 1) * (2 + (buckets ? n_buckets : 1)) + stages(n);
        for (uint32_t i = 0; i < n; i++) {
          assert_int_equal(sim_out(&bench.sim, i).n_messages, wanted);
          assert_int_equal(sim_in(&bench.sim, i).n_messages, wanted);
        }
        if (n_buckets == 1) assert_true(wanted <= 3 * n + stages(n));
        bench_close(&bench);
        sim_grads_free(&grads);
      }
    }
  }
}

/* ------------------------------------------------------------ figures 4, 6, 7 */

static uint64_t most_in(const struct sim *sim) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < sim->plan.n; i++)
    if (sim_in(sim, i).row_bytes > most) most = sim_in(sim, i).row_bytes;
  return most;
}

/* All that is great lies in the first even range: without agreed regions its owner takes in 2k(P-1) words, with them
 * each rank takes in little more than 2k(P-1)/P for the split. [Figure 7a] */
static void test_repartition(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= N_MAX; n++) {
    uint64_t most[2];
    for (int repartitions = 0; repartitions <= 1; repartitions++) {
      struct bench bench;
      bench_open(&bench, "oktopk", n, ZPS_WITHOUT_BALANCING | (repartitions ? 0 : ZPS_WITHOUT_REPARTITION));
      struct sim_grads grads = draw(n, 0.5, 0, n);
      sort(&grads); /* ROWS / N_MAX are more than K */
      for (unsigned round = 0; round < 2; round++) run(&bench, &grads);
      most[repartitions] = most_in(&bench.sim) / WORD;
      bench_close(&bench);
      sim_grads_free(&grads);
    }
    assert_true(most[0] >= 2 * (uint64_t)K * (n - 1));
    assert_true(most[1] <= 5 * (uint64_t)K * (n - 1) / n); /* split and gather */
  }
}

/* What a rank sends on the way of its share through the gather, at most: with all shares at one rank 2k for each of
 * log2 P stages; balanced, 2k for the shares of others and as much for the gather. [Figure 7b] */
static void test_balancing(void **state) {
  (void)state;
  for (uint32_t n = 5; n <= N_MAX; n++) {
    uint64_t most[2] = {0};
    for (int balances = 0; balances <= 1; balances++) {
      struct bench bench;
      bench_open(&bench, "oktopk", n, ZPS_WITHOUT_REPARTITION | (balances ? 0 : ZPS_WITHOUT_BALANCING));
      struct sim_grads grads = draw(n, 0.5, 0, n);
      sort(&grads); /* rank 0's region has all */
      for (unsigned round = 0; round < 2; round++) run(&bench, &grads);
      most[balances] = sim_out(&bench.sim, 0).row_bytes / WORD; /* of the split none: no other region has any */
      bench_close(&bench);
      sim_grads_free(&grads);
    }
    assert_true(most[0] >= 2 * (uint64_t)K * stages(n) * 9 / 10);
    assert_true(most[1] <= 4 * (uint64_t)K * 11 / 10);
    assert_true(most[1] < most[0]);
  }
}

/* Gradients that shrink by 3% a round: thresholds that stay select ever fewer, those that follow k on average. */
static void test_steering(void **state) {
  (void)state;
  enum { N = 4, ROUNDS = 31 };
  double mean[2] = {0};
  for (int steers = 0; steers <= 1; steers++) {
    struct bench bench;
    struct zps_rng rng = {4};
    bench_open(&bench, "oktopk", N, steers ? 0 : ZPS_WITHOUT_STEERING);
    for (unsigned round = 0; round < ROUNDS; round++) {
      struct sim_grads grads = draw(N, 0.9, 1, 50 + round);
      fill(&grads, &rng, 1, pow(0.97, round));
      run(&bench, &grads);
      mean[steers] += (double)sim_result_rows(&bench.sim, 0) / K / ROUNDS;
      sim_grads_free(&grads);
    }
    bench_close(&bench);
  }
  if (mean[0] > 0.7 || mean[1] < 0.8 || mean[1] > 1.2)
    fail_msg("results have %.3f k rows without, %.3f k with", mean[0], mean[1]);
}

/* Values whose tail is longer than a normal one's: its threshold selects far fewer than k, a corrected one 3/4 k. */
static void test_correction(void **state) {
  (void)state;
  enum { N = 3 };
  for (int corrects = 0; corrects <= 1; corrects++) {
    struct bench bench;
    bench_open(&bench, "gaussiank", N, corrects ? 0 : ZPS_WITHOUT_CORRECTION);
    struct sim_grads grads = draw(N, 0.9, 1, 3);
    struct zps_rng rng = {4};
    fill(&grads, &rng, 4, 1);
    run(&bench, &grads);
    for (uint32_t i = 0; i < N; i++) {
      const uint64_t rows = sim_out(&bench.sim, i).row_bytes / (2 * WORD) / (N - 1);
      assert_true(corrects ? rows >= K * 3 / 4 && rows <= K * 5 / 4 : rows < K / 2);
    }
    bench_close(&bench);
    sim_grads_free(&grads);
  }
}

/* ------------------------------------------------------------ table 1 */

/* Rows that all ranks have: 4k(P-1)/P words. Rows that no two have, so many that the sums are dense: (2k + n)(P-1)/P.
 * Between, 2k and twice the sum's rows. */
static void test_topkdsa_words(void **state) {
  (void)state;
  static const uint32_t all_n[] = {2, 4, 5, 8, 10, 16}; /* divide ROWS */
  for (unsigned t = 0; t < sizeof all_n / sizeof all_n[0]; t++) {
    const uint32_t n = all_n[t];
    for (unsigned density = 1; density <= 2; density++) { /* of the sums: few, or more than half */
      struct bench bench;
      bench_open(&bench, "topkdsa", n, 0);
      const double share = density == 1 ? 0.7 * K / ROWS : 1;
      struct sim_grads grads = draw(n, share, density == 1 ? 1 : -1, n);
      run(&bench, &grads);
      double words = 0, sent = 0;
      for (uint32_t i = 0; i < n; i++) {
        words += (double)sim_in(&bench.sim, i).row_bytes / WORD / n;
        const uint64_t own = sim_grads_nnz(&grads, i);
        sent += (double)(own < K ? own : K) / n;
      }
      const double unit = (double)(n - 1) / n, sum = (double)sim_result_rows(&bench.sim, 0);
      const double second = fmin(2 * sum, ROWS) * unit; /* unless single ranges differ */
      if (density == 1) assert_true(fabs(words - 4 * sent * unit) < 0.5);
      if (words > 2 * sent * unit * 1.05 + second + 0.5 || words < 2 * sent * unit * 0.95 + 0.9 * second - 0.5)
        fail_msg("n = %u: %.1f words for %.1f rows each, %.1f in the sum", n, words, sent, sum);
      bench_close(&bench);
      sim_grads_free(&grads);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_combination), cmocka_unit_test(test_rotation),      cmocka_unit_test(test_messages),
      cmocka_unit_test(test_repartition),       cmocka_unit_test(test_balancing),     cmocka_unit_test(test_steering),
      cmocka_unit_test(test_correction),        cmocka_unit_test(test_topkdsa_words),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

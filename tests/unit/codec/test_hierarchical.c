#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "common/codec/hierarchical.h"
#include "tests/unit/codec/strawman.h"
#include "tests/support/thin.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static uint32_t hashed(void *ctx, uint64_t index) {
  return zps_hash_reduce(zps_hash_mix64(index), *(uint32_t *)ctx);
}

static uint32_t last_part(void *ctx, uint64_t index) {
  (void)index;
  return *(uint32_t *)ctx - 1;
}

static int compare(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Partitions `indices` and checks that each came out once, in its own partition. */
static struct zps_hier_stats check(struct zps_hier_config config, const uint64_t *indices, uint64_t n,
                                   struct zps_workpool *pool) {
  struct zps_hier_stats stats;
  uint64_t *const out = malloc((n + 1) * sizeof *out), *const sorted = malloc((n + 1) * sizeof *sorted);
  uint64_t *const starts = malloc((config.n_parts + 1) * sizeof *starts);
  assert_true(out && sorted && starts);
  config.h0_ctx = &config.n_parts;
  out[n] = 12345;
  assert_int_equal(zps_hier_partition(&config, indices, n, pool, out, starts, &stats), ZPS_OK);
  assert_int_equal(out[n], 12345);
  assert_int_equal(starts[0], 0);
  assert_int_equal(starts[config.n_parts], n);
  for (uint32_t p = 0; p < config.n_parts; p++) {
    assert_true(starts[p] <= starts[p + 1]);
    for (uint64_t i = starts[p]; i < starts[p + 1]; i++) assert_int_equal(config.h0(config.h0_ctx, out[i]), p);
  }
  memcpy(sorted, indices, n * sizeof *sorted);
  qsort(sorted, n, sizeof *sorted, compare);
  qsort(out, n, sizeof *out, compare);
  for (uint64_t i = 0; i < n; i++) assert_int_equal(out[i], sorted[i]);
  assert_int_equal(stats.parallel + stats.serial, n);
  free(out);
  free(sorted);
  free(starts);
  return stats;
}

static uint64_t *draw_indices(uint64_t n, uint64_t spread, uint64_t seed) {
  struct zps_rng rng = {.state = seed};
  uint64_t *const indices = malloc((n + 1) * sizeof *indices);
  assert_non_null(indices);
  for (uint64_t i = 0; i < n; i++) indices[i] = i * spread + zps_rng_below(&rng, spread); /* distinct; 0 is likely */
  return indices;
}

static int setup(void **state) {
  return zps_workpool_create(3, "hash", (struct zps_workpool **)state) == ZPS_OK ? 0 : -1;
}

static int teardown(void **state) {
  zps_workpool_destroy(*state);
  return 0;
}

static void nothing_is_lost(void **state) {
  static const uint64_t sizes[] = {0, 1, 2, 33, 1000, 50000};
  static const uint32_t parts[] = {1, 3, 16, 700};
  static const struct {
    uint32_t k;
    uint64_t r1, r2;
  } memories[] = {{0, 0, 0}, {1, 0, 0}, {8, 0, 0}, {3, 1, 1}, {3, 100, 0}, {2, 5, 100000}};
  for (unsigned s = 0; s < COUNT(sizes); s++) {
    uint64_t *const indices = draw_indices(sizes[s], s % 2 ? 1 : 100, s);
    for (unsigned p = 0; p < COUNT(parts); p++) {
      for (unsigned m = 0; m < COUNT(memories); m++) {
        const struct zps_hier_config config = {.n_parts = parts[p],
                                               .options.k = memories[m].k,
                                               .options.r1 = memories[m].r1,
                                               .options.r2 = memories[m].r2,
                                               .seed = s + m,
                                               .h0 = hashed};
        if (!thin_skips_alone()) check(config, indices, sizes[s], NULL);
        check(config, indices, sizes[s], *state);
      }
    }
    free(indices);
  }
}

/* In twice the memory about 4% of the indices fail with k = 3, and half of them with one function more. */
static void few_indices_go_serial(void **state) {
  enum { N = 200000 };
  uint64_t *const indices = draw_indices(N, 100, 1);
  const struct zps_hier_config config = {.n_parts = 16, .options.k = 3, .seed = 5, .h0 = hashed};
  struct zps_hier_stats stats = check(config, indices, N, *state);
  assert_true(stats.serial < N * 5 / 100);
  assert_int_equal(stats.redone, 0);
  struct zps_hier_config more = config;
  more.options.k = 4;
  assert_true(check(more, indices, N, *state).serial < stats.serial * 6 / 10);
  free(indices);
}

/* The paper's two rates of loss, 17.5% and 4.8% when the memory is four times as large: those of 0.4 and 0.1 indices a
 * slot, where 1 - (1 - exp(-a)) / a are lost. (It says that the smaller memory has a slot for each of |G| parameters,
 * of which 10% are not zero: of 0.1 indices a slot the larger rate is not to be had, by this formula or by trial.)
 * Algorithm 1 loses nothing in either, nor in a twentieth of the memory. */
static void one_hash_table_loses_what_the_paper_says(void **state) {
  enum { PARTS = 16, N = 200000 };
  static const struct { double indices_per_slot, lost; } cases[] = {{0.4, 0.175}, {0.1, 0.048}};
  uint64_t *const indices = draw_indices(N, 10, 4);
  for (unsigned c = 0; c < COUNT(cases); c++) {
    const double a = cases[c].indices_per_slot, expected = 1 - (1 - exp(-a)) / a;
    const uint64_t r = (uint64_t)(N / a / PARTS);
    const double lost = 1 - (double)strawman_kept(indices, N, PARTS, r, c + 1) / N;
    print_message("%.1f indices a slot: %.4f lost, %.4f expected, the paper has %.3f\n", a, lost, expected,
                  cases[c].lost);
    assert_true(fabs(lost - expected) < 0.002);
    assert_true(fabs(lost - cases[c].lost) < 0.003);
    const struct zps_hier_config config = {.n_parts = PARTS, .options.r1 = r, .seed = 5, .h0 = hashed};
    check(config, indices, N, *state);
    const struct zps_hier_config small = {.n_parts = PARTS, .options.r1 = r / 20, .seed = 5, .h0 = hashed};
    check(small, indices, N, *state);
  }
  free(indices);
}

/* The share that goes serial, by k and by memory (r1 over |G|d). The paper's "less than 1% with four" functions holds
 * from three slots an index on; in its own default of two it is 2%, and indices that tried one after the other would be
 * 1.2% even so. In passes an index's second function comes after all others' first, and so finds fuller memory. */
static void the_share_that_goes_serial(void **state) {
  enum { PARTS = 16, N = 200000 };
  static const double most[][4] = {{0.38, 0.27, 0.21, 0.18},     /* of one slot an index, by k */
                                   {0.22, 0.10, 0.046, 0.023},   /* two: the default */
                                   {0.16, 0.050, 0.017, 0.0065}, /* three */
                                   {0.12, 0.030, 0.0085, 0.003}};
  uint64_t *const indices = draw_indices(N, 100, 6);
  for (unsigned memory = 1; memory <= COUNT(most); memory++) {
    if (thin_skips()) continue;
    double before = 1;
    for (unsigned k = 1; k <= COUNT(most[0]); k++) {
      const struct zps_hier_config config = {
          .n_parts = PARTS, .options = {.k = k, .r1 = (uint64_t)memory * N / PARTS}, .seed = 7, .h0 = hashed};
      const double share = (double)check(config, indices, N, *state).serial / N;
      print_message("%u slots an index, k = %u: %.4f serial\n", memory, k, share);
      assert_true(share < most[memory - 1][k - 1]);
      assert_true(share > most[memory - 1][k - 1] * 0.4); /* the table above tells the truth */
      assert_true(share < before);
      before = share;
    }
    if (memory == 2) assert_true(before > 0.01);
    if (memory >= 3) assert_true(before < 0.01);
  }
  free(indices);
}

/* 32 indices look at one empty slot before any of them writes: all write, one stays, and the others learn it by reading
 * back. Without that they would be lost. */
static void races_are_caught_by_reading_back(void **state) {
  (void)state;
  uint64_t indices[32];
  for (unsigned i = 0; i < 32; i++) indices[i] = i;
  const struct zps_hier_config config = {.n_parts = 1, .options.k = 1, .options.r1 = 1, .options.r2 = 31, .h0 = hashed};
  const struct zps_hier_stats stats = check(config, indices, 32, NULL);
  assert_int_equal(stats.parallel, 1);
  assert_int_equal(stats.lost_races, 31);
  assert_int_equal(stats.serial, 31);
  assert_int_equal(stats.redone, 0);
}

/* The loser of a race goes on to its next hash function before it goes to serial memory. */
static void losers_rehash(void **state) {
  (void)state;
  uint64_t indices[32];
  for (unsigned i = 0; i < 32; i++) indices[i] = i + 100;
  struct zps_hier_config config = {
      .n_parts = 1, .options.k = 1, .options.r1 = 64, .options.r2 = 31, .seed = 3, .h0 = hashed};
  const struct zps_hier_stats once = check(config, indices, 32, NULL);
  assert_true(once.lost_races > 0);
  assert_int_equal(once.serial, once.lost_races); /* one look each: a row that failed had seen an empty slot */
  config.options.k = 16;
  const struct zps_hier_stats often = check(config, indices, 32, NULL);
  assert_true(often.serial < once.serial);
  assert_int_equal(often.serial, 0);
}

static void full_serial_memory_is_grown_and_redone(void **state) {
  enum { N = 10000 };
  uint64_t *const indices = draw_indices(N, 10, 2);
  const struct zps_hier_config config = {
      .n_parts = 4, .options.k = 1, .options.r1 = 10, .options.r2 = 1, .seed = 5, .h0 = hashed};
  const struct zps_hier_stats stats = check(config, indices, N, *state);
  assert_true(stats.redone >= 1);
  assert_true(stats.parallel <= 40);
  free(indices);
}

/* A tensor whose non-zero rows all fall to one partition: memory for an even share is not enough, nothing is lost. */
static void one_partition_takes_all(void **state) {
  enum { N = 20000 };
  uint64_t *const indices = draw_indices(N, 1, 3);
  assert_int_equal(indices[0], 0);
  const struct zps_hier_config config = {.n_parts = 64, .seed = 5, .h0 = last_part};
  const struct zps_hier_stats stats = check(config, indices, N, *state);
  assert_true(stats.redone >= 1);
  free(indices);
}

static void statistics_are_optional(void **state) {
  (void)state;
  const uint64_t index = 0;
  uint32_t n_parts = 2;
  uint64_t out, starts[3];
  const struct zps_hier_config config = {.n_parts = 2, .h0 = last_part, .h0_ctx = &n_parts};
  assert_int_equal(zps_hier_partition(&config, &index, 1, NULL, &out, starts, NULL), ZPS_OK);
  assert_int_equal(out, 0);
  assert_int_equal(starts[1], 0);
  assert_int_equal(starts[2], 1);
}

/* Memory that cannot be had is an error, not a crash. */
static void impossible_memory_is_an_error(void **state) {
  (void)state;
  const uint64_t index = 0;
  uint32_t n_parts = 65536;
  uint64_t out;
  uint64_t *const starts = malloc(65537 * sizeof *starts);
  const struct zps_hier_config config = {
      .n_parts = 65536, .options.r1 = 1ull << 60, .h0 = last_part, .h0_ctx = &n_parts};
  assert_non_null(starts);
  assert_int_equal(zps_hier_partition(&config, &index, 1, NULL, &out, starts, NULL), ZPS_ERR_NOMEM);
  free(starts);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_is_lost),
      cmocka_unit_test(few_indices_go_serial),
      cmocka_unit_test(one_hash_table_loses_what_the_paper_says),
      cmocka_unit_test(the_share_that_goes_serial),
      cmocka_unit_test(races_are_caught_by_reading_back),
      cmocka_unit_test(losers_rehash),
      cmocka_unit_test(full_serial_memory_is_grown_and_redone),
      cmocka_unit_test(one_partition_takes_all),
      cmocka_unit_test(statistics_are_optional),
      cmocka_unit_test(impossible_memory_is_an_error),
  };
  return cmocka_run_group_tests_name("hierarchical", tests, setup, teardown);
}

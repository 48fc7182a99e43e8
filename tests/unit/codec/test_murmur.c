/* Partitions of h0 itself: the table, and what theorem 2 of the Zen paper says of the loads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/locate.h"
#include "common/codec/partition_murmur.h"
#include "common/codec/partitioner.h"
#include "tests/support/thin.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct zps_murmur *make(uint64_t rows, uint32_t n_parts, uint64_t seed, struct zps_workpool *pool,
                               struct zps_partition *part) {
  struct zps_murmur *murmur;
  assert_int_equal(zps_murmur_create(rows, n_parts, seed, pool, &murmur, part, NULL), ZPS_OK);
  assert_true(zps_partition_is_hashed(part));
  assert_int_equal(zps_partition_stripes(part), 1);
  return murmur;
}

/* Every row is where its hash says, every place has one row, indices ascend with rows without gaps; one by one, and
 * many at once. */
static void check_bijection(uint64_t rows, uint32_t n_parts, uint64_t seed, struct zps_workpool *pool) {
  struct zps_partition part;
  struct zps_murmur *const murmur = make(rows, n_parts, seed, pool, &part);
  uint32_t *const next = calloc(n_parts, sizeof *next), *const sizes = calloc(n_parts, sizeof *sizes);
  assert_true(next && sizes);
  for (uint64_t row = 0; row < rows; row++) {
    uint32_t local;
    const uint32_t p = zps_partition_of(&part, row, &local);
    assert_int_equal(p, zps_hash_reduce(zps_hash_mix64(row ^ seed), n_parts));
    if (row % 61 == 0) assert_int_equal(zps_partition_indices_below(&part, p, row), next[p]);
    assert_int_equal(local, next[p]++);
    if (row % 7 == 0) assert_int_equal(zps_partition_row(&part, p, local), row);
  }
  assert_int_equal(zps_murmur_sizes(rows, n_parts, seed, pool, sizes, NULL), ZPS_OK);
  uint64_t most = 1;
  for (uint32_t p = 0; p < n_parts; p++) {
    assert_int_equal(zps_partition_size(&part, p), next[p]);
    assert_int_equal(sizes[p], next[p]);
    if (sizes[p] > most) most = sizes[p];
  }
  assert_int_equal(part.n_groups, most);
  free(next);
  free(sizes);
  zps_murmur_destroy(murmur);
}

static void rows_and_places_correspond(void **state) {
  static const uint64_t sizes[] = {1, 2, 31, 255, 256, 257, 4096, 65537, 300000};
  static const uint32_t parts[] = {1, 2, 3, 16, 64, 65, 100, 5000, 65536};
  for (unsigned s = 0; s < COUNT(sizes); s++) {
    if (s % 2 == 0 && thin_skips_alone()) continue;
    for (unsigned p = 0; p < COUNT(parts); p++)
      check_bijection(sizes[s], parts[p], zps_hash_mix64(s * 100 + p), s % 2 ? *state : NULL);
  }
}

/* A round asks for many rows at once, in steps of any size. */
static void many_rows_are_found_at_once(void **state) {
  enum { ROWS = 200000, PARTS = 24, BATCH = 512 };
  struct zps_rng rng = {.state = 3};
  struct zps_partition part;
  struct zps_murmur *const murmur = make(ROWS, PARTS, 77, *state, &part);
  uint32_t indices[BATCH + ZPS_SIMD_SLACK], locals[BATCH + ZPS_SIMD_SLACK];
  uint64_t rows[BATCH + ZPS_SIMD_SLACK];
  uint16_t parts[BATCH + ZPS_SIMD_SLACK];
  for (uint32_t stride = 1; stride < 2000; stride *= 3) {
    for (uint32_t p = 0; p < PARTS; p++) {
      const uint32_t m = zps_partition_size(&part, p);
      uint32_t n = 0;
      for (uint32_t at = (uint32_t)zps_rng_below(&rng, stride); at < m && n < BATCH;
           at += 1 + (uint32_t)zps_rng_below(&rng, stride))
        indices[n++] = at;
      zps_partition_rows_of(&part, p, indices, n, rows);
      for (uint32_t i = 0; i < n; i++) {
        uint32_t local;
        assert_int_equal(zps_partition_of(&part, rows[i], &local), p);
        assert_int_equal(local, indices[i]);
      }
    }
    const uint64_t first = zps_rng_below(&rng, ROWS - BATCH);
    for (uint32_t i = 0; i < BATCH; i++) indices[i] = i;
    zps_partition_locate(&part, first, indices, BATCH, parts, locals);
    for (uint32_t i = 0; i < BATCH; i++) assert_int_equal(zps_partition_row(&part, parts[i], locals[i]), first + i);
  }
  zps_murmur_destroy(murmur);
}

/* At most a byte a row for the counts, beside a byte for the rank. */
static void the_table_is_small(void **state) {
  (void)state;
  for (uint32_t n_parts = 1; n_parts <= 16384 && !thin_skips_alone(); n_parts *= 4) {
    struct zps_partition part;
    struct zps_murmur *const murmur = make(1 << 20, n_parts, 5, NULL, &part);
    const uint64_t counts = (part.table.n_blocks + 1ull) * n_parts * sizeof(uint32_t);
    assert_true(counts <= (1 << 20) + 2 * n_parts * sizeof(uint32_t));
    zps_murmur_destroy(murmur);
  }
}

static void wrong_options_are_named(void **state) {
  (void)state;
  static const struct {
    enum zps_partitioner partitioner;
    struct zps_hier_options hashing;
    uint64_t rows;
    uint32_t n_parts, block_bits;
    const char *says;
  } bad[] = {
      {ZPS_PARTITIONER_MURMUR, {0}, 1000, 4, 3, "block_bits 3: partitioner murmur"},
      {ZPS_PARTITIONER_HIERARCHICAL, {0}, 1000, 4, 1, "block_bits 1: partitioner hierarchical"},
      {ZPS_PARTITIONER_MURMUR, {0}, ZPS_MURMUR_ROWS_MAX + 1, 4, 0, "stratified takes more"},
      {ZPS_PARTITIONER_MURMUR, {.k = 1}, 1000, 4, 0, "hash_k 1, hash_r1 0, hash_r2 0"},
      {ZPS_PARTITIONER_STRATIFIED, {.r2 = 7}, 1000, 4, 0, "hash_r2 7: these are of Algorithm 1"},
      {ZPS_PARTITIONER_HIERARCHICAL, {.k = 17}, 1000, 4, 0, "hash_k 17: Algorithm 1 takes 1 to 16"},
      {ZPS_PARTITIONER_HIERARCHICAL, {.r1 = (1ull << 32) + 1}, 1000, 4, 0, "hash_r1 4294967297"},
      {ZPS_PARTITIONER_HIERARCHICAL, {.r1 = 2001}, 1000, 4, 0, "2000 for each partition"},
      {ZPS_PARTITIONER_HIERARCHICAL, {.r2 = 2001}, 1000, 4, 0, "hash_r2 2001"},
  };
  static const struct zps_hier_options good[] = {{0}, {.k = 16}, {.r1 = 1, .r2 = 1}, {.r1 = 2000, .r2 = 2000}};
  struct zps_error error;
  for (unsigned i = 0; i < COUNT(bad); i++) {
    assert_int_equal(zps_partitioner_check(bad[i].partitioner, &bad[i].hashing, bad[i].rows, bad[i].n_parts,
                                           bad[i].block_bits, &error),
                     ZPS_ERR_INVALID);
    assert_non_null(strstr(error.text, bad[i].says));
  }
  for (unsigned i = 0; i < COUNT(good); i++)
    assert_int_equal(zps_partitioner_check(ZPS_PARTITIONER_HIERARCHICAL, &good[i], 1000, 4, 0, &error), ZPS_OK);
  struct zps_murmur *murmur;
  struct zps_partition part;
  assert_int_equal(zps_murmur_create(0, 4, 1, NULL, &murmur, &part, &error), ZPS_ERR_INVALID);
  assert_int_equal(zps_murmur_create(10, 0, 1, NULL, &murmur, &part, &error), ZPS_ERR_INVALID);
  assert_int_equal(zps_murmur_create(ZPS_MURMUR_ROWS_MAX + 1, 4, 1, NULL, &murmur, &part, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "2^29"));
}

static void names(void **state) {
  (void)state;
  assert_string_equal(zps_partitioner_name(ZPS_PARTITIONER_STRATIFIED), "stratified");
  assert_string_equal(zps_partitioner_name(ZPS_PARTITIONER_MURMUR), "murmur");
  assert_string_equal(zps_partitioner_name(ZPS_PARTITIONER_HIERARCHICAL), "hierarchical");
  assert_string_equal(zps_partitioner_name(0), "?");
}

/* ------------------------------------------------------------ theorem 2 */

enum { RANKS = 4 };

/* A set of rows that a trainer might touch: at random, mostly low numbers as in word lists, a run, or every 64th row.
 */
enum shape { UNIFORM, SKEWED, RUN, STRIDE, N_SHAPES };

static uint64_t row_of(struct zps_rng *rng, enum shape shape, uint64_t rows, uint64_t i) {
  const double u = zps_rng_unit(rng);
  switch (shape) {
    case UNIFORM:
      return (uint64_t)(u * (double)rows);
    case SKEWED:
      return (uint64_t)(u * u * u * (double)rows);
    case RUN:
      return rows / 3 + i;
    default:
      return i * 64;
  }
}

static double ratio(const uint64_t *counts, uint32_t n_parts, uint64_t total) {
  uint64_t most = 0;
  for (uint32_t p = 0; p < n_parts; p++)
    if (counts[p] > most) most = counts[p];
  return (double)most * n_parts / (double)total;
}

/* Draws each rank's rows and compares definition 8's ratios, of the worst push and of the pull, with 1 + factor *
 * sqrt(n log n / rows). Returns how many of the two are beyond. */
static unsigned beyond_bound(struct zps_rng *rng, const struct zps_partition *part, enum shape shape, uint64_t touched,
                             double factor) {
  const uint32_t n_parts = part->n_parts;
  uint8_t *const seen = calloc(part->rows, 1);
  uint64_t *const counts = calloc(2 * n_parts, sizeof *counts), *const all = counts + n_parts, in_union = 0;
  assert_true(seen && counts);
  double push = 0;
  for (unsigned rank = 0; rank < RANKS; rank++) {
    memset(counts, 0, n_parts * sizeof *counts);
    for (uint64_t n = 0, i = rank; n < touched; i++) {
      const uint64_t row = row_of(rng, shape, part->rows, i);
      if (seen[row] >> rank & 1) continue;
      uint32_t local;
      const uint32_t p = zps_partition_of(part, row, &local);
      in_union += seen[row] == 0;
      all[p] += seen[row] == 0;
      seen[row] |= (uint8_t)(1 << rank);
      counts[p]++;
      n++;
    }
    push = fmax(push, ratio(counts, n_parts, touched));
  }
  const double pull = ratio(all, n_parts, in_union), n_log_n = n_parts * log(n_parts);
  free(seen);
  free(counts);
  return (push > 1 + factor * sqrt(n_log_n / (double)touched)) + (pull > 1 + factor * sqrt(n_log_n / (double)in_union));
}

/* Of balls thrown into bins the fullest keeps to factor 2 in all but a share 1/n of the throws: so says Chernoff's
 * bound for one push, with n^-4/3 for each bin. The factor allows for the ranks' several pushes. Seeds are drawn anew
 * each time, and rows are not: the theorem is for any set of rows. */
static void loads_keep_to_theorem_2(void **state) {
  if (thin_skips_alone()) return; /* only the making of the tables is heavy */
  static const struct {
    uint64_t rows, touched;
    uint32_t n_parts;
  } cases[] = {{1 << 18, 4000, 4}, {1 << 18, 4000, 16}, {1 << 18, 2000, 64}, {1 << 20, 16000, 128}};
  enum { DRAWS = 10 };
  const double factor = 2.2;
  struct zps_rng rng = {.state = 8};
  for (unsigned c = 0; c < COUNT(cases); c++) {
    for (enum zps_partitioner kind = ZPS_PARTITIONER_STRATIFIED; kind <= ZPS_PARTITIONER_MURMUR; kind++) {
      unsigned beyond = 0;
      for (unsigned draw = 0; draw < DRAWS * N_SHAPES; draw++) {
        struct zps_partition part;
        struct zps_murmur *murmur = NULL;
        const uint64_t seed = zps_rng_u64(&rng);
        if (kind == ZPS_PARTITIONER_MURMUR)
          murmur = make(cases[c].rows, cases[c].n_parts, seed, *state, &part);
        else
          part = zps_partition_whole(cases[c].rows, cases[c].n_parts, seed);
        beyond += beyond_bound(&rng, &part, (enum shape)(draw % N_SHAPES), cases[c].touched, factor);
        zps_murmur_destroy(murmur);
      }
      print_message("%u partitions, %s: %u of %u ratios beyond the bound\n", cases[c].n_parts,
                    zps_partitioner_name(kind), beyond, 2 * DRAWS * N_SHAPES);
      assert_true(beyond <= 2.0 * DRAWS * N_SHAPES / cases[c].n_parts);
    }
  }
}

static int setup(void **state) {
  return zps_workpool_create(3, "test", (struct zps_workpool **)state);
}

static int teardown(void **state) {
  zps_workpool_destroy(*state);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_and_places_correspond),
      cmocka_unit_test(many_rows_are_found_at_once),
      cmocka_unit_test(the_table_is_small),
      cmocka_unit_test(wrong_options_are_named),
      cmocka_unit_test(names),
      cmocka_unit_test(loads_keep_to_theorem_2),
  };
  return cmocka_run_group_tests_name("murmur", tests, setup, teardown);
}

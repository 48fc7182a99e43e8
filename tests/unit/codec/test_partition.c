#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/partition.h"

/* Of four stripes, which end at different rows. */
enum { CHUNK_ROWS = 1 << 16, STRIPED_ROWS = (4 << 20) + 3 * CHUNK_ROWS + 5, STRIPED_PARTS = 44 };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Where a row is by the book: its chunk is dealt to a stripe, then its block to a group. */
struct place {
  uint64_t stripe, inner, group;
};

static struct place place_of(const struct zps_partition *part, uint64_t row) {
  const uint64_t n_stripes = zps_partition_stripes(part), chunk_rows = n_stripes > 1 ? CHUNK_ROWS : UINT64_MAX;
  const uint64_t chunk = row / chunk_rows, inner = chunk / n_stripes * chunk_rows + row % chunk_rows;
  return (struct place){chunk % n_stripes, inner, (inner >> part->block_bits) / (part->n_parts / n_stripes)};
}

/* Every row has one place, every place one row, indices ascend with rows, and a group gives each partition of its
 * stripe one block. */
static void check_bijection(uint64_t rows, uint32_t n_parts, uint32_t block_bits, uint64_t seed) {
  struct zps_partition part;
  assert_int_equal(zps_partition_init(&part, rows, n_parts, block_bits, seed, NULL), ZPS_OK);
  uint32_t *const next = calloc(n_parts, sizeof *next);
  assert_non_null(next);
  for (uint64_t row = 0; row < rows; row++) {
    uint32_t local;
    const uint32_t p = zps_partition_of(&part, row, &local);
    assert_true(p < n_parts);
    assert_int_equal(local, next[p]++); /* ascending without gaps */
    assert_int_equal(zps_partition_row(&part, p, local), row);
    const struct place place = place_of(&part, row);
    assert_int_equal(local >> block_bits, place.group);
    assert_int_equal(p / part.stripe_parts, place.stripe);
    if (row % 61 == 0) assert_int_equal(zps_partition_indices_below(&part, p, place.inner), local);
  }
  uint64_t total = 0;
  for (uint32_t p = 0; p < n_parts; p++) {
    assert_int_equal(zps_partition_size(&part, p), next[p]);
    total += next[p];
  }
  assert_int_equal(total, rows);
  free(next);
}

static void rows_and_places_correspond(void **state) {
  (void)state;
  static const uint64_t sizes[] = {1, 2, 31, 1000, 4096, 65537};
  static const uint32_t parts[] = {1, 2, 3, 7, 16, 100, 5000};
  static const uint32_t bits[] = {0, 3, 10, 20, 31};
  for (unsigned s = 0; s < COUNT(sizes); s++)
    for (unsigned p = 0; p < COUNT(parts); p++)
      for (unsigned b = 0; b < COUNT(bits); b++) check_bijection(sizes[s], parts[p], bits[b], s * 100 + p);
  check_bijection(STRIPED_ROWS, STRIPED_PARTS, 0, 1);
  check_bijection(4 << 20, 64, 0, 2);
}

/* Rows, partitions and blocks alone say how many stripes there are. */
static void large_tensors_have_stripes(void **state) {
  (void)state;
  static const struct {
    uint64_t rows;
    uint32_t n_parts, block_bits, n_stripes;
  } cases[] = {{1 << 20, 64, 0, 1},
               {(2 << 20) - 1, 64, 0, 1},
               {2 << 20, 64, 0, 2},
               {2 << 20, 14, 0, 1},
               {2 << 20, 15, 0, 1},
               {2 << 20, 16, 0, 2},
               {16 << 20, 128, 0, 16},
               {16 << 20, 64, 0, 8},
               {16 << 20, 72, 0, 8},
               {16 << 20, 100, 0, 4},
               {64 << 20, 1024, 0, 16},
               {16 << 20, 128, 1, 1},
               {ZPS_PARTITION_ROWS_MAX, 65536, 0, 16}};
  for (unsigned c = 0; c < COUNT(cases); c++) {
    struct zps_partition part;
    assert_int_equal(zps_partition_init(&part, cases[c].rows, cases[c].n_parts, cases[c].block_bits, 1, NULL), ZPS_OK);
    assert_int_equal(zps_partition_stripes(&part), cases[c].n_stripes);
    for (uint32_t p = 0; p < part.n_parts; p++)
      assert_int_equal(zps_partition_stripe_of(&part, p), p / (part.n_parts / cases[c].n_stripes));
  }
}

/* A stripe by itself is a tensor of its rows, and says where they are as the whole does. */
static void stripes_are_tensors(void **state) {
  (void)state;
  struct zps_partition part;
  assert_int_equal(zps_partition_init(&part, STRIPED_ROWS, STRIPED_PARTS, 0, 5, NULL), ZPS_OK);
  uint64_t total = 0;
  for (uint32_t stripe = 0; stripe < zps_partition_stripes(&part); stripe++) {
    const struct zps_partition alone = zps_partition_stripe(&part, stripe);
    const uint32_t first = stripe * part.stripe_parts;
    assert_int_equal(zps_partition_stripes(&alone), 1);
    assert_int_equal(alone.n_parts, part.stripe_parts);
    assert_int_equal(alone.rows, zps_partition_stripe_rows(&part, stripe, part.rows));
    for (uint32_t p = 0; p < alone.n_parts; p++)
      assert_int_equal(zps_partition_size(&alone, p), zps_partition_size(&part, first + p));
    for (uint64_t inner = 0; inner < alone.rows; inner += 13) {
      uint32_t local, alone_local;
      const uint64_t row = zps_partition_stripe_row(&part, stripe, inner);
      const uint32_t p = zps_partition_of(&part, row, &local);
      assert_int_equal(zps_partition_of(&alone, inner, &alone_local) + first, p);
      assert_int_equal(alone_local, local);
      assert_int_equal(place_of(&part, row).inner, inner);
    }
    total += alone.rows;
  }
  assert_int_equal(total, part.rows);
}

/* Rows that lie together at the tensor's head are every stripe's. */
static void heads_are_shared_by_stripes(void **state) {
  (void)state;
  struct zps_partition part;
  assert_int_equal(zps_partition_init(&part, 16 << 20, 128, 0, 5, NULL), ZPS_OK);
  for (uint32_t stripe = 0; stripe < 16; stripe++)
    assert_int_equal(zps_partition_stripe_rows(&part, stripe, 1 << 20), 1 << 16);
}

/* The multiplication that stands for the division, where it is tightest: at multiples of every number of partitions. */
static void large_tensors_are_divided_exactly(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 1};
  for (uint32_t n_parts = 1; n_parts <= ZPS_PARTITION_PARTS_MAX; n_parts += n_parts < 300 ? 1 : 1 + n_parts / 50) {
    const uint64_t limit = (uint64_t)UINT32_MAX * n_parts;
    const uint64_t rows = limit < ZPS_PARTITION_ROWS_MAX ? limit : ZPS_PARTITION_ROWS_MAX;
    struct zps_partition part;
    assert_int_equal(zps_partition_init(&part, rows, n_parts, 0, 5, NULL), ZPS_OK);
    for (unsigned i = 0; i < 300; i++) {
      const uint64_t multiple = (i == 0 ? (rows - 1) / n_parts : zps_rng_below(&rng, rows) / n_parts) * n_parts;
      const uint64_t probes[] = {multiple, multiple ? multiple - 1 : 0, rows - 1};
      for (unsigned j = 0; j < COUNT(probes); j++) {
        uint32_t local;
        const uint32_t p = zps_partition_of(&part, probes[j], &local);
        const struct place place = place_of(&part, probes[j]);
        assert_int_equal(local, place.group);
        assert_int_equal(p / part.stripe_parts, place.stripe);
        assert_true(p < n_parts);
        assert_int_equal(zps_partition_row(&part, p, local), probes[j]);
      }
    }
  }
}

/* The largest blocks there are: one for each partition, so that partitions are ranges of rows. */
static void ranges_of_rows_are_exact(void **state) {
  (void)state;
  static const uint64_t sizes[] = {ZPS_PARTITION_ROWS_MAX, ZPS_PARTITION_ROWS_MAX - 1,
                                   ZPS_PARTITION_ROWS_MAX - (1ull << 31) + 1};
  for (unsigned s = 0; s < COUNT(sizes); s++) {
    struct zps_partition part;
    assert_int_equal(zps_partition_init(&part, sizes[s], 512, 31, s, NULL), ZPS_OK);
    assert_int_equal(part.n_groups, 1);
    uint64_t total = 0;
    for (uint64_t block = 0; block < 512; block++) {
      const uint64_t first = block << 31, end = block < 511 ? (block + 1) << 31 : sizes[s];
      const uint64_t probes[] = {first, first + (end - first) / 2, end - 1};
      for (unsigned i = 0; i < COUNT(probes); i++) {
        uint32_t local;
        const uint32_t p = zps_partition_of(&part, probes[i], &local);
        assert_int_equal(local, probes[i] - first);
        assert_int_equal(zps_partition_block(&part, 0, p), block);
        assert_int_equal(zps_partition_row(&part, p, local), probes[i]);
        assert_int_equal(zps_partition_size(&part, p), end - first);
      }
      total += end - first;
    }
    assert_int_equal(total, sizes[s]);
  }
}

static void impossible_shapes_are_refused(void **state) {
  (void)state;
  struct zps_partition part;
  struct zps_error error;
  assert_int_equal(zps_partition_init(&part, 0, 1, 0, 1, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "0 rows cannot be partitioned: 1 to 2^40 can");
  assert_int_equal(zps_partition_init(&part, ZPS_PARTITION_ROWS_MAX + 1, 65536, 0, 1, &error), ZPS_ERR_INVALID);
  assert_int_equal(zps_partition_init(&part, ZPS_PARTITION_ROWS_MAX, 65536, 0, 1, &error), ZPS_OK);
  assert_int_equal(zps_partition_init(&part, 10, 0, 0, 1, &error), ZPS_ERR_INVALID);
  assert_int_equal(zps_partition_init(&part, 10, 65537, 0, 1, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "65537 partitions: must be 1 to 65536");
  assert_int_equal(zps_partition_init(&part, 10, 4, 32, 1, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "blocks of 2^32 rows: must be 2^0 to 2^31");
  assert_int_equal(zps_partition_init(&part, UINT32_MAX, 1, 0, 1, &error), ZPS_OK);
  assert_int_equal(zps_partition_init(&part, 1ull << 32, 1, 0, 1, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "fewer than 2^32 rows"));
  assert_int_equal(zps_partition_init(&part, UINT32_MAX, 1, 20, 1, &error), ZPS_ERR_INVALID);
}

/* Seeds move every row: over many seeds a row is in each partition equally often. */
static void a_row_goes_everywhere_over_the_seeds(void **state) {
  (void)state;
  enum { PARTS = 8, SEEDS = 8000 };
  static const uint64_t rows[] = {0, 1, 7, 8, 12345, 999999};
  for (unsigned r = 0; r < COUNT(rows); r++) {
    unsigned counts[PARTS] = {0};
    double chi2 = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
      struct zps_partition part;
      uint32_t local;
      assert_int_equal(zps_partition_init(&part, 1000000, PARTS, 0, zps_hash_mix64(seed), NULL), ZPS_OK);
      counts[zps_partition_of(&part, rows[r], &local)]++;
    }
    for (unsigned p = 0; p < PARTS; p++) chi2 += pow((double)counts[p] - SEEDS / PARTS, 2) / (SEEDS / PARTS);
    assert_true(chi2 < 29.9); /* 7 degrees of freedom: once in 10000 */
  }
}

/* Two rows of different groups meet with probability 1/P. */
static void groups_fall_independently(void **state) {
  (void)state;
  enum { PARTS = 16, SEEDS = 16000 };
  struct zps_rng rng = {.state = 4};
  unsigned met = 0;
  for (unsigned i = 0; i < SEEDS; i++) {
    struct zps_partition part;
    uint32_t local;
    assert_int_equal(zps_partition_init(&part, 1 << 20, PARTS, 0, zps_rng_u64(&rng), NULL), ZPS_OK);
    const uint64_t a = zps_rng_below(&rng, 1 << 20), b = (a + PARTS * (1 + zps_rng_below(&rng, 1000))) % (1 << 20);
    met += zps_partition_of(&part, a, &local) == zps_partition_of(&part, b, &local);
  }
  const double expected = SEEDS / PARTS, deviation = sqrt(expected * (1 - 1.0 / PARTS));
  assert_true(fabs(met - expected) < 4 * deviation);
}

/* max_j P |I^j| / |I| of `n_rows` rows drawn without repetition; `skewed`: mostly low row numbers, as in word lists. */
static double imbalance(struct zps_rng *rng, const struct zps_partition *part, uint64_t n_rows, bool skewed) {
  bool *const seen = calloc(part->rows, sizeof *seen);
  uint64_t *const counts = calloc(part->n_parts, sizeof *counts), max = 0;
  assert_true(seen && counts);
  for (uint64_t n = 0; n < n_rows;) {
    const double u = zps_rng_unit(rng);
    const uint64_t row = (uint64_t)((skewed ? u * u * u : u) * (double)part->rows);
    uint32_t local;
    if (seen[row]) continue;
    seen[row] = true;
    counts[zps_partition_of(part, row, &local)]++;
    n++;
  }
  for (uint32_t p = 0; p < part->n_parts; p++)
    if (counts[p] > max) max = counts[p];
  free(seen);
  free(counts);
  return (double)max * part->n_parts / (double)n_rows;
}

/* Theorem 2: imbalance is 1 + O(sqrt(n log n / (|G| d))), for any set of rows; balls into bins stay below the bound
 * with factor sqrt(2) and some room, and stratified dealing has to, here with factor 2, of random sets of rows. */
static void imbalance_keeps_to_theorem_2(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 8};
  static const struct {
    uint64_t rows, touched;
    uint32_t n_parts;
  } cases[] = {{1 << 18, 2000, 16}, {1 << 18, 20000, 16}, {1 << 20, 100000, 64}, {50000, 25000, 16}};
  for (unsigned c = 0; c < COUNT(cases); c++) {
    for (unsigned skewed = 0; skewed < 2; skewed++) {
      struct zps_partition part;
      assert_int_equal(zps_partition_init(&part, cases[c].rows, cases[c].n_parts, 0, zps_rng_u64(&rng), NULL), ZPS_OK);
      const double n = cases[c].n_parts, bound = 1 + 2 * sqrt(n * log(n) / (double)cases[c].touched);
      const double found = imbalance(&rng, &part, cases[c].touched, skewed);
      assert_true(found >= 1);
      assert_true(found < bound);
    }
  }
  /* a contiguous run of rows, the worst case of partitioning by ranges, is dealt out evenly to the row */
  struct zps_partition part;
  uint64_t counts[16] = {0};
  assert_int_equal(zps_partition_init(&part, 1 << 18, 16, 0, 77, NULL), ZPS_OK);
  for (uint64_t row = 0; row < 1600; row++) {
    uint32_t local;
    counts[zps_partition_of(&part, row, &local)]++;
  }
  for (unsigned p = 0; p < 16; p++) assert_int_equal(counts[p], 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_and_places_correspond),           cmocka_unit_test(large_tensors_are_divided_exactly),
      cmocka_unit_test(large_tensors_have_stripes),           cmocka_unit_test(stripes_are_tensors),
      cmocka_unit_test(heads_are_shared_by_stripes),          cmocka_unit_test(impossible_shapes_are_refused),
      cmocka_unit_test(a_row_goes_everywhere_over_the_seeds), cmocka_unit_test(groups_fall_independently),
      cmocka_unit_test(imbalance_keeps_to_theorem_2),         cmocka_unit_test(ranges_of_rows_are_exact),
  };
  return cmocka_run_group_tests_name("partition", tests, NULL, NULL);
}

/* Each inner loop of every instruction set that the machine has, against the plain meaning of it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/simd.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
enum { WORDS = 70, SUMS = WORDS * 64 };

/* One number out of order, at every position, anywhere in memory. */
static void a_step_back_is_seen(void **state) {
  (void)state;
  enum { N = 100 };
  const struct zps_simd *simd;
  for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
    for (unsigned shift = 0; shift < 4; shift++) {
      for (uint32_t n = 1; n <= N; n++) {
        unsigned char bytes[4 * N + 4];
        uint32_t numbers[N];
        for (uint32_t i = 0; i < n; i++) numbers[i] = i * 43000000u; /* beyond 2^31 */
        memcpy(bytes + shift, numbers, n * sizeof *numbers);
        assert_true(simd->ascends(bytes + shift, n));
        for (uint32_t i = 1; i < n; i++) {
          memcpy(bytes + shift + 4 * (size_t)i, &numbers[i - 1], sizeof *numbers);
          assert_false(simd->ascends(bytes + shift, n));
          memcpy(bytes + shift + 4 * (size_t)i, &numbers[i], sizeof *numbers);
        }
      }
    }
  }
}

static const double densities[] = {0, 0.001, 0.02, 0.2, 0.4, 0.9, 1};

/* Bits at random, and how many. */
static uint32_t draw(struct zps_rng *rng, double density, uint64_t *bits) {
  uint32_t n = 0;
  memset(bits, 0, WORDS * sizeof *bits);
  for (unsigned i = 0; i < SUMS; i++) {
    if (zps_rng_unit(rng) >= density) continue;
    bits[i / 64] |= (uint64_t)1 << i % 64;
    n++;
  }
  return n;
}

static void added_sums_are_taken(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 1};
  const struct zps_simd *simd;
  for (unsigned d = 0; d < COUNT(densities); d++) {
    for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
      static float sums[SUMS], out[SUMS + ZPS_SIMD_SLACK];
      uint64_t bits[WORDS], taken[WORDS];
      uint32_t positions[SUMS + ZPS_SIMD_SLACK];
      const uint32_t n = draw(&rng, densities[d], bits);
      float *const values = malloc(n * sizeof *values + 1); /* no byte behind it may be read */
      assert_non_null(values);
      for (uint32_t i = 0; i < n; i++) values[i] = i % 5 == 0 ? -0.0f : (float)i;
      for (unsigned i = 0; i < SUMS; i++) sums[i] = -0.0f;
      simd->add(sums, bits, WORDS, values, n);
      assert_int_equal(simd->list(bits, WORDS, 7, positions), n);
      for (uint32_t i = 0; i < n; i++) {
        const float sum = sums[positions[i] - 7];
        assert_true(sum == values[i] && !signbit(sum));
      }
      assert_int_equal(simd->take(sums, WORDS, out, taken), n);
      assert_memory_equal(taken, bits, sizeof bits);
      for (uint32_t i = 0; i < n; i++) assert_true(out[i] == values[i]);
      for (unsigned i = 0; i < SUMS; i++) assert_true(sums[i] == 0 && signbit(sums[i]));
      free(values);
    }
  }
}

static void rows_go_to_their_slots(void **state) {
  (void)state;
  enum { N = 5, BASE = 100, WIDTH_MAX = 70 };
  static const uint32_t ranks[N] = {100, 103, 104, 109, 111};
  static const uint32_t slots[12] = {[0] = 4, [3] = 0, [4] = 2, [9] = 1, [11] = 3};
  const struct zps_simd *simd;
  for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
    for (uint32_t width = 1; width <= WIDTH_MAX; width++) {
      float sums[N * WIDTH_MAX], values[N * WIDTH_MAX];
      for (uint32_t i = 0; i < N * width; i++) {
        sums[i] = 1000;
        values[i] = (float)i;
      }
      simd->add_rows(sums, slots, BASE, ranks, N, width, values);
      for (uint32_t i = 0; i < N; i++)
        for (uint32_t j = 0; j < width; j++)
          assert_true(sums[slots[ranks[i] - BASE] * width + j] == 1000 + (float)(i * width + j));
    }
  }
}

/* Against zps_partition_of() and back, up to the greatest rows and blocks. */
static void rows_are_located(void **state) {
  (void)state;
  enum { N = 61 };
  static const struct {
    uint64_t rows;
    uint32_t n_parts, block_bits;
  } cases[] = {{1000, 7, 0},          {1ull << 40, 65536, 0},      {(1ull << 40) - 5, 300, 3},
               {1ull << 40, 512, 31}, {(1ull << 40) - 1, 520, 31}, {(1ull << 33) + 1, 5, 31},
               {UINT32_MAX, 3, 30}};
  struct zps_rng rng = {.state = 3};
  const struct zps_simd *simd;
  for (unsigned c = 0; c < COUNT(cases); c++) {
    struct zps_partition part;
    assert_int_equal(zps_partition_init(&part, cases[c].rows, cases[c].n_parts, cases[c].block_bits, c, NULL), ZPS_OK);
    for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
      int64_t rows[N];
      uint32_t locals[N + ZPS_SIMD_SLACK] = {0}, positions[N + ZPS_SIMD_SLACK] = {0};
      uint16_t parts[N + ZPS_SIMD_SLACK];
      uint64_t back[N + ZPS_SIMD_SLACK];
      for (unsigned i = 0; i < N; i++) rows[i] = (int64_t)zps_rng_below(&rng, part.rows);
      rows[0] = 0;
      rows[N - 1] = (int64_t)part.rows - 1;
      assert_true(simd->locate_rows(&part, rows, N, parts, locals));
      for (unsigned i = 0; i < N; i++) {
        uint32_t local;
        assert_int_equal(parts[i], zps_partition_of(&part, (uint64_t)rows[i], &local));
        assert_int_equal(locals[i], local);
        simd->rows_of(&part, parts[i], &locals[i], 1, back);
        assert_int_equal(back[0], rows[i]);
      }
      const uint64_t first = part.rows > UINT32_MAX ? part.rows - UINT32_MAX : 0;
      for (unsigned i = 0; i < N; i++) positions[i] = (uint32_t)zps_rng_below(&rng, part.rows - first);
      simd->locate(&part, first, positions, N, parts, locals);
      for (unsigned i = 0; i < N; i++) {
        uint32_t local;
        assert_int_equal(parts[i], zps_partition_of(&part, first + positions[i], &local));
        assert_int_equal(locals[i], local);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_back_is_seen),
      cmocka_unit_test(added_sums_are_taken),
      cmocka_unit_test(rows_go_to_their_slots),
      cmocka_unit_test(rows_are_located),
  };
  return cmocka_run_group_tests_name("simd", tests, NULL, NULL);
}

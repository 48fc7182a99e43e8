/* Each inner loop of every instruction set that the machine has, against the plain meaning of it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/codec_rice.h"
#include "common/codec/simd/simd.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
enum { WORDS = 70, SUMS = WORDS * 64, RICE_MAX = 1000 };

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

static void limits_are_found(void **state) {
  (void)state;
  const struct zps_simd *simd;
  unsigned char bytes[4 * ZPS_SIMD_WINDOW + 1];
  for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
    for (uint32_t i = 0; i <= ZPS_SIMD_WINDOW; i++) {
      uint32_t numbers[ZPS_SIMD_WINDOW];
      for (uint32_t j = 0; j < ZPS_SIMD_WINDOW; j++) numbers[j] = 7 + j * 33000000u; /* beyond 2^31 */
      memcpy(bytes + i % 2, numbers, sizeof numbers);
      const uint32_t limit = 7 + i * 33000000u;
      assert_int_equal(simd->count_below(bytes + i % 2, limit), i);
      if (i < ZPS_SIMD_WINDOW) assert_int_equal(simd->count_below(bytes + i % 2, limit + 1), i + 1);
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

static void rows_are_taken(void **state) {
  (void)state;
  static uint32_t slots[SUMS];
  struct zps_rng rng = {.state = 5};
  const struct zps_simd *simd;
  for (unsigned i = 0; i < SUMS; i++) slots[i] = (uint32_t)zps_rng_below(&rng, UINT32_MAX);
  for (unsigned d = 0; d < COUNT(densities); d++) {
    for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
      const int64_t first = (int64_t)zps_rng_below(&rng, 1ull << 40);
      uint64_t bits[WORDS];
      const uint32_t n = draw(&rng, densities[d], bits);
      int64_t *const rows = malloc((n + ZPS_SIMD_SLACK) * sizeof *rows); /* nothing behind it may be written */
      char *const values = malloc((n + ZPS_SIMD_SLACK) * sizeof *slots + 1);
      assert_true(rows && values);
      assert_int_equal(simd->take_rows(bits, WORDS, slots, first, rows, values + 1), n);
      uint32_t at = 0;
      for (uint32_t i = 0; i < SUMS; i++) {
        if (!(bits[i / 64] >> i % 64 & 1)) continue;
        assert_int_equal(rows[at], first + i);
        assert_memory_equal(values + 1 + 4 * (size_t)at, &slots[i], 4);
        at++;
      }
      assert_int_equal(at, n);
      free(rows);
      free(values);
    }
  }
}

/* Whole words and the rest, zeros of both signs and a NaN; nothing behind the last is read. */
static void values_are_packed(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 4};
  const struct zps_simd *simd;
  for (unsigned d = 0; d < COUNT(densities); d++) {
    for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
      for (uint32_t n = 0; n < 200; n++) {
        uint64_t bits[WORDS], packed[WORDS];
        uint32_t kept[200 + ZPS_SIMD_SLACK], n_kept = 0;
        float expected[200], *const values = malloc(n * sizeof *values + 1);
        assert_non_null(values);
        draw(&rng, densities[d], bits);
        memset(bits + (n + 63) / 64, 0xa5, sizeof bits - (n + 63) / 64 * sizeof *bits);
        memset(packed, 0xa5, sizeof packed);
        for (uint32_t i = 0; i < (n + 63) / 64 * 64; i++) {
          const bool is = bits[i / 64] >> i % 64 & 1;
          if (i >= n) bits[i / 64] &= ~((uint64_t)1 << i % 64);
          if (i >= n) continue;
          values[i] = !is ? (i % 2 ? -0.0f : 0.0f) : i % 7 == 0 ? NAN : (float)i + 1;
          if (is) expected[n_kept++] = values[i];
        }
        assert_int_equal(simd->pack(values, n, 0x7fffffff, kept, packed), n_kept);
        assert_memory_equal(kept, expected, n_kept * sizeof *kept);
        assert_memory_equal(packed, bits, sizeof bits);
        free(values);
      }
    }
  }
}

/* Up to a limit at any of them, or beyond all; nothing behind the last is read. */
static void values_below_the_limit_are_added(void **state) {
  (void)state;
  enum { N = 37, BASE = 4000000000u };
  const struct zps_simd *simd;
  for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
    for (uint32_t n = 1; n <= N; n++) {
      char *const indices = malloc(4 * n + 1), *const values = malloc(4 * n + 1);
      assert_true(indices && values);
      for (uint32_t i = 0; i < n; i++) {
        const uint32_t index = BASE + 3 * i;
        const float value = i % 5 == 0 ? -0.0f : (float)i;
        memcpy(indices + 1 + 4 * (size_t)i, &index, sizeof index);
        memcpy(values + 1 + 4 * (size_t)i, &value, sizeof value);
      }
      for (uint32_t limit = 0; limit <= 3 * n; limit++) {
        float sums[3 * N];
        const uint32_t below = (limit + 2) / 3;
        for (unsigned i = 0; i < 3 * N; i++) sums[i] = i < 50 ? -0.0f : 1000;
        assert_int_equal(simd->add_below(sums, BASE, BASE + limit, indices + 1, n, values + 1), below);
        for (uint32_t i = 0; i < 3 * N; i++) {
          const float before = i < 50 ? 0 : 1000;
          const bool added = i % 3 == 0 && i / 3 < below;
          assert_true(sums[i] == before + (added && i / 3 % 5 != 0 ? (float)(i / 3) : 0));
          assert_true(i >= 50 || !signbit(sums[i]) == added);
        }
      }
      free(indices);
      free(values);
    }
  }
}

/* Sums of marked lines alone, among them zeros of both signs and a NaN. */
static void marked_sums_are_taken(void **state) {
  (void)state;
  enum { LINES = 192, BASE = 1000 };
  struct zps_rng rng = {.state = 2};
  const struct zps_simd *simd;
  for (unsigned d = 0; d < COUNT(densities); d++) {
    for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
      static _Alignas(64) float sums[LINES * ZPS_SIMD_MARKED];
      float expected[LINES * ZPS_SIMD_MARKED], kept[LINES * ZPS_SIMD_MARKED + ZPS_SIMD_SLACK];
      uint32_t expected_at[LINES * ZPS_SIMD_MARKED], positions[LINES * ZPS_SIMD_MARKED + ZPS_SIMD_SLACK], n = 0;
      uint8_t marks[LINES];
      for (unsigned line = 0; line < LINES; line++) marks[line] = zps_rng_unit(&rng) < densities[d];
      for (unsigned i = 0; i < LINES * ZPS_SIMD_MARKED; i++) {
        sums[i] = zps_rng_unit(&rng) < 0.3 ? (float)i : i % 2 ? -0.0f : 0.0f;
        if (i % 1000 == 999) sums[i] = NAN;
        if (!marks[i / ZPS_SIMD_MARKED] || sums[i] == 0) continue;
        expected[n] = sums[i];
        expected_at[n++] = BASE + i;
      }
      float before[LINES * ZPS_SIMD_MARKED];
      memcpy(before, sums, sizeof sums);
      for (unsigned i = 0; i < LINES * ZPS_SIMD_MARKED; i++)
        if (marks[i / ZPS_SIMD_MARKED]) before[i] = 0;
      assert_int_equal(simd->take_marked(sums, marks, LINES, BASE, positions, kept), n);
      if (n) assert_memory_equal(kept, expected, n * sizeof *kept);
      if (n) assert_memory_equal(positions, expected_at, n * sizeof *positions);
      assert_memory_equal(sums, before, sizeof sums);
      for (unsigned line = 0; line < LINES; line++) assert_int_equal(marks[line], 0);
    }
  }
}

static void rows_go_to_their_slots(void **state) {
  (void)state;
  enum { N = 5, BASE = 100, WIDTH_MAX = 70 };
  static const uint32_t indices[N] = {100, 103, 104, 109, 111};
  static const uint32_t slots[12] = {[0] = 4, [3] = 0, [4] = 2, [9] = 1, [11] = 3};
  const struct zps_simd *simd;
  for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
    for (uint32_t width = 1; width <= WIDTH_MAX; width++) {
      float sums[N * WIDTH_MAX], values[N * WIDTH_MAX];
      for (uint32_t i = 0; i < N * width; i++) {
        sums[i] = 1000;
        values[i] = (float)i;
      }
      simd->add_rows(sums, slots, BASE, indices, N, width, values);
      for (uint32_t i = 0; i < N; i++)
        for (uint32_t j = 0; j < width; j++)
          assert_true(sums[slots[indices[i] - BASE] * width + j] == 1000 + (float)(i * width + j));
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
               {UINT32_MAX, 3, 30},   {16777216, 128, 0},          {(2 << 20) + 77, 46, 0}};
  struct zps_rng rng = {.state = 3};
  const struct zps_simd *simd;
  for (unsigned c = 0; c < COUNT(cases); c++) {
    struct zps_partition part;
    assert_int_equal(zps_partition_init(&part, cases[c].rows, cases[c].n_parts, cases[c].block_bits, c, NULL), ZPS_OK);
    for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
      const struct zps_simd_chunks chunks = {&part, 11, 29};
      int64_t *const rows = malloc(N * sizeof *rows); /* no byte behind them may be read */
      float *const values = malloc(N * sizeof *values);
      struct zps_simd_entry entries[N + ZPS_SIMD_SLACK];
      uint32_t buckets[N + ZPS_SIMD_SLACK];
      uint32_t locals[N + ZPS_SIMD_SLACK] = {0}, positions[N + ZPS_SIMD_SLACK] = {0};
      uint16_t parts[N + ZPS_SIMD_SLACK];
      uint64_t back[N + ZPS_SIMD_SLACK];
      for (unsigned i = 0; i < N; i++) rows[i] = (int64_t)zps_rng_below(&rng, part.rows);
      rows[0] = 0;
      rows[N - 1] = (int64_t)part.rows - 1;
      for (unsigned i = 0; i < N; i++) values[i] = (float)i;
      assert_true(simd->deal(&chunks, rows, values, N, buckets, entries));
      for (unsigned i = 0; i < N; i++) {
        uint32_t local;
        const uint32_t p = zps_partition_of(&part, (uint64_t)rows[i], &local);
        assert_int_equal(buckets[i], p * chunks.n_chunks + (local >> chunks.chunk_bits));
        assert_int_equal(entries[i].index, local);
        assert_true(entries[i].value == values[i]);
        locals[0] = local;
        simd->rows_of(&part, p, locals, 1, back);
        assert_int_equal(back[0], rows[i]);
      }
      for (unsigned i = 0; i < N; i++) {
        const int64_t row = rows[i];
        rows[i] = i % 2 ? -row - 1 : (int64_t)part.rows + row;
        assert_false(simd->deal(&chunks, rows, values, N, buckets, entries));
        rows[i] = row;
      }
      const struct zps_partition stripe = zps_partition_stripe(&part, zps_partition_stripes(&part) - 1);
      const uint64_t first = stripe.rows > UINT32_MAX ? stripe.rows - UINT32_MAX : 0;
      for (unsigned i = 0; i < N; i++) positions[i] = (uint32_t)zps_rng_below(&rng, stripe.rows - first);
      simd->locate(&stripe, first, positions, N, parts, locals);
      for (unsigned i = 0; i < N; i++) {
        uint32_t local;
        assert_int_equal(parts[i], zps_partition_of(&stripe, first + positions[i], &local));
        assert_int_equal(locals[i], local);
      }
      free(rows);
      free(values);
    }
  }
}

/* The findings of a reader with the loops of `simd`: numbers, the number of those left, the place where it stopped, and
 * marks. */
struct reading {
  uint32_t numbers[RICE_MAX + ZPS_RICE_BLOCK];
  uint32_t n, left, left_skipped;
  uint64_t bit, bit_skipped;
  struct zps_rice_marks marks;
  bool ends;
};

static void read_all(const struct zps_simd *simd, uint32_t m, uint32_t z, const void *code, uint64_t len_bytes,
                     struct reading *reading) {
  struct zps_rice_reader reader;
  zps_simd_use(simd);
  memset(reading, 0, sizeof *reading);
  zps_rice_reader_init(&reader, m, z, code, len_bytes);
  for (uint32_t n; (n = zps_rice_read(&reader, reading->numbers + reading->n)) > 0;) reading->n += n;
  memset(reading->numbers + reading->n, 0, (COUNT(reading->numbers) - reading->n) * sizeof *reading->numbers);
  reading->left = reader.left;
  reading->bit = reader.bit;
  zps_rice_reader_init(&reader, m, z, code, len_bytes);
  reading->ends = zps_rice_skip(&reader, &reading->marks);
  reading->left_skipped = reader.left;
  reading->bit_skipped = reader.bit;
  zps_simd_use(NULL);
}

static void check_readings(uint32_t m, uint32_t z, const void *code, uint64_t len_bytes, struct reading *plain) {
  static struct reading other;
  unsigned char *const exact = malloc(len_bytes + 1); /* no byte behind it may be read */
  assert_non_null(exact);
  memcpy(exact, code, len_bytes);
  read_all(zps_simd_variant(0), m, z, exact, len_bytes, plain);
  assert_int_equal(plain->left_skipped, plain->left);
  assert_int_equal(plain->bit_skipped, plain->bit);
  for (uint32_t i = 1; i < plain->n; i++) assert_true(plain->numbers[i - 1] < plain->numbers[i]);
  assert_true(plain->n == 0 || plain->numbers[plain->n - 1] < m);
  for (unsigned v = 1; zps_simd_variant(v) != NULL; v++) {
    read_all(zps_simd_variant(v), m, z, exact, len_bytes, &other);
    assert_memory_equal(&other, plain, sizeof other);
  }
  free(exact);
}

/* Gaps of every size in turns, so that every parameter is met, and some far beyond their block's. */
static uint32_t draw_numbers(struct zps_rng *rng, unsigned bits_max, uint32_t *numbers) {
  const uint32_t most = (uint32_t)zps_rng_below(rng, RICE_MAX) + 1;
  uint64_t next = 0;
  unsigned bits = 0;
  uint32_t n = 0;
  for (; n < most; n++) {
    if (n % 61 == 0) bits = (unsigned)zps_rng_below(rng, bits_max + 1);
    next += zps_rng_below(rng, 1ull << bits);
    if (zps_rng_below(rng, 200) == 0) next += zps_rng_below(rng, 1ull << bits_max);
    if (next >= UINT32_MAX) break;
    numbers[n] = (uint32_t)next++;
  }
  return n;
}

/* Every variant writes the plain one's bytes, and none behind them; returns how many. */
static uint64_t encode_all(const struct zps_rice_set *set, unsigned char *code) {
  static unsigned char other[8 * RICE_MAX];
  uint64_t len_bytes = 0;
  for (unsigned v = 0; zps_simd_variant(v) != NULL; v++) {
    unsigned char *const to = v == 0 ? code : other;
    zps_simd_use(zps_simd_variant(v));
    const uint64_t n = zps_rice_bytes(set);
    assert_true(n < sizeof other);
    to[n] = 0xa5;
    assert_int_equal(zps_rice_encode(set, to), n);
    assert_int_equal(to[n], 0xa5);
    if (v == 0) len_bytes = n;
    assert_int_equal(n, len_bytes);
    assert_memory_equal(to, code, n);
  }
  zps_simd_use(NULL);
  return len_bytes;
}

static void blocks_are_written_and_read_alike(void **state) {
  (void)state;
  enum { ROUNDS = 400, WRONGS = 8 };
  static struct reading reading;
  static uint32_t numbers[RICE_MAX];
  static unsigned char code[8 * RICE_MAX];
  struct zps_rng rng = {.state = 3};
  for (unsigned round = 0; round < ROUNDS; round++) {
    const uint32_t z = draw_numbers(&rng, round % 32, numbers);
    if (z == 0) continue;
    const uint32_t m = numbers[z - 1] + 1;
    const struct zps_rice_set set = {.m = m, .indices = numbers, .z = z};
    const uint64_t len_bytes = encode_all(&set, code);
    check_readings(m, z, code, len_bytes, &reading);
    assert_true(reading.ends && reading.left == 0 && reading.n == z);
    assert_memory_equal(reading.numbers, numbers, z * sizeof *numbers);
    for (unsigned i = 0; i < WRONGS; i++) {
      check_readings(m - (uint32_t)zps_rng_below(&rng, 2), z + i % 2, code, zps_rng_below(&rng, len_bytes + 1),
                     &reading);
      code[zps_rng_below(&rng, len_bytes)] ^= (unsigned char)(1u << zps_rng_below(&rng, 8));
      check_readings(m, z, code, len_bytes, &reading);
      if (i == WRONGS / 2) memset(code + len_bytes / 2, 0, len_bytes - len_bytes / 2);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_back_is_seen),
      cmocka_unit_test(limits_are_found),
      cmocka_unit_test(added_sums_are_taken),
      cmocka_unit_test(rows_are_taken),
      cmocka_unit_test(values_are_packed),
      cmocka_unit_test(marked_sums_are_taken),
      cmocka_unit_test(values_below_the_limit_are_added),
      cmocka_unit_test(rows_go_to_their_slots),
      cmocka_unit_test(rows_are_located),
      cmocka_unit_test(blocks_are_written_and_read_alike),
  };
  return cmocka_run_group_tests_name("simd", tests, NULL, NULL);
}

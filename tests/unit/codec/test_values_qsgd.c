#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "common/codec/simd/simd.h"
#include "common/codec/values.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const enum zps_value_codec codecs[] = {ZPS_VALUES_QSGD2, ZPS_VALUES_QSGD4, ZPS_VALUES_QSGD8};

/* ------------------------------------------------------------ the definition, value by value */

static double value_of(enum zps_dtype dtype, const void *values, uint64_t i) {
  return dtype == ZPS_DTYPE_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

/* The scale of the bucket that value i is in. */
static float ref_scale(enum zps_dtype dtype, const void *values, uint64_t n, uint64_t i) {
  const uint64_t first = i / 1024 * 1024, end = first + 1024 < n ? first + 1024 : n;
  double largest = 0;
  for (uint64_t j = first; j < end; j++) {
    const double magnitude = fabs(value_of(dtype, values, j));
    if (!(magnitude <= (double)FLT_MAX)) return NAN;
    if (magnitude > largest) largest = magnitude;
  }
  const float scale = (float)largest;
  return (double)scale < largest ? nextafterf(scale, INFINITY) : scale;
}

static int ref_level(unsigned bits, double value, float scale, uint64_t key, uint64_t i) {
  if (!(scale > 0)) return 0;
  const uint64_t h = zps_hash_mix64(key + 8 * (i / 16) + i % 8);
  const uint32_t r = i % 16 < 8 ? (uint32_t)h : (uint32_t)(h >> 32);
  const double s = (1 << (bits - 1)) - 1, level = floor(fabs(value) * (s / (double)scale) + (r + 0.5) * 0x1p-32);
  return (int)(value < 0 ? -level : level);
}

static float ref_decode(unsigned bits, int level, float scale) {
  const double s = (1 << (bits - 1)) - 1;
  return (float)(level * ((double)scale / s));
}

/* Level i of a list, as the wire has it. */
static int level_at(unsigned bits, const unsigned char *levels, uint64_t i) {
  const unsigned code = levels[i * bits / 8] >> (i * bits % 8) & ((1u << bits) - 1);
  return (int)code - (code >> (bits - 1) ? 1 << bits : 0);
}

static void check_list(enum zps_value_codec codec, enum zps_dtype dtype, const void *values, uint64_t n, uint64_t key) {
  const unsigned bits = zps_values_level_bits(codec);
  const uint64_t len = zps_values_bytes(codec, dtype, n), n_buckets = (n + 1023) / 1024;
  unsigned char *const list = malloc(len + 1);
  char *const decoded = malloc(n * zps_dtype_size(dtype) + 1);
  struct zps_error error;
  assert_non_null(list);
  assert_non_null(decoded);
  memset(list, 0xee, len + 1);
  zps_values_encode(codec, dtype, values, n, key, list);
  assert_int_equal(list[len], 0xee);
  if (zps_values_check(codec, dtype, list, n, &error) != ZPS_OK) fail_msg("%s", error.text);
  zps_values_decode(codec, dtype, list, n, 0, n, decoded);
  float scale = 0, expected_scale = 0;
  for (uint64_t i = 0; i < n; i++) {
    if (i % 1024 == 0) {
      memcpy(&scale, list + 4 * (i / 1024), sizeof scale);
      expected_scale = ref_scale(dtype, values, n, i);
      if (!(scale == expected_scale || (isnan(scale) && isnan(expected_scale))))
        fail_msg("bucket %llu has scale %a, not %a", (unsigned long long)i / 1024, (double)scale,
                 (double)expected_scale);
    }
    const int level = level_at(bits, list + 4 * n_buckets, i);
    const int expected = ref_level(bits, value_of(dtype, values, i), scale, key, i);
    if (level != expected) fail_msg("value %llu has level %d, not %d", (unsigned long long)i, level, expected);
    const double value = value_of(dtype, decoded, i), meant = (double)ref_decode(bits, level, scale);
    if (!(value == meant || (isnan(value) && isnan(meant))))
      fail_msg("value %llu becomes %a, not %a", (unsigned long long)i, value, meant);
    if (!isnan(scale)) { /* beside the rounding to a float, of the value or of the decoded value */
      const double s = (1 << (bits - 1)) - 1;
      assert_true(fabs(value - value_of(dtype, values, i)) <= (double)scale / s + (double)scale * 0x1p-23 + 0x1p-149);
    }
  }
  free(list);
  free(decoded);
}

static void draw(struct zps_rng *rng, enum zps_dtype dtype, void *values, uint64_t n, int exponents) {
  for (uint64_t i = 0; i < n; i++) {
    double value = ldexp(zps_rng_unit(rng) - 0.5, (int)zps_rng_below(rng, (uint64_t)exponents) - exponents / 2);
    if (zps_rng_below(rng, 20) == 0) value = zps_rng_below(rng, 2) ? 0.0 : -0.0;
    if (dtype == ZPS_DTYPE_F64)
      ((double *)values)[i] = value;
    else
      ((float *)values)[i] = (float)value;
  }
}

static void set(enum zps_dtype dtype, void *values, uint64_t i, double value) {
  if (dtype == ZPS_DTYPE_F64)
    ((double *)values)[i] = value;
  else
    ((float *)values)[i] = (float)value;
}

static void check_definition(void) {
  enum { N = 4100 };
  static const uint64_t lengths[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 1023, 1024, 1025, 1040, 2048, N};
  static const double odd[] = {INFINITY, -INFINITY, NAN, 0x1.fffffep127, -0x1p-149, 0x1.fffffffp127, -0x1p-1060, 1e300};
  struct zps_rng rng = {.state = 7};
  double values[N];
  for (unsigned c = 0; c < COUNT(codecs); c++) {
    for (enum zps_dtype dtype = ZPS_DTYPE_F32; dtype <= ZPS_DTYPE_F64; dtype++) {
      for (unsigned i = 0; i < COUNT(lengths); i++) {
        draw(&rng, dtype, values, lengths[i], 4);
        check_list(codecs[c], dtype, values, lengths[i], zps_rng_u64(&rng));
        draw(&rng, dtype, values, lengths[i], 290); /* floats from subnormal to infinite */
        check_list(codecs[c], dtype, values, lengths[i], zps_rng_u64(&rng));
      }
      for (unsigned i = 0; i < COUNT(odd); i++) { /* alone among small ones, and alone at all */
        draw(&rng, dtype, values, N, 20);
        set(dtype, values, 1030, odd[i]);
        check_list(codecs[c], dtype, values, N, i);
        check_list(codecs[c], dtype, (const char *)values + 1030 * zps_dtype_size(dtype), 1, i);
      }
      memset(values, 0, sizeof values);
      check_list(codecs[c], dtype, values, N, 1);
    }
  }
}

static void every_table_follows_the_definition(void **state) {
  (void)state;
  const struct zps_simd *simd;
  for (unsigned i = 0; (simd = zps_simd_variant(i)) != NULL; i++) {
    zps_simd_use(simd);
    check_definition();
  }
  zps_simd_use(NULL);
}

/* ------------------------------------------------------------ chance */

static uint64_t key_of(uint64_t seed, uint32_t tensor, uint32_t partition, uint64_t step, uint32_t rank) {
  const struct zps_values_origin origin = {.seed = seed, .step = step, .tensor = tensor, .rank = rank};
  return zps_values_key(&origin, partition);
}

/* Over many steps the mean of the values that come out for one value is that value: within what the binomial
 * distribution allows, each of them, and all of them together. */
static void levels_are_unbiased(void **state) {
  enum { N = 1024, STEPS = 3000 };
  struct zps_rng rng = {.state = 8};
  float values[N], decoded[N];
  (void)state;
  draw(&rng, ZPS_DTYPE_F32, values, N, 6);
  const double scale = (double)ref_scale(ZPS_DTYPE_F32, values, N, 0);
  for (unsigned c = 0; c < COUNT(codecs); c++) {
    static double sums[N];
    unsigned char list[4 + N];
    const unsigned bits = zps_values_level_bits(codecs[c]);
    const double unit = scale / ((1 << (bits - 1)) - 1);
    memset(sums, 0, sizeof sums);
    for (uint64_t step = 0; step < STEPS; step++) {
      zps_values_encode(codecs[c], ZPS_DTYPE_F32, values, N, key_of(1, 2, 3, step, 0), list);
      zps_values_decode(codecs[c], ZPS_DTYPE_F32, list, N, 0, N, decoded);
      for (unsigned i = 0; i < N; i++) sums[i] += (double)decoded[i];
    }
    double squares = 0;
    unsigned n_random = 0;
    for (unsigned i = 0; i < N; i++) {
      const double exact = fabs((double)values[i]) / unit, up = exact - floor(exact);
      const double off = sums[i] / STEPS - (double)values[i], sigma = unit * sqrt(up * (1 - up) / STEPS);
      /* 5 sigma, and for levels that come up a few times in all the steps, a few times more */
      assert_true(fabs(off) <= 5 * sigma + unit * 10 / STEPS);
      if (up * STEPS < 20 || (1 - up) * STEPS < 20) continue;
      squares += off * off / (sigma * sigma);
      n_random++;
    }
    assert_true(n_random > N / 8);
    /* a chi-square over n degrees of freedom has the mean n and the variance 2n */
    assert_true(fabs(squares - n_random) < 5 * sqrt(2.0 * n_random));
  }
}

static void keys_decide(void **state) {
  enum { N = 512 };
  struct zps_rng rng = {.state = 9};
  float values[N];
  unsigned char lists[7][4 + N];
  (void)state;
  draw(&rng, ZPS_DTYPE_F32, values, N, 3);
  const uint64_t keys[7] = {key_of(1, 2, 3, 4, 5), key_of(1, 2, 3, 4, 5), key_of(9, 2, 3, 4, 5), key_of(1, 9, 3, 4, 5),
                            key_of(1, 2, 9, 4, 5), key_of(1, 2, 3, 9, 5), key_of(1, 2, 3, 4, 9)};
  for (unsigned i = 0; i < 7; i++) zps_values_encode(ZPS_VALUES_QSGD8, ZPS_DTYPE_F32, values, N, keys[i], lists[i]);
  assert_memory_equal(lists[0], lists[1], sizeof lists[0]);
  for (unsigned i = 1; i < 7; i++) {
    for (unsigned j = i + 1; j < 7; j++) {
      unsigned n_other = 0;
      for (unsigned k = 4; k < 4 + N; k++) n_other += lists[i][k] != lists[j][k];
      assert_in_range(n_other, N / 5, N / 2); /* a third of all levels, for fractions that are spread evenly */
    }
  }
}

/* ------------------------------------------------------------ what a peer may not send */

static void expect_refused(enum zps_value_codec codec, const void *list, uint64_t n, const char *text) {
  struct zps_error error;
  assert_int_equal(zps_values_check(codec, ZPS_DTYPE_F32, list, n, &error), ZPS_ERR_PROTOCOL);
  if (!strstr(error.text, text)) fail_msg("'%s' lacks '%s'", error.text, text);
}

static void impossible_levels_are_refused(void **state) {
  enum { N = 1100 };
  float values[N];
  unsigned char list[8 + N];
  char text[64];
  (void)state;
  for (unsigned i = 0; i < N; i++) values[i] = (float)(i % 11) - 5;
  for (unsigned c = 0; c < COUNT(codecs); c++) {
    const unsigned bits = zps_values_level_bits(codecs[c]);
    zps_values_encode(codecs[c], ZPS_DTYPE_F32, values, N, 3, list);
    for (unsigned at = 0; at < N; at++) {
      unsigned char *const byte = &list[8 + at * bits / 8], before = *byte;
      const unsigned shift = at * bits % 8;
      *byte = (unsigned char)((*byte & ~(((1u << bits) - 1) << shift)) | 1u << (bits - 1) << shift);
      snprintf(text, sizeof text, "level %d at position %u of 1100", -(1 << (bits - 1)), at);
      expect_refused(codecs[c], list, N, text);
      *byte = before;
    }
    assert_int_equal(zps_values_check(codecs[c], ZPS_DTYPE_F32, list, N, NULL), ZPS_OK);
  }
}

static void bad_padding_is_refused(void **state) {
  float values[17];
  unsigned char list[64];
  (void)state;
  for (unsigned i = 0; i < 17; i++) values[i] = (float)i + 1;
  for (unsigned c = 0; c < COUNT(codecs); c++) {
    const unsigned bits = zps_values_level_bits(codecs[c]);
    const uint64_t len = zps_values_bytes(codecs[c], ZPS_DTYPE_F32, 17);
    zps_values_encode(codecs[c], ZPS_DTYPE_F32, values, 17, 3, list);
    for (uint64_t bit = 32 + 17 * bits; bit < 8 * len; bit += bits) { /* these levels are possible ones */
      list[bit / 8] ^= (unsigned char)(1u << bit % 8);
      expect_refused(codecs[c], list, 17, "beyond the last of 17 levels");
      list[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
  }
  for (enum zps_value_codec codec = ZPS_VALUES_BF16; codec <= ZPS_VALUES_F16; codec++) {
    zps_values_encode(codec, ZPS_DTYPE_F32, values, 17, 3, list);
    for (unsigned bit = 17 * 16; bit < 18 * 16; bit++) {
      list[bit / 8] ^= (unsigned char)(1u << bit % 8);
      expect_refused(codec, list, 17, "beyond the last of 17 values");
      list[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
  }
}

static void bad_scales_are_refused(void **state) {
  enum { N = 1030 };
  static const uint32_t bad[] = {0x80000000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00001, 0xffc00000, 0x7f800001};
  static const uint32_t void_scales[] = {0, 0x7fc00000};
  float values[N];
  unsigned char list[8 + N + 2];
  (void)state;
  for (unsigned i = 0; i < N; i++) values[i] = 1;
  for (unsigned c = 0; c < COUNT(codecs); c++) {
    zps_values_encode(codecs[c], ZPS_DTYPE_F32, values, N, 3, list);
    for (unsigned i = 0; i < COUNT(bad); i++) {
      memcpy(list + 4, &bad[i], 4);
      expect_refused(codecs[c], list, N, "the scale of bucket 1 is");
    }
    for (unsigned i = 0; i < COUNT(void_scales); i++) {
      memcpy(list + 4, &void_scales[i], 4);
      expect_refused(codecs[c], list, N, "bucket 1 has the scale");
    }
    const float fine = 0x1p-149f;
    memcpy(list + 4, &fine, 4);
    assert_int_equal(zps_values_check(codecs[c], ZPS_DTYPE_F32, list, N, NULL), ZPS_OK);
  }
  assert_int_equal(zps_values_check(ZPS_VALUES_F16, ZPS_DTYPE_U8, list, N, NULL), ZPS_ERR_INVALID);
  assert_int_equal(zps_values_check((enum zps_value_codec)9, ZPS_DTYPE_F32, list, N, NULL), ZPS_ERR_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_table_follows_the_definition),
      cmocka_unit_test(levels_are_unbiased),
      cmocka_unit_test(keys_decide),
      cmocka_unit_test(impossible_levels_are_refused),
      cmocka_unit_test(bad_padding_is_refused),
      cmocka_unit_test(bad_scales_are_refused),
  };
  return cmocka_run_group_tests_name("values_qsgd", tests, NULL, NULL);
}

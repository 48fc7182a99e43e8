#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/codec.h"
#include "common/codec/simd/simd.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const enum zps_value_codec all[] = {ZPS_VALUES_RAW,   ZPS_VALUES_BF16,  ZPS_VALUES_F16,
                                           ZPS_VALUES_QSGD2, ZPS_VALUES_QSGD4, ZPS_VALUES_QSGD8};

static void names_and_dtypes(void **state) {
  static const char *const names[] = {"raw", "bf16", "f16", "qsgd2", "qsgd4", "qsgd8"};
  (void)state;
  for (unsigned i = 0; i < COUNT(all); i++) {
    assert_string_equal(zps_values_name(all[i]), names[i]);
    assert_true(zps_values_suit(all[i], ZPS_DTYPE_F32));
    assert_true(zps_values_suit(all[i], ZPS_DTYPE_F64));
    assert_int_equal(zps_values_suit(all[i], ZPS_DTYPE_U8), all[i] == ZPS_VALUES_RAW);
    assert_false(zps_values_suit(all[i], (enum zps_dtype)0));
  }
  assert_false(zps_values_suit((enum zps_value_codec)0, ZPS_DTYPE_F32));
  assert_false(zps_values_suit((enum zps_value_codec)7, ZPS_DTYPE_F32));
  assert_false(zps_values_suit((enum zps_value_codec) - 1, ZPS_DTYPE_F32));
  assert_string_equal(zps_values_name((enum zps_value_codec)0), "?");
  assert_string_equal(zps_values_name((enum zps_value_codec)7), "?");
}

static void sizes(void **state) {
  static const uint64_t lengths[] = {0, 1, 2, 3, 4, 5, 15, 16, 17, 1023, 1024, 1025, 2048, 99999, 1ull << 40};
  (void)state;
  for (unsigned i = 0; i < COUNT(lengths); i++) {
    const uint64_t n = lengths[i], n_buckets = (n + 1023) / 1024;
    assert_int_equal(zps_values_bytes(ZPS_VALUES_RAW, ZPS_DTYPE_F32, n), 4 * n);
    assert_int_equal(zps_values_bytes(ZPS_VALUES_RAW, ZPS_DTYPE_F64, n), 8 * n);
    assert_int_equal(zps_values_bytes(ZPS_VALUES_RAW, ZPS_DTYPE_U8, n), n);
    for (enum zps_dtype dtype = ZPS_DTYPE_F32; dtype <= ZPS_DTYPE_F64; dtype++) {
      assert_int_equal(zps_values_bytes(ZPS_VALUES_BF16, dtype, n), 4 * ((n + 1) / 2));
      assert_int_equal(zps_values_bytes(ZPS_VALUES_F16, dtype, n), 4 * ((n + 1) / 2));
      assert_int_equal(zps_values_bytes(ZPS_VALUES_QSGD2, dtype, n), 4 * n_buckets + 4 * ((2 * n + 31) / 32));
      assert_int_equal(zps_values_bytes(ZPS_VALUES_QSGD4, dtype, n), 4 * n_buckets + 4 * ((4 * n + 31) / 32));
      assert_int_equal(zps_values_bytes(ZPS_VALUES_QSGD8, dtype, n), 4 * n_buckets + 4 * ((8 * n + 31) / 32));
    }
  }
  for (unsigned i = 0; i < COUNT(all); i++)
    assert_int_equal(zps_values_bytes(all[i], ZPS_DTYPE_F64, UINT64_MAX), UINT64_MAX);
  assert_true(zps_values_bound_bytes(ZPS_VALUES_RAW, ZPS_DTYPE_F64, 3) == 24);
  assert_true(zps_values_bound_bytes(ZPS_VALUES_F16, ZPS_DTYPE_F64, 3) == 6);
  assert_true(zps_values_bound_bytes(ZPS_VALUES_QSGD2, ZPS_DTYPE_F32, 1025) == 8 + 256.25);
  const uint64_t n = (uint64_t)UINT32_MAX * UINT32_MAX;
  assert_int_equal(zps_values_bytes(ZPS_VALUES_RAW, ZPS_DTYPE_F32, n), UINT64_MAX);
  assert_int_equal(
      zps_codec_slice_bytes(ZPS_CODEC_COO, UINT32_MAX, UINT32_MAX, UINT32_MAX, ZPS_DTYPE_F32, ZPS_VALUES_BF16),
      UINT64_MAX);
  assert_int_equal(zps_codec_slice_bytes(ZPS_CODEC_COO, 1000, 10, 3, ZPS_DTYPE_F32, ZPS_VALUES_BF16), 60 + 40);
  assert_int_equal(zps_codec_slice_bytes(ZPS_CODEC_COO, 1000, 11, 1, ZPS_DTYPE_F64, ZPS_VALUES_QSGD4), 4 + 8 + 44);
}

/* ------------------------------------------------------------ bf16 and f16 */

struct format {
  enum zps_value_codec codec;
  int fraction_bits, exponent_min;
  double largest;
};
static const struct format formats[] = {{ZPS_VALUES_BF16, 7, -126, 0x1.fep127}, {ZPS_VALUES_F16, 10, -14, 65504}};

/* The value of the 16 bits, by the definition. */
static double half_value(const struct format *format, uint16_t half) {
  const int fraction = half & ((1 << format->fraction_bits) - 1), exponent = (half & 0x7fff) >> format->fraction_bits;
  const int top = (1 << (15 - format->fraction_bits)) - 1;
  double value = exponent == top ? (fraction ? NAN : INFINITY)
                 : exponent == 0 ? ldexp(fraction, format->exponent_min - format->fraction_bits)
                                 : ldexp(fraction + (1 << format->fraction_bits),
                                         exponent - 1 + format->exponent_min - format->fraction_bits);
  return half & 0x8000 ? -value : value;
}

/* The nearest number of the format, the even one of two. */
static double rounded(const struct format *format, double value) {
  if (isnan(value) || isinf(value) || value == 0) return value;
  int exponent = ilogb(value);
  if (exponent < format->exponent_min) exponent = format->exponent_min;
  const int shift = format->fraction_bits - exponent;
  const double nearest = ldexp(rint(ldexp(value, shift)), -shift);
  return fabs(nearest) > format->largest ? copysign(INFINITY, value) : copysign(nearest, value);
}

static bool same(double a, double b) {
  if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
  return a == b && !signbit(a) == !signbit(b);
}

/* Codes n values with the table in use and holds every one against the reference. */
static void check_rounding(const struct format *format, enum zps_dtype dtype, const void *values, uint64_t n) {
  uint16_t *const halves = malloc(zps_values_bytes(format->codec, dtype, n) + 1);
  void *const back = malloc(n * zps_dtype_size(dtype) + 1);
  assert_non_null(halves);
  assert_non_null(back);
  zps_values_encode(format->codec, dtype, values, n, 0, halves);
  if (n % 2) assert_int_equal(halves[n], 0);
  assert_int_equal(zps_values_check(format->codec, dtype, halves, n, NULL), ZPS_OK);
  zps_values_decode(format->codec, dtype, halves, n, 0, n, back);
  for (uint64_t i = 0; i < n; i++) {
    const bool is_f64 = dtype == ZPS_DTYPE_F64;
    const double value = is_f64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
    const double decoded = is_f64 ? ((const double *)back)[i] : (double)((const float *)back)[i];
    const double expected = rounded(format, value);
    if (!same(half_value(format, halves[i]), expected) || !same(decoded, expected))
      fail_msg("%s: %a became 0x%04x, and then %a; nearest is %a", zps_values_name(format->codec), value, halves[i],
               decoded, expected);
  }
  free(halves);
  free(back);
}

static void for_all_tables(void (*check)(void)) {
  const struct zps_simd *simd;
  for (unsigned i = 0; (simd = zps_simd_variant(i)) != NULL; i++) {
    zps_simd_use(simd);
    check();
  }
  zps_simd_use(NULL);
}

/* Around every number of the format and every tie between two of them. */
static void check_boundaries(void) {
  enum { PER_HALF = 12, HALVES = 0x8000 };
  double *const wide = malloc(HALVES * PER_HALF * sizeof *wide);
  float *const narrow = malloc(HALVES * PER_HALF * sizeof *narrow);
  assert_non_null(wide);
  assert_non_null(narrow);
  for (unsigned f = 0; f < COUNT(formats); f++) {
    uint64_t n = 0;
    for (unsigned half = 0; half_value(&formats[f], (uint16_t)half) <= formats[f].largest; half++) {
      const double here = half_value(&formats[f], (uint16_t)half);
      double next = half_value(&formats[f], (uint16_t)(half + 1));
      if (isinf(next)) next = here + (here - half_value(&formats[f], (uint16_t)(half - 1)));
      const double at[2] = {here, (here + next) / 2}; /* the second is a tie */
      for (unsigned i = 0; i < 2; i++) {
        for (int sign = 1; sign >= -1; sign -= 2) {
          wide[n] = sign * at[i];
          narrow[n++] = (float)(sign * at[i]);
          wide[n] = sign * nextafter(at[i], INFINITY);
          narrow[n++] = (float)sign * nextafterf((float)at[i], INFINITY);
          wide[n] = sign * nextafter(at[i], -INFINITY);
          narrow[n++] = (float)sign * nextafterf((float)at[i], -INFINITY);
        }
      }
    }
    assert_true(n <= HALVES * PER_HALF);
    check_rounding(&formats[f], ZPS_DTYPE_F64, wide, n);
    check_rounding(&formats[f], ZPS_DTYPE_F32, narrow, n);
  }
  free(wide);
  free(narrow);
}

static void every_boundary_is_rounded_to_even(void **state) {
  (void)state;
  for_all_tables(check_boundaries);
}

/* Any float, any double, and lists of any length. */
static void check_random(void) {
  enum { N = 20000 };
  struct zps_rng rng = {.state = 3};
  double *const wide = malloc(N * sizeof *wide);
  float *const narrow = malloc(N * sizeof *narrow);
  assert_non_null(wide);
  assert_non_null(narrow);
  for (unsigned i = 0; i < N; i++) {
    const uint32_t bits = (uint32_t)zps_rng_u64(&rng);
    memcpy(&narrow[i], &bits, sizeof bits);
    wide[i] = i % 2 ? ldexp(zps_rng_unit(&rng) - 0.5, (int)zps_rng_below(&rng, 300) - 150)
                    : (double)narrow[i] * (1 + 0x1p-40 * (double)zps_rng_below(&rng, 3));
  }
  wide[0] = DBL_TRUE_MIN;
  wide[1] = -DBL_MAX;
  for (unsigned f = 0; f < COUNT(formats); f++) {
    check_rounding(&formats[f], ZPS_DTYPE_F32, narrow, N);
    check_rounding(&formats[f], ZPS_DTYPE_F64, wide, N);
    for (uint64_t n = 0; n < 40; n++) {
      check_rounding(&formats[f], ZPS_DTYPE_F32, narrow, n);
      check_rounding(&formats[f], ZPS_DTYPE_F64, wide, n);
    }
  }
  free(wide);
  free(narrow);
}

static void any_value_is_rounded_to_the_nearest(void **state) {
  (void)state;
  for_all_tables(check_random);
}

/* A NaN keeps its sign and the upper bits of its payload, and becomes quiet; so do NaNs that a peer sends. */
static void check_nans(void) {
  static const uint32_t bits[] = {0x7f800001, 0xff800001, 0x7fffffff, 0xffc00000, 0x7fa5a5a5, 0xff912345};
  for (unsigned f = 0; f < COUNT(formats); f++) {
    const int lost = 23 - formats[f].fraction_bits, bias_bits = 15 - formats[f].fraction_bits;
    for (unsigned i = 0; i < COUNT(bits); i++) {
      const uint32_t fraction = (bits[i] & 0x7fffff) >> lost;
      const uint32_t quiet = 1u << (formats[f].fraction_bits - 1);
      const uint16_t expected = (uint16_t)(bits[i] >> 16 & 0x8000) |
                                (uint16_t)(((1u << bias_bits) - 1) << formats[f].fraction_bits) |
                                (uint16_t)(fraction | quiet);
      uint32_t back, expected_back = (bits[i] & 0xff800000) | (fraction | quiet) << lost;
      uint16_t halves[2];
      const uint64_t double_bits =
          (uint64_t)(bits[i] >> 31) << 63 | 0x7ff0000000000000ull | (uint64_t)(bits[i] & 0x7fffff) << 29;
      zps_values_encode(formats[f].codec, ZPS_DTYPE_F32, &bits[i], 1, 0, halves);
      assert_int_equal(halves[0], expected);
      zps_values_decode(formats[f].codec, ZPS_DTYPE_F32, halves, 1, 0, 1, &back);
      assert_int_equal(back, expected_back);
      zps_values_encode(formats[f].codec, ZPS_DTYPE_F64, &double_bits, 1, 0, halves);
      assert_int_equal(halves[0], expected);
      halves[0] &= (uint16_t)~quiet;
      halves[0] |= 1;
      zps_values_decode(formats[f].codec, ZPS_DTYPE_F32, halves, 1, 0, 1, &back);
      assert_int_equal(back & 0x7fc00000, 0x7fc00000);
    }
  }
}

static void nans_stay(void **state) {
  (void)state;
  for_all_tables(check_nans);
}

static void check_halves(void) {
  for (unsigned f = 0; f < COUNT(formats); f++) {
    for (unsigned half = 0; half < 0x10000; half++) {
      uint16_t pair[2] = {(uint16_t)half, 0};
      float value;
      double wide;
      zps_values_decode(formats[f].codec, ZPS_DTYPE_F32, pair, 1, 0, 1, &value);
      zps_values_decode(formats[f].codec, ZPS_DTYPE_F64, pair, 1, 0, 1, &wide);
      assert_true(same((double)value, half_value(&formats[f], (uint16_t)half)));
      assert_true(same(wide, half_value(&formats[f], (uint16_t)half)));
    }
  }
}

static void every_half_has_its_value(void **state) {
  (void)state;
  for_all_tables(check_halves);
}

/* ------------------------------------------------------------ lists */

/* A list that is written in pieces is the one that is written at once, and any part of it can be read. */
static void pieces_make_the_same_list(void **state) {
  enum { N = 5003 };
  struct zps_rng rng = {.state = 4};
  (void)state;
  for (enum zps_dtype dtype = ZPS_DTYPE_F32; dtype <= ZPS_DTYPE_F64; dtype++) {
    const size_t size = zps_dtype_size(dtype);
    double values[N], decoded[N], part[N];
    for (unsigned i = 0; i < N; i++) {
      const double value = (zps_rng_unit(&rng) - 0.5) * pow(2, (double)zps_rng_below(&rng, 20));
      if (dtype == ZPS_DTYPE_F32)
        ((float *)values)[i] = (float)value;
      else
        values[i] = value;
    }
    for (unsigned c = 0; c < COUNT(all); c++) {
      const uint64_t len = zps_values_bytes(all[c], dtype, N);
      unsigned char *const once = malloc(len), *const pieces = malloc(len);
      struct zps_values_writer writer;
      assert_non_null(once);
      assert_non_null(pieces);
      memset(pieces, 0xee, len);
      zps_values_encode(all[c], dtype, values, N, 77, once);
      zps_values_writer_init(&writer, all[c], dtype, N, 77, pieces);
      for (uint64_t at = 0, n; at < N; at += n) {
        n = zps_rng_below(&rng, 3) ? zps_rng_below(&rng, 40) : zps_rng_below(&rng, 2500);
        if (n > N - at) n = N - at;
        zps_values_writer_put(&writer, (const char *)values + at * size, n);
      }
      zps_values_writer_end(&writer);
      assert_memory_equal(once, pieces, len);
      assert_int_equal(zps_values_check(all[c], dtype, once, N, NULL), ZPS_OK);
      zps_values_decode(all[c], dtype, once, N, 0, N, decoded);
      if (all[c] == ZPS_VALUES_RAW) assert_memory_equal(decoded, values, N * size);
      for (unsigned i = 0; i < 500; i++) {
        const uint64_t first = zps_rng_below(&rng, N),
                       n = zps_rng_below(&rng, i % 2 ? 40 : N - first + 1) % (N - first + 1);
        zps_values_decode(all[c], dtype, once, N, first, n, part);
        assert_memory_equal(part, (const char *)decoded + first * size, n * size);
      }
      free(once);
      free(pieces);
    }
  }
}

/* A slice's index follows the coded values, and its rows are read wherever they lie. */
static void slices_carry_them(void **state) {
  enum { M = 100, Z = 37, WIDTH = 5 };
  uint32_t indices[Z];
  float values[Z * WIDTH], room[Z * WIDTH], expected[Z * WIDTH];
  (void)state;
  for (unsigned i = 0; i < Z; i++) indices[i] = 2 * i + 1;
  for (unsigned i = 0; i < Z * WIDTH; i++) values[i] = (float)i - 80.5f;
  for (unsigned c = 0; c < COUNT(all); c++) {
    const uint64_t len = zps_codec_slice_bytes(ZPS_CODEC_COO, M, Z, WIDTH, ZPS_DTYPE_F32, all[c]);
    const uint64_t values_bytes = zps_values_bytes(all[c], ZPS_DTYPE_F32, Z * WIDTH);
    char *const payload = malloc(len);
    struct zps_slice_view view;
    struct zps_error error;
    assert_non_null(payload);
    assert_int_equal(len, values_bytes + 4 * Z);
    zps_values_encode(all[c], ZPS_DTYPE_F32, values, Z * WIDTH, 5, payload);
    zps_codec_index_encode(ZPS_CODEC_COO, M, indices, Z, payload + values_bytes);
    assert_int_equal(zps_slice_view_init(&view, ZPS_CODEC_COO, M, Z, WIDTH, ZPS_DTYPE_F32, all[c], payload, len, NULL),
                     ZPS_OK);
    zps_values_decode(all[c], ZPS_DTYPE_F32, payload, Z * WIDTH, 0, Z * WIDTH, expected);
    assert_memory_equal(zps_slice_values(&view, 0, Z, room), expected, sizeof expected);
    assert_memory_equal(zps_slice_values(&view, 11, 3, room), expected + 11 * WIDTH, 3 * WIDTH * sizeof(float));
    assert_int_equal(zps_slice_check_sizes(ZPS_CODEC_COO, M, Z, WIDTH, ZPS_DTYPE_F32, all[c], len + 4, &error),
                     ZPS_ERR_PROTOCOL);
    if (all[c] != ZPS_VALUES_RAW) assert_non_null(strstr(error.text, zps_values_name(all[c])));
    free(payload);
  }
  assert_int_equal(zps_slice_check_sizes(ZPS_CODEC_COO, M, 1, 1, ZPS_DTYPE_U8, ZPS_VALUES_F16, 8, NULL),
                   ZPS_ERR_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_and_dtypes),
      cmocka_unit_test(sizes),
      cmocka_unit_test(every_boundary_is_rounded_to_even),
      cmocka_unit_test(any_value_is_rounded_to_the_nearest),
      cmocka_unit_test(nans_stay),
      cmocka_unit_test(every_half_has_its_value),
      cmocka_unit_test(pieces_make_the_same_list),
      cmocka_unit_test(slices_carry_them),
  };
  return cmocka_run_group_tests_name("values", tests, NULL, NULL);
}

/* Magnitudes are compared as integers, by the sign of a difference: no compare that a processor in a flushing mode, or
 * a NaN, would turn around, and none that the oldest x86-64 lacks for 64 bits. */
#include "worker/select/scan.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "common/codec/bits.h"
#include "worker/select/magnitude.h"
#include "worker/select/order.h"

/* ------------------------------------------------------------ the bits of 64 values */

static uint64_t bits_of_few(enum zps_dtype dtype, const void *values, uint64_t n, uint64_t magnitude) {
  uint64_t bits = 0;
  for (uint64_t i = 0; i < n; i++) bits |= (uint64_t)(zps_magnitude_at(dtype, values, i) >= magnitude) << i;
  return bits;
}

#ifdef __SSE2__
static uint64_t bits_of_64_f32(const float *values, uint64_t magnitude) {
  const __m128i below = _mm_set1_epi32((int)(magnitude - 1)), mask = _mm_set1_epi32(0x7fffffff);
  uint64_t bits = 0;
  for (unsigned i = 0; i < 64; i += 16) {
    __m128i is[4];
    for (unsigned j = 0; j < 4; j++) {
      const __m128i value = _mm_loadu_si128((const __m128i *)(const void *)(values + i + 4 * j));
      is[j] = _mm_sub_epi32(below, _mm_and_si128(value, mask));
    }
    const __m128i all = _mm_packs_epi16(_mm_packs_epi32(is[0], is[1]), _mm_packs_epi32(is[2], is[3]));
    bits |= (uint64_t)(unsigned)_mm_movemask_epi8(all) << i;
  }
  return bits;
}

static uint64_t bits_of_64_f64(const double *values, uint64_t magnitude) {
  const __m128i below = _mm_set1_epi64x((long long)(magnitude - 1)), mask = _mm_set1_epi64x(INT64_MAX);
  uint64_t bits = 0;
  for (unsigned i = 0; i < 64; i += 4) {
    __m128i is[2];
    for (unsigned j = 0; j < 2; j++) {
      const __m128i value = _mm_loadu_si128((const __m128i *)(const void *)(values + i + 2 * j));
      is[j] = _mm_sub_epi64(below, _mm_and_si128(value, mask));
    }
    const __m128 high = _mm_shuffle_ps(_mm_castsi128_ps(is[0]), _mm_castsi128_ps(is[1]), _MM_SHUFFLE(3, 1, 3, 1));
    bits |= (uint64_t)(unsigned)_mm_movemask_ps(high) << i;
  }
  return bits;
}
#else
static uint64_t bits_of_64_f32(const float *values, uint64_t magnitude) {
  return bits_of_few(ZPS_DTYPE_F32, values, 64, magnitude);
}

static uint64_t bits_of_64_f64(const double *values, uint64_t magnitude) {
  return bits_of_few(ZPS_DTYPE_F64, values, 64, magnitude);
}
#endif

/* Positions, from 0, of up to a block of values. `at` has room for three more. */
static uint32_t list(enum zps_dtype dtype, const char *values, uint32_t n, uint64_t magnitude, uint32_t *at) {
  const size_t size = zps_dtype_size(dtype);
  uint32_t i = 0, n_found = 0;
  for (; i + 64 <= n; i += 64) {
    const void *const from = values + i * size;
    const uint64_t bits = dtype == ZPS_DTYPE_F32 ? bits_of_64_f32(from, magnitude) : bits_of_64_f64(from, magnitude);
    if (bits) n_found += zps_bits_list(bits, i, at + n_found);
  }
  const uint64_t rest = i < n ? bits_of_few(dtype, values + i * size, n - i, magnitude) : 0;
  if (rest) n_found += zps_bits_list(rest, i, at + n_found);
  return n_found;
}

/* ------------------------------------------------------------ picks */

static void copy_value(enum zps_dtype dtype, void *to, uint64_t to_i, const void *from, uint64_t from_i) {
  if (dtype == ZPS_DTYPE_F32)
    ((float *)to)[to_i] = ((const float *)from)[from_i];
  else
    ((double *)to)[to_i] = ((const double *)from)[from_i];
}

static bool append(enum zps_dtype dtype, const void *values, uint64_t base, const uint32_t *at, uint32_t n,
                   uint64_t magnitude, uint64_t *ties, struct zps_picks *picks) {
  for (uint32_t j = 0; j < n; j++) {
    const uint64_t id = base + at[j];
    if (zps_magnitude_at(dtype, values, id) == magnitude) {
      if (*ties == 0) continue;
      --*ties;
    }
    if (picks->n == picks->capacity) return false;
    picks->ids[picks->n] = (int64_t)id;
    copy_value(dtype, picks->values, picks->n++, values, id);
  }
  return true;
}

bool zps_scan_pick(enum zps_dtype dtype, const void *values, uint64_t begin, uint64_t end, uint64_t magnitude,
                   uint64_t *ties, struct zps_picks *picks) {
  const size_t size = zps_dtype_size(dtype);
  uint32_t at[ZPS_SCAN_BLOCK + 3];
  for (uint64_t base = begin; base < end; base += ZPS_SCAN_BLOCK) {
    const uint32_t n = end - base < ZPS_SCAN_BLOCK ? (uint32_t)(end - base) : ZPS_SCAN_BLOCK;
    const uint32_t n_found = list(dtype, (const char *)values + base * size, n, magnitude, at);
    if (!append(dtype, values, base, at, n_found, magnitude, ties, picks)) return false;
  }
  return true;
}

uint64_t zps_picks_keep(enum zps_dtype dtype, struct zps_picks *picks, uint64_t k) {
  const struct zps_order order = zps_order_select(dtype, picks->values, picks->n, k);
  uint64_t ties = k - order.n_above, n = 0;
  for (uint64_t i = 0; i < picks->n; i++) {
    const uint64_t magnitude = zps_magnitude_at(dtype, picks->values, i);
    if (magnitude < order.magnitude) continue;
    if (magnitude == order.magnitude) {
      if (ties == 0) continue;
      ties--;
    }
    picks->ids[n] = picks->ids[i];
    copy_value(dtype, picks->values, n++, picks->values, i);
  }
  picks->n = n;
  return order.magnitude;
}

/* ------------------------------------------------------------ moments */

/* In lanes that are added up at the end: the order, and so the sum, depends on no compiler. */
#define DEFINE_MOMENTS(NAME, TYPE)                                                \
  static void NAME(const TYPE *values, uint64_t n, struct zps_moments *moments) { \
    enum { LANES = 8 };                                                           \
    double sum[LANES] = {0}, squares[LANES] = {0};                                \
    uint64_t i = 0;                                                               \
    for (; i + LANES <= n; i += LANES) {                                          \
      for (unsigned j = 0; j < LANES; j++) {                                      \
        const double value = (double)values[i + j];                               \
        sum[j] += value;                                                          \
        squares[j] += value * value;                                              \
      }                                                                           \
    }                                                                             \
    for (; i < n; i++) {                                                          \
      const double value = (double)values[i];                                     \
      sum[0] += value;                                                            \
      squares[0] += value * value;                                                \
    }                                                                             \
    for (unsigned j = 0; j < LANES; j++) {                                        \
      moments->sum += sum[j];                                                     \
      moments->squares += squares[j];                                             \
    }                                                                             \
  }

DEFINE_MOMENTS(moments_f32, float)
DEFINE_MOMENTS(moments_f64, double)

void zps_scan_moments(enum zps_dtype dtype, const void *values, uint64_t n, struct zps_moments *moments) {
  if (dtype == ZPS_DTYPE_F32)
    moments_f32(values, n, moments);
  else
    moments_f64(values, n, moments);
}

#include "common/codec/accumulate.h"

#include <math.h>

#include "common/codec/simd/simd.h"

/* Explicit vectors, because not every optimisation level forms them. */
#define DEFINE_ADD(NAME, TYPE)                                                                         \
  typedef TYPE NAME##_any __attribute__((aligned(1), may_alias));                                      \
  typedef TYPE NAME##_vec __attribute__((vector_size(16), aligned(1), may_alias));                     \
  static inline void NAME##_add(TYPE *sums, const NAME##_any *values, uint64_t n) {                    \
    enum { LANES = 16 / sizeof(TYPE) };                                                                \
    uint64_t i = 0;                                                                                    \
    for (; i + LANES <= n; i += LANES) *(NAME##_vec *)(sums + i) += *(const NAME##_vec *)(values + i); \
    for (; i < n; i++) sums[i] = (TYPE)(sums[i] + values[i]);                                          \
  }
#define DEFINE_ADD_ROWS(NAME, TYPE)                                                                            \
  static void NAME##_add_rows(void *sums, const uint32_t *slots, uint32_t base, const zps_lent_index *indices, \
                              uint32_t n_rows, uint32_t width, const void *values) {                           \
    for (uint32_t i = 0; i < n_rows; i++)                                                                      \
      NAME##_add((TYPE *)sums + (uint64_t)slots[indices[i] - base] * width,                                    \
                 (const NAME##_any *)values + (uint64_t)i * width, width);                                     \
  }
#define DEFINE_EXTREME(NAME, TYPE, LEAST, MOST)                                              \
  static void NAME##_fill(bool max, void *sums, uint64_t n) {                                \
    for (uint64_t i = 0; i < n; i++) ((TYPE *)sums)[i] = max ? (LEAST) : (MOST);             \
  }                                                                                          \
  static void NAME##_extreme(bool max, void *to, const void *from, uint64_t n) {             \
    TYPE *const sums = to;                                                                   \
    const NAME##_any *const values = from;                                                   \
    for (uint64_t i = 0; i < n; i++) {                                                       \
      const TYPE value = (TYPE)(values[i] + (TYPE)0); /* +0.0 for -0.0 */                    \
      const bool further = max ? value > sums[i] : value < sums[i], number = value >= value; \
      if (further || !number) sums[i] = value;                                               \
    }                                                                                        \
  }
#define DEFINE_DIVIDE(NAME, TYPE)                                       \
  static void NAME##_divide(TYPE *sums, uint64_t n, unsigned divisor) { \
    const TYPE factor = (TYPE)1 / (TYPE)divisor;                        \
    for (uint64_t i = 0; i < n; i++) sums[i] *= factor;                 \
  }

DEFINE_ADD(f32, float)
DEFINE_ADD(f64, double)
DEFINE_ADD(u8, uint8_t)
DEFINE_ADD_ROWS(f64, double)
DEFINE_ADD_ROWS(u8, uint8_t)
DEFINE_EXTREME(f32, float, -INFINITY, INFINITY)
DEFINE_EXTREME(f64, double, -(double)INFINITY, (double)INFINITY)
DEFINE_EXTREME(u8, uint8_t, 0, UINT8_MAX)
DEFINE_DIVIDE(f32, float)
DEFINE_DIVIDE(f64, double)

/* Halves to sums of floats, as many at a time as stay in registers and the first-level cache. */
static void halves_add(enum zps_dtype dtype, float *sums, const char *values, uint64_t n) {
  enum { FLOATS = 256 };
  float floats[FLOATS];
  for (uint64_t here; n > 0; n -= here, sums += here, values += 2 * here) {
    here = n < FLOATS ? n : FLOATS;
    zps_values_widen(dtype, values, here, floats);
    f32_add(sums, floats, here);
  }
}

void zps_accumulate(enum zps_dtype dtype, void *sums, const void *values, uint64_t n) {
  switch (dtype) {
    case ZPS_DTYPE_F32:
      f32_add(sums, values, n);
      break;
    case ZPS_DTYPE_F64:
      f64_add(sums, values, n);
      break;
    case ZPS_DTYPE_U8:
      u8_add(sums, values, n);
      break;
    case ZPS_DTYPE_BF16:
    case ZPS_DTYPE_F16:
      halves_add(dtype, sums, values, n);
      break;
  }
}

static void f32_add_rows(void *sums, const uint32_t *slots, uint32_t base, const zps_lent_index *indices,
                         uint32_t n_rows, uint32_t width, const void *values) {
  zps_simd()->add_rows(sums, slots, base, indices, n_rows, width, values);
}

/* The other operations by dtype of the sums, of which none is a half. */
static const struct {
  void (*add_rows)(void *sums, const uint32_t *slots, uint32_t base, const zps_lent_index *indices, uint32_t n_rows,
                   uint32_t width, const void *values);
  void (*fill)(bool max, void *sums, uint64_t n);
  void (*extreme)(bool max, void *sums, const void *values, uint64_t n);
} by_dtype[] = {[ZPS_DTYPE_F32] = {f32_add_rows, f32_fill, f32_extreme},
                [ZPS_DTYPE_F64] = {f64_add_rows, f64_fill, f64_extreme},
                [ZPS_DTYPE_U8] = {u8_add_rows, u8_fill, u8_extreme}};

void zps_accumulate_rows(enum zps_dtype dtype, void *sums, const uint32_t *slots, uint32_t base,
                         const zps_lent_index *indices, uint32_t n_rows, uint32_t width, const void *values) {
  by_dtype[dtype].add_rows(sums, slots, base, indices, n_rows, width, values);
}

void zps_accumulate_neutral(enum zps_op op, enum zps_dtype dtype, void *sums, uint64_t n) {
  by_dtype[dtype].fill(op == ZPS_OP_MAX, sums, n);
}

void zps_accumulate_extreme(enum zps_op op, enum zps_dtype dtype, void *sums, const void *values, uint64_t n) {
  by_dtype[dtype].extreme(op == ZPS_OP_MAX, sums, values, n);
}

void zps_accumulate_divide(enum zps_dtype dtype, void *sums, uint64_t n, unsigned divisor) {
  if (dtype == ZPS_DTYPE_F32)
    f32_divide(sums, n, divisor);
  else if (dtype == ZPS_DTYPE_F64)
    f64_divide(sums, n, divisor);
}

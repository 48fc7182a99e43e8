#include "common/codec/accumulate.h"

#include <string.h>

/* Explicit vectors, because not every optimisation level forms them. */
#define DEFINE(NAME, TYPE)                                                                                        \
  typedef TYPE NAME##_any __attribute__((aligned(1), may_alias));                                                 \
  typedef TYPE NAME##_vec __attribute__((vector_size(16), aligned(1), may_alias));                                \
  static inline void NAME##_add(TYPE *sums, const NAME##_any *values, uint64_t n) {                               \
    enum { LANES = 16 / sizeof(TYPE) };                                                                           \
    uint64_t i = 0;                                                                                               \
    for (; i + LANES <= n; i += LANES) *(NAME##_vec *)(sums + i) += *(const NAME##_vec *)(values + i);            \
    for (; i < n; i++) sums[i] = (TYPE)(sums[i] + values[i]);                                                     \
  }                                                                                                               \
  static void NAME##_add_rows(TYPE *sums, uint32_t base, const uint32_t *ranks, uint32_t n_rows, uint32_t width,  \
                              const NAME##_any *values) {                                                         \
    if (n_rows > 0 && ranks[n_rows - 1] - ranks[0] == n_rows - 1) {                                               \
      NAME##_add(sums + (uint64_t)(ranks[0] - base) * width, values, (uint64_t)n_rows * width);                   \
      return;                                                                                                     \
    }                                                                                                             \
    if (width == 1) {                                                                                             \
      for (uint32_t i = 0; i < n_rows; i++) sums[ranks[i] - base] = (TYPE)(sums[ranks[i] - base] + values[i]);    \
      return;                                                                                                     \
    }                                                                                                             \
    for (uint32_t i = 0; i < n_rows; i++)                                                                         \
      NAME##_add(sums + (uint64_t)(ranks[i] - base) * width, values + (uint64_t)i * width, width);                \
  }                                                                                                               \
  static void NAME##_take(TYPE *sums, uint64_t n, unsigned divisor, TYPE *out) {                                  \
    if (divisor == 1) {                                                                                           \
      memcpy(out, sums, n * sizeof *sums);                                                                        \
    } else {                                                                                                      \
      const TYPE factor = (TYPE)1 / (TYPE)divisor;                                                                \
      for (uint64_t i = 0; i < n; i++) out[i] = (TYPE)(sums[i] * factor);                                         \
    }                                                                                                             \
    memset(sums, 0, n * sizeof *sums);                                                                            \
  }                                                                                                               \
  static void NAME##_take_rows(TYPE *sums, uint32_t base, const uint32_t *ranks, uint32_t n_rows, uint32_t width, \
                               unsigned divisor, TYPE *out) {                                                     \
    if (n_rows > 0 && ranks[n_rows - 1] - ranks[0] == n_rows - 1) {                                               \
      NAME##_take(sums + (uint64_t)(ranks[0] - base) * width, (uint64_t)n_rows * width, divisor, out);            \
    } else if (width == 1) {                                                                                      \
      const TYPE factor = divisor == 1 ? (TYPE)1 : (TYPE)1 / (TYPE)divisor;                                       \
      for (uint32_t i = 0; i < n_rows; i++) {                                                                     \
        TYPE *const sum = sums + (ranks[i] - base);                                                               \
        out[i] = divisor == 1 ? *sum : (TYPE)(*sum * factor);                                                     \
        *sum = 0;                                                                                                 \
      }                                                                                                           \
    } else {                                                                                                      \
      for (uint32_t i = 0; i < n_rows; i++)                                                                       \
        NAME##_take(sums + (uint64_t)(ranks[i] - base) * width, width, divisor, out + (uint64_t)i * width);       \
    }                                                                                                             \
  }

DEFINE(f32, float)
DEFINE(f64, double)
DEFINE(u8, uint8_t)

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
  }
}

void zps_accumulate_rows(enum zps_dtype dtype, void *sums, uint32_t base, const uint32_t *ranks, uint32_t n_rows,
                         uint32_t width, const void *values) {
  switch (dtype) {
    case ZPS_DTYPE_F32:
      f32_add_rows(sums, base, ranks, n_rows, width, values);
      break;
    case ZPS_DTYPE_F64:
      f64_add_rows(sums, base, ranks, n_rows, width, values);
      break;
    case ZPS_DTYPE_U8:
      u8_add_rows(sums, base, ranks, n_rows, width, values);
      break;
  }
}

void zps_accumulate_take_rows(enum zps_dtype dtype, void *sums, uint32_t base, const uint32_t *ranks, uint32_t n_rows,
                              uint32_t width, unsigned divisor, void *out) {
  switch (dtype) {
    case ZPS_DTYPE_F32:
      f32_take_rows(sums, base, ranks, n_rows, width, divisor, out);
      break;
    case ZPS_DTYPE_F64:
      f64_take_rows(sums, base, ranks, n_rows, width, divisor, out);
      break;
    case ZPS_DTYPE_U8:
      u8_take_rows(sums, base, ranks, n_rows, width, divisor, out);
      break;
  }
}

#include "worker/sparsify/bucket.h"

#include "worker/select/magnitude.h"
#include "worker/select/order.h"

/* The values are dealt to LANES hands. The k-th greatest of the hands' maxima is a lower bound of the k-th greatest
 * value, and a close one when k is small: what passes it is a handful. */
enum { LANES = 16, HANDS_MIN = 4 };

#define DEFINE(NAME, INT)                                                                       \
  typedef INT NAME##_vec __attribute__((vector_size(16), aligned(sizeof(INT)), may_alias));     \
  static uint64_t NAME##_bound(const void *values, uint64_t n, uint64_t k, INT mask) {          \
    enum { PER_VEC = 16 / sizeof(INT), N_VECS = LANES / PER_VEC };                              \
    NAME##_vec best[N_VECS] = {0};                                                              \
    const NAME##_vec *at = values;                                                              \
    for (uint64_t i = 0; i + LANES <= n; i += LANES, at += N_VECS) {                            \
      for (unsigned j = 0; j < N_VECS; j++) {                                                   \
        const NAME##_vec magnitude = at[j] & mask, greater = (NAME##_vec)(magnitude > best[j]); \
        best[j] = (magnitude & greater) | (best[j] & ~greater);                                 \
      }                                                                                         \
    }                                                                                           \
    const INT *const maxima = (const INT *)best;                                                \
    INT bound = 0;                                                                              \
    for (unsigned i = 0; i < LANES; i++) {                                                      \
      unsigned n_least = 0;                                                                     \
      for (unsigned j = 0; j < LANES; j++) n_least += maxima[j] >= maxima[i];                   \
      if (n_least >= k && maxima[i] > bound) bound = maxima[i];                                 \
    }                                                                                           \
    return (uint64_t)bound;                                                                     \
  }

DEFINE(f32, int32_t)
DEFINE(f64, int64_t)

void zps_bucket_pick(enum zps_dtype dtype, const void *values, uint64_t begin, uint64_t end, uint64_t k,
                     struct zps_picks *picks) {
  const size_t size = zps_dtype_size(dtype);
  const uint64_t n = end - begin;
  const void *const from = (const char *)values + begin * size;
  uint64_t magnitude = 1, ties = UINT64_MAX;
  if (k <= LANES && n >= HANDS_MIN * LANES) {
    magnitude = dtype == ZPS_DTYPE_F32 ? f32_bound(from, n, k, INT32_MAX) : f64_bound(from, n, k, INT64_MAX);
  } else if (k < n) {
    const struct zps_order order = zps_order_select(dtype, from, n, k);
    magnitude = order.magnitude;
    ties = k - order.n_above;
  }
  if (magnitude == 0) {
    magnitude = 1;
    ties = UINT64_MAX;
  }
  struct zps_picks own = {.ids = picks->ids + picks->n,
                          .values = (char *)picks->values + picks->n * size,
                          .capacity = picks->capacity - picks->n};
  /* It fits: the caller has made room for the whole bucket. */
  const bool fits = zps_scan_pick(dtype, values, begin, end, magnitude, &ties, &own);
  if (fits && own.n > k) zps_picks_keep(dtype, &own, k);
  picks->n += own.n;
}

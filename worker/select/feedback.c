#include "worker/select/feedback.h"

#include <math.h>
#include <stdlib.h>

#include "worker/select/scan.h"

zps_err_t zps_feedback_init(struct zps_feedback *feedback, enum zps_dtype dtype, uint64_t n, double momentum,
                            double clip_norm, double decay) {
  *feedback =
      (struct zps_feedback){.dtype = dtype, .n = n, .momentum = momentum, .clip_norm = clip_norm, .decay = decay};
  feedback->residual = calloc(n, zps_dtype_size(dtype));
  if (!feedback->residual) return ZPS_ERR_NOMEM;
  if (momentum == 0) return ZPS_OK;
  feedback->velocity = calloc(n, zps_dtype_size(dtype));
  if (feedback->velocity) return ZPS_OK;
  zps_feedback_fini(feedback);
  return ZPS_ERR_NOMEM;
}

void zps_feedback_fini(struct zps_feedback *feedback) {
  free(feedback->residual);
  free(feedback->velocity);
  feedback->residual = feedback->velocity = NULL;
}

/* ------------------------------------------------------------ clipping */

static double value_at(enum zps_dtype dtype, const void *values, uint64_t i) {
  return dtype == ZPS_DTYPE_F32 ? (double)((const float *)values)[i] : ((const double *)values)[i];
}

/* For values whose squares do not fit a double, or that are not finite. */
static double clip_carefully(const struct zps_feedback *feedback, const void *gradient) {
  double max = 0, squares = 0;
  for (uint64_t i = 0; i < feedback->n; i++) {
    const double value = fabs(value_at(feedback->dtype, gradient, i));
    if (isfinite(value) && value > max) max = value;
  }
  if (max == 0) return 1;
  for (uint64_t i = 0; i < feedback->n; i++) {
    const double value = value_at(feedback->dtype, gradient, i);
    if (isfinite(value)) squares += (value / max) * (value / max);
  }
  const double factor = feedback->clip_norm / max / sqrt(squares);
  return factor < 1 ? factor : 1;
}

double zps_feedback_clip(const struct zps_feedback *feedback, const void *gradient) {
  if (feedback->clip_norm == 0) return 1;
  struct zps_moments moments = {0};
  zps_scan_moments(feedback->dtype, gradient, feedback->n, &moments);
  if (!isfinite(moments.squares)) return clip_carefully(feedback, gradient);
  const double norm = sqrt(moments.squares);
  return norm > feedback->clip_norm ? feedback->clip_norm / norm : 1;
}

/* ------------------------------------------------------------ sums */

/* Explicit vectors, because not every optimisation level forms them. */
#define DEFINE(NAME, TYPE)                                                                                         \
  typedef TYPE NAME##_vec __attribute__((vector_size(16), aligned(sizeof(TYPE)), may_alias));                      \
  static void NAME##_add(TYPE *residual, TYPE decay, const TYPE *gradient, TYPE factor, uint64_t n) {              \
    enum { LANES = 16 / sizeof(TYPE) };                                                                            \
    uint64_t i = 0;                                                                                                \
    if (factor == 1 && decay == 1) {                                                                               \
      for (; i + LANES <= n; i += LANES) *(NAME##_vec *)(residual + i) += *(const NAME##_vec *)(gradient + i);     \
    } else {                                                                                                       \
      for (; i + LANES <= n; i += LANES) {                                                                         \
        NAME##_vec *const at = (NAME##_vec *)(residual + i);                                                       \
        *at = *at * decay + *(const NAME##_vec *)(gradient + i) * factor;                                          \
      }                                                                                                            \
    }                                                                                                              \
    for (; i < n; i++) residual[i] = residual[i] * decay + gradient[i] * factor;                                   \
  }                                                                                                                \
  static void NAME##_add_velocity(TYPE *residual, TYPE decay, TYPE *velocity, TYPE momentum, const TYPE *gradient, \
                                  TYPE factor, uint64_t n) {                                                       \
    enum { LANES = 16 / sizeof(TYPE) };                                                                            \
    uint64_t i = 0;                                                                                                \
    for (; i + LANES <= n; i += LANES) {                                                                           \
      NAME##_vec *const at = (NAME##_vec *)(velocity + i), *const sum = (NAME##_vec *)(residual + i);              \
      const NAME##_vec next = *at * momentum + *(const NAME##_vec *)(gradient + i) * factor;                       \
      *at = next;                                                                                                  \
      *sum = *sum * decay + next;                                                                                  \
    }                                                                                                              \
    for (; i < n; i++) {                                                                                           \
      velocity[i] = velocity[i] * momentum + gradient[i] * factor;                                                 \
      residual[i] = residual[i] * decay + velocity[i];                                                             \
    }                                                                                                              \
  }                                                                                                                \
  static void NAME##_add_range(struct zps_feedback *feedback, const TYPE *gradient, TYPE factor, uint64_t begin,   \
                               uint64_t n) {                                                                       \
    TYPE *const residual = (TYPE *)feedback->residual + begin;                                                     \
    const TYPE decay = (TYPE)feedback->decay;                                                                      \
    if (!feedback->velocity)                                                                                       \
      NAME##_add(residual, decay, gradient + begin, factor, n);                                                    \
    else                                                                                                           \
      NAME##_add_velocity(residual, decay, (TYPE *)feedback->velocity + begin, (TYPE)feedback->momentum,           \
                          gradient + begin, factor, n);                                                            \
  }                                                                                                                \
  static TYPE NAME##_preview(const struct zps_feedback *feedback, const TYPE *gradient, TYPE factor, uint64_t i) { \
    TYPE value = gradient[i] * factor;                                                                             \
    if (feedback->velocity) value = ((const TYPE *)feedback->velocity)[i] * (TYPE)feedback->momentum + value;      \
    return ((const TYPE *)feedback->residual)[i] * (TYPE)feedback->decay + value;                                  \
  }

DEFINE(f32, float)
DEFINE(f64, double)

void zps_feedback_add(struct zps_feedback *feedback, const void *gradient, double factor, uint64_t begin,
                      uint64_t end) {
  if (feedback->dtype == ZPS_DTYPE_F32)
    f32_add_range(feedback, gradient, (float)factor, begin, end - begin);
  else
    f64_add_range(feedback, gradient, factor, begin, end - begin);
}

void zps_feedback_preview(const struct zps_feedback *feedback, const void *gradient, double factor, uint64_t i,
                          void *out, uint64_t j) {
  if (feedback->dtype == ZPS_DTYPE_F32)
    ((float *)out)[j] = f32_preview(feedback, gradient, (float)factor, i);
  else
    ((double *)out)[j] = f64_preview(feedback, gradient, factor, i);
}

void zps_feedback_clear(struct zps_feedback *feedback, uint64_t i) {
  if (feedback->dtype == ZPS_DTYPE_F32) {
    ((float *)feedback->residual)[i] = 0;
    if (feedback->velocity) ((float *)feedback->velocity)[i] = 0;
  } else {
    ((double *)feedback->residual)[i] = 0;
    if (feedback->velocity) ((double *)feedback->velocity)[i] = 0;
  }
}

/*
 * Error feedback: what a rank has not sent stays in its residual and is added to the next gradient, or its share
 * `decay`. With momentum correction (DGC section 3.2 there) what is added is a velocity of its own, which is cleared
 * where the residual is.
 */
#ifndef ZPS_WORKER_SELECT_FEEDBACK_H
#define ZPS_WORKER_SELECT_FEEDBACK_H

#include "common/codec/codec.h"

struct zps_feedback {
  enum zps_dtype dtype;
  uint64_t n;
  double momentum;
  double clip_norm; /* 0: none */
  double decay;     /* what each addition leaves of the residual before it adds; 1: all */
  void *residual;
  void *velocity; /* NULL without momentum */
};

zps_err_t zps_feedback_init(struct zps_feedback *feedback, enum zps_dtype dtype, uint64_t n, double momentum,
                            double clip_norm, double decay) ZPS_MUSTCHECK;
void zps_feedback_fini(struct zps_feedback *feedback);

/* The factor, at most 1, that brings the norm of the gradient's finite values down to clip_norm. */
double zps_feedback_clip(const struct zps_feedback *feedback, const void *gradient);
/* Adds values begin..end-1 of the gradient, times `factor`, to what the decay leaves of the residual. */
void zps_feedback_add(struct zps_feedback *feedback, const void *gradient, double factor, uint64_t begin, uint64_t end);
/* Writes to element j of `out` what zps_feedback_add() is going to make of element i of the residual. */
void zps_feedback_preview(const struct zps_feedback *feedback, const void *gradient, double factor, uint64_t i,
                          void *out, uint64_t j);
/* Takes element i out. */
void zps_feedback_clear(struct zps_feedback *feedback, uint64_t i);

#endif

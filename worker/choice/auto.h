/*
 * A tensor whose scheme is "auto": the coordinator says which scheme each step runs under, ahead of it and the same to
 * all ranks (common/plan/schedule.h).
 *
 * It is several tensors, one per scheme that may be chosen, each registered as any other; "@ring/w" is the one for ring
 * of tensor "w". The trainer holds the one for balanced, whether that may be chosen or not.
 */
#ifndef ZPS_WORKER_CHOICE_AUTO_H
#define ZPS_WORKER_CHOICE_AUTO_H

#include "common/plan/report.h"
#include "proto/control_plan.h"
#include "worker/device/host.h"
#include "worker/api/tensor.h"

struct zps_automatic {
  struct zenps_tensor *tensor;                     /* the trainer's */
  struct zenps_tensor *variants[ZPS_PLAN_SCHEMES]; /* NULL: may not be chosen */
  struct zps_plan_follower follower;               /* job's lock; so is the rest */
  struct zps_host_in staging;                      /* device's thread: to look at gradients in its memory */
  const struct zenps_tensor *last;                 /* whose round was over last */
  struct zps_plan_sketch sketch;                   /* of the gradient that the last question was asked with */
  bool lists;                                      /* a result was wanted as a list of rows */
  bool introduced;                                 /* the coordinator was told of this machine */
  double bandwidth, latency_s;                     /* of the link, as rounds have found it; 0: not yet */
};

/* What schemes have in common with the tensor's other options. */
struct zps_automatic_limits {
  bool balanced_only; /* there are too many rows for the others */
  bool no_zeros;      /* max and min: zeros would count */
  bool narrow;        /* values travel narrowed */
  bool lossy_bits;    /* dsar's dense half would be rounded */
};

/* "auto", or "auto:" and names. */
bool zps_automatic_is(const char *scheme);
/* Which schemes `scheme` allows: for "auto" those that are alike in their results and can be, for the others those
 * named, of which this library must have each. */
zps_err_t zps_automatic_parse(const char *scheme, const char *tensor, const struct zps_automatic_limits *limits,
                              unsigned *schemes_p, struct zps_error *error) ZPS_MUSTCHECK;

void zps_automatic_destroy(struct zps_automatic *automatic); /* NULL is allowed */

/* The tensor that `step`, whose gradient is `in`, runs as. Where the coordinator has not said so yet, as ahead of the
 * first step, this waits. */
zenps_status_t zps_automatic_pick(struct zps_automatic *automatic, uint64_t step, const zenps_grad_t *in,
                                  const zenps_grad_t *out, struct zenps_tensor **picked_p);
/* Under the job's lock: a round of `variant` is over, and went well. */
void zps_automatic_round_done(struct zps_automatic *automatic, const struct zenps_tensor *variant,
                              const zenps_request_stats_t *stats);
/* On the control thread: the coordinator has said which scheme steps run under. */
void zps_automatic_plan(struct zenps_job *job, const struct zps_tensor_plan *plan);

#endif

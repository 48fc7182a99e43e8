/*
 * A tensor whose scheme is "auto": which scheme each step runs under is known ahead of it, and the same on all ranks
 * (common/plan/schedule.h). The first of its ranks decides, by what the coordinator proposes (common/plan/agree.h).
 *
 * Such a tensor is several tensors, one per scheme that may be chosen, each registered as any other; "@ring/w" is the
 * one for ring of tensor "w". The trainer holds the one for balanced, whether that may be chosen or not.
 */
#ifndef ZPS_WORKER_CHOICE_AUTO_H
#define ZPS_WORKER_CHOICE_AUTO_H

#include <pthread.h>

#include "common/plan/agree.h"
#include "common/plan/calibration.h"
#include "common/plan/report.h"
#include "worker/base/options.h"
#include "worker/control/membership.h"
#include "worker/device/device.h"
#include "worker/device/host.h"
#include "worker/plane/plane.h"
#include "worker/round/tensor.h"

/* The parts of the job that the choice needs; borrowed. */
struct zps_automatic;

struct zps_automatic_job {
  pthread_mutex_t *lock;
  pthread_cond_t *learned; /* signalled when the schedule grows, or does not, or *again_ns_p changes */
  uint64_t *again_ns_p;    /* the earliest again_ns of the job's tensors; who waits for it resets it */
  const struct zps_worker_options *options;
  const struct zps_plan_calibration *calibration;
  struct zps_membership *membership;
  struct zps_plane *plane;
  struct zps_worker_device **device_p;       /* the job's: NULL until it is opened */
  void *ctx;                                 /* of the functions below */
  zenps_status_t (*check)(void *ctx);        /* under the lock: the job's failure, if it has failed */
  void (*trim)(void *ctx, uint64_t keep_ns); /* engine thread: spare rounds are kept no longer, for a while */
  /* Under the lock: begins round agreement.number, in which ranks hear of the schedule. */
  zps_err_t (*agree)(void *ctx, struct zps_automatic *automatic);
};

struct zps_automatic {
  struct zps_automatic_job job;
  struct zps_round_tensor *tensor;                     /* the trainer's */
  struct zps_round_tensor *variants[ZPS_PLAN_SCHEMES]; /* NULL: may not be chosen */
  struct zps_plan_follower follower;                   /* job's lock; so is the rest */
  struct zps_plan_agreement agreement;                 /* on what the follower's schedule is */
  zenps_error_t failure;                               /* of its last round; status ZENPS_OK: it went well */
  bool is_final;                                       /* the next step without a scheme ends with `failure` */
  uint64_t again_ns;                                   /* begin the failed round's successor; ZPS_NEVER: none is owed */
  struct zps_host_in staging;                          /* device's thread: to look at gradients in its memory */
  const struct zps_round_tensor *last;                 /* the variant that had the last round */
  struct zps_plan_sketch sketch;                       /* of the gradient that the last question was asked with */
  bool lists;                                          /* a result was wanted as a list of rows */
  bool introduced;                                     /* the coordinator was told of this machine */
  uint64_t n_learned;                                  /* times that who waits has had reason to look again */
  double bandwidth, latency_s;                         /* of the link, as rounds have found it; 0: not yet */
};

/* Limits that the tensor's other options set to the choice. */
struct zps_automatic_limits {
  bool balanced_only; /* there are too many rows for the others */
  bool no_zeros;      /* max and min: zeros would count; or rows of zeros are kept */
  bool narrow;        /* values travel narrowed */
  bool lossy_bits;    /* dsar's dense half would be rounded */
  bool served_only;   /* only servers can carry the operation out */
  bool any_order;     /* sums need not be in the order of ranks */
};

/* "auto", or "auto:" and names. */
bool zps_automatic_is(const char *scheme);
/* "auto:any" and "auto:ranks" name an order of sums instead of schemes; others: NULL. */
const char *zps_automatic_order(const char *scheme);
/* The schemes that `scheme` allows. "auto" and an order: those that are alike in their results, or with any order in
 * the result's rows, and within `limits`; "auto:" and names: those named, all of which this library must have. */
zps_err_t zps_automatic_parse(const char *scheme, const char *tensor, const struct zps_automatic_limits *limits,
                              unsigned *schemes_p, struct zps_error *error) ZPS_MUSTCHECK;

void zps_automatic_destroy(struct zps_automatic *automatic); /* NULL is allowed */

/* A step that is to begin. */
struct zps_automatic_turn {
  uint64_t step;
  bool due; /* call zps_automatic_ask() with `report` */
  struct zps_plan_report report;
};

/* The following two under the job's lock. The tensor that `step` runs as; *picked_p is NULL where ranks have not agreed
 * on it yet, as ahead of the first step: look again when n_learned has grown. Fills in all of `turn`. */
zenps_status_t zps_automatic_look(struct zps_automatic *automatic, uint64_t step, struct zps_automatic_turn *turn,
                                  struct zps_round_tensor **picked_p);
/* Has a say in the schedule, for a turn that is due, which it is not any more: takes part in its next round, and
 * reports to the coordinator, if there is one. Looks at the gradient; the lock is given up meanwhile. Device memory:
 * waits until `in` is there, up to the deadline. */
zenps_status_t zps_automatic_ask(struct zps_automatic *automatic, struct zps_automatic_turn *turn,
                                 const zenps_grad_t *in, const zenps_grad_t *out, uint64_t deadline_ns);
/* Under the job's lock, for a step that cannot begin here: takes part in the agreement all the same, without the
 * coordinator. The other ranks would wait for it, and then lack this rank's gradient alone. */
void zps_automatic_join(struct zps_automatic *automatic, const struct zps_automatic_turn *turn);
/* Under the job's lock: a round of `variant` is over, and went well. */
void zps_automatic_round_done(struct zps_automatic *automatic, const struct zps_round_tensor *variant,
                              const zenps_request_stats_t *stats);
/* Under the job's lock: the coordinator proposes schemes for steps; `whole`: all that it remembers. */
void zps_automatic_propose(struct zps_automatic *automatic, const struct zps_plan_run *runs, unsigned n, bool whole);
/* Under the job's lock: the coordinator is out of reach. */
void zps_automatic_alone(struct zps_automatic *automatic);
/* Under the job's lock: begins the round that is owed after a failed one, if it is time. Returns again_ns. */
uint64_t zps_automatic_retry(struct zps_automatic *automatic, uint64_t now_ns);
/* Under the job's lock: a round of the agreement is over. `round`: what its ranks gave; NULL: it has failed, for `why`.
 */
void zps_automatic_agreed(struct zps_automatic *automatic, const unsigned char *round, const zenps_error_t *why);

#endif

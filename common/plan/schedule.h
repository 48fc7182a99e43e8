/*
 * The schedule of a tensor: the scheme that each step runs under, so that no two ranks ever differ.
 *
 * One process is the authority: it fixes the scheme of a run of steps once, ahead of them, and never changes it. (It is
 * the first of the tensor's ranks: agree.h. The coordinator keeps a schedule of the same kind, of what it has
 * proposed.) Ranks follow: a rank begins a step only when it knows the run that the step is in, and asks for the next
 * one when it is three quarters through the last that it knows, and once more when it cannot go on without. So the
 * answer is there in time, and it does not matter when it arrives: late ones make a rank wait, none can make it take
 * another scheme. (An order to switch at a step could reach a rank that has begun that step.)
 *
 * Both ends are pure: tests/unit/plan/test_schedule.c runs them against each other in any order of messages.
 */
#ifndef ZPS_PLAN_SCHEDULE_H
#define ZPS_PLAN_SCHEDULE_H

#include <stdint.h>

#include "common/plan/schemes.h"

/* Steps from..until-1. */
struct zps_plan_run {
  uint64_t from, until;
  enum zps_plan_scheme scheme;
};

enum { ZPS_PLAN_RUNS = 64, ZPS_PLAN_TIMES = 32 };

/* Runs that follow one another without a gap; neighbours with one scheme are one. The oldest are forgotten. */
struct zps_plan_schedule {
  unsigned n;
  struct zps_plan_run runs[ZPS_PLAN_RUNS];
};

/* The step that the schedule ends ahead of; 0 when it is empty. */
uint64_t zps_plan_schedule_until(const struct zps_plan_schedule *schedule);
/* The run that `step` is in; NULL: not fixed yet, or forgotten. */
const struct zps_plan_run *zps_plan_schedule_find(const struct zps_plan_schedule *schedule, uint64_t step);
/* The authority: fixes the next run, as far as `window` steps beyond `step`, which is not fixed yet; further where
 * steps come in strides. The new part goes to *run_p. */
void zps_plan_schedule_extend(struct zps_plan_schedule *schedule, uint64_t step, uint64_t window,
                              enum zps_plan_scheme scheme, struct zps_plan_run *run_p);
/* A follower: takes the next run of the authority's; twice is as good as once. False: it leaves a gap (the first run
 * starts at step 0), contradicts the runs that are known, or is no run; nothing was taken. */
bool zps_plan_schedule_learn(struct zps_plan_schedule *schedule, const struct zps_plan_run *run);
/* Learns all runs that the authority remembers, oldest first. For a follower that missed the schedule's beginning. */
bool zps_plan_schedule_learn_all(struct zps_plan_schedule *schedule, const struct zps_plan_run *runs, unsigned n);

/* A rank's end of it, for one tensor. Zeroed: knows nothing. */
struct zps_plan_follower {
  struct zps_plan_schedule schedule;
  uint64_t asked;  /* the last step that it has asked for, plus 1; 0: never */
  uint64_t waited; /* the last step that it asked for and waits for, plus 1; 0: never */
  /* Rounds since the last report, or the last change of the scheme. */
  enum zps_plan_scheme scheme;
  uint64_t rounds;
  double rows, union_rows;
  unsigned known; /* bits 1u << scheme: those that have run before */
  unsigned cold;  /* rounds that are not timed yet */
  double cold_s;  /* the longest of those that were not, since the last report */
  unsigned n_times;
  float times_s[ZPS_PLAN_TIMES]; /* of the latest rounds but the first after others, or the first two of all, which make
                                    buffers */
};

/* The report of a rank that asks: sums over `rounds` rounds, the last ones that ran under `scheme`. */
struct zps_plan_report {
  uint64_t step; /* the first that it wants to know the scheme of */
  bool waits;    /* it cannot go on without */
  enum zps_plan_scheme scheme;
  uint64_t rounds;
  double rows, union_rows;
  double round_s; /* median time of a round; 0: not known */
  double first_s; /* round_s is not known: the longest of the first rounds, which make connections and buffers */
};

enum zps_plan_verdict {
  ZPS_PLAN_BEGIN,     /* under *scheme_p */
  ZPS_PLAN_WAIT,      /* for a run that follower->schedule is about to learn; then ask this again */
  ZPS_PLAN_FORGOTTEN, /* ZPS_PLAN_RUNS runs ago: an error of the trainer's */
};

/* May `step` begin? Where *ask_p is set, *report_p is to be sent to the authority, under any verdict; where it cannot
 * be, zps_plan_follower_retry() lets the next step try again. */
enum zps_plan_verdict zps_plan_follower_begin(struct zps_plan_follower *follower, uint64_t step,
                                              enum zps_plan_scheme *scheme_p, bool *ask_p,
                                              struct zps_plan_report *report_p);
void zps_plan_follower_retry(struct zps_plan_follower *follower);
/* A round of this rank's is over: takes its own rows, those of the sum, and its time. */
void zps_plan_follower_round(struct zps_plan_follower *follower, enum zps_plan_scheme scheme, double rows,
                             double union_rows, double seconds);

#endif

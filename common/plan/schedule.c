#include "common/plan/schedule.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* A choice holds for no more windows than this, however far steps are apart. */
#define STRIDE_MAX 64u

uint64_t zps_plan_schedule_until(const struct zps_plan_schedule *schedule) {
  return schedule->n ? schedule->runs[schedule->n - 1].until : 0;
}

const struct zps_plan_run *zps_plan_schedule_find(const struct zps_plan_schedule *schedule, uint64_t step) {
  for (unsigned i = schedule->n; i > 0; i--) {
    const struct zps_plan_run *run = &schedule->runs[i - 1];
    if (step >= run->until) return NULL;
    if (step >= run->from) return run;
  }
  return NULL;
}

static void append(struct zps_plan_schedule *schedule, const struct zps_plan_run *run) {
  if (schedule->n > 0 && schedule->runs[schedule->n - 1].scheme == run->scheme) {
    schedule->runs[schedule->n - 1].until = run->until;
    return;
  }
  if (schedule->n == ZPS_PLAN_RUNS) {
    memmove(schedule->runs, schedule->runs + 1, (ZPS_PLAN_RUNS - 1) * sizeof schedule->runs[0]);
    schedule->n--;
  }
  schedule->runs[schedule->n++] = *run;
}

void zps_plan_schedule_extend(struct zps_plan_schedule *schedule, uint64_t step, uint64_t window,
                              enum zps_plan_scheme scheme, struct zps_plan_run *run_p) {
  const uint64_t from = zps_plan_schedule_until(schedule), last = step > from ? step : from;
  /* Where a run starts says nothing of its strides. */
  const uint64_t jump = schedule->n > 0 ? last - from : 0, most = window * STRIDE_MAX;
  const uint64_t ahead = jump < window ? window : jump < most ? jump : most;
  *run_p = (struct zps_plan_run){
      .from = from, .until = last > UINT64_MAX - ahead ? UINT64_MAX : last + ahead, .scheme = scheme};
  append(schedule, run_p);
}

static bool is_run(const struct zps_plan_run *run) {
  return run->from < run->until && (unsigned)run->scheme < ZPS_PLAN_SCHEMES;
}

/* Where both speak of a step they say the same. */
static bool agrees(const struct zps_plan_schedule *schedule, const struct zps_plan_run *run) {
  for (unsigned i = 0; i < schedule->n; i++) {
    const struct zps_plan_run *known = &schedule->runs[i];
    if (known->scheme != run->scheme && run->from < known->until && known->from < run->until) return false;
  }
  return true;
}

bool zps_plan_schedule_learn(struct zps_plan_schedule *schedule, const struct zps_plan_run *run) {
  const uint64_t until = zps_plan_schedule_until(schedule);
  if (!is_run(run) || run->from > until || !agrees(schedule, run)) return false;
  if (run->until <= until) return true;
  append(schedule, &(struct zps_plan_run){.from = until, .until = run->until, .scheme = run->scheme});
  return true;
}

bool zps_plan_schedule_learn_all(struct zps_plan_schedule *schedule, const struct zps_plan_run *runs, unsigned n) {
  struct zps_plan_schedule all = {.n = 0};
  for (unsigned i = 0; i < n; i++) {
    if (!is_run(&runs[i]) || !agrees(schedule, &runs[i])) return false;
    if (i > 0 && runs[i].from != runs[i - 1].until) return false;
    append(&all, &runs[i]);
  }
  if (zps_plan_schedule_until(&all) < zps_plan_schedule_until(schedule)) return false;
  *schedule = all;
  return true;
}

static void forget(struct zps_plan_follower *follower) {
  follower->rounds = 0;
  follower->n_times = 0;
  follower->cold_s = 0;
  follower->rows = follower->union_rows = 0;
}

static int compare(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

/* Of the times of rounds: now and then one takes long for reasons of its own. */
static double median_s(const struct zps_plan_follower *follower) {
  float times_s[ZPS_PLAN_TIMES];
  const unsigned n = follower->n_times < ZPS_PLAN_TIMES ? follower->n_times : ZPS_PLAN_TIMES;
  if (n == 0) return 0;
  memcpy(times_s, follower->times_s, n * sizeof times_s[0]);
  qsort(times_s, n, sizeof times_s[0], compare);
  return ((double)times_s[(n - 1) / 2] + (double)times_s[n / 2]) / 2;
}

enum zps_plan_verdict zps_plan_follower_begin(struct zps_plan_follower *follower, uint64_t step,
                                              enum zps_plan_scheme *scheme_p, bool *ask_p,
                                              struct zps_plan_report *report_p) {
  const uint64_t until = zps_plan_schedule_until(&follower->schedule);
  const struct zps_plan_run *run = zps_plan_schedule_find(&follower->schedule, step);
  if (run) *scheme_p = run->scheme;
  /* From where the last answer was asked for to where it ends: `asked` is the step of that question, plus 1. */
  const uint64_t begun = follower->asked ? follower->asked - 1 : 0;
  const bool late = step >= until, due = until > begun && step - begun >= (until - begun) - (until - begun) / 4;
  const uint64_t wanted = late ? step : until;
  /* A rank that waits has one question on its way, and asks the next one when the answer is there. */
  *ask_p = late ? follower->waited <= until : step >= begun && due && follower->asked != wanted + 1;
  if (*ask_p) {
    follower->asked = wanted + 1;
    if (late) follower->waited = wanted + 1;
    *report_p = (struct zps_plan_report){.step = wanted,
                                         .waits = late,
                                         .scheme = follower->scheme,
                                         .rounds = follower->rounds,
                                         .rows = follower->rows,
                                         .union_rows = follower->union_rows,
                                         .round_s = median_s(follower),
                                         .first_s = follower->n_times == 0 ? follower->cold_s : 0};
    forget(follower);
  }
  return run ? ZPS_PLAN_BEGIN : late ? ZPS_PLAN_WAIT : ZPS_PLAN_FORGOTTEN;
}

void zps_plan_follower_retry(struct zps_plan_follower *follower) {
  follower->asked = follower->waited = 0;
}

void zps_plan_follower_round(struct zps_plan_follower *follower, enum zps_plan_scheme scheme, double rows,
                             double union_rows, double seconds) {
  const unsigned bit = 1u << scheme;
  if (scheme != follower->scheme || !follower->known) { /* the measurements depend on it */
    forget(follower);
    follower->cold = follower->known & bit ? 1 : 2;
    follower->known |= bit;
  }
  follower->scheme = scheme;
  follower->rounds++;
  follower->rows += rows;
  follower->union_rows += union_rows;
  if (follower->cold > 0) {
    follower->cold--;
    if (seconds > follower->cold_s) follower->cold_s = seconds;
  } else {
    follower->times_s[follower->n_times++ % ZPS_PLAN_TIMES] = (float)seconds;
  }
}

#include "common/plan/agree.h"

#include <string.h>

/* ------------------------------------------------------------ words */

static unsigned char *put_u64(unsigned char *at, uint64_t value) {
  for (unsigned i = 0; i < 8; i++) *at++ = (unsigned char)(value >> 8 * i);
  return at;
}

static const unsigned char *get_u64(const unsigned char *at, uint64_t *value_p) {
  *value_p = 0;
  for (unsigned i = 0; i < 8; i++) *value_p |= (uint64_t)*at++ << 8 * i;
  return at;
}

static void word_write(const struct zps_plan_schedule *schedule, unsigned char word[ZPS_PLAN_WORD_BYTES]) {
  memset(word, 0, ZPS_PLAN_WORD_BYTES);
  word[0] = (unsigned char)schedule->n;
  unsigned char *at = put_u64(word + 1, schedule->runs[0].from);
  for (unsigned i = 0; i < schedule->n; i++) {
    at = put_u64(at, schedule->runs[i].until);
    *at++ = (unsigned char)schedule->runs[i].scheme;
  }
}

static bool word_learn(const unsigned char *word, struct zps_plan_schedule *schedule) {
  struct zps_plan_run runs[ZPS_PLAN_RUNS];
  const unsigned n = word[0];
  uint64_t from;
  if (n < 1 || n > ZPS_PLAN_RUNS) return false;
  const unsigned char *at = get_u64(word + 1, &from);
  for (unsigned i = 0; i < n; i++) {
    runs[i].from = from;
    at = get_u64(at, &runs[i].until);
    runs[i].scheme = (enum zps_plan_scheme) * at++;
    from = runs[i].until;
  }
  return zps_plan_schedule_learn_all(schedule, runs, n);
}

/* ------------------------------------------------------------ rounds */

void zps_plan_agreement_want(struct zps_plan_agreement *agreement, uint64_t step, bool is_alone) {
  agreement->is_due = true;
  agreement->step = step;
  agreement->is_alone = is_alone;
}

void zps_plan_agreement_unheard(struct zps_plan_agreement *agreement) {
  agreement->is_alone = true;
}

/* What it said of other steps does not matter any more where the two do not fit: only the answer does. */
void zps_plan_agreement_propose(struct zps_plan_agreement *agreement, const struct zps_plan_run *runs, unsigned n,
                                bool whole) {
  struct zps_plan_schedule *const proposed = &agreement->proposed;
  if (n == 0 || (!whole && n == 1 && zps_plan_schedule_learn(proposed, &runs[0]))) return;
  struct zps_plan_schedule all = {.n = 0};
  if (zps_plan_schedule_learn_all(&all, runs, n)) *proposed = all;
}

/* The scheme that goes on without a coordinator. A short run may be a trial, and one of a single step the first round
 * of a trial, which may be a very slow one. */
static enum zps_plan_scheme settled(const struct zps_plan_schedule *schedule, enum zps_plan_scheme first) {
  const struct zps_plan_run *best = NULL;
  for (unsigned i = schedule->n; i-- > 0;) {
    const struct zps_plan_run *const run = &schedule->runs[i];
    const uint64_t steps = run->until - run->from;
    if (steps >= ZPS_PLAN_ALONE) return run->scheme;
    if (!best && steps > 1) best = run;
  }
  if (!best && schedule->n > 0) best = &schedule->runs[schedule->n - 1];
  return best ? best->scheme : first;
}

/* False: the coordinator is to say first how. */
static bool decide(struct zps_plan_agreement *agreement) {
  struct zps_plan_schedule *const decided = &agreement->decided;
  const uint64_t step = agreement->step;
  if (zps_plan_schedule_until(decided) == UINT64_MAX) return false; /* there are no more steps */
  const struct zps_plan_run *const run = zps_plan_schedule_find(&agreement->proposed, step);
  struct zps_plan_run added;
  if (!run && !agreement->is_alone) return false;
  if (run)
    zps_plan_schedule_extend(decided, step, run->until - step, run->scheme, &added);
  else
    zps_plan_schedule_extend(decided, step, ZPS_PLAN_ALONE, settled(decided, agreement->first), &added);
  return true;
}

bool zps_plan_agreement_begin(struct zps_plan_agreement *agreement) {
  if (agreement->is_under_way) return false;
  const bool is_open =
      zps_plan_agreement_decides(agreement) && agreement->step >= zps_plan_schedule_until(&agreement->decided);
  const bool is_answer = agreement->is_due && (!is_open || decide(agreement));
  if (!is_answer && !agreement->is_owed) return false;
  if (is_answer) agreement->is_due = false;
  agreement->is_under_way = true;
  return true;
}

void zps_plan_agreement_give(const struct zps_plan_agreement *agreement, const struct zps_plan_schedule *schedule,
                             unsigned char *given) {
  const uint64_t decided = zps_plan_schedule_until(&agreement->decided);
  memset(given, 0, ZPS_PLAN_ROUND_BYTES(agreement->n_ranks));
  if (zps_plan_agreement_decides(agreement)) word_write(&agreement->decided, given);
  given[ZPS_PLAN_WORD_BYTES + agreement->index] = agreement->has_failed || decided > zps_plan_schedule_until(schedule);
}

void zps_plan_agreement_unbegun(struct zps_plan_agreement *agreement) {
  agreement->is_under_way = false;
  agreement->is_owed = true;
}

static bool has_mark(const struct zps_plan_agreement *agreement, const unsigned char *round) {
  bool any = false;
  for (uint32_t i = 0; i < agreement->n_ranks; i++) any |= round[ZPS_PLAN_WORD_BYTES + i] != 0;
  return any;
}

bool zps_plan_agreement_end(struct zps_plan_agreement *agreement, struct zps_plan_schedule *schedule,
                            const unsigned char *round) {
  agreement->is_under_way = false;
  agreement->number++;
  const bool learned = round && word_learn(round, schedule);
  agreement->has_failed = !learned;
  agreement->is_owed = !learned || has_mark(agreement, round);
  if (!learned) return !round;
  if (agreement->step < zps_plan_schedule_until(schedule))
    agreement->is_due = false; /* the question after this one has its answer */
  return true;
}

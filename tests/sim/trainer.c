/* The program of a rank: a trainer that has some steps in flight, and looks at every result. */
#define ZPS_LOG_COMPONENT "trainer"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "tests/sim/cluster.h"
#include "tests/sim/limits.h"
#include "tests/sim/operation.h"
#include "worker/api/job.h"
#include "zenps/zenps.h"

#define SHORT_NS (300 * ZPS_NS_PER_MS) /* memory is, at the longest */

enum {
  TIMEOUT_MS = 30000,
  BUSY_MS = 1,    /* from one look to the next */
  PLACE_MS = 100, /* from one try for a place in the job to the next */
  LOSS_MS = 3000, /* time that the others may take to tell a dead rank from one that comes back */
  STEPS_A_CANCEL = 4,
  STEPS_A_DELAY = 40, /* until the deadline, or thereabouts */
  NEAR_MS = 5,
  DELAYS_MAX = 3,
};

struct trainer {
  struct sim_rank *self;
  const struct sim_plan *plan;
  zenps_job_t *job;
  zenps_tensor_t *tensors[SIM_TENSORS_MAX];
  struct sim_operation operations[SIM_TENSORS_MAX][SIM_WINDOW_MAX];
  bool failed;                         /* the job goes no further here */
  bool step_failed;                    /* the job goes on, and the step may be tried again */
  bool tensor_failed[SIM_TENSORS_MAX]; /* the job goes on, and this tensor's step may be tried again */
  uint64_t told[SIM_TENSORS_MAX];      /* the step that the library is told */
};

static bool any_leaves(uint32_t run) {
  bool any = false;
  for (uint32_t r = 0; r < sim_cluster.n_ranks; r++) {
    const struct sim_rank *const rank = &sim_cluster.ranks[r];
    any |= (sim_cluster.plan->n_jobs == 1 || rank->nth_job == run) && rank->nth_job + rank->n_left > run;
  }
  return any;
}

/* When another rank was killed; when a read brought other bytes twice, and that rank has left; or when a server was
 * lost, and a rank that has closed the job already, having all of its sums, cannot push again what others still lack.
 * Between ranks all are told of a rank's death as that, and a server's does them no harm. `of`: NULL: no step. */
static bool may_fail_with(zenps_status_t status, uint32_t run, const struct sim_tensor_plan *of) {
  const bool is_lost = status == ZENPS_ERR_CLOSED || status == ZENPS_ERR_SERVER_LOST;
  const bool is_between = of && of->between && sim_cluster.n_errors[run] == 0;
  if (is_lost && sim_cluster.server_taken && any_leaves(run) && !is_between) return true;
  if (sim_cluster.plan->flips &&
      (status == ZENPS_ERR_FABRIC || (sim_cluster.read_failed && status == ZENPS_ERR_CLOSED)))
    return true;
  if (sim_cluster.was_short && (is_lost || status == ZENPS_ERR_PEER_LOST || status == ZENPS_ERR_NOMEM)) return true;
  if (sim_cluster.was_short && status == ZENPS_ERR_MISSING && sim_cluster.n_errors[run] > 0)
    return true; /* of an open */
  if (sim_job_is_limited(sim_cluster.plan, run) &&
      (status == ZENPS_ERR_QUOTA || (any_leaves(run) && (is_lost || status == ZENPS_ERR_PEER_LOST)) ||
       (status == ZENPS_ERR_MISSING &&
        sim_cluster.n_errors[run] > 0))) /* others were told ERR_QUOTA as they began it */
    return true;
  return run == sim_cluster.killed_run && sim_cluster.rank_killed &&
         (status == ZENPS_ERR_PEER_LOST || (status == ZENPS_ERR_MISSING && !(of && of->between)) ||
          status == ZENPS_ERR_CLOSED);
}

static uint64_t most(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* What a step may end with when the job goes on, and all ranks try it again. A job with a limit may have its memory in
 * rounds that wait for a rank in vain. A rank whose push or pull was lost with a
 * server says so at once; those that allreduce the step wait for its push until the deadline. */
static bool may_try_again(const struct trainer *trainer, const struct sim_operation *operation, zenps_status_t status) {
  const struct sim_plan *const plan = trainer->plan;
  const struct sim_meeting *const meeting = &sim_cluster.meetings[trainer->self->run];
  const uint64_t oldest = operation->attempt.number - least(operation->attempt.number, plan->tensors[0].staleness);
  const bool was_given_up = operation->is_newest && meeting->given_up > oldest; /* a step that is as good */
  const bool is_lost = plan->is_apart && sim_cluster.server_taken;
  const bool is_limited = sim_job_is_limited(sim_cluster.plan, trainer->self->run);
  const bool is_auto = strncmp(plan->tensors[0].scheme, "auto", 4) == 0; /* ranks agree in rounds of their own */
  if (!plan->in_step) return false;
  return (status == ZENPS_ERR_CANCELED && (meeting->any_cancel || was_given_up)) ||
         (status == ZENPS_ERR_TIMEOUT && meeting->any_late) || /* ranks have not agreed on a scheme */
         (status == ZENPS_ERR_MISSING && (meeting->any_late || meeting->any_absent || was_given_up || is_lost)) ||
         (status == ZENPS_ERR_SERVER_LOST && (is_lost || (meeting->any_cancel && sim_cluster.server_taken))) ||
         (status == ZENPS_ERR_NOMEM && sim_cluster.was_short) ||
         (is_limited &&
          (status == ZENPS_ERR_QUOTA || (status == ZENPS_ERR_TIMEOUT && (meeting->any_absent || is_auto))));
}

/* Both numbers, so that whoever reads it knows how much is too much. */
static void check_text(const struct trainer *trainer, const zenps_error_t *error) {
  if (error->status == ZENPS_ERR_QUOTA && !sim_quota_is_told(sim_cluster.plan, error->text))
    sim_wrong("rank %u was told ERR_QUOTA without both numbers: %s", trainer->self->rank, error->text);
}

static void failed(struct trainer *trainer, const struct sim_tensor_plan *of, const char *what,
                   const zenps_error_t *error) {
  const bool may = may_fail_with(error->status, trainer->self->run, of);
  check_text(trainer, error);
  trainer->failed = true;
  sim_cluster.n_errors[trainer->self->run]++;
  sim_cluster.read_failed |= error->status == ZENPS_ERR_FABRIC;
  sim_wake_all(&sim_cluster.steps_seen);
  if (!may) sim_wrong("rank %u: %s: %s: %s", trainer->self->rank, what, zenps_strerror(error->status), error->text);
}

/* ------------------------------------------------------------ a step of a tensor */

static struct sim_operation *operation_of(struct trainer *trainer, uint32_t t, uint64_t step) {
  return &trainer->operations[t][step % trainer->plan->window];
}

static void step_failed(struct trainer *trainer, uint32_t t, const struct sim_operation *operation, const char *what,
                        const zenps_error_t *error) {
  check_text(trainer, error);
  zps_log_debug("tensor %u, step %llu: %s: %s: %s", t, (unsigned long long)operation->attempt.number, what,
                zenps_strerror(error->status), error->text);
  if (may_try_again(trainer, operation, error->status))
    trainer->step_failed = trainer->tensor_failed[t] = true;
  else
    failed(trainer, &trainer->plan->tensors[t], what, error);
}

/* The others wait for it until the deadline. */
static void not_begun(struct trainer *trainer, uint32_t t, const struct sim_operation *operation) {
  sim_cluster.meetings[trainer->self->run].any_absent = true;
  step_failed(trainer, t, operation, "begin", zenps_last_error());
}

static void begin(struct trainer *trainer, uint32_t t, struct sim_attempt attempt) {
  struct sim_operation *const operation = operation_of(trainer, t, attempt.step);
  const uint64_t until_ns = sim_now_ns() + TIMEOUT_MS * ZPS_NS_PER_MS;
  zenps_status_t status;
  while ((status = sim_operation_begin(operation, trainer->plan, t, trainer->tensors[t], attempt,
                                       trainer->self->rank)) == ZENPS_ERR_BUSY &&
         attempt.told < attempt.number && sim_now_ns() < until_ns)
    sim_sleep(BUSY_MS * ZPS_NS_PER_MS); /* until what failed under this number has been given up */
  if (status != ZENPS_OK) not_begun(trainer, t, operation);
}

static zenps_status_t wait_for(struct trainer *trainer, uint32_t t, struct sim_operation *operation,
                               const zenps_error_t **error_p) {
  const struct sim_tensor_plan *const of = &trainer->plan->tensors[t];
  const uint64_t newest = least(operation->attempt.number + trainer->plan->window, trainer->plan->n_steps) - 1;
  const zenps_status_t status = sim_operation_wait(operation, error_p);
  if (status != ZENPS_ERR_STALE || trainer->plan->in_step || !sim_operation_is_overtaken(operation, of, newest))
    return status;
  zps_log_debug("tensor %u, step %llu: %s: asks again", t, (unsigned long long)operation->attempt.number,
                (*error_p)->text);
  if (sim_operation_ask_again(operation, of, trainer->tensors[t]) == ZENPS_OK)
    return sim_operation_wait(operation, error_p);
  *error_p = zenps_last_error();
  return (*error_p)->status;
}

static void end(struct trainer *trainer, uint32_t t, uint64_t step) {
  struct sim_operation *const operation = operation_of(trainer, t, step);
  const uint64_t began_ns = sim_now_ns(), deadline_ns = began_ns + (TIMEOUT_MS + 5000) * ZPS_NS_PER_MS;
  const zenps_error_t *error = NULL;
  const zenps_status_t status = wait_for(trainer, t, operation, &error);
  if (sim_now_ns() > deadline_ns)
    sim_wrong("rank %u: tensor %u, step %llu ended after its deadline", trainer->self->rank, t,
              (unsigned long long)step);
  if ((status == ZENPS_ERR_NOMEM || status == ZENPS_ERR_QUOTA) &&
      strncmp(trainer->plan->tensors[t].scheme, "auto", 4) == 0)
    sim_cluster.meetings[trainer->self->run].any_absent = true; /* it may have been begun in vain as late as this */
  if (status == ZENPS_ERR_PEER_LOST && trainer->plan->kind == SIM_PEERS && trainer->plan->tensors[t].between &&
      sim_now_ns() > most(began_ns, sim_cluster.killed_ns) + LOSS_MS * ZPS_NS_PER_MS)
    sim_wrong("rank %u: tensor %u, step %llu ended long after a rank had died", trainer->self->rank, t,
              (unsigned long long)step);
  if (status != ZENPS_OK)
    step_failed(trainer, t, operation, "step", error);
  else if (operation->is_begun &&
           !sim_operation_is_right(operation, trainer->plan, trainer->self->run, t, trainer->self->rank))
    sim_wrong("rank %u: tensor %u, step %llu: the sum is not that of the gradients, in its order", trainer->self->rank,
              t, (unsigned long long)step);
  sim_operation_free(operation);
}

/* ------------------------------------------------------------ the whole */

static void step_seen(struct trainer *trainer) {
  sim_cluster.steps_seen += !trainer->failed;
  sim_cluster.steps_of[trainer->self->run] += !trainer->failed;
  sim_wake_all(&sim_cluster.steps_seen);
  if (sim_chance(4) || sim_plan_has_long_steps(trainer->plan))
    sim_sleep(sim_random(trainer->plan->step_ns)); /* forward and backward */
}

static void train(struct trainer *trainer) {
  const struct sim_plan *plan = trainer->plan;
  for (uint64_t step = 0; step < plan->n_steps + plan->window - 1; step++) {
    for (uint32_t t = 0; t < plan->n_tensors && step < plan->n_steps && !trainer->failed; t++)
      begin(trainer, t, (struct sim_attempt){.step = step, .number = step, .told = step});
    if (step + 1 < plan->window) continue;
    for (uint32_t t = 0; t < plan->n_tensors; t++) end(trainer, t, step + 1 - plan->window);
    step_seen(trainer);
  }
}

static bool is_over(uint32_t run) {
  return sim_cluster.n_errors[run] > 0 || (run == sim_cluster.killed_run && sim_cluster.rank_killed);
}

/* Whether all have done the step well. Returns when all have said so, or the job is over. */
static bool meet(struct trainer *trainer) {
  const uint32_t run = trainer->self->run;
  struct sim_meeting *const meeting = &sim_cluster.meetings[run];
  const uint32_t number = meeting->number;
  meeting->failed |= trainer->step_failed;
  for (uint32_t t = 0; t < SIM_TENSORS_MAX; t++) meeting->n_failed[t] += trainer->tensor_failed[t];
  if (++meeting->n_there == trainer->plan->world) {
    meeting->had_failed = meeting->failed;
    memcpy(meeting->n_had_failed, meeting->n_failed, sizeof meeting->n_failed);
    memset(meeting->n_failed, 0, sizeof meeting->n_failed);
    meeting->failed = meeting->any_cancel = meeting->any_late = meeting->any_absent = false;
    meeting->n_there = 0;
    meeting->number++;
    sim_wake_all(&sim_cluster.steps_seen);
  }
  while (meeting->number == number && !is_over(run)) sim_wait(&sim_cluster.steps_seen, ZPS_NEVER);
  return !meeting->had_failed;
}

/* The steps that the next attempt is at, behind a meeting. */
static void tell_next(struct trainer *trainer, uint64_t number) {
  const struct sim_plan *const plan = trainer->plan;
  const struct sim_meeting *const meeting = &sim_cluster.meetings[trainer->self->run];
  for (uint32_t t = 0; t < plan->n_tensors; t++) {
    const bool failed_on_all = meeting->n_had_failed[t] == plan->world;
    const bool repeats = plan->repeats && plan->tensors[t].between && !plan->tensors[t].ascends;
    if (!repeats || !failed_on_all) trainer->told[t] = number;
  }
}

/* The last attempts go well. */
static bool may_give_up(const struct trainer *trainer, struct sim_attempt attempt) {
  return trainer->plan->gives_up && attempt.n_before < SIM_ATTEMPTS / 2;
}

/* Not where numbers are used again: one that comes when others have forgotten the attempt ends their next one. */
static void maybe_come_late(struct trainer *trainer, struct sim_attempt attempt) {
  struct sim_meeting *const meeting = &sim_cluster.meetings[trainer->self->run];
  if (trainer->plan->repeats || !may_give_up(trainer, attempt) || !sim_chance(STEPS_A_DELAY) ||
      meeting->n_late == DELAYS_MAX)
    return;
  meeting->any_late = true;
  meeting->n_late++;
  meeting->given_up = attempt.number + 1;
  const uint64_t until_ns =
      sim_now_ns() + (TIMEOUT_MS - NEAR_MS) * ZPS_NS_PER_MS + sim_random(2 * NEAR_MS * ZPS_NS_PER_MS);
  while (sim_now_ns() < until_ns && !is_over(trainer->self->run)) sim_wait(&sim_cluster.steps_seen, until_ns);
}

static void maybe_cancel(struct trainer *trainer, struct sim_attempt attempt) {
  struct sim_meeting *const meeting = &sim_cluster.meetings[trainer->self->run];
  if (!may_give_up(trainer, attempt) || !sim_chance(STEPS_A_CANCEL)) return;
  const struct sim_operation *const operation =
      operation_of(trainer, (uint32_t)sim_random(trainer->plan->n_tensors), attempt.step);
  zenps_request_t *const request = operation->pull && sim_chance(2) ? operation->pull : operation->request;
  sim_sleep(sim_random(sim_chance(2) ? 20000 : 2 * ZPS_NS_PER_MS));
  if (!request) return;
  meeting->any_cancel = true;
  meeting->given_up = attempt.number + 1;
  if (zenps_cancel(request) != ZENPS_OK) sim_wrong("cancel: %s", zenps_last_error()->text);
}

static void train_in_step(struct trainer *trainer) {
  const struct sim_plan *plan = trainer->plan;
  struct sim_attempt attempt = {0};
  while (attempt.step < plan->n_steps && !trainer->failed && !is_over(trainer->self->run)) {
    trainer->step_failed = false;
    memset(trainer->tensor_failed, 0, sizeof trainer->tensor_failed);
    maybe_come_late(trainer, attempt);
    for (uint32_t t = 0; t < plan->n_tensors && !trainer->failed; t++) {
      attempt.told = trainer->told[t];
      begin(trainer, t, attempt);
    }
    maybe_cancel(trainer, attempt);
    for (uint32_t t = 0; t < plan->n_tensors; t++) end(trainer, t, attempt.step);
    if (trainer->failed) return;
    const bool went_well = meet(trainer);
    if (is_over(trainer->self->run)) return;
    tell_next(trainer, attempt.number + 1);
    if (went_well) {
      step_seen(trainer);
      attempt = (struct sim_attempt){.step = attempt.step + 1, .number = attempt.number + 1};
      continue;
    }
    if (sim_cluster.was_short) sim_sleep(SHORT_NS / SIM_ATTEMPTS * 2);
    if (attempt.number++, ++attempt.n_before == SIM_ATTEMPTS) {
      if (!sim_cluster.coordinator_short && !sim_job_is_limited(sim_cluster.plan, trainer->self->run))
        sim_wrong("step %llu fails time after time", (unsigned long long)attempt.step);
      sim_cluster.n_errors[trainer->self->run]++;
      sim_wake_all(&sim_cluster.steps_seen);
      trainer->failed = true;
    }
  }
}

/* What others still lack is pushed again by those that are there. */
static void wait_for_others(const struct trainer *trainer) {
  const struct sim_plan *plan = trainer->plan;
  const uint32_t run = trainer->self->run;
  while (!plan->leaves_early && sim_cluster.steps_of[run] < plan->world * plan->n_steps &&
         sim_cluster.n_errors[run] == 0 && !(run == sim_cluster.killed_run && sim_cluster.rank_killed))
    sim_wait(&sim_cluster.steps_seen, ZPS_NEVER);
}

/* Where the coordinator has ended a connection for want of memory, it takes a rank that is killed then for one that is
 * away, and keeps its place until it gives that one up. */
static zenps_status_t open_job(struct trainer *trainer, const zenps_options_t *options) {
  const uint64_t until_ns = sim_now_ns() + LOSS_MS * ZPS_NS_PER_MS;
  zenps_status_t status;
  while ((status = zenps_open(options, &trainer->job)) == ZENPS_ERR_RANK_TAKEN && sim_cluster.was_short &&
         sim_now_ns() < until_ns)
    sim_sleep(PLACE_MS * ZPS_NS_PER_MS);
  return status;
}

static bool open_all(struct trainer *trainer) {
  const struct sim_plan *plan = trainer->plan;
  zenps_options_t options;
  zenps_options_init(&options, sizeof options);
  options.coordinator = SIM_COORDINATOR;
  options.job = plan->job == 0 ? "run" : plan->job == 1 ? "beside" : "beside-both";
  options.rank = (int)trainer->self->rank;
  options.world = (int)plan->world;
  options.provider = plan->provider;
  options.join_timeout_ms = options.round_timeout_ms = TIMEOUT_MS;
  options.threads = (int)plan->threads;
  options.server_places = plan->asks_places ? (int)plan->places : 0;
  if (open_job(trainer, &options) != ZENPS_OK) {
    failed(trainer, NULL, "open", zenps_last_error());
    return false;
  }
  trainer->self->is_in = true;
  trainer->self->job = trainer->job;
  for (uint32_t t = 0; t < plan->n_tensors; t++) {
    if (sim_tensor_open(trainer->job, &plan->tensors[t], &trainer->tensors[t]) != ZENPS_OK) {
      failed(trainer, NULL, "tensor_open", zenps_last_error());
      return false;
    }
  }
  if (sim_job_lacks_tensors(sim_cluster.plan, trainer->self->run))
    sim_wrong("rank %u has opened more tensors than a job may have", trainer->self->rank);
  return true;
}

static void run_once(struct sim_rank *self) {
  struct trainer *trainer = calloc(1, sizeof *trainer);
  trainer->self = self;
  trainer->plan = self->plan;
  for (uint32_t t = 0; t < trainer->plan->n_tensors; t++)
    for (uint32_t w = 0; w < trainer->plan->window; w++)
      sim_operation_init(&trainer->operations[t][w], &trainer->plan->tensors[t]);
  if (open_all(trainer)) (trainer->plan->in_step ? train_in_step : train)(trainer);
  wait_for_others(trainer);
  if (self->rank == 0) sim_places_check(trainer->plan);
  if (self->rank == 0) sim_links_check(trainer->plan);
  self->n_left++;
  zenps_close(trainer->job);
  self->is_in = false;
  for (uint32_t t = 0; t < trainer->plan->n_tensors; t++)
    for (uint32_t w = 0; w < trainer->plan->window; w++) sim_operation_fini(&trainer->operations[t][w]);
  free(trainer);
}

void sim_rank_main(void *ctx) {
  struct sim_rank *self = ctx;
  for (; self->run < self->nth_job + self->plan->n_runs; self->run++) run_once(self);
  self->has_ended = true;
  sim_wake_all(&sim_cluster.steps_seen);
}

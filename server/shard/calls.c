/* The calls that other threads make: each is run by the engine's thread, between its turns. */
#include "server/shard/shard.h"

#include <stdatomic.h>

#include "common/base/clock.h"
#include "server/shard/flight.h"
#include "server/shard/job.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/tensor.h"

/* So that the caller's own heartbeats are not late by as much as would have it taken for dead. */
#define CALL_PATIENCE_NS (3 * ZPS_NS_PER_S)

struct call {
  struct zps_command command;
  struct zps_shard *shard;
  void (*act)(struct call *call, struct zps_job *job);
  const void *spec;
  const char *text;
  uint64_t job_id;
  uint32_t number;
  zps_err_t code;
  struct zps_error *error;
  struct zps_shard_totals totals;
  void (*visit)(void *ctx, const struct zps_tensor_stats *stats);
  void (*visit_share)(void *ctx, const struct zps_job_share *share);
  void (*visit_round)(void *ctx, const struct zps_round_flight *flight);
  unsigned max;
  void *visit_ctx;
};

/* Of the engine, plus 1. */
static uint64_t turn_of(struct zps_shard *shard) {
  return zps_engine_pulse(shard->engine, 0).turns + 1;
}

/* No caller waits for a thread that is stuck. What has been found stuck is not waited for again before it moves. */
static void run_call(struct call *call, struct zps_shard *shard, void (*run)(struct zps_command *, void *)) {
  call->command.run = run;
  call->shard = shard;
  const uint64_t turn = turn_of(shard); /* it makes another before it sleeps, when it has a call to take */
  zps_err_t code = ZPS_ERR_TIMEOUT;
  if (turn != atomic_load(&shard->stuck_turn)) {
    code = zps_engine_call_within(shard->engine, &call->command, CALL_PATIENCE_NS);
    atomic_store(&shard->stuck_turn, code == ZPS_ERR_TIMEOUT ? turn : 0);
  }
  if (code == ZPS_ERR_TIMEOUT)
    call->code = zps_fail(call->error, code, "the progress thread is stuck: it has taken no call for %u s",
                          (unsigned)(CALL_PATIENCE_NS / ZPS_NS_PER_S));
  else if (code != ZPS_OK)
    call->code = zps_fail(call->error, code, "the shard cannot be called: %s", zps_err_str(code));
}

static void run_job_open(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  call->code = zps_job_open(ctx, call->spec, call->error);
}

zps_err_t zps_shard_job_open(struct zps_shard *shard, const struct zps_job_spec *spec, struct zps_error *error) {
  struct call call = {.spec = spec, .error = error};
  run_call(&call, shard, run_job_open);
  return call.code;
}

/* ------------------------------------------------------------ calls about a job */

static void run_act(struct zps_command *command, void *ctx) {
  struct call *const call = (struct call *)command;
  struct zps_job *const job = zps_job_find(call->shard->jobs, call->job_id);
  if (job)
    call->act(call, job);
  else
    call->code = zps_fail(call->error, ZPS_ERR_UNKNOWN, "job 0x%016llx is not open on this server",
                          (unsigned long long)call->job_id);
  zps_shard_settle(ctx);
}

static zps_err_t act(struct zps_shard *shard, struct call call) {
  run_call(&call, shard, run_act);
  return call.code;
}

static void open_tensor(struct call *call, struct zps_job *job) {
  call->code = zps_tensor_open(job, call->spec, call->error);
}

zps_err_t zps_shard_tensor_open(struct zps_shard *shard, const struct zps_tensor_spec *spec, struct zps_error *error) {
  return act(shard, (struct call){.act = open_tensor, .spec = spec, .job_id = spec->job_id, .error = error});
}

static void close_tensor(struct call *call, struct zps_job *job) {
  if (!zps_job_tensor_close(job, call->number))
    call->code =
        zps_fail(call->error, ZPS_ERR_UNKNOWN, "job %s has no tensor %u on this server", job->name, call->number);
}

zps_err_t zps_shard_tensor_close(struct zps_shard *shard, uint64_t job_id, uint32_t tensor, struct zps_error *error) {
  return act(shard, (struct call){.act = close_tensor, .number = tensor, .job_id = job_id, .error = error});
}

static void close_job(struct call *call, struct zps_job *job) {
  zps_job_close(job, zps_clock_ns(), call->text);
}

zps_err_t zps_shard_job_close(struct zps_shard *shard, uint64_t job_id, const char *reason) {
  return act(shard, (struct call){.act = close_job, .job_id = job_id, .text = reason});
}

static void leave_job(struct call *call, struct zps_job *job) {
  zps_job_leave(job, zps_clock_ns(), call->text);
}

zps_err_t zps_shard_job_leave(struct zps_shard *shard, uint64_t job_id, const char *reason) {
  return act(shard, (struct call){.act = leave_job, .job_id = job_id, .text = reason});
}

static void view_job(struct call *call, struct zps_job *job) {
  call->code = zps_job_view(job, call->spec, call->error);
}

zps_err_t zps_shard_job_view(struct zps_shard *shard, const struct zps_job_view *message, struct zps_error *error) {
  return act(shard, (struct call){.act = view_job, .spec = &message->view, .job_id = message->job_id, .error = error});
}

static void replay_job(struct call *call, struct zps_job *job) {
  zps_job_replay(job, call->number);
}

zps_err_t zps_shard_job_replay(struct zps_shard *shard, uint64_t job_id, uint32_t epoch, struct zps_error *error) {
  return act(shard, (struct call){.act = replay_job, .number = epoch, .job_id = job_id, .error = error});
}

static void lose_rank(struct call *call, struct zps_job *job) {
  const zps_err_t why = *(const zps_err_t *)call->spec;
  if (call->number >= job->world) {
    call->code = ZPS_ERR_UNKNOWN;
    return;
  }
  if (why != ZPS_ERR_CLOSED) zps_job_lost(job, call->number, call->text);
  zps_member_gone(&job->members[call->number], why, call->text);
}

zps_err_t zps_shard_rank_gone(struct zps_shard *shard, uint64_t job_id, uint32_t rank, zps_err_t code,
                              const char *text) {
  return act(shard, (struct call){.act = lose_rank, .number = rank, .spec = &code, .job_id = job_id, .text = text});
}

/* ------------------------------------------------------------ figures */

static void run_stats(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct zps_shard *shard = ctx;
  call->totals = (struct zps_shard_totals){.net = *zps_net_counters(shard->net),
                                           .mishaps = zps_engine_mishaps(shard->engine),
                                           .memory_limit_bytes = shard->memory_limit_bytes,
                                           .rounds_in_flight = shard->rounds_in_flight};
  zps_slab_stats(shard->slab, &call->totals.slab);
  for (struct zps_job *job = shard->jobs; job; job = job->next) {
    call->totals.jobs++;
    for (struct zps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) {
      call->totals.tensors++;
      if (call->visit) zps_sums_visit(tensor, call->visit, call->visit_ctx);
    }
  }
}

zps_err_t zps_shard_stats(struct zps_shard *shard, struct zps_shard_totals *totals_p,
                          void (*visit)(void *ctx, const struct zps_tensor_stats *stats), void *ctx,
                          struct zps_error *error) {
  struct call call = {.visit = visit, .visit_ctx = ctx, .error = error};
  run_call(&call, shard, run_stats);
  *totals_p = call.totals;
  return call.code;
}

static void run_shares(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct zps_shard *shard = ctx;
  for (const struct zps_job *job = shard->jobs; job; job = job->next) {
    const struct zps_job_share share = {.job_id = job->id,
                                        .weight = job->flow->weight,
                                        .pool = zps_workpool_served(shard->pool, job->flow),
                                        .memory_bytes = *zps_slab_arena_used(job->arena)};
    call->visit_share(call->visit_ctx, &share);
  }
}

zps_err_t zps_shard_shares(struct zps_shard *shard, void (*visit)(void *ctx, const struct zps_job_share *share),
                           void *ctx, struct zps_error *error) {
  struct call call = {.visit_share = visit, .visit_ctx = ctx, .error = error};
  run_call(&call, shard, run_shares);
  return call.code;
}

static void run_rounds(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  const struct zps_shard *shard = ctx;
  const uint64_t now_ns = zps_clock_ns();
  unsigned n = 0;
  for (const struct zps_shard_round *round = shard->oldest; round && n < call->max; round = round->younger) {
    struct zps_round_flight flight;
    if (!zps_shard_round_flight(round, now_ns, &flight)) continue;
    call->visit_round(call->visit_ctx, &flight);
    n++;
  }
}

zps_err_t zps_shard_rounds(struct zps_shard *shard, unsigned max,
                           void (*visit)(void *ctx, const struct zps_round_flight *flight), void *ctx,
                           struct zps_error *error) {
  struct call call = {.visit_round = visit, .visit_ctx = ctx, .max = max, .error = error};
  run_call(&call, shard, run_rounds);
  return call.code;
}

unsigned zps_shard_jobs(struct zps_shard *shard) {
  struct zps_shard_totals totals;
  return zps_shard_stats(shard, &totals, NULL, NULL, NULL) == ZPS_OK ? totals.jobs : 0;
}

static void run_nothing(struct zps_command *command, void *ctx) {
  (void)command, (void)ctx;
}

bool zps_shard_answers(struct zps_shard *shard) {
  struct call call = {.code = ZPS_OK};
  run_call(&call, shard, run_nothing);
  return call.code == ZPS_OK;
}

static void run_patience(struct zps_command *command, void *ctx) {
  struct zps_shard *shard = ctx;
  shard->patience_ns = *(const uint64_t *)((struct call *)command)->spec;
  shard->next_deadline_ns = 0; /* rounds are looked at anew */
}

void zps_shard_set_patience(struct zps_shard *shard, uint64_t patience_ms) {
  const uint64_t patience_ns = patience_ms * ZPS_NS_PER_MS;
  struct call call = {.spec = &patience_ns};
  run_call(&call, shard, run_patience);
}

bool zps_shard_due(struct zps_shard *shard, uint64_t now_ns, uint64_t *turns_p) {
  const struct zps_engine_pulse pulse = zps_engine_pulse(shard->engine, now_ns);
  *turns_p = pulse.turns;
  return pulse.due;
}

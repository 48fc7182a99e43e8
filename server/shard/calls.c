/* The calls that other threads make: each is run by the engine's thread, between its turns. */
#include <stdatomic.h>
#include <string.h>

#include "common/base/clock.h"
#include "server/shard/job.h"
#include "server/shard/machine.h"
#include "server/shard/pull.h"
#include "server/shard/quorum.h"
#include "server/shard/round.h"
#include "server/shard/shard.h"
#include "server/shard/shard_impl.h"
#include "server/shard/sum.h"
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

/* All ranks live in this epoch: what they may have read before is freed, and rounds with a quorum may close. */
static void replay_job(struct call *call, struct zps_job *job) {
  if (call->number != job->epoch) return;
  zps_shard_sums_release(&job->held);
  if (job->awaits_replay) zps_quorum_be_sure(job);
  job->awaits_replay = false;
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
  if (why != ZPS_ERR_CLOSED && job->lost == ZPS_SHARD_NO_RANK) { /* the first rank that is reported lost */
    job->lost = call->number;
    job->lost_text = strdup(call->text);
  }
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

/* ------------------------------------------------------------ rounds in flight, for zenpsctl rounds */

static bool has_announced(const struct zps_shard_machine *machine, uint32_t rank) {
  for (uint32_t part = 0; part < machine->n_parts; part++)
    if (!zps_shard_machine_has(machine, rank, part)) return false;
  return true;
}

static bool has_pull(const struct zps_shard_round *round, uint32_t rank) {
  for (const struct zps_shard_pull *pull = round->pulls; pull; pull = pull->next)
    if (pull->rank == rank) return true;
  return false;
}

static bool waits_for(const struct zps_shard_round *round, enum zps_flight_wait wait, uint32_t rank) {
  const struct zps_shard_machine *const machine = round->machine;
  if (zps_shard_machine_rank_gone(machine, rank)) return false;
  switch (wait) {
    case ZPS_FLIGHT_PUSH:
      return !has_announced(machine, rank);
    case ZPS_FLIGHT_BYTES:
      return machine->rank_here[rank] < machine->n_parts;
    case ZPS_FLIGHT_PULL:
      return zps_shard_machine_reads(machine, rank) || has_pull(round, rank);
    case ZPS_FLIGHT_SUM:
      break;
  }
  return false;
}

static void find_ranks(const struct zps_shard_round *round, enum zps_flight_wait wait,
                       struct zps_round_flight *flight) {
  flight->wait = wait;
  flight->n_ranks = 0;
  for (uint32_t rank = 0; rank < flight->world; rank++) {
    if (!waits_for(round, wait, rank)) continue;
    if (flight->n_ranks < ZPS_FLIGHT_RANKS_MAX) flight->ranks[flight->n_ranks] = rank;
    flight->n_ranks++;
  }
}

/* False: the round waits for nobody, since it only keeps sums for later pulls. */
static bool describe_flight(const struct zps_shard_round *round, uint64_t now_ns, struct zps_round_flight *flight_p) {
  const struct zps_shard_machine *const machine = round->machine;
  const struct zps_tensor *const tensor = round->tensor;
  if (zps_shard_machine_over(machine) || zps_shard_machine_only_keeps(machine)) return false;
  *flight_p = (struct zps_round_flight){.job_id = tensor->job->id,
                                        .step = machine->config.step,
                                        .tensor = tensor->id,
                                        .world = machine->world,
                                        .name = tensor->name,
                                        .age_ns = now_ns > round->opened_ns ? now_ns - round->opened_ns : 0,
                                        .left_ns = ZPS_NEVER};
  if (machine->deadline_ns != ZPS_NEVER)
    flight_p->left_ns = machine->deadline_ns > now_ns ? machine->deadline_ns - now_ns : 0;
  if (machine->state == ZPS_SHARD_REDUCING) {
    find_ranks(round, ZPS_FLIGHT_SUM, flight_p);
  } else if (machine->state == ZPS_SHARD_PUBLISHED) {
    find_ranks(round, ZPS_FLIGHT_PULL, flight_p);
  } else {
    find_ranks(round, ZPS_FLIGHT_PUSH, flight_p);
    if (flight_p->n_ranks == 0) find_ranks(round, ZPS_FLIGHT_BYTES, flight_p);
  }
  return true;
}

static void run_rounds(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  const struct zps_shard *shard = ctx;
  const uint64_t now_ns = zps_clock_ns();
  unsigned n = 0;
  for (const struct zps_shard_round *round = shard->oldest; round && n < call->max; round = round->younger) {
    struct zps_round_flight flight;
    if (!describe_flight(round, now_ns, &flight)) continue;
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

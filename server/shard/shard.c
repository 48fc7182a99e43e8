/* The shard: the engine and the pool with what hangs on them, and the calls that other threads make. */
#include "server/shard/shard.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "server/shard/collect.h"
#include "server/shard/job.h"
#include "server/shard/memory.h"
#include "server/shard/overdue.h"
#include "server/shard/publish.h"
#include "server/shard/pick.h"
#include "server/shard/reduce.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/sum.h"
#include "server/shard/tensor.h"

#define ABORTED_NS ZPS_NS_PER_S /* ranks hear of an abort in less, and sums are kept for twice as long at most */

/* ---- the engine's handler ---- */

static struct zps_link *find_link(void *ctx, const struct zps_frame_header *header) {
  return zps_collect_link(ctx, header);
}

static void on_frame(void *ctx, const struct zps_frame *frame) {
  zps_collect_frame(ctx, frame);
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx;
  (void)code; /* whatever the fabric calls it, to the job the rank is lost */
  zps_member_fail(zps_net_peer_ctx(peer), ZPS_ERR_PEER_LOST, text);
}

static void give_up_failing(struct zps_shard *shard) {
  if (!shard->any_failing) return;
  shard->any_failing = false;
  for (struct zps_job *job = shard->jobs; job; job = job->next) {
    for (uint32_t rank = 0; rank < job->world; rank++) {
      struct zps_member *member = &job->members[rank];
      if (member->is_failing)
        zps_member_gone(member, member->gone_code,
                        member->gone_text ? member->gone_text : zps_err_str(member->gone_code));
    }
  }
}

static void check_deadlines(struct zps_shard *shard, uint64_t now_ns) {
  if (now_ns < shard->next_deadline_ns) return;
  shard->next_deadline_ns = ZPS_NEVER;
  for (struct zps_shard_round *round = shard->oldest, *younger; round; round = younger) {
    younger = round->younger;
    if (!zps_shard_round_step(round, &(struct zps_shard_machine_event){.type = ZPS_SHARD_TICK, .now_ns = now_ns}))
      continue;
    const uint64_t next_ns =
        round->machine->state < ZPS_SHARD_PUBLISHED ? round->machine->deadline_ns : zps_overdue_look(round, now_ns);
    if (next_ns < shard->next_deadline_ns) shard->next_deadline_ns = next_ns;
  }
}

/* Frees closed jobs once what was under way has had time to arrive, both ways. The time of the next one. */
static uint64_t free_lingering(struct zps_shard *shard, uint64_t now_ns) {
  uint64_t next_ns = ZPS_NEVER;
  for (struct zps_job **link = &shard->lingering, *job; (job = *link) != NULL;) {
    if (now_ns >= job->linger_until_ns) {
      *link = job->next;
      zps_job_free(job);
      continue;
    }
    if (job->linger_until_ns < next_ns) next_ns = job->linger_until_ns;
    link = &job->next;
  }
  return next_ns;
}

/* Lets go what was held back for long enough. The time of the next. */
static uint64_t check_holdbacks(struct zps_shard *shard, uint64_t now_ns) {
  uint64_t next_ns = ZPS_NEVER;
  for (struct zps_job *job = shard->jobs; job; job = job->next) {
    if (job->holdback.until_ns == 0) continue;
    if (now_ns >= job->holdback.until_ns)
      zps_holdback_end(job);
    else if (job->holdback.until_ns < next_ns)
      next_ns = job->holdback.until_ns;
  }
  return next_ns;
}

/* Frees sums of aborted rounds, of which every rank has heard by now. The time of the next turn. */
static uint64_t free_aborted(struct zps_shard *shard, uint64_t now_ns) {
  if (shard->aborted_ns > 0 && now_ns >= shard->aborted_ns) {
    zps_shard_sums_release(&shard->aborted[1]);
    shard->aborted[1] = shard->aborted[0];
    shard->aborted[0] = NULL;
    shard->aborted_ns = 0;
    zps_shard_settle(shard);
  }
  if (!shard->aborted[0] && !shard->aborted[1]) return ZPS_NEVER;
  if (shard->aborted_ns == 0) shard->aborted_ns = now_ns + shard->keep_ns;
  return shard->aborted_ns;
}

static void progress_links(struct zps_job *jobs) {
  for (struct zps_job *job = jobs; job; job = job->next)
    for (uint32_t rank = 0; rank < job->world; rank++)
      if (job->members[rank].link) zps_link_progress(job->members[rank].link);
}

void zps_shard_settle(struct zps_shard *shard) {
  zps_memory_serve(&shard->memory);
  while (shard->small) { /* other rounds may wait for memory that they and their results held */
    zps_reduce_run_small(shard);
    zps_publish_flush(shard);
    zps_memory_serve(&shard->memory);
  }
  zps_publish_flush(shard);
  zps_shard_round_bury(shard);
}

static uint64_t on_tick(void *ctx, uint64_t now_ns) {
  struct zps_shard *shard = ctx;
  give_up_failing(shard);
  check_deadlines(shard, now_ns);
  zps_shard_settle(shard);
  const uint64_t aborted_ns = free_aborted(shard, now_ns);
  const uint64_t hold_ns = check_holdbacks(shard, now_ns);
  progress_links(shard->jobs);
  progress_links(shard->lingering);
  uint64_t next_ns = free_lingering(shard, now_ns);
  if (shard->any_failing) return now_ns; /* found out just above */
  if (hold_ns < next_ns) next_ns = hold_ns;
  if (aborted_ns < next_ns) next_ns = aborted_ns;
  return next_ns < shard->next_deadline_ns ? next_ns : shard->next_deadline_ns;
}

/* ---- calls from other threads ---- */

/* So that the caller's own heartbeats are not late by as much as would have it taken for dead. */
#define CALL_PATIENCE_NS (3 * ZPS_NS_PER_S)

struct call {
  struct zps_command command;
  struct zps_shard *shard;
  const void *spec;
  const char *text;
  uint64_t job_id;
  uint32_t rank;
  zps_err_t code;
  struct zps_error *error;
  struct zps_shard_totals totals;
  void (*visit)(void *ctx, const struct zps_tensor_stats *stats);
  void (*visit_share)(void *ctx, const struct zps_job_share *share);
  void *visit_ctx;
};

/* Of the engine, plus 1. */
static uint64_t turn_of(struct zps_shard *shard) {
  return zps_engine_pulse(shard->engine, 0).turns + 1;
}

static void run_call(struct call *call, struct zps_shard *shard, void (*run)(struct zps_command *, void *)) {
  call->command.run = run;
  call->shard = shard;
  const zps_err_t code = zps_engine_call(shard->engine, &call->command);
  if (code != ZPS_OK) call->code = zps_fail(call->error, code, "the shard is called from its own thread");
}

/* The same, of callers that must not wait for a thread that is stuck. What has been found stuck is not waited for
 * again before it moves. */
static void run_limited(struct call *call, struct zps_shard *shard, void (*run)(struct zps_command *, void *)) {
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

static struct zps_job *find_job(struct call *call) {
  struct zps_job *job = zps_job_find(call->shard->jobs, call->job_id);
  if (!job)
    call->code = zps_fail(call->error, ZPS_ERR_UNKNOWN, "job 0x%016llx is not open on this server",
                          (unsigned long long)call->job_id);
  return job;
}

static void run_job_open(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  call->code = zps_job_open(ctx, call->spec, call->error);
}

zps_err_t zps_shard_job_open(struct zps_shard *shard, const struct zps_job_spec *spec, struct zps_error *error) {
  struct call call = {.spec = spec, .error = error};
  run_limited(&call, shard, run_job_open);
  return call.code;
}

static void run_tensor_open(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  (void)ctx;
  struct zps_job *job = find_job(call);
  if (job) call->code = zps_tensor_open(job, call->spec, call->error);
}

zps_err_t zps_shard_tensor_open(struct zps_shard *shard, const struct zps_tensor_spec *spec, struct zps_error *error) {
  struct call call = {.spec = spec, .job_id = spec->job_id, .error = error};
  run_limited(&call, shard, run_tensor_open);
  return call.code;
}

static void run_tensor_close(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  const uint32_t tensor = *(const uint32_t *)call->spec;
  struct zps_job *job = find_job(call);
  if (job && !zps_job_tensor_close(job, tensor))
    call->code = zps_fail(call->error, ZPS_ERR_UNKNOWN, "job %s has no tensor %u on this server", job->name, tensor);
  zps_shard_settle(ctx);
}

zps_err_t zps_shard_tensor_close(struct zps_shard *shard, uint64_t job_id, uint32_t tensor, struct zps_error *error) {
  struct call call = {.spec = &tensor, .job_id = job_id, .error = error};
  run_limited(&call, shard, run_tensor_close);
  return call.code;
}

static void run_job_close(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct zps_job *job = find_job(call);
  if (job) zps_job_close(job, zps_clock_ns(), call->text);
  zps_shard_settle(ctx);
}

zps_err_t zps_shard_job_close(struct zps_shard *shard, uint64_t job_id, const char *reason) {
  struct call call = {.job_id = job_id, .text = reason};
  run_limited(&call, shard, run_job_close);
  return call.code;
}

static void run_job_leave(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct zps_job *job = find_job(call);
  if (job) zps_job_leave(job, zps_clock_ns(), call->text);
  zps_shard_settle(ctx);
}

zps_err_t zps_shard_job_leave(struct zps_shard *shard, uint64_t job_id, const char *reason) {
  struct call call = {.job_id = job_id, .text = reason};
  run_limited(&call, shard, run_job_leave);
  return call.code;
}

static void run_job_map(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct zps_job *job = find_job(call);
  if (job) call->code = zps_job_map(job, call->spec, call->error);
  zps_shard_settle(ctx);
}

zps_err_t zps_shard_job_map(struct zps_shard *shard, const struct zps_job_map *map, struct zps_error *error) {
  struct call call = {.spec = map, .job_id = map->job_id, .error = error};
  run_limited(&call, shard, run_job_map);
  return call.code;
}

static void run_job_replay(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct zps_job *job = find_job(call);
  if (job) zps_job_replay(job, *(const uint32_t *)call->spec);
  zps_shard_settle(ctx);
}

zps_err_t zps_shard_job_replay(struct zps_shard *shard, uint64_t job_id, uint32_t epoch, struct zps_error *error) {
  struct call call = {.spec = &epoch, .job_id = job_id, .error = error};
  run_limited(&call, shard, run_job_replay);
  return call.code;
}

static void run_rank_gone(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  const struct zps_error *why = call->spec;
  struct zps_job *job = find_job(call);
  if (job && call->rank < job->world) {
    if (why->code != ZPS_ERR_CLOSED) zps_job_lost(job, call->rank, call->text);
    if (why->code != ZPS_ERR_CLOSED || !job->members[call->rank].link) zps_holdback_end(job);
    zps_member_gone(&job->members[call->rank], why->code, call->text);
  } else {
    call->code = ZPS_ERR_UNKNOWN;
  }
  zps_shard_settle(ctx);
}

zps_err_t zps_shard_rank_gone(struct zps_shard *shard, uint64_t job_id, uint32_t rank, zps_err_t code,
                              const char *text) {
  const struct zps_error why = {.code = code};
  struct call call = {.job_id = job_id, .rank = rank, .spec = &why, .text = text};
  run_limited(&call, shard, run_rank_gone);
  return call.code;
}

static void run_stats(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct zps_shard *shard = ctx;
  call->totals = (struct zps_shard_totals){.net = *zps_net_counters(shard->net),
                                           .malformed = zps_engine_malformed(shard->engine),
                                           .forged = zps_engine_forged(shard->engine),
                                           .corrupt = zps_engine_corrupt(shard->engine),
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
  run_limited(&call, shard, run_stats);
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
  run_limited(&call, shard, run_shares);
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
  run_limited(&call, shard, run_nothing);
  return call.code == ZPS_OK;
}

static void run_hold(struct zps_command *command, void *ctx) {
  ((struct zps_shard *)ctx)->hold_ns = *(const uint64_t *)((struct call *)command)->spec;
}

void zps_shard_set_hold(struct zps_shard *shard, uint64_t hold_ms) {
  const uint64_t hold_ns = hold_ms * ZPS_NS_PER_MS;
  struct call call = {.spec = &hold_ns};
  run_limited(&call, shard, run_hold);
}

static void run_patience(struct zps_command *command, void *ctx) {
  struct zps_shard *shard = ctx;
  shard->patience_ns = *(const uint64_t *)((struct call *)command)->spec;
  shard->next_deadline_ns = 0; /* rounds are looked at anew */
}

void zps_shard_set_patience(struct zps_shard *shard, uint64_t patience_ms) {
  const uint64_t patience_ns = patience_ms * ZPS_NS_PER_MS;
  struct call call = {.spec = &patience_ns};
  run_limited(&call, shard, run_patience);
}

bool zps_shard_due(struct zps_shard *shard, uint64_t now_ns, uint64_t *turns_p) {
  const struct zps_engine_pulse pulse = zps_engine_pulse(shard->engine, now_ns);
  *turns_p = pulse.turns;
  return pulse.due;
}

const struct zps_net_info *zps_shard_net_info(const struct zps_shard *shard) {
  return zps_net_info(shard->net);
}

/* ---- life ---- */

zps_err_t zps_shard_create(const struct zps_shard_config *config, struct zps_shard **shard_p, struct zps_error *error) {
  struct zps_shard *shard = calloc(1, sizeof *shard);
  if (!shard) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the data plane");
  shard->memory_limit_bytes = config->memory_limit_bytes;
  shard->quota = config->quota;
  shard->keep_ns = ABORTED_NS;
  shard->next_deadline_ns = ZPS_NEVER;
  shard->patience_ns = ZPS_SHARD_PATIENCE_MS * ZPS_NS_PER_MS;
  zps_shard_memory_init(shard);
  zps_err_t code = zps_workpool_create(config->reduce_threads ? config->reduce_threads : 1, "reduce", &shard->pool);
  if (code == ZPS_OK) code = zps_reduce_init(shard);
  if (code != ZPS_OK) {
    zps_fail(error, code, "cannot start the reduce pool: %s", zps_err_str(code));
    goto err_free;
  }
  struct zps_engine_config engine = {.name = "fabric",
                                     .net = config->net,
                                     .bulk.budget_bytes = config->read_budget_bytes,
                                     .memory_limit_bytes = config->memory_limit_bytes,
                                     .memory_cache_bytes = config->memory_limit_bytes / 2};
  engine.net.max_msg = ZPS_WIRE_MESSAGE_MAX;
  const struct zps_engine_handler handler = {
      .ctx = shard, .find_link = find_link, .on_frame = on_frame, .on_peer_error = on_peer_error, .on_tick = on_tick};
  code = zps_engine_create(&engine, &handler, &shard->engine, error);
  if (code != ZPS_OK) goto err_free;
  shard->net = zps_engine_net(shard->engine);
  shard->slab = zps_engine_slab(shard->engine);
  shard->bulk = zps_engine_bulk(shard->engine);
  *shard_p = shard;
  return ZPS_OK;

err_free:
  zps_workpool_destroy(shard->pool);
  zps_reduce_fini(shard);
  free(shard);
  return code;
}

static void run_close_all(struct zps_command *command, void *ctx) {
  struct zps_shard *shard = ctx;
  (void)command;
  while (shard->jobs) zps_job_close(shard->jobs, 0, "the server stops");
  free_lingering(shard, ZPS_NEVER);
  for (unsigned i = 0; i < 2; i++) zps_shard_sums_release(&shard->aborted[i]);
}

void zps_shard_destroy(struct zps_shard *shard) {
  if (!shard) return;
  struct call call = {.code = ZPS_OK};
  run_call(&call, shard, run_close_all);
  zps_workpool_destroy(shard->pool); /* what it sums is collected by the engine, which goes last */
  zps_engine_destroy(shard->engine);
  zps_contributions_free(shard);
  zps_picks_free(shard);
  zps_shard_sums_free(shard);
  zps_reduce_fini(shard);
  zps_tags_fini(&shard->tags);
  free(shard);
}

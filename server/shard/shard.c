/* The shard: the engine and the pool with what hangs on them, and what is done in each turn of the engine. */
#define ZPS_LOG_COMPONENT "shard"
#include "server/shard/shard.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/shard/collect.h"
#include "server/shard/job.h"
#include "server/shard/memory.h"
#include "server/shard/pick.h"
#include "server/shard/publish.h"
#include "server/shard/pull.h"
#include "server/shard/reduce.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/sum.h"
#include "server/shard/tensor.h"

#define ABORTED_NS ZPS_NS_PER_S /* ranks hear of an abort in less, and sums are kept for twice as long at most */

/* Late acknowledgements. By its deadline a rank acknowledges that it has read the sums, or gives them up. Otherwise it
 * is stuck, or its link is, and its sums would be kept for ever. It is given up with its link, so that no read of its
 * can end well with the bytes of a later round.
 *
 * A rank is lost only if it is overdue at two consecutive looks, patience/16 apart, and neither came late. Its word may
 * be here unread, where this process itself was stopped. */
enum { LOOKS = 16, LATE = 3 };

struct look {
  struct zps_shard_round *round;
  uint64_t now_ns, patience_ns, again_ns;
  bool is_second; /* what was overdue at the first look is so for good */
  bool any_overdue;
  uint64_t next_ns;
};

static void give_up(struct zps_shard_round *round, uint32_t rank, uint64_t owed_ns) {
  const struct zps_tensor *tensor = round->tensor;
  char text[ZPS_NAME_MAX + 160];
  snprintf(text, sizeof text,
           "%.0f s after its deadline it has not said that it has read the sums of tensor %s, step %" PRIu64,
           (double)owed_ns / (double)ZPS_NS_PER_S, tensor->name, round->machine->config.step);
  zps_member_fail(&tensor->job->members[rank], ZPS_ERR_PEER_LOST, text);
}

static void look_at_rank(struct look *look, uint32_t rank, uint64_t deadline_ns) {
  const struct zps_member *member = &look->round->tensor->job->members[rank];
  const uint64_t due_ns = deadline_ns + look->patience_ns;
  if (!member->link || member->is_failing) return;
  if (look->now_ns < due_ns) {
    if (due_ns < look->next_ns) look->next_ns = due_ns;
  } else if (look->is_second && due_ns <= look->round->overdue_ns) {
    give_up(look->round, rank, look->now_ns - deadline_ns);
  } else {
    look->any_overdue = true;
  }
}

/* Gives up the ranks that have not acknowledged the published sums for too long (zps_member_fail()). Returns when to
 * look again; ZPS_NEVER: none is late. */
static uint64_t look_for_late_ranks(struct zps_shard_round *round, uint64_t now_ns) {
  const uint64_t patience_ns = round->tensor->job->shard->patience_ns, since_ns = now_ns - round->overdue_ns;
  struct look look = {.round = round,
                      .now_ns = now_ns,
                      .patience_ns = patience_ns,
                      .again_ns = patience_ns / LOOKS,
                      .next_ns = ZPS_NEVER};
  look.is_second = round->overdue_ns > 0 && since_ns >= look.again_ns && since_ns <= LATE * look.again_ns;
  for (uint32_t rank = 0; rank < round->machine->world; rank++)
    if (zps_shard_machine_reads(round->machine, rank)) look_at_rank(&look, rank, round->until_ns[rank]);
  for (const struct zps_shard_pull *pull = round->pulls; pull; pull = pull->next)
    look_at_rank(&look, pull->rank, pull->deadline_ns);
  if (!look.any_overdue) return look.next_ns;
  if (round->overdue_ns == 0 || since_ns >= look.again_ns) round->overdue_ns = now_ns;
  const uint64_t again_ns = round->overdue_ns + look.again_ns;
  return again_ns < look.next_ns ? again_ns : look.next_ns;
}

/* ---- the engine's handler ---- */

static struct zps_link *find_link(void *ctx, const struct zps_frame_header *header) {
  return zps_collect_link(ctx, header);
}

static void on_frame(void *ctx, const struct zps_frame *frame) {
  zps_collect_frame(ctx, frame);
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx;
  const struct zps_member *const member = zps_net_peer_ctx(peer);
  zps_log_about(.job = member->job->name, ZPS_LOG_RANK(member->rank), .code = code);
  if (member->link && zps_link_cut(member->link) && !member->job->is_closed)
    zps_log_info("job %s: the connection to rank %u is lost, and made anew: %s", member->job->name, member->rank, text);
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
    if (!zps_shard_round_tell(round, .type = ZPS_SHARD_TICK, .now_ns = now_ns)) continue;
    const uint64_t due_ns =
        round->machine->close_ns < round->machine->deadline_ns ? round->machine->close_ns : round->machine->deadline_ns;
    const uint64_t next_ns = round->machine->state < ZPS_SHARD_PUBLISHED ? due_ns : look_for_late_ranks(round, now_ns);
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

/* A rank owes something while its own job has a round in flight. Returns when to look at the link again. */
static uint64_t look_at_link(struct zps_member *member, uint64_t now_ns) {
  struct zps_error error;
  const uint64_t next_ns = zps_link_tick(member->link, now_ns, member->job->n_rounds > 0);
  const zps_err_t code = zps_link_check(member->link, now_ns, 0, &error);
  if (code != ZPS_OK) zps_member_fail(member, code, error.text);
  return next_ns;
}

/* Ranks of a closed job are going: nothing is asked of them. Returns when to look at links again. */
static uint64_t progress_links(struct zps_job *jobs, uint64_t now_ns) {
  uint64_t next_ns = ZPS_NEVER;
  for (struct zps_job *job = jobs; job; job = job->next) {
    for (uint32_t rank = 0; rank < job->world; rank++) {
      struct zps_member *const member = &job->members[rank];
      if (!member->link) continue;
      const uint64_t link_ns = job->is_closed ? ZPS_NEVER : look_at_link(member, now_ns);
      if (link_ns < next_ns) next_ns = link_ns;
      zps_link_progress(member->link);
    }
  }
  return next_ns;
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
  uint64_t next_ns = progress_links(shard->jobs, now_ns);
  progress_links(shard->lingering, now_ns);
  const uint64_t lingering_ns = free_lingering(shard, now_ns);
  if (lingering_ns < next_ns) next_ns = lingering_ns;
  if (shard->any_failing) return now_ns; /* found out just above */
  if (aborted_ns < next_ns) next_ns = aborted_ns;
  return next_ns < shard->next_deadline_ns ? next_ns : shard->next_deadline_ns;
}

static bool any_round(const struct zps_job *jobs) {
  for (const struct zps_job *job = jobs; job; job = job->next)
    if (job->n_rounds > 0) return true;
  return false;
}

/* While rounds are in flight: ranks read their sums. */
static bool is_read(void *ctx) {
  const struct zps_shard *shard = ctx;
  return any_round(shard->jobs) || any_round(shard->lingering);
}

/* ---- life ---- */

const struct zps_net_info *zps_shard_net_info(const struct zps_shard *shard) {
  return zps_net_info(shard->net);
}

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
  const struct zps_engine_handler handler = {.ctx = shard,
                                             .find_link = find_link,
                                             .on_frame = on_frame,
                                             .on_peer_error = on_peer_error,
                                             .on_tick = on_tick,
                                             .is_read = is_read};
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
  struct zps_command command = {.run = run_close_all};
  if (zps_engine_call(shard->engine, &command) != ZPS_OK) run_close_all(&command, shard); /* on the engine's thread */
  zps_workpool_destroy(shard->pool); /* what it sums is collected by the engine, which goes last */
  zps_engine_destroy(shard->engine);
  zps_contributions_free(shard);
  zps_picks_free(shard);
  zps_shard_sums_free(shard);
  zps_reduce_fini(shard);
  zps_tags_fini(&shard->tags);
  free(shard);
}

#define ZPS_LOG_COMPONENT "shard"
#include "server/shard/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/account.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/shard/pull.h"
#include "server/shard/quota.h"
#include "server/shard/reduce.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/sum.h"
#include "server/shard/tensor.h"

enum {
  LINGER_MS = 1000,
  LEFT_LINGER_MS = 10000, /* longest time that another server may keep the coordinator from reporting a loss to ranks */
};

struct zps_job *zps_job_find(struct zps_job *jobs, uint64_t id) {
  struct zps_job *job = jobs;
  while (job && job->id != id) job = job->next;
  return job;
}

void zps_member_gone(struct zps_member *member, zps_err_t code, const char *text) {
  struct zps_job *job = member->job;
  if (!member->link) return;
  if (!member->is_failing) {
    member->gone_code = code;
    member->gone_text = strdup(text);
  }
  member->is_failing = false;
  zps_log_about(.job = job->name, ZPS_LOG_RANK(member->rank));
  zps_log_info("job %s: rank %u is gone: %s", job->name, member->rank, text);
  for (struct zps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) {
    zps_pulls_gone(tensor, member->rank);
    for (struct zps_shard_round *round = tensor->rounds, *next; round; round = next) {
      next = round->next;
      const struct zps_shard_machine_event gone = zps_member_gone_event(member, tensor, round->machine->config.step);
      zps_shard_round_step(round, &gone);
    }
  }
  zps_member_disconnect(member);
  job->n_gone++;
}

static uint64_t links_bytes(const struct zps_job *job) {
  return job->world * ZPS_LINK_BYTES + job->keep.most_bytes;
}

static zps_err_t open_account(struct zps_job *job, struct zps_error *error) {
  char what[40];
  snprintf(what, sizeof what, "links to %u ranks", job->world);
  if (zps_net_info(job->shard->net)->offers) job->keep.most_bytes = job->shard->quota.memory_bytes / ZPS_NET_KEEP_PART;
  job->account = zps_account_open();
  if (!job->account || zps_slab_arena_open(job->shard->slab, job->account, &job->arena) != ZPS_OK)
    return zps_fail(error, ZPS_ERR_NOMEM, "job %s: out of memory", job->name);
  const zps_err_t code = zps_quota_take(job, links_bytes(job), what, error);
  job->has_links = code == ZPS_OK;
  if (job->has_links) job->standing_bytes = links_bytes(job);
  return code;
}

static void close_arena(struct zps_job *job) {
  zps_slab_arena_close(job->arena);
  job->arena = NULL;
}

/* A server that joins a running job has all partitions of its place, until the view that lets it in. */
static zps_err_t take_view(struct zps_job *job, const struct zps_view_image *view, struct zps_error *error) {
  job->epoch = view->epoch;
  job->n_began = view->n_first;
  job->n_servers = view->n_places;
  job->since = job->server < view->n_places ? view->places[job->server].since : 0;
  if (job->since > 0 || zps_view_image_count_in(view) == view->n_places) return ZPS_OK;
  job->servers_lost = zps_view_image_without(view);
  return job->servers_lost ? ZPS_OK : zps_fail(error, ZPS_ERR_NOMEM, "job %s: out of memory", job->name);
}

zps_err_t zps_job_open(struct zps_shard *shard, const struct zps_job_spec *spec, struct zps_error *error) {
  if (spec->world == 0 || spec->world > ZPS_WORLD_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "job %s: a world of %u ranks; it must be 1 to %u", spec->name, spec->world,
                    ZPS_WORLD_MAX);
  if (zps_job_find(shard->jobs, spec->job_id))
    return zps_fail(error, ZPS_ERR_BUSY, "job %s (0x%016" PRIx64 ") is already open here", spec->name, spec->job_id);
  struct zps_job *job = calloc(1, sizeof *job + spec->world * sizeof job->members[0]);
  if (!job) return zps_fail(error, ZPS_ERR_NOMEM, "job %s: out of memory", spec->name);
  job->shard = shard;
  job->id = spec->job_id;
  job->seed = spec->seed;
  job->secret = spec->secret;
  job->server = spec->server;
  job->world = spec->world;
  job->lost = ZPS_SHARD_NO_RANK;
  memcpy(job->name, spec->name, sizeof job->name);
  job->reads.weight = spec->weight ? spec->weight : 1;
  job->flow = zps_fair_flow_create(spec->weight ? spec->weight : 1);
  zps_err_t code =
      job->flow ? open_account(job, error) : zps_fail(error, ZPS_ERR_NOMEM, "job %s: out of memory", spec->name);
  if (code == ZPS_OK) code = take_view(job, &spec->view, error);
  if (code == ZPS_OK && spec->checksums)
    code = zps_checks_create(&job->secret, job->id, shard->engine, shard->pool, job->flow, &job->checks, error);
  if (code != ZPS_OK) {
    zps_job_free(job);
    return code;
  }
  for (uint32_t rank = 0; rank < job->world; rank++) {
    struct zps_member *member = &job->members[rank];
    member->job = job;
    member->rank = rank;
    code = zps_member_connect(member, &spec->members[rank], error);
    if (code != ZPS_OK) {
      zps_job_free(job);
      return code;
    }
  }
  job->next = shard->jobs;
  shard->jobs = job;
  zps_log_about(.job = job->name);
  zps_log_info("job %s: open with %u ranks, weight %u", job->name, job->world, job->flow->weight);
  return ZPS_OK;
}

/* Its rounds are over. */
static void free_tensor(struct zps_tensor *tensor) {
  zps_shard_rounds_free(tensor);
  zps_reduce_tasks_free(tensor);
  zps_tensor_free(tensor);
}

static void free_tensors(struct zps_job *job) {
  for (struct zps_tensor *tensor; (tensor = job->tensors) != NULL;) {
    job->tensors = tensor->next;
    free_tensor(tensor);
  }
}

static void fail_rounds(struct zps_tensor *tensor, const char *what, const char *reason) {
  while (tensor->rounds)
    zps_shard_round_fail(tensor->rounds, ZPS_SHARD_NO_RANK, ZPS_ERR_CLOSED, "the %s was closed: %s", what, reason);
}

bool zps_job_tensor_close(struct zps_job *job, uint32_t id) {
  struct zps_tensor **link = &job->tensors;
  while (*link && (*link)->id != id) link = &(*link)->next;
  struct zps_tensor *const tensor = *link;
  if (!tensor) return false;
  fail_rounds(tensor, "tensor", "by all ranks");
  zps_shard_round_bury(job->shard);
  *link = tensor->next;
  zps_log_about(.job = job->name, .tensor = tensor->name);
  zps_log_info("job %s, tensor %s: closed", job->name, tensor->name);
  free_tensor(tensor);
  return true;
}

void zps_job_free(struct zps_job *job) {
  if (!job) return;
  free_tensors(job);
  zps_shard_sums_release(&job->held);
  free(job->servers_lost);
  for (uint32_t rank = 0; rank < job->world; rank++) zps_member_fini(&job->members[rank]);
  if (job->has_links) zps_account_sub(job->account, links_bytes(job));
  close_arena(job);
  zps_account_close(job->account);
  zps_checks_unref(job->checks);
  zps_fair_flow_unref(job->flow);
  free(job->lost_text);
  free(job);
}

/* How it fared among the others. */
static void log_share(const struct zps_job *job) {
  const struct zps_fair_served served = zps_workpool_served(job->shard->pool, job->flow);
  zps_log_info("job %s: weight %u: the pool has done %" PRIu64 " bytes of its work, %" PRIu64
               " of them while other jobs' waited, and %" PRIu64 " of others' while its waited",
               job->name, job->flow->weight, served.all, served.contested, served.waited);
}

/* Takes it off the shard; its rounds are over. */
static void close_job(struct zps_job *job, uint64_t linger_until_ns, const char *reason) {
  struct zps_shard *shard = job->shard;
  zps_log_about(.job = job->name);
  log_share(job);
  zps_shard_round_bury(shard);
  free_tensors(job);
  close_arena(job); /* what ranks may still be reading goes when it is put */
  zps_log_info("job %s: closed: %s", job->name, reason);
  struct zps_job **link = &shard->jobs;
  while (*link != job) link = &(*link)->next;
  *link = job->next;
  job->is_closed = true;
  job->linger_until_ns = linger_until_ns;
  job->next = shard->lingering;
  shard->lingering = job;
}

void zps_job_close(struct zps_job *job, uint64_t now_ns, const char *reason) {
  for (struct zps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) fail_rounds(tensor, "job", reason);
  zps_shard_sums_release(&job->held);
  close_job(job, now_ns + LINGER_MS * ZPS_NS_PER_MS, reason);
}

void zps_job_leave(struct zps_job *job, uint64_t now_ns, const char *reason) {
  for (struct zps_tensor *tensor = job->tensors; tensor; tensor = tensor->next)
    while (tensor->rounds) zps_shard_round_drop(tensor->rounds);
  close_job(job, now_ns + LEFT_LINGER_MS * ZPS_NS_PER_MS, reason);
}

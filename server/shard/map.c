/* A job goes on without servers that were lost, or drain: this one takes over its share of their partitions; or it is
 * itself one that drains, and has none any more. The ranks push the
 * rounds in flight again, of all partitions, so whatever is here of these rounds is dropped. */
#include <stdlib.h>

#define ZPS_LOG_COMPONENT "shard"
#include "common/base/log.h"
#include "common/base/moment.h"
#include "server/shard/job.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/sum.h"
#include "server/shard/tensor.h"

static zps_err_t check(const struct zps_job *job, const struct zps_job_map *map, struct zps_error *error) {
  if (map->epoch <= job->epoch)
    return zps_fail(error, ZPS_ERR_STALE, "job %s: job.map is of epoch %u, and the job lives in epoch %u", job->name,
                    map->epoch, job->epoch);
  for (uint32_t i = 0; i < map->n_lost; i++) {
    if (map->lost[i] >= job->n_servers)
      return zps_fail(error, ZPS_ERR_INVALID, "job %s: server %u is said to be lost; the job has %u servers", job->name,
                      map->lost[i], job->n_servers);
    if (map->lost[i] == job->server && !zps_job_map_drains(map, job->server))
      return zps_fail(error, ZPS_ERR_INVALID, "job %s: this server, %u, is said to be lost", job->name, job->server);
  }
  return ZPS_OK;
}

static uint32_t drop_rounds(struct zps_job *job) {
  uint32_t n = 0;
  for (struct zps_tensor *tensor = job->tensors; tensor; tensor = tensor->next)
    for (; tensor->rounds; n++) zps_shard_round_drop(tensor->rounds);
  zps_shard_round_bury(job->shard);
  return n;
}

/* The call was made before, and its answer did not reach the coordinator. */
static bool is_done(const struct zps_job *job, const struct zps_job_map *map) {
  uint32_t n = 0;
  if (map->epoch != job->epoch || !job->servers_lost) return false;
  for (uint32_t i = 0; i < job->n_servers; i++) n += job->servers_lost[i];
  for (uint32_t i = 0; i < map->n_lost; i++)
    if (map->lost[i] >= job->n_servers || !job->servers_lost[map->lost[i]]) return false;
  return n == map->n_lost;
}

zps_err_t zps_job_map(struct zps_job *job, const struct zps_job_map *map, struct zps_error *error) {
  if (is_done(job, map)) return ZPS_OK;
  zps_err_t code = check(job, map, error);
  if (code != ZPS_OK) return code;
  bool *const lost = calloc(job->n_servers, sizeof *lost);
  if (!lost) return zps_fail(error, ZPS_ERR_NOMEM, "job %s: out of memory", job->name);
  for (uint32_t i = 0; i < map->n_lost; i++) lost[map->lost[i]] = true;
  for (struct zps_tensor *tensor = job->tensors; tensor && code == ZPS_OK; tensor = tensor->next)
    code = zps_tensor_place(tensor, lost, error);
  if (code != ZPS_OK) {
    for (struct zps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) zps_tensor_unplace(tensor);
    free(lost);
    return code;
  }
  const uint32_t n_rounds = drop_rounds(job);
  uint32_t n_before = 0, n_after = 0;
  for (struct zps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) {
    n_before += tensor->parts_here;
    zps_shard_rounds_free(tensor); /* Spare rounds are sized for the old number of partitions. */
    zps_tensor_move(tensor);
    n_after += tensor->parts_here;
  }
  free(job->servers_lost);
  job->servers_lost = lost;
  job->epoch = map->epoch;
  for (uint32_t rank = 0; rank < job->world; rank++)
    if (job->members[rank].link) zps_link_set_epoch(job->members[rank].link, job->epoch);
  ZPS_MOMENT("map taken, not answered");
  zps_log_about(.job = job->name);
  zps_log_info("job %s: epoch %u without %u servers: %u partitions here, before %u; %u rounds begin anew", job->name,
               job->epoch, map->n_lost, n_after, n_before, n_rounds);
  return ZPS_OK;
}

void zps_job_replay(struct zps_job *job, uint32_t epoch) {
  if (epoch == job->epoch) zps_shard_sums_release(&job->held);
}

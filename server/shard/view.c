/* Another view of a job. This server takes over its share of the partitions, or leaves and has none any more. The ranks
 * push the rounds in flight again, of all partitions, so whatever is here of these rounds is dropped. */
#include <stdlib.h>

#define ZPS_LOG_COMPONENT "shard"
#include "common/base/log.h"
#include "common/base/moment.h"
#include "server/shard/job.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/tensor.h"

static zps_err_t check(const struct zps_job *job, const struct zps_view_image *view, struct zps_error *error) {
  if (view->epoch <= job->epoch)
    return zps_fail(error, ZPS_ERR_STALE, "job %s: job.view is of epoch %u, and the job lives in epoch %u", job->name,
                    view->epoch, job->epoch);
  if (view->n_places != job->n_servers)
    return zps_fail(error, ZPS_ERR_INVALID, "job %s: job.view has %u places, and the job has %u", job->name,
                    view->n_places, job->n_servers);
  if (zps_view_image_count_in(view) == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "job %s: in job.view no server is in", job->name);
  const enum zps_place_state state = view->places[job->server].state;
  if (state == ZPS_PLACE_IN || state == ZPS_PLACE_LEAVING) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID, "job %s: in job.view this server, %u, is neither in nor leaving", job->name,
                  job->server);
}

static uint32_t drop_rounds(struct zps_job *job) {
  uint32_t n = 0;
  for (struct zps_tensor *tensor = job->tensors; tensor; tensor = tensor->next)
    for (; tensor->rounds; n++) zps_shard_round_drop(tensor->rounds);
  zps_shard_round_bury(job->shard);
  return n;
}

/* The job has this view: the call was made before, and its answer did not reach the coordinator. */
static bool is_installed(const struct zps_job *job, const struct zps_view_image *view) {
  if (view->epoch != job->epoch || view->n_places != job->n_servers || (!job->servers_lost && job->since)) return false;
  for (uint32_t i = 0; i < job->n_servers; i++)
    if (zps_view_image_is_in(view, i) == (job->servers_lost && job->servers_lost[i])) return false;
  return true;
}

zps_err_t zps_job_view(struct zps_job *job, const struct zps_view_image *view, struct zps_error *error) {
  if (is_installed(job, view)) return ZPS_OK;
  zps_err_t code = check(job, view, error);
  if (code != ZPS_OK) return code;
  bool *const lost = zps_view_image_without(view);
  if (!lost) return zps_fail(error, ZPS_ERR_NOMEM, "job %s: out of memory", job->name);
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
    if (tensor->has_newest) tensor->unsure_step = tensor->newest_step;
    n_after += tensor->parts_here;
  }
  free(job->servers_lost);
  job->servers_lost = lost;
  job->epoch = view->epoch;
  job->awaits_replay = true;
  for (uint32_t rank = 0; rank < job->world; rank++) {
    struct zps_member *const member = &job->members[rank];
    member->is_unheard = true;
    if (member->link) zps_link_set_epoch(member->link, job->epoch);
  }
  ZPS_MOMENT("map taken, not answered");
  zps_log_about(.job = job->name);
  zps_log_info("job %s: epoch %u without %u servers: %u partitions here, before %u; %u rounds begin anew", job->name,
               job->epoch, view->n_places - zps_view_image_count_in(view), n_after, n_before, n_rounds);
  return ZPS_OK;
}

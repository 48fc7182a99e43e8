/* Actions of the membership module, as messages. */
#include <stdio.h>
#include <string.h>

#include "proto/control_next.h"
#include "proto/control_plan.h"
#include "server/coordinator/coordinator_impl.h"

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

static void tell_worker(const struct zps_action *action, const char *method, zps_json *params) {
  struct zps_coordinator_conn *conn = (struct zps_coordinator_conn *)action->client;
  if (zps_rpc_notify(conn->rpc, method, params)) zps_rpc_close(conn->rpc, false);
}

static zps_json *join_result(const struct zps_action *action) {
  const struct zps_member_job *job = action->job;
  const struct zps_coordinator *coordinator = ((struct zps_coordinator_conn *)action->client)->coordinator;
  struct zps_join join = {
      .job_id = job->job_id,
      .seed = job->seed,
      .link_secret = job->secret,
      .checksums = job->checksums,
      .heartbeat = {.heartbeat_ms = coordinator->config.heartbeat_ms, .dead_ms = coordinator->config.dead_ms},
      .incarnation = coordinator->incarnation};
  zps_json *result = NULL;
  if (!zps_view_describe(&job->view, ZPS_VIEW_FOR_NEW_RANK, &join.view)) result = zps_control_join_answer_write(&join);
  result = zps_control_generation_write(result, &job->generation, action->rank, job->world);
  zps_join_fini(&join);
  return result;
}

static zps_json *job_failed_params(const struct zps_action *action) {
  struct zps_frame_abort failure = {.code = action->code};
  snprintf(failure.text, sizeof failure.text, "%s", action->text);
  if (action->rank != ZPS_NO_RANK) failure.ranks[failure.n_ranks++] = action->rank;
  return zps_control_job_failed_write(action->job->job_id, &failure);
}

static zps_json *tensor_plan_params(const struct zps_action *action) {
  struct zps_tensor_plan plan = {.job_id = action->job->job_id,
                                 .tensor = action->tensor->spec.tensor,
                                 .whole = action->whole,
                                 .n = action->n_runs};
  memcpy(plan.runs, action->runs, action->n_runs * sizeof plan.runs[0]);
  return zps_control_plan_write(&plan);
}

static zps_json *replay_params(const struct zps_action *action) {
  struct zps_job_steps steps = action->job->map.steps;
  steps.job_id = action->job->job_id;
  steps.epoch = action->job->view.epoch;
  return zps_control_job_steps_write(&steps);
}

static void reply(const struct zps_action *action, zps_json *result) {
  if (result) {
    zps_rpc_reply(action->token, result);
  } else {
    zps_rpc_reply_error(action->token, ZPS_ERR_NOMEM, "the coordinator has no memory to answer");
  }
}

void zps_coordinator_act(void *ctx, const struct zps_action *action) {
  (void)ctx;
  switch (action->type) {
    case ZPS_ACT_JOB_OPEN:
    case ZPS_ACT_JOB_CLOSE:
    case ZPS_ACT_RANK_GONE:
    case ZPS_ACT_TENSOR_OPEN:
    case ZPS_ACT_TENSOR_FORGET:
    case ZPS_ACT_TENSORS_KEEP:
    case ZPS_ACT_MAP_SERVER:
    case ZPS_ACT_REPLAY_SERVER:
      zps_coordinator_call_server(action);
      break;
    case ZPS_ACT_JOIN_DONE:
      zps_coordinator_let_in((struct zps_coordinator_conn *)action->client);
      reply(action, join_result(action));
      break;
    case ZPS_ACT_TENSOR_DONE:
      reply(action, zps_control_registered_write(&action->tensor->spec));
      break;
    case ZPS_ACT_GROUP_DONE:
    case ZPS_ACT_TENSOR_CLOSED:
      zps_rpc_reply(action->token, NULL);
      break;
    case ZPS_ACT_JOIN_FAILED:
    case ZPS_ACT_TENSOR_FAILED:
    case ZPS_ACT_GROUP_FAILED:
      zps_rpc_reply_error(action->token, action->code, "%s", action->text);
      break;
    case ZPS_ACT_JOB_FAILED:
      tell_worker(action, "job.failed", job_failed_params(action));
      break;
    case ZPS_ACT_RANK_LEFT:
      tell_worker(
          action, "rank.left",
          zps_control_rank_left_write(&(struct zps_job_call){.job_id = action->job->job_id, .rank = action->rank}));
      break;
    case ZPS_ACT_JOB_CHANGED:
      tell_worker(action, "job.changed", zps_control_job_id_write(action->job->job_id));
      break;
    case ZPS_ACT_MAP_RANK:
      tell_worker(action, "job.view", zps_coordinator_view_params(action->job, ZPS_VIEW_FOR_RANK));
      break;
    case ZPS_ACT_REPLAY_RANK:
      tell_worker(action, "job.replay", replay_params(action));
      break;
    case ZPS_ACT_TENSOR_PLAN:
      tell_worker(action, "tensor.plan", tensor_plan_params(action));
      break;
  }
}

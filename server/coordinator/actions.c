/* Actions of the membership module, as messages. */
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/fabric_json.h"

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

static void on_answer(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct zps_coordinator_call *call = ctx;
  struct zps_coordinator *coordinator = call->conn->coordinator;
  (void)result;
  if (error) call->error = *error;
  zps_coordinator_enter(coordinator);
  call->next = coordinator->late;
  coordinator->late = call;
  zps_coordinator_leave(coordinator);
}

/* Calls a server whose answer matters. A call that cannot be sent ends the connection, and so the server's membership.
 */
static void call_server(const struct zps_action *action, const char *method, zps_json *params) {
  struct zps_coordinator_conn *conn = (struct zps_coordinator_conn *)action->client;
  struct zps_coordinator_call *call = calloc(1, sizeof *call);
  if (!call || !params) {
    free(call);
    zps_json_unref(params);
    zps_log_error("no memory for '%s' to server '%s': closing its connection", method, action->client->server->name);
    zps_rpc_close(conn->rpc, false);
    return;
  }
  call->conn = conn;
  call->job_id = action->job->job_id;
  call->is_tensor = action->tensor != NULL;
  call->tensor = action->tensor ? action->tensor->spec.tensor : 0;
  const zps_err_t err =
      zps_rpc_call(conn->rpc, method, params, conn->coordinator->config.call_timeout_ms, on_answer, call);
  if (err) {
    free(call);
    zps_log_error("cannot send '%s' to server '%s': %s: closing its connection", method, action->client->server->name,
                  zps_err_str(err));
    zps_rpc_close(conn->rpc, false);
  }
}

static void on_told(void *ctx, const zps_json *result, const struct zps_error *error) {
  (void)ctx, (void)result;
  if (error && error->code != ZPS_ERR_CLOSED) zps_log_warn("%s", error->text);
}

/* Calls a server whose answer changes nothing. */
static void tell_server(const struct zps_action *action, const char *method, zps_json *params) {
  struct zps_coordinator_conn *conn = (struct zps_coordinator_conn *)action->client;
  if (zps_rpc_call(conn->rpc, method, params, conn->coordinator->config.call_timeout_ms, on_told, NULL))
    zps_rpc_close(conn->rpc, false);
}

static void tell_worker(const struct zps_action *action, const char *method, zps_json *params) {
  struct zps_coordinator_conn *conn = (struct zps_coordinator_conn *)action->client;
  if (zps_rpc_notify(conn->rpc, method, params)) zps_rpc_close(conn->rpc, false);
}

static zps_json *job_object(const struct zps_action *action) {
  return zps_json_set_hex(zps_json_object(), "job_id", action->job->job_id);
}

static zps_json *job_open_params(const struct zps_action *action) {
  const struct zps_member_job *job = action->job;
  zps_json *members = zps_json_array();
  for (uint32_t r = 0; r < job->world; r++) {
    zps_json *member = zps_json_set_u64(zps_json_object(), "rank", r);
    member = zps_json_set_str(member, "host", job->ranks[r]->host);
    member = zps_json_set_u64(member, "pid", job->ranks[r]->pid);
    members = zps_json_append(members, zps_json_set(member, "fabric", zps_fabric_to_json(&job->ranks[r]->fabric)));
  }
  zps_json *params = zps_json_set_str(job_object(action), "name", job->name);
  params = zps_json_set_u64(params, "world", job->world);
  params = zps_json_set_hex(params, "seed", job->seed);
  params = zps_json_set_u64(params, "epoch", job->epoch);
  params = zps_json_set_u64(params, "server", action->position);
  return zps_json_set(params, "members", members);
}

static zps_json *join_result(const struct zps_action *action) {
  const struct zps_member_job *job = action->job;
  const struct zps_coordinator *coordinator = ((struct zps_coordinator_conn *)action->client)->coordinator;
  zps_json *servers = zps_json_array();
  for (uint32_t i = 0; i < job->n_servers; i++) {
    zps_json *server = zps_json_set_u64(zps_json_object(), "server", i);
    server = zps_json_set_str(server, "name", job->servers[i]->name);
    servers = zps_json_append(servers, zps_json_set(server, "fabric", zps_fabric_to_json(&job->servers[i]->fabric)));
  }
  zps_json *result = zps_json_set_u64(job_object(action), "epoch", job->epoch);
  result = zps_json_set_hex(result, "seed", job->seed);
  result = zps_json_set_u64(result, "heartbeat_ms", coordinator->config.heartbeat_ms);
  result = zps_json_set_u64(result, "dead_ms", coordinator->config.dead_ms);
  return zps_json_set(result, "servers", servers);
}

static zps_json *owners_array(const struct zps_tensor_spec *spec) {
  zps_json *owners = zps_json_array();
  for (uint32_t p = 0; p < spec->n_parts; p++) owners = zps_json_append_u64(owners, spec->owners[p]);
  return owners;
}

static zps_json *tensor_open_params(const struct zps_action *action) {
  const struct zps_tensor_spec *spec = &action->tensor->spec;
  zps_json *params = zps_json_set_u64(job_object(action), "tensor", spec->tensor);
  params = zps_json_set_str(params, "name", spec->name);
  params = zps_json_set_u64(params, "rows", spec->rows);
  params = zps_json_set_u64(params, "width", spec->width);
  params = zps_json_set_str(params, "dtype", zps_dtype_name(spec->dtype));
  params = zps_json_set_str(params, "op", zps_op_name(spec->op));
  params = zps_json_set_u64(params, "partitions", spec->n_parts);
  params = zps_json_set_u64(params, "block_bits", spec->block_bits);
  params = zps_json_set_str(params, "codec", zps_codec_policy_name(spec->codec));
  params = zps_json_set_str(params, "values", zps_values_name(spec->value_codec));
  if (spec->n_ranks > 0) {
    zps_json *ranks = zps_json_array();
    for (uint32_t i = 0; i < spec->n_ranks; i++) ranks = zps_json_append_u64(ranks, spec->ranks[i]);
    params = zps_json_set(params, "ranks", ranks);
  }
  return zps_json_set(params, "owners", owners_array(spec));
}

static zps_json *tensor_result(const struct zps_action *action) {
  const struct zps_tensor_spec *spec = &action->tensor->spec;
  zps_json *result = zps_json_set_u64(zps_json_object(), "tensor", spec->tensor);
  result = zps_json_set_u64(result, "partitions", spec->n_parts);
  result = zps_json_set_u64(result, "block_bits", spec->block_bits);
  return zps_json_set(result, "owners", owners_array(spec));
}

static zps_json *rank_gone_params(const struct zps_action *action) {
  zps_json *params = zps_json_set_u64(job_object(action), "rank", action->rank);
  params = zps_json_set_str(params, "code", zps_err_name(action->code));
  return zps_json_set_str(params, "text", action->text);
}

static zps_json *job_failed_params(const struct zps_action *action) {
  zps_json *ranks = zps_json_array();
  if (action->rank != ZPS_NO_RANK) ranks = zps_json_append_u64(ranks, action->rank);
  zps_json *params = zps_json_set_str(job_object(action), "code", zps_err_name(action->code));
  params = zps_json_set_str(params, "text", action->text);
  return zps_json_set(params, "ranks", ranks);
}

static zps_json *tensor_plan_params(const struct zps_action *action) {
  zps_json *runs = zps_json_array();
  for (unsigned i = 0; i < action->n_runs; i++) {
    const struct zps_plan_run *run = &action->runs[i];
    zps_json *object = zps_json_set_hex(zps_json_object(), "from", run->from);
    object = zps_json_set_hex(object, "until", run->until);
    runs = zps_json_append(runs, zps_json_set_str(object, "scheme", zps_plan_scheme_name(run->scheme)));
  }
  zps_json *params = zps_json_set_u64(job_object(action), "tensor", action->tensor->spec.tensor);
  return zps_json_set(zps_json_set_bool(params, "whole", action->whole), "runs", runs);
}

static void reply(const struct zps_action *action, zps_json *result) {
  if (result) {
    zps_rpc_reply(action->token, result);
  } else {
    zps_rpc_reply_error(action->token, ZPS_ERR_NOMEM, "the coordinator has no memory to answer");
  }
}

void zps_coordinator_act(void *ctx, const struct zps_action *action) {
  struct zps_coordinator *coordinator = ctx;
  switch (action->type) {
    case ZPS_ACT_JOB_OPEN:
      call_server(action, "job.open", job_open_params(action));
      break;
    case ZPS_ACT_JOB_CLOSE:
      tell_server(action, "job.close", zps_json_set_str(job_object(action), "reason", action->text));
      break;
    case ZPS_ACT_RANK_GONE:
      tell_server(action, "rank.gone", rank_gone_params(action));
      break;
    case ZPS_ACT_TENSOR_OPEN:
      call_server(action, "tensor.open", tensor_open_params(action));
      break;
    case ZPS_ACT_JOIN_DONE:
      zps_coordinator_watch((struct zps_coordinator_conn *)action->client);
      reply(action, join_result(action));
      break;
    case ZPS_ACT_TENSOR_DONE:
      reply(action, tensor_result(action));
      break;
    case ZPS_ACT_LINKED_DONE:
      zps_rpc_reply(action->token, NULL);
      break;
    case ZPS_ACT_JOIN_FAILED:
    case ZPS_ACT_TENSOR_FAILED:
    case ZPS_ACT_LINKED_FAILED:
      zps_rpc_reply_error(action->token, action->code, "%s", action->text);
      break;
    case ZPS_ACT_JOB_FAILED:
      tell_worker(action, "job.failed", job_failed_params(action));
      break;
    case ZPS_ACT_RANK_LEFT:
      tell_worker(action, "rank.left", zps_json_set_u64(job_object(action), "rank", action->rank));
      break;
    case ZPS_ACT_TENSOR_PLAN:
      tell_worker(action, "tensor.plan", tensor_plan_params(action));
      break;
    case ZPS_ACT_JOB_ENDED:
      zps_history_add(&coordinator->history, action, zps_clock_ns(), time(NULL));
      break;
  }
}

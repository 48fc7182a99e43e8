/* Calls to servers: what they are told of jobs, when their connections have room for it. */
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/coordinator_impl.h"

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

/* Room is what leaves a connection far from its own limits, which end it. */
#define IN_FLIGHT_MAX (ZPS_RPC_PENDING_MAX / 2)
#define UNSENT_MAX ZPS_RPC_LINE_MAX

/* ---- Answers ---- */

static void add_late(struct zps_coordinator *coordinator, struct zps_coordinator_call *call) {
  call->next = coordinator->late;
  coordinator->late = call;
}

static void on_answer(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct zps_coordinator_call *call = ctx;
  struct zps_coordinator_conn *conn = call->conn;
  struct zps_coordinator *coordinator = conn->coordinator;
  (void)result;
  if (error && !zps_rpc_conn_is_open(conn->rpc)) { /* what its end means, on_close says */
    free(call);
    return;
  }
  if (error) call->error = *error;
  zps_coordinator_enter(coordinator);
  add_late(coordinator, call);
  zps_coordinator_flush(conn);
  zps_coordinator_leave(coordinator);
}

/* Of a call whose answer changes nothing. */
static void on_told(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct zps_coordinator_conn *conn = ctx;
  (void)result;
  if (error && error->code != ZPS_ERR_CLOSED) {
    zps_log_about(.server = conn->client.server ? conn->client.server->name : NULL);
    zps_log_failure(ZPS_LOG_WARN, error);
  }
  zps_coordinator_enter(conn->coordinator);
  zps_coordinator_flush(conn);
  zps_coordinator_leave(conn->coordinator);
}

void zps_coordinator_connect_anew(struct zps_coordinator_conn *conn, const struct zps_error *why) {
  zps_log_about(.server = conn->client.server ? conn->client.server->name : NULL, .code = why->code);
  zps_log_warn("%s: %s: closing the connection", conn->client.server ? conn->client.server->name : "a rank", why->text);
  if (conn->rpc) zps_rpc_close(conn->rpc, false);
}

/* The server cannot be told: that is the end of the job, of which it would know too little. */
static void fail_job(struct zps_coordinator_conn *conn, uint64_t job_id, const struct zps_error *why) {
  const struct zps_member_server *server = conn->client.server;
  struct zps_coordinator_call *call = calloc(1, sizeof *call);
  if (!call) {
    zps_log_about(.server = server->name, .code = why->code);
    zps_log_error("no memory to report a failed job to server '%s': closing its connection", server->name);
    zps_rpc_close(conn->rpc, false);
    return;
  }
  *call = (struct zps_coordinator_call){.conn = conn, .type = ZPS_ACT_JOB_FAILED, .job_id = job_id};
  zps_fail(&call->error, why->code, "server '%.60s' (host %.60s): %s", server->name, server->host, why->text);
  add_late(conn->coordinator, call);
}

/* ---- Calls ---- */

static zps_json *job_open_params(const struct zps_member_job *job, uint32_t position) {
  struct zps_member_spec *members = calloc(job->world, sizeof *members);
  struct zps_view_image view = {.epoch = 0};
  if (!members || zps_view_describe(&job->view, ZPS_VIEW_FOR_SERVER, &view)) {
    free(members);
    return NULL;
  }
  for (uint32_t r = 0; r < job->world; r++) {
    members[r].rank = r;
    members[r].pid = job->ranks[r]->pid;
    strcpy(members[r].host, job->ranks[r]->host);
    memcpy(members[r].addr, job->ranks[r]->fabric.addr, job->ranks[r]->fabric.addr_len);
    members[r].addr_len = job->ranks[r]->fabric.addr_len;
  }
  struct zps_job_spec spec = {.job_id = job->job_id,
                              .seed = job->seed,
                              .secret = job->secret,
                              .checksums = job->checksums,
                              .weight = job->weight,
                              .server = position,
                              .view = view,
                              .world = job->world,
                              .members = members};
  strcpy(spec.name, job->name);
  zps_json *params = zps_control_job_open_write(&spec);
  zps_view_image_fini(&view);
  free(members);
  return params;
}

zps_json *zps_coordinator_view_params(const struct zps_member_job *job, enum zps_view_reader reader) {
  struct zps_job_view message = {.job_id = job->job_id};
  if (zps_view_describe(&job->view, reader, &message.view)) return NULL;
  zps_json *params = zps_control_job_view_write(&message);
  zps_view_image_fini(&message.view);
  return params;
}

static zps_json *tensor_keep_params(const struct zps_member_job *job) {
  struct zps_tensor_keep keep = {.job_id = job->job_id, .n = job->n_tensors};
  keep.tensors = calloc(job->n_tensors + 1u, sizeof *keep.tensors);
  for (uint32_t i = 0; keep.tensors && i < job->n_tensors; i++) keep.tensors[i] = job->tensors[i]->spec.tensor;
  zps_json *params = keep.tensors ? zps_control_tensor_keep_write(&keep) : NULL;
  free(keep.tensors);
  return params;
}

/* *params_p stays NULL where memory is short. ZPS_ERR_UNKNOWN: what the call is about is gone meanwhile. */
static zps_err_t make_params(const struct zps_coordinator_conn *conn, const struct zps_outbox_call *call,
                             const char **method_p, zps_json **params_p) {
  const struct zps_member_job *job = zps_members_job(conn->coordinator->members, call->job_id);
  const struct zps_member_tensor *tensor;
  switch (call->type) {
    case ZPS_ACT_JOB_OPEN:
      if (!job || (job->state != ZPS_JOB_OPENING && !zps_member_job_admits(job, call->position)))
        return ZPS_ERR_UNKNOWN;
      *method_p = "job.open";
      *params_p = job_open_params(job, call->position);
      return ZPS_OK;
    case ZPS_ACT_TENSOR_OPEN:
      tensor = job ? zps_members_tensor_find(job, call->tensor) : NULL;
      if (!tensor) return ZPS_ERR_UNKNOWN;
      *method_p = "tensor.open";
      *params_p = zps_control_tensor_open_write(&tensor->spec);
      return ZPS_OK;
    case ZPS_ACT_TENSOR_FORGET:
      *method_p = "tensor.forget";
      *params_p =
          zps_control_tensor_forget_write(&(struct zps_job_call){.job_id = call->job_id, .tensor = call->tensor});
      return ZPS_OK;
    case ZPS_ACT_TENSORS_KEEP:
      if (!job) return ZPS_ERR_UNKNOWN;
      *method_p = "tensor.keep";
      *params_p = tensor_keep_params(job);
      return ZPS_OK;
    case ZPS_ACT_MAP_SERVER:
      if (!job || job->view.epoch != call->epoch) return ZPS_ERR_UNKNOWN; /* another server is lost meanwhile */
      *method_p = "job.view";
      *params_p = zps_coordinator_view_params(job, ZPS_VIEW_FOR_SERVER);
      return ZPS_OK;
    case ZPS_ACT_REPLAY_SERVER: /* its steps are the ranks' affair */
      *method_p = "job.replay";
      *params_p = zps_control_job_steps_write(&(struct zps_job_steps){.job_id = call->job_id, .epoch = call->epoch});
      return ZPS_OK;
    case ZPS_ACT_RANK_GONE:
      *method_p = "rank.gone";
      *params_p = zps_control_rank_gone_write(
          &(struct zps_rank_gone){.job_id = call->job_id, .rank = call->rank, .code = call->code, .text = call->text});
      return ZPS_OK;
    default:
      *method_p = "job.close";
      *params_p = zps_control_job_close_write(&(struct zps_job_call){.job_id = call->job_id, .text = call->text});
      return ZPS_OK;
  }
}

static zps_err_t send_params(struct zps_coordinator_conn *conn, const struct zps_outbox_call *about, const char *method,
                             zps_json *params) {
  /* A tensor of a running job is opened when the server gets to it, or not at all where the server is lost: ranks that
   * cannot wait have deadlines of their own. */
  const uint64_t timeout_ms =
      about->type == ZPS_ACT_TENSOR_OPEN ? UINT64_MAX : conn->coordinator->config.call_timeout_ms;
  if (about->type != ZPS_ACT_JOB_OPEN && about->type != ZPS_ACT_TENSOR_OPEN && about->type != ZPS_ACT_MAP_SERVER)
    return zps_rpc_call(conn->rpc, method, params, timeout_ms, on_told, conn);
  struct zps_coordinator_call *call = calloc(1, sizeof *call);
  if (!call) {
    zps_json_unref(params);
    return ZPS_ERR_NOMEM;
  }
  *call = (struct zps_coordinator_call){
      .conn = conn, .type = about->type, .job_id = about->job_id, .tensor = about->tensor, .epoch = about->epoch};
  const zps_err_t err = zps_rpc_call(conn->rpc, method, params, timeout_ms, on_answer, call);
  if (err) free(call);
  return err;
}

zps_err_t zps_coordinator_send(void *ctx, const struct zps_outbox_call *call) {
  struct zps_coordinator_conn *conn = ctx;
  const char *method = NULL;
  zps_json *params = NULL;
  if (!conn->rpc || !conn->client.server) return ZPS_ERR_CLOSED; /* lost, and all that it was to hear with it */
  if (zps_rpc_conn_pending(conn->rpc) >= IN_FLIGHT_MAX || zps_rpc_conn_unsent(conn->rpc) >= UNSENT_MAX)
    return ZPS_ERR_AGAIN;
  zps_err_t err = make_params(conn, call, &method, &params);
  if (err) return err;
  err = params ? send_params(conn, call, method, params) : ZPS_ERR_NOMEM;
  if (!err || err == ZPS_ERR_AGAIN || err == ZPS_ERR_CLOSED) return err; /* closed: its loss is about to be told */
  struct zps_error error;
  zps_fail(&error, err, "cannot be sent '%s': %s", method, zps_err_str(err));
  if (call->type == ZPS_ACT_JOB_CLOSE)
    zps_coordinator_connect_anew(conn, &error);
  else
    fail_job(conn, call->job_id, &error);
  return err;
}

void zps_coordinator_dropped(void *ctx, const struct zps_outbox_call *call) {
  const struct zps_coordinator_conn *const conn = ctx;
  if (call->type == ZPS_ACT_JOB_OPEN || call->type == ZPS_ACT_TENSOR_OPEN)
    zps_members_call_dropped(conn->coordinator->members, &conn->client, call->job_id);
}

void zps_coordinator_flush(struct zps_coordinator_conn *conn) {
  zps_outbox_flush(&conn->outbox);
}

void zps_coordinator_call_server(const struct zps_action *action) {
  struct zps_coordinator_conn *conn = (struct zps_coordinator_conn *)action->client;
  const struct zps_outbox_call call = {.type = action->type,
                                       .job_id = action->job->job_id,
                                       .position = action->position,
                                       .tensor = action->tensor ? action->tensor->spec.tensor : 0,
                                       .rank = action->rank,
                                       .epoch = action->job->view.epoch,
                                       .code = action->code,
                                       .text = action->text};
  struct zps_error error;
  if (!zps_outbox_put(&conn->outbox, &call, &error)) return;
  if (call.type == ZPS_ACT_JOB_CLOSE)
    zps_coordinator_connect_anew(conn, &error);
  else
    fail_job(conn, call.job_id, &error);
}

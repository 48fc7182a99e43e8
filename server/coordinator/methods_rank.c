/* What ranks call, and tell. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "proto/control_next.h"
#include "proto/control_plan.h"
#include "proto/control_stats.h"
#include "server/coordinator/methods.h"
#include "server/membership/history.h"

/* Whose jobs count together: of one certificate, where there is one, and of one token's names, where tokens are asked
 * for; else of one address. */
static zps_err_t set_tenant(struct zps_coordinator_conn *conn, const struct zps_join_spec *spec,
                            struct zps_error *error) {
  const bool is_certified = zps_rpc_conn_certified(conn->rpc), has_token = conn->coordinator->token_keys.n > 0;
  char text[ZPS_TLS_NAME_MAX + ZPS_TOKEN_JOB_MAX + 2];
  struct zps_token token = {.job = ""};
  const zps_err_t err = has_token ? zps_token_parse(spec->token, &token, error) : ZPS_OK;
  if (err) return err;
  snprintf(text, sizeof text, "%s %s", zps_rpc_conn_certificate(conn->rpc), token.job);
  conn->client.has_share = is_certified || has_token;
  if (has_token) conn->client.tenant = zps_origin_named(ZPS_ORIGIN_TOKEN, text);
  return ZPS_OK;
}

/* A token's end is told in seconds of the calendar. */
static zps_err_t may_join(struct zps_coordinator_conn *conn, const struct zps_join_spec *spec,
                          struct zps_error *error) {
  zps_err_t err = zps_token_check(&conn->coordinator->token_keys, spec->token, spec->job, (uint64_t)time(NULL), error);
  if (!err) err = zps_coordinator_may_name(conn, spec->fabric, error);
  return err ? err : set_tenant(conn, spec, error);
}

static zps_err_t job_join(const struct zps_method_msg *msg) {
  struct zps_join_spec spec;
  struct zps_net_info fabric;
  zps_err_t err = zps_control_join_read(msg->params, &spec, &fabric, msg->error);
  if (!err) err = may_join(msg->conn, &spec, msg->error);
  return err ? err : zps_members_join(msg->members, msg->client, &spec, msg->request, zps_clock_ns(), msg->error);
}

static zps_err_t job_next(const struct zps_method_msg *msg) {
  struct zps_next_spec spec;
  struct zps_net_info fabric;
  zps_err_t err = zps_control_next_read(msg->params, &spec, &fabric, msg->error);
  if (!err) err = may_join(msg->conn, &spec.join, msg->error);
  return err ? err : zps_members_next(msg->members, msg->client, &spec, msg->request, zps_clock_ns(), msg->error);
}

/* ZPS_ERR_STALE: this coordinator is none that has let the rank in, or does not know what that one knew. */
static zps_err_t job_resume(const struct zps_method_msg *msg) {
  const struct zps_coordinator *coordinator = msg->conn->coordinator;
  struct zps_resume_spec spec;
  zps_err_t err = zps_control_resume_read(msg->params, &spec, msg->error);
  if (!err && spec.incarnation != coordinator->incarnation)
    err = zps_fail(msg->error, ZPS_ERR_STALE,
                   "job 0x%016llx: this coordinator knows nothing of it: it is another one, or has started again "
                   "without its state (coordinator.state_dir)",
                   (unsigned long long)spec.job_id);
  if (!err) err = zps_members_resume(coordinator->members, msg->client, &spec, msg->error);
  if (err)
    return err == ZPS_ERR_UNKNOWN
               ? zps_history_tell(zps_members_history(coordinator->members), spec.job_id, err, msg->error)
               : err;
  zps_coordinator_let_in(msg->conn);
  zps_rpc_reply(msg->request, NULL);
  return ZPS_OK;
}

/* A job that has failed has its cause already. */
static void tell_first(struct zps_coordinator_conn *conn, uint64_t job_id, const struct zps_error *first) {
  struct zps_error error;
  if (zps_members_rank_failed(conn->coordinator->members, &conn->client, job_id, first, &error)) return;
}

static zps_err_t job_leave(const struct zps_method_msg *msg) {
  struct zps_leave_spec spec;
  zps_err_t err = zps_control_leave_read(msg->params, &spec, msg->error);
  if (!err) tell_first(msg->conn, spec.job_id, spec.moves ? &(struct zps_error){.code = ZPS_OK} : &spec.first);
  if (!err)
    err = (spec.moves ? zps_members_move_on : zps_members_leave)(msg->members, msg->client, spec.job_id, msg->error);
  if (!err) zps_rpc_reply(msg->request, NULL);
  return err;
}

static zps_err_t job_peers(const struct zps_method_msg *msg) {
  const struct zps_member_job *job = msg->client->job;
  uint64_t job_id = 0;
  zps_err_t err = zps_control_job_id_read(msg->params, &job_id, msg->error);
  if (!err) err = zps_members_running(job, job_id, msg->error);
  if (err) return err;
  struct zps_join_peers peers = {.world = job->world, .ranks = calloc(job->world, sizeof *peers.ranks)};
  for (uint32_t r = 0; peers.ranks && r < job->world; r++) {
    const struct zps_member_rank *rank = job->ranks[r];
    struct zps_join_peer *peer = &peers.ranks[r];
    strcpy(peer->host, rank->host);
    strcpy(peer->rack, rank->rack);
    memcpy(peer->addr, rank->fabric.addr, rank->fabric.addr_len);
    peer->addr_len = rank->fabric.addr_len;
  }
  zps_json *result = peers.ranks ? zps_control_peers_write(&peers) : NULL;
  zps_join_peers_fini(&peers);
  return zps_coordinator_answer(msg, result);
}

static zps_err_t job_linked(const struct zps_method_msg *msg) {
  struct zps_job_call call;
  const zps_err_t err = zps_control_linked_read(msg->params, &call, msg->error);
  return err ? err
             : zps_members_linked(msg->members, msg->client, call.job_id, call.timeout_ms, msg->request, zps_clock_ns(),
                                  msg->error);
}

/* A call whose first answer was lost with its connection. */
static bool is_again(const zps_json *params) {
  return zps_json_opt_bool(params, "again", false);
}

static zps_err_t group_open(const struct zps_method_msg *msg) {
  struct zps_group_spec spec;
  zps_err_t err = zps_control_group_open_read(msg->params, &spec, msg->error);
  if (err) return err;
  err = zps_members_group_open(msg->members, msg->client, &spec, msg->request, zps_clock_ns(), msg->error);
  zps_group_spec_fini(&spec);
  return err;
}

static zps_err_t group_close(const struct zps_method_msg *msg) {
  struct zps_job_call call;
  zps_err_t err = zps_control_group_close_read(msg->params, &call, msg->error);
  if (!err) err = zps_members_group_close(msg->members, msg->client, call.job_id, call.text, msg->error);
  if (err == ZPS_ERR_UNKNOWN && is_again(msg->params) && msg->client->job) err = ZPS_OK;
  if (!err) zps_rpc_reply(msg->request, NULL);
  return err;
}

static zps_err_t job_memory(const struct zps_method_msg *msg) {
  struct zps_job_call call;
  const zps_err_t err = zps_control_memory_read(msg->params, &call, msg->error);
  return err ? err : zps_members_memory(msg->client, call.job_id, call.text, msg->error);
}

static zps_err_t job_held(const struct zps_method_msg *msg) {
  struct zps_job_call call;
  const zps_err_t err = zps_control_held_read(msg->params, &call, msg->error);
  return err ? err : zps_members_hold(msg->client, call.job_id, call.text, msg->error);
}

static zps_err_t job_suspect(const struct zps_method_msg *msg) {
  struct zps_job_suspects suspects;
  zps_err_t err = zps_control_suspect_read(msg->params, &suspects, msg->error);
  if (err) return err;
  err = zps_members_suspect(msg->client, &suspects, msg->error);
  zps_job_suspects_fini(&suspects);
  return err;
}

static zps_err_t job_mapped(const struct zps_method_msg *msg) {
  struct zps_job_steps steps;
  zps_err_t err = zps_control_job_steps_read(msg->params, &steps, msg->error);
  if (err) return err;
  err = zps_members_mapped(msg->client, &steps, msg->error);
  zps_job_steps_fini(&steps);
  return err;
}

/* Rows ahead of one that makes no sense count. */
static zps_err_t job_stats(const struct zps_method_msg *msg) {
  const uint64_t now_ns = zps_clock_ns();
  struct zps_rank_report rank;
  zps_err_t err = zps_control_stats_read(msg->params, &rank, msg->error);
  for (size_t i = 0; !err && i < zps_json_array_len(rank.rows); i++) {
    struct zps_tensor_growth row;
    err = zps_control_growth_read(zps_json_at(rank.rows, i), &row, msg->error);
    if (!err) err = zps_members_tally(msg->client, rank.job_id, row.tensor, row.done, &row.growth, now_ns, msg->error);
  }
  if (!err) err = zps_members_rank_report(msg->client, &rank, now_ns, msg->error);
  return err ? err : zps_members_rank_failed(msg->members, msg->client, rank.job_id, &rank.first, msg->error);
}

static zps_err_t tensor_register(const struct zps_method_msg *msg) {
  struct zps_tensor_spec spec;
  zps_err_t err = zps_control_register_read(msg->params, &spec, msg->error);
  if (err) return err;
  err = zps_members_tensor_register(msg->members, msg->client, &spec, msg->request, msg->error);
  zps_tensor_spec_fini(&spec);
  return err;
}

static zps_err_t tensor_close(const struct zps_method_msg *msg) {
  struct zps_job_call call;
  const zps_err_t err = zps_control_tensor_close_read(msg->params, &call, msg->error);
  if (err) return err;
  const struct zps_member_job *job = msg->client->job;
  if (is_again(msg->params) && job && job->job_id == call.job_id && call.tensor < job->next_tensor &&
      !zps_members_tensor_find(job, call.tensor)) {
    zps_rpc_reply(msg->request, NULL);
    return ZPS_OK;
  }
  return zps_members_tensor_close(msg->client, call.job_id, call.tensor, call.timeout_ms, msg->request, zps_clock_ns(),
                                  msg->error);
}

static zps_err_t tensor_report(const struct zps_method_msg *msg) {
  struct zps_tensor_report report;
  struct zps_plan_sketch sketch;
  const zps_err_t err = zps_control_report_read(msg->params, &report, &sketch, msg->error);
  return err ? err
             : zps_members_plan(msg->members, msg->client, report.job_id, report.tensor, &report.told, msg->error);
}

const struct zps_method zps_methods_rank[] = {
    {"job.join", ZPS_CONN_WORKER, false, .run = job_join},
    {"job.next", ZPS_CONN_WORKER, false, .run = job_next, .entry = ZPS_METHOD_RETURNS},
    {"job.resume", ZPS_CONN_WORKER, false, .run = job_resume, .entry = ZPS_METHOD_RETURNS},
    {"job.leave", ZPS_CONN_WORKER, false, .run = job_leave},
    {"job.peers", ZPS_CONN_WORKER, false, .run = job_peers},
    {"job.linked", ZPS_CONN_WORKER, false, .run = job_linked},
    {"job.memory", ZPS_CONN_WORKER, true, .run = job_memory},
    {"job.held", ZPS_CONN_WORKER, true, .run = job_held},
    {"job.suspect", ZPS_CONN_WORKER, true, .run = job_suspect},
    {"job.mapped", ZPS_CONN_WORKER, true, .run = job_mapped},
    {"group.open", ZPS_CONN_WORKER, false, .run = group_open},
    {"group.close", ZPS_CONN_WORKER, false, .run = group_close},
    {"job.stats", ZPS_CONN_WORKER, true, .run = job_stats},
    {"tensor.register", ZPS_CONN_WORKER, false, .run = tensor_register},
    {"tensor.close", ZPS_CONN_WORKER, false, .run = tensor_close},
    {"tensor.report", ZPS_CONN_WORKER, true, .run = tensor_report},
    {0},
};

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

static zps_err_t job_join(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                          struct zps_error *error) {
  struct zps_join_spec spec;
  struct zps_net_info fabric;
  zps_err_t err = zps_control_join_read(params, &spec, &fabric, error);
  if (!err) err = may_join(conn, &spec, error);
  return err ? err : zps_members_join(conn->coordinator->members, &conn->client, &spec, request, zps_clock_ns(), error);
}

static zps_err_t job_next(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                          struct zps_error *error) {
  struct zps_next_spec spec;
  struct zps_net_info fabric;
  zps_err_t err = zps_control_next_read(params, &spec, &fabric, error);
  if (!err) err = may_join(conn, &spec.join, error);
  return err ? err : zps_members_next(conn->coordinator->members, &conn->client, &spec, request, zps_clock_ns(), error);
}

/* ZPS_ERR_STALE: this coordinator is none that has let the rank in, or does not know what that one knew. */
static zps_err_t job_resume(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                            struct zps_error *error) {
  const struct zps_coordinator *coordinator = conn->coordinator;
  struct zps_resume_spec spec;
  zps_err_t err = zps_control_resume_read(params, &spec, error);
  if (!err && spec.incarnation != coordinator->incarnation)
    err = zps_fail(error, ZPS_ERR_STALE,
                   "job 0x%016llx: this coordinator knows nothing of it: it is another one, or has started again "
                   "without its state (coordinator.state_dir)",
                   (unsigned long long)spec.job_id);
  if (!err) err = zps_members_resume(coordinator->members, &conn->client, &spec, error);
  if (err)
    return err == ZPS_ERR_UNKNOWN ? zps_history_tell(zps_members_history(coordinator->members), spec.job_id, err, error)
                                  : err;
  zps_coordinator_let_in(conn);
  zps_rpc_reply(request, NULL);
  return ZPS_OK;
}

/* A job that has failed has its cause already. */
static void tell_first(struct zps_coordinator_conn *conn, uint64_t job_id, const struct zps_error *first) {
  struct zps_error error;
  if (zps_members_rank_failed(conn->coordinator->members, &conn->client, job_id, first, &error)) return;
}

static zps_err_t job_leave(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                           struct zps_error *error) {
  struct zps_leave_spec spec;
  zps_err_t err = zps_control_leave_read(params, &spec, error);
  if (!err) tell_first(conn, spec.job_id, spec.moves ? &(struct zps_error){.code = ZPS_OK} : &spec.first);
  if (!err)
    err = (spec.moves ? zps_members_move_on : zps_members_leave)(conn->coordinator->members, &conn->client, spec.job_id,
                                                                 error);
  if (!err) zps_rpc_reply(request, NULL);
  return err;
}

static zps_err_t job_peers(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                           struct zps_error *error) {
  const struct zps_member_job *job = conn->client.job;
  uint64_t job_id = 0;
  zps_err_t err = zps_control_job_id_read(params, &job_id, error);
  if (!err) err = zps_members_running(job, job_id, error);
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
  return zps_coordinator_answer(request, result, error);
}

static zps_err_t job_linked(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                            struct zps_error *error) {
  struct zps_job_call call;
  const zps_err_t err = zps_control_linked_read(params, &call, error);
  return err ? err
             : zps_members_linked(conn->coordinator->members, &conn->client, call.job_id, call.timeout_ms, request,
                                  zps_clock_ns(), error);
}

/* A call whose first answer was lost with its connection. */
static bool is_again(const zps_json *params) {
  return zps_json_opt_bool(params, "again", false);
}

static zps_err_t group_open(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                            struct zps_error *error) {
  struct zps_group_spec spec;
  zps_err_t err = zps_control_group_open_read(params, &spec, error);
  if (err) return err;
  err = zps_members_group_open(conn->coordinator->members, &conn->client, &spec, request, zps_clock_ns(), error);
  zps_group_spec_fini(&spec);
  return err;
}

static zps_err_t group_close(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                             struct zps_error *error) {
  struct zps_job_call call;
  zps_err_t err = zps_control_group_close_read(params, &call, error);
  if (!err) err = zps_members_group_close(conn->coordinator->members, &conn->client, call.job_id, call.text, error);
  if (err == ZPS_ERR_UNKNOWN && is_again(params) && conn->client.job) err = ZPS_OK;
  if (!err) zps_rpc_reply(request, NULL);
  return err;
}

static zps_err_t job_memory(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                            struct zps_error *error) {
  (void)request;
  struct zps_job_call call;
  const zps_err_t err = zps_control_memory_read(params, &call, error);
  return err ? err : zps_members_memory(&conn->client, call.job_id, call.text, error);
}

static zps_err_t job_held(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                          struct zps_error *error) {
  (void)request;
  struct zps_job_call call;
  const zps_err_t err = zps_control_held_read(params, &call, error);
  return err ? err : zps_members_held(&conn->client, call.job_id, call.text, error);
}

static zps_err_t job_suspect(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                             struct zps_error *error) {
  (void)request;
  struct zps_job_suspects suspects;
  zps_err_t err = zps_control_suspect_read(params, &suspects, error);
  if (err) return err;
  err = zps_members_suspect(&conn->client, &suspects, error);
  zps_job_suspects_fini(&suspects);
  return err;
}

static zps_err_t job_mapped(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                            struct zps_error *error) {
  (void)request;
  struct zps_job_steps steps;
  zps_err_t err = zps_control_job_steps_read(params, &steps, error);
  if (err) return err;
  err = zps_members_mapped(&conn->client, &steps, error);
  zps_job_steps_fini(&steps);
  return err;
}

/* Rows ahead of one that makes no sense count. */
static zps_err_t job_stats(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                           struct zps_error *error) {
  (void)request;
  const uint64_t now_ns = zps_clock_ns();
  struct zps_rank_news rank;
  zps_err_t err = zps_control_stats_read(params, &rank, error);
  for (size_t i = 0; !err && i < zps_json_array_len(rank.rows); i++) {
    struct zps_tensor_news news;
    err = zps_control_news_read(zps_json_at(rank.rows, i), &news, error);
    if (!err) err = zps_members_tally(&conn->client, rank.job_id, news.tensor, news.done, &news.growth, now_ns, error);
  }
  if (!err) err = zps_members_rank_report(&conn->client, &rank, now_ns, error);
  return err ? err
             : zps_members_rank_failed(conn->coordinator->members, &conn->client, rank.job_id, &rank.first, error);
}

static zps_err_t tensor_register(struct zps_coordinator_conn *conn, const zps_json *params,
                                 struct zps_rpc_request *request, struct zps_error *error) {
  struct zps_tensor_spec spec;
  zps_err_t err = zps_control_register_read(params, &spec, error);
  if (err) return err;
  err = zps_members_tensor_register(conn->coordinator->members, &conn->client, &spec, request, error);
  zps_tensor_spec_fini(&spec);
  return err;
}

static zps_err_t tensor_close(struct zps_coordinator_conn *conn, const zps_json *params,
                              struct zps_rpc_request *request, struct zps_error *error) {
  struct zps_job_call call;
  const zps_err_t err = zps_control_tensor_close_read(params, &call, error);
  if (err) return err;
  const struct zps_member_job *job = conn->client.job;
  if (is_again(params) && job && job->job_id == call.job_id && call.tensor < job->next_tensor &&
      !zps_members_tensor_find(job, call.tensor)) {
    zps_rpc_reply(request, NULL);
    return ZPS_OK;
  }
  return zps_members_tensor_close(&conn->client, call.job_id, call.tensor, call.timeout_ms, request, zps_clock_ns(),
                                  error);
}

static zps_err_t tensor_report(struct zps_coordinator_conn *conn, const zps_json *params,
                               struct zps_rpc_request *request, struct zps_error *error) {
  (void)request;
  struct zps_tensor_report report;
  struct zps_plan_sketch sketch;
  const zps_err_t err = zps_control_report_read(params, &report, &sketch, error);
  return err ? err
             : zps_members_plan(conn->coordinator->members, &conn->client, report.job_id, report.tensor, &report.told,
                                error);
}

const struct zps_method zps_methods_rank[] = {
    {"job.join", ZPS_CONN_WORKER, false, job_join, ZPS_METHOD_NO_ENTRY},
    {"job.next", ZPS_CONN_WORKER, false, job_next, ZPS_METHOD_RETURNS},
    {"job.resume", ZPS_CONN_WORKER, false, job_resume, ZPS_METHOD_RETURNS},
    {"job.leave", ZPS_CONN_WORKER, false, job_leave, ZPS_METHOD_NO_ENTRY},
    {"job.peers", ZPS_CONN_WORKER, false, job_peers, ZPS_METHOD_NO_ENTRY},
    {"job.linked", ZPS_CONN_WORKER, false, job_linked, ZPS_METHOD_NO_ENTRY},
    {"job.memory", ZPS_CONN_WORKER, true, job_memory, ZPS_METHOD_NO_ENTRY},
    {"job.held", ZPS_CONN_WORKER, true, job_held, ZPS_METHOD_NO_ENTRY},
    {"job.suspect", ZPS_CONN_WORKER, true, job_suspect, ZPS_METHOD_NO_ENTRY},
    {"job.mapped", ZPS_CONN_WORKER, true, job_mapped, ZPS_METHOD_NO_ENTRY},
    {"group.open", ZPS_CONN_WORKER, false, group_open, ZPS_METHOD_NO_ENTRY},
    {"group.close", ZPS_CONN_WORKER, false, group_close, ZPS_METHOD_NO_ENTRY},
    {"job.stats", ZPS_CONN_WORKER, true, job_stats, ZPS_METHOD_NO_ENTRY},
    {"tensor.register", ZPS_CONN_WORKER, false, tensor_register, ZPS_METHOD_NO_ENTRY},
    {"tensor.close", ZPS_CONN_WORKER, false, tensor_close, ZPS_METHOD_NO_ENTRY},
    {"tensor.report", ZPS_CONN_WORKER, true, tensor_report, ZPS_METHOD_NO_ENTRY},
    {0},
};

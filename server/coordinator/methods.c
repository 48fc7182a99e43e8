/* Calls and notifications of clients, as events of the membership module. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "proto/control_next.h"
#include "proto/control_plan.h"
#include "proto/control_stats.h"
#include "server/coordinator/coordinator_impl.h"

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

/* Each returns ZPS_OK where the request is answered, or will be; else the answer is `error`. Notifications have no
 * request. */
typedef zps_err_t method_fn(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                            struct zps_error *error);

static zps_err_t answer(struct zps_rpc_request *request, zps_json *result, struct zps_error *error) {
  if (!result) return zps_fail(error, ZPS_ERR_NOMEM, "the coordinator has no memory to answer");
  zps_rpc_reply(request, result);
  return ZPS_OK;
}

/* ---- Of servers ---- */

static zps_err_t server_register(struct zps_coordinator_conn *conn, const zps_json *params,
                                 struct zps_rpc_request *request, struct zps_error *error) {
  const struct zps_coordinator *coordinator = conn->coordinator;
  struct zps_server_spec spec;
  struct zps_net_info fabric;
  zps_err_t err = zps_control_server_read(params, &spec, &fabric, error);
  if (err) return err;
  err = zps_coordinator_may_serve(conn, spec.name, error);
  if (!err) err = zps_coordinator_may_name(conn, &fabric, error);
  if (!err)
    err = zps_members_server_register(coordinator->members, &conn->client, &spec,
                                      spec.incarnation == coordinator->incarnation, error);
  zps_server_spec_fini(&spec);
  if (err) return err;
  zps_coordinator_let_in(conn);
  struct zps_server_answer result = {
      .server = conn->client.server->index,
      .epoch = zps_members_epoch(coordinator->members),
      .heartbeat = {.heartbeat_ms = coordinator->config.heartbeat_ms, .dead_ms = coordinator->config.dead_ms},
      .incarnation = coordinator->incarnation,
      .jobs = calloc(zps_members_jobs(coordinator->members) + 1, sizeof *result.jobs)};
  for (const struct zps_member_job *job = zps_members_job_first(coordinator->members); result.jobs && job;
       job = job->next)
    if (zps_member_job_has(job, conn->client.server)) result.jobs[result.n_jobs++] = job->job_id;
  zps_json *message = result.jobs ? zps_control_server_answer_write(&result) : NULL;
  zps_server_answer_fini(&result);
  return answer(request, message, error);
}

/* The connection is about to end, and its process lives. */
static zps_err_t away(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                      struct zps_error *error) {
  (void)params, (void)request, (void)error;
  conn->returns = true;
  return ZPS_OK;
}

static zps_err_t server_drain(struct zps_coordinator_conn *conn, const zps_json *params,
                              struct zps_rpc_request *request, struct zps_error *error) {
  (void)params;
  unsigned jobs;
  const zps_err_t err = zps_members_server_drain(conn->coordinator->members, &conn->client, &jobs, error);
  return err ? err : answer(request, zps_control_drained_write(jobs), error);
}

/* ---- Of ranks ---- */

/* A token's end is told in seconds of the calendar. */
static zps_err_t may_join(const struct zps_coordinator_conn *conn, const struct zps_join_spec *spec,
                          struct zps_error *error) {
  const zps_err_t err =
      zps_token_check(&conn->coordinator->token_keys, spec->token, spec->job, (uint64_t)time(NULL), error);
  return err ? err : zps_coordinator_may_name(conn, spec->fabric, error);
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
  if (err) return err == ZPS_ERR_UNKNOWN ? zps_history_tell(&coordinator->history, spec.job_id, err, error) : err;
  zps_coordinator_let_in(conn);
  zps_rpc_reply(request, NULL);
  return ZPS_OK;
}

static zps_err_t job_leave(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                           struct zps_error *error) {
  uint64_t job_id = 0;
  zps_err_t err = zps_control_job_id_read(params, &job_id, error);
  if (!err)
    err = (zps_control_leave_moves(params) ? zps_members_move_on : zps_members_leave)(conn->coordinator->members,
                                                                                      &conn->client, job_id, error);
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
  return answer(request, result, error);
}

static zps_err_t job_linked(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                            struct zps_error *error) {
  uint64_t job_id = 0, timeout_ms = 0;
  const zps_err_t err = zps_control_linked_read(params, &job_id, &timeout_ms, error);
  return err ? err
             : zps_members_linked(conn->coordinator->members, &conn->client, job_id, timeout_ms, request,
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
  uint64_t job_id = 0;
  const char *group = "";
  zps_err_t err = zps_control_group_close_read(params, &job_id, &group, error);
  if (!err) err = zps_members_group_close(conn->coordinator->members, &conn->client, job_id, group, error);
  if (err == ZPS_ERR_UNKNOWN && is_again(params) && conn->client.job) err = ZPS_OK;
  if (!err) zps_rpc_reply(request, NULL);
  return err;
}

static zps_err_t job_memory(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                            struct zps_error *error) {
  (void)request;
  uint64_t job_id = 0;
  const char *memory = "";
  const zps_err_t err = zps_control_memory_read(params, &job_id, &memory, error);
  return err ? err : zps_members_memory(&conn->client, job_id, memory, error);
}

static zps_err_t job_held(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                          struct zps_error *error) {
  (void)request;
  uint64_t job_id = 0;
  const char *why = "";
  const zps_err_t err = zps_control_held_read(params, &job_id, &why, error);
  return err ? err : zps_members_held(&conn->client, job_id, why, error);
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
  err = zps_members_mapped(conn->coordinator->members, &conn->client, &steps, error);
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
  return err ? err
             : zps_members_rank_told(&conn->client, rank.job_id, rank.kept_bytes, rank.corrupt, rank.forged, error);
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
  uint64_t job_id = 0, timeout_ms = 0;
  uint32_t tensor = 0;
  const zps_err_t err = zps_control_tensor_close_read(params, &job_id, &tensor, &timeout_ms, error);
  if (err) return err;
  const struct zps_member_job *job = conn->client.job;
  if (is_again(params) && job && job->job_id == job_id && tensor < job->next_tensor &&
      !zps_members_tensor_find(job, tensor)) {
    zps_rpc_reply(request, NULL);
    return ZPS_OK;
  }
  return zps_members_tensor_close(conn->coordinator->members, &conn->client, job_id, tensor, timeout_ms, request,
                                  zps_clock_ns(), error);
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

/* ---- Of administrators ---- */

static zps_err_t status(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                        struct zps_error *error) {
  (void)params;
  return answer(request, zps_coordinator_status(conn->coordinator), error);
}

static zps_err_t security(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                          struct zps_error *error) {
  (void)params;
  return answer(request, zps_coordinator_security(conn->coordinator), error);
}

static zps_err_t members(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                         struct zps_error *error) {
  (void)params;
  return answer(request, zps_coordinator_members(conn->coordinator), error);
}

static zps_err_t jobs(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                      struct zps_error *error) {
  const bool all = zps_json_opt_bool(params, "all", false);
  return answer(request, zps_coordinator_jobs_table(conn->coordinator, all), error);
}

static zps_err_t tensors(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                         struct zps_error *error) {
  (void)params;
  return answer(request, zps_coordinator_tensors(conn->coordinator), error);
}

static zps_err_t stats(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                       struct zps_error *error) {
  (void)params, (void)error;
  zps_coordinator_stats(conn->coordinator, request);
  return ZPS_OK;
}

static zps_err_t drain(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                       struct zps_error *error) {
  const struct zps_member_server *server = NULL;
  const char *name = "";
  zps_err_t err = zps_control_get_name(params, "name", 1, ZPS_NAME_MAX, &name, error);
  if (!err) err = zps_members_drain_named(conn->coordinator->members, name, &server, error);
  return err ? err : answer(request, zps_coordinator_drained(conn->coordinator, server), error);
}

static zps_err_t undrain(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                         struct zps_error *error) {
  const struct zps_member_server *server = NULL;
  const char *name = "";
  zps_err_t err = zps_control_get_name(params, "name", 1, ZPS_NAME_MAX, &name, error);
  if (!err) err = zps_members_undrain_named(conn->coordinator->members, name, &server, error);
  return err ? err : answer(request, zps_coordinator_undrained(server), error);
}

static zps_err_t rebalance(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                           struct zps_error *error) {
  zps_json *table = NULL;
  const char *job = NULL;
  zps_err_t err = ZPS_OK;
  if (zps_json_get(params, "name")) err = zps_control_get_name(params, "name", 1, ZPS_NAME_MAX, &job, error);
  if (!err) err = zps_coordinator_rebalance(conn->coordinator, job, &table, error);
  return err ? err : answer(request, table, error);
}

static zps_err_t kick(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                      struct zps_error *error) {
  struct zps_member_kicked kicked;
  const char *name = "", *reason = "no reason was given";
  uint32_t rank = 0;
  zps_err_t err = zps_control_get_name(params, "name", 1, ZPS_NAME_MAX, &name, error);
  if (!err) err = zps_control_get_u32(params, "rank", 0, ZPS_WORLD_MAX - 1, &rank, error);
  if (!err && zps_json_get(params, "reason"))
    err = zps_control_get_name(params, "reason", 1, ZPS_KICK_REASON_MAX, &reason, error);
  if (!err) err = zps_members_kick(conn->coordinator->members, name, rank, reason, &kicked, error);
  return err ? err : answer(request, zps_coordinator_kicked(&kicked), error);
}

/* ---- Heartbeats ---- */

/* A process whose progress thread is stuck cannot do its part, though it says that it lives. */
static zps_err_t heartbeat(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                           struct zps_error *error) {
  (void)request, (void)error;
  const uint64_t stuck_ms = zps_control_beat_read(params);
  if (stuck_ms <= conn->coordinator->config.dead_ms) return ZPS_OK;
  char reason[80];
  snprintf(reason, sizeof reason, "its progress thread has not run for %.1f s", (double)stuck_ms / 1000);
  zps_coordinator_expel(conn, reason);
  return ZPS_OK;
}

/* ---- All of them ---- */

#define ANY_ROLE (ZPS_CONN_SERVER | ZPS_CONN_WORKER | ZPS_CONN_CTL)
static const struct method {
  const char *name;
  int roles;
  bool notifies; /* it is no call: an error cannot be reported to the client */
  method_fn *run;
} methods[] = {
    {"server.register", ZPS_CONN_SERVER, false, server_register},
    {"server.drain", ZPS_CONN_SERVER, false, server_drain},
    {"away", ZPS_CONN_SERVER | ZPS_CONN_WORKER, true, away},
    {"job.join", ZPS_CONN_WORKER, false, job_join},
    {"job.next", ZPS_CONN_WORKER, false, job_next},
    {"job.resume", ZPS_CONN_WORKER, false, job_resume},
    {"job.leave", ZPS_CONN_WORKER, false, job_leave},
    {"job.peers", ZPS_CONN_WORKER, false, job_peers},
    {"job.linked", ZPS_CONN_WORKER, false, job_linked},
    {"job.memory", ZPS_CONN_WORKER, true, job_memory},
    {"job.held", ZPS_CONN_WORKER, true, job_held},
    {"job.suspect", ZPS_CONN_WORKER, true, job_suspect},
    {"job.mapped", ZPS_CONN_WORKER, true, job_mapped},
    {"group.open", ZPS_CONN_WORKER, false, group_open},
    {"group.close", ZPS_CONN_WORKER, false, group_close},
    {"job.stats", ZPS_CONN_WORKER, true, job_stats},
    {"tensor.register", ZPS_CONN_WORKER, false, tensor_register},
    {"tensor.close", ZPS_CONN_WORKER, false, tensor_close},
    {"tensor.report", ZPS_CONN_WORKER, true, tensor_report},
    {"heartbeat", ZPS_CONN_SERVER | ZPS_CONN_WORKER, true, heartbeat},
    {"status", ANY_ROLE, false, status},
    {"members", ANY_ROLE, false, members},
    {"jobs", ANY_ROLE, false, jobs},
    {"tensors", ANY_ROLE, false, tensors},
    {"stats", ANY_ROLE, false, stats},
    {"security", ZPS_CONN_CTL, false, security},
    {"drain", ZPS_CONN_CTL, false, drain},
    {"undrain", ZPS_CONN_CTL, false, undrain},
    {"rebalance", ZPS_CONN_CTL, false, rebalance},
    {"kick", ZPS_CONN_CTL, false, kick},
};

static const struct method *find(const char *name, bool notifies) {
  for (unsigned i = 0; i < sizeof methods / sizeof methods[0]; i++)
    if (methods[i].notifies == notifies && strcmp(methods[i].name, name) == 0) return &methods[i];
  return NULL;
}

/* What a peer says that it is counts as far as its certificate bears it out. */
static bool is_certified(const struct zps_rpc_conn *rpc, const struct method *method) {
  const unsigned certified = zps_rpc_conn_certified(rpc);
  if (certified == 0 || method->roles == ANY_ROLE || certified & ZPS_TLS_ADMIN) return true;
  if (certified & ZPS_TLS_SERVER && method->roles & ZPS_CONN_SERVER) return true;
  return certified & ZPS_TLS_WORKER && method->roles & ZPS_CONN_WORKER;
}

/* A server that is none of those it may be, or names another's address: it, or who has its certificate, can try again
 * and again. */
static bool is_no_such_server(const struct zps_coordinator_conn *conn, const struct method *method, zps_err_t err) {
  return method->run == server_register && err == ZPS_ERR_REFUSED && !conn->coordinator->draining;
}

/* What changes the cluster: who did it is on record; and who calls that was expelled, or is not what it says. */
static void audit(const struct zps_coordinator_conn *conn, const struct method *method, const zps_json *params,
                  zps_err_t err, const struct zps_error *error) {
  const char *const peer = zps_rpc_conn_peer(conn->rpc), *const role = zps_rpc_conn_role(conn->rpc);
  const char *const name = zps_json_opt_str(params, "name", "");
  const bool is_back = method->run == job_resume || method->run == job_next;
  if (!err && method->run == kick)
    zps_log_info("%s: audit: method=%s name=%s rank=%llu role=%s reason=%s", peer, method->name, name,
                 (unsigned long long)zps_json_opt_u64(params, "rank", 0), role, zps_json_opt_str(params, "reason", ""));
  else if (!err && method->roles == ZPS_CONN_CTL)
    zps_log_info("%s: audit: method=%s name=%s role=%s", peer, method->name, name, role);
  else if ((is_back && (err == ZPS_ERR_REFUSED || err == ZPS_ERR_PEER_LOST)) || is_no_such_server(conn, method, err))
    zps_log_warn_limited("%s: audit: method=%s role=%s is refused: %s", peer, method->name, role, error->text);
}

static void run(struct zps_coordinator_conn *conn, const struct method *method, const zps_json *params,
                struct zps_rpc_request *request) {
  struct zps_error error;
  zps_coordinator_enter(conn->coordinator);
  const zps_err_t err = method->run(conn, params, request, &error);
  if (err && !is_no_such_server(conn, method, err))
    zps_log_info("%s: %s is %s: %s", zps_rpc_conn_peer(conn->rpc), method->name, request ? "refused" : "left out",
                 error.text);
  audit(conn, method, params, err, &error);
  if (err && request) zps_rpc_reply_error(request, error.code, "%s", error.text);
  if (err == ZPS_ERR_NOMEM && !request) zps_coordinator_connect_anew(conn, &error);
  zps_coordinator_leave(conn->coordinator);
}

void zps_coordinator_message(void *ctx, struct zps_rpc_conn *rpc, const char *name, const zps_json *params,
                             struct zps_rpc_request *request) {
  (void)ctx;
  struct zps_coordinator_conn *conn = zps_rpc_conn_ctx(rpc);
  const struct method *method = find(name, !request);
  if (!request) {
    if (!conn || conn->role == ZPS_CONN_CTL) return;
    zps_coordinator_watch(conn);
    if (method && method->roles & (int)conn->role && is_certified(rpc, method)) run(conn, method, params, NULL);
  } else if (!conn || !method) {
    zps_rpc_reply_error(request, ZPS_ERR_UNSUPPORTED, "the coordinator has no method '%.100s'", name);
  } else if (!(method->roles & (int)conn->role)) {
    zps_rpc_reply_error(request, ZPS_ERR_REFUSED, "'%s' is not for role '%s'", name, zps_rpc_conn_role(rpc));
  } else if (!is_certified(rpc, method)) {
    zps_log_warn_limited("%s: '%s' is refused to %s", zps_rpc_conn_peer(rpc), name, zps_rpc_conn_certificate(rpc));
    zps_rpc_reply_error(request, ZPS_ERR_REFUSED, "'%s' takes a certificate of an admin (zenps://admin/NAME), not %s",
                        name, zps_rpc_conn_certificate(rpc));
  } else {
    run(conn, method, params, request);
  }
}

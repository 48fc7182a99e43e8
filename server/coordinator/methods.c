/* Calls and notifications of clients: which method it is, whether they may, and what is on record. */
#include "server/coordinator/methods.h"

#include <stdio.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

static const struct zps_method *const tables[] = {zps_methods_member, zps_methods_rank, zps_methods_admin};

static const struct zps_method *find(const char *name, bool notifies) {
  for (unsigned t = 0; t < sizeof tables / sizeof tables[0]; t++)
    for (const struct zps_method *method = tables[t]; method->name; method++)
      if (method->notifies == notifies && strcmp(method->name, name) == 0) return method;
  return NULL;
}

/* What a peer says that it is counts as far as its certificate bears it out. */
static bool is_certified(const struct zps_rpc_conn *rpc, const struct zps_method *method) {
  const unsigned certified = zps_rpc_conn_certified(rpc);
  if (certified == 0 || method->roles == ZPS_METHOD_ANY_ROLE || certified & ZPS_TLS_ADMIN) return true;
  if (certified & ZPS_TLS_SERVER && method->roles & ZPS_CONN_SERVER) return true;
  return certified & ZPS_TLS_WORKER && method->roles & ZPS_CONN_WORKER;
}

/* A registration refused for identity. Its caller can repeat it at will, so it is logged at a limited rate. */
static bool is_no_such_server(const struct zps_coordinator_conn *conn, const struct zps_method *method, zps_err_t err) {
  return method->entry == ZPS_METHOD_REGISTERS && err == ZPS_ERR_REFUSED && !conn->coordinator->draining;
}

/* A change of the cluster is logged with its author and reason. So is a refused caller that was expelled, or that
 * claims to be another one. Over a Unix socket the peer's text names the user. */
static void audit(const struct zps_coordinator_conn *conn, const struct zps_method *method, const zps_json *params,
                  zps_err_t err, const struct zps_error *error) {
  const char *const peer = zps_rpc_conn_peer(conn->rpc), *const role = zps_rpc_conn_role(conn->rpc);
  const char *const certificate = zps_rpc_conn_certificate(conn->rpc), *const by = *certificate ? certificate : "-";
  const char *const reason = zps_json_opt_str(params, "reason", "-");
  const char *const name = zps_json_opt_str(params, "name", "");
  const bool is_back = method->entry == ZPS_METHOD_RETURNS;
  if (!err && strcmp(method->name, "kick") == 0)
    zps_log_info("%s: audit: method=%s by=%s name=%s rank=%llu role=%s reason=%s", peer, method->name, by, name,
                 (unsigned long long)zps_json_opt_u64(params, "rank", 0), role, reason);
  else if (!err && method->roles == ZPS_CONN_CTL)
    zps_log_info("%s: audit: method=%s by=%s name=%s role=%s reason=%s", peer, method->name, by, name, role, reason);
  else if ((is_back && (err == ZPS_ERR_REFUSED || err == ZPS_ERR_PEER_LOST)) || is_no_such_server(conn, method, err))
    zps_log_warn_limited("%s: audit: method=%s by=%s role=%s is refused: %s", peer, method->name, by, role,
                         error->text);
}

/* The member that a client is, or that it names: copied, since the call may be its end. */
struct subject {
  char job[ZPS_NAME_MAX + 1], server[ZPS_NAME_MAX + 1];
  bool has_rank;
  uint32_t rank;
};

static struct subject subject_of(const struct zps_coordinator_conn *conn, const struct zps_method *method,
                                 const zps_json *params) {
  const struct zps_member_client *const client = &conn->client;
  struct subject subject = {.has_rank = false};
  const char *job = zps_json_opt_str(params, "job", ""), *server = "";
  if (strcmp(method->name, "kick") == 0 || strcmp(method->name, "rebalance") == 0)
    job = zps_json_opt_str(params, "name", "");
  else if (method->entry == ZPS_METHOD_REGISTERS || method->roles == ZPS_CONN_CTL)
    server = zps_json_opt_str(params, "name", "");
  const struct zps_member_job *of = client->job;
  uint64_t job_id;
  if (!of && !zps_json_get_hex(params, "job_id", &job_id, NULL))
    of = zps_members_job(conn->coordinator->members, job_id);
  if (of) job = of->name;
  if (client->server) server = client->server->name;
  const uint64_t rank = client->job ? client->rank : zps_json_opt_u64(params, "rank", UINT64_MAX);
  subject.has_rank = rank <= UINT32_MAX;
  subject.rank = (uint32_t)rank;
  snprintf(subject.job, sizeof subject.job, "%s", job);
  snprintf(subject.server, sizeof subject.server, "%s", server);
  return subject;
}

static zps_err_t show(const struct zps_method_msg *msg, zps_table_fn *table) {
  struct zps_viewer viewer = zps_viewer_of(msg->conn->rpc);
  viewer.wants_ended = zps_json_opt_bool(msg->params, "all", false);
  return zps_coordinator_answer(msg, table(msg->conn->coordinator, &viewer));
}

static zps_err_t carry_out(const struct zps_method_msg *msg, const struct zps_method *method) {
  struct zps_coordinator_conn *const conn = msg->conn;
  const struct subject subject = subject_of(conn, method, msg->params);
  zps_log_about(.job = subject.job, .has_rank = subject.has_rank, .rank = subject.rank, .server = subject.server);
  const bool is_guarded = method->entry == ZPS_METHOD_REGISTERS || method->entry == ZPS_METHOD_CHANGES;
  zps_err_t err = is_guarded ? zps_coordinator_is_own(conn, method->name, msg->error) : ZPS_OK;
  if (!err) err = method->table ? show(msg, method->table) : method->run(msg);
  zps_log_about(.code = err);
  if (err && !is_no_such_server(conn, method, err))
    zps_log_info("%s: %s is %s: %s", zps_rpc_conn_peer(conn->rpc), method->name, msg->request ? "refused" : "left out",
                 msg->error->text);
  audit(conn, method, msg->params, err, msg->error);
  return err;
}

/* A notification that BEATS has no error. */
static void run(struct zps_coordinator_conn *conn, const struct zps_method *method, const zps_json *params,
                struct zps_rpc_request *request) {
  struct zps_coordinator *const coordinator = conn->coordinator;
  struct zps_error error;
  const struct zps_method_msg msg = {.conn = conn,
                                     .members = coordinator->members,
                                     .client = &conn->client,
                                     .params = params,
                                     .request = request,
                                     .error = &error};
  if (method->entry == ZPS_METHOD_BEATS) {
    (void)method->run(&msg);
    return;
  }
  zps_coordinator_enter(coordinator);
  const zps_err_t err = carry_out(&msg, method);
  if (err && request) zps_rpc_reply_error(request, error.code, "%s", error.text);
  if (err == ZPS_ERR_NOMEM && !request) zps_coordinator_connect_anew(conn, &error);
  zps_coordinator_leave(coordinator);
}

void zps_coordinator_message(void *ctx, struct zps_rpc_conn *rpc, const char *name, const zps_json *params,
                             struct zps_rpc_request *request) {
  (void)ctx;
  struct zps_coordinator_conn *conn = zps_rpc_conn_ctx(rpc);
  const struct zps_method *method = find(name, !request);
  if (conn && request) conn->has_asked = true;
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

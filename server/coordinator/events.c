/* Around every event: answers that come while the membership module is entered, its deadline, and what becomes of a
 * connection's client. */
#include <stdlib.h>

#include "common/base/clock.h"
#include "server/coordinator/coordinator_impl.h"

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

void zps_coordinator_enter(struct zps_coordinator *coordinator) {
  coordinator->depth++;
}

static void on_deadline(uv_timer_t *timer) {
  zps_coordinator_enter(timer->data);
  zps_coordinator_leave(timer->data);
}

/* A server that does not answer job.view keeps a job from going on: it counts as lost. */
static void map_answered(struct zps_coordinator *coordinator, const struct zps_coordinator_call *call) {
  struct zps_coordinator_conn *conn = call->conn;
  zps_members_map_answered(coordinator->members, &conn->client, call->job_id, call->epoch,
                           call->error.code == ZPS_ERR_TIMEOUT ? ZPS_ERR_CLOSED : call->error.code, call->error.text);
  if (call->error.code != ZPS_ERR_TIMEOUT || !conn->rpc) return;
  zps_members_client_lost(coordinator->members, &conn->client, call->error.text);
  zps_rpc_close(conn->rpc, false);
}

static void answered(struct zps_coordinator *coordinator, struct zps_coordinator_call *call) {
  struct zps_members *members = coordinator->members;
  const struct zps_error *error = &call->error;
  if (call->type == ZPS_ACT_TENSOR_OPEN)
    zps_members_tensor_opened(members, &call->conn->client, call->job_id, call->tensor, error->code, error->text);
  else if (call->type == ZPS_ACT_MAP_SERVER)
    map_answered(coordinator, call);
  else if (call->type == ZPS_ACT_JOB_OPEN)
    zps_members_job_opened(members, &call->conn->client, call->job_id, error->code, error->text);
  else
    zps_members_job_fail(members, call->job_id, error->code, error->text);
  free(call);
}

void zps_coordinator_leave(struct zps_coordinator *coordinator) {
  if (coordinator->depth > 1) {
    coordinator->depth--;
    return;
  }
  zps_log_about_else();
  uint64_t now_ns, deadline_ns;
  do {
    while (coordinator->late) {
      struct zps_coordinator_call *call = coordinator->late;
      coordinator->late = call->next;
      answered(coordinator, call);
    }
    now_ns = zps_clock_ns();
    deadline_ns = zps_members_tick(coordinator->members, now_ns);
  } while (coordinator->late);
  coordinator->depth--;
  if (coordinator->closing) return;
  if (deadline_ns == ZPS_NEVER) {
    uv_timer_stop(&coordinator->deadline);
  } else {
    uv_update_time(coordinator->deadline.loop);
    uv_timer_start(&coordinator->deadline, on_deadline, (deadline_ns - now_ns) / ZPS_NS_PER_MS + 1, 0);
  }
}

/* ---- Clients ---- */

void zps_coordinator_watch(struct zps_coordinator_conn *conn) {
  if (conn->watched_ns) return;
  conn->watched_ns = zps_clock_ns();
  zps_rpc_conn_watched(conn->rpc);
}

void zps_coordinator_let_in(struct zps_coordinator_conn *conn) {
  zps_coordinator_watch(conn);
  zps_rpc_conn_let_in(conn->rpc);
  zps_rpc_conn_set_line_max(conn->rpc, ZPS_RPC_LINE_MAX);
}

static void log_expelled(const struct zps_coordinator_conn *conn, const char *reason) {
  const struct zps_member_job *const job = conn->client.job;
  const struct zps_member_server *const server = conn->client.server;
  const char *const peer = zps_rpc_conn_peer(conn->rpc);
  if (job) {
    zps_log_about(.job = job->name, ZPS_LOG_RANK(conn->client.rank), .peer = peer);
    zps_log_warn("%s: audit: job=%s rank=%u is expelled: %s", peer, job->name, conn->client.rank, reason);
  } else if (server) {
    zps_log_about(.server = server->name, .peer = peer);
    zps_log_warn("%s: audit: server=%s is expelled: %s", peer, server->name, reason);
  }
}

void zps_coordinator_expel(struct zps_coordinator_conn *conn, const char *reason) {
  log_expelled(conn, reason);
  if (conn->client.asker) zps_rpc_close(conn->rpc, false); /* Its call has no answer, so that it asks again. */
  zps_members_client_lost(conn->coordinator->members, &conn->client, reason);
  zps_rpc_close(conn->rpc, false);
}

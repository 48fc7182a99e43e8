/* What administrators call, and tables that all may ask for. */
#include "server/coordinator/methods.h"

static zps_err_t status(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                        struct zps_error *error) {
  (void)params;
  const struct zps_viewer viewer = zps_viewer_of(conn->rpc);
  return zps_coordinator_answer(request, zps_coordinator_status(conn->coordinator, &viewer), error);
}

static zps_err_t security(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                          struct zps_error *error) {
  (void)params;
  return zps_coordinator_answer(request, zps_coordinator_security(conn->coordinator), error);
}

static zps_err_t members(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                         struct zps_error *error) {
  (void)params;
  const struct zps_viewer viewer = zps_viewer_of(conn->rpc);
  return zps_coordinator_answer(request, zps_coordinator_members(conn->coordinator, &viewer), error);
}

static zps_err_t jobs(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                      struct zps_error *error) {
  const bool all = zps_json_opt_bool(params, "all", false);
  const struct zps_viewer viewer = zps_viewer_of(conn->rpc);
  return zps_coordinator_answer(request, zps_coordinator_jobs_table(conn->coordinator, &viewer, all), error);
}

static zps_err_t tensors(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                         struct zps_error *error) {
  (void)params;
  const struct zps_viewer viewer = zps_viewer_of(conn->rpc);
  return zps_coordinator_answer(request, zps_coordinator_tensors(conn->coordinator, &viewer), error);
}

static zps_err_t stats(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                       struct zps_error *error) {
  (void)params, (void)error;
  const struct zps_viewer viewer = zps_viewer_of(conn->rpc);
  zps_coordinator_stats(conn->coordinator, &viewer, request);
  return ZPS_OK;
}

static zps_err_t drain(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                       struct zps_error *error) {
  const struct zps_member_server *server = NULL;
  struct zps_admin_call call;
  zps_err_t err = zps_control_drain_read(params, &call, error);
  if (!err) err = zps_members_drain_named(conn->coordinator->members, call.name, &server, error);
  return err ? err : zps_coordinator_answer(request, zps_coordinator_drained(conn->coordinator, server), error);
}

static zps_err_t undrain(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                         struct zps_error *error) {
  const struct zps_member_server *server = NULL;
  struct zps_admin_call call;
  zps_err_t err = zps_control_drain_read(params, &call, error);
  if (!err) err = zps_members_undrain_named(conn->coordinator->members, call.name, &server, error);
  return err ? err : zps_coordinator_answer(request, zps_coordinator_undrained(server), error);
}

static zps_err_t rebalance(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                           struct zps_error *error) {
  zps_json *table = NULL;
  struct zps_admin_call call;
  zps_err_t err = zps_control_rebalance_read(params, &call, error);
  if (!err) err = zps_coordinator_rebalance(conn->coordinator, call.name, &table, error);
  return err ? err : zps_coordinator_answer(request, table, error);
}

static zps_err_t kick(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                      struct zps_error *error) {
  struct zps_member_kicked kicked;
  struct zps_admin_call call;
  zps_err_t err = zps_control_kick_read(params, &call, error);
  if (!err) err = zps_members_kick(conn->coordinator->members, call.name, call.rank, call.reason, &kicked, error);
  return err ? err : zps_coordinator_answer(request, zps_coordinator_kicked(&kicked), error);
}

const struct zps_method zps_methods_admin[] = {
    {"status", ZPS_METHOD_ANY_ROLE, false, status, ZPS_METHOD_NO_ENTRY},
    {"members", ZPS_METHOD_ANY_ROLE, false, members, ZPS_METHOD_NO_ENTRY},
    {"jobs", ZPS_METHOD_ANY_ROLE, false, jobs, ZPS_METHOD_NO_ENTRY},
    {"tensors", ZPS_METHOD_ANY_ROLE, false, tensors, ZPS_METHOD_NO_ENTRY},
    {"stats", ZPS_METHOD_ANY_ROLE, false, stats, ZPS_METHOD_NO_ENTRY},
    {"security", ZPS_CONN_CTL, false, security, ZPS_METHOD_NO_ENTRY},
    {"drain", ZPS_CONN_CTL, false, drain, ZPS_METHOD_CHANGES},
    {"undrain", ZPS_CONN_CTL, false, undrain, ZPS_METHOD_CHANGES},
    {"rebalance", ZPS_CONN_CTL, false, rebalance, ZPS_METHOD_CHANGES},
    {"kick", ZPS_CONN_CTL, false, kick, ZPS_METHOD_CHANGES},
    {0},
};

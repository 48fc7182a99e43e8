/* What administrators call, and tables that all may ask for. */
#include "server/coordinator/methods.h"

static zps_err_t stats(const struct zps_method_msg *msg) {
  const struct zps_viewer viewer = zps_viewer_of(msg->conn->rpc);
  zps_coordinator_stats(msg->conn->coordinator, &viewer, msg->request);
  return ZPS_OK;
}

static zps_err_t drain(const struct zps_method_msg *msg) {
  const struct zps_member_server *server = NULL;
  struct zps_admin_call call;
  zps_err_t err = zps_control_drain_read(msg->params, &call, msg->error);
  if (!err) err = zps_members_drain_named(msg->members, call.name, &server, msg->error);
  return err ? err : zps_coordinator_answer(msg, zps_coordinator_drained(msg->conn->coordinator, server));
}

static zps_err_t undrain(const struct zps_method_msg *msg) {
  const struct zps_member_server *server = NULL;
  struct zps_admin_call call;
  zps_err_t err = zps_control_drain_read(msg->params, &call, msg->error);
  if (!err) err = zps_members_undrain_named(msg->members, call.name, &server, msg->error);
  return err ? err : zps_coordinator_answer(msg, zps_coordinator_undrained(server));
}

static zps_err_t rebalance(const struct zps_method_msg *msg) {
  zps_json *table = NULL;
  struct zps_admin_call call;
  zps_err_t err = zps_control_rebalance_read(msg->params, &call, msg->error);
  if (!err) err = zps_coordinator_rebalance(msg->conn->coordinator, call.name, &table, msg->error);
  return err ? err : zps_coordinator_answer(msg, table);
}

static zps_err_t kick(const struct zps_method_msg *msg) {
  struct zps_member_kicked kicked;
  struct zps_admin_call call;
  zps_err_t err = zps_control_kick_read(msg->params, &call, msg->error);
  if (!err) err = zps_members_kick(msg->members, call.name, call.rank, call.reason, &kicked, msg->error);
  return err ? err : zps_coordinator_answer(msg, zps_coordinator_kicked(&kicked));
}

const struct zps_method zps_methods_admin[] = {
    {"status", ZPS_METHOD_ANY_ROLE, false, .table = zps_coordinator_status},
    {"members", ZPS_METHOD_ANY_ROLE, false, .table = zps_coordinator_members},
    {"jobs", ZPS_METHOD_ANY_ROLE, false, .table = zps_coordinator_jobs_table},
    {"tensors", ZPS_METHOD_ANY_ROLE, false, .table = zps_coordinator_tensors},
    {"stats", ZPS_METHOD_ANY_ROLE, false, .run = stats},
    {"security", ZPS_CONN_CTL, false, .table = zps_coordinator_security},
    {"drain", ZPS_CONN_CTL, false, .run = drain, .entry = ZPS_METHOD_CHANGES},
    {"undrain", ZPS_CONN_CTL, false, .run = undrain, .entry = ZPS_METHOD_CHANGES},
    {"rebalance", ZPS_CONN_CTL, false, .run = rebalance, .entry = ZPS_METHOD_CHANGES},
    {"kick", ZPS_CONN_CTL, false, .run = kick, .entry = ZPS_METHOD_CHANGES},
    {0},
};

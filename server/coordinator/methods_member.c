/* What servers call, and what all members tell. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "server/coordinator/methods.h"

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
  return zps_coordinator_answer(request, message, error);
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
  return err ? err : zps_coordinator_answer(request, zps_control_drained_write(&jobs), error);
}

/* A process whose progress thread is stuck cannot do its part, though it says that it lives. */
static zps_err_t heartbeat(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request,
                           struct zps_error *error) {
  (void)request, (void)error;
  const struct zps_beat beat = zps_control_beat_read(params);
  zps_clock_offset_take(&conn->clock, &beat, zps_clock_ns(), zps_clock_utc_us());
  if (beat.stuck_ms <= conn->coordinator->config.dead_ms) return ZPS_OK;
  char reason[80];
  snprintf(reason, sizeof reason, "its progress thread has not run for %.1f s", (double)beat.stuck_ms / 1000);
  zps_coordinator_enter(conn->coordinator);
  zps_coordinator_expel(conn, reason);
  zps_coordinator_leave(conn->coordinator);
  return ZPS_OK;
}

const struct zps_method zps_methods_member[] = {
    {"server.register", ZPS_CONN_SERVER, false, server_register, ZPS_METHOD_REGISTERS},
    {"server.drain", ZPS_CONN_SERVER, false, server_drain, ZPS_METHOD_NO_ENTRY},
    {"away", ZPS_CONN_SERVER | ZPS_CONN_WORKER, true, away, ZPS_METHOD_NO_ENTRY},
    {"heartbeat", ZPS_CONN_SERVER | ZPS_CONN_WORKER, true, heartbeat, ZPS_METHOD_BEATS},
    {0},
};

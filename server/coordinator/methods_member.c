/* What servers call, and what all members tell. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "server/coordinator/methods.h"

static zps_err_t server_register(const struct zps_method_msg *msg) {
  const struct zps_coordinator *coordinator = msg->conn->coordinator;
  struct zps_server_spec spec;
  struct zps_net_info fabric;
  zps_err_t err = zps_control_server_read(msg->params, &spec, &fabric, msg->error);
  if (err) return err;
  err = zps_coordinator_may_serve(msg->conn, spec.name, msg->error);
  if (!err) err = zps_coordinator_may_name(msg->conn, &fabric, msg->error);
  if (!err)
    err = zps_members_server_register(coordinator->members, msg->client, &spec,
                                      spec.incarnation == coordinator->incarnation, msg->error);
  zps_server_spec_fini(&spec);
  if (err) return err;
  zps_coordinator_let_in(msg->conn);
  struct zps_server_answer result = {
      .server = msg->client->server->index,
      .epoch = zps_members_epoch(coordinator->members),
      .heartbeat = {.heartbeat_ms = coordinator->config.heartbeat_ms, .dead_ms = coordinator->config.dead_ms},
      .incarnation = coordinator->incarnation,
      .jobs = calloc(zps_members_jobs(coordinator->members) + 1, sizeof *result.jobs)};
  for (const struct zps_member_job *job = zps_members_job_first(coordinator->members); result.jobs && job;
       job = job->next)
    if (zps_member_job_has(job, msg->client->server)) result.jobs[result.n_jobs++] = job->job_id;
  zps_json *message = result.jobs ? zps_control_server_answer_write(&result) : NULL;
  zps_server_answer_fini(&result);
  return zps_coordinator_answer(msg, message);
}

/* The connection is about to end, and its process lives. */
static zps_err_t away(const struct zps_method_msg *msg) {
  msg->conn->returns = true;
  return ZPS_OK;
}

static zps_err_t server_drain(const struct zps_method_msg *msg) {
  unsigned jobs;
  const zps_err_t err = zps_members_server_drain(msg->members, msg->client, &jobs, msg->error);
  return err ? err : zps_coordinator_answer(msg, zps_control_drained_write(&jobs));
}

/* A process whose progress thread is stuck cannot do its part, though it says that it lives. */
static zps_err_t heartbeat(const struct zps_method_msg *msg) {
  const struct zps_beat beat = zps_control_beat_read(msg->params);
  zps_clock_offset_take(&msg->conn->clock, &beat, zps_clock_ns(), zps_clock_utc_us());
  if (beat.stuck_ms <= msg->conn->coordinator->config.dead_ms) return ZPS_OK;
  char reason[80];
  snprintf(reason, sizeof reason, "its progress thread has not run for %.1f s", (double)beat.stuck_ms / 1000);
  zps_coordinator_enter(msg->conn->coordinator);
  zps_coordinator_expel(msg->conn, reason);
  zps_coordinator_leave(msg->conn->coordinator);
  return ZPS_OK;
}

const struct zps_method zps_methods_member[] = {
    {"server.register", ZPS_CONN_SERVER, false, .run = server_register, .entry = ZPS_METHOD_REGISTERS},
    {"server.drain", ZPS_CONN_SERVER, false, .run = server_drain},
    {"away", ZPS_CONN_SERVER | ZPS_CONN_WORKER, true, .run = away},
    {"heartbeat", ZPS_CONN_SERVER | ZPS_CONN_WORKER, true, .run = heartbeat, .entry = ZPS_METHOD_BEATS},
    {0},
};

#include "server/daemon/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/control/rpc.h"
#include "common/control/silence.h"
#include "proto/control_server.h"
#include "server/daemon/agent_impl.h"

#define ZPS_LOG_COMPONENT "agent"
#include "common/base/log.h"

#define CONNECT_TIMEOUT_MS 5000u
#define CALL_TIMEOUT_MS 10000u
#define RETRY_MIN_MS 100u
#define RETRY_MAX_MS 5000u

struct known_job {
  uint64_t job_id;
  struct known_job *next;
};

struct zps_agent {
  uv_loop_t *loop;
  char *coordinator, *name, *host;
  struct zps_shard *shard;
  void *ctx;
  void (*on_change)(void *ctx, bool registered, const char *text);
  struct zps_rpc_conn *conn; /* connecting or connected */
  bool connecting, registered, draining, closing;
  struct zps_silence silence; /* of the coordinator */
  unsigned retry_ms;
  uv_timer_t timer; /* retry, or heartbeat */
  bool timer_open;
  struct known_job *jobs; /* opened over this registration and not closed */
};

static void on_timer(uv_timer_t *timer);

static void free_when_done(struct zps_agent *agent) {
  if (!agent->closing || agent->conn || agent->timer_open) return;
  while (agent->jobs) {
    struct known_job *job = agent->jobs;
    agent->jobs = job->next;
    free(job);
  }
  free(agent->coordinator);
  free(agent->name);
  free(agent->host);
  free(agent);
}

/* ---- Jobs of this registration ---- */

static void job_known(struct zps_agent *agent, struct known_job *job, const zps_json *params) {
  if (zps_control_job_id_read(params, &job->job_id, NULL)) {
    free(job);
    return;
  }
  job->next = agent->jobs;
  agent->jobs = job;
}

static void job_forgotten(struct zps_agent *agent, const zps_json *params) {
  uint64_t job_id;
  if (zps_control_job_id_read(params, &job_id, NULL)) return;
  for (struct known_job **link = &agent->jobs; *link; link = &(*link)->next) {
    if ((*link)->job_id != job_id) continue;
    struct known_job *job = *link;
    *link = job->next;
    free(job);
    return;
  }
}

/* To the coordinator the server was lost with its connection, and with it the jobs it had. */
static void close_orphans(struct zps_agent *agent) {
  while (agent->jobs) {
    struct known_job *job = agent->jobs;
    agent->jobs = job->next;
    zps_log_warn("job 0x%016llx is closed: the connection to the coordinator was lost meanwhile",
                 (unsigned long long)job->job_id);
    if (zps_shard_job_close(agent->shard, job->job_id, "the server lost its connection to the coordinator"))
      zps_log_debug("job 0x%016llx was closed before", (unsigned long long)job->job_id);
    free(job);
  }
}

/* ---- Connection ---- */

static void retry_later(struct zps_agent *agent) {
  if (agent->closing) return;
  uv_timer_start(&agent->timer, on_timer, agent->retry_ms, 0);
  agent->retry_ms = agent->retry_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : agent->retry_ms * 2;
}

static void on_drained(void *ctx, const zps_json *result, const struct zps_error *error) {
  (void)ctx;
  struct zps_error wrong;
  uint32_t jobs = 0;
  if (!error && zps_control_drained_read(result, &jobs, &wrong)) error = &wrong;
  if (!error)
    zps_log_info("draining: the coordinator has %u jobs here", jobs);
  else if (error->code != ZPS_ERR_CLOSED)
    zps_log_warn("drain: %s", error->text);
}

static void send_drain(struct zps_agent *agent) {
  if (zps_rpc_call(agent->conn, "server.drain", zps_json_object(), CALL_TIMEOUT_MS, on_drained, NULL))
    zps_rpc_close(agent->conn, false);
}

static void on_registered(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct zps_agent *agent = ctx;
  struct zps_server_answer answer;
  struct zps_error wrong;
  if (!error && zps_control_server_answer_read(result, &answer, &wrong)) error = &wrong;
  if (error) {
    if (error->code != ZPS_ERR_CLOSED) {
      zps_log_error("registration with the coordinator at %s failed: %s", agent->coordinator, error->text);
      zps_rpc_close(agent->conn, false);
    }
    return;
  }
  if (agent->closing) return;
  agent->registered = true;
  agent->retry_ms = RETRY_MIN_MS;
  zps_silence_begin(&agent->silence, answer.heartbeat.heartbeat_ms, answer.heartbeat.dead_ms, zps_clock_ns());
  zps_rpc_conn_dead_after(agent->conn, answer.heartbeat.dead_ms);
  uv_timer_start(&agent->timer, on_timer, answer.heartbeat.heartbeat_ms, answer.heartbeat.heartbeat_ms);
  char text[200];
  snprintf(text, sizeof text, "registered with the coordinator at %s as server %u", agent->coordinator, answer.server);
  zps_log_info("%s", text);
  agent->on_change(agent->ctx, true, text);
  if (agent->draining) send_drain(agent);
}

static void on_message(void *ctx, struct zps_rpc_conn *conn, const char *method, const zps_json *params,
                       struct zps_rpc_request *request) {
  struct zps_agent *agent = ctx;
  (void)conn;
  if (!request) return; /* heartbeat: the connection notes that it heard something */
  struct zps_error error;
  zps_json *result = NULL;
  const bool opens = strcmp(method, "job.open") == 0;
  struct known_job *job = opens ? calloc(1, sizeof *job) : NULL;
  zps_err_t err = opens && !job ? zps_fail(&error, ZPS_ERR_NOMEM, "no memory for another job")
                                : zps_agent_carry_out(agent->shard, method, params, &result, &error);
  if (opens && !err) {
    job_known(agent, job, params);
  } else {
    free(job);
  }
  if (strcmp(method, "job.close") == 0) job_forgotten(agent, params);
  if (err) {
    zps_log_warn("%s: %s", method, error.text);
    zps_rpc_reply_error(request, err, "%s", error.text);
  } else {
    zps_rpc_reply(request, result);
  }
}

static void on_close(void *ctx, struct zps_rpc_conn *conn, zps_err_t code, const char *reason) {
  struct zps_agent *agent = ctx;
  (void)conn, (void)code;
  agent->conn = NULL;
  if (!agent->closing) {
    char text[300];
    snprintf(text, sizeof text, "connection to the coordinator at %s is lost: %s", agent->coordinator, reason);
    if (agent->registered) zps_log_warn("%s", text);
    agent->on_change(agent->ctx, false, text);
    uv_timer_stop(&agent->timer);
    retry_later(agent);
  }
  agent->registered = false;
  free_when_done(agent);
}

static void on_connected(void *ctx, struct zps_rpc_conn *conn, const struct zps_error *error) {
  struct zps_agent *agent = ctx;
  agent->connecting = false;
  if (error) {
    agent->conn = NULL;
    if (!agent->closing) {
      zps_log_warn_limited("cannot connect to the coordinator, trying on: %s", error->text);
      agent->on_change(agent->ctx, false, error->text);
      retry_later(agent);
    }
    free_when_done(agent);
    return;
  }
  agent->conn = conn;
  if (agent->closing) {
    zps_rpc_close(conn, false);
    return;
  }
  close_orphans(agent); /* before registering: new jobs may come ahead of the answer */
  const struct zps_server_spec spec = {
      .name = agent->name, .host = agent->host, .pid = (uint32_t)getpid(), .fabric = zps_shard_net_info(agent->shard)};
  zps_json *params = zps_control_server_write(&spec);
  if (!params || zps_rpc_call(conn, "server.register", params, CALL_TIMEOUT_MS, on_registered, agent))
    zps_rpc_close(conn, false);
}

static void connect_now(struct zps_agent *agent) {
  static const struct zps_rpc_handler handler_template = {.on_message = on_message, .on_close = on_close};
  struct zps_rpc_handler handler = handler_template;
  struct zps_error error;
  handler.ctx = agent;
  agent->connecting = true;
  if (zps_rpc_connect(agent->loop, agent->coordinator, "server", CONNECT_TIMEOUT_MS, &handler, on_connected,
                      &agent->conn, &error)) {
    agent->connecting = false;
    agent->conn = NULL;
    zps_log_warn_limited("cannot connect to the coordinator, trying on: %s", error.text);
    retry_later(agent);
  }
}

static void beat(struct zps_agent *agent) {
  const uint64_t now_ns = zps_clock_ns();
  zps_silence_beat(&agent->silence, now_ns);
  const uint64_t silent_ns = zps_silence_of(&agent->silence, zps_rpc_conn_heard_ns(agent->conn), now_ns);
  if (silent_ns > 0) {
    zps_log_warn("the coordinator was silent for %.1f s", (double)silent_ns / (double)ZPS_NS_PER_S);
    zps_rpc_close(agent->conn, false);
  } else if (zps_rpc_notify(agent->conn, "heartbeat", zps_json_object())) {
    zps_rpc_close(agent->conn, false);
  }
}

static void on_timer(uv_timer_t *timer) {
  struct zps_agent *agent = timer->data;
  if (agent->registered) {
    beat(agent);
  } else if (!agent->conn) {
    connect_now(agent);
  }
}

/* ---- Life ---- */

zps_err_t zps_agent_create(uv_loop_t *loop, const struct zps_agent_config *config, struct zps_agent **agent_p,
                           struct zps_error *error) {
  struct zps_agent *agent = calloc(1, sizeof *agent);
  if (!agent) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the server's agent");
  agent->loop = loop;
  agent->coordinator = strdup(config->coordinator);
  agent->name = strdup(config->name);
  agent->host = strdup(config->host);
  agent->shard = config->shard;
  agent->ctx = config->ctx;
  agent->on_change = config->on_change;
  agent->retry_ms = RETRY_MIN_MS;
  if (!agent->coordinator || !agent->name || !agent->host) {
    agent->closing = true;
    free_when_done(agent);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the server's agent");
  }
  uv_timer_init(loop, &agent->timer);
  agent->timer.data = agent;
  agent->timer_open = true;
  connect_now(agent);
  *agent_p = agent;
  return ZPS_OK;
}

void zps_agent_drain(struct zps_agent *agent) {
  if (agent->draining) return;
  agent->draining = true;
  if (agent->registered) send_drain(agent);
}

static void on_timer_closed(uv_handle_t *handle) {
  struct zps_agent *agent = handle->data;
  agent->timer_open = false;
  free_when_done(agent);
}

void zps_agent_close(struct zps_agent *agent) {
  if (!agent) return;
  agent->closing = true;
  if (agent->conn) zps_rpc_close(agent->conn, true);
  uv_close((uv_handle_t *)&agent->timer, on_timer_closed);
}

#include "server/daemon/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/base/secret.h"
#include "common/control/addresses.h"
#include "common/control/rpc.h"
#include "common/control/silence.h"
#include "proto/control_server.h"
#include "server/daemon/agent_jobs.h"

#define ZPS_LOG_COMPONENT "agent"
#include "common/base/log.h"

#define CONNECT_TIMEOUT_MS 5000u
#define CALL_TIMEOUT_MS 10000u
#define RETRY_MIN_MS 100u
#define RETRY_MAX_MS 1000u

struct zps_agent {
  uv_loop_t *loop;
  struct zps_addresses coordinators;
  char leader[ZPS_ADDRESS_TEXT_MAX]; /* the leader that the last attempt named; empty: none */
  char *name, *host;
  struct zps_tls *tls; /* NULL: none */
  void *ctx;
  void (*on_change)(void *ctx, bool registered, const char *text);
  struct zps_rpc_conn *conn;                             /* connecting or connected */
  bool connecting, asked, registered, draining, closing; /* asked: the registration is on the way */
  struct zps_silence silence;                            /* of the coordinator */
  struct zps_beat_heard heard;
  struct zps_stuck stuck; /* the shard's progress thread */
  unsigned retry_ms;
  uv_timer_t timer; /* retry, or heartbeat */
  bool timer_open;
  uint64_t secret, incarnation; /* by which the coordinator knows this process again; 0: none */
  uint64_t orphan_grace_ns;
  struct zps_rng jitter;
  struct zps_agent_jobs jobs;
};

static void on_timer(uv_timer_t *timer);

static void free_when_done(struct zps_agent *agent) {
  if (!agent->closing || agent->conn || agent->timer_open) return;
  zps_agent_jobs_fini(&agent->jobs);
  free(agent->name);
  free(agent->host);
  free(agent);
}

/* ---- Connection ---- */

/* Not all servers at once. */
static void retry_later(struct zps_agent *agent) {
  if (agent->closing) return;
  const uint64_t least_ms = agent->retry_ms / 2;
  uv_timer_start(&agent->timer, on_timer, least_ms + zps_rng_below(&agent->jitter, agent->retry_ms - least_ms + 1), 0);
  agent->retry_ms = agent->retry_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : agent->retry_ms * 2;
}

static void on_drained(void *ctx, const zps_json *result, const struct zps_error *error) {
  (void)ctx;
  struct zps_error wrong;
  uint32_t jobs = 0;
  if (!error && zps_control_drained_read(result, &jobs, &wrong)) error = &wrong;
  if (!error)
    zps_log_info("draining: the coordinator counts %u jobs on this server", jobs);
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
      zps_log_about(.server = agent->name, .code = error->code);
      zps_log_error("registration with the coordinator at %s failed: %s", zps_addresses_now(&agent->coordinators),
                    error->text);
      zps_rpc_close(agent->conn, false);
    }
    return;
  }
  agent->incarnation = answer.incarnation;
  zps_agent_jobs_registered(&agent->jobs, answer.incarnation, answer.jobs, answer.n_jobs, zps_clock_ns());
  zps_server_answer_fini(&answer);
  if (agent->closing) return;
  agent->registered = true;
  agent->retry_ms = RETRY_MIN_MS;
  zps_silence_begin(&agent->silence, answer.heartbeat.heartbeat_ms, answer.heartbeat.dead_ms, zps_clock_ns());
  zps_rpc_conn_watched(agent->conn);
  if (answer.heartbeat.dead_ms > ZPS_SHARD_PATIENCE_MS) /* to the coordinator the rank may live so long */
    zps_shard_set_patience(agent->jobs.shard, answer.heartbeat.dead_ms);
  uv_timer_start(&agent->timer, on_timer, answer.heartbeat.heartbeat_ms, answer.heartbeat.heartbeat_ms);
  char text[200];
  snprintf(text, sizeof text, "registered with the coordinator at %s as server %u",
           zps_addresses_now(&agent->coordinators), answer.server);
  zps_log_info("%s", text);
  agent->on_change(agent->ctx, true, text);
  if (agent->draining) send_drain(agent);
}

/* A server that has missed a call is not what the coordinator takes it for: it goes, and comes back without its jobs.
 */
static void leave_if_stuck(struct zps_agent *agent) {
  if (!agent->jobs.is_stuck || !agent->conn) return;
  zps_log_error(
      "the progress thread is stuck: this server gives up its jobs, and leaves the coordinator until the thread runs");
  zps_rpc_close(agent->conn, false);
}

static void on_message(void *ctx, struct zps_rpc_conn *conn, const char *method, const zps_json *params,
                       struct zps_rpc_request *request) {
  struct zps_agent *agent = ctx;
  (void)conn;
  if (!request) {
    if (strcmp(method, "heartbeat") == 0) zps_beat_hear(&agent->heard, params, zps_clock_ns());
    return;
  }
  struct zps_error error;
  zps_json *result = NULL;
  char job[ZPS_NAME_MAX + 1];
  zps_agent_call_job(&agent->jobs, method, params, job);
  zps_log_about(.job = job);
  const zps_err_t err = zps_agent_carry_out(&agent->jobs, method, params, &result, &error);
  if (err) {
    zps_log_about(.code = err);
    zps_log_warn("%s: %s", method, error.text);
    zps_rpc_reply_error(request, err, "%s", error.text);
    leave_if_stuck(agent);
  } else {
    zps_rpc_reply(request, result);
  }
}

static void on_close(void *ctx, struct zps_rpc_conn *conn, zps_err_t code, const char *reason) {
  struct zps_agent *agent = ctx;
  (void)conn, (void)code;
  agent->conn = NULL;
  agent->heard = (struct zps_beat_heard){.sent_us = 0};
  zps_agent_jobs_unregistered(&agent->jobs);
  if (!agent->closing) {
    char text[300];
    snprintf(text, sizeof text, "connection to the coordinator at %s is lost: %s",
             zps_addresses_now(&agent->coordinators), reason);
    if (agent->registered) zps_log_warn("%s", text);
    agent->on_change(agent->ctx, false, text);
    uv_timer_stop(&agent->timer);
    retry_later(agent);
  }
  agent->registered = agent->asked = false;
  free_when_done(agent);
}

static void on_moved(void *ctx, const char *leader) {
  struct zps_agent *agent = ctx;
  snprintf(agent->leader, sizeof agent->leader, "%s", leader);
}

/* The next one at once; a while after the last one of a turn. */
static void connect_later(struct zps_agent *agent) {
  if (zps_addresses_next(&agent->coordinators, agent->leader))
    uv_timer_start(&agent->timer, on_timer, 0, 0);
  else
    retry_later(agent);
}

static void on_connected(void *ctx, struct zps_rpc_conn *conn, const struct zps_error *error) {
  struct zps_agent *agent = ctx;
  agent->connecting = false;
  if (error) {
    agent->conn = NULL;
    if (!agent->closing) {
      zps_log_warn_limited("cannot connect to the coordinator, retrying: %s", error->text);
      agent->on_change(agent->ctx, false, error->text);
      connect_later(agent);
    }
    free_when_done(agent);
    return;
  }
  agent->conn = conn;
  zps_addresses_answered(&agent->coordinators);
  if (agent->closing) {
    zps_rpc_close(conn, false);
    return;
  }
  struct zps_server_spec spec = {.name = agent->name,
                                 .host = agent->host,
                                 .pid = (uint32_t)getpid(),
                                 .fabric = zps_shard_net_info(agent->jobs.shard),
                                 .secret = agent->secret,
                                 .incarnation = agent->incarnation,
                                 .jobs = zps_agent_jobs_list(&agent->jobs),
                                 .n_jobs = agent->jobs.n,
                                 .draining = agent->draining};
  zps_json *params = spec.jobs ? zps_control_server_write(&spec) : NULL;
  zps_server_spec_fini(&spec);
  if (!params || zps_rpc_call(conn, "server.register", params, CALL_TIMEOUT_MS, on_registered, agent))
    zps_rpc_close(conn, false);
  else
    agent->asked = true;
}

static void connect_now(struct zps_agent *agent) {
  static const struct zps_rpc_handler handler_template = {
      .on_message = on_message, .on_close = on_close, .on_moved = on_moved};
  struct zps_rpc_handler handler = handler_template;
  struct zps_error error;
  handler.ctx = agent;
  handler.tls = agent->tls;
  agent->connecting = true;
  agent->leader[0] = '\0';
  if (zps_rpc_connect(agent->loop, zps_addresses_now(&agent->coordinators), "server",
                      CONNECT_TIMEOUT_MS / agent->coordinators.n, &handler, on_connected, &agent->conn, &error)) {
    agent->connecting = false;
    agent->conn = NULL;
    zps_log_warn_limited("cannot connect to the coordinator, retrying: %s", error.text);
    connect_later(agent);
  }
}

static uint64_t stuck_ms(struct zps_agent *agent, uint64_t now_ns) {
  uint64_t turns;
  const bool due = zps_shard_due(agent->jobs.shard, now_ns, &turns);
  return zps_stuck_look(&agent->stuck, &agent->silence, turns, due, now_ns) / ZPS_NS_PER_MS;
}

static void beat(struct zps_agent *agent) {
  const uint64_t now_ns = zps_clock_ns();
  zps_silence_beat(&agent->silence, now_ns);
  const uint64_t silent_ns = zps_silence_of(&agent->silence, zps_rpc_conn_heard_ns(agent->conn), now_ns);
  zps_agent_jobs_tick(&agent->jobs, agent->orphan_grace_ns, now_ns);
  if (agent->jobs.is_stuck) {
    leave_if_stuck(agent);
  } else if (silent_ns > 0) {
    zps_log_warn("the coordinator was silent for %.1f s", (double)silent_ns / (double)ZPS_NS_PER_S);
    if (zps_rpc_notify(agent->conn, "away", zps_json_object()) == ZPS_OK) zps_log_debug("connecting anew");
    zps_rpc_close(agent->conn, false);
  } else if (zps_rpc_notify(agent->conn, "heartbeat",
                            zps_beat_next(&agent->heard, stuck_ms(agent, now_ns), zps_clock_ns()))) {
    zps_rpc_close(agent->conn, false);
  }
}

/* The coordinator would give it jobs, and lose it again. */
static bool is_lost_for_stuck(struct zps_agent *agent) {
  if (agent->jobs.is_stuck && !zps_agent_jobs_restart(&agent->jobs)) return true;
  return stuck_ms(agent, zps_clock_ns()) * ZPS_NS_PER_MS > agent->silence.dead_ns;
}

static void on_timer(uv_timer_t *timer) {
  struct zps_agent *agent = timer->data;
  if (agent->registered) {
    beat(agent);
  } else if (!agent->conn && is_lost_for_stuck(agent)) {
    zps_log_warn_limited("the progress thread does not run: this server registers with the coordinator once it runs");
    retry_later(agent);
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
  agent->name = strdup(config->name);
  agent->host = strdup(config->host);
  agent->tls = config->tls;
  agent->jobs.shard = config->shard;
  agent->orphan_grace_ns = config->orphan_grace_ms * ZPS_NS_PER_MS;
  if (zps_secret_make(&agent->secret) != ZPS_OK)
    zps_log_warn("getrandom() fails: the coordinator will not recognise this server after a lost connection");
  agent->jitter = (struct zps_rng){agent->secret ^ zps_clock_ns()};
  agent->ctx = config->ctx;
  agent->on_change = config->on_change;
  agent->retry_ms = RETRY_MIN_MS;
  zps_err_t err = zps_addresses_parse(config->coordinator, &agent->coordinators, error);
  if (!err && (!agent->name || !agent->host)) err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for the server's agent");
  if (err) {
    agent->closing = true;
    free_when_done(agent);
    return err;
  }
  zps_silence_begin(&agent->silence, 0, 0, zps_clock_ns());
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
  if (agent->asked) send_drain(agent);
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

#include "server/coordinator/coordinator.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/secret.h"
#include "common/control/addresses.h"
#include "common/control/own_socket.h"
#include "server/coordinator/coordinator_impl.h"

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

static uint64_t on_random(void *ctx) {
  (void)ctx;
  uint64_t word = 0;
  while (zps_secret_make(&word) != ZPS_OK) { /* worked at start, so it does not fail for good */
  }
  return word;
}

static uint64_t on_utc_ms(void *ctx) {
  (void)ctx;
  return zps_clock_utc_us() / 1000;
}

/* ---- Connections ---- */

static void free_when_done(struct zps_coordinator *coordinator) {
  if (!coordinator->closing || coordinator->n_conns || coordinator->n_handles) return;
  zps_members_destroy(coordinator->members);
  zps_coordinator_stats_fini(coordinator);
  zps_coordinator_state_fini(coordinator);
  free(coordinator->subnets);
  free(coordinator);
}

static enum zps_conn_role role_parse(const char *role) {
  if (strcmp(role, "server") == 0) return ZPS_CONN_SERVER;
  return strcmp(role, "worker") == 0 ? ZPS_CONN_WORKER : ZPS_CONN_CTL;
}

static zps_err_t may_open(void *ctx, struct zps_rpc_conn *rpc, struct zps_error *error) {
  return zps_coordinator_admit(ctx, rpc, role_parse(zps_rpc_conn_role(rpc)), error);
}

static void on_open(void *ctx, struct zps_rpc_conn *rpc) {
  struct zps_coordinator *coordinator = ctx;
  const enum zps_conn_role role = role_parse(zps_rpc_conn_role(rpc));
  struct zps_coordinator_conn *conn = calloc(1, sizeof *conn);
  if (conn) *conn = (struct zps_coordinator_conn){.coordinator = coordinator, .rpc = rpc, .role = role};
  if (conn) conn->client.origin = conn->client.tenant = zps_rpc_conn_owner(rpc);
  if (!conn || !zps_coordinator_take_slot(conn)) {
    free(conn);
    zps_log_warn_limited("%s: refused: no memory for a connection", zps_rpc_conn_peer(rpc));
    zps_rpc_close(rpc, false);
    return;
  }
  zps_outbox_init(&conn->outbox, ZPS_OUTBOX_JOB_MAX, conn, zps_coordinator_send, zps_coordinator_dropped);
  conn->next = coordinator->conns;
  if (conn->next) conn->next->prev = conn;
  coordinator->conns = conn;
  coordinator->n_conns++;
  zps_rpc_conn_set_ctx(rpc, conn);
  zps_rpc_conn_set_line_max(rpc, zps_coordinator_first_lines(role));
  zps_rpc_conn_dead_after(rpc, coordinator->config.dead_ms);
  zps_log_debug("%s: connected: %s, version %s", zps_rpc_conn_peer(rpc), zps_rpc_conn_role(rpc),
                zps_rpc_conn_version(rpc));
}

static void on_close(void *ctx, struct zps_rpc_conn *rpc, zps_err_t code, const char *reason) {
  (void)ctx;
  struct zps_coordinator_conn *conn = zps_rpc_conn_ctx(rpc);
  if (!conn) return; /* refused in on_open() */
  struct zps_coordinator *coordinator = conn->coordinator;
  conn->rpc = NULL;
  const bool is_kept = coordinator->closing && coordinator->cluster; /* the next coordinator reads it from the state */
  const uint64_t grace_ns = coordinator->closing ? 0 : zps_coordinator_grace_ms(conn, code) * ZPS_NS_PER_MS;
  zps_coordinator_enter(coordinator);
  if (is_kept || grace_ns > 0)
    zps_members_client_away(coordinator->members, &conn->client, is_kept ? UINT64_MAX : zps_clock_ns() + grace_ns,
                            reason);
  else
    zps_members_client_lost(coordinator->members, &conn->client, reason);
  zps_coordinator_leave(coordinator);
  if (conn->next) conn->next->prev = conn->prev;
  *(conn->prev ? &conn->prev->next : &coordinator->conns) = conn->next;
  coordinator->n_conns--;
  zps_slots_leave(&conn->slot);
  zps_outbox_clear(&conn->outbox);
  free(conn);
  free_when_done(coordinator);
}

static void conn_beat(struct zps_coordinator *coordinator, struct zps_coordinator_conn *conn, uint64_t now_ns) {
  const uint64_t heard_ns = zps_rpc_conn_heard_ns(conn->rpc);
  const uint64_t since_ns = heard_ns > conn->watched_ns ? heard_ns : conn->watched_ns;
  zps_log_about(.peer = zps_rpc_conn_peer(conn->rpc));
  const uint64_t silent_ns = conn->watched_ns ? zps_silence_of(&coordinator->silence, since_ns, now_ns) : 0;
  if (silent_ns > 0) {
    char reason[80];
    snprintf(reason, sizeof reason, "nothing heard for %.1f s", (double)silent_ns / (double)ZPS_NS_PER_S);
    zps_coordinator_expel(conn, reason);
  } else if (zps_coordinator_is_idle(conn, now_ns)) {
    zps_log_warn_limited("%s: closed: it has done nothing since it connected", zps_rpc_conn_peer(conn->rpc));
    zps_rpc_close(conn->rpc, false);
  } else if (conn->role == ZPS_CONN_CTL) {
    return; /* it does not listen for heartbeats */
  } else if (zps_rpc_notify(conn->rpc, "heartbeat",
                            zps_control_beat_write(&(struct zps_beat){.sent_us = zps_clock_ns() / ZPS_NS_PER_US}))) {
    zps_rpc_close(conn->rpc, false);
  }
}

static void on_heartbeat(uv_timer_t *timer) {
  struct zps_coordinator *coordinator = timer->data;
  const uint64_t now_ns = zps_clock_ns();
  zps_silence_beat(&coordinator->silence, now_ns);
  zps_coordinator_check_descriptors();
  zps_coordinator_enter(coordinator);
  for (struct zps_coordinator_conn *conn = coordinator->conns; conn; conn = conn->next) {
    conn_beat(coordinator, conn, now_ns);
    zps_coordinator_flush(conn);
  }
  zps_coordinator_leave(coordinator);
}

/* ---- Life ---- */

static void close_listeners(struct zps_coordinator *coordinator) {
  zps_rpc_listener_close(coordinator->listener);
  zps_rpc_listener_close(coordinator->socket);
  zps_rpc_listener_close(coordinator->own);
}

static zps_err_t listen_on(struct zps_coordinator *coordinator, uv_loop_t *loop, struct zps_error *error) {
  const struct zps_coordinator_config *config = &coordinator->config;
  const struct zps_rpc_handler handler = {.ctx = coordinator,
                                          .tls = config->tls,
                                          .may_open = may_open,
                                          .on_open = on_open,
                                          .on_message = zps_coordinator_message,
                                          .on_close = on_close};
  zps_err_t err = zps_rpc_listen(loop, config->listen, "coordinator", &handler, &coordinator->listener, error);
  char own[ZPS_OWN_SOCKET_MAX];
  if (!err && config->own_socket)
    err = zps_own_socket_make(zps_rpc_listener_address(coordinator->listener), own, error);
  if (!err && config->own_socket) err = zps_rpc_listen(loop, own, "coordinator", &handler, &coordinator->own, error);
  if (!err && config->socket) {
    char path[ZPS_ADDRESS_TEXT_MAX]; /* options.c refuses longer ones */
    snprintf(path, sizeof path, "unix:%s", config->socket);
    const struct zps_rpc_access access = {.mode = config->socket_mode, .group = config->socket_group};
    err = zps_rpc_listen_for(loop, path, &access, "coordinator", &handler, &coordinator->socket, error);
  }
  if (err) close_listeners(coordinator);
  return err;
}

static zps_err_t start_to_follow(struct zps_coordinator *coordinator, uv_loop_t *loop,
                                 const struct zps_coordinator_config *config, struct zps_error *error) {
  struct zps_coordinator_etcd etcd = config->etcd;
  if (!etcd.access.members) return ZPS_OK;
  const char *const bound = zps_rpc_listener_address(coordinator->listener);
  char named[300];
  if (!etcd.advertise && (strncmp(bound, "0.0.0.0:", 8) == 0 || strncmp(bound, "[::]:", 5) == 0)) {
    snprintf(named, sizeof named, "%s%s", etcd.host, strrchr(bound, ':'));
    etcd.advertise = named;
  } else if (!etcd.advertise) {
    etcd.advertise = bound;
  }
  return zps_coordinator_follow(coordinator, loop, &etcd, error);
}

static void take_keys(struct zps_coordinator *coordinator, const struct zps_coordinator_config *config) {
  coordinator->token_keys = config->token_keys ? *config->token_keys : (struct zps_token_keys){.n = 0};
  coordinator->config.token_keys = NULL; /* borrowed */
}

zps_err_t zps_coordinator_create(uv_loop_t *loop, const struct zps_coordinator_config *config,
                                 struct zps_coordinator **coordinator_p, struct zps_error *error) {
  uint64_t incarnation;
  if (zps_secret_make(&incarnation) != ZPS_OK)
    return zps_fail_errno(error, ZPS_ERR_UNSUPPORTED, errno,
                          "getrandom() does not work, which job ids and seeds come from");
  struct zps_coordinator *coordinator = calloc(1, sizeof *coordinator);
  if (!coordinator) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the coordinator");
  coordinator->config = *config;
  take_keys(coordinator, config);
  coordinator->subnets = config->subnets ? strdup(config->subnets) : NULL;
  coordinator->config.subnets = NULL;
  coordinator->incarnation = incarnation;
  const struct zps_members_config members = {.min_servers = config->min_servers,
                                             .replays = config->server_loss_replays,
                                             .places = config->server_places,
                                             .max_jobs = ZPS_JOBS_MAX,
                                             .max_waiting = config->max_waiting,
                                             .checked = config->checked,
                                             .max_tensors = config->max_tensors ? config->max_tensors : ZPS_TENSORS_MAX,
                                             .leave_grace_ms = config->leave_grace_ms,
                                             .ctx = coordinator,
                                             .act = zps_coordinator_act,
                                             .random = on_random,
                                             .utc_ms = on_utc_ms,
                                             .note = zps_coordinator_note};
  zps_err_t err = config->subnets && !coordinator->subnets ? ZPS_ERR_NOMEM : ZPS_OK;
  if (!err) err = zps_members_create(&members, &coordinator->members);
  if (!err) err = zps_members_set_weights(coordinator->members, config->weights);
  if (err) {
    zps_members_destroy(coordinator->members);
    zps_fail(error, err, "no memory for the coordinator");
    goto err_free;
  }
  err = zps_coordinator_state_open(coordinator, config, error);
  if (!err) err = listen_on(coordinator, loop, error);
  if (err) goto err_members;
  err = start_to_follow(coordinator, loop, config, error);
  if (err) goto err_listeners;
  coordinator->started_ns = zps_clock_ns();
  zps_silence_begin(&coordinator->silence, config->heartbeat_ms, config->dead_ms, coordinator->started_ns);
  uv_timer_init(loop, &coordinator->heartbeat);
  uv_timer_init(loop, &coordinator->deadline);
  uv_timer_init(loop, &coordinator->stats.timer);
  zps_coordinator_state_start(coordinator, loop);
  coordinator->n_handles = 5;
  coordinator->heartbeat.data = coordinator->deadline.data = coordinator->stats.timer.data = coordinator;
  uv_timer_start(&coordinator->heartbeat, on_heartbeat, config->heartbeat_ms, config->heartbeat_ms);
  /* Strings were borrowed. */
  coordinator->config.listen = coordinator->config.socket = NULL;
  coordinator->config.state_dir = coordinator->config.cluster = coordinator->config.weights = NULL;
  coordinator->config.etcd = (struct zps_coordinator_etcd){.prefix = NULL};
  *coordinator_p = coordinator;
  return ZPS_OK;

err_listeners:
  close_listeners(coordinator);
err_members:
  coordinator->closing = true; /* what is given up now stays noted */
  zps_members_destroy(coordinator->members);
  zps_coordinator_state_fini(coordinator);
err_free:
  free(coordinator->subnets);
  free(coordinator);
  return err;
}

static void on_handle_closed(uv_handle_t *handle) {
  struct zps_coordinator *coordinator = handle->data;
  coordinator->n_handles--;
  free_when_done(coordinator);
}

void zps_coordinator_close(struct zps_coordinator *coordinator) {
  if (!coordinator) return;
  zps_coordinator_state_save(coordinator);
  zps_coordinator_follow_stop(coordinator);
  coordinator->closing = true; /* the clients that go with it are not lost to the next one */
  close_listeners(coordinator);
  uv_close((uv_handle_t *)&coordinator->heartbeat, on_handle_closed);
  uv_close((uv_handle_t *)&coordinator->deadline, on_handle_closed);
  uv_close((uv_handle_t *)&coordinator->stats.timer, on_handle_closed);
  uv_close((uv_handle_t *)&coordinator->before, on_handle_closed);
  uv_close((uv_handle_t *)&coordinator->after, on_handle_closed);
}

const char *zps_coordinator_address(const struct zps_coordinator *coordinator) {
  return zps_rpc_listener_address(coordinator->listener);
}

void zps_coordinator_reload(struct zps_coordinator *coordinator, const struct zps_coordinator_config *config) {
  take_keys(coordinator, config);
  zps_coordinator_enter(coordinator);
  zps_members_set_replays(coordinator->members, config->server_loss_replays);
  zps_members_set_places(coordinator->members, config->server_places);
  zps_members_set_min_servers(coordinator->members, config->min_servers);
  if (zps_members_set_weights(coordinator->members, config->weights))
    zps_log_warn("no memory for job.weights: jobs keep their previous weights");
  zps_coordinator_leave(coordinator);
}

void zps_coordinator_drain(struct zps_coordinator *coordinator) {
  coordinator->draining = true;
  zps_coordinator_enter(coordinator);
  zps_members_drain(coordinator->members);
  zps_coordinator_leave(coordinator);
}

unsigned zps_coordinator_jobs(const struct zps_coordinator *coordinator) {
  return zps_members_jobs(coordinator->members);
}

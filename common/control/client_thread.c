/* The client's thread: one loop, one connection, and the orders of other threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "client"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/control/client_internal.h"

#define REFUSAL_TOLD_MS 60000u

void zps_client_set_phase(struct zps_client *client, enum zps_client_phase phase, zps_err_t code, const char *text) {
  pthread_mutex_lock(&client->lock);
  client->phase = phase;
  zps_fail(&client->why, code, "%s", text);
  pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->lock);
}

/* ---- Orders ---- */

void zps_client_order_free(struct zps_client_order *order) {
  zps_json_unref(order->params);
  zps_json_unref(order->result);
  free(order->method);
  free(order);
}

/* On the thread. `result` is borrowed. */
static void complete(struct zps_client_order *order, const zps_json *result, const struct zps_error *error) {
  struct zps_client *client = order->client;
  zps_json *copy = error ? NULL : zps_json_copy(result); /* shares nothing with the value that this thread goes on
                                                          * using */
  zps_json_unref(order->params);
  order->params = NULL;
  pthread_mutex_lock(&client->lock);
  const bool abandoned = !order->is_call || order->abandoned;
  order->result = copy;
  if (error)
    order->error = *error;
  else
    zps_fail(&order->error, copy ? ZPS_OK : ZPS_ERR_NOMEM, "%s: %s", order->method,
             copy ? "answered" : "no memory for the answer");
  order->done = true;
  pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->lock);
  if (abandoned) zps_client_order_free(order);
}

static void on_result(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct zps_client_order *order = ctx;
  struct zps_client *client = order->client;
  if (error && zps_client_resumes(client) && client->conn && !zps_rpc_conn_is_open(client->conn)) {
    zps_client_order_resend(client, order);
    return;
  }
  complete(order, result, error);
  if (client->has_held && client->conn && zps_rpc_conn_is_open(client->conn)) zps_client_run_orders(client);
}

static void fail_order(struct zps_client *client, struct zps_client_order *order, zps_err_t code) {
  struct zps_error error;
  zps_fail(&error, code, "%s: cannot send '%s': %s", client->address, order->method,
           code == ZPS_ERR_CLOSED ? client->why.text : zps_err_str(code));
  complete(order, NULL, &error);
}

/* Calls that were under way come first, in their order. */
static struct zps_client_order *take_orders(struct zps_client *client) {
  struct zps_client_order *first = client->again;
  pthread_mutex_lock(&client->lock);
  *client->again_tail = client->orders;
  if (!first) first = client->orders;
  client->orders = NULL;
  client->orders_tail = &client->orders;
  client->is_sending = true;
  pthread_mutex_unlock(&client->lock);
  client->has_held = false;
  client->again = NULL;
  client->again_tail = &client->again;
  return first;
}

/* Whether a call waits here: the connection has as many as it may, or is closed, which on_close is about to say. */
static bool must_wait(const struct zps_client *client, const struct zps_client_order *order) {
  if (!order->is_call || !client->conn || client->stopping || client->phase != ZPS_CLIENT_CONNECTED) return false;
  if (!zps_rpc_conn_is_open(client->conn)) return true;
  const unsigned n_pending = zps_rpc_conn_pending(client->conn);
  return n_pending >= ZPS_RPC_PENDING_MAX || (n_pending > 0 && zps_rpc_conn_unsent(client->conn) >= ZPS_RPC_LINE_MAX);
}

/* Puts these back, ahead of what other threads have ordered meanwhile. */
static void hold_orders(struct zps_client *client, struct zps_client_order *first, struct zps_client_order **tail) {
  if (!first) return;
  client->has_held = true;
  pthread_mutex_lock(&client->lock);
  *tail = client->orders;
  if (!client->orders) client->orders_tail = tail;
  client->orders = first;
  pthread_mutex_unlock(&client->lock);
}

/* It waits no more: there is room for another one. */
static void order_leaves(struct zps_client *client) {
  pthread_mutex_lock(&client->lock);
  if (client->n_orders-- == ZPS_CLIENT_QUEUE_MAX) pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->lock);
}

/* Whether its caller has gone, or goes within a millisecond. */
static bool is_late(struct zps_client *client, const struct zps_client_order *order, uint64_t *left_ms_p) {
  const uint64_t now_ns = zps_clock_ns();
  pthread_mutex_lock(&client->lock);
  const bool late = order->abandoned || (order->is_call && order->until_ns < now_ns + ZPS_NS_PER_MS);
  pthread_mutex_unlock(&client->lock);
  const uint64_t left_ms = late ? 0 : (order->until_ns - now_ns) / ZPS_NS_PER_MS;
  *left_ms_p = order->timeout_ms < left_ms ? order->timeout_ms : left_ms;
  return late;
}

/* While it waited for a connection the caller has waited, too: the peer, which knows more than that nothing came, is to
 * answer before the caller's time is up. */
static void shorten(struct zps_client_order *order) {
  const uint64_t waited_ms = (zps_clock_ns() - order->begun_ns) / ZPS_NS_PER_MS,
                 more_ms = waited_ms - order->shorter_ms;
  uint64_t timeout_ms;
  if (more_ms == 0 || !order->params || !zps_json_get(order->params, "timeout_ms")) return;
  if (zps_json_get_u64(order->params, "timeout_ms", 0, INT64_MAX, &timeout_ms, NULL)) return;
  order->params = zps_json_set_u64(order->params, "timeout_ms", timeout_ms > more_ms ? timeout_ms - more_ms : 1);
  order->shorter_ms = waited_ms;
}

static void run_order(struct zps_client *client, struct zps_client_order *order) {
  const bool connected = client->conn && !client->stopping && client->phase == ZPS_CLIENT_CONNECTED;
  zps_err_t code = ZPS_ERR_CLOSED;
  uint64_t left_ms;
  if (connected && order->is_call) shorten(order);
  if (is_late(client, order, &left_ms))
    code = ZPS_ERR_TIMEOUT;
  else if (connected && !order->params)
    code = ZPS_ERR_NOMEM;
  else if (connected && order->is_call)
    code = zps_rpc_call(client->conn, order->method, zps_json_ref(order->params), left_ms, on_result, order);
  else if (connected)
    code = zps_rpc_notify(client->conn, order->method, zps_json_ref(order->params));
  if (code == ZPS_ERR_NOMEM && !order->is_call) zps_client_renew(client); /* nobody waits, or says it again */
  if (code != ZPS_OK)
    fail_order(client, order, code);
  else if (!order->is_call)
    zps_client_order_free(order);
}

void zps_client_run_orders(struct zps_client *client) {
  if (client->phase == ZPS_CLIENT_AWAY && !client->stopping) return; /* they wait */
  struct zps_client_order *order = take_orders(client);
  struct zps_client_order *held = NULL, **held_tail = &held;
  while (order) {
    struct zps_client_order *next = order->next;
    order->next = NULL;
    if (must_wait(client, order)) {
      *held_tail = order;
      held_tail = &order->next;
    } else {
      order_leaves(client);
      run_order(client, order);
    }
    order = next;
  }
  hold_orders(client, held, held_tail);
  pthread_mutex_lock(&client->lock);
  client->is_sending = false;
  pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->lock);
}

/* ---- The thread's events ---- */

void zps_client_lose(struct zps_client *client, zps_err_t code, const char *reason) {
  zps_client_set_phase(client, ZPS_CLIENT_LOST, code == ZPS_OK ? ZPS_ERR_CLOSED : code, reason);
  uv_timer_stop(&client->heartbeat);
  zps_client_run_orders(client); /* they fail */
  if (!client->stopping && client->handler.on_lost) client->handler.on_lost(client->handler.ctx, reason);
}

static void on_message(void *ctx, struct zps_rpc_conn *conn, const char *method, const zps_json *params,
                       struct zps_rpc_request *request) {
  struct zps_client *client = ctx;
  (void)conn;
  if (request) {
    zps_rpc_reply_error(request, ZPS_ERR_UNSUPPORTED, "no method '%.100s': the %s answers no calls", method,
                        client->role);
  } else if (strcmp(method, "heartbeat") == 0) {
    if (!client->stopping && client->handler.on_heartbeat) client->handler.on_heartbeat(client->handler.ctx, params);
  } else if (!client->stopping && client->handler.on_notify) {
    client->handler.on_notify(client->handler.ctx, method, params);
  }
}

static void on_close(void *ctx, struct zps_rpc_conn *conn, zps_err_t code, const char *reason) {
  struct zps_client *client = ctx;
  (void)conn;
  client->conn = NULL;
  const bool used = client->phase == ZPS_CLIENT_CONNECTED || client->phase == ZPS_CLIENT_AWAY;
  if (used && zps_client_resumes(client))
    zps_client_go_away(client, reason);
  else if (used)
    zps_client_lose(client, code, reason);
}

static void on_retry(uv_timer_t *timer) {
  zps_client_try_connect(timer->data);
}

static void on_moved(void *ctx, const char *leader) {
  struct zps_client *client = ctx;
  client->has_answered = true;
  snprintf(client->leader, sizeof client->leader, "%s", leader);
}

/* Nobody has answered in time, or each has refused; `error` is of the last one. A connection that ended during its
 * hello is none that was open, and closed. */
static void fail_to_connect(struct zps_client *client, const struct zps_error *error) {
  const bool ended = error->code == ZPS_ERR_CLOSED;
  char text[sizeof error->text];
  if (client->addresses.n > 1)
    snprintf(text, sizeof text, "no coordinator of %.150s can be reached, or leads: %.300s", client->address,
             error->text);
  else if (ended)
    snprintf(text, sizeof text, "the connection to %.150s ended during its hello: %.250s", client->address,
             error->text);
  else
    snprintf(text, sizeof text, "%s", error->text);
  zps_client_set_phase(client, ZPS_CLIENT_LOST, ended ? ZPS_ERR_CONNECT : error->code, text);
}

/* Whether no attempt has found anybody, and no other host may be the coordinator's. */
static bool is_refused(const struct zps_client *client, const struct zps_error *error) {
  return error->code == ZPS_ERR_CONNECT && !client->has_answered && zps_addresses_are_loopback(&client->addresses);
}

static uint64_t until_ns(const struct zps_client *client, const struct zps_error *error) {
  const uint64_t refused_ms = client->handler.refused_ms;
  if (refused_ms == 0 || !is_refused(client, error)) return client->deadline_ns;
  const uint64_t refused_ns = client->begun_ns + refused_ms * ZPS_NS_PER_MS;
  return refused_ns < client->deadline_ns ? refused_ns : client->deadline_ns;
}

static void tell_waiting(struct zps_client *client, const struct zps_error *error) {
  if (client->waiting_told || !client->handler.on_waiting || client->stopping) return;
  if (zps_clock_ns() < client->begun_ns + ZPS_CLIENT_WAITING_MS * ZPS_NS_PER_MS) return;
  client->waiting_told = true;
  client->handler.on_waiting(client->handler.ctx, error->text);
}

/* Whether the coordinator is only not there yet. Else it has refused this process, such as for its version. */
static bool may_pass(const struct zps_error *error) {
  return error->code == ZPS_ERR_CONNECT || error->code == ZPS_ERR_CLOSED || error->code == ZPS_ERR_TIMEOUT ||
         error->code == ZPS_ERR_AGAIN;
}

static void connect_again(struct zps_client *client, const struct zps_error *error) {
  if (error->code != ZPS_ERR_CONNECT) client->has_answered = true;
  const bool more = zps_addresses_next(&client->addresses, client->leader);
  const uint64_t wait_ms = more ? 0 : ZPS_CLIENT_RETRY_MS;
  if (client->stopping || !(may_pass(error) || more) ||
      zps_clock_ns() + wait_ms * ZPS_NS_PER_MS >= until_ns(client, error)) {
    fail_to_connect(client, error);
    return;
  }
  tell_waiting(client, error);
  uv_timer_start(&client->retry, on_retry, wait_ms, 0);
}

static void come_back_later(struct zps_client *client, const struct zps_error *error) {
  if (client->stopping) return;
  if (!may_pass(error) && zps_clock_ns() >= client->refusal_told_ns) {
    zps_log_warn("cannot connect again, retrying: %s", error->text);
    client->refusal_told_ns = zps_clock_ns() + REFUSAL_TOLD_MS * ZPS_NS_PER_MS;
  }
  if (zps_addresses_next(&client->addresses, client->leader) && zps_clock_ns() < client->deadline_ns)
    uv_timer_start(&client->retry, on_retry, 0, 0);
  else
    zps_client_retry(client);
}

static void on_connected(void *ctx, struct zps_rpc_conn *conn, const struct zps_error *error) {
  struct zps_client *client = ctx;
  if (!error) {
    client->conn = conn;
    zps_addresses_answered(&client->addresses);
    if (client->phase == ZPS_CLIENT_AWAY)
      zps_client_come_back(client);
    else
      zps_client_set_phase(client, ZPS_CLIENT_CONNECTED, ZPS_OK, "");
    return;
  }
  client->conn = NULL;
  if (client->phase == ZPS_CLIENT_AWAY)
    come_back_later(client, error);
  else
    connect_again(client, error);
}

/* One that is silent leaves time for the others. */
static uint64_t time_for_one_ms(const struct zps_client *client) {
  const uint64_t now_ns = zps_clock_ns();
  const uint64_t left_ms = client->deadline_ns > now_ns ? (client->deadline_ns - now_ns) / ZPS_NS_PER_MS : 0;
  const unsigned n = zps_addresses_left(&client->addresses);
  return client->addresses.n > 1 && left_ms / n > ZPS_CLIENT_ATTEMPT_MS ? ZPS_CLIENT_ATTEMPT_MS : left_ms / n;
}

void zps_client_try_connect(struct zps_client *client) {
  const struct zps_rpc_handler handler = {
      .ctx = client, .tls = client->handler.tls, .on_message = on_message, .on_close = on_close, .on_moved = on_moved};
  struct zps_error error;
  client->leader[0] = '\0';
  if (zps_rpc_connect(&client->loop, zps_addresses_now(&client->addresses), client->role, time_for_one_ms(client),
                      &handler, on_connected, &client->conn, &error) == ZPS_OK)
    return;
  if (client->phase == ZPS_CLIENT_AWAY)
    zps_client_retry(client);
  else
    zps_client_set_phase(client, ZPS_CLIENT_LOST, error.code, error.text);
}

/* The thread that closes the client waits for this one, but not for ever: then `ctx` may point to freed memory. */
static bool is_stopped(struct zps_client *client) {
  pthread_mutex_lock(&client->lock);
  const bool stopped = client->stop;
  pthread_mutex_unlock(&client->lock);
  return stopped;
}

/* The peer, if it lives, hears that this process does, too. */
static void leave_conn(struct zps_client *client, const char *reason) {
  if (zps_rpc_notify(client->conn, "away", zps_json_object()) == ZPS_OK)
    zps_log_debug("%s: connecting anew: %s", client->address, reason);
  zps_rpc_close(client->conn, false);
}

void zps_client_renew_now(struct zps_client *client) {
  if (!client->conn || client->phase != ZPS_CLIENT_CONNECTED || !zps_client_resumes(client)) return;
  pthread_mutex_lock(&client->lock);
  const bool renews = client->renew;
  client->renew = false;
  pthread_mutex_unlock(&client->lock);
  if (renews) leave_conn(client, "out of memory, it wants to hear again what counts");
}

/* Its process may only have been stopped. */
static void silent(struct zps_client *client, const char *reason) {
  if (zps_client_resumes(client)) {
    leave_conn(client, reason);
    return;
  }
  zps_client_lose(client, ZPS_ERR_CLOSED, reason);
  zps_rpc_close(client->conn, false);
}

static void on_heartbeat(uv_timer_t *timer) {
  struct zps_client *client = timer->data;
  if (!client->conn || client->stopping) return;
  const uint64_t now_ns = zps_clock_ns();
  zps_silence_beat(&client->silence, now_ns);
  const uint64_t silent_ns = zps_silence_of(&client->silence, zps_rpc_conn_heard_ns(client->conn), now_ns);
  if (silent_ns > 0) {
    char reason[400];
    snprintf(reason, sizeof reason, "%.300s was not heard of for %llu ms", client->address,
             (unsigned long long)(silent_ns / ZPS_NS_PER_MS));
    silent(client, reason);
    return;
  }
  zps_json *params = NULL;
  if (!is_stopped(client)) {
    if (client->handler.on_beat) client->handler.on_beat(client->handler.ctx);
    if (client->handler.beat) params = client->handler.beat(client->handler.ctx, &client->silence, now_ns);
  }
  const zps_err_t code = zps_rpc_notify(client->conn, "heartbeat", params ? params : zps_json_object());
  if (code != ZPS_OK) zps_log_debug("%s: no heartbeat sent: %s", client->address, zps_err_str(code));
}

static void set_heartbeat(struct zps_client *client, uint64_t beat_ms, uint64_t dead_ms) {
  client->beat_ms = beat_ms;
  client->beat_dead_ms = dead_ms;
  zps_silence_begin(&client->silence, beat_ms, dead_ms, zps_clock_ns());
  if (client->conn && beat_ms) zps_rpc_conn_watched(client->conn);
  uv_timer_stop(&client->heartbeat);
  if (beat_ms) uv_timer_start(&client->heartbeat, on_heartbeat, beat_ms, beat_ms);
}

void zps_client_close_handles(struct zps_client *client) {
  client->stopping = true;
  if (client->conn) zps_rpc_close(client->conn, true);
  uv_close((uv_handle_t *)&client->retry, NULL);
  uv_close((uv_handle_t *)&client->heartbeat, NULL);
  uv_close((uv_handle_t *)&client->wake, NULL);
}

void zps_client_on_wake(uv_async_t *wake) {
  struct zps_client *client = wake->data;
  pthread_mutex_lock(&client->lock);
  const bool stop = client->stop;
  const uint64_t beat_ms = client->heartbeat_ms, dead_ms = client->dead_ms;
  pthread_mutex_unlock(&client->lock);
  zps_client_run_orders(client);
  zps_client_renew_now(client);
  if (beat_ms != client->beat_ms || dead_ms != client->beat_dead_ms) set_heartbeat(client, beat_ms, dead_ms);
  if (stop) zps_client_close_handles(client);
}

void zps_client_destroy(struct zps_client *client) {
  zps_tls_unref(client->handler.tls);
  pthread_cond_destroy(&client->changed);
  pthread_mutex_destroy(&client->lock);
  free(client);
}

void *zps_client_run(void *arg) {
  struct zps_client *client = arg;
  zps_client_try_connect(client);
  uv_run(&client->loop, UV_RUN_DEFAULT);
  zps_client_set_phase(client, ZPS_CLIENT_STOPPED, ZPS_ERR_CLOSED, "the client is closed");
  zps_client_run_orders(client); /* orders that came in late */
  uv_loop_close(&client->loop);
  pthread_mutex_lock(&client->lock);
  client->finished = true;
  const bool abandoned = client->abandoned;
  pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->lock);
  if (abandoned) zps_client_destroy(client);
  return NULL;
}

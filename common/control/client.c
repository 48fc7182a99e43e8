#include "common/control/client.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "client"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/control/rpc.h"

#define RETRY_MS 100u
#define GRACE_MS 500u /* for the thread to report a deadline that it watches over itself */
#define QUEUE_MAX 4096u

/* What another thread asks the loop to send. A notification has nobody waiting. */
struct order {
  struct order *next;
  char *method;
  zps_json *params;
  bool is_call;
  uint64_t timeout_ms;
  struct zps_client *client;
  bool done, abandoned; /* abandoned: the caller has gone; the loop frees */
  zps_json *result;
  struct zps_error error;
};

enum phase { CONNECTING, CONNECTED, LOST, STOPPED };

struct zps_client {
  /* Guarded by `lock`. */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  enum phase phase;
  struct zps_error why; /* LOST, STOPPED */
  struct order *orders, **orders_tail;
  unsigned n_orders;
  bool stop, finished,
      abandoned; /* finished: the thread will not touch this any more unless abandoned, then it frees */
  uint64_t heartbeat_ms, dead_ms;

  /* The thread's own. */
  pthread_t thread;
  uv_loop_t loop;
  uv_async_t wake;
  uv_timer_t retry, heartbeat;
  bool stopping;
  struct zps_rpc_conn *conn;
  uint64_t deadline_ns, beat_ms, silence_ms;
  struct zps_client_handler handler;
  char address[300], role[32];
};

static void set_phase(struct zps_client *client, enum phase phase, zps_err_t code, const char *text) {
  pthread_mutex_lock(&client->lock);
  client->phase = phase;
  zps_fail(&client->why, code, "%s", text);
  pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->lock);
}

/* Waits for a change; false when the deadline has passed. */
static bool wait_changed(struct zps_client *client, uint64_t deadline_ns) {
  if (deadline_ns == ZPS_NEVER) return pthread_cond_wait(&client->changed, &client->lock) == 0;
  const struct timespec until = {.tv_sec = (time_t)(deadline_ns / ZPS_NS_PER_S),
                                 .tv_nsec = (long)(deadline_ns % ZPS_NS_PER_S)};
  return pthread_cond_timedwait(&client->changed, &client->lock, &until) == 0;
}

static uint64_t deadline_after(uint64_t timeout_ms) {
  const uint64_t now_ns = zps_clock_ns();
  return timeout_ms >= (ZPS_NEVER - now_ns) / ZPS_NS_PER_MS ? ZPS_NEVER : now_ns + timeout_ms * ZPS_NS_PER_MS;
}

/* ---- Orders ---- */

static void free_order(struct order *order) {
  zps_json_unref(order->params);
  zps_json_unref(order->result);
  free(order->method);
  free(order);
}

/* On the thread. `result` is borrowed. */
static void complete(struct order *order, const zps_json *result, const struct zps_error *error) {
  struct zps_client *client = order->client;
  zps_json *copy = error ? NULL : zps_json_copy(result); /* shares nothing with what this thread goes on using */
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
  if (abandoned) free_order(order);
}

static void on_result(void *ctx, const zps_json *result, const struct zps_error *error) {
  complete(ctx, result, error);
}

static void fail_order(struct zps_client *client, struct order *order, zps_err_t code) {
  struct zps_error error;
  zps_fail(&error, code, "%s: cannot send '%s': %s", client->address, order->method,
           code == ZPS_ERR_CLOSED ? client->why.text : zps_err_str(code));
  complete(order, NULL, &error);
}

static void run_orders(struct zps_client *client) {
  pthread_mutex_lock(&client->lock);
  struct order *order = client->orders;
  client->orders = NULL;
  client->orders_tail = &client->orders;
  client->n_orders = 0;
  pthread_mutex_unlock(&client->lock);
  while (order) {
    struct order *next = order->next;
    zps_json *params = order->params;
    order->params = NULL;
    zps_err_t code = ZPS_ERR_CLOSED;
    if (!client->conn || client->stopping)
      zps_json_unref(params);
    else if (order->is_call)
      code = zps_rpc_call(client->conn, order->method, params, order->timeout_ms, on_result, order);
    else
      code = zps_rpc_notify(client->conn, order->method, params);
    if (code != ZPS_OK)
      fail_order(client, order, code);
    else if (!order->is_call)
      free_order(order);
    order = next;
  }
}

/* ---- The thread's events ---- */

static void try_connect(struct zps_client *client);

static void lose(struct zps_client *client, zps_err_t code, const char *reason) {
  set_phase(client, LOST, code == ZPS_OK ? ZPS_ERR_CLOSED : code, reason);
  uv_timer_stop(&client->heartbeat);
  if (!client->stopping && client->handler.on_lost) client->handler.on_lost(client->handler.ctx, reason);
}

static void on_message(void *ctx, struct zps_rpc_conn *conn, const char *method, const zps_json *params,
                       struct zps_rpc_request *request) {
  struct zps_client *client = ctx;
  (void)conn;
  if (request) {
    zps_rpc_reply_error(request, ZPS_ERR_UNSUPPORTED, "no method '%.100s': the %s answers no calls", method,
                        client->role);
  } else if (!client->stopping && client->handler.on_notify && strcmp(method, "heartbeat") != 0) {
    client->handler.on_notify(client->handler.ctx, method, params);
  }
}

static void on_close(void *ctx, struct zps_rpc_conn *conn, zps_err_t code, const char *reason) {
  struct zps_client *client = ctx;
  (void)conn;
  client->conn = NULL;
  if (client->phase == CONNECTED) lose(client, code, reason);
}

static void on_retry(uv_timer_t *timer) {
  try_connect(timer->data);
}

static void on_connected(void *ctx, struct zps_rpc_conn *conn, const struct zps_error *error) {
  struct zps_client *client = ctx;
  if (!error) {
    client->conn = conn;
    set_phase(client, CONNECTED, ZPS_OK, "");
    return;
  }
  client->conn = NULL;
  const bool again = error->code == ZPS_ERR_CONNECT || error->code == ZPS_ERR_CLOSED;
  if (client->stopping || !again || zps_clock_ns() + RETRY_MS * ZPS_NS_PER_MS >= client->deadline_ns)
    set_phase(client, LOST, error->code, error->text);
  else
    uv_timer_start(&client->retry, on_retry, RETRY_MS, 0);
}

static void try_connect(struct zps_client *client) {
  const struct zps_rpc_handler handler = {.ctx = client, .on_message = on_message, .on_close = on_close};
  struct zps_error error;
  const uint64_t now_ns = zps_clock_ns();
  const uint64_t left_ms = client->deadline_ns > now_ns ? (client->deadline_ns - now_ns) / ZPS_NS_PER_MS : 0;
  if (zps_rpc_connect(&client->loop, client->address, client->role, left_ms, &handler, on_connected, &client->conn,
                      &error) != ZPS_OK)
    set_phase(client, LOST, error.code, error.text);
}

static void on_heartbeat(uv_timer_t *timer) {
  struct zps_client *client = timer->data;
  if (!client->conn || client->stopping) return;
  const uint64_t silent_ms = (zps_clock_ns() - zps_rpc_conn_heard_ns(client->conn)) / ZPS_NS_PER_MS;
  if (client->silence_ms && silent_ms >= client->silence_ms) {
    char reason[400];
    snprintf(reason, sizeof reason, "%.300s was not heard of for %llu ms", client->address,
             (unsigned long long)silent_ms);
    lose(client, ZPS_ERR_CLOSED, reason);
    zps_rpc_close(client->conn, false);
    return;
  }
  const zps_err_t code = zps_rpc_notify(client->conn, "heartbeat", zps_json_object());
  if (code != ZPS_OK) zps_log_debug("%s: no heartbeat sent: %s", client->address, zps_err_str(code));
}

static void close_handles(struct zps_client *client) {
  client->stopping = true;
  if (client->conn) zps_rpc_close(client->conn, true);
  uv_close((uv_handle_t *)&client->retry, NULL);
  uv_close((uv_handle_t *)&client->heartbeat, NULL);
  uv_close((uv_handle_t *)&client->wake, NULL);
}

static void on_wake(uv_async_t *wake) {
  struct zps_client *client = wake->data;
  pthread_mutex_lock(&client->lock);
  const bool stop = client->stop;
  const uint64_t beat_ms = client->heartbeat_ms;
  client->silence_ms = client->dead_ms;
  pthread_mutex_unlock(&client->lock);
  run_orders(client);
  if (beat_ms != client->beat_ms) {
    client->beat_ms = beat_ms;
    uv_timer_stop(&client->heartbeat);
    if (beat_ms) uv_timer_start(&client->heartbeat, on_heartbeat, beat_ms, beat_ms);
  }
  if (stop) close_handles(client);
}

static void destroy(struct zps_client *client) {
  pthread_cond_destroy(&client->changed);
  pthread_mutex_destroy(&client->lock);
  free(client);
}

static void *run(void *arg) {
  struct zps_client *client = arg;
  try_connect(client);
  uv_run(&client->loop, UV_RUN_DEFAULT);
  set_phase(client, STOPPED, ZPS_ERR_CLOSED, "the client is closed");
  run_orders(client); /* what came in late */
  uv_loop_close(&client->loop);
  pthread_mutex_lock(&client->lock);
  client->finished = true;
  const bool abandoned = client->abandoned;
  pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->lock);
  if (abandoned) destroy(client);
  return NULL;
}

/* ---- Any thread ---- */

static zps_err_t init_loop(struct zps_client *client, struct zps_error *error) {
  int status = uv_loop_init(&client->loop);
  if (status < 0) goto err;
  status = uv_async_init(&client->loop, &client->wake, on_wake);
  if (status < 0) goto err_loop;
  uv_timer_init(&client->loop, &client->retry);
  uv_timer_init(&client->loop, &client->heartbeat);
  client->wake.data = client->retry.data = client->heartbeat.data = client;
  return ZPS_OK;

err_loop:
  uv_loop_close(&client->loop);
err:
  return zps_fail(error, ZPS_ERR_NOMEM, "cannot make a loop for %s: %s", client->address, uv_strerror(status));
}

/* With all signals blocked: they are the program's, not the library's, and a closed peer must not raise SIGPIPE. */
static int start_thread(struct zps_client *client) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int status = pthread_create(&client->thread, NULL, run, client);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return status;
}

static zps_err_t create(const char *address, const char *role, uint64_t timeout_ms,
                        const struct zps_client_handler *handler, struct zps_client **client_p,
                        struct zps_error *error) {
  struct zps_client *client = calloc(1, sizeof *client);
  if (!client) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a connection to %s", address);
  if (handler) client->handler = *handler;
  client->orders_tail = &client->orders;
  client->deadline_ns = deadline_after(timeout_ms);
  snprintf(client->address, sizeof client->address, "%s", address);
  snprintf(client->role, sizeof client->role, "%s", role);
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_mutex_init(&client->lock, NULL);
  pthread_cond_init(&client->changed, &attr);
  pthread_condattr_destroy(&attr);
  zps_err_t code = init_loop(client, error);
  if (code != ZPS_OK) goto err_destroy;
  const int status = start_thread(client);
  if (status) {
    code = zps_fail_errno(error, ZPS_ERR_NOMEM, status, "cannot start a thread for %s", address);
    close_handles(client);
    uv_run(&client->loop, UV_RUN_DEFAULT);
    uv_loop_close(&client->loop);
    goto err_destroy;
  }
  *client_p = client;
  return ZPS_OK;

err_destroy:
  destroy(client);
  return code;
}

zps_err_t zps_client_open(const char *address, const char *role, uint64_t timeout_ms,
                          const struct zps_client_handler *handler, struct zps_client **client_p,
                          struct zps_error *error) {
  struct zps_client *client = NULL;
  zps_err_t code = create(address, role, timeout_ms, handler, &client, error);
  if (code != ZPS_OK) return code;
  struct zps_error why = {.code = ZPS_OK};
  const uint64_t until_ns = deadline_after(timeout_ms + GRACE_MS < timeout_ms ? timeout_ms : timeout_ms + GRACE_MS);
  pthread_mutex_lock(&client->lock);
  while (client->phase == CONNECTING && wait_changed(client, until_ns)) continue;
  if (client->phase == CONNECTING)
    zps_fail(&why, ZPS_ERR_TIMEOUT, "cannot connect to %s within %llu ms", address, (unsigned long long)timeout_ms);
  else if (client->phase != CONNECTED)
    why = client->why;
  pthread_mutex_unlock(&client->lock);
  if (why.code != ZPS_OK) {
    zps_client_close(client);
    return zps_fail(error, why.code, "%s", why.text);
  }
  *client_p = client;
  return ZPS_OK;
}

void zps_client_close(struct zps_client *client) {
  if (!client) return;
  const pthread_t thread = client->thread;
  /* A peer that does not read, and a resolver that does not answer, must not keep us: the thread then ends on its own.
   */
  const uint64_t until_ns = deadline_after(2000 + GRACE_MS);
  pthread_mutex_lock(&client->lock);
  client->stop = true;
  uv_async_send(&client->wake);
  while (!client->finished && wait_changed(client, until_ns)) continue;
  const bool finished = client->finished;
  client->abandoned = !finished;
  pthread_mutex_unlock(&client->lock);
  if (!finished) {
    pthread_detach(thread);
    return;
  }
  pthread_join(thread, NULL);
  destroy(client);
}

/* Consumes `params`. Call with the lock held. */
static zps_err_t give_order(struct zps_client *client, struct order *order, const char *method, zps_json *params,
                            struct zps_error *error) {
  if (client->phase != CONNECTED || client->stop)
    return zps_fail(error, ZPS_ERR_CLOSED, "%s: cannot send '%s': %s", client->address, method,
                    client->stop ? "the client is closed" : client->why.text);
  if (client->n_orders >= QUEUE_MAX)
    return zps_fail(error, ZPS_ERR_AGAIN, "%s: %u messages are waiting already", client->address, QUEUE_MAX);
  order->params = params;
  *client->orders_tail = order;
  client->orders_tail = &order->next;
  client->n_orders++;
  uv_async_send(&client->wake);
  return ZPS_OK;
}

static struct order *new_order(struct zps_client *client, const char *method, bool is_call, uint64_t timeout_ms) {
  struct order *order = calloc(1, sizeof *order);
  if (!order) return NULL;
  order->client = client;
  order->is_call = is_call;
  order->timeout_ms = timeout_ms;
  order->method = strdup(method);
  if (order->method) return order;
  free(order);
  return NULL;
}

zps_err_t zps_client_call(struct zps_client *client, const char *method, zps_json *params, uint64_t timeout_ms,
                          zps_json **result_p, struct zps_error *error) {
  struct order *order = params ? new_order(client, method, true, timeout_ms) : NULL;
  if (!order) {
    zps_json_unref(params);
    return zps_fail(error, ZPS_ERR_NOMEM, "%s: no memory to call '%s'", client->address, method);
  }
  const uint64_t until_ns = deadline_after(timeout_ms + GRACE_MS < timeout_ms ? timeout_ms : timeout_ms + GRACE_MS);
  pthread_mutex_lock(&client->lock);
  zps_err_t code = give_order(client, order, method, params, error);
  const bool given = code == ZPS_OK;
  while (given && !order->done && wait_changed(client, until_ns)) continue;
  order->abandoned = given && !order->done;
  const bool abandoned = order->abandoned;
  pthread_mutex_unlock(&client->lock);
  if (abandoned)
    return zps_fail(error, ZPS_ERR_TIMEOUT, "%s: no answer to '%s' within %llu ms", client->address, method,
                    (unsigned long long)timeout_ms);
  if (given) {
    code = order->error.code;
    if (code != ZPS_OK) zps_fail(error, code, "%s", order->error.text);
  } else {
    zps_json_unref(params);
  }
  if (code == ZPS_OK && result_p) {
    *result_p = order->result;
    order->result = NULL;
  }
  free_order(order);
  return code;
}

zps_err_t zps_client_notify(struct zps_client *client, const char *method, zps_json *params) {
  struct order *order = params ? new_order(client, method, false, 0) : NULL;
  zps_err_t code = ZPS_ERR_NOMEM;
  if (order) {
    pthread_mutex_lock(&client->lock);
    code = give_order(client, order, method, params, NULL);
    pthread_mutex_unlock(&client->lock);
  }
  if (code == ZPS_OK) return ZPS_OK;
  zps_json_unref(params);
  if (order) free_order(order);
  return code;
}

void zps_client_heartbeat(struct zps_client *client, uint64_t interval_ms, uint64_t dead_ms) {
  pthread_mutex_lock(&client->lock);
  client->heartbeat_ms = interval_ms;
  client->dead_ms = dead_ms;
  if (!client->stop) uv_async_send(&client->wake);
  pthread_mutex_unlock(&client->lock);
}

#include "common/control/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/thread.h"
#include "common/control/client_internal.h"

#define GRACE_MS 500u /* for the thread to report a deadline that it watches over itself */

static bool wait_changed(struct zps_client *client, uint64_t deadline_ns) {
  return zps_thread_wait(&client->changed, &client->lock, deadline_ns);
}

static uint64_t deadline_after(uint64_t timeout_ms) {
  const uint64_t now_ns = zps_clock_ns();
  return timeout_ms >= (ZPS_NEVER - now_ns) / ZPS_NS_PER_MS ? ZPS_NEVER : now_ns + timeout_ms * ZPS_NS_PER_MS;
}

static zps_err_t init_loop(struct zps_client *client, struct zps_error *error) {
  int status = uv_loop_init(&client->loop);
  if (status < 0) goto err;
  status = uv_async_init(&client->loop, &client->wake, zps_client_on_wake);
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

static zps_err_t create(const char *address, const char *role, uint64_t timeout_ms,
                        const struct zps_client_handler *handler, struct zps_client **client_p,
                        struct zps_error *error) {
  struct zps_client *client = calloc(1, sizeof *client);
  if (!client) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a connection to %s", address);
  zps_err_t code = zps_addresses_parse(address, &client->addresses, error);
  if (code != ZPS_OK) {
    free(client);
    return code;
  }
  if (handler) client->handler = *handler;
  zps_tls_ref(client->handler.tls);
  client->orders_tail = &client->orders;
  client->again_tail = &client->again;
  client->jitter = (struct zps_rng){zps_clock_ns() ^ (uint64_t)getpid() << 32};
  client->begun_ns = zps_clock_ns();
  client->deadline_ns = deadline_after(timeout_ms);
  snprintf(client->address, sizeof client->address, "%s", address);
  snprintf(client->role, sizeof client->role, "%s", role);
  pthread_mutex_init(&client->lock, NULL);
  zps_thread_cond_init(&client->changed);
  code = init_loop(client, error);
  if (code != ZPS_OK) goto err_destroy;
  const int status = zps_thread_start(&client->thread, zps_client_run, client);
  if (status) {
    code = zps_fail_errno(error, ZPS_ERR_NOMEM, status, "cannot start a thread for %s", address);
    zps_client_close_handles(client);
    uv_run(&client->loop, UV_RUN_DEFAULT);
    uv_loop_close(&client->loop);
    goto err_destroy;
  }
  *client_p = client;
  return ZPS_OK;

err_destroy:
  zps_client_destroy(client);
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
  while (client->phase == ZPS_CLIENT_CONNECTING && wait_changed(client, until_ns)) continue;
  if (client->phase == ZPS_CLIENT_CONNECTING)
    zps_fail(&why, ZPS_ERR_TIMEOUT, "cannot connect to %s within %llu ms", address, (unsigned long long)timeout_ms);
  else if (client->phase != ZPS_CLIENT_CONNECTED && client->phase != ZPS_CLIENT_AWAY) /* away: it was there already */
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
  zps_client_destroy(client);
}

/* Call with the lock held. */
static bool takes_orders(const struct zps_client *client) {
  return !client->stop && (client->phase == ZPS_CLIENT_CONNECTED || client->phase == ZPS_CLIENT_AWAY);
}

/* Consumes `params`. Call with the lock held. A call waits for room in the queue until its deadline. */
static zps_err_t give_order(struct zps_client *client, struct zps_client_order *order, const char *method,
                            zps_json *params, struct zps_error *error) {
  while (order->is_call && takes_orders(client) && client->n_orders >= ZPS_CLIENT_QUEUE_MAX &&
         wait_changed(client, order->until_ns))
    continue;
  if (!takes_orders(client))
    return zps_fail(error, ZPS_ERR_CLOSED, "%s: cannot send '%s': %s", client->address, method,
                    client->stop ? "the client is closed" : client->why.text);
  if (client->n_orders >= ZPS_CLIENT_QUEUE_MAX)
    return zps_fail(error, order->is_call ? ZPS_ERR_TIMEOUT : ZPS_ERR_AGAIN,
                    "%s: cannot send '%s': %u messages are waiting already", client->address, method,
                    ZPS_CLIENT_QUEUE_MAX);
  order->params = params;
  *client->orders_tail = order;
  client->orders_tail = &order->next;
  client->n_orders++;
  uv_async_send(&client->wake);
  return ZPS_OK;
}

static struct zps_client_order *new_order(struct zps_client *client, const char *method, bool is_call,
                                          uint64_t timeout_ms) {
  struct zps_client_order *order = calloc(1, sizeof *order);
  if (!order) return NULL;
  order->client = client;
  order->is_call = is_call;
  order->timeout_ms = timeout_ms;
  order->begun_ns = zps_clock_ns();
  order->method = strdup(method);
  if (order->method) return order;
  free(order);
  return NULL;
}

zps_err_t zps_client_call_start(struct zps_client *client, const char *method, zps_json *params, uint64_t timeout_ms,
                                struct zps_client_order **call_p, struct zps_error *error) {
  struct zps_client_order *order = params ? new_order(client, method, true, timeout_ms) : NULL;
  if (!order) {
    zps_json_unref(params);
    return zps_fail(error, ZPS_ERR_NOMEM, "%s: no memory to call '%s'", client->address, method);
  }
  order->until_ns = deadline_after(timeout_ms + GRACE_MS < timeout_ms ? timeout_ms : timeout_ms + GRACE_MS);
  pthread_mutex_lock(&client->lock);
  const zps_err_t code = give_order(client, order, method, params, error);
  pthread_mutex_unlock(&client->lock);
  if (code == ZPS_OK) {
    *call_p = order;
    return ZPS_OK;
  }
  zps_json_unref(params);
  zps_client_order_free(order);
  return code;
}

zps_err_t zps_client_call_wait(struct zps_client *client, struct zps_client_order *order, zps_json **result_p,
                               struct zps_error *error) {
  char method[40];
  const uint64_t timeout_ms = order->timeout_ms;
  snprintf(method, sizeof method, "%s", order->method);
  pthread_mutex_lock(&client->lock);
  while (!order->done && wait_changed(client, order->until_ns)) continue;
  const bool abandoned = order->abandoned = !order->done;
  const bool away = abandoned && client->phase == ZPS_CLIENT_AWAY;
  if (away)
    zps_fail(error, ZPS_ERR_CONNECT, "%s: '%s' could not be sent for %llu ms: %s", client->address, method,
             (unsigned long long)timeout_ms, client->why.text);
  pthread_mutex_unlock(&client->lock);
  if (away) return ZPS_ERR_CONNECT;
  if (abandoned)
    return zps_fail(error, ZPS_ERR_TIMEOUT, "%s: no answer to '%s' within %llu ms", client->address, method,
                    (unsigned long long)timeout_ms);
  const zps_err_t code = order->error.code;
  if (code != ZPS_OK) zps_fail(error, code, "%s", order->error.text);
  if (code == ZPS_OK && result_p) {
    *result_p = order->result;
    order->result = NULL;
  }
  zps_client_order_free(order);
  return code;
}

zps_err_t zps_client_call(struct zps_client *client, const char *method, zps_json *params, uint64_t timeout_ms,
                          zps_json **result_p, struct zps_error *error) {
  struct zps_client_order *call = NULL;
  const zps_err_t code = zps_client_call_start(client, method, params, timeout_ms, &call, error);
  return code == ZPS_OK ? zps_client_call_wait(client, call, result_p, error) : code;
}

zps_err_t zps_client_notify(struct zps_client *client, const char *method, zps_json *params) {
  struct zps_client_order *order = params ? new_order(client, method, false, 0) : NULL;
  zps_err_t code = ZPS_ERR_NOMEM;
  if (order) {
    pthread_mutex_lock(&client->lock);
    code = give_order(client, order, method, params, NULL);
    pthread_mutex_unlock(&client->lock);
  }
  if (code == ZPS_OK) return ZPS_OK;
  zps_json_unref(params);
  if (order) zps_client_order_free(order);
  return code;
}

void zps_client_flush(struct zps_client *client, uint64_t timeout_ms) {
  const uint64_t until_ns = deadline_after(timeout_ms);
  if (pthread_equal(client->thread, pthread_self())) return;
  pthread_mutex_lock(&client->lock);
  while ((client->n_orders > 0 || client->is_sending) && client->phase == ZPS_CLIENT_CONNECTED && !client->stop &&
         wait_changed(client, until_ns))
    continue;
  pthread_mutex_unlock(&client->lock);
}

void zps_client_heartbeat(struct zps_client *client, uint64_t interval_ms, uint64_t dead_ms) {
  pthread_mutex_lock(&client->lock);
  client->heartbeat_ms = interval_ms;
  client->dead_ms = dead_ms;
  if (!client->stop) uv_async_send(&client->wake);
  pthread_mutex_unlock(&client->lock);
}

void zps_client_renew(struct zps_client *client) {
  pthread_mutex_lock(&client->lock);
  client->renew = true;
  if (!client->stop) uv_async_send(&client->wake);
  pthread_mutex_unlock(&client->lock);
}

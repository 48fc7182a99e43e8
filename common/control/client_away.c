/* A client that outlives its connection: it connects anew, says who it is, and sends again what was not answered. */

#define ZPS_LOG_COMPONENT "client"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/control/client_internal.h"

#define RESUME_TIMEOUT_MS 5000u

static void on_retry(uv_timer_t *timer) {
  struct zps_client *client = timer->data;
  client->deadline_ns = zps_clock_ns() + ZPS_CLIENT_ATTEMPT_MS * ZPS_NS_PER_MS;
  zps_client_try_connect(client);
}

/* Not all clients at once. */
void zps_client_retry(struct zps_client *client) {
  const uint64_t least_ms = client->retry_ms / 2;
  if (client->stopping) return;
  uv_timer_start(&client->retry, on_retry, least_ms + zps_rng_below(&client->jitter, client->retry_ms - least_ms + 1),
                 0);
  client->retry_ms = 2 * client->retry_ms < ZPS_CLIENT_RETRY_MAX_MS ? 2 * client->retry_ms : ZPS_CLIENT_RETRY_MAX_MS;
}

void zps_client_go_away(struct zps_client *client, const char *reason) {
  if (client->phase != ZPS_CLIENT_AWAY) {
    client->retry_ms = ZPS_CLIENT_RETRY_MS;
    client->refusal_told_ns = 0;
    zps_client_set_phase(client, ZPS_CLIENT_AWAY, ZPS_ERR_CONNECT, reason);
    if (client->handler.on_away) client->handler.on_away(client->handler.ctx, reason);
  }
  zps_client_retry(client);
}

void zps_client_order_resend(struct zps_client *client, struct zps_client_order *order) {
  order->next = NULL;
  order->params = zps_json_set_bool(order->params, "again", true);
  *client->again_tail = order;
  client->again_tail = &order->next;
  pthread_mutex_lock(&client->lock);
  client->n_orders++;
  pthread_mutex_unlock(&client->lock);
}

static void resumed(struct zps_client *client, const zps_json *result, const struct zps_error *error) {
  const zps_err_t code = client->handler.on_resumed(client->handler.ctx, result, error);
  if (code != ZPS_OK) {
    zps_client_lose(client, code, error ? error->text : zps_err_str(code));
    if (client->conn) zps_rpc_close(client->conn, false);
    return;
  }
  zps_log_info("%s: connected again", zps_addresses_now(&client->addresses));
  client->retry_ms = ZPS_CLIENT_RETRY_MS;
  if (client->beat_ms) zps_rpc_conn_watched(client->conn);
  zps_client_set_phase(client, ZPS_CLIENT_CONNECTED, ZPS_OK, "");
  zps_client_run_orders(client);
  zps_client_renew_now(client);
}

/* A connection that ends meanwhile, or a coordinator that does not answer in time, says nothing: the next one may. */
static void on_answer(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct zps_client *client = ctx;
  if (client->stopping || !client->conn || !zps_rpc_conn_is_open(client->conn)) return;
  if (error && error->code == ZPS_ERR_TIMEOUT) {
    zps_rpc_close(client->conn, false);
    return;
  }
  resumed(client, result, error);
}

void zps_client_come_back(struct zps_client *client) {
  const char *method = NULL;
  zps_json *params = client->handler.on_resume ? client->handler.on_resume(client->handler.ctx, &method) : NULL;
  if (!method) {
    zps_json_unref(params);
    resumed(client, NULL, NULL);
  } else if (!params || zps_rpc_call(client->conn, method, params, RESUME_TIMEOUT_MS, on_answer, client) != ZPS_OK) {
    zps_rpc_close(client->conn, false); /* tried again when it is closed */
  }
}

/* A client that outlives its connection, against a server that drops it, in a thread of its own. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/control/client.h"
#include "common/control/rpc.h"
#include "tests/support/raw_listen.h"
#include "tests/support/patience.h"

/* ---- The server ---- */

static struct server {
  pthread_t thread;
  uv_loop_t loop;
  uv_async_t stop;
  struct zps_rpc_listener *listener;
  char address[64], heard[200]; /* methods, one behind the other */
  uint64_t timeout_ms;          /* of the last call that has one */
  bool refuses;
  struct zps_rpc_request *held; /* not answered before the end */
} server;

static void on_message(void *ctx, struct zps_rpc_conn *conn, const char *method, const zps_json *params,
                       struct zps_rpc_request *request) {
  (void)ctx;
  if (strcmp(method, "heartbeat") == 0) return;
  const bool again = zps_json_opt_bool(params, "again", false);
  snprintf(server.heard + strlen(server.heard), sizeof server.heard - strlen(server.heard), "%s%s ", method,
           again ? "!" : "");
  if (!request) return;
  server.timeout_ms = zps_json_opt_u64(params, "timeout_ms", server.timeout_ms);
  if (strcmp(method, "drop") == 0 && !again) {
    zps_rpc_close(conn, false);
    zps_rpc_reply(request, NULL);
  } else if (strcmp(method, "resume") == 0 && server.refuses) {
    zps_rpc_reply_error(request, ZPS_ERR_UNKNOWN, "never heard of it");
  } else if (strcmp(method, "hold") == 0 && !again) {
    server.held = request;
  } else {
    zps_rpc_reply(request, zps_json_set_u64(zps_json_object(), "y", 5));
  }
}

static void on_stop(uv_async_t *stop) {
  if (server.held) zps_rpc_reply(server.held, NULL);
  server.held = NULL;
  zps_rpc_listener_close(server.listener);
  uv_close((uv_handle_t *)stop, NULL);
}

static void *serve(void *arg) {
  (void)arg;
  uv_run(&server.loop, UV_RUN_DEFAULT);
  return NULL;
}

static void server_start(const char *address) {
  struct zps_error error;
  const struct zps_rpc_handler handler = {.on_message = on_message};
  assert_int_equal(uv_loop_init(&server.loop), 0);
  assert_int_equal(uv_async_init(&server.loop, &server.stop, on_stop), 0);
  const zps_err_t err = zps_rpc_listen(&server.loop, address, "coordinator", &handler, &server.listener, &error);
  if (err) fail_msg("%s", error.text);
  snprintf(server.address, sizeof server.address, "%s", zps_rpc_listener_address(server.listener));
  assert_int_equal(pthread_create(&server.thread, NULL, serve, NULL), 0);
}

static void server_stop(void) {
  uv_async_send(&server.stop);
  pthread_join(server.thread, NULL);
  assert_int_equal(uv_loop_close(&server.loop), 0);
}

/* ---- The client ---- */

static struct heard {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int n_away, n_lost;
  char reason[500];
  atomic_int n_resumed;
} heard = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void note(int *n, const char *reason) {
  pthread_mutex_lock(&heard.lock);
  ++*n;
  snprintf(heard.reason, sizeof heard.reason, "%s", reason);
  pthread_cond_broadcast(&heard.changed);
  pthread_mutex_unlock(&heard.lock);
}
static void on_away(void *ctx, const char *reason) {
  (void)ctx;
  note(&heard.n_away, reason);
}
static void on_lost(void *ctx, const char *reason) {
  (void)ctx;
  note(&heard.n_lost, reason);
}
static void await(const int *n) {
  pthread_mutex_lock(&heard.lock);
  while (!*n) pthread_cond_wait(&heard.changed, &heard.lock);
  pthread_mutex_unlock(&heard.lock);
}

static zps_json *on_resume(void *ctx, const char **method_p) {
  (void)ctx;
  *method_p = "resume";
  return zps_json_object();
}

static zps_err_t on_resumed(void *ctx, const zps_json *result, const struct zps_error *error) {
  (void)ctx, (void)result;
  heard.n_resumed++;
  return error ? error->code : ZPS_OK;
}

static struct zps_client *client_open_at(const char *address) {
  const struct zps_client_handler handler = {
      .on_lost = on_lost, .on_away = on_away, .on_resume = on_resume, .on_resumed = on_resumed};
  struct zps_client *client = NULL;
  struct zps_error error = {.text = ""};
  heard.n_away = 0;
  heard.n_lost = 0;
  heard.n_resumed = 0;
  if (zps_client_open(address, "worker", PATIENCE_NEVER_MS, &handler, &client, &error)) fail_msg("%s", error.text);
  return client;
}

static struct zps_client *client_open(void) {
  return client_open_at(server.address);
}

static uint64_t call(struct zps_client *client, const char *method, struct zps_error *error, zps_err_t *err_p) {
  zps_json *result = NULL;
  *err_p = zps_client_call(client, method, zps_json_object(), PATIENCE_NEVER_MS, &result, error);
  const uint64_t y = zps_json_opt_u64(result, "y", 0);
  zps_json_unref(result);
  return y;
}

static int setup(void **state) {
  (void)state;
  memset(server.heard, 0, sizeof server.heard);
  server.timeout_ms = 0;
  server.refuses = false;
  return 0;
}

/* The caller does not see that its connection was lost: the call is sent again over the next one, behind the call that
 * says who this is. */
static void test_a_call_under_way(void **state) {
  (void)state;
  struct zps_error error;
  zps_err_t err;
  server_start("127.0.0.1:0");
  struct zps_client *client = client_open();
  assert_int_equal(call(client, "drop", &error, &err), 5);
  assert_int_equal(err, ZPS_OK);
  assert_int_equal(call(client, "plain", &error, &err), 5);
  assert_true(heard.n_away == 1 && heard.n_lost == 0 && heard.n_resumed == 1);
  zps_client_close(client);
  server_stop();
  assert_string_equal(server.heard, "drop resume drop! plain ");
}

/* What the caller has waited for another connection the server has no more: it is to answer before the caller has gone.
 * A client waits for 50 ms at least before it connects again, by the loop's clock of whole milliseconds. */
static void test_less_time_is_left(void **state) {
  (void)state;
  enum { TIMEOUT_MS = PATIENCE_NEVER_MS };
  struct zps_error error;
  server_start("127.0.0.1:0");
  struct zps_client *client = client_open();
  const uint64_t begun_ns = zps_clock_ns();
  zps_json *const params = zps_json_set_u64(zps_json_object(), "timeout_ms", TIMEOUT_MS);
  if (zps_client_call(client, "drop", params, TIMEOUT_MS, NULL, &error)) fail_msg("%s", error.text);
  const uint64_t waited_ms = (zps_clock_ns() - begun_ns) / ZPS_NS_PER_MS;
  zps_client_close(client);
  server_stop();
  assert_string_equal(server.heard, "drop resume drop! ");
  assert_in_range(server.timeout_ms, TIMEOUT_MS - waited_ms - 1, TIMEOUT_MS - 50 + 2);
}

/* Asked for by this end, which missed something: as if it had been lost. Twice in a row is once, or twice. */
static void test_renewed(void **state) {
  (void)state;
  struct zps_error error;
  zps_err_t err;
  server_start("127.0.0.1:0");
  struct zps_client *client = client_open();
  zps_client_renew(client);
  await(&heard.n_away);
  assert_int_equal(call(client, "plain", &error, &err), 5);
  assert_int_equal(err, ZPS_OK);
  assert_string_equal(server.heard, "away resume plain ");
  zps_client_renew(client);
  zps_client_renew(client);
  assert_int_equal(call(client, "plain", &error, &err), 5);
  zps_client_close(client);
  server_stop();
  assert_true(heard.n_away >= 2 && heard.n_lost == 0);
}

/* Calls and notifications that come while there is no connection wait for the next one, in order. */
static void test_calls_wait(void **state) {
  (void)state;
  struct zps_error error;
  struct zps_client_order *first, *second;
  char address[64];
  server_start("127.0.0.1:0");
  struct zps_client *client = client_open();
  snprintf(address, sizeof address, "%s", server.address);
  server_stop();
  await(&heard.n_away);
  assert_int_equal(zps_client_call_start(client, "one", zps_json_object(), PATIENCE_NEVER_MS, &first, &error), ZPS_OK);
  assert_int_equal(zps_client_notify(client, "two", zps_json_object()), ZPS_OK);
  assert_int_equal(zps_client_call_start(client, "three", zps_json_object(), PATIENCE_NEVER_MS, &second, &error),
                   ZPS_OK);
  assert_int_equal(zps_client_call(client, "late", zps_json_object(), 1, NULL, &error), ZPS_ERR_CONNECT);
  assert_non_null(strstr(error.text, "'late' could not be sent for 1 ms: "));
  server_start(address);
  assert_int_equal(zps_client_call_wait(client, first, NULL, &error), ZPS_OK);
  assert_int_equal(zps_client_call_wait(client, second, NULL, &error), ZPS_OK);
  zps_client_close(client);
  server_stop();
  assert_string_equal(server.heard, "resume one two three ");
}

/* Another one of the list takes over: calls that wait go to that one. */
static void test_another_coordinator(void **state) {
  (void)state;
  struct zps_error error;
  struct zps_client_order *order;
  char first[64], second[64], list[200];
  close(raw_listen(second, sizeof second));
  close(raw_listen(first, sizeof first));
  server_start(first);
  snprintf(list, sizeof list, "%s,%s", second, first);
  struct zps_client *client = client_open_at(list);
  assert_int_equal(zps_client_call(client, "plain", zps_json_object(), PATIENCE_NEVER_MS, NULL, &error), ZPS_OK);
  server_stop();
  await(&heard.n_away);
  assert_int_equal(zps_client_call_start(client, "one", zps_json_object(), PATIENCE_NEVER_MS, &order, &error), ZPS_OK);
  server_start(second);
  assert_int_equal(zps_client_call_wait(client, order, NULL, &error), ZPS_OK);
  assert_true(heard.n_away == 1 && heard.n_lost == 0 && heard.n_resumed == 1);
  zps_client_close(client);
  server_stop();
  assert_string_equal(server.heard, "plain resume one ");
}

/* The server has none of it any more: then it is lost, and so are the calls that wait. */
static void test_refused(void **state) {
  (void)state;
  struct zps_error error;
  zps_err_t err;
  server_start("127.0.0.1:0");
  struct zps_client *client = client_open();
  server.refuses = true;
  call(client, "drop", &error, &err);
  assert_int_equal(err, ZPS_ERR_CLOSED);
  assert_non_null(strstr(error.text, "never heard of it"));
  await(&heard.n_lost);
  assert_string_equal(heard.reason, "never heard of it");
  call(client, "more", &error, &err);
  assert_int_equal(err, ZPS_ERR_CLOSED);
  zps_client_close(client);
  server_stop();
}

/* Closed while it is away: at once. */
static void test_closed_while_away(void **state) {
  (void)state;
  struct zps_error error;
  server_start("127.0.0.1:0");
  struct zps_client *client = client_open();
  assert_int_equal(zps_client_call(client, "hold", zps_json_object(), 1, NULL, &error), ZPS_ERR_TIMEOUT);
  server_stop();
  await(&heard.n_away);
  assert_int_equal(zps_client_notify(client, "never", zps_json_object()), ZPS_OK);
  /* A caller must have returned before: here it has given up. */
  zps_client_close(client);
  assert_int_equal(heard.n_lost, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_a_call_under_way, setup),    cmocka_unit_test_setup(test_calls_wait, setup),
      cmocka_unit_test_setup(test_another_coordinator, setup), cmocka_unit_test_setup(test_refused, setup),
      cmocka_unit_test_setup(test_closed_while_away, setup),   cmocka_unit_test_setup(test_renewed, setup),
      cmocka_unit_test_setup(test_less_time_is_left, setup),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

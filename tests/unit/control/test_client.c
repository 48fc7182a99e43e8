/* The blocking client against a server in a thread of its own. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/control/client.h"
#include "common/control/rpc.h"
#include "tests/support/logs.h"
#include "tests/support/oom.h"
#include "tests/support/patience.h"

enum { HELD_MAX = ZPS_RPC_PENDING_MAX };

/* ---- The server ---- */

struct server {
  pthread_t thread;
  uv_loop_t loop;
  uv_async_t stop;
  struct zps_rpc_listener *listener;
  struct zps_rpc_request *held[HELD_MAX];
  int n_held;
  char address[64];
  atomic_int n_notified, n_beats, n_closed;
};

static void release(struct server *server) {
  for (int i = 0; i < server->n_held; i++) zps_rpc_reply(server->held[i], NULL);
  server->n_held = 0;
}

static void on_message(void *ctx, struct zps_rpc_conn *conn, const char *method, const zps_json *params,
                       struct zps_rpc_request *request) {
  struct server *server = ctx;
  const uint64_t x = zps_json_opt_u64(params, "x", 0);
  if (!request) {
    if (strcmp(method, "heartbeat") == 0)
      server->n_beats++;
    else if (strcmp(method, "release") == 0)
      release(server);
    else
      server->n_notified++;
  } else if (strcmp(method, "double") == 0) {
    zps_rpc_reply(request, zps_json_set_u64(zps_json_object(), "y", 2 * x));
  } else if (strcmp(method, "hold") == 0) {
    assert_true(server->n_held < HELD_MAX);
    server->held[server->n_held++] = request;
  } else if (strcmp(method, "echo_later") == 0) {
    assert_int_equal(zps_rpc_notify(conn, "echo", zps_json_set_u64(zps_json_object(), "x", x)), ZPS_OK);
    zps_rpc_reply(request, NULL);
  } else if (strcmp(method, "die") == 0) {
    zps_rpc_close(conn, false);
    zps_rpc_reply(request, NULL);
  } else {
    zps_rpc_reply_error(request, ZPS_ERR_REFUSED, "not '%s'", method);
  }
}

static void on_close(void *ctx, struct zps_rpc_conn *conn, zps_err_t code, const char *reason) {
  struct server *server = ctx;
  (void)conn;
  (void)code;
  (void)reason;
  server->n_closed++;
}

static void on_stop(uv_async_t *stop) {
  struct server *server = stop->data;
  release(server);
  zps_rpc_listener_close(server->listener);
  uv_close((uv_handle_t *)stop, NULL);
}

static void *serve(void *arg) {
  struct server *server = arg;
  uv_run(&server->loop, UV_RUN_DEFAULT);
  return NULL;
}

static void server_start(struct server *server) {
  struct zps_error error;
  memset(server, 0, sizeof *server);
  const struct zps_rpc_handler handler = {.ctx = server, .on_message = on_message, .on_close = on_close};
  assert_int_equal(uv_loop_init(&server->loop), 0);
  assert_int_equal(uv_async_init(&server->loop, &server->stop, on_stop), 0);
  server->stop.data = server;
  assert_int_equal(zps_rpc_listen(&server->loop, "127.0.0.1:0", "coordinator", &handler, &server->listener, &error),
                   ZPS_OK);
  snprintf(server->address, sizeof server->address, "%s", zps_rpc_listener_address(server->listener));
  assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

static void server_stop(struct server *server) {
  uv_async_send(&server->stop);
  pthread_join(server->thread, NULL);
  assert_int_equal(uv_loop_close(&server->loop), 0);
}

/* ---- What the client is told ---- */

struct heard {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int n_notified, n_lost;
  uint64_t x;
  char method[32], reason[500];
};

#define HEARD_INIT \
  { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER }

static void on_notify(void *ctx, const char *method, const zps_json *params) {
  struct heard *heard = ctx;
  pthread_mutex_lock(&heard->lock);
  heard->n_notified++;
  heard->x = zps_json_opt_u64(params, "x", 0);
  snprintf(heard->method, sizeof heard->method, "%s", method);
  pthread_cond_broadcast(&heard->changed);
  pthread_mutex_unlock(&heard->lock);
}

static void on_lost(void *ctx, const char *reason) {
  struct heard *heard = ctx;
  pthread_mutex_lock(&heard->lock);
  heard->n_lost++;
  snprintf(heard->reason, sizeof heard->reason, "%s", reason);
  pthread_cond_broadcast(&heard->changed);
  pthread_mutex_unlock(&heard->lock);
}

static void wait_lost(struct heard *heard) {
  pthread_mutex_lock(&heard->lock);
  while (!heard->n_lost) pthread_cond_wait(&heard->changed, &heard->lock);
  pthread_mutex_unlock(&heard->lock);
}

static struct zps_client *client_open(const char *address, struct heard *heard) {
  const struct zps_client_handler handler = {.ctx = heard, .on_notify = on_notify, .on_lost = on_lost};
  struct zps_client *client = NULL;
  struct zps_error error = {.text = ""};
  const zps_err_t code =
      zps_client_open(address, "worker", PATIENCE_NEVER_MS, heard ? &handler : NULL, &client, &error);
  assert_string_equal(error.text, "");
  assert_int_equal(code, ZPS_OK);
  return client;
}

static zps_json *x_is(uint64_t x) {
  return zps_json_set_u64(zps_json_object(), "x", x);
}

/* ---- Tests ---- */

static void test_calls_and_notifications(void **state) {
  (void)state;
  struct server server;
  struct heard heard = HEARD_INIT;
  struct zps_error error;
  zps_json *result = NULL;
  server_start(&server);
  struct zps_client *client = client_open(server.address, &heard);
  assert_int_equal(zps_client_call(client, "double", x_is(21), PATIENCE_NEVER_MS, &result, &error), ZPS_OK);
  assert_int_equal(zps_json_opt_u64(result, "y", 0), 42);
  zps_json_unref(result);
  assert_int_equal(zps_client_call(client, "double", x_is(1), PATIENCE_NEVER_MS, NULL, NULL), ZPS_OK);
  result = NULL;
  assert_int_equal(zps_client_call(client, "dance", x_is(1), PATIENCE_NEVER_MS, &result, &error), ZPS_ERR_REFUSED);
  assert_string_equal(error.text, "not 'dance'");
  assert_null(result);

  assert_int_equal(zps_client_call(client, "echo_later", x_is(5), PATIENCE_NEVER_MS, NULL, &error), ZPS_OK);
  pthread_mutex_lock(&heard.lock); /* it was sent before the answer */
  assert_int_equal(heard.n_notified, 1);
  assert_int_equal(heard.x, 5);
  assert_string_equal(heard.method, "echo");
  pthread_mutex_unlock(&heard.lock);

  for (int i = 0; i < 100; i++) assert_int_equal(zps_client_notify(client, "note", x_is(1)), ZPS_OK);
  zps_client_close(client); /* messages sent before still leave */
  server_stop(&server);
  assert_int_equal(server.n_notified, 100);
  assert_int_equal(server.n_closed, 1);
  assert_int_equal(heard.n_lost, 0);
}

static void *call_many(void *arg) {
  struct zps_client *client = arg;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < 50; i++) {
    zps_json *result = NULL;
    if (zps_client_call(client, "double", x_is(i), PATIENCE_NEVER_MS, &result, NULL) != ZPS_OK) wrong++;
    if (zps_json_opt_u64(result, "y", 1) != 2 * i) wrong++;
    zps_json_unref(result);
  }
  return (void *)(uintptr_t)wrong;
}

static void test_many_threads(void **state) {
  (void)state;
  enum { N = 8 };
  struct server server;
  pthread_t threads[N];
  server_start(&server);
  struct zps_client *client = client_open(server.address, NULL);
  for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&threads[i], NULL, call_many, client), 0);
  for (int i = 0; i < N; i++) {
    void *wrong;
    pthread_join(threads[i], &wrong);
    assert_null(wrong);
  }
  zps_client_close(client);
  server_stop(&server);
}

/* More than a connection may have in flight, and more than the client queues. */
static void test_many_calls_at_once(void **state) {
  enum { N = 6000 };
  (void)state;
  struct server server;
  struct zps_error error = {.text = ""};
  static struct zps_client_order *calls[N];
  server_start(&server);
  struct zps_client *client = client_open(server.address, NULL);
  for (uint64_t i = 0; i < N; i++) {
    const zps_err_t code = zps_client_call_start(client, "double", x_is(i), 60000, &calls[i], &error);
    assert_string_equal(error.text, "");
    assert_int_equal(code, ZPS_OK);
  }
  for (uint64_t i = 0; i < N; i++) {
    zps_json *result = NULL;
    const zps_err_t code = zps_client_call_wait(client, calls[i], &result, &error);
    assert_string_equal(error.text, "");
    assert_int_equal(code, ZPS_OK);
    assert_int_equal(zps_json_opt_u64(result, "y", 1), 2 * i);
    zps_json_unref(result);
  }
  zps_client_close(client);
  server_stop(&server);
}

/* A call that waits for room has its deadline; notifications pass it. */
static void test_no_room_for_a_call(void **state) {
  (void)state;
  struct server server;
  struct zps_error error;
  static struct zps_client_order *calls[ZPS_RPC_PENDING_MAX];
  server_start(&server);
  struct zps_client *client = client_open(server.address, NULL);
  for (unsigned i = 0; i < ZPS_RPC_PENDING_MAX; i++)
    assert_int_equal(zps_client_call_start(client, "hold", x_is(i), 60000, &calls[i], &error), ZPS_OK);
  assert_int_equal(zps_client_call(client, "double", x_is(1), 50, NULL, &error), ZPS_ERR_TIMEOUT);
  assert_non_null(strstr(error.text, "no answer to 'double' within 50 ms"));
  assert_int_equal(zps_client_notify(client, "release", x_is(1)), ZPS_OK);
  assert_int_equal(zps_client_call(client, "double", x_is(1), 60000, NULL, &error), ZPS_OK);
  for (unsigned i = 0; i < ZPS_RPC_PENDING_MAX; i++)
    assert_int_equal(zps_client_call_wait(client, calls[i], NULL, &error), ZPS_OK);
  zps_client_close(client);
  server_stop(&server);
}

static void test_call_times_out(void **state) {
  (void)state;
  struct server server;
  struct zps_error error;
  server_start(&server);
  struct zps_client *client = client_open(server.address, NULL);
  const uint64_t start_ns = zps_clock_ns();
  assert_int_equal(zps_client_call(client, "hold", x_is(1), 50, NULL, &error), ZPS_ERR_TIMEOUT);
  assert_in_range(zps_clock_ns() - start_ns, 50 * ZPS_NS_PER_MS, 60 * ZPS_NS_PER_S);
  assert_non_null(strstr(error.text, "'hold'"));
  assert_int_equal(zps_client_call(client, "double", x_is(1), PATIENCE_NEVER_MS, NULL, &error),
                   ZPS_OK); /* still usable */
  zps_client_close(client);
  server_stop(&server);
}

static void test_server_dies_mid_call(void **state) {
  (void)state;
  struct server server;
  struct heard heard = HEARD_INIT;
  struct zps_error error;
  server_start(&server);
  struct zps_client *client = client_open(server.address, &heard);
  assert_int_equal(zps_client_call(client, "die", x_is(1), PATIENCE_NEVER_MS, NULL, &error), ZPS_ERR_CLOSED);
  wait_lost(&heard);
  assert_int_equal(zps_client_call(client, "double", x_is(1), PATIENCE_NEVER_MS, NULL, &error), ZPS_ERR_CLOSED);
  assert_non_null(strstr(error.text, "closed by the peer"));
  assert_int_equal(zps_client_notify(client, "note", x_is(1)), ZPS_ERR_CLOSED);
  zps_client_close(client);
  assert_int_equal(heard.n_lost, 1);
  server_stop(&server);
}

static void test_heartbeats_and_silence(void **state) {
  (void)state;
  struct server server;
  struct heard heard = HEARD_INIT;
  server_start(&server);
  struct zps_client *client = client_open(server.address, &heard);
  zps_client_heartbeat(client, 5, 60); /* this server sends none */
  wait_lost(&heard);
  assert_non_null(strstr(heard.reason, "not heard of for"));
  zps_client_close(client);
  server_stop(&server);
  assert_true(server.n_beats >= 2);
  assert_int_equal(heard.n_lost, 1);
}

/* Sockets of this process that TCP gives up after so long. */
static unsigned sockets_of_patience(unsigned ms) {
  unsigned n = 0;
  for (int fd = 0; fd < 256; fd++) {
    unsigned has_ms = 0;
    socklen_t len = sizeof has_ms;
    n += getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &has_ms, &len) == 0 && has_ms == ms;
  }
  return n;
}

/* Where heartbeats tell of silence, TCP has no time of its own. */
static void test_long_silence_is_allowed(void **state) {
  (void)state;
  struct server server;
  struct heard heard = HEARD_INIT;
  server_start(&server);
  struct zps_client *client = client_open(server.address, &heard);
  const unsigned n = sockets_of_patience(10000);
  zps_client_heartbeat(client, 5, 123456);
  while (server.n_beats < 1) usleep(1000);
  assert_int_equal(sockets_of_patience(10000), n - 1);
  zps_client_close(client);
  server_stop(&server);
}

/* Notes the messages that are sent ahead of heartbeats. */
struct beater {
  struct zps_client *_Atomic client;
  atomic_int n_beats;
};

static void on_beat(void *ctx) {
  struct beater *beater = ctx;
  struct zps_client *const client = beater->client;
  if (!client) return; /* it is not open yet */
  assert_int_equal(zps_client_notify(client, "news", x_is(1)), ZPS_OK);
  beater->n_beats++;
}

static void test_what_is_sent_with_heartbeats(void **state) {
  (void)state;
  struct server server;
  struct beater beater = {.n_beats = 0};
  struct zps_error error;
  struct zps_client *client;
  const struct zps_client_handler handler = {.ctx = &beater, .on_beat = on_beat};
  server_start(&server);
  assert_int_equal(zps_client_open(server.address, "worker", PATIENCE_NEVER_MS, &handler, &client, &error), ZPS_OK);
  beater.client = client;
  zps_client_heartbeat(client, 5, 0);
  while (server.n_notified < 3) usleep(1000);
  zps_client_close(client);
  const int n_beats = beater.n_beats;
  server_stop(&server);
  assert_int_equal(beater.n_beats, n_beats); /* none after it was closed */
  assert_int_equal(server.n_notified, n_beats);
  assert_true(server.n_beats >= n_beats);
}

static void test_missing_memory_for_params(void **state) {
  (void)state;
  struct server server;
  struct zps_error error;
  server_start(&server);
  struct zps_client *client = client_open(server.address, NULL);
  assert_int_equal(zps_client_call(client, "double", NULL, PATIENCE_NEVER_MS, NULL, &error), ZPS_ERR_NOMEM);
  assert_int_equal(zps_client_notify(client, "double", NULL), ZPS_ERR_NOMEM);
  zps_client_close(client);
  server_stop(&server);
}

struct sweep {
  struct server server;
  struct zps_client *client;
};

static zps_err_t sweep_open(void *ctx) {
  struct sweep *sweep = ctx;
  return zps_client_open(sweep->server.address, "worker", PATIENCE_NEVER_MS, NULL, &sweep->client, NULL);
}

static void sweep_close(void *ctx) {
  struct sweep *sweep = ctx;
  assert_int_equal(zps_client_call(sweep->client, "double", x_is(1), PATIENCE_NEVER_MS, NULL, NULL), ZPS_OK);
  zps_client_close(sweep->client);
}

/* The server has no memory either: it drops connections, and the client tries again until it is out of memory itself.
 */
static void test_out_of_memory(void **state) {
  (void)state;
  struct sweep sweep;
  server_start(&sweep.server);
  oom_sweep(sweep_open, sweep_close, &sweep, 5);
  server_stop(&sweep.server);
}

static int expect_warnings(void **state) {
  (void)state;
  logs_start();
  logs_allow(ZPS_LOG_WARN, "a connection is refused: out of memory"); /* where the sweep hits the server */
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_calls_and_notifications),
      cmocka_unit_test(test_many_threads),
      cmocka_unit_test(test_many_calls_at_once),
      cmocka_unit_test(test_no_room_for_a_call),
      cmocka_unit_test(test_call_times_out),
      cmocka_unit_test(test_server_dies_mid_call),
      cmocka_unit_test(test_what_is_sent_with_heartbeats),
      cmocka_unit_test(test_heartbeats_and_silence),
      cmocka_unit_test(test_long_silence_is_allowed),
      cmocka_unit_test(test_missing_memory_for_params),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests(tests, expect_warnings, logs_check);
}

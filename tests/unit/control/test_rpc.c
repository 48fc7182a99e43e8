/* JSON-RPC over real sockets of this host, both ends ours. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/logs.h"
#include "tests/support/oom.h"
#include "tests/support/raw_listen.h"
#include "tests/unit/control/rpc_rig.h"

static void exchange(struct world *world) {
  rpc_world_connect(world);
  assert_string_equal(zps_rpc_conn_role(world->server.conn), "worker");
  assert_string_equal(zps_rpc_conn_role(world->client.conn), "coordinator");
  assert_string_equal(zps_rpc_conn_version(world->client.conn), zps_rpc_conn_version(world->server.conn));
  rpc_call(world, "double", 21, PATIENCE_NEVER_MS, 0);
  rpc_call(world, "shape", 0, PATIENCE_NEVER_MS, 1);
  rpc_call(world, "nonsense", 0, PATIENCE_NEVER_MS, 2);
  SPIN_UNTIL(world, world->client.results[2].n);
  assert_int_equal(world->client.results[0].value, 42);
  assert_int_equal(world->client.results[1].code, ZPS_ERR_SHAPE);
  assert_string_equal(world->client.results[1].text, "rows 5, not 6");
  assert_int_equal(world->client.results[2].code, ZPS_ERR_UNSUPPORTED);

  assert_int_equal(zps_rpc_notify(world->client.conn, "up", rpc_x_is(7)), ZPS_OK);
  assert_int_equal(zps_rpc_notify(world->server.conn, "down", rpc_x_is(8)), ZPS_OK);
  SPIN_UNTIL(world, world->client.n_message && world->server.n_message == 4);
  assert_string_equal(world->client.method, "down");
  assert_int_equal(world->client.param, 8);
  assert_string_equal(world->server.method, "up");
  assert_int_equal(world->server.param, 7);

  struct result back = {0};
  assert_int_equal(zps_rpc_call(world->server.conn, "double", rpc_x_is(4), PATIENCE_NEVER_MS, rpc_on_result, &back),
                   ZPS_OK);
  SPIN_UNTIL(world, back.n);
  assert_int_equal(back.value, 8);

  zps_rpc_close(world->client.conn, true);
  SPIN_UNTIL(world, world->client.n_close && world->server.n_close);
  assert_int_equal(world->client.close_code, ZPS_OK);
  assert_int_equal(world->server.close_code, ZPS_ERR_CLOSED);
  rpc_world_close(world);
}

static void test_exchange_v4(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  exchange(&world);
}

static void test_exchange_v6(void **state) {
  (void)state;
  struct world world;
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  const struct sockaddr_in6 addr = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  const bool has_v6 = fd >= 0 && bind(fd, (const struct sockaddr *)&addr, sizeof addr) == 0;
  if (fd >= 0) close(fd);
  if (!has_v6) skip();
  rpc_world_open_at(&world, "[::1]:0");
  assert_int_equal(strncmp(zps_rpc_listener_address(world.listener), "[::1]:", 6), 0);
  exchange(&world);
}

static void test_exchange_by_name(void **state) {
  (void)state;
  struct world world;
  char address[64];
  rpc_world_open(&world);
  snprintf(address, sizeof address, "localhost:%s", strrchr(zps_rpc_listener_address(world.listener), ':') + 1);
  assert_int_equal(rpc_dial(&world, address, PATIENCE_NEVER_MS), ZPS_OK);
  SPIN_UNTIL(&world, world.client.n_connected);
  assert_int_equal(world.client.connect_code, ZPS_OK);
  rpc_world_close(&world);
}

static void test_exchange_unix(void **state) {
  (void)state;
  struct world world;
  struct stat st;
  char dir[] = "/tmp/zps-rpc-XXXXXX", address[64], path[48];
  assert_non_null(mkdtemp(dir));
  snprintf(path, sizeof path, "%s/ctl", dir);
  snprintf(address, sizeof address, "unix:%s", path);

  /* The file that a killed daemon leaves behind. */
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
  close(fd);
  assert_int_equal(stat(path, &st), 0);

  rpc_world_open_at(&world, address);
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600); /* nobody has asked for more */
  struct zps_rpc_listener *second = NULL;
  struct zps_error error;
  const struct zps_rpc_handler handler = rpc_handler_of(&world.server);
  assert_int_equal(zps_rpc_listen(&world.loop, address, "coordinator", &handler, &second, &error), ZPS_ERR_BUSY);
  assert_null(second);
  exchange(&world);
  assert_int_equal(stat(path, &st), -1);

  FILE *file = fopen(path, "w"); /* another user's file */
  assert_non_null(file);
  fclose(file);
  memset(&world, 0, sizeof world);
  assert_int_equal(uv_loop_init(&world.loop), 0);
  assert_int_equal(zps_rpc_listen(&world.loop, address, "coordinator", &handler, &second, &error), ZPS_ERR_INVALID);
  assert_int_equal(stat(path, &st), 0);
  rpc_world_close(&world);
  unlink(path);
  rmdir(dir);
}

static unsigned tcp_patience_ms(const struct zps_rpc_conn *conn) {
  uv_os_fd_t fd;
  unsigned ms = 0;
  socklen_t len = sizeof ms;
  assert_int_equal(uv_fileno(&conn->socket.handle, &fd), 0);
  assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &len), 0);
  return ms;
}

/* TCP is no less patient than the owner of the connection. */
static void test_patience_of_tcp(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  rpc_world_connect(&world);
  assert_int_equal(tcp_patience_ms(world.client.conn), 10000);
  zps_rpc_conn_dead_after(world.client.conn, 60000);
  assert_int_equal(tcp_patience_ms(world.client.conn), 60000);
  zps_rpc_conn_dead_after(world.client.conn, 0);
  assert_int_equal(tcp_patience_ms(world.client.conn), 60000);
  zps_rpc_conn_dead_after(world.client.conn, 5000);
  assert_int_equal(tcp_patience_ms(world.client.conn), 10000);
  zps_rpc_conn_dead_after(world.client.conn, UINT64_MAX);
  assert_int_equal(tcp_patience_ms(world.client.conn), INT32_MAX);
  assert_int_equal(tcp_patience_ms(world.server.conn), 10000);
  zps_rpc_conn_watched(world.client.conn); /* Another clock decides. */
  assert_int_equal(tcp_patience_ms(world.client.conn), 0);
  rpc_world_close(&world);
}

static void test_port_in_use(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  struct zps_rpc_listener *second = NULL;
  struct zps_error error;
  const struct zps_rpc_handler handler = rpc_handler_of(&world.server);
  assert_int_equal(
      zps_rpc_listen(&world.loop, zps_rpc_listener_address(world.listener), "coordinator", &handler, &second, &error),
      ZPS_ERR_BUSY);
  assert_non_null(strstr(error.text, "already in use"));
  rpc_world_close(&world);
}

static void test_answers_out_of_order(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  rpc_world_connect(&world);
  world.server.hold = true;
  for (int i = 0; i < 4; i++) rpc_call(&world, "slow", (uint64_t)i, PATIENCE_NEVER_MS, i);
  SPIN_UNTIL(&world, world.server.n_held == 4);
  for (int i = 3; i >= 0; i--)
    zps_rpc_reply(world.server.held[i], zps_json_set_u64(zps_json_object(), "y", 100u + (unsigned)i));
  SPIN_UNTIL(&world, world.client.results[0].n);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(world.client.results[i].n, 1);
    assert_int_equal(world.client.results[i].value, 100 + i);
  }
  rpc_world_close(&world);
}

static void test_call_times_out_and_late_answer_is_dropped(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  rpc_world_connect(&world);
  world.server.hold = true;
  rpc_call(&world, "slow", 0, 20, 0);
  rpc_call(&world, "slow", 0, PATIENCE_NEVER_MS, 1);
  SPIN_UNTIL(&world, world.client.results[0].n && world.server.n_held == 2);
  assert_int_equal(world.client.results[0].code, ZPS_ERR_TIMEOUT);
  assert_non_null(strstr(world.client.results[0].text, "'slow'"));
  zps_rpc_reply(world.server.held[0], NULL);
  zps_rpc_reply(world.server.held[1], zps_json_set_u64(zps_json_object(), "y", 9));
  SPIN_UNTIL(&world, world.client.results[1].n);
  assert_int_equal(world.client.results[1].value, 9);
  assert_int_equal(world.client.results[0].n, 1);
  rpc_world_close(&world);
}

static void test_peer_closes_mid_call(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  rpc_world_connect(&world);
  world.server.hold = true;
  rpc_call(&world, "slow", 0, PATIENCE_NEVER_MS, 0);
  SPIN_UNTIL(&world, world.server.n_held == 1);
  zps_rpc_close(world.server.conn, false);
  SPIN_UNTIL(&world, world.client.n_close);
  assert_int_equal(world.client.results[0].n, 1);
  assert_int_equal(world.client.results[0].code, ZPS_ERR_CLOSED);
  assert_int_equal(world.client.close_code, ZPS_ERR_CLOSED);
  zps_rpc_reply(world.server.held[0], zps_json_object()); /* too late, and harmless */
  rpc_world_close(&world);
}

/* A peer says something and closes. What it said is heard, though a write to it fails before it is read. Over TCP a
 * second write finds the first one's refusal. */
static void expect_last_words(const char *address) {
  struct world world;
  rpc_world_open_at(&world, address);
  rpc_world_connect(&world);
  assert_int_equal(zps_rpc_notify(world.client.conn, "away", rpc_x_is(7)), ZPS_OK);
  zps_rpc_close(world.client.conn, false);
  for (int i = 0; i < 2; i++) assert_int_equal(zps_rpc_notify(world.server.conn, "beat", rpc_x_is(0)), ZPS_OK);
  SPIN_UNTIL(&world, world.server.n_close);
  assert_int_equal(world.server.n_message, 1);
  assert_string_equal(world.server.method, "away");
  assert_int_equal(world.server.param, 7);
  assert_int_equal(world.server.close_code, ZPS_ERR_CLOSED);
  rpc_world_close(&world);
}

static void test_last_words(void **state) {
  (void)state;
  char path[64];
  signal(SIGPIPE, SIG_IGN); /* Daemons ignore it. */
  snprintf(path, sizeof path, "unix:/tmp/zps-rpc-last.%d", (int)getpid());
  expect_last_words(path);
  expect_last_words("127.0.0.1:0");
}

static void test_large_answer(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  rpc_world_connect(&world);
  world.server.hold = true;
  for (int i = 0; i < 2; i++) rpc_call(&world, "slow", 0, PATIENCE_NEVER_MS, i);
  SPIN_UNTIL(&world, world.server.n_held == 2);
  const size_t size = 5u << 20;
  char *text = malloc(size + 1);
  memset(text, 'a', size);
  text[size] = '\0';
  zps_rpc_reply(world.server.held[0], zps_json_set_str(zps_json_object(), "text", text));
  text[3u << 20] = '\0';
  zps_rpc_reply(world.server.held[1], zps_json_set_u64(zps_json_set_str(zps_json_object(), "text", text), "y", 3));
  free(text);
  SPIN_UNTIL(&world, world.client.results[1].n);
  assert_int_equal(world.client.results[0].code, ZPS_ERR_TRUNCATED);
  assert_int_equal(world.client.results[1].value, 3);
  rpc_world_close(&world);
}

static void test_connect_refused_and_bad_addresses(void **state) {
  (void)state;
  struct world world;
  char address[64];
  const int bound = raw_bind(address, sizeof address);
  rpc_world_open(&world);
  assert_int_equal(rpc_dial(&world, address, PATIENCE_NEVER_MS), ZPS_OK);
  SPIN_UNTIL(&world, world.client.n_connected);
  assert_int_equal(world.client.connect_code, ZPS_ERR_CONNECT);
  assert_non_null(strstr(world.client.reason, "connection refused"));
  assert_non_null(strstr(world.client.reason, address));
  assert_int_equal(rpc_dial(&world, "unix:/nonexistent/socket", PATIENCE_NEVER_MS), ZPS_OK);
  SPIN_UNTIL(&world, world.client.n_connected == 2);
  assert_int_equal(world.client.connect_code, ZPS_ERR_CONNECT);
  assert_int_equal(rpc_dial(&world, "nowhere", PATIENCE_NEVER_MS), ZPS_ERR_INVALID);
  rpc_world_close(&world);
  close(bound);
}

static void test_close_while_connecting(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  assert_int_equal(rpc_dial(&world, zps_rpc_listener_address(world.listener), PATIENCE_NEVER_MS), ZPS_OK);
  zps_rpc_close(world.client.conn, true);
  SPIN_UNTIL(&world, world.client.n_connected);
  assert_int_equal(world.client.connect_code, ZPS_ERR_CLOSED);
  assert_int_equal(world.client.n_close, 0);
  rpc_world_close(&world);
}

static void close_inside(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct world *world = ctx;
  rpc_on_result(&world->client.results[0], result, error);
  if (world->client.conn && !error) zps_rpc_close(world->client.conn, false);
}

static void test_close_from_inside_a_result(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  rpc_world_connect(&world);
  for (int i = 0; i < 3; i++)
    assert_int_equal(zps_rpc_call(world.client.conn, "double", rpc_x_is(1), PATIENCE_NEVER_MS, close_inside, &world),
                     ZPS_OK);
  SPIN_UNTIL(&world, world.client.n_close);
  assert_int_equal(world.client.results[0].n, 3);
  assert_int_equal(world.client.results[0].code, ZPS_ERR_CLOSED);
  rpc_world_close(&world);
}

/* What a listener holds back leaves later, in its order; with a connection that ends meanwhile it is gone. */
static void test_held_back(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  rpc_world_connect(&world);
  zps_rpc_listener_hold(world.listener, true);
  rpc_call(&world, "double", 21, PATIENCE_NEVER_MS, 0);
  SPIN_UNTIL(&world, world.server.n_message == 1); /* it is answered by now */
  assert_int_equal(zps_rpc_notify(world.server.conn, "down", rpc_x_is(8)), ZPS_OK);
  const size_t unsent = zps_rpc_conn_unsent(world.server.conn);
  assert_true(unsent > 0);
  assert_int_equal(zps_rpc_notify(world.client.conn, "up", rpc_x_is(7)), ZPS_OK);
  SPIN_UNTIL(&world, world.server.n_message == 2);
  assert_int_equal(zps_rpc_conn_unsent(world.server.conn), unsent);
  assert_true(world.client.results[0].n == 0 && world.client.n_message == 0);
  zps_rpc_listener_hold(world.listener, false);
  SPIN_UNTIL(&world, world.client.n_message);
  assert_int_equal(world.client.results[0].value, 42);
  zps_rpc_listener_hold(world.listener, true);
  assert_int_equal(zps_rpc_notify(world.server.conn, "down", rpc_x_is(9)), ZPS_OK);
  zps_rpc_close(world.server.conn, false);
  SPIN_UNTIL(&world, world.client.n_close);
  assert_int_equal(world.client.n_message, 1);
  zps_rpc_listener_hold(world.listener, false);
  rpc_world_close(&world);
}

/* ---- Without memory ---- */

static zps_err_t sweep_listen(void *ctx) {
  struct world *world = ctx;
  const struct zps_rpc_handler handler = rpc_handler_of(&world->server);
  struct zps_error error;
  return zps_rpc_listen(&world->loop, "127.0.0.1:0", "coordinator", &handler, &world->listener, &error);
}

static void sweep_listen_end(void *ctx) {
  rpc_world_close(ctx);
}

static zps_err_t sweep_connect(void *ctx) {
  struct world *world = ctx;
  return rpc_dial(world, zps_rpc_listener_address(world->listener), PATIENCE_NEVER_MS);
}

static void sweep_connect_end(void *ctx) {
  struct world *world = ctx;
  SPIN_UNTIL(world, world->client.n_connected);
  assert_int_equal(world->client.connect_code, ZPS_OK);
  rpc_world_close(world);
}

static void test_out_of_memory(void **state) {
  (void)state;
  struct world world = {0};
  assert_int_equal(uv_loop_init(&world.loop), 0);
  oom_sweep(sweep_listen, sweep_listen_end, &world, 1);
  rpc_world_open(&world);
  oom_sweep(sweep_connect, sweep_connect_end, &world, 2);
}

static int expect_warnings(void **state) {
  (void)state;
  logs_start();
  logs_allow(ZPS_LOG_WARN, "a connection is refused: out of memory"); /* where the sweep hits the server */
  return 0;
}

static void on_moved(void *ctx, const char *leader) {
  snprintf(ctx, 64, "to %s", leader);
}

static void on_moved_connected(void *ctx, struct zps_rpc_conn *conn, const struct zps_error *error) {
  (void)conn;
  assert_int_equal(error->code, ZPS_ERR_CONNECT);
  assert_non_null(strstr(error->text, ": it follows"));
  strcat(ctx, "!");
}

/* A listener that does not lead says who does; connections that are open stay, and others are taken again. */
static void test_a_listener_that_does_not_lead(void **state) {
  (void)state;
  struct world world;
  char moved[64] = "";
  struct zps_error error;
  struct zps_rpc_conn *conn;
  const struct zps_rpc_handler handler = {.ctx = moved, .on_moved = on_moved};
  rpc_world_open(&world);
  rpc_world_connect(&world);
  const char *const address = zps_rpc_listener_address(world.listener);
  zps_rpc_listener_refuse(world.listener, "it follows", "there:1");
  assert_int_equal(
      zps_rpc_connect(&world.loop, address, "worker", PATIENCE_NEVER_MS, &handler, on_moved_connected, &conn, &error),
      0);
  SPIN_UNTIL(&world, strchr(moved, '!'));
  assert_string_equal(moved, "to there:1!");
  zps_rpc_listener_refuse(world.listener, "it follows", "");
  assert_int_equal(
      zps_rpc_connect(&world.loop, address, "worker", PATIENCE_NEVER_MS, &handler, on_moved_connected, &conn, &error),
      0);
  moved[0] = '\0';
  SPIN_UNTIL(&world, strchr(moved, '!'));
  assert_string_equal(moved, "to !");
  rpc_call(&world, "double", 4, PATIENCE_NEVER_MS, 0);
  SPIN_UNTIL(&world, world.client.results[0].n);
  assert_int_equal(world.client.results[0].value, 8);
  zps_rpc_close(world.client.conn, false);
  SPIN_UNTIL(&world, world.client.n_close && world.server.n_close);
  zps_rpc_listener_refuse(world.listener, NULL, NULL);
  world.client.n_connected = world.server.n_open = 0;
  rpc_world_connect(&world);
  rpc_world_close(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_exchange_v4),
      cmocka_unit_test(test_exchange_v6),
      cmocka_unit_test(test_exchange_by_name),
      cmocka_unit_test(test_exchange_unix),
      cmocka_unit_test(test_port_in_use),
      cmocka_unit_test(test_patience_of_tcp),
      cmocka_unit_test(test_answers_out_of_order),
      cmocka_unit_test(test_call_times_out_and_late_answer_is_dropped),
      cmocka_unit_test(test_peer_closes_mid_call),
      cmocka_unit_test(test_last_words),
      cmocka_unit_test(test_large_answer),
      cmocka_unit_test(test_close_from_inside_a_result),
      cmocka_unit_test(test_connect_refused_and_bad_addresses),
      cmocka_unit_test(test_close_while_connecting),
      cmocka_unit_test(test_held_back),
      cmocka_unit_test(test_out_of_memory),
      cmocka_unit_test(test_a_listener_that_does_not_lead),
  };
  return cmocka_run_group_tests(tests, expect_warnings, logs_check);
}

/* JSON-RPC over real sockets of this host: both ends on one loop, or one end played by a plain socket. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/control/rpc_internal.h"
#include "tests/support/logs.h"
#include "tests/support/oom.h"

#define GUARD_MS 10000u /* nothing here takes that long: a hang fails instead */

enum { HELD_MAX = 8 };

/* What one end has seen. */
struct end {
  struct zps_rpc_conn *conn;
  int n_open, n_close, n_message, n_connected;
  zps_err_t close_code, connect_code;
  char reason[500], method[64];
  uint64_t param;
  struct zps_rpc_request *held[HELD_MAX];
  int n_held;
  bool hold; /* keep requests instead of answering */
  struct result {
    int n;
    zps_err_t code;
    uint64_t value;
    char text[500];
  } results[HELD_MAX];
};

struct world {
  uv_loop_t loop;
  struct zps_rpc_listener *listener;
  struct end server, client;
};

static void on_open(void *ctx, struct zps_rpc_conn *conn) {
  struct end *end = ctx;
  end->conn = conn;
  end->n_open++;
}

static void on_message(void *ctx, struct zps_rpc_conn *conn, const char *method, const zps_json *params,
                       struct zps_rpc_request *request) {
  struct end *end = ctx;
  (void)conn;
  end->n_message++;
  snprintf(end->method, sizeof end->method, "%s", method);
  end->param = zps_json_opt_u64(params, "x", 0);
  if (!request) return;
  if (end->hold && end->n_held < HELD_MAX)
    end->held[end->n_held++] = request;
  else if (strcmp(method, "double") == 0)
    zps_rpc_reply(request, zps_json_set_u64(zps_json_object(), "y", 2 * end->param));
  else if (strcmp(method, "shape") == 0)
    zps_rpc_reply_error(request, ZPS_ERR_SHAPE, "rows %d, not %d", 5, 6);
  else
    zps_rpc_reply_error(request, ZPS_ERR_UNSUPPORTED, "no method '%s'", method);
}

static void on_close(void *ctx, struct zps_rpc_conn *conn, zps_err_t code, const char *reason) {
  struct end *end = ctx;
  assert_ptr_equal(conn, end->conn);
  end->conn = NULL;
  end->n_close++;
  end->close_code = code;
  snprintf(end->reason, sizeof end->reason, "%s", reason);
}

static void on_connected(void *ctx, struct zps_rpc_conn *conn, const struct zps_error *error) {
  struct end *end = ctx;
  end->n_connected++;
  end->conn = conn;
  end->connect_code = error ? error->code : ZPS_OK;
  if (error) snprintf(end->reason, sizeof end->reason, "%s", error->text);
}

static void on_result(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct result *out = ctx;
  out->n++;
  out->code = error ? error->code : ZPS_OK;
  out->value = zps_json_opt_u64(result, "y", 0);
  if (error) snprintf(out->text, sizeof out->text, "%s", error->text);
}

static struct zps_rpc_handler handler_of(struct end *end) {
  return (struct zps_rpc_handler){.ctx = end, .on_open = on_open, .on_message = on_message, .on_close = on_close};
}

static void tick(struct world *world, uint64_t *until_ns) {
  if (*until_ns == 0) *until_ns = zps_clock_ns() + GUARD_MS * ZPS_NS_PER_MS;
  uv_run(&world->loop, UV_RUN_NOWAIT);
  assert_true(zps_clock_ns() < *until_ns);
  poll(NULL, 0, 1);
}

#define SPIN_UNTIL(world, condition) \
  for (uint64_t until_ = 0; !(condition);) tick((world), &until_)

static void world_open_at(struct world *world, const char *address) {
  struct zps_error error;
  memset(world, 0, sizeof *world);
  assert_int_equal(uv_loop_init(&world->loop), 0);
  const struct zps_rpc_handler handler = handler_of(&world->server);
  error.text[0] = '\0';
  const zps_err_t code = zps_rpc_listen(&world->loop, address, "coordinator", &handler, &world->listener, &error);
  assert_string_equal(error.text, "");
  assert_int_equal(code, ZPS_OK);
}

static void world_open(struct world *world) {
  world_open_at(world, "127.0.0.1:0");
}

static zps_err_t dial(struct world *world, const char *address, uint64_t timeout_ms) {
  const struct zps_rpc_handler handler = handler_of(&world->client);
  struct zps_error error;
  return zps_rpc_connect(&world->loop, address, "worker", timeout_ms, &handler, on_connected, &world->client.conn,
                         &error);
}

static void world_connect(struct world *world) {
  assert_int_equal(dial(world, zps_rpc_listener_address(world->listener), 5000), ZPS_OK);
  SPIN_UNTIL(world, world->client.n_connected && world->server.n_open);
  assert_int_equal(world->client.connect_code, ZPS_OK);
}

static void world_close(struct world *world) {
  if (world->client.conn) zps_rpc_close(world->client.conn, false);
  zps_rpc_listener_close(world->listener);
  SPIN_UNTIL(world, !uv_loop_alive(&world->loop));
  assert_int_equal(uv_loop_close(&world->loop), 0);
}

static zps_json *x_is(uint64_t x) {
  return zps_json_set_u64(zps_json_object(), "x", x);
}

static void call(struct world *world, const char *method, uint64_t x, uint64_t timeout_ms, int slot) {
  assert_int_equal(
      zps_rpc_call(world->client.conn, method, x_is(x), timeout_ms, on_result, &world->client.results[slot]), ZPS_OK);
}

/* ---- Both ends ours ---- */

static void exchange(struct world *world) {
  world_connect(world);
  assert_string_equal(zps_rpc_conn_role(world->server.conn), "worker");
  assert_string_equal(zps_rpc_conn_role(world->client.conn), "coordinator");
  assert_string_equal(zps_rpc_conn_version(world->client.conn), zps_rpc_conn_version(world->server.conn));
  call(world, "double", 21, 5000, 0);
  call(world, "shape", 0, 5000, 1);
  call(world, "nonsense", 0, 5000, 2);
  SPIN_UNTIL(world, world->client.results[2].n);
  assert_int_equal(world->client.results[0].value, 42);
  assert_int_equal(world->client.results[1].code, ZPS_ERR_SHAPE);
  assert_string_equal(world->client.results[1].text, "rows 5, not 6");
  assert_int_equal(world->client.results[2].code, ZPS_ERR_UNSUPPORTED);

  assert_int_equal(zps_rpc_notify(world->client.conn, "up", x_is(7)), ZPS_OK);
  assert_int_equal(zps_rpc_notify(world->server.conn, "down", x_is(8)), ZPS_OK);
  SPIN_UNTIL(world, world->client.n_message && world->server.n_message == 4);
  assert_string_equal(world->client.method, "down");
  assert_int_equal(world->client.param, 8);
  assert_string_equal(world->server.method, "up");
  assert_int_equal(world->server.param, 7);

  struct result back = {0};
  assert_int_equal(zps_rpc_call(world->server.conn, "double", x_is(4), 5000, on_result, &back), ZPS_OK);
  SPIN_UNTIL(world, back.n);
  assert_int_equal(back.value, 8);

  zps_rpc_close(world->client.conn, true);
  SPIN_UNTIL(world, world->client.n_close && world->server.n_close);
  assert_int_equal(world->client.close_code, ZPS_OK);
  assert_int_equal(world->server.close_code, ZPS_ERR_CLOSED);
  world_close(world);
}

static void test_exchange_v4(void **state) {
  (void)state;
  struct world world;
  world_open(&world);
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
  world_open_at(&world, "[::1]:0");
  assert_int_equal(strncmp(zps_rpc_listener_address(world.listener), "[::1]:", 6), 0);
  exchange(&world);
}

static void test_exchange_by_name(void **state) {
  (void)state;
  struct world world;
  char address[64];
  world_open(&world);
  snprintf(address, sizeof address, "localhost:%s", strrchr(zps_rpc_listener_address(world.listener), ':') + 1);
  assert_int_equal(dial(&world, address, 5000), ZPS_OK);
  SPIN_UNTIL(&world, world.client.n_connected);
  assert_int_equal(world.client.connect_code, ZPS_OK);
  world_close(&world);
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

  world_open_at(&world, address);
  struct zps_rpc_listener *second = NULL;
  struct zps_error error;
  const struct zps_rpc_handler handler = handler_of(&world.server);
  assert_int_equal(zps_rpc_listen(&world.loop, address, "coordinator", &handler, &second, &error), ZPS_ERR_BUSY);
  assert_null(second);
  exchange(&world);
  assert_int_equal(stat(path, &st), -1);

  FILE *file = fopen(path, "w"); /* somebody's file */
  assert_non_null(file);
  fclose(file);
  memset(&world, 0, sizeof world);
  assert_int_equal(uv_loop_init(&world.loop), 0);
  assert_int_equal(zps_rpc_listen(&world.loop, address, "coordinator", &handler, &second, &error), ZPS_ERR_INVALID);
  assert_int_equal(stat(path, &st), 0);
  world_close(&world);
  unlink(path);
  rmdir(dir);
}

static void test_port_in_use(void **state) {
  (void)state;
  struct world world;
  world_open(&world);
  struct zps_rpc_listener *second = NULL;
  struct zps_error error;
  const struct zps_rpc_handler handler = handler_of(&world.server);
  assert_int_equal(
      zps_rpc_listen(&world.loop, zps_rpc_listener_address(world.listener), "coordinator", &handler, &second, &error),
      ZPS_ERR_BUSY);
  assert_non_null(strstr(error.text, "already in use"));
  world_close(&world);
}

static void test_answers_out_of_order(void **state) {
  (void)state;
  struct world world;
  world_open(&world);
  world_connect(&world);
  world.server.hold = true;
  for (int i = 0; i < 4; i++) call(&world, "slow", (uint64_t)i, 5000, i);
  SPIN_UNTIL(&world, world.server.n_held == 4);
  for (int i = 3; i >= 0; i--)
    zps_rpc_reply(world.server.held[i], zps_json_set_u64(zps_json_object(), "y", 100u + (unsigned)i));
  SPIN_UNTIL(&world, world.client.results[0].n);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(world.client.results[i].n, 1);
    assert_int_equal(world.client.results[i].value, 100 + i);
  }
  world_close(&world);
}

static void test_call_times_out_and_late_answer_is_dropped(void **state) {
  (void)state;
  struct world world;
  world_open(&world);
  world_connect(&world);
  world.server.hold = true;
  call(&world, "slow", 0, 20, 0);
  call(&world, "slow", 0, 5000, 1);
  SPIN_UNTIL(&world, world.client.results[0].n && world.server.n_held == 2);
  assert_int_equal(world.client.results[0].code, ZPS_ERR_TIMEOUT);
  assert_non_null(strstr(world.client.results[0].text, "'slow'"));
  zps_rpc_reply(world.server.held[0], NULL);
  zps_rpc_reply(world.server.held[1], zps_json_set_u64(zps_json_object(), "y", 9));
  SPIN_UNTIL(&world, world.client.results[1].n);
  assert_int_equal(world.client.results[1].value, 9);
  assert_int_equal(world.client.results[0].n, 1);
  world_close(&world);
}

static void test_peer_closes_mid_call(void **state) {
  (void)state;
  struct world world;
  world_open(&world);
  world_connect(&world);
  world.server.hold = true;
  call(&world, "slow", 0, 5000, 0);
  SPIN_UNTIL(&world, world.server.n_held == 1);
  zps_rpc_close(world.server.conn, false);
  SPIN_UNTIL(&world, world.client.n_close);
  assert_int_equal(world.client.results[0].n, 1);
  assert_int_equal(world.client.results[0].code, ZPS_ERR_CLOSED);
  assert_int_equal(world.client.close_code, ZPS_ERR_CLOSED);
  zps_rpc_reply(world.server.held[0], zps_json_object()); /* too late, and harmless */
  world_close(&world);
}

static void test_large_answer(void **state) {
  (void)state;
  struct world world;
  world_open(&world);
  world_connect(&world);
  world.server.hold = true;
  for (int i = 0; i < 2; i++) call(&world, "slow", 0, 5000, i);
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
  world_close(&world);
}

/* ---- A peer that is a plain socket ---- */

static int raw_connect(struct world *world) {
  struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  addr.sin_port = htons((uint16_t)atoi(strrchr(zps_rpc_listener_address(world->listener), ':') + 1));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
  return fd;
}

static void raw_send(struct world *world, int fd, const char *text, size_t len) {
  uint64_t until_ns = 0;
  while (len) {
    const ssize_t n = send(fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return; /* the other end may have had enough */
    text += n > 0 ? n : 0;
    len -= n > 0 ? (size_t)n : 0;
    tick(world, &until_ns);
  }
}

/* Everything the peer sends until it closes. */
static void raw_read_to_end(struct world *world, int fd, char *buf, size_t size) {
  uint64_t until_ns = 0;
  size_t len = 0;
  for (;;) {
    const ssize_t n = recv(fd, buf + len, size - 1 - len, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) break;
    len += n > 0 ? (size_t)n : 0;
    tick(world, &until_ns);
  }
  buf[len] = '\0';
}

static void raw_read_line(struct world *world, int fd, char *buf, size_t size) {
  uint64_t until_ns = 0;
  size_t len = 0;
  while (len == 0 || buf[len - 1] != '\n') {
    const ssize_t n = recv(fd, buf + len, size - 1 - len, MSG_DONTWAIT);
    assert_true(n > 0 || (n < 0 && errno == EAGAIN));
    len += n > 0 ? (size_t)n : 0;
    tick(world, &until_ns);
  }
  buf[len] = '\0';
}

#define HELLO(protocol)                                                                       \
  "{\"jsonrpc\":\"2.0\",\"id\":\"h\",\"method\":\"hello\",\"params\":{\"protocol\":" protocol \
  ",\"version\":\"9.9\",\"role\":\"worker\"}}\n"

/* What the server answers, as its last words, to `text`. */
static void expect_refusal(const char *text, size_t len, const char *number, const char *sentence) {
  struct world world;
  char answer[4096];
  world_open(&world);
  const int fd = raw_connect(&world);
  raw_send(&world, fd, text, len);
  raw_read_to_end(&world, fd, answer, sizeof answer);
  if (!strstr(answer, number) || !strstr(answer, sentence)) fail_msg("unexpected answer: %s", answer);
  close(fd);
  SPIN_UNTIL(&world, world.server.n_open == world.server.n_close);
  world_close(&world);
}

static void expect_refusal_text(const char *text, const char *number, const char *sentence) {
  expect_refusal(text, strlen(text), number, sentence);
}

static void test_refuses_another_protocol(void **state) {
  (void)state;
  expect_refusal_text(HELLO("2"), "\"code\":-9", "the coordinator (zenps ");
  expect_refusal_text(HELLO("2"), "\"name\":\"ERR_VERSION\"",
                      "speaks protocol version 1, but the worker at 127.0.0.1:");
  expect_refusal_text(HELLO("2"), "\"id\":\"h\"", "(zenps 9.9) speaks version 2");
}

static void test_refuses_garbage(void **state) {
  (void)state;
  expect_refusal_text("GET / HTTP/1.1\r\n\r\n", "-32700", "not JSON");
  expect_refusal_text("\x16\x03\x01\x02\n", "-32700", "not JSON");
  expect_refusal_text("[]\n", "-32600", "no JSON object");
  expect_refusal_text("{\"id\":1,\"method\":\"hello\"}\n", "-32600", "2.0");
  expect_refusal_text("{\"jsonrpc\":\"2.0\",\"id\":1}\n", "-32600", "neither");
  expect_refusal_text("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}\n", "-32600", "must be a call of 'hello'");
  expect_refusal_text("{\"jsonrpc\":\"2.0\",\"method\":\"hello\"}\n", "-32600", "must be a call of 'hello'");
  expect_refusal_text("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hello\"}\n", "-32600", "member 'role' is missing");
  expect_refusal_text(HELLO("-1"), "-32600", "member 'protocol' is -1");
  expect_refusal_text(HELLO("1") "nonsense\n", "-32700", "not JSON");
  expect_refusal_text(HELLO("1") "{\"jsonrpc\":\"2.0\",\"method\":5}\n", "-32600", "member 'method' is an integer");
}

static void test_refuses_oversize_lines(void **state) {
  (void)state;
  const size_t size = 6u << 20;
  const char *hello = HELLO("1");
  char *text = malloc(size);
  memset(text, 'x', size);
  expect_refusal(text, 100000, "-32600", "line of more than 65536 bytes"); /* strangers get less room */
  memcpy(text, hello, strlen(hello));
  expect_refusal(text, size, "-32600", "line of more than 4194304 bytes");
  free(text);
}

static void test_hello_has_a_deadline_however_it_drips(void **state) {
  (void)state;
  struct world world;
  char answer[64];
  world_open(&world);
  zps_rpc_listener_set_hello_ms(world.listener, 50);
  const int silent = raw_connect(&world), dripping = raw_connect(&world);
  const char *hello = HELLO("1");
  uint64_t until_ns = 0;
  for (size_t i = 0; i < 10000; i++) {
    if (send(dripping, &hello[i % 20], 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
    tick(&world, &until_ns);
  }
  raw_read_to_end(&world, dripping, answer, sizeof answer);
  assert_string_equal(answer, "");
  raw_read_to_end(&world, silent, answer, sizeof answer);
  assert_string_equal(answer, "");
  assert_int_equal(world.server.n_open, 0);
  assert_int_equal(world.server.n_close, 0);
  close(silent);
  close(dripping);
  world_close(&world);
}

static void test_split_and_joined_lines(void **state) {
  (void)state;
  struct world world;
  char answer[4096];
  const char *text = HELLO("1") "\r\n{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"double\",\"params\":{\"x\":5}}\r\n"
      "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"double\"}\n";
  world_open(&world);
  const int fd = raw_connect(&world);
  for (size_t i = 0; i < strlen(text); i++) raw_send(&world, fd, text + i, 1);
  SPIN_UNTIL(&world, world.server.n_message == 2);
  shutdown(fd, SHUT_WR);
  raw_read_to_end(&world, fd, answer, sizeof answer);
  assert_non_null(strstr(answer, "\"protocol\":1"));
  assert_non_null(strstr(answer, "\"features\":[]"));
  assert_non_null(strstr(answer, "\"id\":7,\"result\":{\"y\":10}}\n"));
  assert_non_null(strstr(answer, "\"id\":null,\"result\":{\"y\":0}}\n"));
  close(fd);
  world_close(&world);
}

static void test_a_peer_that_does_not_read_is_closed(void **state) {
  (void)state;
  struct world world;
  world_open(&world);
  const int fd = raw_connect(&world);
  raw_send(&world, fd, HELLO("1"), strlen(HELLO("1")));
  SPIN_UNTIL(&world, world.server.n_open);
  char *text = malloc((1u << 20) + 1);
  memset(text, 'a', 1u << 20);
  text[1u << 20] = '\0';
  int n_sent = 0;
  while (n_sent < 100 &&
         zps_rpc_notify(world.server.conn, "n", zps_json_set_str(zps_json_object(), "t", text)) == ZPS_OK)
    n_sent++;
  free(text);
  assert_true(n_sent > 10 && n_sent < 100);
  SPIN_UNTIL(&world, world.server.n_close);
  assert_non_null(strstr(world.server.reason, "does not read"));
  close(fd);
  world_close(&world);
}

static void test_too_many_calls_of_the_peer(void **state) {
  (void)state;
  struct world world;
  world_open(&world);
  world.server.hold = true;
  const int fd = raw_connect(&world);
  raw_send(&world, fd, HELLO("1"), strlen(HELLO("1")));
  const char *line = "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"error\"}\n";
  SPIN_UNTIL(&world, world.server.n_open);
  struct zps_rpc_conn *conn = world.server.conn;
  SPIN_UNTIL(&world, world.server.n_held == HELD_MAX || (raw_send(&world, fd, line, strlen(line)), false));
  assert_int_equal(conn->n_requests, HELD_MAX);
  conn->n_requests = ZPS_RPC_PENDING_MAX; /* as if that many were held */
  raw_send(&world, fd, line, strlen(line));
  SPIN_UNTIL(&world, world.server.n_close);
  assert_non_null(strstr(world.server.reason, "calls in flight"));
  for (int i = 0; i < HELD_MAX; i++) zps_rpc_reply(world.server.held[i], NULL);
  close(fd);
  world_close(&world);
}

/* ---- The client against odd servers ---- */

static int raw_listen(char *address, size_t size) {
  struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof addr;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
  assert_int_equal(listen(fd, 4), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
  snprintf(address, size, "127.0.0.1:%u", ntohs(addr.sin_port));
  return fd;
}

/* Connects to a server that answers the hello with `answer`, and expects this failure. */
static void expect_failure(const char *answer, uint64_t timeout_ms, zps_err_t code, const char *sentence) {
  struct world world;
  char address[64], line[4096];
  world_open(&world);
  const int listener = raw_listen(address, sizeof address);
  assert_int_equal(dial(&world, address, timeout_ms), ZPS_OK);
  SPIN_UNTIL(&world, poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 0) == 1);
  const int fd = accept(listener, NULL, NULL);
  raw_read_line(&world, fd, line, sizeof line);
  assert_non_null(strstr(line, "\"method\":\"hello\""));
  if (answer) raw_send(&world, fd, answer, strlen(answer));
  if (answer && !*answer) shutdown(fd, SHUT_RDWR);
  SPIN_UNTIL(&world, world.client.n_connected);
  assert_int_equal(world.client.connect_code, code);
  if (!strstr(world.client.reason, sentence)) fail_msg("unexpected reason: %s", world.client.reason);
  assert_null(world.client.conn);
  assert_int_equal(world.client.n_close, 0);
  close(fd);
  close(listener);
  world_close(&world);
}

static void test_client_refuses_odd_servers(void **state) {
  (void)state;
  expect_failure(
      "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocol\":7,\"version\":\"8\",\"role\":\"coordinator\"}}\n", 5000,
      ZPS_ERR_VERSION, "speaks version 7");
  expect_failure(
      "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-9,\"message\":\"old\",\"data\":{\"name\":\"ERR_VERSION\"}}}"
      "\n",
      5000, ZPS_ERR_VERSION, "old");
  expect_failure("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n", 5000, ZPS_ERR_PROTOCOL, "'role' is missing");
  expect_failure("{\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n", 5000, ZPS_ERR_PROTOCOL, "before it answered hello");
  expect_failure("SSH-2.0-OpenSSH\r\n", 5000, ZPS_ERR_PROTOCOL, "not JSON");
  expect_failure("", 5000, ZPS_ERR_CLOSED, "closed by the peer");
  expect_failure(NULL, 50, ZPS_ERR_TIMEOUT, "no hello in time");
}

static void test_connect_refused_and_bad_addresses(void **state) {
  (void)state;
  struct world world;
  char address[64];
  close(raw_listen(address, sizeof address)); /* nobody listens there */
  world_open(&world);
  assert_int_equal(dial(&world, address, 5000), ZPS_OK);
  SPIN_UNTIL(&world, world.client.n_connected);
  assert_int_equal(world.client.connect_code, ZPS_ERR_CONNECT);
  assert_non_null(strstr(world.client.reason, "connection refused"));
  assert_non_null(strstr(world.client.reason, address));
  assert_int_equal(dial(&world, "unix:/nonexistent/socket", 5000), ZPS_OK);
  SPIN_UNTIL(&world, world.client.n_connected == 2);
  assert_int_equal(world.client.connect_code, ZPS_ERR_CONNECT);
  assert_int_equal(dial(&world, "nowhere", 5000), ZPS_ERR_INVALID);
  world_close(&world);
}

static void test_close_while_connecting(void **state) {
  (void)state;
  struct world world;
  world_open(&world);
  assert_int_equal(dial(&world, zps_rpc_listener_address(world.listener), 5000), ZPS_OK);
  zps_rpc_close(world.client.conn, true);
  SPIN_UNTIL(&world, world.client.n_connected);
  assert_int_equal(world.client.connect_code, ZPS_ERR_CLOSED);
  assert_int_equal(world.client.n_close, 0);
  world_close(&world);
}

static void close_inside(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct world *world = ctx;
  on_result(&world->client.results[0], result, error);
  if (world->client.conn && !error) zps_rpc_close(world->client.conn, false);
}

static void test_close_from_inside_a_result(void **state) {
  (void)state;
  struct world world;
  world_open(&world);
  world_connect(&world);
  for (int i = 0; i < 3; i++)
    assert_int_equal(zps_rpc_call(world.client.conn, "double", x_is(1), 5000, close_inside, &world), ZPS_OK);
  SPIN_UNTIL(&world, world.client.n_close);
  assert_int_equal(world.client.results[0].n, 3);
  assert_int_equal(world.client.results[0].code, ZPS_ERR_CLOSED);
  world_close(&world);
}

/* ---- Without memory ---- */

static zps_err_t sweep_listen(void *ctx) {
  struct world *world = ctx;
  const struct zps_rpc_handler handler = handler_of(&world->server);
  struct zps_error error;
  return zps_rpc_listen(&world->loop, "127.0.0.1:0", "coordinator", &handler, &world->listener, &error);
}

static void sweep_listen_end(void *ctx) {
  world_close(ctx);
}

static zps_err_t sweep_connect(void *ctx) {
  struct world *world = ctx;
  return dial(world, zps_rpc_listener_address(world->listener), 5000);
}

static void sweep_connect_end(void *ctx) {
  struct world *world = ctx;
  SPIN_UNTIL(world, world->client.n_connected);
  assert_int_equal(world->client.connect_code, ZPS_OK);
  world_close(world);
}

static void test_out_of_memory(void **state) {
  (void)state;
  struct world world = {0};
  assert_int_equal(uv_loop_init(&world.loop), 0);
  oom_sweep(sweep_listen, sweep_listen_end, &world, 1);
  world_open(&world);
  oom_sweep(sweep_connect, sweep_connect_end, &world, 2);
}

static void test_connections_without_memory_are_refused_one_by_one(void **state) {
  (void)state;
  enum { N = 3 };
  struct world world;
  char answer[64];
  int fds[N];
  world_open(&world);
  for (int i = 0; i < N; i++) fds[i] = raw_connect(&world);
  atomic_store(&oom_granted, 0);
  for (int i = 0; i < N; i++) {
    raw_read_to_end(&world, fds[i], answer, sizeof answer);
    assert_string_equal(answer, "");
    close(fds[i]);
  }
  atomic_store(&oom_granted, OOM_UNLIMITED);
  world_connect(&world); /* and then it goes on */
  world_close(&world);
}

static int expect_warnings(void **state) {
  (void)state;
  logs_start();
  logs_expect(ZPS_LOG_WARN, "speaks protocol version 1");
  logs_expect(ZPS_LOG_WARN, "not JSON at byte");
  logs_allow(ZPS_LOG_WARN, "a connection is refused: out of memory"); /* where the sweep hits the server */
  return 0;
}

static int check_warnings(void **state) {
  (void)state;
  logs_finish();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_exchange_v4),
      cmocka_unit_test(test_exchange_v6),
      cmocka_unit_test(test_exchange_by_name),
      cmocka_unit_test(test_exchange_unix),
      cmocka_unit_test(test_port_in_use),
      cmocka_unit_test(test_answers_out_of_order),
      cmocka_unit_test(test_call_times_out_and_late_answer_is_dropped),
      cmocka_unit_test(test_peer_closes_mid_call),
      cmocka_unit_test(test_large_answer),
      cmocka_unit_test(test_close_from_inside_a_result),
      cmocka_unit_test(test_refuses_another_protocol),
      cmocka_unit_test(test_refuses_garbage),
      cmocka_unit_test(test_refuses_oversize_lines),
      cmocka_unit_test(test_hello_has_a_deadline_however_it_drips),
      cmocka_unit_test(test_split_and_joined_lines),
      cmocka_unit_test(test_a_peer_that_does_not_read_is_closed),
      cmocka_unit_test(test_too_many_calls_of_the_peer),
      cmocka_unit_test(test_client_refuses_odd_servers),
      cmocka_unit_test(test_connect_refused_and_bad_addresses),
      cmocka_unit_test(test_close_while_connecting),
      cmocka_unit_test(test_out_of_memory),
      cmocka_unit_test(test_connections_without_memory_are_refused_one_by_one),
  };
  return cmocka_run_group_tests(tests, expect_warnings, check_warnings);
}

#include "tests/unit/control/rpc_rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"

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
  if (end->n_open <= 1) assert_ptr_equal(conn, end->conn); /* of several it is the last that opened */
  if (conn == end->conn) end->conn = NULL;
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

void rpc_on_result(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct result *out = ctx;
  out->n++;
  out->code = error ? error->code : ZPS_OK;
  out->value = zps_json_opt_u64(result, "y", 0);
  if (error) snprintf(out->text, sizeof out->text, "%s", error->text);
}

struct zps_rpc_handler rpc_handler_of(struct end *end) {
  return (struct zps_rpc_handler){
      .ctx = end, .tls = end->tls, .on_open = on_open, .on_message = on_message, .on_close = on_close};
}

void rpc_tick(struct world *world, struct patience *patience) {
  uv_run(&world->loop, UV_RUN_NOWAIT);
  assert_false(patience_is_over(patience));
  poll(NULL, 0, 1);
}

static void open_at(struct world *world, const char *address) {
  struct zps_error error;
  assert_int_equal(uv_loop_init(&world->loop), 0);
  const struct zps_rpc_handler handler = rpc_handler_of(&world->server);
  error.text[0] = '\0';
  const zps_err_t code = zps_rpc_listen(&world->loop, address, "coordinator", &handler, &world->listener, &error);
  assert_string_equal(error.text, "");
  assert_int_equal(code, ZPS_OK);
  zps_rpc_listener_set_hello_ms(world->listener, PATIENCE_NEVER_MS); /* A test of this deadline sets its own. */
}

void rpc_world_open_at(struct world *world, const char *address) {
  memset(world, 0, sizeof *world);
  open_at(world, address);
}

void rpc_world_open_tls(struct world *world, struct zps_tls *listener, struct zps_tls *client) {
  memset(world, 0, sizeof *world);
  world->server.tls = listener;
  world->client.tls = client;
  open_at(world, "127.0.0.1:0");
}

void rpc_world_open(struct world *world) {
  rpc_world_open_at(world, "127.0.0.1:0");
}

zps_err_t rpc_dial(struct world *world, const char *address, uint64_t timeout_ms) {
  const struct zps_rpc_handler handler = rpc_handler_of(&world->client);
  struct zps_error error;
  return zps_rpc_connect(&world->loop, address, "worker", timeout_ms, &handler, on_connected, &world->client.conn,
                         &error);
}

void rpc_world_connect(struct world *world) {
  assert_int_equal(rpc_dial(world, zps_rpc_listener_address(world->listener), PATIENCE_NEVER_MS), ZPS_OK);
  SPIN_UNTIL(world, world->client.n_connected && world->server.n_open);
  assert_int_equal(world->client.connect_code, ZPS_OK);
}

void rpc_world_close(struct world *world) {
  if (world->client.conn) zps_rpc_close(world->client.conn, false);
  zps_rpc_listener_close(world->listener);
  SPIN_UNTIL(world, !uv_loop_alive(&world->loop));
  assert_int_equal(uv_loop_close(&world->loop), 0);
}

zps_json *rpc_x_is(uint64_t x) {
  return zps_json_set_u64(zps_json_object(), "x", x);
}

void rpc_call(struct world *world, const char *method, uint64_t x, uint64_t timeout_ms, int slot) {
  assert_int_equal(
      zps_rpc_call(world->client.conn, method, rpc_x_is(x), timeout_ms, rpc_on_result, &world->client.results[slot]),
      ZPS_OK);
}

int rpc_raw_connect(struct world *world) {
  struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  addr.sin_port = htons((uint16_t)atoi(strrchr(zps_rpc_listener_address(world->listener), ':') + 1));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
  return fd;
}

void rpc_raw_send(struct world *world, int fd, const char *text, size_t len) {
  struct patience patience = {0};
  while (len) {
    const ssize_t n = send(fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return; /* the other end may have had enough */
    text += n > 0 ? n : 0;
    len -= n > 0 ? (size_t)n : 0;
    rpc_tick(world, &patience);
  }
}

void rpc_raw_read_to_end(struct world *world, int fd, char *buf, size_t size) {
  struct patience patience = {0};
  size_t len = 0;
  for (;;) {
    const ssize_t n = recv(fd, buf + len, size - 1 - len, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) break;
    len += n > 0 ? (size_t)n : 0;
    rpc_tick(world, &patience);
  }
  buf[len] = '\0';
}

void rpc_raw_read_line(struct world *world, int fd, char *buf, size_t size) {
  struct patience patience = {0};
  size_t len = 0;
  while (len == 0 || buf[len - 1] != '\n') {
    const ssize_t n = recv(fd, buf + len, size - 1 - len, MSG_DONTWAIT);
    assert_true(n > 0 || (n < 0 && errno == EAGAIN));
    len += n > 0 ? (size_t)n : 0;
    rpc_tick(world, &patience);
  }
  buf[len] = '\0';
}

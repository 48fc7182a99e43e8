/* JSON-RPC against strangers: the other end is a plain socket that sends any bytes, or nothing. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/support/logs.h"
#include "tests/support/oom.h"
#include "tests/support/raw_listen.h"
#include "tests/unit/control/rpc_rig.h"

#define HELLO(protocol)                                                                       \
  "{\"jsonrpc\":\"2.0\",\"id\":\"h\",\"method\":\"hello\",\"params\":{\"protocol\":" protocol \
  ",\"version\":\"9.9\",\"role\":\"worker\"}}\n"

/* The last answer of the server, to `text`. */
static void expect_refusal(const char *text, size_t len, const char *number, const char *sentence) {
  struct world world;
  char answer[4096];
  rpc_world_open(&world);
  const int fd = rpc_raw_connect(&world);
  rpc_raw_send(&world, fd, text, len);
  rpc_raw_read_to_end(&world, fd, answer, sizeof answer);
  if (!strstr(answer, number) || !strstr(answer, sentence)) fail_msg("unexpected answer: %s", answer);
  close(fd);
  SPIN_UNTIL(&world, world.server.n_open == world.server.n_close);
  rpc_world_close(&world);
}

static void expect_refusal_text(const char *text, const char *number, const char *sentence) {
  expect_refusal(text, strlen(text), number, sentence);
}

static void test_refuses_another_protocol(void **state) {
  (void)state;
  expect_refusal_text(HELLO("13"), "\"code\":-9", "the coordinator (zenps ");
  expect_refusal_text(HELLO("13"), "\"name\":\"ERR_VERSION\"",
                      "speaks protocol version 12, but the worker at 127.0.0.1:");
  expect_refusal_text(HELLO("13"), "\"id\":\"h\"", "(zenps 9.9) speaks version 13");
}

static void test_refuses_garbage(void **state) {
  (void)state;
  expect_refusal_text("GET / HTTP/1.1\r\n\r\n", "-32700", "not JSON");
  expect_refusal_text("\x16\x03\x01\x02\n", "-32600", "plain JSON-RPC is spoken here, not TLS");
  expect_refusal_text("[]\n", "-32600", "no JSON object");
  expect_refusal_text("{\"id\":1,\"method\":\"hello\"}\n", "-32600", "2.0");
  expect_refusal_text("{\"jsonrpc\":\"2.0\",\"id\":1}\n", "-32600", "neither");
  expect_refusal_text("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}\n", "-32600", "must be a call of 'hello'");
  expect_refusal_text("{\"jsonrpc\":\"2.0\",\"method\":\"hello\"}\n", "-32600", "must be a call of 'hello'");
  expect_refusal_text("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hello\"}\n", "-32600", "member 'role' is missing");
  expect_refusal_text(HELLO("-1"), "-32600", "member 'protocol' is -1");
  expect_refusal_text(HELLO("12") "nonsense\n", "-32700", "not JSON");
  expect_refusal_text(HELLO("12") "{\"jsonrpc\":\"2.0\",\"method\":5}\n", "-32600", "member 'method' is an integer");
}

static void test_refuses_oversize_lines(void **state) {
  (void)state;
  const size_t size = 6u << 20;
  const char *hello = HELLO("12");
  char *text = malloc(size);
  memset(text, 'x', size);
  expect_refusal(text, 100000, "-32600", "line of more than 4096 bytes"); /* strangers get less room */
  memcpy(text, hello, strlen(hello));
  expect_refusal(text, size, "-32600", "line of more than 4194304 bytes");
  free(text);
}

/* Whether user 65534, in a process of its own, is answered at a Unix socket that everybody can reach. */
static bool stranger_is_answered(mode_t mode) {
  char folder[] = "/tmp/zenps-test-XXXXXX", path[80], address[90];
  struct world world = {.listener = NULL};
  const struct zps_rpc_access access = {.mode = mode, .group = ZPS_RPC_ANY_GROUP};
  const struct zps_rpc_handler handler = rpc_handler_of(&world.server);
  int status = -1;
  assert_non_null(mkdtemp(folder));
  assert_int_equal(chmod(folder, 0755), 0);
  snprintf(path, sizeof path, "%s/s", folder);
  snprintf(address, sizeof address, "unix:%s", path);
  assert_int_equal(uv_loop_init(&world.loop), 0);
  assert_int_equal(zps_rpc_listen_for(&world.loop, address, &access, "coordinator", &handler, &world.listener, NULL),
                   ZPS_OK);
  assert_int_equal(chmod(path, 0666), 0);
  const pid_t child = fork();
  if (child == 0) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    char answer[1];
    strcpy(addr.sun_path, path);
    const int fd = setuid(65534) == 0 ? socket(AF_UNIX, SOCK_STREAM, 0) : -1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof addr) != 0) _exit(2);
    const ssize_t sent = send(fd, HELLO("12"), strlen(HELLO("12")), MSG_NOSIGNAL);
    _exit(sent > 0 && recv(fd, answer, 1, 0) == 1 ? 0 : 1);
  }
  SPIN_UNTIL(&world, waitpid(child, &status, WNOHANG) == child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
  SPIN_UNTIL(&world, world.server.n_open == world.server.n_close);
  rpc_world_close(&world);
  unlink(path);
  rmdir(folder);
  return WEXITSTATUS(status) == 0;
}

static void test_other_users(void **state) {
  (void)state;
  if (geteuid() != 0) skip(); /* cannot become somebody else */
  assert_true(stranger_is_answered(0666));
  assert_false(stranger_is_answered(0600));
}

/* The owner of a connection may allow less. */
static void test_lines_as_long_as_the_owner_allows(void **state) {
  (void)state;
  const char *call = "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"double\"}";
  struct world world;
  char answer[4096], text[2002];
  rpc_world_open(&world);
  const int fd = rpc_raw_connect(&world);
  rpc_raw_send(&world, fd, HELLO("12"), strlen(HELLO("12")));
  SPIN_UNTIL(&world, world.server.n_open);
  zps_rpc_conn_set_line_max(world.server.conn, 2000);
  memset(text, ' ', sizeof text);
  memcpy(text, call, strlen(call));
  text[2000] = '\n';
  rpc_raw_send(&world, fd, text, 2001);
  SPIN_UNTIL(&world, world.server.n_message == 1);
  text[2000] = ' ';
  text[2001] = '\n';
  rpc_raw_send(&world, fd, text, 2002);
  rpc_raw_read_to_end(&world, fd, answer, sizeof answer);
  assert_non_null(strstr(answer, "line of more than 2000 bytes"));
  close(fd);
  SPIN_UNTIL(&world, world.server.n_close);
  rpc_world_close(&world);
}

static void test_hello_has_a_deadline_however_it_drips(void **state) {
  (void)state;
  struct world world;
  char answer[64];
  rpc_world_open(&world);
  zps_rpc_listener_set_hello_ms(world.listener, 50);
  const int silent = rpc_raw_connect(&world), dripping = rpc_raw_connect(&world);
  const char *hello = HELLO("12");
  struct patience patience = {0};
  for (size_t i = 0; i < 10000; i++) {
    if (send(dripping, &hello[i % 20], 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
    rpc_tick(&world, &patience);
  }
  rpc_raw_read_to_end(&world, dripping, answer, sizeof answer);
  assert_string_equal(answer, "");
  rpc_raw_read_to_end(&world, silent, answer, sizeof answer);
  assert_string_equal(answer, "");
  assert_int_equal(world.server.n_open, 0);
  assert_int_equal(world.server.n_close, 0);
  close(silent);
  close(dripping);
  rpc_world_close(&world);
}

/* One address: of its silent connections the oldest makes room for one more, unless it has said something. */
static void test_a_silent_crowd_makes_room(void **state) {
  (void)state;
  enum { N = ZPS_STRANGERS_OF_ORIGIN_MAX };
  struct world world;
  char answer[4096];
  int fds[N];
  rpc_world_open(&world);
  for (int i = 0; i < N; i++) fds[i] = rpc_raw_connect(&world);
  rpc_raw_send(&world, fds[0], "{", 1);
  const int one_more = rpc_raw_connect(&world);
  rpc_raw_send(&world, one_more, HELLO("12"), strlen(HELLO("12")));
  rpc_raw_read_line(&world, one_more, answer, sizeof answer);
  assert_non_null(strstr(answer, "\"result\""));
  const int another = rpc_raw_connect(&world), silent = rpc_raw_connect(&world);
  rpc_raw_read_to_end(&world, fds[1], answer, sizeof answer);
  assert_string_equal(answer, "");
  rpc_raw_send(&world, fds[0], &HELLO("12")[1], strlen(HELLO("12")) - 1);
  rpc_raw_read_line(&world, fds[0], answer, sizeof answer);
  assert_non_null(strstr(answer, "\"result\""));
  for (int i = 0; i < N; i++) close(fds[i]);
  close(one_more);
  close(another);
  close(silent);
  SPIN_UNTIL(&world, world.server.n_open == 2 && world.server.n_close == 2);
  rpc_world_close(&world);
}

/* This process slept, and what its peers have said meanwhile waits to be read: none of them was silent. */
static void test_a_sleep_is_nobodys_silence(void **state) {
  (void)state;
  enum { N = ZPS_STRANGERS_OF_ORIGIN_MAX };
  struct world world;
  char answer[4096];
  int fds[N + 1];
  rpc_world_open(&world);
  for (int i = 0; i < N; i++) fds[i] = rpc_raw_connect(&world);
  fds[N] = rpc_raw_connect(&world);
  rpc_tick(&world, &(struct patience){0});
  for (int i = 0; i < N; i++)
    assert_int_equal(send(fds[i], HELLO("12"), strlen(HELLO("12")), MSG_NOSIGNAL), strlen(HELLO("12")));
  usleep((ZPS_STRANGERS_PATIENCE_MS + 50) * 1000);
  for (int i = 0; i < N; i++) {
    rpc_raw_read_line(&world, fds[i], answer, sizeof answer);
    assert_non_null(strstr(answer, "\"result\""));
  }
  for (int i = 0; i <= N; i++) close(fds[i]);
  SPIN_UNTIL(&world, world.server.n_close == N);
  rpc_world_close(&world);
}

/* Many more than may be silent, which say hello as soon as they can: none is refused. */
static void test_a_crowd_that_speaks_comes_in(void **state) {
  (void)state;
  enum { N = 3 * ZPS_STRANGERS_OF_ORIGIN_MAX };
  struct world world;
  char line[4096];
  int fds[N];
  rpc_world_open(&world);
  for (int i = 0; i < N; i++) {
    fds[i] = rpc_raw_connect(&world);
    assert_int_equal(send(fds[i], HELLO("12"), strlen(HELLO("12")), MSG_NOSIGNAL), strlen(HELLO("12")));
  }
  for (int i = 0; i < N; i++) {
    rpc_raw_read_line(&world, fds[i], line, sizeof line);
    assert_non_null(strstr(line, "\"result\""));
    close(fds[i]);
  }
  assert_int_equal(world.server.n_open, N);
  rpc_world_close(&world);
}

static void test_split_and_joined_lines(void **state) {
  (void)state;
  struct world world;
  char answer[4096];
  const char *text = HELLO("12") "\r\n{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"double\",\"params\":{\"x\":5}}\r\n"
      "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"double\"}\n";
  rpc_world_open(&world);
  const int fd = rpc_raw_connect(&world);
  for (size_t i = 0; i < strlen(text); i++) rpc_raw_send(&world, fd, text + i, 1);
  SPIN_UNTIL(&world, world.server.n_message == 2);
  shutdown(fd, SHUT_WR);
  rpc_raw_read_to_end(&world, fd, answer, sizeof answer);
  assert_non_null(strstr(answer, "\"protocol\":12"));
  assert_non_null(strstr(answer, "\"features\":[]"));
  assert_non_null(strstr(answer, "\"id\":7,\"result\":{\"y\":10}}\n"));
  assert_non_null(strstr(answer, "\"id\":null,\"result\":{\"y\":0}}\n"));
  close(fd);
  rpc_world_close(&world);
}

static void test_a_peer_that_does_not_read_is_closed(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  const int fd = rpc_raw_connect(&world);
  rpc_raw_send(&world, fd, HELLO("12"), strlen(HELLO("12")));
  SPIN_UNTIL(&world, world.server.n_open);
  zps_rpc_conn_watched(world.server.conn); /* TCP would end it after 10 s without a read. */
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
  rpc_world_close(&world);
}

static void write_mib(struct zps_rpc_conn *conn, unsigned n) {
  const size_t len = 1u << 20;
  char *text = malloc(len + 1);
  memset(text, 'a', len);
  text[len] = '\0';
  while (n-- > 0 && zps_rpc_conn_is_open(conn))
    assert_int_not_equal(zps_rpc_notify(conn, "n", zps_json_set_str(zps_json_object(), "t", text)), ZPS_ERR_NOMEM);
  free(text);
}

/* Four that do not read, one of which was let in: what waits for the others has a limit together, and who has the most
 * of it goes. */
static void test_guests_that_do_not_read_have_one_limit(void **state) {
  (void)state;
  enum { N = 4 };
  struct world world;
  struct zps_rpc_conn *conns[N];
  uv_os_fd_t fd;
  const int small = 1 << 16; /* of the kernel's buffers */
  int fds[N];
  rpc_world_open(&world);
  for (int i = 0; i < N; i++) {
    fds[i] = rpc_raw_connect(&world);
    assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    rpc_raw_send(&world, fds[i], HELLO("12"), strlen(HELLO("12")));
    SPIN_UNTIL(&world, world.server.n_open == i + 1);
    conns[i] = world.server.conn;
    zps_rpc_conn_watched(conns[i]); /* TCP would end it after 10 s without a read. */
    assert_int_equal(uv_fileno(&conns[i]->socket.handle, &fd), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  }
  zps_rpc_conn_let_in(conns[0]);
  write_mib(conns[0], 15);
  write_mib(conns[1], 10);
  write_mib(conns[2], 15);
  for (int i = 0; i < N; i++) assert_true(zps_rpc_conn_is_open(conns[i]));
  write_mib(conns[3], 10);
  assert_false(zps_rpc_conn_is_open(conns[2])); /* the greediest; its bytes are room for others at once */
  for (int i = 0; i < N; i++) assert_true(i == 2 || zps_rpc_conn_is_open(conns[i]));
  SPIN_UNTIL(&world, world.server.n_close == 1);
  assert_non_null(strstr(world.server.reason, "does not read"));
  assert_non_null(strstr(world.server.reason, "of 33554432 for all such clients"));
  for (int i = 0; i < N; i++) close(fds[i]);
  SPIN_UNTIL(&world, world.server.n_close == N);
  rpc_world_close(&world);
}

/* What was read is room again. */
static void test_guests_that_read_are_not_counted(void **state) {
  (void)state;
  struct world world;
  static char line[(1u << 20) + 100];
  rpc_world_open(&world);
  const int fd = rpc_raw_connect(&world);
  rpc_raw_send(&world, fd, HELLO("12"), strlen(HELLO("12")));
  rpc_raw_read_line(&world, fd, line, sizeof line);
  for (unsigned i = 0; i < 2 * (ZPS_RPC_GUESTS_WRITE_MAX >> 20); i++) {
    write_mib(world.server.conn, 1);
    rpc_raw_read_line(&world, fd, line, sizeof line);
  }
  assert_int_equal(world.server.n_close, 0);
  close(fd);
  SPIN_UNTIL(&world, world.server.n_close);
  rpc_world_close(&world);
}

static void test_too_many_calls_of_the_peer(void **state) {
  (void)state;
  struct world world;
  rpc_world_open(&world);
  world.server.hold = true;
  const int fd = rpc_raw_connect(&world);
  rpc_raw_send(&world, fd, HELLO("12"), strlen(HELLO("12")));
  const char *line = "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"error\"}\n";
  SPIN_UNTIL(&world, world.server.n_open);
  struct zps_rpc_conn *conn = world.server.conn;
  assert_null(conn->lines.buf); /* nothing is under way */
  SPIN_UNTIL(&world, world.server.n_held == HELD_MAX || (rpc_raw_send(&world, fd, line, strlen(line)), false));
  assert_int_equal(conn->n_requests, HELD_MAX);
  conn->n_requests = ZPS_RPC_PENDING_MAX; /* stands for that many held requests */
  rpc_raw_send(&world, fd, line, strlen(line));
  SPIN_UNTIL(&world, world.server.n_close);
  assert_non_null(strstr(world.server.reason, "calls in flight"));
  for (int i = 0; i < HELD_MAX; i++) zps_rpc_reply(world.server.held[i], NULL);
  close(fd);
  rpc_world_close(&world);
}

/* One that floods its connection, and one that has something to say. */
static void test_each_connection_has_its_turn(void **state) {
  (void)state;
  enum { N = 4 * ZPS_RPC_TURN_LINES };
  const char *line = "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"double\"}\n";
  struct world world;
  struct patience patience = {0};
  int last = 0;
  rpc_world_open(&world);
  const int fd = rpc_raw_connect(&world);
  rpc_raw_send(&world, fd, HELLO("12"), strlen(HELLO("12")));
  SPIN_UNTIL(&world, world.server.n_open);
  char *flood = calloc(N, strlen(line) + 1);
  for (unsigned i = 0; i < N; i++) strcat(flood, line);
  assert_int_equal(send(fd, flood, strlen(flood), MSG_NOSIGNAL), strlen(flood));
  free(flood);
  while (world.server.n_message < N) {
    rpc_tick(&world, &patience);
    assert_true(world.server.n_message <= last + (int)ZPS_RPC_TURN_LINES);
    last = world.server.n_message;
  }
  rpc_raw_send(&world, fd, line, strlen(line)); /* it is read on */
  SPIN_UNTIL(&world, world.server.n_message == N + 1);
  close(fd);
  SPIN_UNTIL(&world, world.server.n_close);
  rpc_world_close(&world);
}

/* Nothing is read while lines wait for their turn, and a heartbeat may stand behind them all: with each turn the peer
 * is heard of. */
static void test_who_waits_for_its_turn_is_not_silent(void **state) {
  (void)state;
  enum { N = 4 * ZPS_RPC_TURN_LINES };
  const char *line = "{\"jsonrpc\":\"2.0\",\"method\":\"heartbeat\"}\n";
  struct world world;
  struct patience patience = {0};
  unsigned n_turns = 0;
  rpc_world_open(&world);
  const int fd = rpc_raw_connect(&world);
  rpc_raw_send(&world, fd, HELLO("12"), strlen(HELLO("12")));
  SPIN_UNTIL(&world, world.server.n_open);
  struct zps_rpc_conn *conn = world.server.conn;
  char *lines = calloc(N, strlen(line) + 1);
  for (unsigned i = 0; i < N; i++) strcat(lines, line);
  assert_int_equal(send(fd, lines, strlen(lines), MSG_NOSIGNAL), strlen(lines));
  free(lines);
  for (int last = 0; world.server.n_message < N; last = world.server.n_message) {
    conn->heard_ns = 0; /* long ago */
    rpc_tick(&world, &patience);
    if (world.server.n_message == last) continue;
    assert_true(zps_rpc_conn_heard_ns(conn) > 0);
    n_turns++;
  }
  assert_true(n_turns >= N / ZPS_RPC_TURN_LINES);
  close(fd);
  SPIN_UNTIL(&world, world.server.n_close);
  rpc_world_close(&world);
}

/* Connects to a server that answers the hello with `answer`, and expects this failure. */
static void expect_failure(const char *answer, uint64_t timeout_ms, zps_err_t code, const char *sentence) {
  struct world world;
  char address[64], line[4096];
  rpc_world_open(&world);
  const int listener = raw_listen(address, sizeof address);
  assert_int_equal(rpc_dial(&world, address, timeout_ms), ZPS_OK);
  SPIN_UNTIL(&world, poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 0) == 1);
  const int fd = accept(listener, NULL, NULL);
  rpc_raw_read_line(&world, fd, line, sizeof line);
  assert_non_null(strstr(line, "\"method\":\"hello\""));
  if (answer) rpc_raw_send(&world, fd, answer, strlen(answer));
  if (answer && !*answer) shutdown(fd, SHUT_RDWR);
  SPIN_UNTIL(&world, world.client.n_connected);
  assert_int_equal(world.client.connect_code, code);
  if (!strstr(world.client.reason, sentence)) fail_msg("unexpected reason: %s", world.client.reason);
  assert_null(world.client.conn);
  assert_int_equal(world.client.n_close, 0);
  close(fd);
  close(listener);
  rpc_world_close(&world);
}

static void test_client_refuses_odd_servers(void **state) {
  (void)state;
  expect_failure(
      "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocol\":13,\"version\":\"9\",\"role\":\"coordinator\"}}\n",
      PATIENCE_NEVER_MS, ZPS_ERR_VERSION, "speaks version 13");
  expect_failure(
      "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-9,\"message\":\"old\",\"data\":{\"name\":\"ERR_VERSION\"}}}"
      "\n",
      PATIENCE_NEVER_MS, ZPS_ERR_VERSION, "old");
  expect_failure("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n", PATIENCE_NEVER_MS, ZPS_ERR_PROTOCOL,
                 "'role' is missing");
  expect_failure("{\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n", PATIENCE_NEVER_MS, ZPS_ERR_PROTOCOL,
                 "before it answered hello");
  expect_failure("SSH-2.0-OpenSSH\r\n", PATIENCE_NEVER_MS, ZPS_ERR_PROTOCOL, "not JSON");
  expect_failure("", PATIENCE_NEVER_MS, ZPS_ERR_CLOSED, "closed by the peer");
  expect_failure(NULL, 50, ZPS_ERR_TIMEOUT, "no hello in time");
}

static void test_connections_without_memory_are_refused_one_by_one(void **state) {
  (void)state;
  enum { N = 3 };
  struct world world;
  char answer[64];
  int fds[N];
  rpc_world_open(&world);
  for (int i = 0; i < N; i++) fds[i] = rpc_raw_connect(&world);
  atomic_store(&oom_granted, 0);
  for (int i = 0; i < N; i++) {
    rpc_raw_read_to_end(&world, fds[i], answer, sizeof answer);
    assert_string_equal(answer, "");
    close(fds[i]);
  }
  atomic_store(&oom_granted, OOM_UNLIMITED);
  rpc_world_connect(&world); /* memory is back, and it goes on */
  rpc_world_close(&world);
}

static int expect_warnings(void **state) {
  (void)state;
  logs_start();
  logs_expect(ZPS_LOG_WARN, "speaks protocol version 12");
  logs_expect(ZPS_LOG_WARN, "not JSON at byte");
  logs_allow(ZPS_LOG_WARN, "refused: user 65534 is neither user 0 nor root, whom the socket's mode lets in");
  logs_expect(ZPS_LOG_WARN, "speaks TLS, but without it is spoken here");
  logs_expect(ZPS_LOG_WARN, "closed without a hello, to make room");
  logs_allow(ZPS_LOG_WARN, "a connection is refused: out of memory");
  logs_expect(ZPS_LOG_WARN, "closed: it does not read, and ");
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_refuses_another_protocol),
      cmocka_unit_test(test_refuses_garbage),
      cmocka_unit_test(test_other_users),
      cmocka_unit_test(test_refuses_oversize_lines),
      cmocka_unit_test(test_lines_as_long_as_the_owner_allows),
      cmocka_unit_test(test_hello_has_a_deadline_however_it_drips),
      cmocka_unit_test(test_a_silent_crowd_makes_room),
      cmocka_unit_test(test_a_sleep_is_nobodys_silence),
      cmocka_unit_test(test_a_crowd_that_speaks_comes_in),
      cmocka_unit_test(test_split_and_joined_lines),
      cmocka_unit_test(test_a_peer_that_does_not_read_is_closed),
      cmocka_unit_test(test_guests_that_do_not_read_have_one_limit),
      cmocka_unit_test(test_guests_that_read_are_not_counted),
      cmocka_unit_test(test_too_many_calls_of_the_peer),
      cmocka_unit_test(test_each_connection_has_its_turn),
      cmocka_unit_test(test_who_waits_for_its_turn_is_not_silent),
      cmocka_unit_test(test_client_refuses_odd_servers),
      cmocka_unit_test(test_connections_without_memory_are_refused_one_by_one),
  };
  return cmocka_run_group_tests(tests, expect_warnings, logs_check);
}

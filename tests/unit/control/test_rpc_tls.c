/* JSON-RPC over TLS, over real sockets of this host: it works as without; who is refused, and what each end hears. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/control/client.h"
#include "tests/support/logs.h"
#include "tests/support/oom.h"
#include "tests/unit/control/rpc_rig.h"
#include "tests/unit/tls/tls_rig.h"

static struct rig rig;
static struct zps_tls *coordinator, *worker, *server, *admin;

static unsigned n_sessions;
zps_err_t __real_zps_tls_session_create(struct zps_tls *tls, bool listens, struct zps_tls_session **session_p,
                                        struct zps_error *error);
zps_err_t __wrap_zps_tls_session_create(struct zps_tls *tls, bool listens, struct zps_tls_session **session_p,
                                        struct zps_error *error);
zps_err_t __wrap_zps_tls_session_create(struct zps_tls *tls, bool listens, struct zps_tls_session **session_p,
                                        struct zps_error *error) {
  n_sessions++;
  return __real_zps_tls_session_create(tls, listens, session_p, error);
}

static int open_rig(void **state) {
  (void)state;
  rig_open(&rig);
  coordinator = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR);
  worker = rig_identity(&rig, "w", ZPS_TLS_WORKER);
  server = rig_identity(&rig, "s", ZPS_TLS_SERVER);
  admin = rig_identity(&rig, "a", ZPS_TLS_ADMIN);
  return 0;
}

static int close_rig(void **state) {
  (void)state;
  zps_tls_unref(coordinator);
  zps_tls_unref(worker);
  zps_tls_unref(server);
  zps_tls_unref(admin);
  rig_close(&rig);
  return 0;
}

static int start_logs(void **state) {
  (void)state;
  logs_start();
  return 0;
}

static void calls_go_both_ways(void **state) {
  (void)state;
  struct world world;
  rpc_world_open_tls(&world, coordinator, worker);
  rpc_world_connect(&world);
  assert_int_equal(zps_rpc_conn_certified(world.server.conn), ZPS_TLS_WORKER);
  assert_string_equal(zps_rpc_conn_certificate(world.server.conn), "zenps://worker/w");
  assert_int_equal(zps_rpc_conn_certified(world.client.conn), ZPS_TLS_COORDINATOR);
  rpc_call(&world, "double", 21, PATIENCE_NEVER_MS, 0);
  rpc_call(&world, "shape", 0, PATIENCE_NEVER_MS, 1);
  SPIN_UNTIL(&world, world.client.results[1].n);
  assert_int_equal(world.client.results[0].value, 42);
  assert_int_equal(world.client.results[1].code, ZPS_ERR_SHAPE);
  struct result back = {0};
  assert_int_equal(zps_rpc_call(world.server.conn, "double", rpc_x_is(4), PATIENCE_NEVER_MS, rpc_on_result, &back),
                   ZPS_OK);
  SPIN_UNTIL(&world, back.n);
  assert_int_equal(back.value, 8);
  zps_rpc_close(world.client.conn, true);
  SPIN_UNTIL(&world, world.client.n_close && world.server.n_close);
  assert_int_equal(world.client.close_code, ZPS_OK);
  assert_int_equal(world.server.close_code, ZPS_ERR_CLOSED);
  rpc_world_close(&world);
}

/* A message of many records, and one that is longer than the room it is read into. */
static void long_lines_pass(void **state) {
  (void)state;
  const size_t len = 3u << 20;
  char *text = malloc(len + 1);
  struct world world;
  assert_non_null(text);
  memset(text, 'x', len);
  text[len] = '\0';
  rpc_world_open_tls(&world, coordinator, worker);
  rpc_world_connect(&world);
  for (int i = 1; i <= 3; i++) {
    zps_json *params = zps_json_set_str(rpc_x_is((uint64_t)i), "text", text);
    assert_int_equal(zps_rpc_notify(world.client.conn, "long", params), ZPS_OK);
    SPIN_UNTIL(&world, world.server.n_message == i);
    assert_int_equal(world.server.param, i);
  }
  free(text);
  rpc_world_close(&world);
}

/* Sent at once, and taken in turns: what has been deciphered, or waits to be, is not forgotten when a turn ends. */
static void many_lines_pass(void **state) {
  (void)state;
  enum { N = 3000 };
  struct world world;
  rpc_world_open_tls(&world, coordinator, worker);
  rpc_world_connect(&world);
  for (int i = 1; i <= N; i++)
    assert_int_equal(zps_rpc_notify(world.client.conn, "many", rpc_x_is((uint64_t)i)), ZPS_OK);
  SPIN_UNTIL(&world, world.server.n_message == N);
  assert_int_equal(world.server.param, N);
  rpc_world_close(&world);
}

/* The words of the client, which cannot connect; the listener's log says `log`. */
static void refused(struct zps_tls *listener, struct zps_tls *client, zps_err_t code, const char *client_says,
                    const char *log) {
  struct world world;
  if (log) logs_expect(ZPS_LOG_WARN, log);
  rpc_world_open_tls(&world, listener, client);
  assert_int_equal(rpc_dial(&world, zps_rpc_listener_address(world.listener), PATIENCE_NEVER_MS), ZPS_OK);
  SPIN_UNTIL(&world, world.client.n_connected);
  if (!strstr(world.client.reason, client_says)) fail_msg("'%s' does not say '%s'", world.client.reason, client_says);
  assert_int_equal(world.client.connect_code, code);
  assert_int_equal(world.server.n_open, 0);
  rpc_world_close(&world);
}

static void strangers_are_refused(void **state) {
  (void)state;
  struct rig other;
  rig_open(&other);
  rig_cert(&other, "w", ZPS_TLS_WORKER, -RIG_DAY_S, RIG_DAY_S);
  struct zps_tls *stranger = rig_tls(&other, "w", &rig);
  refused(coordinator, stranger, ZPS_ERR_REFUSED,
          "this end's certificate was made by an authority that is unknown there",
          "its certificate, of zenps://worker/w, was made by an authority that is unknown here");
  zps_tls_unref(stranger);
  rig_close(&other);
}

/* The peer has no other way to hear why: TLS has no such word once both ends speak. */
static void a_revoked_one_hears_why(void **state) {
  (void)state;
  static const char why[] = "its certificate, of zenps://worker/w, has been revoked (tls.crl)";
  char ca[160], cert[160], key[160], crl[160];
  struct zps_tls *listener = NULL;
  struct world world;
  rig_revoke(&rig, NULL, true);
  const struct zps_tls_files files = {.ca = rig_path(&rig, "ca", ".pem", ca),
                                      .cert = rig_path(&rig, "c", ".pem", cert),
                                      .key = rig_path(&rig, "c", ".key", key),
                                      .crl = rig_path(&rig, "crl", ".pem", crl)};
  assert_int_equal(zps_tls_create(&files, &listener, NULL), ZPS_OK);
  rpc_world_open_tls(&world, listener, worker);
  rpc_world_connect(&world);
  rig_revoke(&rig, "w", false);
  assert_int_equal(zps_tls_reload(listener, NULL), ZPS_OK);
  assert_int_equal(zps_rpc_notify(world.client.conn, "still", rpc_x_is(1)), ZPS_OK);
  SPIN_UNTIL(&world, world.client.n_close && world.server.n_close);
  assert_int_equal(world.server.close_code, ZPS_ERR_REFUSED);
  assert_non_null(strstr(world.server.reason, why));
  assert_int_equal(world.server.n_message, 0);
  assert_int_equal(world.client.close_code, ZPS_ERR_REFUSED);
  assert_non_null(strstr(world.client.reason, why));
  rpc_world_close(&world);
  zps_tls_unref(listener);
}

static void no_coordinator_is_refused(void **state) {
  (void)state;
  logs_allow(ZPS_LOG_WARN, "refused: ");
  refused(server, worker, ZPS_ERR_REFUSED,
          "its certificate is that of zenps://server/s, but here a coordinator is spoken to", NULL);
}

static void plain_client(void **state) {
  (void)state;
  logs_allow(ZPS_LOG_WARN, "speaks without TLS where TLS is spoken"); /* one such line a second */
  refused(coordinator, NULL, ZPS_ERR_PROTOCOL, "TLS is spoken here", NULL);
}

static void plain_listener(void **state) {
  (void)state;
  refused(NULL, worker, ZPS_ERR_PROTOCOL, "speaks without TLS, which is wanted here",
          "speaks TLS, but without it is spoken");
}

/* rpc_dial() says hello as a worker. */
static void roles_bind(void **state) {
  (void)state;
  struct world world;
  refused(coordinator, server, ZPS_ERR_REFUSED, "the certificate of zenps://server/s lets nobody in as a worker",
          "the certificate of zenps://server/s lets nobody in as a worker");
  rpc_world_open_tls(&world, coordinator, admin);
  rpc_world_connect(&world);
  assert_int_equal(zps_rpc_conn_certified(world.server.conn), ZPS_TLS_ADMIN);
  rpc_world_close(&world);
}

/* Who says nothing, or says hello a byte at a time and then nothing, is given up as without TLS. */
static void the_hello_deadline_holds(void **state) {
  (void)state;
  struct world world;
  char answer[200];
  rpc_world_open_tls(&world, coordinator, worker);
  zps_rpc_listener_set_hello_ms(world.listener, 50);
  const int fd = rpc_raw_connect(&world);
  rpc_raw_send(&world, fd, "\x16\x03\x01", 3);
  rpc_raw_read_to_end(&world, fd, answer, sizeof answer);
  assert_string_equal(answer, "");
  close(fd);
  rpc_world_close(&world);
}

/* A session is made when there are bytes for it: many may connect, and say nothing. */
static void silence_costs_no_session(void **state) {
  (void)state;
  struct world world;
  char answer[200];
  rpc_world_open_tls(&world, coordinator, worker);
  zps_rpc_listener_set_hello_ms(world.listener, 50);
  for (size_t len = 0; len < 2; len++) {
    n_sessions = 0;
    const int fd = rpc_raw_connect(&world);
    rpc_raw_send(&world, fd, "\x16", len);
    rpc_raw_read_to_end(&world, fd, answer, sizeof answer);
    assert_string_equal(answer, "");
    assert_int_equal(n_sessions, len);
    close(fd);
  }
  rpc_world_close(&world);
}

/* Bytes that malloc() has given away, here and in OpenSSL; 0 where a sanitizer has its place. */
static size_t allocated(void) {
  return mallinfo2().uordblks;
}

/* Nor does half of a greeting cost what a record may need: many may send it. */
static void half_a_greeting_costs_little(void **state) {
  (void)state;
  enum { N = 32, MOST = 12 << 10 };
  struct world world;
  struct zps_tls_session *session;
  struct zps_error error;
  char *greeting;
  size_t len;
  int fds[N];
  assert_int_equal(zps_tls_session_create(worker, false, &session, &error), ZPS_OK);
  assert_int_equal(zps_tls_send(session, &greeting, &len), ZPS_OK);
  rpc_world_open_tls(&world, coordinator, worker);
  n_sessions = 0;
  const size_t before = allocated();
  for (unsigned i = 0; i < N; i++) {
    fds[i] = rpc_raw_connect(&world);
    rpc_raw_send(&world, fds[i], greeting, len / 2);
  }
  SPIN_UNTIL(&world, n_sessions == N);
  const size_t after = allocated(), each = after > before ? (after - before) / N : 0;
  if (each > MOST) fail_msg("%zu bytes each", each);
  rpc_raw_send(&world, fds[0], greeting + len / 2, len - len / 2); /* it is answered when it is whole */
  char head;
  SPIN_UNTIL(&world, recv(fds[0], &head, 1, MSG_DONTWAIT) == 1);
  assert_int_equal(head, 0x16);
  for (unsigned i = 0; i < N; i++) close(fds[i]);
  free(greeting);
  zps_tls_session_destroy(session);
  rpc_world_close(&world);
}

static void a_unix_socket_stays_plain(void **state) {
  (void)state;
  struct world world;
  char folder[] = "/tmp/zenps-tls-unix-XXXXXX", address[80];
  assert_non_null(mkdtemp(folder));
  snprintf(address, sizeof address, "unix:%s/s", folder);
  rpc_world_open_at(&world, address);
  world.client.tls = worker;
  rpc_world_connect(&world);
  assert_int_equal(zps_rpc_conn_certified(world.server.conn), 0);
  assert_string_equal(zps_rpc_conn_certificate(world.client.conn), "");
  rpc_world_close(&world);
  unlink(address + 5);
  rmdir(folder);
}

/* The blocking client holds its identity for itself, and hears why it is refused at once, not at its deadline. */
static void blocking_clients(void **state) {
  (void)state;
  struct world world;
  struct zps_error error = {.text = ""};
  struct zps_client *client = NULL;
  struct zps_client_handler handler = {.tls = rig_identity(&rig, "b", ZPS_TLS_WORKER)};
  rpc_world_open_tls(&world, coordinator, NULL);
  int status = -1;
  /* The listener runs on this thread, so the client is opened by another process's eyes: a child. */
  const pid_t child = fork();
  if (child == 0) {
    const zps_err_t code = zps_client_open(zps_rpc_listener_address(world.listener), "worker", PATIENCE_NEVER_MS,
                                           &handler, &client, &error);
    zps_tls_unref(handler.tls);
    if (code == ZPS_OK) zps_client_close(client);
    _exit(code == ZPS_OK ? 0 : 1);
  }
  SPIN_UNTIL(&world, waitpid(child, &status, WNOHANG) == child);
  assert_int_equal(status, 0);
  assert_int_equal(world.server.n_open, 1);
  zps_tls_unref(handler.tls);
  SPIN_UNTIL(&world, world.server.n_close);
  rpc_world_close(&world);
}

/* Memory may be short anywhere: the attempt fails, and nothing is left behind. */
static void memory_is_short(void **state) {
  (void)state;
  bool done = false;
  logs_allow(ZPS_LOG_WARN, "out of memory");
  logs_allow(ZPS_LOG_WARN, "no memory");
  for (long granted = 0; !done; granted++) {
    struct world world;
    rpc_world_open_tls(&world, coordinator, worker);
    zps_rpc_listener_set_hello_ms(world.listener, 300);
    atomic_store(&oom_granted, granted);
    const zps_err_t code = rpc_dial(&world, zps_rpc_listener_address(world.listener), 500);
    if (code == ZPS_OK) SPIN_UNTIL(&world, world.client.n_connected);
    done = atomic_load(&oom_granted) > 0 && code == ZPS_OK && world.client.connect_code == ZPS_OK;
    atomic_store(&oom_granted, OOM_UNLIMITED);
    rpc_world_close(&world);
    assert_true(granted < 200);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(calls_go_both_ways, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(many_lines_pass, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(long_lines_pass, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(strangers_are_refused, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(a_revoked_one_hears_why, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(no_coordinator_is_refused, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(plain_client, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(plain_listener, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(roles_bind, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(the_hello_deadline_holds, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(silence_costs_no_session, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(half_a_greeting_costs_little, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(a_unix_socket_stays_plain, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(blocking_clients, start_logs, logs_check),
      cmocka_unit_test_setup_teardown(memory_is_short, start_logs, logs_check),
  };
  return cmocka_run_group_tests(tests, open_rig, close_rig);
}

/* Which server a certificate lets its owner register as, over TLS at a coordinator: the first time, and when it comes
 * back; servers of a coordinator without TLS; and what an administrator is shown of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/control/rpc.h"
#include "proto/control_server.h"
#include "server/coordinator/coordinator.h"
#include "tests/support/logs.h"
#include "tests/support/patience.h"
#include "tests/unit/tls/tls_rig.h"

static struct rig rig;
static uv_loop_t loop;
static struct zps_coordinator *coordinator;
static uint64_t incarnation;

/* One client, and what it was answered last. */
struct peer {
  struct zps_rpc_conn *conn;
  bool is_answered;
  struct zps_error error;
  const char *part; /* of security: the row to look at */
  char row[400];
};

static void on_connected(void *ctx, struct zps_rpc_conn *conn, const struct zps_error *error) {
  struct peer *const peer = ctx;
  if (error) fail_msg("%s", error->text);
  peer->conn = conn;
  peer->is_answered = true;
}

static void on_closed(void *ctx, struct zps_rpc_conn *conn, zps_err_t code, const char *reason) {
  (void)conn, (void)code, (void)reason;
  ((struct peer *)ctx)->conn = NULL;
}

static void on_message(void *ctx, struct zps_rpc_conn *conn, const char *method, const zps_json *params,
                       struct zps_rpc_request *request) {
  (void)ctx, (void)conn, (void)method, (void)params;
  if (request) zps_rpc_reply(request, NULL);
}

static void turn(struct patience *patience) {
  uv_run(&loop, UV_RUN_NOWAIT);
  assert_false(patience_is_over(patience));
  poll(NULL, 0, 1);
}
#define SPIN_UNTIL(condition) \
  for (struct patience patience_ = {0}; !(condition);) turn(&patience_)

static void connect_as(struct peer *peer, struct zps_tls *tls, const char *role) {
  const struct zps_rpc_handler handler = {.ctx = peer, .tls = tls, .on_message = on_message, .on_close = on_closed};
  struct zps_error error;
  memset(peer, 0, sizeof *peer);
  assert_int_equal(zps_rpc_connect(&loop, zps_coordinator_address(coordinator), role, PATIENCE_NEVER_MS, &handler,
                                   on_connected, &peer->conn, &error),
                   ZPS_OK);
  SPIN_UNTIL(peer->is_answered);
}

static void on_registered(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct peer *const peer = ctx;
  struct zps_server_answer answer;
  peer->is_answered = true;
  peer->error = error ? *error : (struct zps_error){.text = ""};
  if (error) return;
  assert_int_equal(zps_control_server_answer_read(result, &answer, NULL), ZPS_OK);
  incarnation = answer.incarnation;
  zps_server_answer_fini(&answer);
}

static struct zps_net_info fabric = {.provider = "tcp", .addr_format = "FI_SOCKADDR_IN"};

static zps_err_t register_as(struct peer *peer, const char *name, uint64_t secret, uint64_t of) {
  const struct zps_server_spec spec = {
      .name = name, .host = "h", .pid = 1, .fabric = &fabric, .secret = secret, .incarnation = of};
  peer->is_answered = false;
  assert_int_equal(
      zps_rpc_call(peer->conn, "server.register", zps_control_server_write(&spec), 5000, on_registered, peer), ZPS_OK);
  SPIN_UNTIL(peer->is_answered);
  return peer->error.code;
}

static void part(struct peer *peer) {
  zps_rpc_close(peer->conn, true);
  SPIN_UNTIL(!peer->conn);
}

static void on_security(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct peer *const peer = ctx;
  const zps_json *const parts = error ? NULL : zps_json_get(result, "parts");
  peer->is_answered = true;
  for (size_t i = 0; i < zps_json_array_len(parts); i++) {
    const zps_json *const row = zps_json_at(parts, i);
    if (strcmp(zps_json_opt_str(row, "part", ""), peer->part) == 0)
      snprintf(peer->row, sizeof peer->row, "%s: %s", zps_json_opt_str(row, "state", ""),
               zps_json_opt_str(row, "how", ""));
  }
}

static void shows_of(struct peer *admin, const char *part, const char *expected) {
  admin->is_answered = false;
  admin->part = part;
  assert_int_equal(zps_rpc_call(admin->conn, "security", zps_json_object(), 5000, on_security, admin), ZPS_OK);
  SPIN_UNTIL(admin->is_answered);
  assert_string_equal(admin->row, expected);
}

static void shows(struct peer *admin, const char *expected) {
  shows_of(admin, "servers", expected);
}

static bool own_socket, own_addresses;

static void open_coordinator(struct zps_tls *tls) {
  const struct zps_coordinator_config config = {.listen = "127.0.0.1:0",
                                                .tls = tls,
                                                .own_socket = own_socket,
                                                .own_addresses = own_addresses,
                                                .heartbeat_ms = 60000,
                                                .dead_ms = 600000,
                                                .call_timeout_ms = 60000,
                                                .resume_grace_ms = 600000,
                                                .min_servers = 1};
  struct zps_error error;
  assert_int_equal(uv_loop_init(&loop), 0);
  if (zps_coordinator_create(&loop, &config, &coordinator, &error)) fail_msg("%s", error.text);
}

static void close_coordinator(void) {
  zps_coordinator_close(coordinator);
  SPIN_UNTIL(!uv_loop_alive(&loop));
  assert_int_equal(uv_loop_close(&loop), 0);
}

static void close_coordinator_of(struct peer *last) {
  part(last);
  close_coordinator();
}

static void a_server_is_the_one_that_it_may_be(void **state) {
  (void)state;
  struct zps_tls *const tls = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER);
  struct zps_tls *const node1 = rig_identity(&rig, "node1", ZPS_TLS_SERVER);
  struct zps_tls *const pods = rig_identity(&rig, "pod-*", ZPS_TLS_SERVER);
  struct zps_tls *const any = rig_identity(&rig, "*", ZPS_TLS_SERVER);
  struct zps_tls *const admin = rig_identity(&rig, "a", ZPS_TLS_ADMIN);
  struct peer peer, thief, second, user;
  logs_start();
  logs_expect(ZPS_LOG_WARN,
              "audit: method=server.register by=zenps://server/node1 role=server is refused: its certificate is for "
              "servers of the name node1, "
              "and it would be server 'node2'");
  open_coordinator(tls);
  connect_as(&user, admin, "ctl");
  shows(&user, "guarded: certificates name them");

  connect_as(&peer, node1, "server");
  assert_int_equal(register_as(&peer, "node2", 7, 0), ZPS_ERR_REFUSED);
  assert_string_equal(peer.error.text,
                      "its certificate is for servers of the name node1, and it would be server 'node2': it needs one "
                      "of its own (zenpsctl certs init DIR --servers=NAME), or a server.name that fits");
  assert_int_equal(register_as(&peer, "node1", 7, 0), ZPS_OK);
  shows(&user, "guarded: certificates name them");

  /* Its secret is not enough to come back in its place, whether its connection is there or not. */
  connect_as(&thief, pods, "server");
  assert_int_equal(register_as(&thief, "node1", 7, incarnation), ZPS_ERR_REFUSED);
  assert_int_equal(zps_rpc_notify(peer.conn, "away", zps_json_object()), ZPS_OK);
  part(&peer);
  assert_int_equal(register_as(&thief, "node1", 7, incarnation), ZPS_ERR_REFUSED);
  connect_as(&peer, node1, "server");
  assert_int_equal(register_as(&peer, "node1", 7, incarnation), ZPS_OK);

  assert_int_equal(register_as(&thief, "pod-4", 8, 0), ZPS_OK);
  shows(&user, "guarded: certificates name them, those of 1 by how names begin");
  connect_as(&second, any, "server");
  assert_int_equal(register_as(&second, "node2", 9, 0), ZPS_OK);
  shows(&user, "open: 1 have a certificate for any server: node2");
  part(&second);
  connect_as(&second, tls, "server"); /* a coordinator's own, and that of a run */
  assert_int_equal(register_as(&second, "node3", 9, 0), ZPS_OK);
  shows(&user, "guarded: certificates name them, those of 1 by how names begin");
  part(&second);
  part(&thief);
  part(&peer);
  part(&user);
  logs_allow(ZPS_LOG_WARN, "is lost");
  close_coordinator();
  logs_finish();
  struct zps_tls *const all[] = {tls, node1, pods, any, admin};
  for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) zps_tls_unref(all[i]);
}

/* Over TCP it may be anybody; over the socket of the coordinator's user it is a process of that user. */
static void its_user_comes_over_its_socket(void **state) {
  (void)state;
  char tmp[] = "/tmp/zenps-identity.XXXXXX", folder[80], shown[100];
  struct peer stranger, peer;
  assert_non_null(mkdtemp(tmp));
  snprintf(folder, sizeof folder, "%s/zenps-%lu", tmp, (unsigned long)geteuid());
  logs_start();
  logs_allow(ZPS_LOG_WARN, "is lost");
  logs_allow(ZPS_LOG_WARN,
             "audit: method=server.register by=- role=server is refused: 'server.register' is for the user");
  own_socket = true;
  setenv("TMPDIR", tmp, true);
  unsetenv("XDG_RUNTIME_DIR");
  open_coordinator(NULL);
  own_socket = false;

  assert_int_equal(chmod(folder, 0755), 0); /* such a folder is not trusted: TCP is left */
  connect_as(&stranger, NULL, "server");
  assert_int_equal(register_as(&stranger, "evil", 7, 0), ZPS_ERR_REFUSED);
  assert_non_null(strstr(stranger.error.text, "over TCP may be any user of this host"));
  assert_non_null(strstr(stranger.error.text, folder));
  assert_int_equal(chmod(folder, 0700), 0);
  connect_as(&peer, NULL, "server");
  assert_int_equal(register_as(&peer, "node1", 8, 0), ZPS_OK);
  part(&peer);
  part(&stranger);

  connect_as(&peer, NULL, "ctl");
  snprintf(shown, sizeof shown, "guarded: processes of user %lu and root alone", (unsigned long)geteuid());
  shows(&peer, shown);
  part(&peer);
  close_coordinator();
  logs_finish();
  unsetenv("TMPDIR");
  assert_int_equal(rmdir(folder), 0); /* the socket has gone with the coordinator */
  assert_int_equal(rmdir(tmp), 0);
}

/* Without certificates any process is the server that it says it is, and an administrator reads so. */
static void without_tls(void **state) {
  (void)state;
  struct peer peer, user;
  logs_start();
  logs_allow(ZPS_LOG_WARN, "is lost");
  open_coordinator(NULL);
  connect_as(&peer, NULL, "server");
  assert_int_equal(register_as(&peer, "node1", 7, 0), ZPS_OK);
  connect_as(&user, NULL, "ctl");
  shows(&user, "host: any process is the server that it says it is");
  part(&peer);
  part(&user);
  close_coordinator();
  logs_finish();
}

static const struct zps_net_info at_loopback = {
    .provider = "tcp",
    .addr_format = "FI_SOCKADDR_IN",
    .addr = {AF_INET, 0, 0, 9, 127, 0, 0, 1},
    .addr_len = sizeof(struct sockaddr_in),
};

/* Nothing in an address of a card tells its host: an administrator reads that it is not checked. */
static void addresses_that_tell_no_host(void **state) {
  (void)state;
  struct peer first, second, user;
  const struct zps_net_info before = fabric;
  logs_start();
  logs_allow(ZPS_LOG_WARN, "is lost");
  own_addresses = true;
  open_coordinator(NULL);
  connect_as(&user, NULL, "ctl");
  shows_of(&user, "addresses", "guarded: their own");

  fabric = (struct zps_net_info){.provider = "efa", .addr_format = "FI_ADDR_EFA", .addr_len = 32};
  connect_as(&first, NULL, "server");
  assert_int_equal(register_as(&first, "node1", 7, 0), ZPS_OK);
  shows_of(&user, "addresses",
           "open: members name any: addresses of efa (FI_ADDR_EFA) tell no host, those of 1 servers: node1");
  connect_as(&second, NULL, "server");
  assert_int_equal(register_as(&second, "node2", 8, 0), ZPS_OK);
  shows_of(&user, "addresses",
           "open: members name any: addresses of efa (FI_ADDR_EFA) tell no host, those of 2 servers: node1, ...");
  part(&first);
  part(&second);
  close_coordinator_of(&user);

  fabric = (struct zps_net_info){.provider = "shm", .addr_format = "FI_ADDR_STR", .addr_len = 8};
  open_coordinator(NULL);
  connect_as(&user, NULL, "ctl");
  connect_as(&first, NULL, "server");
  assert_int_equal(register_as(&first, "node1", 7, 0), ZPS_OK);
  shows_of(&user, "addresses",
           "host: members name any: addresses of shm (FI_ADDR_STR) tell no host, those of 1 servers: node1");
  part(&first);
  close_coordinator_of(&user);

  fabric = at_loopback;
  open_coordinator(NULL);
  connect_as(&user, NULL, "ctl");
  connect_as(&first, NULL, "server");
  assert_int_equal(register_as(&first, "node1", 7, 0), ZPS_OK);
  shows_of(&user, "addresses", "guarded: their own");
  part(&first);
  close_coordinator_of(&user);

  fabric.addr_len = 64; /* of tls: a name and an owner follow */
  snprintf(fabric.provider, sizeof fabric.provider, "tls");
  snprintf(fabric.addr_format, sizeof fabric.addr_format, "FI_SOCKADDR, name and owner");
  open_coordinator(NULL);
  connect_as(&user, NULL, "ctl");
  connect_as(&first, NULL, "server");
  assert_int_equal(register_as(&first, "node1", 7, 0), ZPS_OK);
  shows_of(&user, "addresses", "guarded: their own; over tls those of servers alone: they dial no rank");
  part(&first);
  close_coordinator_of(&user);
  fabric = before;
  own_addresses = false;
  logs_finish();
}

static int open_rig(void **state) {
  (void)state;
  rig_open(&rig);
  return 0;
}

static int close_rig(void **state) {
  (void)state;
  rig_close(&rig);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_server_is_the_one_that_it_may_be),
      cmocka_unit_test(without_tls),
      cmocka_unit_test(its_user_comes_over_its_socket),
      cmocka_unit_test(addresses_that_tell_no_host),
  };
  return cmocka_run_group_tests(tests, open_rig, close_rig);
}

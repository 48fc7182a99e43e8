/* Which connections stay, how long their lines may be, whose end is a death, and how rarely crowds are told statistics.
 * The clock is ours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "server/coordinator/coordinator_impl.h"
#include "tests/support/logs.h"

static uint64_t now_ns, heard_ns;
static unsigned n_asked, n_replies;
static struct zps_origin owner; /* the next connection's; so are the certificates below */
static bool is_unix;
static unsigned certified;
static const char *certificate = "";
static const struct zps_rpc_conn *closed; /* the last one */

int __wrap_clock_gettime(clockid_t which, struct timespec *ts);
struct zps_origin __wrap_zps_rpc_conn_owner(const struct zps_rpc_conn *conn);
bool __wrap_zps_rpc_conn_is_unix(const struct zps_rpc_conn *conn);
bool __wrap_zps_rpc_conn_is_open(const struct zps_rpc_conn *conn);
unsigned __wrap_zps_rpc_conn_certified(const struct zps_rpc_conn *conn);
const char *__wrap_zps_rpc_conn_certificate(const struct zps_rpc_conn *conn);
const char *__wrap_zps_rpc_conn_peer(const struct zps_rpc_conn *conn);
void __wrap_zps_rpc_close(struct zps_rpc_conn *conn, bool flush);
uint64_t __wrap_zps_rpc_conn_heard_ns(const struct zps_rpc_conn *conn);
unsigned __wrap_zps_rpc_conn_unanswered(const struct zps_rpc_conn *conn);
void __wrap_zps_rpc_reply(struct zps_rpc_request *request, zps_json *result);

int __wrap_clock_gettime(clockid_t which, struct timespec *ts) {
  (void)which;
  *ts = zps_clock_timespec(now_ns);
  return 0;
}

struct zps_origin __wrap_zps_rpc_conn_owner(const struct zps_rpc_conn *conn) {
  (void)conn;
  return owner;
}

bool __wrap_zps_rpc_conn_is_unix(const struct zps_rpc_conn *conn) {
  (void)conn;
  return is_unix;
}

bool __wrap_zps_rpc_conn_is_open(const struct zps_rpc_conn *conn) {
  return conn != closed;
}

unsigned __wrap_zps_rpc_conn_certified(const struct zps_rpc_conn *conn) {
  (void)conn;
  return certified;
}

const char *__wrap_zps_rpc_conn_certificate(const struct zps_rpc_conn *conn) {
  (void)conn;
  return certificate;
}

const char *__wrap_zps_rpc_conn_peer(const struct zps_rpc_conn *conn) {
  (void)conn;
  return "peer";
}

void __wrap_zps_rpc_close(struct zps_rpc_conn *conn, bool flush) {
  assert_false(flush);
  closed = conn;
}

uint64_t __wrap_zps_rpc_conn_heard_ns(const struct zps_rpc_conn *conn) {
  (void)conn;
  return heard_ns;
}

unsigned __wrap_zps_rpc_conn_unanswered(const struct zps_rpc_conn *conn) {
  (void)conn;
  return n_asked;
}

void __wrap_zps_rpc_reply(struct zps_rpc_request *request, zps_json *result) {
  (void)request;
  assert_non_null(zps_json_get(result, "servers"));
  zps_json_unref(result);
  n_replies++;
}

/* ------------------------------------------------------------ connections */

/* A server that registers again names its jobs. */
static void test_first_lines(void **state) {
  (void)state;
  assert_int_equal(zps_coordinator_first_lines(ZPS_CONN_SERVER), 256 << 10);
  assert_int_equal(zps_coordinator_first_lines(ZPS_CONN_WORKER), 64 << 10);
  assert_int_equal(zps_coordinator_first_lines(ZPS_CONN_CTL), 64 << 10);
}

static bool is_idle(enum zps_conn_role role, uint64_t watched_ns, uint64_t after_ms) {
  const struct zps_coordinator_conn conn = {.role = role, .watched_ns = watched_ns};
  return zps_coordinator_is_idle(&conn, heard_ns + after_ms * ZPS_NS_PER_MS);
}

static void test_idle(void **state) {
  (void)state;
  heard_ns = 5 * ZPS_NS_PER_S;
  n_asked = 0;
  for (unsigned i = 0; i < 2; i++) {
    const enum zps_conn_role role = i ? ZPS_CONN_SERVER : ZPS_CONN_WORKER;
    assert_false(is_idle(role, 0, 60000));
    assert_true(is_idle(role, 0, 60001));
    assert_false(is_idle(role, 1, 3600000)); /* it says that it lives, and is lost for its silence */
  }
  assert_false(is_idle(ZPS_CONN_CTL, 0, 15 * 60000));
  assert_true(is_idle(ZPS_CONN_CTL, 0, 15 * 60000 + 1));
  n_asked = 1; /* it waits for an answer, however long that takes */
  assert_false(is_idle(ZPS_CONN_WORKER, 0, 3600000));
  assert_false(is_idle(ZPS_CONN_CTL, 0, 3600000));
}

/* A coordinator with connections of a role, each in a job, which zps_rpc_conn_* know by a number. */
static struct zps_coordinator coordinator;
static struct zps_coordinator_conn *conns;
static unsigned n_conns;
static struct zps_member_job some_job;

static struct zps_rpc_conn *rpc_of(unsigned number) {
  return (struct zps_rpc_conn *)(uintptr_t)(16 * (number + 1));
}

static void house_opens(unsigned max_conns, unsigned max) {
  coordinator = (struct zps_coordinator){.config.max_conns = max_conns};
  conns = calloc(max, sizeof *conns);
  assert_non_null(conns);
  n_conns = n_asked = certified = 0;
  is_unix = false;
  certificate = "";
  closed = NULL;
  owner = (struct zps_origin){.is_known = true, .bytes = {10}};
}

static struct zps_coordinator_conn *come(enum zps_conn_role role, bool in_job) {
  struct zps_coordinator_conn *const conn = &conns[n_conns];
  *conn = (struct zps_coordinator_conn){.coordinator = &coordinator, .rpc = rpc_of(n_conns++), .role = role};
  if (in_job) conn->client.job = &some_job;
  assert_true(zps_coordinator_take_slot(conn));
  return conn;
}

static void fill(enum zps_conn_role role, unsigned n) {
  while (n-- > 0) come(role, true);
}

static void house_closes(void) {
  for (unsigned i = 0; i < n_conns; i++) zps_slots_leave(&conns[i].slot);
  assert_null(coordinator.slots[0].rooms);
  assert_null(coordinator.slots[1].rooms);
  free(conns);
}

/* Whether there may be one more; `text`: what it is told. */
static zps_err_t admit(enum zps_conn_role role, const char *text) {
  struct zps_error error = {.text = ""};
  const zps_err_t err = zps_coordinator_admit(&coordinator, NULL, role, &error);
  if (!strstr(error.text, text)) fail_msg("'%s' does not say '%s'", error.text, text);
  return err;
}

static void test_of_one_address(void **state) {
  (void)state;
  static const struct {
    enum zps_conn_role role;
    unsigned most;
    const char *text;
  } each[] = {{ZPS_CONN_SERVER, 2048, "2048 connections of servers come from its address"},
              {ZPS_CONN_WORKER, 8192, "8192 connections of ranks come from its address"},
              {ZPS_CONN_CTL, 2048, "2048 connections of administrators come from its address"}};
  for (unsigned i = 0; i < sizeof each / sizeof each[0]; i++) {
    house_opens(0, each[i].most);
    fill(each[i].role, each[i].most - 1);
    assert_int_equal(admit(each[i].role, ""), ZPS_OK);
    fill(each[i].role, 1);
    assert_int_equal(admit(each[i].role, each[i].text), ZPS_ERR_AGAIN);
    certificate = "zenps://worker/a";
    assert_int_equal(admit(each[i].role, "have its certificate (zenps://worker/a)"), ZPS_ERR_AGAIN);
    owner.bytes[0] = 11; /* another place has room still */
    assert_int_equal(admit(each[i].role, ""), ZPS_OK);
    house_closes();
  }
}

/* Connections that say hello and stay keep nobody out: the oldest that has asked nothing goes, else the oldest. */
static void test_idle_ones_make_room(void **state) {
  (void)state;
  house_opens(0, 8192);
  fill(ZPS_CONN_WORKER, 8188);
  struct zps_coordinator_conn *const used = come(ZPS_CONN_WORKER, false), *const first = come(ZPS_CONN_WORKER, false),
                                     *const second = come(ZPS_CONN_WORKER, false);
  used->has_asked = true;
  fill(ZPS_CONN_WORKER, 1);
  assert_int_equal(admit(ZPS_CONN_WORKER, ""), ZPS_OK);
  assert_ptr_equal(closed, first->rpc);
  assert_null(first->slot.room); /* the newcomer's */
  assert_true(zps_coordinator_take_slot(first));
  closed = NULL;
  assert_int_equal(admit(ZPS_CONN_WORKER, ""), ZPS_OK);
  assert_ptr_equal(closed, second->rpc);
  first->client.job = second->client.job = &some_job;
  assert_true(zps_coordinator_take_slot(second));
  closed = NULL;
  n_asked = 1; /* all of them wait for an answer */
  assert_int_equal(admit(ZPS_CONN_WORKER, "8192 connections of ranks"), ZPS_ERR_AGAIN);
  n_asked = 0;
  assert_int_equal(admit(ZPS_CONN_WORKER, ""), ZPS_OK);
  assert_ptr_equal(closed, used->rpc);
  house_closes();
}

/* Where the whole house is full, an idle one of those goes that have the most slots. */
static void test_a_full_house(void **state) {
  (void)state;
  house_opens(8, 8);
  struct zps_coordinator_conn *const alone = come(ZPS_CONN_CTL, false);
  owner.bytes[0] = 11;
  fill(ZPS_CONN_WORKER, 5);
  struct zps_coordinator_conn *const of_many = come(ZPS_CONN_WORKER, false);
  owner.bytes[0] = 12;
  assert_int_equal(admit(ZPS_CONN_CTL, ""), ZPS_OK);
  assert_null(closed);
  fill(ZPS_CONN_CTL, 1);
  assert_int_equal(admit(ZPS_CONN_CTL, ""), ZPS_OK);
  assert_ptr_equal(closed, of_many->rpc);
  of_many->client.job = &some_job; /* it is the newcomer's slot now */
  closed = NULL;
  assert_true(zps_coordinator_take_slot(of_many));
  alone->client.job = &some_job;
  assert_int_equal(admit(ZPS_CONN_CTL, "8 connections, the most there can be"), ZPS_ERR_AGAIN);
  house_closes();
}

/* Others take no slot of administrators with a certificate, nor of the Unix socket. */
static void test_reserved_seats(void **state) {
  (void)state;
  house_opens(8, 8);
  fill(ZPS_CONN_WORKER, 8);
  assert_int_equal(admit(ZPS_CONN_CTL, "8 connections, the most there can be"), ZPS_ERR_AGAIN);
  certified = ZPS_TLS_WORKER;
  assert_int_equal(admit(ZPS_CONN_CTL, "8 connections, the most there can be"), ZPS_ERR_AGAIN);
  certified = ZPS_TLS_ADMIN;
  assert_int_equal(admit(ZPS_CONN_CTL, ""), ZPS_OK);
  certified = 0;
  is_unix = true;
  assert_int_equal(admit(ZPS_CONN_WORKER, ""), ZPS_OK);
  assert_null(closed);
  house_closes();
}

/* How long the client of a connection that has ended may be away. */
static uint64_t grace_ms(zps_err_t code, bool returns, uint64_t resume_grace_ms) {
  struct zps_coordinator one = {.config = {.dead_ms = 5000, .resume_grace_ms = resume_grace_ms}};
  return zps_coordinator_grace_ms(&(struct zps_coordinator_conn){.coordinator = &one, .returns = returns}, code);
}

static void test_grace(void **state) {
  (void)state;
  assert_int_equal(grace_ms(ZPS_ERR_CLOSED, false, 0), 0); /* the end of a process ends its connection like this */
  assert_int_equal(grace_ms(ZPS_ERR_PROTOCOL, false, 0), 0);
  assert_int_equal(grace_ms(ZPS_ERR_CLOSED, true, 0), 5000);
  assert_int_equal(grace_ms(ZPS_ERR_TIMEOUT, false, 0), 5000);
  assert_int_equal(grace_ms(ZPS_ERR_NOMEM, false, 0), 5000); /* there was no memory here for a line, or an answer */
  assert_int_equal(grace_ms(ZPS_OK, false, 0), 5000);        /* there was no memory for a message to it */
  assert_int_equal(grace_ms(ZPS_ERR_CLOSED, false, 700), 700);
  assert_int_equal(grace_ms(ZPS_ERR_NOMEM, false, 700), 5000);
  assert_int_equal(grace_ms(ZPS_ERR_NOMEM, false, 9000), 9000);
}

/* ------------------------------------------------------------ statistics */

static void on_act(void *ctx, const struct zps_action *action) {
  (void)ctx, (void)action;
}

static void ask(struct zps_coordinator *asked, unsigned n) {
  const struct zps_viewer viewer = {.sees_all = true};
  for (unsigned i = 0; i < n; i++) zps_coordinator_stats(asked, &viewer, (struct zps_rpc_request *)(uintptr_t)1);
}

/* Lets the timer do its part, as if its time had come. */
static void let_it_fire(struct zps_coordinator *asked, uv_loop_t *loop) {
  const uint64_t due_ms = uv_timer_get_due_in(&asked->stats.timer);
  now_ns += due_ms * ZPS_NS_PER_MS;
  const uv_timer_cb cb = asked->stats.timer.timer_cb;
  uv_timer_stop(&asked->stats.timer);
  uv_run(loop, UV_RUN_NOWAIT);
  cb(&asked->stats.timer);
}

/* When the next answer is due after one that went to `n`: in milliseconds. */
static uint64_t gap_after(struct zps_coordinator *asked, uv_loop_t *loop, unsigned n) {
  now_ns += 10 * ZPS_NS_PER_S;
  n_replies = 0;
  ask(asked, 1); /* at once; the others wait for the next one */
  assert_int_equal(n_replies, 1);
  ask(asked, n);
  assert_int_equal(n_replies, 1);
  let_it_fire(asked, loop);
  assert_int_equal(n_replies, 1 + n);
  ask(asked, 1);
  assert_int_equal(n_replies, 1 + n);
  const uint64_t due_ms = uv_timer_get_due_in(&asked->stats.timer);
  let_it_fire(asked, loop);
  assert_int_equal(n_replies, 2 + n);
  return due_ms;
}

static void test_crowds_are_told_rarely(void **state) {
  (void)state;
  uv_loop_t loop;
  coordinator = (struct zps_coordinator){0};
  const struct zps_members_config config = {.max_jobs = 1, .max_tensors = 1, .act = on_act};
  assert_int_equal(zps_members_create(&config, &coordinator.members), ZPS_OK);
  assert_int_equal(uv_loop_init(&loop), 0);
  uv_timer_init(&loop, &coordinator.stats.timer);
  coordinator.stats.timer.data = &coordinator;
  const uint64_t of_few = gap_after(&coordinator, &loop, 32), of_many = gap_after(&coordinator, &loop, 33);
  assert_true(of_few >= 49 && of_few <= 51);
  assert_true(of_many >= 999 && of_many <= 1001);
  uv_close((uv_handle_t *)&coordinator.stats.timer, NULL);
  uv_run(&loop, UV_RUN_DEFAULT);
  assert_int_equal(uv_loop_close(&loop), 0);
  zps_members_destroy(coordinator.members);
}

static int expect_warnings(void **state) {
  (void)state;
  logs_start();
  logs_expect(ZPS_LOG_WARN, "peer: closed, to make room: it is in no job, and its origin has ");
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_first_lines),    cmocka_unit_test(test_idle),
      cmocka_unit_test(test_of_one_address), cmocka_unit_test(test_idle_ones_make_room),
      cmocka_unit_test(test_a_full_house),   cmocka_unit_test(test_reserved_seats),
      cmocka_unit_test(test_grace),          cmocka_unit_test(test_crowds_are_told_rarely),
  };
  return cmocka_run_group_tests(tests, expect_warnings, logs_check);
}

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

static uint64_t now_ns, heard_ns;
static unsigned n_asked, n_replies;
static struct zps_place place;

int __wrap_clock_gettime(clockid_t which, struct timespec *ts);
struct zps_place __wrap_zps_rpc_conn_place(const struct zps_rpc_conn *conn);
uint64_t __wrap_zps_rpc_conn_heard_ns(const struct zps_rpc_conn *conn);
unsigned __wrap_zps_rpc_conn_asked(const struct zps_rpc_conn *conn);
void __wrap_zps_rpc_reply(struct zps_rpc_request *request, zps_json *result);

int __wrap_clock_gettime(clockid_t which, struct timespec *ts) {
  (void)which;
  *ts = zps_clock_timespec(now_ns);
  return 0;
}

struct zps_place __wrap_zps_rpc_conn_place(const struct zps_rpc_conn *conn) {
  (void)conn;
  return place;
}

uint64_t __wrap_zps_rpc_conn_heard_ns(const struct zps_rpc_conn *conn) {
  (void)conn;
  return heard_ns;
}

unsigned __wrap_zps_rpc_conn_asked(const struct zps_rpc_conn *conn) {
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

/* `n` connections of this role from `here`; whether there may be one more. */
static zps_err_t admit(enum zps_conn_role role, unsigned n, unsigned max, const char *text) {
  struct zps_error error = {.text = ""};
  struct zps_coordinator coordinator = {.config.max_conns = max, .n_conns = n};
  struct zps_coordinator_conn *const conns = calloc(n, sizeof *conns);
  assert_non_null(conns);
  for (unsigned i = 0; i < n; i++)
    conns[i] =
        (struct zps_coordinator_conn){.role = role, .place = {.is_known = true, .bytes = {10}}, .next = &conns[i + 1]};
  conns[n - 1].next = NULL;
  coordinator.conns = conns;
  const zps_err_t err = zps_coordinator_admit(&coordinator, NULL, role, &error);
  if (!strstr(error.text, text)) fail_msg("'%s' does not say '%s'", error.text, text);
  free(conns);
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
              {ZPS_CONN_CTL, 256, "256 connections of administrators come from its address"}};
  for (unsigned i = 0; i < sizeof each / sizeof each[0]; i++) {
    place = (struct zps_place){.is_known = true, .bytes = {10}};
    assert_int_equal(admit(each[i].role, each[i].most - 1, 0, ""), ZPS_OK);
    assert_int_equal(admit(each[i].role, each[i].most, 0, each[i].text), ZPS_ERR_AGAIN);
    place.bytes[0] = 11; /* another address has room still */
    assert_int_equal(admit(each[i].role, each[i].most, 0, ""), ZPS_OK);
  }
  assert_int_equal(admit(ZPS_CONN_CTL, 7, 8, ""), ZPS_OK);
  assert_int_equal(admit(ZPS_CONN_CTL, 8, 8, "8 connections, the most there can be"), ZPS_ERR_AGAIN);
}

/* How long the client of a connection that has ended may be away. */
static uint64_t grace_ms(zps_err_t code, bool returns, uint64_t resume_grace_ms) {
  struct zps_coordinator coordinator = {.config = {.dead_ms = 5000, .resume_grace_ms = resume_grace_ms}};
  return zps_coordinator_grace_ms(&(struct zps_coordinator_conn){.coordinator = &coordinator, .returns = returns},
                                  code);
}

static void test_grace(void **state) {
  (void)state;
  assert_int_equal(grace_ms(ZPS_ERR_CLOSED, false, 0), 0); /* as the end of its process ends it */
  assert_int_equal(grace_ms(ZPS_ERR_PROTOCOL, false, 0), 0);
  assert_int_equal(grace_ms(ZPS_ERR_CLOSED, true, 0), 5000);
  assert_int_equal(grace_ms(ZPS_ERR_TIMEOUT, false, 0), 5000);
  assert_int_equal(grace_ms(ZPS_ERR_NOMEM, false, 0), 5000); /* there was no memory here for a line, or an answer */
  assert_int_equal(grace_ms(ZPS_OK, false, 0), 5000);        /* likewise for what it was to be told */
  assert_int_equal(grace_ms(ZPS_ERR_CLOSED, false, 700), 700);
  assert_int_equal(grace_ms(ZPS_ERR_NOMEM, false, 700), 5000);
  assert_int_equal(grace_ms(ZPS_ERR_NOMEM, false, 9000), 9000);
}

/* ------------------------------------------------------------ statistics */

static void on_act(void *ctx, const struct zps_action *action) {
  (void)ctx, (void)action;
}

static void ask(struct zps_coordinator *coordinator, unsigned n) {
  for (unsigned i = 0; i < n; i++) zps_coordinator_stats(coordinator, (struct zps_rpc_request *)(uintptr_t)1);
}

/* Lets the timer do its part, as if its time had come. */
static void let_it_fire(struct zps_coordinator *coordinator, uv_loop_t *loop) {
  const uint64_t due_ms = uv_timer_get_due_in(&coordinator->stats.timer);
  now_ns += due_ms * ZPS_NS_PER_MS;
  const uv_timer_cb cb = coordinator->stats.timer.timer_cb;
  uv_timer_stop(&coordinator->stats.timer);
  uv_run(loop, UV_RUN_NOWAIT);
  cb(&coordinator->stats.timer);
}

/* When the next answer is due after one that went to `n`: in milliseconds. */
static uint64_t gap_after(struct zps_coordinator *coordinator, uv_loop_t *loop, unsigned n) {
  now_ns += 10 * ZPS_NS_PER_S;
  n_replies = 0;
  ask(coordinator, 1); /* at once; the others wait for the next one */
  assert_int_equal(n_replies, 1);
  ask(coordinator, n);
  assert_int_equal(n_replies, 1);
  let_it_fire(coordinator, loop);
  assert_int_equal(n_replies, 1 + n);
  ask(coordinator, 1);
  assert_int_equal(n_replies, 1 + n);
  const uint64_t due_ms = uv_timer_get_due_in(&coordinator->stats.timer);
  let_it_fire(coordinator, loop);
  assert_int_equal(n_replies, 2 + n);
  return due_ms;
}

static void test_crowds_are_told_rarely(void **state) {
  (void)state;
  uv_loop_t loop;
  struct zps_coordinator coordinator = {0};
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_first_lines),
      cmocka_unit_test(test_idle),
      cmocka_unit_test(test_of_one_address),
      cmocka_unit_test(test_grace),
      cmocka_unit_test(test_crowds_are_told_rarely),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

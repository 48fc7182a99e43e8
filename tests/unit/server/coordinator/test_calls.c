/* Calls to servers that there is no memory for: the job that a server would know too little of fails; one that is over,
 * and that it would keep for ever, it hears of over another connection. Likewise what a rank has said, which nobody
 * answers: it hears over another one what it is to say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "server/coordinator/coordinator_impl.h"

static unsigned n_closed;

unsigned __wrap_zps_rpc_conn_pending(const struct zps_rpc_conn *conn);
unsigned __wrap_zps_rpc_conn_pending(const struct zps_rpc_conn *conn) {
  (void)conn;
  return 0;
}

void __wrap_zps_rpc_conn_watched(struct zps_rpc_conn *conn);
void __wrap_zps_rpc_conn_watched(struct zps_rpc_conn *conn) {
  (void)conn;
}

size_t __wrap_zps_rpc_conn_unsent(const struct zps_rpc_conn *conn);
size_t __wrap_zps_rpc_conn_unsent(const struct zps_rpc_conn *conn) {
  (void)conn;
  return 0;
}

zps_err_t __wrap_zps_rpc_call(struct zps_rpc_conn *conn, const char *method, zps_json *params, uint64_t timeout_ms,
                              zps_rpc_result_fn done, void *ctx);
zps_err_t __wrap_zps_rpc_call(struct zps_rpc_conn *conn, const char *method, zps_json *params, uint64_t timeout_ms,
                              zps_rpc_result_fn done, void *ctx) {
  (void)conn, (void)method, (void)timeout_ms, (void)done, (void)ctx;
  zps_json_unref(params);
  return ZPS_ERR_NOMEM;
}

void __wrap_zps_rpc_close(struct zps_rpc_conn *conn, bool flush);
void __wrap_zps_rpc_close(struct zps_rpc_conn *conn, bool flush) {
  (void)conn, (void)flush;
  n_closed++;
}

static struct zps_coordinator_conn speaker;

void *__wrap_zps_rpc_conn_ctx(struct zps_rpc_conn *conn);
void *__wrap_zps_rpc_conn_ctx(struct zps_rpc_conn *conn) {
  (void)conn;
  return &speaker;
}

unsigned __wrap_zps_rpc_conn_certified(const struct zps_rpc_conn *conn);
unsigned __wrap_zps_rpc_conn_certified(const struct zps_rpc_conn *conn) {
  (void)conn;
  return 0;
}

const char *__wrap_zps_rpc_conn_peer(const struct zps_rpc_conn *conn);
const char *__wrap_zps_rpc_conn_peer(const struct zps_rpc_conn *conn) {
  (void)conn;
  return "somewhere";
}

const char *__wrap_zps_rpc_conn_role(const struct zps_rpc_conn *conn);
const char *__wrap_zps_rpc_conn_role(const struct zps_rpc_conn *conn) {
  (void)conn;
  return "worker";
}

static zps_err_t steps_read;

zps_err_t __wrap_zps_fields_read(const struct zps_fields *message, const zps_json *object, void *to,
                                 struct zps_error *error);
zps_err_t __wrap_zps_fields_read(const struct zps_fields *message, const zps_json *object, void *to,
                                 struct zps_error *error) {
  (void)object, (void)to;
  assert_ptr_equal(message, &zps_control_job_steps);
  return zps_fail(error, steps_read, "no steps");
}

static void quiet(void *ctx, const struct zps_log_line *line) {
  (void)ctx, (void)line;
}

static zps_err_t send_short(struct zps_coordinator *coordinator, enum zps_action_type type) {
  static struct zps_member_server server = {.name = "a", .host = "node"};
  static struct zps_coordinator_conn conn;
  static char somewhere;
  const struct zps_outbox_call call = {.type = type, .job_id = 7, .text = "all ranks have left"};
  conn = (struct zps_coordinator_conn){
      .client.server = &server, .coordinator = coordinator, .rpc = (struct zps_rpc_conn *)(void *)&somewhere};
  n_closed = 0;
  return zps_coordinator_send(&conn, &call);
}

static void test_no_memory(void **state) {
  struct zps_coordinator coordinator = {.depth = 1};
  const struct zps_members_config config = {.max_jobs = 1};
  (void)state;
  assert_int_equal(zps_members_create(&config, &coordinator.members), ZPS_OK);
  assert_int_equal(send_short(&coordinator, ZPS_ACT_RANK_GONE), ZPS_ERR_NOMEM);
  assert_int_equal(n_closed, 0);
  assert_non_null(coordinator.late);
  assert_int_equal(coordinator.late->type, ZPS_ACT_JOB_FAILED);
  assert_int_equal(coordinator.late->job_id, 7);
  free(coordinator.late);
  coordinator.late = NULL;
  assert_int_equal(send_short(&coordinator, ZPS_ACT_JOB_CLOSE), ZPS_ERR_NOMEM);
  assert_int_equal(n_closed, 1);
  assert_null(coordinator.late);
  zps_members_destroy(coordinator.members);
}

static void test_no_memory_for_what_was_said(void **state) {
  struct zps_coordinator coordinator = {.depth = 1};
  const struct zps_members_config config = {.max_jobs = 1};
  static char somewhere;
  struct zps_rpc_conn *const rpc = (struct zps_rpc_conn *)(void *)&somewhere;
  zps_json *const params = zps_json_object();
  (void)state;
  assert_int_equal(zps_members_create(&config, &coordinator.members), ZPS_OK);
  speaker = (struct zps_coordinator_conn){.coordinator = &coordinator, .rpc = rpc, .role = ZPS_CONN_WORKER};
  n_closed = 0;
  steps_read = ZPS_ERR_INVALID;
  zps_coordinator_message(NULL, rpc, "job.mapped", params, NULL);
  assert_int_equal(n_closed, 0);
  steps_read = ZPS_ERR_NOMEM;
  zps_coordinator_message(NULL, rpc, "job.mapped", params, NULL);
  assert_int_equal(n_closed, 1);
  zps_json_unref(params);
  zps_members_destroy(coordinator.members);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_no_memory_for_what_was_said),
  };
  zps_log_set_sink(quiet, NULL);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

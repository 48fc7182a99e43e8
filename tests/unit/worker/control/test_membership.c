/* A rank that is let in over one connection, and comes back over another one, to a coordinator in a thread of its own,
 * which has none of the job any more. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "common/control/rpc.h"
#include "worker/control/membership.h"

/* ---- The coordinator ---- */

static struct coordinator {
  pthread_t thread;
  uv_loop_t loop;
  uv_async_t stop;
  struct zps_rpc_listener *listener;
  char address[64];
  zps_err_t resumes; /* what job.resume is answered with */
  bool ends;         /* the connection over which it is called first */
  unsigned n_joins, n_resumes;
} coordinator;

static zps_json *join_answer(bool is_elastic) {
  struct zps_place_image place = {
      .state = ZPS_PLACE_IN, .number = ZPS_NO_SERVER, .server = {.name = "a", .addr = {1}, .addr_len = 1}};
  const struct zps_join join = {.job_id = 7,
                                .seed = 9,
                                .heartbeat = {.heartbeat_ms = 1000, .dead_ms = 600000},
                                .incarnation = 3,
                                .view = {.epoch = 1, .n_first = 1, .n_places = 1, .places = &place}};
  const struct zps_generation generation = {.number = is_elastic ? 4 : 0};
  return zps_control_generation_write(zps_control_join_answer_write(&join), &generation, 1, 2);
}

/* Its answer to the join is heard over the second connection. */
static void on_message(void *ctx, struct zps_rpc_conn *conn, const char *method, const zps_json *params,
                       struct zps_rpc_request *request) {
  (void)ctx, (void)params;
  const bool is_join = strncmp(method, "job.join", 8) == 0 || strncmp(method, "job.next", 8) == 0;
  const bool is_resume = strcmp(method, "job.resume") == 0;
  if (!request) return;
  if ((is_join && coordinator.n_joins++ == 0) || (is_resume && coordinator.n_resumes++ == 0 && coordinator.ends)) {
    zps_rpc_close(conn, false);
    zps_rpc_reply(request, NULL);
  } else if (is_join) {
    zps_rpc_reply(request, join_answer(strcmp(method, "job.next") == 0));
  } else if (is_resume && coordinator.resumes != ZPS_OK) {
    zps_rpc_reply_error(request, coordinator.resumes, "it was lost");
  } else {
    zps_rpc_reply(request, NULL);
  }
}

static void on_stop(uv_async_t *stop) {
  zps_rpc_listener_close(coordinator.listener);
  uv_close((uv_handle_t *)stop, NULL);
}

static void *serve(void *arg) {
  (void)arg;
  uv_run(&coordinator.loop, UV_RUN_DEFAULT);
  return NULL;
}

static void coordinator_start(zps_err_t resumes, bool ends) {
  const struct zps_rpc_handler handler = {.on_message = on_message};
  struct zps_error error;
  coordinator = (struct coordinator){.resumes = resumes, .ends = ends};
  assert_int_equal(uv_loop_init(&coordinator.loop), 0);
  assert_int_equal(uv_async_init(&coordinator.loop, &coordinator.stop, on_stop), 0);
  const zps_err_t err =
      zps_rpc_listen(&coordinator.loop, "127.0.0.1:0", "coordinator", &handler, &coordinator.listener, &error);
  if (err) fail_msg("%s", error.text);
  snprintf(coordinator.address, sizeof coordinator.address, "%s", zps_rpc_listener_address(coordinator.listener));
  assert_int_equal(pthread_create(&coordinator.thread, NULL, serve, NULL), 0);
}

static void coordinator_stop(void) {
  uv_async_send(&coordinator.stop);
  pthread_join(coordinator.thread, NULL);
  assert_int_equal(uv_loop_close(&coordinator.loop), 0);
}

/* ---- The rank ---- */

static atomic_uint n_failed;
static struct zps_frame_abort failure; /* of the last call, which is over before the rank's own call returns */

static void on_failed(void *ctx, const struct zps_frame_abort *why) {
  (void)ctx;
  failure = *why;
  atomic_fetch_add(&n_failed, 1);
}
static void on_away(void *ctx) {
  (void)ctx;
}
static uint64_t stuck_ns(void *ctx, const struct zps_silence *silence, uint64_t now_ns) {
  (void)ctx, (void)silence, (void)now_ns;
  return 0;
}

static struct zps_membership membership;

static zps_err_t open_rank(bool is_elastic, struct zps_error *error) {
  char job[] = "run";
  const struct zps_worker_options options = {.coordinator = coordinator.address,
                                             .job = job,
                                             .rank = 1,
                                             .world = 2,
                                             .min_world = is_elastic ? 1 : 0,
                                             .max_world = is_elastic ? 2 : 0,
                                             .join_timeout_ms = 600000};
  const struct zps_net_info fabric = {.provider = "loop", .addr = {1}, .addr_len = 1};
  const struct zps_membership_handler handler = {
      .on_failed = on_failed, .on_away = on_away, .on_beat = on_away, .stuck_ns = stuck_ns};
  const struct zps_last_place last = {.generation = 0};
  struct zps_join join = {0};
  memset(&membership, 0, sizeof membership);
  n_failed = 0;
  const zps_err_t err = zps_membership_open(&membership, &options, &fabric, &last, &handler, &join, error);
  zps_join_fini(&join);
  return err;
}

static void close_rank(void) {
  zps_membership_close(&membership);
  coordinator_stop();
}

/* It is in the job, over the second connection. */
static void test_is_back(void **state) {
  struct zps_error error = {.text = ""};
  (void)state;
  for (unsigned ends = 0; ends < 2; ends++) {
    coordinator_start(ZPS_OK, ends);
    if (open_rank(true, &error) != ZPS_OK) fail_msg("%s", error.text);
    assert_int_equal(n_failed, 0);
    assert_int_equal(membership.generation.number, 4);
    close_rank();
  }
}

/* Whether it is told that by the call of the rank's own, or as the next connection begins. */
static void test_generation_is_over(void **state) {
  static const zps_err_t codes[] = {ZPS_ERR_UNKNOWN, ZPS_ERR_PEER_LOST, ZPS_ERR_REFUSED};
  (void)state;
  for (unsigned i = 0; i < 6; i++) {
    struct zps_error error = {.text = ""};
    coordinator_start(codes[i / 2], i % 2);
    if (open_rank(true, &error) != ZPS_OK) fail_msg("%s", error.text); /* the next generation can be asked for */
    assert_int_equal(n_failed, 1);
    assert_int_equal(failure.code, ZPS_ERR_PEER_LOST);
    assert_non_null(strstr(failure.text, "it was lost"));
    assert_int_equal(membership.job_id, 7);
    close_rank();
  }
}

static void test_job_is_over(void **state) {
  (void)state;
  for (unsigned ends = 0; ends < 2; ends++) {
    struct zps_error error = {.text = ""};
    coordinator_start(ZPS_ERR_UNKNOWN, ends);
    assert_int_equal(open_rank(false, &error), ZPS_ERR_PEER_LOST);
    if (!strstr(error.text, "job run: rank 1 was let in, and is in it no longer: ") ||
        !strstr(error.text, "it was lost"))
      fail_msg("%s", error.text);
    close_rank();
  }
}

/* One that knows nothing of the job has decided nothing about it. */
static void test_another_coordinator(void **state) {
  (void)state;
  for (unsigned ends = 0; ends < 2; ends++) {
    struct zps_error error = {.text = ""};
    coordinator_start(ZPS_ERR_STALE, ends);
    assert_int_not_equal(open_rank(true, &error), ZPS_OK);
    assert_int_equal(n_failed, 0);
    close_rank();
  }
}

static void quiet(void *ctx, const struct zps_log_line *line) {
  (void)ctx, (void)line;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_is_back),
      cmocka_unit_test(test_generation_is_over),
      cmocka_unit_test(test_job_is_over),
      cmocka_unit_test(test_another_coordinator),
  };
  zps_log_set_sink(quiet, NULL);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

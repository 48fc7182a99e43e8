/* Requests as the trainer sees them, of rounds that are over when the test says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ZPS_LOG_COMPONENT "test"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/api/job.h"
#include "worker/api/request.h"
#include "worker/served/served.h"

enum { REQUESTS = 4 };

/* A job without connections, its tensor, and requests in flight. */
struct scene {
  struct zenps_job job;
  struct zenps_tensor tensor;
  uint32_t owners[8];
  zenps_request_t *requests[REQUESTS];
};

static void start(struct scene *scene, unsigned i) {
  struct zps_round *round;
  assert_int_equal(zps_worker_request_create(&scene->tensor, &scene->requests[i]), ZPS_OK);
  assert_int_equal(zps_worker_tensor_round_get(&scene->tensor, i, false, false, &round), ZPS_OK);
  scene->requests[i]->round = round;
  round->request = scene->requests[i];
}

/* The engine's part. */
static void finish(struct scene *scene, unsigned i, zenps_status_t status) {
  struct zps_round *round = scene->requests[i]->round;
  zenps_error_t error = {.status = status, .step = i};
  round->stats.scheme = "balanced";
  snprintf(error.text, sizeof error.text, "step %u", i);
  assert_true(round->owner->over(round, &error, false));
  round->owner->wake(round->tensor);
  round->owner->released(round);
}

static int scene_setup(void **state) {
  struct scene *scene = calloc(1, sizeof *scene);
  pthread_condattr_t attr;
  if (!scene) return -1;
  *state = scene;
  scene->job.pid = getpid();
  scene->job.plane.n_servers = 1;
  zps_rounds_init(&scene->job.rounds, &scene->job.plane);
  pthread_mutex_init(&scene->job.lock, NULL);
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&scene->job.done, &attr);
  pthread_condattr_destroy(&attr);
  scene->tensor = (struct zenps_tensor){.job = &scene->job,
                                        .core = {.rounds = &scene->job.rounds,
                                                 .ops = &zps_served_ops,
                                                 .width = 2,
                                                 .dtype = ZPS_DTYPE_F32,
                                                 .owners = scene->owners,
                                                 .shape = {.rows = 1000, .width = 2, .dtype = ZPS_DTYPE_F32}}};
  zps_row_arrays_pool_init(&scene->tensor.core.arrays);
  scene->job.tensors = &scene->tensor;
  if (zps_partition_init(&scene->tensor.core.part, 1000, 8, 0, 1, NULL) != ZPS_OK ||
      zps_workpool_create(1, "test", &scene->job.plane.pool) != ZPS_OK)
    return -1;
  for (unsigned i = 0; i < REQUESTS; i++) start(scene, i);
  return 0;
}

static int scene_teardown(void **state) {
  struct scene *scene = *state;
  for (unsigned i = 0; i < REQUESTS; i++) zenps_request_free(scene->requests[i]);
  zps_worker_tensor_rounds_destroy(&scene->tensor);
  zps_row_arrays_pool_fini(&scene->tensor.core.arrays);
  zps_workpool_destroy(scene->job.plane.pool);
  pthread_mutex_destroy(&scene->job.lock);
  pthread_cond_destroy(&scene->job.done);
  free(scene);
  return 0;
}

/* ------------------------------------------------------------ all at once */

static void test_all_are_waited_for(void **state) {
  struct scene *scene = *state;
  assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, 0), ZENPS_IN_PROGRESS);
  for (unsigned i = 0; i < REQUESTS; i++) {
    assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, i % 2), ZENPS_IN_PROGRESS);
    finish(scene, REQUESTS - 1 - i, ZENPS_OK);
    assert_int_equal(zenps_wait_all(&scene->requests[REQUESTS - 1 - i], i + 1, 0), ZENPS_OK);
  }
  assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, -1), ZENPS_OK);
  assert_int_equal(zenps_wait_all(NULL, 0, -1), ZENPS_OK);
}

static void test_the_first_error_in_the_array(void **state) {
  struct scene *scene = *state;
  finish(scene, 3, ZENPS_ERR_MISSING); /* the first to fail, but not the first in the array */
  finish(scene, 1, ZENPS_ERR_TIMEOUT);
  finish(scene, 0, ZENPS_OK);
  assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, 0), ZENPS_IN_PROGRESS);
  finish(scene, 2, ZENPS_OK);
  assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, -1), ZENPS_ERR_TIMEOUT);
  assert_string_equal(zenps_last_error()->text, "step 1");
  assert_int_equal(zenps_wait_all(scene->requests + 2, 2, -1), ZENPS_ERR_MISSING);
  assert_string_equal(zenps_last_error()->text, "step 3");
  assert_int_equal(zenps_wait_all(scene->requests, 1, -1), ZENPS_OK);
}

static void *wait_for_all(void *ctx) {
  struct scene *scene = ctx;
  return (void *)(intptr_t)zenps_wait_all(scene->requests, REQUESTS, -1);
}

static void test_another_thread_ends_them(void **state) {
  struct scene *scene = *state;
  pthread_t thread;
  void *status;
  assert_int_equal(pthread_create(&thread, NULL, wait_for_all, scene), 0);
  for (unsigned i = 0; i < REQUESTS; i++) finish(scene, i, i == 2 ? ZENPS_ERR_PEER_LOST : ZENPS_OK);
  pthread_join(thread, &status);
  assert_int_equal((intptr_t)status, ZENPS_ERR_PEER_LOST);
}

static void test_bad_arguments(void **state) {
  struct scene *scene = *state;
  zenps_request_t *const some[] = {scene->requests[0], NULL};
  assert_int_equal(zenps_wait_all(NULL, 1, -1), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_wait_all(some, 2, -1), ZENPS_ERR_INVALID);
  assert_non_null(strstr(zenps_last_error()->text, "requests[1]"));
  assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, -2), ZENPS_ERR_INVALID);
  assert_non_null(strstr(zenps_last_error()->text, "zenps_wait_all: a timeout of -2 ms"));
  for (unsigned i = 0; i < REQUESTS; i++) finish(scene, i, ZENPS_OK);
}

/* ------------------------------------------------------------ the log */

static void count_line(void *ctx, int level, const char *component, const char *text) {
  (void)level, (void)component, (void)text;
  ++*(unsigned *)ctx;
}

static void test_the_log_is_given_and_taken_back(void **state) {
  struct scene *scene = *state;
  unsigned n = 0, others = 0;
  zps_log_set_level(ZPS_LOG_INFO);
  assert_int_equal(zenps_set_log(NULL, count_line, &n), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_set_log(&scene->job, count_line, &n), ZENPS_OK);
  zps_log_warn("a line");
  assert_int_equal(n, 1);
  assert_int_equal(zenps_set_log(&scene->job, count_line, &others), ZENPS_OK);
  zps_log_warn("a line");
  assert_int_equal(zenps_set_log(&scene->job, NULL, NULL), ZENPS_OK);
  zps_log_info("a line on stderr");
  assert_int_equal(n, 1);
  assert_int_equal(others, 1);
  for (unsigned i = 0; i < REQUESTS; i++) finish(scene, i, ZENPS_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_all_are_waited_for, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_the_first_error_in_the_array, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_another_thread_ends_them, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_bad_arguments, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_the_log_is_given_and_taken_back, scene_setup, scene_teardown),
  };
  return cmocka_run_group_tests_name("requests", tests, NULL, NULL);
}

/* Requests when memory is short: an error each time, and nothing left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "tests/support/oom.h"
#include "worker/api/job.h"
#include "worker/api/request.h"
#include "worker/served/served.h"

/* A tensor of a job without connections. */
static struct {
  struct zenps_job job;
  struct zenps_tensor tensor;
  uint32_t owners[8];
  struct zenps_request *request;
} scene = {.job.refs = 1, .job.plane.n_servers = 2, .owners = {0, 1, 0, 1, 0, 1, 0, 1}};

static int scene_setup(void **state) {
  (void)state;
  zps_rounds_init(&scene.job.rounds, &scene.job.plane);
  scene.tensor = (struct zenps_tensor){.job = &scene.job,
                                       .core = {.name = "t",
                                                .rounds = &scene.job.rounds,
                                                .ops = &zps_served_ops,
                                                .width = 2,
                                                .dtype = ZPS_DTYPE_F32,
                                                .owners = scene.owners}};
  if (zps_partition_init(&scene.tensor.core.part, 1000, 8, 0, 1, NULL) != ZPS_OK) return -1;
  return zps_workpool_create(2, "test", &scene.job.plane.pool) == ZPS_OK ? 0 : -1;
}

static int scene_teardown(void **state) {
  (void)state;
  zps_workpool_destroy(scene.job.plane.pool);
  return 0;
}

static zps_err_t request_create(void *ctx) {
  (void)ctx;
  return zps_worker_request_create(&scene.tensor, &scene.request);
}

static void request_destroy(void *ctx) {
  (void)ctx;
  zps_worker_request_destroy(scene.request);
}

static void test_request(void **state) {
  (void)state;
  oom_sweep(request_create, request_destroy, NULL, 2);
}

static int quiet(void **state) {
  (void)state;
  zps_log_set_level(ZPS_LOG_ERROR);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_request, scene_setup, scene_teardown),
  };
  return cmocka_run_group_tests_name("requests without memory", tests, quiet, NULL);
}

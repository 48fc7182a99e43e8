/* What the library creates when memory is short: an error each time, and nothing left behind. */
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
#include "worker/round/arena.h"
#include "worker/round/round.h"
#include "worker/served/served.h"

static zps_err_t options_create(void *ctx) {
  zenps_options_t given;
  ZENPS_OPTIONS_INIT(&given);
  given.coordinator = "host:1";
  given.job = "run";
  given.provider = "tcp";
  given.interface = "eth0";
  given.subnet = "10.0.0.0/8";
  return zps_worker_options_load(&given, ctx, NULL);
}

static void options_destroy(void *ctx) {
  zps_worker_options_fini(ctx);
}

static void test_options(void **state) {
  (void)state;
  struct zps_worker_options options;
  oom_sweep(options_create, options_destroy, &options, 5);
}

static uint64_t no_tick(void *ctx, uint64_t now_ns) {
  (void)ctx;
  (void)now_ns;
  return ZPS_NEVER;
}

static zps_err_t plane_create(void *ctx) {
  char provider[] = "loop";
  const struct zps_worker_options options = {.provider = provider, .threads = 2, .memory_limit_bytes = 1 << 20};
  const struct zps_plane_handler handler = {.on_tick = no_tick};
  return zps_plane_open(&options, &handler, ctx, NULL);
}

static void plane_destroy(void *ctx) {
  zps_plane_disconnect(ctx);
  zps_plane_close(ctx);
}

static void test_plane(void **state) {
  (void)state;
  static struct zps_plane plane;
  oom_sweep(plane_create, plane_destroy, &plane, 5);
}

/* A tensor of a job that is connected to nobody. */
static struct {
  struct zenps_job job;
  struct zenps_tensor tensor;
  uint32_t owners[8];
  struct zps_round *round;
  struct zenps_request *request;
  struct zps_arena arena;
} scene = {.job.plane.n_servers = 2, .owners = {0, 1, 0, 1, 0, 1, 0, 1}};

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

static zps_err_t round_create(void *ctx) {
  (void)ctx;
  return zps_round_create(&scene.tensor.core, NULL, &scene.round);
}

static void round_destroy(void *ctx) {
  (void)ctx;
  zps_round_destroy(scene.round);
}

static void test_round(void **state) {
  (void)state;
  oom_sweep(round_create, round_destroy, NULL, 9);
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

/* Pieces of several chunks, twice over the same memory. */
static zps_err_t arena_create(void *ctx) {
  (void)ctx;
  for (unsigned turn = 0; turn < 2; turn++) {
    unsigned char *before = NULL;
    for (unsigned i = 0; i < 40; i++) {
      unsigned char *piece = zps_arena_get(&scene.arena, 4091);
      if (!piece) {
        zps_arena_fini(&scene.arena);
        return ZPS_ERR_NOMEM;
      }
      assert_int_equal((uintptr_t)piece % 8, 0);
      memset(piece, (int)i, 4091);
      if (before) assert_int_equal(before[4090], i - 1);
      before = piece;
    }
    zps_arena_reset(&scene.arena);
  }
  return ZPS_OK;
}

static void arena_destroy(void *ctx) {
  (void)ctx;
  zps_arena_fini(&scene.arena);
}

static void test_arena(void **state) {
  (void)state;
  oom_sweep(arena_create, arena_destroy, NULL, 3);
}

static int quiet(void **state) {
  (void)state;
  zps_log_set_level(ZPS_LOG_ERROR);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_options),
      cmocka_unit_test(test_plane),
      cmocka_unit_test_setup_teardown(test_round, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_request, scene_setup, scene_teardown),
      cmocka_unit_test(test_arena),
  };
  return cmocka_run_group_tests_name("worker without memory", tests, quiet, NULL);
}

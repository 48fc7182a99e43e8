/* The data plane creates each object as a whole or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "server/shard/machine.h"
#include "tests/support/fabrics/loop.h"
#include "tests/support/oom.h"
#include "tests/support/views.h"
#include "tests/unit/server/shard/shard_cluster.h"

struct made {
  struct zps_shard_machine *machine;
  struct zps_shard *shard;
  struct zps_job_spec job;
  struct zps_tensor_spec tensor;
};

static zps_err_t round_create(void *ctx) {
  struct made *made = ctx;
  return zps_shard_machine_create(3, 2, &made->machine);
}

static void round_destroy(void *ctx) {
  struct made *made = ctx;
  zps_shard_machine_destroy(made->machine);
}

static zps_err_t shard_create(void *ctx) {
  const struct zps_shard_config config = {
      .net = {.provider = "loop", .n_recv = 4}, .memory_limit_bytes = 1 << 24, .reduce_threads = 2};
  struct made *made = ctx;
  struct zps_error error;
  return zps_shard_create(&config, &made->shard, &error);
}

static void shard_destroy(void *ctx) {
  struct made *made = ctx;
  zps_shard_destroy(made->shard);
}

static zps_err_t job_open(void *ctx) {
  struct made *made = ctx;
  struct zps_error error;
  return zps_shard_job_open(made->shard, &made->job, &error);
}

static zps_err_t tensor_open(void *ctx) {
  struct made *made = ctx;
  struct zps_error error;
  return zps_shard_tensor_open(made->shard, &made->tensor, &error);
}

static zps_err_t job_view(void *ctx) {
  struct made *made = ctx;
  struct zps_error error;
  struct zps_place_image places[2];
  const struct zps_job_view told = {.job_id = 5, .view = view_of(places, 1, 2, "ix")};
  return zps_shard_job_view(made->shard, &told, &error);
}

static void nothing(void *ctx) {
  (void)ctx;
}

static void test_create_functions(void **state) {
  (void)state;
  struct made made = {0};
  oom_sweep(round_create, round_destroy, &made, 1);
  oom_sweep(shard_create, shard_destroy, &made, 8);
}

static void test_jobs_and_tensors(void **state) {
  (void)state;
  struct made made = {0};
  struct zps_member_spec members[3] = {0};
  struct zps_place_image places[2];
  const uint32_t owners[2] = {0, 0};
  assert_int_equal(shard_create(&made), ZPS_OK);
  const struct zps_net_info *info = zps_shard_net_info(made.shard);
  for (uint32_t rank = 0; rank < 3; rank++) {
    members[rank].rank = rank;
    members[rank].addr_len = info->addr_len;
    memcpy(members[rank].addr, info->addr, info->addr_len);
  }
  made.job = (struct zps_job_spec){
      .job_id = 5, .name = "j", .view = view_of(places, 0, 2, "ii"), .world = 3, .members = members};
  oom_sweep(job_open, nothing, &made, 6);
  made.tensor = (struct zps_tensor_spec){.job_id = 5,
                                         .name = "t",
                                         .rows = 100,
                                         .width = 1,
                                         .dtype = ZPS_DTYPE_F32,
                                         .op = ZPS_OP_SUM,
                                         .codec = ZPS_CODEC_AUTO,
                                         .value_codec = ZPS_VALUES_RAW,
                                         .n_parts = 2,
                                         .owners = owners};
  oom_sweep(tensor_open, nothing, &made, 4);
  assert_int_equal(cluster_totals(made.shard).tensors, 1);
  oom_sweep(job_view, nothing, &made, 5);
  zps_shard_destroy(made.shard);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_create_functions), cmocka_unit_test(test_jobs_and_tensors)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

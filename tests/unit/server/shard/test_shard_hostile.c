/* Pushes, jobs and tensors that no rank or coordinator in its right mind sends: each is refused by name, and everything
 * else goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/logs.h"
#include "server/shard/shard_impl.h"
#include "tests/unit/server/shard/shard_scene.h"

static void test_hostile_slices(void **state) {
  (void)state;
  static const uint32_t words[] = {0, 0, 0, 0, 7, 7}; /* values of two rows, then their indices */
  static const uint32_t descending[] = {0, 0, 0, 0, 9, 3};
  static const uint32_t outside[] = {0, 0, 0, 0, 3, 4000000};
  static const struct hostile {
    struct rig_slice slice;
    zps_err_t code;
    const char *text;
  } cases[] = {
      {{.partition = 5}, ZPS_ERR_PROTOCOL, "rank 1: it pushed partition 5, but there are 5"},
      {{.partition = UINT32_MAX}, ZPS_ERR_PROTOCOL, "rank 1: it pushed partition 4294967295, but there are 5"},
      {{.partition = 2}, ZPS_ERR_PROTOCOL, "rank 1: it pushed partition 2, which is not this server's"},
      {{.partition = 1, .is_wide = true},
       ZPS_ERR_PROTOCOL,
       "rank 1: it pushed partition 1 wide, as only halves may be; the tensor's are f32 as raw"},
      {{.partition = 1, .codec = 7}, ZPS_ERR_PROTOCOL, "rank 1: partition 1: "},
      {{.partition = 1, .codec = 4}, ZPS_ERR_PROTOCOL, "rank 1: partition 1: slice in codec 4"},
      {{.partition = 1, .nnz = 1}, ZPS_ERR_PROTOCOL, "rank 1: partition 1: "},
      {{.partition = 1, .nnz = 2, .payload = words, .len_bytes = 20}, ZPS_ERR_PROTOCOL, "rank 1: partition 1: "},
      {{.partition = 1, .nnz = 2, .payload = words, .len_bytes = 24}, ZPS_ERR_PROTOCOL, "rank 1: partition 1: "},
      {{.partition = 1, .nnz = 2, .payload = descending, .len_bytes = 24}, ZPS_ERR_PROTOCOL, "rank 1: partition 1: "},
      {{.partition = 1, .nnz = 2, .payload = outside, .len_bytes = 24, .is_remote = true},
       ZPS_ERR_PROTOCOL,
       "rank 1: partition 1: "},
      {{.partition = 1, .nnz = 900000, .payload = words, .len_bytes = 24}, ZPS_ERR_PROTOCOL, "rank 1: partition 1: "},
  };
  struct scene scene;
  scene_open(&scene);
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    scene_push(&scene, i, 0);
    scene_push(&scene, i, 2);
    rig_push(scene.cluster.ranks[1], scene.tensor->spec.tensor, i, PATIENCE_NEVER_MS, 1000000, &cases[i].slice, 1);
    for (uint32_t rank = 0; rank < RANKS; rank++) scene_abort(&scene, i, rank, cases[i].code, cases[i].text);
  }
  scene_close(&scene);
}

/* Of a tensor of which ranks push rows in any order. */
static void test_hostile_orders(void **state) {
  (void)state;
  static const uint32_t twice[] = {0, 0, 0, 0, 0, 0, 9, 3, 9}; /* values of three rows, then their indices */
  static const uint32_t outside[] = {0, 0, 0, 0, 4000000, 3};
  static const uint32_t owners[] = {0, 0, 1};
  static const struct {
    struct rig_slice slice;
    const char *text;
  } cases[] = {
      {{.partition = 1, .codec = 4, .nnz = 3, .payload = twice, .len_bytes = 36},
       "index 9 at position 2 is there twice"},
      {{.partition = 1, .codec = 4, .nnz = 3, .payload = twice, .len_bytes = 36, .is_remote = true},
       "index 9 at position 2 is there twice"},
      {{.partition = 1, .codec = 4, .nnz = 2, .payload = outside, .len_bytes = 24}, "index 4000000 at position 0"},
      {{.partition = 1, .codec = 4, .nnz = 2, .payload = outside, .len_bytes = 20}, "slice of 20 bytes"},
      {{.partition = 0, .n_more = 1, .codec = 4}, "slice in codec 4"},
  };
  struct scene scene;
  struct zps_error error;
  scene_open(&scene);
  const struct zps_tensor_spec spec = {.job_id = 77,
                                       .tensor = 50,
                                       .name = "hashed",
                                       .rows = 20000,
                                       .width = 2,
                                       .dtype = ZPS_DTYPE_F32,
                                       .op = ZPS_OP_SUM,
                                       .codec = ZPS_CODEC_PAPER,
                                       .value_codec = ZPS_VALUES_RAW,
                                       .n_parts = 3,
                                       .owners = owners,
                                       .partitioner = ZPS_PARTITIONER_HIERARCHICAL};
  struct zps_tensor_spec wrong = spec;
  wrong.block_bits = 2;
  assert_int_equal(zps_shard_tensor_open(scene.shard, &wrong, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "block_bits 2"));
  if (zps_shard_tensor_open(scene.shard, &spec, &error) != ZPS_OK) fail_msg("%s", error.text);
  static const struct rig_slice empty = {.partition = 1, .codec = 4};
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    rig_push(scene.cluster.ranks[0], 50, i, PATIENCE_NEVER_MS, 0, &empty, 1);
    rig_push(scene.cluster.ranks[2], 50, i, PATIENCE_NEVER_MS, 0, &empty, 1);
    rig_push(scene.cluster.ranks[1], 50, i, PATIENCE_NEVER_MS, 3, &cases[i].slice, 1);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
      struct zps_frame_abort *const abort = rig_take_abort(scene.cluster.ranks[rank], 50, i);
      assert_int_equal(abort->code, ZPS_ERR_PROTOCOL);
      if (!strstr(abort->text, "rank 1: ") || !strstr(abort->text, cases[i].text)) fail_msg("%s", abort->text);
      free(abort);
    }
  }
  scene_close(&scene);
}

/* Memory that the rank never registered, and the same partition twice. */
static void test_hostile_addresses_and_repeats(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  struct zps_frame frame = {.header.type = ZPS_FRAME_PUSH};
  frame.u.round = (struct zps_frame_round){
      .tensor = scene.tensor->spec.tensor,
      .step = 1,
      .total_nnz = 500,
      .timeout_ms = PATIENCE_NEVER_MS,
      .n_slices = 1,
      .slices[0] = {.partition = 3, .nnz = 500, .len_bytes = 500 * 12, .addr = 0xdeadbeef, .key = 12345}};
  rig_send(scene.cluster.ranks[1], &frame);
  scene_abort(&scene, 1, 1, ZPS_ERR_FABRIC, "rank 1: cannot read the 6000 bytes of its partition 3: ");
  const struct rig_slice twice[] = {{.partition = 3}, {.partition = 3}};
  scene_push(&scene, 2, 0);
  rig_push(scene.cluster.ranks[1], scene.tensor->spec.tensor, 2, PATIENCE_NEVER_MS, 0, twice, 2);
  scene_abort(&scene, 2, 0, ZPS_ERR_PROTOCOL, "rank 1 pushed partition 3 twice");
  scene_abort(&scene, 2, 1, ZPS_ERR_PROTOCOL, "rank 1 pushed partition 3 twice");
  scene_close(&scene);
}

/* A rank that says that it is absent, and then that it is not. */
static void test_a_rank_that_contradicts_itself(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  struct zps_frame frame = {.header.type = ZPS_FRAME_PUSH};
  frame.u.round = (struct zps_frame_round){.tensor = scene.tensor->spec.tensor,
                                           .step = 1,
                                           .timeout_ms = PATIENCE_NEVER_MS,
                                           .is_absent = true,
                                           .n_slices = 1,
                                           .slices[0] = {.partition = 3, .is_inline = true}};
  rig_send(scene.cluster.ranks[1], &frame);
  frame.u.round.is_absent = false;
  frame.u.round.slices[0].partition = 4;
  rig_send(scene.cluster.ranks[1], &frame);
  scene_abort(&scene, 1, 1, ZPS_ERR_PROTOCOL, "rank 1: it said that it is absent, and then that it is not");
  scene_close(&scene);
}

static void test_wrong_tensor_step_and_time(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  const struct rig_slice slice = {.partition = 1};
  rig_push(scene.cluster.ranks[0], 99, 4, PATIENCE_NEVER_MS, 0, &slice, 1);
  struct zps_frame_abort *abort = rig_take_abort(scene.cluster.ranks[0], 99, 4);
  assert_int_equal(abort->code, ZPS_ERR_UNKNOWN);
  assert_string_equal(abort->text, "job job, step 4: tensor 99 is not registered on this server");
  free(abort);
  cluster_round(&scene.cluster, scene.tensor, 8);
  scene_push(&scene, 8, 1);
  scene_abort(&scene, 8, 1, ZPS_ERR_INVALID, "step 8: it was already completed");
  for (uint32_t rank = 0; rank < RANKS; rank++) scene_push(&scene, 5, rank);
  cluster_check(&scene.cluster, scene.tensor, 5, 1);
  cluster_done(&scene.cluster, scene.tensor, 5, 1);
  scene_push(&scene, 5, 1); /* while the others still read */
  scene_abort(&scene, 5, 1, ZPS_ERR_INVALID, "step 5: it was already completed");
  for (uint32_t rank = 0; rank < RANKS; rank += 2) {
    cluster_check(&scene.cluster, scene.tensor, 5, rank);
    cluster_done(&scene.cluster, scene.tensor, 5, rank);
  }
  scene_push(&scene, 9, 0);
  scene_push(&scene, 9, 2);
  cluster_done(&scene.cluster, scene.tensor, 9, 2);
  scene_abort(&scene, 9, 0, ZPS_ERR_PROTOCOL, "rank 2 says that it has read the results, but only 0 of 4");
  scene_abort(&scene, 9, 2, ZPS_ERR_PROTOCOL, "rank 2 says that it has read the results, but only 0 of 4");
  cluster_done(&scene.cluster, scene.tensor, 555, 2); /* of a round that never was: ignored */
  scene_close(&scene);
}

static void test_too_many_rounds(void **state) {
  (void)state;
  enum { MOST = 64 };
  struct scene scene;
  scene_open(&scene);
  for (uint64_t step = 0; step <= MOST; step++) scene_push(&scene, step, 0);
  scene_abort(&scene, MOST, 0, ZPS_ERR_BUSY, "64 rounds of it are in flight already");
  for (uint64_t step = 0; step < MOST; step++)
    for (uint32_t rank = 1; rank < RANKS; rank++) scene_push(&scene, step, rank);
  for (uint64_t step = 0; step < MOST; step++)
    for (uint32_t rank = 0; rank < RANKS; rank++) {
      cluster_check(&scene.cluster, scene.tensor, step, rank);
      cluster_done(&scene.cluster, scene.tensor, step, rank);
    }
  scene_close(&scene);
}

static void expect_refused(struct scene *scene, struct zps_tensor_spec spec, zps_err_t code, const char *text) {
  struct zps_error error = {0};
  assert_int_equal(zps_shard_tensor_open(scene->shard, &spec, &error), code);
  if (!strstr(error.text, text)) fail_msg("%s, where %s was expected", error.text, text);
}

static void test_refused_jobs_and_tensors(void **state) {
  (void)state;
  struct scene scene;
  struct zps_error error = {0};
  scene_open(&scene);
  const struct zps_job_spec again = {.job_id = 77, .name = "job", .world = 1};
  assert_int_equal(zps_shard_job_open(scene.shard, &again, &error), ZPS_ERR_BUSY);
  const struct zps_job_spec nobody = {.job_id = 78, .name = "empty", .world = 0};
  assert_int_equal(zps_shard_job_open(scene.shard, &nobody, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "job empty: a world of 0 ranks; it must be 1 to 4096");
  const struct zps_member_spec nowhere = {.rank = 0};
  const struct zps_job_spec bad_address = {.job_id = 78, .name = "bad", .world = 1, .members = &nowhere};
  assert_int_not_equal(zps_shard_job_open(scene.shard, &bad_address, &error), ZPS_OK);
  struct zps_tensor_spec spec = scene.tensor->spec;
  expect_refused(&scene, spec, ZPS_ERR_BUSY, "already open");
  spec.tensor = 20;
  spec.job_id = 78;
  expect_refused(&scene, spec, ZPS_ERR_UNKNOWN, "job 0x000000000000004e is not open");
  spec.job_id = 77;
  spec.width = 0;
  expect_refused(&scene, spec, ZPS_ERR_INVALID, "width of 0");
  spec.width = 1;
  spec.dtype = (enum zps_dtype)9;
  expect_refused(&scene, spec, ZPS_ERR_UNSUPPORTED, "9 is no dtype");
  spec.dtype = ZPS_DTYPE_U8;
  spec.codec = (enum zps_codec_policy)4;
  expect_refused(&scene, spec, ZPS_ERR_UNSUPPORTED, "4 is no choice of codecs");
  spec.codec = ZPS_CODEC_AUTO;
  spec.op = ZPS_OP_MEAN;
  expect_refused(&scene, spec, ZPS_ERR_UNSUPPORTED, "bytes have no mean");
  spec.op = ZPS_OP_MEAN_PRESENT;
  expect_refused(&scene, spec, ZPS_ERR_UNSUPPORTED, "bytes have no mean");
  spec.op = (enum zps_op)7;
  expect_refused(&scene, spec, ZPS_ERR_UNSUPPORTED, "7 is no operation");
  spec.op = ZPS_OP_ONE;
  spec.dtype = ZPS_DTYPE_F32;
  expect_refused(&scene, spec, ZPS_ERR_UNSUPPORTED, "rows of one rank each are bytes, not f32");
  spec.dtype = ZPS_DTYPE_U8;
  spec.op = ZPS_OP_SUM;
  spec.rows = 0;
  expect_refused(&scene, spec, ZPS_ERR_INVALID, "");
  scene_close(&scene);
}

static int expect_warnings(void **state) {
  (void)state;
  logs_start();
  /* A push that comes when its job is closed, or the shard is closing, with a long or a short header. */
  logs_allow(ZPS_LOG_WARN, "no such job here");
  logs_allow(ZPS_LOG_WARN, "no such link here");
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      ON_BOTH(test_hostile_slices),
      ON_BOTH(test_hostile_orders),
      ON_BOTH(test_hostile_addresses_and_repeats),
      ON_BOTH(test_a_rank_that_contradicts_itself),
      ON_BOTH(test_wrong_tensor_step_and_time),
      ON_BOTH(test_too_many_rounds),
      ON_BOTH(test_refused_jobs_and_tensors),
  };
  return cmocka_run_group_tests(tests, expect_warnings, logs_check);
}

/* The data plane when something is wrong: every rank concerned gets an abort that names the fault, and everything else
 * goes on. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/support/logs.h"
#include "server/shard/shard_impl.h"
#include "tests/unit/server/shard/shard_cluster.h"

enum { MIB = 1 << 20, RANKS = 3 };

static const char *provider = "loop", *fault;

struct scene {
  struct zps_shard *shard;
  struct cluster cluster;
  struct cluster_tensor *tensor;
};

/* A job of three ranks; partitions 0, 1, 3, 4 of five are here. */
static void open_scene(struct scene *scene) {
  scene->shard = cluster_shard(provider, fault, 64 * MIB);
  cluster_open(&scene->cluster, scene->shard, provider, fault, 77, RANKS);
  scene->tensor = cluster_tensor(&scene->cluster, 20000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.3);
}

/* A round of all ranks still works after trouble. All memory was given back. */
static void close_scene(struct scene *scene) {
  cluster_round(&scene->cluster, scene->tensor, 1000000);
  cluster_drain(scene->shard);
  cluster_check_released(scene->shard);
  cluster_close(&scene->cluster);
  zps_shard_destroy(scene->shard);
}

static void push(struct scene *scene, uint64_t step, uint32_t rank) {
  cluster_push(&scene->cluster, scene->tensor, step, rank, 60000);
}

/* And it is here. */
static void push_and_wait(struct scene *scene, uint64_t step, uint32_t rank) {
  const uint64_t bytes_before = cluster_stats(&scene->cluster, scene->tensor).bytes_in;
  const uint64_t bytes = cluster_push(&scene->cluster, scene->tensor, step, rank, 60000);
  while (cluster_stats(&scene->cluster, scene->tensor).bytes_in < bytes_before + bytes) sched_yield();
}

static void expect_abort(struct scene *scene, uint64_t step, uint32_t rank, zps_err_t code, const char *text) {
  cluster_abort(&scene->cluster, scene->tensor, step, rank, code, text);
}

static void test_missing_rank(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  push_and_wait(&scene, 3, 0);
  cluster_push(&scene.cluster, scene.tensor, 3, 2, 30);
  const char *text = "step 3: the deadline passed without the push of rank 1 (2 of 3 ranks are here)";
  struct zps_frame_abort *abort = rig_take_abort(scene.cluster.ranks[0], scene.tensor->spec.tensor, 3);
  assert_int_equal(abort->n_ranks, 1);
  assert_int_equal(abort->ranks[0], 1);
  assert_non_null(strstr(abort->text, text));
  free(abort);
  expect_abort(&scene, 3, 2, ZPS_ERR_MISSING, text);
  push(&scene, 3, 1); /* late: it is told the same */
  expect_abort(&scene, 3, 1, ZPS_ERR_MISSING, text);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).aborted, 1);
  close_scene(&scene);
}

static void test_missing_partition(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  const struct rig_slice slice = {.partition = 1, .codec = ZPS_CODEC_COO};
  push_and_wait(&scene, 3, 1);
  push_and_wait(&scene, 3, 2);
  rig_push(scene.cluster.ranks[0], scene.tensor->spec.tensor, 3, 20, 0, &slice, 1);
  for (uint32_t rank = 0; rank < RANKS; rank++)
    expect_abort(&scene, 3, rank, ZPS_ERR_MISSING, "the push of rank 0 (partition 0 3 4) (2 of 3 ranks are here)");
  close_scene(&scene);
}

static void test_rank_lost_in_a_round(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  for (uint32_t rank = 0; rank < RANKS; rank++) push(&scene, 1, rank); /* does not need rank 2 any more */
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 1, rank);
  push(&scene, 2, 0);
  push(&scene, 2, 1);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 2, ZPS_ERR_PEER_LOST, "no heartbeat for 5 s"), ZPS_OK);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 2, ZPS_ERR_CLOSED, "again"), ZPS_OK);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 3, ZPS_ERR_CLOSED, "no such rank"), ZPS_ERR_UNKNOWN);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 78, 0, ZPS_ERR_CLOSED, "no such job"), ZPS_ERR_UNKNOWN);
  expect_abort(&scene, 2, 0, ZPS_ERR_PEER_LOST, "rank 2 is needed and gone: no heartbeat for 5 s");
  expect_abort(&scene, 2, 1, ZPS_ERR_PEER_LOST, "rank 2 is needed and gone: no heartbeat for 5 s");
  push(&scene, 3, 0); /* nor can a new round be completed */
  expect_abort(&scene, 3, 0, ZPS_ERR_PEER_LOST, "rank 2 is needed and gone: no heartbeat for 5 s");
  cluster_done(&scene.cluster, scene.tensor, 1, 0);
  assert_int_equal(cluster_totals(scene.shard).rounds_in_flight, 1);
  cluster_done(&scene.cluster, scene.tensor, 1, 1); /* the last that is there */
  cluster_drain(scene.shard);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).rounds, 1);
  cluster_check_released(scene.shard);
  cluster_close(&scene.cluster);
  zps_shard_destroy(scene.shard);
}

/* Many ranks lost while their pushes are being read: nothing of theirs is used or leaked. */
static void test_rank_lost_while_it_is_read(void **state) {
  (void)state;
  for (uint64_t turn = 0; turn < 20; turn++) {
    struct scene scene;
    open_scene(&scene);
    struct cluster_tensor *big = cluster_tensor(&scene.cluster, 200000, 4, ZPS_DTYPE_F32, ZPS_OP_SUM, 4, 0.5);
    for (uint32_t rank = 0; rank < RANKS; rank++) cluster_push(&scene.cluster, big, turn, rank, 60000);
    assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 1, ZPS_ERR_PEER_LOST, "killed"), ZPS_OK);
    if (turn % 2 == 0) cluster_push(&scene.cluster, big, turn + 1, 0, 60000);
    cluster_close(&scene.cluster);
    zps_shard_destroy(scene.shard);
  }
}

/* A rank stops while its pushes are read, and these reads do not end: its round fails at once, its job can be closed,
 * and another job, before and after, has only the less memory. */
static void test_rank_stopped_while_it_is_read(void **state) {
  (void)state;
  struct zps_shard *shard = cluster_shard("fault+loop", "stall=2,hold=3600s", 64 * MIB);
  struct scene scene = {.shard = shard}, other = {.shard = shard};
  cluster_open(&scene.cluster, shard, "loop", NULL, 77, RANKS);
  cluster_open(&other.cluster, shard, "loop", NULL, 78, RANKS);
  scene.tensor = cluster_tensor(&scene.cluster, 200000, 4, ZPS_DTYPE_F32, ZPS_OP_SUM, 4, 0.5);
  other.tensor = cluster_tensor(&other.cluster, 20000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.3);
  push(&scene, 1, 1);
  push_and_wait(&scene, 1, 0);
  push_and_wait(&scene, 1, 2);
  cluster_round(&other.cluster, other.tensor, 1);
  assert_int_equal(zps_shard_rank_gone(shard, 77, 1, ZPS_ERR_PEER_LOST, "silent"), ZPS_OK);
  for (uint32_t rank = 0; rank < RANKS; rank += 2)
    expect_abort(&scene, 1, rank, ZPS_ERR_PEER_LOST, "rank 1 is needed and gone: silent");
  cluster_round(&other.cluster, other.tensor, 2);
  assert_int_equal(zps_shard_job_close(shard, 77, "rank 1 was lost"), ZPS_OK);
  assert_int_equal(zps_shard_jobs(shard), 1);
  cluster_round(&other.cluster, other.tensor, 3);
  cluster_drain(shard);
  assert_true(cluster_totals(shard).net.quarantined > 0);
  assert_true(cluster_totals(shard).slab.in_use_bytes > 0);
  cluster_close(&scene.cluster);
  cluster_close(&other.cluster);
  zps_shard_destroy(shard);
}

/* Another process speaks for rank 1, and even knows the secret: what it sends has come before, and changes nothing. */
static void test_impostor(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  cluster_round(&scene.cluster, scene.tensor, 0);
  push(&scene, 1, 0);
  push(&scene, 1, 2);
  struct rig_rank *impostor = rig_rank_open(provider, fault);
  const struct rig_slice slice = {.partition = 1};
  rig_rank_connect(impostor, zps_shard_net_info(scene.shard), 77, 1, 0);
  zps_log_strangers.last_ms = 0; /* nothing else of its kind was said in this second */
  rig_push(impostor, scene.tensor->spec.tensor, 1, 60000, 0, &slice, 1);
  while (cluster_totals(scene.shard).forged == 0) sched_yield();
  push(&scene, 1, 1);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 1, rank);
  rig_rank_close(impostor);
  cluster_close(&scene.cluster);
  zps_shard_destroy(scene.shard);
}

/* A rank vanishes without a word after its push: the others get their sums, and the control plane handles the rest. */
static void test_vanished_rank(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  cluster_round(&scene.cluster, scene.tensor, 0);
  for (uint32_t rank = 0; rank < RANKS; rank++) push(&scene, 1, rank);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 1, rank);
  rig_rank_close(scene.cluster.ranks[2]);
  for (uint32_t rank = 0; rank < 2; rank++) cluster_done(&scene.cluster, scene.tensor, 1, rank);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 2, ZPS_ERR_PEER_LOST, "connection closed"), ZPS_OK);
  push(&scene, 2, 0);
  expect_abort(&scene, 2, 0, ZPS_ERR_PEER_LOST, "rank 2 is needed and gone: ");
  cluster_drain(scene.shard);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).rounds, 2);
  scene.cluster.world = 2;
  cluster_close(&scene.cluster);
  zps_shard_destroy(scene.shard);
}

/* When a job has failed, its ranks leave, and the ranks that hear of a leaving rank first are still told the rank that
 * caused the failure. */
static void test_left_for_a_lost_one(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  push(&scene, 1, 2);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 1, ZPS_ERR_PEER_LOST, "rank 1 was killed"), ZPS_OK);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 0, ZPS_ERR_CLOSED, "rank 0 left the job"), ZPS_OK);
  expect_abort(&scene, 1, 2, ZPS_ERR_PEER_LOST, "is needed and gone: rank 1 was killed");
  push(&scene, 2, 2);
  struct zps_frame_abort *abort = rig_take_abort(scene.cluster.ranks[2], scene.tensor->spec.tensor, 2);
  assert_int_equal(abort->code, ZPS_ERR_PEER_LOST);
  assert_int_equal(abort->n_ranks, 1);
  assert_int_equal(abort->ranks[0], 1);
  assert_non_null(strstr(abort->text, "rank 0 is needed and gone: rank 1 was killed"));
  free(abort);
  cluster_close(&scene.cluster);
  zps_shard_destroy(scene.shard);
}

static void test_cancel(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  push(&scene, 5, 0);
  push(&scene, 5, 1);
  rig_cancel(scene.cluster.ranks[1], scene.tensor->spec.tensor, 5, "the trainer stops");
  expect_abort(&scene, 5, 0, ZPS_ERR_CANCELED, "rank 1 gave it up: the trainer stops");
  push(&scene, 5, 2);
  expect_abort(&scene, 5, 2, ZPS_ERR_CANCELED, "rank 1 gave it up: the trainer stops");
  rig_cancel(scene.cluster.ranks[2], scene.tensor->spec.tensor, 6, "before it pushed"); /* no rank waits for it */
  push(&scene, 6, 2);
  expect_abort(&scene, 6, 2, ZPS_ERR_CANCELED, "rank 2 gave it up: before it pushed");
  for (uint32_t rank = 0; rank < RANKS; rank++) push(&scene, 7, rank);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 7, rank);
  rig_cancel(scene.cluster.ranks[0], scene.tensor->spec.tensor, 7, "too late: it is as good as done");
  cluster_done(&scene.cluster, scene.tensor, 7, 1);
  cluster_done(&scene.cluster, scene.tensor, 7, 2);
  close_scene(&scene);
}

/* Sums that a rank neither reads nor gives up are kept for a while after its deadline, and no longer. */
static void expect_given_up(struct scene *scene) {
  const uint64_t until_ns = zps_clock_ns() + 20 * ZPS_NS_PER_S;
  while (cluster_totals(scene->shard).rounds_in_flight > 0 && zps_clock_ns() < until_ns) sched_yield();
  assert_int_equal(cluster_totals(scene->shard).rounds_in_flight, 0);
  cluster_check_released(scene->shard);
  push(scene, 9, 0);
  struct zps_frame_abort *abort = rig_take_abort(scene->cluster.ranks[0], scene->tensor->spec.tensor, 9);
  assert_int_equal(abort->code, ZPS_ERR_PEER_LOST);
  assert_true(abort->n_ranks == 1 && abort->ranks[0] == 2);
  assert_non_null(
      strstr(abort->text, "after its deadline it has not said that it has read the sums of tensor tensor7, step 5"));
  free(abort);
  cluster_close(&scene->cluster);
  zps_shard_destroy(scene->shard);
}

static void test_sums_that_a_rank_does_not_read(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  zps_shard_set_patience(scene.shard, 32);
  push_and_wait(&scene, 5, 0);
  push_and_wait(&scene, 5, 1);
  cluster_push(&scene.cluster, scene.tensor, 5, 2, 2000);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 5, rank);
  for (uint32_t rank = 0; rank < 2; rank++) cluster_done(&scene.cluster, scene.tensor, 5, rank);
  expect_given_up(&scene);
}

/* Nor does it say anything of the rows that it has pulled. */
static void test_rows_that_a_rank_does_not_read(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  zps_shard_set_patience(scene.shard, 32);
  for (uint32_t rank = 0; rank < RANKS; rank++) rig_gives(scene.cluster.ranks[rank], true);
  for (uint32_t rank = 0; rank < RANKS; rank++) push(&scene, 5, rank);
  while (cluster_stats(&scene.cluster, scene.tensor).rounds == 0) sched_yield();
  for (uint32_t rank = 0; rank < 2; rank++) cluster_done(&scene.cluster, scene.tensor, 5, rank);
  static const uint8_t all[] = {0x01, 0x9e, 0x1f}; /* a run of rows from 0 on: 2 more than the second number */
  struct zps_frame frame = {.header.type = ZPS_FRAME_PULL};
  frame.u.round = (struct zps_frame_round){.tensor = scene.tensor->spec.tensor,
                                           .step = 5,
                                           .total_nnz = 4000,
                                           .timeout_ms = 1,
                                           .n_slices = 1,
                                           .slices[0] = {.partition = 1,
                                                         .codec = ZPS_WIRE_CODEC_RUNS,
                                                         .is_inline = true,
                                                         .nnz = 4000,
                                                         .len_bytes = sizeof all,
                                                         .data = all}};
  rig_send(scene.cluster.ranks[2], &frame);
  rig_gives(scene.cluster.ranks[0], false);
  expect_given_up(&scene);
}

static void test_job_closed_in_a_round(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  push(&scene, 5, 0);
  push(&scene, 5, 2);
  for (uint32_t rank = 0; rank < RANKS; rank++) { /* an answer to something else shows that the pushes are there */
    const struct rig_slice slice = {.partition = 0};
    rig_push(scene.cluster.ranks[rank], 99, 1, 60000, 0, &slice, 1);
    free(rig_take_abort(scene.cluster.ranks[rank], 99, 1));
  }
  assert_int_equal(zps_shard_job_close(scene.shard, 77, "rank 1 failed"), ZPS_OK);
  assert_int_equal(zps_shard_job_close(scene.shard, 77, "again"), ZPS_ERR_UNKNOWN);
  expect_abort(&scene, 5, 0, ZPS_ERR_CLOSED, "the job was closed: rank 1 failed");
  expect_abort(&scene, 5, 2, ZPS_ERR_CLOSED, "the job was closed: rank 1 failed");
  push(&scene, 6, 0); /* dropped */
  assert_int_equal(zps_shard_jobs(scene.shard), 0);
  cluster_close(&scene.cluster);
  zps_shard_destroy(scene.shard);
}

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
  open_scene(&scene);
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    push(&scene, i, 0);
    push(&scene, i, 2);
    rig_push(scene.cluster.ranks[1], scene.tensor->spec.tensor, i, 60000, 1000000, &cases[i].slice, 1);
    for (uint32_t rank = 0; rank < RANKS; rank++) expect_abort(&scene, i, rank, cases[i].code, cases[i].text);
  }
  close_scene(&scene);
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
  open_scene(&scene);
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
    rig_push(scene.cluster.ranks[0], 50, i, 60000, 0, &empty, 1);
    rig_push(scene.cluster.ranks[2], 50, i, 60000, 0, &empty, 1);
    rig_push(scene.cluster.ranks[1], 50, i, 60000, 3, &cases[i].slice, 1);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
      struct zps_frame_abort *const abort = rig_take_abort(scene.cluster.ranks[rank], 50, i);
      assert_int_equal(abort->code, ZPS_ERR_PROTOCOL);
      if (!strstr(abort->text, "rank 1: ") || !strstr(abort->text, cases[i].text)) fail_msg("%s", abort->text);
      free(abort);
    }
  }
  close_scene(&scene);
}

/* Memory that the rank never registered, and the same partition twice. */
static void test_hostile_addresses_and_repeats(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  struct zps_frame frame = {.header.type = ZPS_FRAME_PUSH};
  frame.u.round = (struct zps_frame_round){
      .tensor = scene.tensor->spec.tensor,
      .step = 1,
      .total_nnz = 500,
      .timeout_ms = 60000,
      .n_slices = 1,
      .slices[0] = {.partition = 3, .nnz = 500, .len_bytes = 500 * 12, .addr = 0xdeadbeef, .key = 12345}};
  rig_send(scene.cluster.ranks[1], &frame);
  expect_abort(&scene, 1, 1, ZPS_ERR_FABRIC, "rank 1: cannot read the 6000 bytes of its partition 3: ");
  const struct rig_slice twice[] = {{.partition = 3}, {.partition = 3}};
  push(&scene, 2, 0);
  rig_push(scene.cluster.ranks[1], scene.tensor->spec.tensor, 2, 60000, 0, twice, 2);
  expect_abort(&scene, 2, 0, ZPS_ERR_PROTOCOL, "rank 1 pushed partition 3 twice");
  expect_abort(&scene, 2, 1, ZPS_ERR_PROTOCOL, "rank 1 pushed partition 3 twice");
  close_scene(&scene);
}

/* A rank that says that it is absent, and then that it is not. */
static void test_a_rank_that_contradicts_itself(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  struct zps_frame frame = {.header.type = ZPS_FRAME_PUSH};
  frame.u.round = (struct zps_frame_round){.tensor = scene.tensor->spec.tensor,
                                           .step = 1,
                                           .timeout_ms = 60000,
                                           .is_absent = true,
                                           .n_slices = 1,
                                           .slices[0] = {.partition = 3, .is_inline = true}};
  rig_send(scene.cluster.ranks[1], &frame);
  frame.u.round.is_absent = false;
  frame.u.round.slices[0].partition = 4;
  rig_send(scene.cluster.ranks[1], &frame);
  expect_abort(&scene, 1, 1, ZPS_ERR_PROTOCOL, "rank 1: it said that it is absent, and then that it is not");
  close_scene(&scene);
}

static void test_wrong_tensor_step_and_time(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  const struct rig_slice slice = {.partition = 1};
  rig_push(scene.cluster.ranks[0], 99, 4, 60000, 0, &slice, 1);
  struct zps_frame_abort *abort = rig_take_abort(scene.cluster.ranks[0], 99, 4);
  assert_int_equal(abort->code, ZPS_ERR_UNKNOWN);
  assert_string_equal(abort->text, "job job, step 4: tensor 99 is not registered on this server");
  free(abort);
  cluster_round(&scene.cluster, scene.tensor, 8);
  push(&scene, 8, 1);
  expect_abort(&scene, 8, 1, ZPS_ERR_INVALID, "step 8: it was already completed");
  for (uint32_t rank = 0; rank < RANKS; rank++) push(&scene, 5, rank);
  cluster_check(&scene.cluster, scene.tensor, 5, 1);
  cluster_done(&scene.cluster, scene.tensor, 5, 1);
  push(&scene, 5, 1); /* while the others still read */
  expect_abort(&scene, 5, 1, ZPS_ERR_INVALID, "step 5: it was already completed");
  for (uint32_t rank = 0; rank < RANKS; rank += 2) {
    cluster_check(&scene.cluster, scene.tensor, 5, rank);
    cluster_done(&scene.cluster, scene.tensor, 5, rank);
  }
  push(&scene, 9, 0);
  push(&scene, 9, 2);
  cluster_done(&scene.cluster, scene.tensor, 9, 2);
  expect_abort(&scene, 9, 0, ZPS_ERR_PROTOCOL, "rank 2 says that it has read the results, but only 0 of 4");
  expect_abort(&scene, 9, 2, ZPS_ERR_PROTOCOL, "rank 2 says that it has read the results, but only 0 of 4");
  cluster_done(&scene.cluster, scene.tensor, 555, 2); /* of a round that never was: ignored */
  close_scene(&scene);
}

static void test_too_many_rounds(void **state) {
  (void)state;
  enum { MOST = 64 };
  struct scene scene;
  open_scene(&scene);
  for (uint64_t step = 0; step <= MOST; step++) push(&scene, step, 0);
  expect_abort(&scene, MOST, 0, ZPS_ERR_BUSY, "64 rounds of it are in flight already");
  for (uint64_t step = 0; step < MOST; step++)
    for (uint32_t rank = 1; rank < RANKS; rank++) push(&scene, step, rank);
  for (uint64_t step = 0; step < MOST; step++)
    for (uint32_t rank = 0; rank < RANKS; rank++) {
      cluster_check(&scene.cluster, scene.tensor, step, rank);
      cluster_done(&scene.cluster, scene.tensor, step, rank);
    }
  close_scene(&scene);
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
  open_scene(&scene);
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
  close_scene(&scene);
}

static int use_fabric(void **state) {
  const char **fabric = *state;
  provider = fabric[0];
  fault = fabric[1];
  return 0;
}

static const char *loop[] = {"loop", NULL}, *faulty[] = {"fault+loop", "seed=5,again=0.2,delay=0.2:1ms,hold=5ms"};

#define ON_BOTH(test)                                    \
  {#test, test, use_fabric, NULL, loop}, {               \
#test " with faults", test, use_fabric, NULL, faulty \
  }

static int expect_warnings(void **state) {
  (void)state;
  logs_start();
  logs_expect(ZPS_LOG_WARN, "its MAC is not that of the link that its PUSH frame names");
  /* A push that comes when its job is closed, or the shard is closing, with a long or a short header. */
  logs_allow(ZPS_LOG_WARN, "no such job here");
  logs_allow(ZPS_LOG_WARN, "no such link here");
  return 0;
}

/* Ranks that read a sum hear of the abort a moment later: until then nothing else is written there. */
static void close_with_sums(uint64_t keep_ns) {
  struct zps_shard *shard = cluster_shard("loop", NULL, 64 << 20);
  struct cluster cluster;
  if (keep_ns > 0) shard->keep_ns = keep_ns; /* no job is there that it is used for */
  cluster_open(&cluster, shard, "loop", NULL, 77, 3);
  struct cluster_tensor *const tensor = cluster_tensor(&cluster, 20000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.3);
  for (uint32_t rank = 0; rank < 3; rank++) cluster_push(&cluster, tensor, 1, rank, 60000);
  cluster_check(&cluster, tensor, 1, 0);
  assert_int_equal(zps_shard_job_close(shard, 77, "the end"), ZPS_OK);
  if (keep_ns > 0)
    assert_true(cluster_totals(shard).slab.in_use_bytes > 0);
  else
    cluster_check_released(shard);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

static void test_sums_of_aborted_rounds_stay_for_a_while(void **state) {
  (void)state;
  close_with_sums(3600 * ZPS_NS_PER_S);
  close_with_sums(0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      ON_BOTH(test_missing_rank),
      ON_BOTH(test_missing_partition),
      ON_BOTH(test_rank_lost_in_a_round),
      ON_BOTH(test_rank_lost_while_it_is_read),
      cmocka_unit_test(test_rank_stopped_while_it_is_read),
      ON_BOTH(test_impostor),
      ON_BOTH(test_vanished_rank),
      ON_BOTH(test_left_for_a_lost_one),
      ON_BOTH(test_cancel),
      ON_BOTH(test_sums_that_a_rank_does_not_read),
      ON_BOTH(test_rows_that_a_rank_does_not_read),
      ON_BOTH(test_job_closed_in_a_round),
      ON_BOTH(test_hostile_slices),
      ON_BOTH(test_hostile_orders),
      ON_BOTH(test_hostile_addresses_and_repeats),
      ON_BOTH(test_a_rank_that_contradicts_itself),
      ON_BOTH(test_wrong_tensor_step_and_time),
      ON_BOTH(test_too_many_rounds),
      ON_BOTH(test_refused_jobs_and_tensors),
      cmocka_unit_test(test_sums_of_aborted_rounds_stay_for_a_while),
  };
  return cmocka_run_group_tests(tests, expect_warnings, logs_check);
}

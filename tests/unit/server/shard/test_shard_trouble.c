/* The data plane when something is wrong: every rank concerned gets an abort that names the fault, and everything else
 * goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/clock.h"
#include "common/session/link_impl.h"
#include "server/shard/job.h"
#include "server/shard/shard_impl.h"
#include "tests/support/logs.h"
#include "tests/unit/server/shard/shard_scene.h"

static void test_missing_rank(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  scene_push_and_wait(&scene, 3, 0);
  cluster_push(&scene.cluster, scene.tensor, 3, 2, 30);
  const char *text = "step 3: the deadline passed without the push of rank 1 (2 of 3 ranks are here)";
  struct zps_frame_abort *abort = rig_take_abort(scene.cluster.ranks[0], scene.tensor->spec.tensor, 3);
  assert_int_equal(abort->n_ranks, 1);
  assert_int_equal(abort->ranks[0], 1);
  assert_non_null(strstr(abort->text, text));
  free(abort);
  scene_abort(&scene, 3, 2, ZPS_ERR_MISSING, text);
  scene_push(&scene, 3, 1); /* late: it is told the same */
  scene_abort(&scene, 3, 1, ZPS_ERR_MISSING, text);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).aborted, 1);
  scene_close(&scene);
}

static void test_missing_partition(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  const struct rig_slice slice = {.partition = 1, .codec = ZPS_CODEC_COO};
  scene_push_and_wait(&scene, 3, 1);
  scene_push_and_wait(&scene, 3, 2);
  rig_push(scene.cluster.ranks[0], scene.tensor->spec.tensor, 3, 20, 0, &slice, 1);
  for (uint32_t rank = 0; rank < RANKS; rank++)
    scene_abort(&scene, 3, rank, ZPS_ERR_MISSING, "the push of rank 0 (partition 0 3 4) (2 of 3 ranks are here)");
  scene_close(&scene);
}

static void test_rank_lost_in_a_round(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  for (uint32_t rank = 0; rank < RANKS; rank++) scene_push(&scene, 1, rank); /* does not need rank 2 any more */
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 1, rank);
  scene_push(&scene, 2, 0);
  scene_push(&scene, 2, 1);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 2, ZPS_ERR_PEER_LOST, "no heartbeat for 5 s"), ZPS_OK);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 2, ZPS_ERR_CLOSED, "again"), ZPS_OK);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 3, ZPS_ERR_CLOSED, "no such rank"), ZPS_ERR_UNKNOWN);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 78, 0, ZPS_ERR_CLOSED, "no such job"), ZPS_ERR_UNKNOWN);
  scene_abort(&scene, 2, 0, ZPS_ERR_PEER_LOST, "rank 2 is needed and gone: no heartbeat for 5 s");
  scene_abort(&scene, 2, 1, ZPS_ERR_PEER_LOST, "rank 2 is needed and gone: no heartbeat for 5 s");
  scene_push(&scene, 3, 0); /* a new round cannot be completed */
  scene_abort(&scene, 3, 0, ZPS_ERR_PEER_LOST, "rank 2 is needed and gone: no heartbeat for 5 s");
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
    scene_open(&scene);
    struct cluster_tensor *big = cluster_tensor(&scene.cluster, 200000, 4, ZPS_DTYPE_F32, ZPS_OP_SUM, 4, 0.5);
    for (uint32_t rank = 0; rank < RANKS; rank++) cluster_push(&scene.cluster, big, turn, rank, PATIENCE_NEVER_MS);
    assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 1, ZPS_ERR_PEER_LOST, "killed"), ZPS_OK);
    if (turn % 2 == 0) cluster_push(&scene.cluster, big, turn + 1, 0, PATIENCE_NEVER_MS);
    cluster_close(&scene.cluster);
    zps_shard_destroy(scene.shard);
  }
}

/* A rank stops while its pushes are read, and these reads do not end: its round fails at once, its job can be closed,
 * and another job, before and after, has only the less memory. */
static void test_rank_stopped_while_it_is_read(void **state) {
  (void)state;
  struct zps_shard *shard = cluster_shard("fault+loop", "stall=2,hold=3600s", 64 << 20);
  struct scene scene = {.shard = shard}, other = {.shard = shard};
  cluster_open(&scene.cluster, shard, "loop", NULL, 77, RANKS);
  cluster_open(&other.cluster, shard, "loop", NULL, 78, RANKS);
  scene.tensor = cluster_tensor(&scene.cluster, 200000, 4, ZPS_DTYPE_F32, ZPS_OP_SUM, 4, 0.5);
  other.tensor = cluster_tensor(&other.cluster, 20000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.3);
  scene_push(&scene, 1, 1);
  scene_push_and_wait(&scene, 1, 0);
  scene_push_and_wait(&scene, 1, 2);
  cluster_round(&other.cluster, other.tensor, 1);
  assert_int_equal(zps_shard_rank_gone(shard, 77, 1, ZPS_ERR_PEER_LOST, "silent"), ZPS_OK);
  for (uint32_t rank = 0; rank < RANKS; rank += 2)
    scene_abort(&scene, 1, rank, ZPS_ERR_PEER_LOST, "rank 1 is needed and gone: silent");
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
  scene_open(&scene);
  cluster_round(&scene.cluster, scene.tensor, 0);
  scene_push(&scene, 1, 0);
  scene_push(&scene, 1, 2);
  struct rig_rank *impostor = rig_rank_open(scene_provider, scene_fault);
  const struct rig_slice slice = {.partition = 1};
  rig_rank_connect(impostor, zps_shard_net_info(scene.shard), 77, 1, 0);
  zps_log_strangers.last_ms = 0; /* nothing else of its kind was said in this second */
  rig_push(impostor, scene.tensor->spec.tensor, 1, PATIENCE_NEVER_MS, 0, &slice, 1);
  while (cluster_totals(scene.shard).mishaps.repeated == 0) patience_nap();
  scene_push(&scene, 1, 1);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 1, rank);
  rig_rank_close(impostor);
  cluster_close(&scene.cluster);
  zps_shard_destroy(scene.shard);
}

/* A rank vanishes without a word after its push: the others get their sums. That its connection has ended says nothing:
 * the others wait until the coordinator speaks. */
static void test_vanished_rank(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  cluster_round(&scene.cluster, scene.tensor, 0);
  for (uint32_t rank = 0; rank < RANKS; rank++) scene_push(&scene, 1, rank);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 1, rank);
  rig_rank_close(scene.cluster.ranks[2]);
  for (uint32_t rank = 0; rank < 2; rank++) cluster_done(&scene.cluster, scene.tensor, 1, rank);
  scene_push(&scene, 2, 0);
  while (cluster_totals(scene.shard).mishaps.reconnects == 0) patience_nap();
  assert_int_equal(rig_left(scene.cluster.ranks[0]), 0);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 2, ZPS_ERR_PEER_LOST, "connection closed"), ZPS_OK);
  scene_abort(&scene, 2, 0, ZPS_ERR_PEER_LOST, "rank 2 is needed and gone: ");
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
  scene_open(&scene);
  scene_push(&scene, 1, 2);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 1, ZPS_ERR_PEER_LOST, "rank 1 was killed"), ZPS_OK);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 0, ZPS_ERR_CLOSED, "rank 0 left the job"), ZPS_OK);
  scene_abort(&scene, 1, 2, ZPS_ERR_PEER_LOST, "is needed and gone: rank 1 was killed");
  scene_push(&scene, 2, 2);
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
  scene_open(&scene);
  scene_push(&scene, 5, 0);
  scene_push(&scene, 5, 1);
  rig_cancel(scene.cluster.ranks[1], scene.tensor->spec.tensor, 5, "the trainer stops");
  scene_abort(&scene, 5, 0, ZPS_ERR_CANCELED, "rank 1 gave it up: the trainer stops");
  scene_push(&scene, 5, 2);
  scene_abort(&scene, 5, 2, ZPS_ERR_CANCELED, "rank 1 gave it up: the trainer stops");
  rig_cancel(scene.cluster.ranks[2], scene.tensor->spec.tensor, 6, "before it pushed"); /* no rank waits for it */
  scene_push(&scene, 6, 2);
  scene_abort(&scene, 6, 2, ZPS_ERR_CANCELED, "rank 2 gave it up: before it pushed");
  for (uint32_t rank = 0; rank < RANKS; rank++) scene_push(&scene, 7, rank);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 7, rank);
  rig_cancel(scene.cluster.ranks[0], scene.tensor->spec.tensor, 7, "too late: it is as good as done");
  cluster_done(&scene.cluster, scene.tensor, 7, 1);
  cluster_done(&scene.cluster, scene.tensor, 7, 2);
  scene_close(&scene);
}

/* Sums that a rank neither reads nor gives up are kept for a while after its deadline, and no longer. */
static void expect_given_up(struct scene *scene) {
  struct patience patience = {0};
  while (cluster_totals(scene->shard).rounds_in_flight > 0 && !patience_is_over(&patience)) patience_nap();
  assert_int_equal(cluster_totals(scene->shard).rounds_in_flight, 0);
  cluster_check_released(scene->shard);
  scene_push(scene, 9, 0);
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
  scene_open(&scene);
  zps_shard_set_patience(scene.shard, 32);
  scene_push_and_wait(&scene, 5, 0);
  scene_push_and_wait(&scene, 5, 1);
  cluster_push(&scene.cluster, scene.tensor, 5, 2, 6000);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 5, rank);
  for (uint32_t rank = 0; rank < 2; rank++) cluster_done(&scene.cluster, scene.tensor, 5, rank);
  expect_given_up(&scene);
}

/* Nor does it say anything of the rows that it has pulled. */
static void test_rows_that_a_rank_does_not_read(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  zps_shard_set_patience(scene.shard, 32);
  for (uint32_t rank = 0; rank < RANKS; rank++) rig_gives(scene.cluster.ranks[rank], true);
  for (uint32_t rank = 0; rank < RANKS; rank++) scene_push(&scene, 5, rank);
  while (cluster_stats(&scene.cluster, scene.tensor).rounds == 0) patience_nap();
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
  scene_open(&scene);
  scene_push(&scene, 5, 0);
  scene_push(&scene, 5, 2);
  for (uint32_t rank = 0; rank < RANKS; rank++) { /* an answer to something else shows that the pushes are there */
    const struct rig_slice slice = {.partition = 0};
    rig_push(scene.cluster.ranks[rank], 99, 1, PATIENCE_NEVER_MS, 0, &slice, 1);
    free(rig_take_abort(scene.cluster.ranks[rank], 99, 1));
  }
  assert_int_equal(zps_shard_job_close(scene.shard, 77, "rank 1 failed"), ZPS_OK);
  assert_int_equal(zps_shard_job_close(scene.shard, 77, "again"), ZPS_ERR_UNKNOWN);
  scene_abort(&scene, 5, 0, ZPS_ERR_CLOSED, "the job was closed: rank 1 failed");
  scene_abort(&scene, 5, 2, ZPS_ERR_CLOSED, "the job was closed: rank 1 failed");
  scene_push(&scene, 6, 0); /* dropped */
  assert_int_equal(zps_shard_jobs(scene.shard), 0);
  cluster_close(&scene.cluster);
  zps_shard_destroy(scene.shard);
}

/* Ranks that read a sum hear of the abort a moment later: until then nothing else is written there. */
static void close_with_sums(uint64_t keep_ns) {
  struct zps_shard *shard = cluster_shard("loop", NULL, 64 << 20);
  struct cluster cluster;
  if (keep_ns > 0) shard->keep_ns = keep_ns; /* no job is there that it is used for */
  cluster_open(&cluster, shard, "loop", NULL, 77, 3);
  struct cluster_tensor *const tensor = cluster_tensor(&cluster, 20000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.3);
  for (uint32_t rank = 0; rank < 3; rank++) cluster_push(&cluster, tensor, 1, rank, PATIENCE_NEVER_MS);
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

struct asking {
  struct zps_command command;
  uint64_t job_id;
  unsigned n_asked; /* questions to its ranks */
};

static void run_asking(struct zps_command *command, void *ctx) {
  struct asking *const asking = (struct asking *)command;
  const struct zps_shard *const shard = ctx;
  const struct zps_job *const job = zps_job_find(shard->jobs, asking->job_id);
  asking->n_asked = 0;
  for (uint32_t rank = 0; rank < job->world; rank++) asking->n_asked += job->members[rank].link->resume.n_sent;
}

static unsigned n_asked(struct zps_shard *shard, uint64_t job_id) {
  struct asking asking = {.command = {.run = run_asking}, .job_id = job_id};
  assert_int_equal(zps_engine_call(shard->engine, &asking.command), ZPS_OK);
  return asking.n_asked;
}

/* One job has a round that waits for a rank. Ranks of another job owe nothing. */
static void test_ranks_of_an_idle_job_are_not_asked(void **state) {
  (void)state;
  struct zps_shard *const shard = cluster_shard("loop", NULL, 64 << 20);
  struct cluster waiting, idle;
  cluster_open(&idle, shard, "loop", NULL, 78, RANKS);
  cluster_open(&waiting, shard, "loop", NULL, 77, RANKS);
  struct cluster_tensor *const tensor = cluster_tensor(&waiting, 900, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.5);
  cluster_push(&waiting, tensor, 1, 0, PATIENCE_NEVER_MS);
  struct patience patience = {0};
  while (n_asked(shard, 77) < 2 * RANKS && !patience_is_over(&patience)) patience_nap();
  assert_true(n_asked(shard, 77) >= 2 * RANKS);
  assert_int_equal(n_asked(shard, 78), 0);
  cluster_close(&waiting);
  cluster_close(&idle);
  zps_shard_destroy(shard);
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
      cmocka_unit_test(test_sums_of_aborted_rounds_stay_for_a_while),
      cmocka_unit_test(test_ranks_of_an_idle_job_are_not_asked),
  };
  return cmocka_run_group_tests(tests, expect_warnings, logs_check);
}

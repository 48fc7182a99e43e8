/* A rank that the fabric has lost may be well, and this server cut off from it: what rounds fail by that others hear
 * when the coordinator has spoken, or has not for a while. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/logs.h"
#include "tests/unit/server/shard/shard_cluster.h"

enum { MIB = 1 << 20, RANKS = 3, FOR_EVER_MS = PATIENCE_NEVER_MS };

struct scene {
  struct zps_shard *shard;
  struct cluster cluster;
  struct cluster_tensor *tensor;
};

static void push(struct scene *scene, uint64_t step, uint32_t rank) {
  cluster_push(&scene->cluster, scene->tensor, step, rank, PATIENCE_NEVER_MS);
}

static void wait_for_aborts(struct scene *scene, uint64_t n) {
  while (cluster_stats(&scene->cluster, scene->tensor).aborted < n) sched_yield();
}

static void tells_nobody(const struct scene *scene) {
  for (unsigned turns = 0; turns < 3; turns++) cluster_totals(scene->shard);
  for (uint32_t rank = 0; rank < 2; rank++) assert_int_equal(rig_left(scene->cluster.ranks[rank]), 0);
}

static void tells(struct scene *scene, uint64_t step, uint32_t rank) {
  cluster_abort(&scene->cluster, scene->tensor, step, rank, ZPS_ERR_PEER_LOST, "rank 2 is needed and gone: ");
}

/* Rank 2 vanishes when it has given its part of step 1, and cannot be told the sums; step 2 fails by that. */
static void open_scene(struct scene *scene, uint64_t hold_ms) {
  scene->shard = cluster_shard("loop", NULL, 64 * MIB);
  zps_shard_set_hold(scene->shard, hold_ms);
  cluster_open(&scene->cluster, scene->shard, "loop", NULL, 77, RANKS);
  scene->tensor = cluster_tensor(&scene->cluster, 20000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.3);
  cluster_round(&scene->cluster, scene->tensor, 0);
  const uint64_t before = cluster_stats(&scene->cluster, scene->tensor).bytes_in;
  const uint64_t bytes = cluster_push(&scene->cluster, scene->tensor, 1, 2, PATIENCE_NEVER_MS);
  while (cluster_stats(&scene->cluster, scene->tensor).bytes_in < before + bytes) sched_yield();
  rig_rank_close(scene->cluster.ranks[2]);
  for (uint32_t rank = 0; rank < 2; rank++) push(scene, 1, rank);
  for (uint32_t rank = 0; rank < 2; rank++) cluster_check(&scene->cluster, scene->tensor, 1, rank);
  for (uint32_t rank = 0; rank < 2; rank++) cluster_done(&scene->cluster, scene->tensor, 1, rank);
  for (uint32_t rank = 0; rank < 2; rank++) push(scene, 2, rank);
  wait_for_aborts(scene, 1);
}

static void close_scene(struct scene *scene) {
  cluster_drain(scene->shard);
  scene->cluster.world = 2;
  cluster_close(&scene->cluster);
  zps_shard_destroy(scene->shard);
}

static void test_the_coordinator_says_that_it_is_dead(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene, FOR_EVER_MS);
  push(&scene, 3, 0);
  wait_for_aborts(&scene, 2);
  tells_nobody(&scene);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 2, ZPS_ERR_PEER_LOST, "connection closed"), ZPS_OK);
  for (uint32_t rank = 0; rank < 2; rank++) tells(&scene, 2, rank);
  tells(&scene, 3, 0);
  push(&scene, 4, 1); /* at once from here on */
  tells(&scene, 4, 1);
  close_scene(&scene);
}

/* It has left in peace, ahead of the word of it. */
static void test_it_has_left(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene, FOR_EVER_MS);
  tells_nobody(&scene);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 2, ZPS_ERR_CLOSED, "it left"), ZPS_OK);
  for (uint32_t rank = 0; rank < 2; rank++) tells(&scene, 2, rank);
  close_scene(&scene);
}

static void test_the_coordinator_says_nothing(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene, 20);
  for (uint32_t rank = 0; rank < 2; rank++) tells(&scene, 2, rank);
  push(&scene, 3, 0);
  tells(&scene, 3, 0);
  close_scene(&scene);
}

/* The job has lost another server: rounds begin anew, of which nobody has heard that they failed. */
static void test_the_job_goes_on(void **state) {
  (void)state;
  struct scene scene;
  uint32_t lost[] = {1};
  struct zps_error error;
  const struct zps_job_map map = {.job_id = 77, .epoch = 2, .n_lost = 1, .lost = lost};
  open_scene(&scene, FOR_EVER_MS);
  assert_int_equal(zps_shard_job_map(scene.shard, &map, &error), ZPS_OK);
  for (uint32_t rank = 0; rank < 2; rank++) rig_epoch(scene.cluster.ranks[rank], 2);
  assert_int_equal(zps_shard_job_replay(scene.shard, 77, 2, &error), ZPS_OK);
  assert_int_equal(zps_shard_rank_gone(scene.shard, 77, 2, ZPS_ERR_PEER_LOST, "connection closed"), ZPS_OK);
  tells_nobody(&scene);
  close_scene(&scene);
}

/* This server is let go of the job, or the job has failed, with something held back. */
static void test_the_job_closes(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene, FOR_EVER_MS);
  assert_int_equal(zps_shard_job_close(scene.shard, 77, "others have its partitions"), ZPS_OK);
  tells_nobody(&scene);
  close_scene(&scene);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_coordinator_says_that_it_is_dead),
      cmocka_unit_test(test_it_has_left),
      cmocka_unit_test(test_the_coordinator_says_nothing),
      cmocka_unit_test(test_the_job_goes_on),
      cmocka_unit_test(test_the_job_closes),
  };
  logs_start();
  return cmocka_run_group_tests(tests, NULL, logs_check);
}

/* Pulls of strangers: each is refused by itself, with a text that names the fault, and the round goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/runs.h"
#include "common/session/link.h"
#include "tests/support/logs.h"
#include "tests/unit/server/shard/shard_cluster.h"

enum { MIB = 1 << 20, RANKS = 3, OTHERS = 2 /* a partition of another server */ };

struct scene {
  struct zps_shard *shard;
  struct cluster cluster;
  struct cluster_tensor *tensor;
};

/* A job of three ranks; partitions 0, 1, 3, 4 of five are here. */
static void open_scene(struct scene *scene) {
  scene->shard = cluster_shard("loop", NULL, 64 * MIB);
  cluster_open(&scene->cluster, scene->shard, "loop", NULL, 77, RANKS);
  scene->tensor = cluster_tensor(&scene->cluster, 20000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.3);
}

/* The round that the pulls were for still works for those that push for all of it. */
static void close_scene(struct scene *scene) {
  for (uint32_t rank = 0; rank < RANKS; rank++)
    cluster_push(&scene->cluster, scene->tensor, 7, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    cluster_check(&scene->cluster, scene->tensor, 7, rank);
    cluster_done(&scene->cluster, scene->tensor, 7, rank);
  }
  cluster_close(&scene->cluster);
  cluster_check_released(scene->shard);
  zps_shard_destroy(scene->shard);
}

/* Rank 0 pulls; `more` rows are said to come in later frames. */
static void pull(struct scene *scene, uint64_t step, uint32_t partition, const void *runs, size_t len, uint32_t nnz,
                 uint64_t more) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_PULL};
  frame.u.round = (struct zps_frame_round){.tensor = scene->tensor->spec.tensor,
                                           .step = step,
                                           .total_nnz = nnz + more,
                                           .timeout_ms = PATIENCE_NEVER_MS,
                                           .n_slices = 1};
  frame.u.round.slices[0] = (struct zps_slice){.partition = partition,
                                               .codec = ZPS_WIRE_CODEC_RUNS,
                                               .is_inline = true,
                                               .nnz = nnz,
                                               .len_bytes = len,
                                               .data = runs};
  rig_send(scene->cluster.ranks[0], &frame);
}

static void expect_refused(struct scene *scene, zps_err_t code, const char *text) {
  cluster_abort(&scene->cluster, scene->tensor, 8, 0, code, text);
}

static void test_bad_pulls(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene);
  /* Each is the first frame of step 8, which it opens; a round is not failed by it, so the next one may follow. */
  pull(&scene, 8, 5, "\0", 1, 1, 0);
  expect_refused(&scene, ZPS_ERR_PROTOCOL, "it pulls partition 5, which is not this server's");
  close_scene(&scene);

  open_scene(&scene);
  pull(&scene, 8, OTHERS, "\0", 1, 1, 0);
  expect_refused(&scene, ZPS_ERR_PROTOCOL, "it pulls partition 2, which is not this server's");
  close_scene(&scene);

  open_scene(&scene);
  pull(&scene, 8, 1, "\x01", 1, 2, 0);
  expect_refused(&scene, ZPS_ERR_PROTOCOL, "no number where one is due");
  close_scene(&scene);

  open_scene(&scene);
  pull(&scene, 8, 1, "\x01\xff\xff\x7f", 4, 9, 0);
  expect_refused(&scene, ZPS_ERR_PROTOCOL, "in a partition of 4000");
  close_scene(&scene);

  open_scene(&scene);
  pull(&scene, 8, 1, "\x04\x04", 2, 3, 0);
  expect_refused(&scene, ZPS_ERR_PROTOCOL, "it pulls 2 rows of partition 1, and says 3");
  close_scene(&scene);

  open_scene(&scene);
  pull(&scene, 8, 1, "\x14", 1, 1, 5);
  pull(&scene, 8, 1, "\x14", 1, 1, 0); /* row 10 again */
  expect_refused(&scene, ZPS_ERR_PROTOCOL, "it pulls rows of partition 1 up to 10, and then 10");
  close_scene(&scene);

  open_scene(&scene);
  pull(&scene, 8, 1, "\x14", 1, 1, 0);
  pull(&scene, 8, 1, "\x16", 1, 1, 0);
  expect_refused(&scene, ZPS_ERR_PROTOCOL, "this rank is pulling the step already");
  close_scene(&scene);
}

/* Values that share a scale with others. */
static void test_levels_have_no_parts(void **state) {
  (void)state;
  struct scene scene;
  scene.shard = cluster_shard("loop", NULL, 64 * MIB);
  cluster_open(&scene.cluster, scene.shard, "loop", NULL, 77, RANKS);
  scene.cluster.value_codec = ZPS_VALUES_QSGD4;
  scene.tensor = cluster_tensor(&scene.cluster, 20000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.3);
  pull(&scene, 8, 1, "\x14", 1, 1, 0);
  expect_refused(&scene, ZPS_ERR_PROTOCOL,
                 "it pulls 0 of the 4000 rows of partition 0; of sums whose values are qsgd4 it may pull all alone");
  close_scene(&scene);
}

/* Every other row: one run each, of `n` rows of the partition. */
static void pull_runs(struct scene *scene, uint64_t step, uint32_t partition, uint32_t n, uint64_t more) {
  uint8_t runs[2000];
  memset(runs, 2, sizeof runs);
  pull(scene, step, partition, runs, n, n, more);
}

static void open_small(struct scene *scene, uint64_t job_id) {
  cluster_open(&scene->cluster, scene->shard, "loop", NULL, job_id, RANKS);
  scene->tensor = cluster_tensor(&scene->cluster, 20000, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.01);
}

/* Lists of rows are memory that a rank makes the server take. A job that holds all it may leaves others theirs. */
static void test_wants_are_bounded(void **state) {
  (void)state;
  struct scene greedy, modest;
  greedy.shard = modest.shard = cluster_shard("loop", NULL, 64 << 10);
  open_small(&greedy, 77);
  open_small(&modest, 78);
  pull_runs(&greedy, 8, 1, 1000, 4000); /* 8 KiB of the 16 KiB that it may have */
  pull_runs(&greedy, 8, 3, 1000, 3000);
  expect_refused(&greedy, ZPS_ERR_NOMEM, "half of what other jobs leave of 32768 (half of server.memory_limit)");
  pull_runs(&greedy, 9, 1, 1000, 4000);
  pull_runs(&greedy, 9, 3, 500, 3500);   /* 4 KiB more */
  pull_runs(&greedy, 10, 1, 1000, 4000); /* too much: the two before it have been taken when this one is refused */
  cluster_abort(&greedy.cluster, greedy.tensor, 10, 0, ZPS_ERR_NOMEM, "half of what other jobs leave");
  pull_runs(&modest, 8, 1, 500, 0);
  pull_runs(&modest, 8, 1, 500, 0);
  expect_refused(&modest, ZPS_ERR_PROTOCOL, "this rank is pulling the step already");
  pull_runs(&modest, 9, 1, 1000, 4000);
  pull_runs(&modest, 9, 3, 500, 3500);
  /* Half of the rest is this job's limit, too. */
  cluster_abort(&modest.cluster, modest.tensor, 9, 0, ZPS_ERR_NOMEM, "half of what other jobs leave");
  cluster_close(&greedy.cluster);
  cluster_close(&modest.cluster);
  zps_shard_destroy(greedy.shard);
}

/* A refused pull leaves no round behind: a tensor has room for 64. Pulls are refused as they begin, or at their rows.
 */
static void refused_pulls_begin_no_round(uint32_t n_runs) {
  enum { REFUSED = 70 };
  struct scene scene;
  scene.shard = cluster_shard("loop", NULL, 8 << 10);
  open_small(&scene, 77);
  pull_runs(&scene, 8, 1, 10, 4000);
  uint64_t step = 9;
  for (; step < 9 + REFUSED; step++) pull_runs(&scene, step, 1, n_runs, 4000); /* The first few may have room. */
  cluster_abort(&scene.cluster, scene.tensor, step - 1, 0, ZPS_ERR_NOMEM, "half of what other jobs leave");
  const uint64_t before = cluster_totals(scene.shard).rounds_in_flight;
  assert_in_range(before, 1, REFUSED / 2);
  cluster_push(&scene.cluster, scene.tensor, step - 1, 1, PATIENCE_NEVER_MS); /* A refused step may begin anew. */
  while (cluster_totals(scene.shard).rounds_in_flight == before) patience_nap();
  pull_runs(&scene, step - 1, 1, n_runs, 4000);
  cluster_abort(&scene.cluster, scene.tensor, step - 1, 0, ZPS_ERR_NOMEM, "half of what other jobs leave");
  assert_int_equal(cluster_totals(scene.shard).rounds_in_flight, before + 1); /* This one has a push. */
  cluster_close(&scene.cluster);
  zps_shard_destroy(scene.shard);
}

static void test_a_refused_pull_begins_no_round(void **state) {
  (void)state;
  refused_pulls_begin_no_round(10);
  refused_pulls_begin_no_round(1000); /* of 8 bytes: more than there is */
}

/* They are on the account of their job, and come back. */
static void test_wants_are_under_the_quota(void **state) {
  (void)state;
  struct scene scene;
  scene.shard = cluster_shard_with("loop", NULL, 64 * MIB,
                                   (struct zps_quota){.memory_bytes = RANKS * ZPS_LINK_BYTES + (48 << 10)});
  open_small(&scene, 77);
  for (uint64_t step = 8; step < 11; step++) {
    pull_runs(&scene, step, 0, 1999, 9000);
    pull_runs(&scene, step, 1, 1999, 9000);
    pull_runs(&scene, step, 3, 1999, 9000);
    cluster_abort(&scene.cluster, scene.tensor, step, 0, ZPS_ERR_QUOTA, "the rows that its ranks name take ");
  }
  cluster_close(&scene.cluster);
  zps_shard_destroy(scene.shard);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_bad_pulls), cmocka_unit_test(test_levels_have_no_parts),
                                     cmocka_unit_test(test_wants_are_bounded),
                                     cmocka_unit_test(test_a_refused_pull_begins_no_round),
                                     cmocka_unit_test(test_wants_are_under_the_quota)};
  logs_start();
  return cmocka_run_group_tests(tests, NULL, logs_check);
}

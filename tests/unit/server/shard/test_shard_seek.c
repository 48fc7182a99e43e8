/* SEEKs: which step's sum is found, and what is answered where there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/runs.h"
#include "tests/support/logs.h"
#include "tests/unit/server/shard/shard_cluster.h"

enum { MIB = 1 << 20, RANKS = 3, STALENESS = 2 };

struct scene {
  struct zps_shard *shard;
  struct cluster cluster;
  struct cluster_tensor *tensor;
};

/* `density`: sums travel inside frames, or are read. */
static void open_scene(struct scene *scene, uint32_t staleness, double density) {
  scene->shard = cluster_shard("loop", NULL, 64 * MIB);
  cluster_open(&scene->cluster, scene->shard, "loop", NULL, 77, RANKS);
  scene->cluster.staleness = staleness;
  scene->tensor = cluster_tensor(&scene->cluster, 20000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, density);
}

static void close_scene(struct scene *scene) {
  cluster_close(&scene->cluster);
  cluster_check_released(scene->shard);
  zps_shard_destroy(scene->shard);
}

/* All rows of all partitions here, in one frame. */
static void seek(struct scene *scene, uint32_t rank, uint32_t number, uint64_t step, uint32_t age, uint32_t age_max) {
  const struct cluster_tensor *tensor = scene->tensor;
  uint8_t runs[CLUSTER_PARTS][ZPS_RUN_BYTES_MAX];
  struct zps_frame frame = {.header.type = ZPS_FRAME_SEEK};
  struct zps_frame_round *round = &frame.u.round;
  *round = (struct zps_frame_round){.tensor = tensor->spec.tensor,
                                    .step = step,
                                    .timeout_ms = PATIENCE_NEVER_MS,
                                    .seek = number,
                                    .age = age,
                                    .age_max = age_max};
  for (uint32_t p = 0; p < tensor->spec.n_parts; p++) {
    if (!cluster_owned(tensor, p)) continue;
    const uint32_t m = tensor->sizes[p];
    const uint8_t *end = zps_index_run_put(runs[p], 0, (struct zps_index_run){.n = m});
    round->slices[round->n_slices++] = (struct zps_slice){.partition = p,
                                                          .codec = ZPS_WIRE_CODEC_RUNS,
                                                          .is_inline = true,
                                                          .nnz = m,
                                                          .len_bytes = (uint64_t)(end - runs[p]),
                                                          .data = runs[p]};
    round->total_nnz += m;
  }
  rig_send(scene->cluster.ranks[rank], &frame);
}

/* It is found, and is the sum of that step. */
static void expect_found(struct scene *scene, uint32_t rank, uint64_t asked, uint64_t step) {
  cluster_check(&scene->cluster, scene->tensor, step, rank);
  cluster_done(&scene->cluster, scene->tensor, asked, rank);
}

static void expect_missed(struct scene *scene, uint32_t rank, uint32_t number, uint64_t asked, zps_err_t code,
                          const char *text) {
  struct zps_frame_abort *missed = rig_take_abort(scene->cluster.ranks[rank], scene->tensor->spec.tensor, asked);
  assert_int_equal(missed->code, code);
  assert_int_equal(missed->seek, number);
  if (!strstr(missed->text, text)) fail_msg("%s, where %s was expected", missed->text, text);
  free(missed);
}

static void push_all(struct scene *scene, uint64_t step) {
  for (uint32_t rank = 0; rank < RANKS; rank++)
    cluster_push(&scene->cluster, scene->tensor, step, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    cluster_check(&scene->cluster, scene->tensor, step, rank);
    cluster_done(&scene->cluster, scene->tensor, step, rank);
  }
}

static void find_the_newest(double density) {
  struct scene scene;
  open_scene(&scene, STALENESS, density);
  for (uint64_t step = 0; step < 6; step++) push_all(&scene, step);
  for (uint32_t again = 1; again <= 2; again++) {
    seek(&scene, 0, again, 7, 0, 2);
    expect_found(&scene, 0, 7, 5);
  }
  seek(&scene, 1, 1, 6, 2, 2);
  expect_found(&scene, 1, 6, 4);
  seek(&scene, 1, 2, 4, 0, 1);
  expect_found(&scene, 1, 4, 4);
  seek(&scene, 2, 1, 2, 0, 0); /* of the sums that nobody waits for four are kept */
  expect_found(&scene, 2, 2, 2);
  seek(&scene, 2, 2, 1, 0, 1);
  expect_missed(&scene, 2, 2, 1, ZPS_ERR_STALE, "tensor7, step 1: the sum of step 1 is kept no longer");
  close_scene(&scene);
}

static void test_the_newest_is_found(void **state) {
  (void)state;
  find_the_newest(0.01);
  find_the_newest(0.5);
}

static void test_what_is_waited_for(void **state) {
  (void)state;
  struct scene scene;
  struct cluster *cluster = &scene.cluster;
  open_scene(&scene, STALENESS, 0.3);
  /* The oldest that was begun. */
  cluster_push(cluster, scene.tensor, 6, 0, PATIENCE_NEVER_MS);
  cluster_push(cluster, scene.tensor, 6, 1, PATIENCE_NEVER_MS);
  cluster_push(cluster, scene.tensor, 7, 0, PATIENCE_NEVER_MS);
  seek(&scene, 0, 1, 8, 0, 2);
  cluster_push(cluster, scene.tensor, 6, 2, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) expect_found(&scene, rank, 6, 6); /* by their pushes */
  expect_found(&scene, 0, 8, 6);
  /* Where none was begun, the newest; and one that fails is not waited for. */
  seek(&scene, 1, 9, 20, 0, 2);
  cluster_push(cluster, scene.tensor, 20, 0, PATIENCE_NEVER_MS);
  cluster_push(cluster, scene.tensor, 20, 1, PATIENCE_NEVER_MS);
  cluster_push(cluster, scene.tensor, 20, 2, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) expect_found(&scene, rank, 20, 20);
  expect_found(&scene, 1, 20, 20);
  cluster_push(cluster, scene.tensor, 30, 0, PATIENCE_NEVER_MS);
  seek(&scene, 0, 3, 32, 0, 2);
  seek(&scene, 0, 9, 99, 0, 3);
  expect_missed(&scene, 0, 9, 99, ZPS_ERR_PROTOCOL, "3 steps older"); /* the one before it is there, too */
  rig_cancel(cluster->ranks[1], scene.tensor->spec.tensor, 30, "it has enough");
  expect_missed(&scene, 0, 3, 32, ZPS_ERR_CANCELED, "step 30: rank 1 gave it up: it has enough");
  cluster_abort(cluster, scene.tensor, 30, 0, ZPS_ERR_CANCELED, "rank 1 gave it up");
  seek(&scene, 0, 4, 32, 0, 2);
  push_all(&scene, 32);
  expect_found(&scene, 0, 32, 32);
  close_scene(&scene);
}

static void test_bad_seeks(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene, STALENESS, 0.3);
  seek(&scene, 0, 1, 9, 0, 3);
  expect_missed(&scene, 0, 1, 9, ZPS_ERR_PROTOCOL,
                "seeks a sum up to 3 steps older, but the tensor was opened with a "
                "staleness of 2");
  seek(&scene, 0, 2, 9, 0, 1);
  seek(&scene, 0, 3, 9, 0, 1);
  expect_missed(&scene, 0, 3, 9, ZPS_ERR_PROTOCOL, "this rank is pulling the step already");
  push_all(&scene, 9);
  close_scene(&scene);
  open_scene(&scene, 0, 0.3);
  seek(&scene, 0, 1, 9, 0, 0);
  expect_missed(&scene, 0, 1, 9, ZPS_ERR_PROTOCOL, "a staleness of 0");
  close_scene(&scene);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_newest_is_found),
                                     cmocka_unit_test(test_what_is_waited_for), cmocka_unit_test(test_bad_seeks)};
  logs_start();
  return cmocka_run_group_tests(tests, NULL, logs_check);
}

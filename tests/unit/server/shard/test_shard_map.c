/* A server goes on without others of its job: it takes over partitions, and what was in flight begins anew. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/logs.h"
#include "tests/support/views.h"
#include "tests/unit/server/shard/shard_cluster.h"

enum { MIB = 1 << 20, RANKS = 3, PARTS = 11 };

/* Of the job's servers, 0 is the one here; of partitions 2, 5 and 8, 1 is the owner. */
struct scene {
  struct zps_shard *shard;
  struct cluster cluster;
  struct cluster_tensor *tensor;
  struct zps_error error;
};

static void open_scene(struct scene *scene, uint64_t rows) {
  scene->shard = cluster_shard("loop", NULL, 64 * MIB);
  cluster_open(&scene->cluster, scene->shard, "loop", NULL, 77, RANKS);
  scene->tensor = cluster_tensor(&scene->cluster, rows, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, PARTS, 0.3);
}

static void close_scene(struct scene *scene) {
  for (uint32_t rank = 0; rank < RANKS; rank++) assert_int_equal(rig_left(scene->cluster.ranks[rank]), 0);
  cluster_drain(scene->shard);
  cluster_check_released(scene->shard);
  cluster_close(&scene->cluster);
  zps_shard_destroy(scene->shard);
}

static zps_err_t install(struct scene *scene, uint32_t epoch, const char *letters) {
  struct zps_place_image places[4];
  const struct zps_job_view told = {.job_id = scene->cluster.job_id, .view = view_of(places, epoch, 3, letters)};
  return zps_shard_job_view(scene->shard, &told, &scene->error);
}

static zps_err_t map(struct scene *scene, uint32_t epoch, uint32_t lost0, uint32_t lost1) {
  char letters[] = "iii";
  letters[lost0] = 'x';
  if (lost1 > lost0) letters[lost1] = 'x';
  return install(scene, epoch, letters);
}

/* The ranks follow; those of both servers are this one's from here on. */
static void follow(struct scene *scene, uint32_t epoch, bool has_all) {
  /* From here on ranks drop what comes of the epoch before, so that they do not look at the tensor. */
  for (uint32_t rank = 0; rank < RANKS; rank++) rig_epoch(scene->cluster.ranks[rank], epoch);
  for (uint32_t p = 0; has_all && p < PARTS; p++) {
    scene->tensor->owners[p] = 0;
    scene->tensor->sizes[p] = zps_partition_size(&scene->tensor->part, p);
  }
}

static void replay(struct scene *scene, uint32_t epoch) {
  assert_int_equal(zps_shard_job_replay(scene->shard, scene->cluster.job_id, epoch, &scene->error), ZPS_OK);
}

static void left(struct scene *scene, uint32_t rank) {
  assert_int_equal(zps_shard_rank_gone(scene->shard, scene->cluster.job_id, rank, ZPS_ERR_CLOSED, "it left"), ZPS_OK);
}

static void wait_for_rounds(const struct scene *scene, unsigned n) {
  while (cluster_totals(scene->shard).rounds_in_flight != n) patience_nap();
}

static void test_in_the_middle_of_rounds(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene, 60000);
  cluster_round(&scene.cluster, scene.tensor, 7);
  for (uint32_t rank = 0; rank < 2; rank++) {
    cluster_push(&scene.cluster, scene.tensor, 8, rank, PATIENCE_NEVER_MS);
    cluster_push(&scene.cluster, scene.tensor, 11, rank, PATIENCE_NEVER_MS);
  }
  wait_for_rounds(&scene, 2);
  assert_int_equal(map(&scene, 2, 1, 0), ZPS_OK); /* its partitions are server 2's, which had none */
  assert_int_equal(cluster_totals(scene.shard).rounds_in_flight, 0);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).parts_here, PARTS - 3);
  cluster_push(&scene.cluster, scene.tensor, 8, 2, PATIENCE_NEVER_MS); /* has not heard yet, so it is not heard */
  follow(&scene, 2, false);
  replay(&scene, 2);
  cluster_round(&scene.cluster, scene.tensor, 11); /* another order */
  cluster_round(&scene.cluster, scene.tensor, 8);
  cluster_drain(scene.shard);

  /* Again, with sums that ranks may be reading: they stay until all ranks are known to live in the new epoch. */
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_push(&scene.cluster, scene.tensor, 12, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 12, rank);
  assert_int_equal(map(&scene, 3, 1, 2), ZPS_OK);
  assert_int_equal(cluster_totals(scene.shard).rounds_in_flight, 0);
  assert_true(cluster_totals(scene.shard).slab.in_use_bytes > 0);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).parts_here, PARTS);
  assert_int_equal(map(&scene, 3, 1, 2), ZPS_OK); /* once more: its answer was lost */
  assert_int_equal(map(&scene, 3, 1, 0), ZPS_ERR_STALE);
  replay(&scene, 2); /* late: of the epoch before */
  assert_true(cluster_totals(scene.shard).slab.in_use_bytes > 0);
  follow(&scene, 3, true);
  replay(&scene, 3);
  cluster_check_released(scene.shard);
  cluster_round(&scene.cluster, scene.tensor, 12);
  cluster_round(&scene.cluster, scene.tensor, 7); /* over, and buried: may be had again */
  cluster_round(&scene.cluster, scene.tensor, 13);
  close_scene(&scene);
}

/* The job began with this server alone, which has all partitions until another one takes a place. */
static void test_places_that_are_free(void **state) {
  (void)state;
  struct scene scene = {.shard = cluster_shard("loop", NULL, 64 * MIB)};
  cluster_open_alone(&scene.cluster, scene.shard, 77, RANKS);
  scene.tensor = cluster_tensor(&scene.cluster, 60000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, PARTS, 0.3);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).parts_here, PARTS);
  cluster_push(&scene.cluster, scene.tensor, 8, 1, PATIENCE_NEVER_MS);
  wait_for_rounds(&scene, 1);
  assert_int_equal(install(&scene, 2, "iif"), ZPS_OK);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).parts_here, PARTS - 3);
  assert_int_equal(cluster_totals(scene.shard).rounds_in_flight, 0);
  follow(&scene, 2, false);
  replay(&scene, 2);
  cluster_round(&scene.cluster, scene.tensor, 8);
  close_scene(&scene);
}

/* The coordinator took this server for lost, and the ranks have not heard of that yet: to them an abort would be the
 * end of their rounds, and a sum's memory with other bytes in it the sum. */
static void test_it_leaves_without_a_word(void **state) {
  (void)state;
  struct scene scene;
  struct cluster other;
  open_scene(&scene, 60000);
  cluster_open(&other, scene.shard, "loop", NULL, 78, RANKS);
  struct cluster_tensor *tensor = cluster_tensor(&other, 60000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, PARTS, 0.3);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_push(&scene.cluster, scene.tensor, 12, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 12, rank);
  for (uint32_t rank = 0; rank < 2; rank++) cluster_push(&scene.cluster, scene.tensor, 13, rank, PATIENCE_NEVER_MS);
  wait_for_rounds(&scene, 2);
  assert_int_equal(zps_shard_job_leave(scene.shard, 77, "it was lost"), ZPS_OK);
  assert_int_equal(zps_shard_job_leave(scene.shard, 77, "it was lost"), ZPS_ERR_UNKNOWN);
  assert_int_equal(zps_shard_jobs(scene.shard), 1);
  assert_int_equal(cluster_totals(scene.shard).rounds_in_flight, 0);
  cluster_push(&scene.cluster, scene.tensor, 13, 2, PATIENCE_NEVER_MS); /* it has not heard of it */
  cluster_round(&other, tensor, 1);
  cluster_drain(scene.shard);
  for (uint32_t rank = 0; rank < RANKS; rank++) assert_int_equal(rig_left(scene.cluster.ranks[rank]), 0);
  assert_true(cluster_totals(scene.shard).slab.in_use_bytes > 0);
  cluster_close(&scene.cluster);
  cluster_close(&other);
  zps_shard_destroy(scene.shard);
}

/* This server is the one that drains: it says nothing more to ranks, and keeps what they may be reading until it is let
 * go of the job, also where ranks end their connections to it. */
static void test_it_drains_itself(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene, 60000);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_push(&scene.cluster, scene.tensor, 12, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 12, rank);
  cluster_push(&scene.cluster, scene.tensor, 13, 0, PATIENCE_NEVER_MS);
  wait_for_rounds(&scene, 2);
  assert_int_equal(install(&scene, 2, "lii"), ZPS_OK);
  assert_int_equal(install(&scene, 2, "lii"), ZPS_OK); /* its answer was lost */
  assert_int_equal(cluster_totals(scene.shard).rounds_in_flight, 0);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).parts_here, 0);
  cluster_push(&scene.cluster, scene.tensor, 13, 1, PATIENCE_NEVER_MS); /* has not heard yet */
  assert_int_equal(zps_shard_rank_gone(scene.shard, scene.cluster.job_id, 2, ZPS_ERR_CLOSED, "it left"), ZPS_OK);
  assert_true(cluster_totals(scene.shard).slab.in_use_bytes > 0);
  assert_int_equal(cluster_totals(scene.shard).rounds_in_flight, 0);
  for (uint32_t rank = 0; rank < RANKS; rank++) rig_epoch(scene.cluster.ranks[rank], 2);
  assert_int_equal(zps_shard_job_close(scene.shard, scene.cluster.job_id, "drained"), ZPS_OK);
  close_scene(&scene);
}

/* A rank that has its sum gives to those that have not, and reads nothing. */
static void test_a_rank_gives_again(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene, 60000);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_push(&scene.cluster, scene.tensor, 8, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_check(&scene.cluster, scene.tensor, 8, rank);
  cluster_done(&scene.cluster, scene.tensor, 8, 1);
  assert_int_equal(map(&scene, 2, 1, 2), ZPS_OK);
  follow(&scene, 2, true);
  replay(&scene, 2);
  rig_gives(scene.cluster.ranks[1], true);
  cluster_push(&scene.cluster, scene.tensor, 8, 1, PATIENCE_NEVER_MS);
  rig_take_taken(scene.cluster.ranks[1], scene.tensor->spec.tensor, 8);
  cluster_done(&scene.cluster, scene.tensor, 8, 1); /* ahead of the others' pushes */
  rig_gives(scene.cluster.ranks[1], false);
  cluster_push(&scene.cluster, scene.tensor, 8, 0, PATIENCE_NEVER_MS);
  cluster_push(&scene.cluster, scene.tensor, 8, 2, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank += 2) {
    cluster_check(&scene.cluster, scene.tensor, 8, rank);
    cluster_done(&scene.cluster, scene.tensor, 8, rank);
  }
  close_scene(&scene);
}

/* Whatever a round is at: reads, sums on the pool, sums of this thread, sums on their way. */
static void test_at_any_time(void **state) {
  (void)state;
  enum { ROUNDS = 30 };
  static const uint64_t rows[] = {200, 20000, 300000};
  for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct scene scene;
    open_scene(&scene, rows[i]);
    for (uint32_t n = 0; n < ROUNDS / (i + 1); n++) {
      const uint32_t epoch = 2 + n;
      const uint64_t step = 100 + n;
      for (uint32_t rank = 0; rank < RANKS; rank++)
        cluster_push(&scene.cluster, scene.tensor, step, rank, PATIENCE_NEVER_MS);
      for (unsigned turns = 0; turns < n % 16; turns++) cluster_totals(scene.shard);
      assert_int_equal(map(&scene, epoch, 1, n > 0 ? 2 : 0), ZPS_OK);
      follow(&scene, epoch, n > 0);
      for (uint32_t rank = 0; rank < RANKS; rank++)
        cluster_push(&scene.cluster, scene.tensor, step, rank, PATIENCE_NEVER_MS);
      for (uint32_t rank = 0; rank < RANKS; rank++) {
        cluster_check(&scene.cluster, scene.tensor, step, rank);
        cluster_done(&scene.cluster, scene.tensor, step, rank);
      }
      cluster_drain(scene.shard);
      replay(&scene, epoch);
      for (uint32_t rank = 0; rank < RANKS; rank++) rig_release(scene.cluster.ranks[rank]);
    }
    cluster_check_released(scene.shard);
    cluster_close(&scene.cluster);
    zps_shard_destroy(scene.shard);
  }
}

/* With a quorum. A rank may have left with a sum of a lost server, before the change or after it. Only steps that had
 * begun fail. */
static void test_a_rank_left(void **state) {
  (void)state;
  for (unsigned is_unheard = 0; is_unheard < 2; is_unheard++) {
    struct scene scene;
    scene.shard = cluster_shard("loop", NULL, 64 * MIB);
    cluster_open(&scene.cluster, scene.shard, "loop", NULL, 77, RANKS);
    scene.cluster.quorum = RANKS - 1;
    scene.cluster.grace_ms = PATIENCE_NEVER_MS;
    scene.tensor = cluster_tensor(&scene.cluster, 60000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, PARTS, 0.3);
    cluster_round(&scene.cluster, scene.tensor, 7);
    if (!is_unheard) left(&scene, 2);
    assert_int_equal(map(&scene, 2, 1, 2), ZPS_OK);
    follow(&scene, 2, true);
    replay(&scene, 2);
    if (is_unheard) left(&scene, 2);
    scene.cluster.late = 1u << 2;
    for (uint64_t step = 7; step < 10; step++) {
      for (uint32_t rank = 0; rank < 2; rank++)
        cluster_push(&scene.cluster, scene.tensor, step, rank, PATIENCE_NEVER_MS);
      for (uint32_t rank = 0; rank < 2; rank++) {
        if (step == 7) {
          cluster_abort(&scene.cluster, scene.tensor, step, rank, ZPS_ERR_CLOSED, "rank 2 is needed and gone: it left");
          continue;
        }
        cluster_check(&scene.cluster, scene.tensor, step, rank);
        cluster_done(&scene.cluster, scene.tensor, step, rank);
      }
    }
    cluster_close(&scene.cluster);
    zps_shard_destroy(scene.shard);
  }
}

/* With a quorum, pushes may come before the word that a rank has left. No round closes without it before job.replay. */
static void test_a_rank_leaves_unheard(void **state) {
  (void)state;
  struct scene scene;
  scene.shard = cluster_shard("loop", NULL, 64 * MIB);
  cluster_open(&scene.cluster, scene.shard, "loop", NULL, 77, RANKS);
  scene.cluster.quorum = RANKS - 1;
  scene.tensor = cluster_tensor(&scene.cluster, 60000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, PARTS, 0.3);
  assert_int_equal(map(&scene, 2, 1, 2), ZPS_OK);
  follow(&scene, 2, true);
  for (uint32_t rank = 0; rank < 2; rank++) {
    const struct rig_slice slice = {.partition = 0};
    cluster_push(&scene.cluster, scene.tensor, 7, rank, PATIENCE_NEVER_MS);
    rig_push(scene.cluster.ranks[rank], 99, 1, PATIENCE_NEVER_MS, 0, &slice, 1);
    free(rig_take_abort(scene.cluster.ranks[rank], 99, 1)); /* what came before is dealt with */
  }
  left(&scene, 2);
  for (uint32_t rank = 0; rank < 2; rank++)
    cluster_abort(&scene.cluster, scene.tensor, 7, rank, ZPS_ERR_CLOSED, "rank 2 is needed and gone: it left");
  scene.cluster.late = 1u << 2;
  for (uint32_t rank = 0; rank < 2; rank++) cluster_push(&scene.cluster, scene.tensor, 100, rank, PATIENCE_NEVER_MS);
  replay(&scene, 2);
  for (uint32_t rank = 0; rank < 2; rank++) {
    cluster_check(&scene.cluster, scene.tensor, 100, rank);
    cluster_done(&scene.cluster, scene.tensor, 100, rank);
  }
  cluster_close(&scene.cluster);
  zps_shard_destroy(scene.shard);
}

static void test_refusals(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene, 60000);
  cluster_push(&scene.cluster, scene.tensor, 8, 0, PATIENCE_NEVER_MS);
  wait_for_rounds(&scene, 1);
  assert_int_equal(map(&scene, 1, 1, 0), ZPS_ERR_STALE);
  assert_string_equal(scene.error.text, "job job: job.view is of epoch 1, and the job lives in epoch 1");
  assert_int_equal(map(&scene, 2, 0, 1), ZPS_ERR_INVALID);
  assert_string_equal(scene.error.text, "job job: in job.view this server, 0, is neither in nor leaving");
  assert_int_equal(install(&scene, 2, "ixii"), ZPS_ERR_INVALID);
  assert_string_equal(scene.error.text, "job job: job.view has 4 places, and the job has 3");
  assert_int_equal(install(&scene, 2, "lxf"), ZPS_ERR_INVALID);
  assert_string_equal(scene.error.text, "job job: in job.view no server is in");
  assert_int_equal(install(&scene, 1, "iii"), ZPS_OK); /* It has this view: the round goes on. */
  assert_int_equal(cluster_totals(scene.shard).rounds_in_flight, 1);
  scene.cluster.job_id++;
  assert_int_equal(map(&scene, 2, 1, 0), ZPS_ERR_UNKNOWN);
  assert_int_equal(zps_shard_job_replay(scene.shard, scene.cluster.job_id, 2, &scene.error), ZPS_ERR_UNKNOWN);
  scene.cluster.job_id--;
  /* Of another server it may be as large as it likes. */
  const uint32_t owners[] = {1, 1};
  struct zps_tensor_spec wide = scene.tensor->spec;
  wide.tensor = 50;
  wide.rows = 1 << 24;
  wide.width = UINT32_MAX;
  wide.dtype = ZPS_DTYPE_F64;
  wide.n_parts = 2;
  wide.owners = owners;
  strcpy(wide.name, "wide");
  assert_int_equal(zps_shard_tensor_open(scene.shard, &wide, &scene.error), ZPS_OK);
  assert_int_equal(map(&scene, 2, 1, 2), ZPS_ERR_INVALID);
  assert_non_null(strstr(scene.error.text, "job job, tensor wide: a partition of "));
  assert_non_null(strstr(scene.error.text, " is too large"));
  /* Nothing has changed. */
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).parts_here, PARTS - 3);
  for (uint32_t rank = 1; rank < RANKS; rank++) cluster_push(&scene.cluster, scene.tensor, 8, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    cluster_check(&scene.cluster, scene.tensor, 8, rank);
    cluster_done(&scene.cluster, scene.tensor, 8, rank);
  }
  close_scene(&scene);
}

/* Owners are those that the tensor was laid out for; also when it is opened after the loss. */
static void test_tensors_that_come_later(void **state) {
  (void)state;
  struct scene scene;
  open_scene(&scene, 60000);
  assert_int_equal(map(&scene, 2, 1, 2), ZPS_OK);
  follow(&scene, 2, true);
  struct cluster_tensor *later = cluster_tensor(&scene.cluster, 5000, 1, ZPS_DTYPE_F64, ZPS_OP_MEAN, PARTS, 0.5);
  assert_int_equal(cluster_stats(&scene.cluster, later).parts_here, PARTS);
  const uint32_t owners[] = {3};
  struct zps_tensor_spec strange = scene.tensor->spec;
  strange.tensor = 50;
  strange.n_parts = 1;
  strange.owners = owners;
  assert_int_equal(zps_shard_tensor_open(scene.shard, &strange, &scene.error), ZPS_ERR_INVALID);
  assert_non_null(strstr(scene.error.text, "partition 0 is server 3's; the job has 3"));
  close_scene(&scene);
}

/* This server has the place and the address of one that the ranks spoke to before, of which somebody has kept all. The
 * first of it is the first that comes over the new link. */
static void test_what_was_said_to_the_server_before(void **state) {
  (void)state;
  struct cluster cluster;
  logs_allow(ZPS_LOG_WARN, "its MAC is not that of the link");
  struct zps_shard *const shard = cluster_shard("loop", NULL, 64 * MIB);
  cluster_open_since(&cluster, shard, "loop", NULL, 77, RANKS, 5);
  struct cluster_tensor *const tensor = cluster_tensor(&cluster, 3000, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.3);
  const struct rig_slice slice = {.partition = 1};
  static const uint32_t before[] = {0, 4};
  for (unsigned i = 0; i < sizeof before / sizeof before[0]; i++) {
    struct rig_rank *const recorded = rig_rank_open("loop", NULL);
    rig_rank_connect(recorded, zps_shard_net_info(shard), 77, 1, before[i]);
    zps_log_strangers.last_ms = 0; /* nothing else of its kind was said in this second */
    rig_push(recorded, tensor->spec.tensor, 1, PATIENCE_NEVER_MS, 0, &slice, 1);
    while (cluster_totals(shard).mishaps.forged == i) patience_nap();
    rig_rank_close(recorded);
  }
  for (uint64_t step = 1; step < 4; step++) cluster_round(&cluster, tensor, step);
  assert_int_equal(cluster_totals(shard).mishaps.forged, sizeof before / sizeof before[0]);
  cluster_drain(shard);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_it_leaves_without_a_word),
      cmocka_unit_test(test_in_the_middle_of_rounds),
      cmocka_unit_test(test_places_that_are_free),
      cmocka_unit_test(test_it_drains_itself),
      cmocka_unit_test(test_a_rank_gives_again),
      cmocka_unit_test(test_at_any_time),
      cmocka_unit_test(test_a_rank_left),
      cmocka_unit_test(test_a_rank_leaves_unheard),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_tensors_that_come_later),
      cmocka_unit_test(test_what_was_said_to_the_server_before),
  };
  logs_start();
  return cmocka_run_group_tests(tests, NULL, logs_check);
}

/* Rounds with a quorum on a shard: what they lack, and what a late rank does wrong, is no matter to others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/clock.h"
#include "common/net/fault_impl.h"
#include "common/session/link.h"
#include "server/shard/job.h"
#include "server/shard/round.h"
#include "server/shard/quorum.h"
#include "server/shard/shard_impl.h"
#include "server/shard/tensor.h"
#include "tests/unit/server/shard/shard_cluster.h"

#define MIB ((uint64_t)1 << 20)

/* Ranks 0 and 1 are a quorum, and rank 2 is late. */
enum { RANKS = 3, IN_TIME = 2, LATE = 2, JOB = 1 };

static struct zps_shard *open_with(struct cluster *cluster, uint64_t memory_limit_bytes, uint64_t quota_bytes,
                                   uint32_t world, uint32_t quorum) {
  struct zps_shard *const shard =
      cluster_shard_with("loop", NULL, memory_limit_bytes, (struct zps_quota){.memory_bytes = quota_bytes});
  cluster_open(cluster, shard, "loop", NULL, 1, world);
  cluster->quorum = quorum;
  return shard;
}

/* There is room for all that is pushed, and for no sum. The round ends at its first partition, and none of the others
 * is begun. */
static void end_without_room(uint64_t memory_limit_bytes, uint64_t quota_bytes, zps_err_t code, const char *text) {
  enum { WORLD = 2 };
  struct cluster cluster;
  struct zps_shard *const shard = open_with(&cluster, memory_limit_bytes, quota_bytes, WORLD, WORLD);
  struct cluster_tensor *const tensor = cluster_tensor(&cluster, 100000, 16, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.3);
  for (uint64_t step = 4; step <= 12; step += 4) {
    for (uint32_t rank = 0; rank < WORLD; rank++) cluster_push(&cluster, tensor, step, rank, PATIENCE_NEVER_MS);
    for (uint32_t rank = 0; rank < WORLD; rank++) cluster_abort(&cluster, tensor, step, rank, code, text);
  }
  assert_true(cluster_totals(shard).net.reads >= 3 * WORLD * 2); /* all was here */
  tensor->density = 0.01;
  for (uint64_t step = 13; step < 20; step++) cluster_round(&cluster, tensor, step);
  cluster_drain(shard);
  cluster_check_released(shard);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

/* ---- a late rank ---- */

struct scene {
  struct zps_shard *shard;
  struct cluster cluster;
  struct cluster_tensor *tensor;
};

/* `fault`: of the server's fabric. Its sums are large enough to be read, and small enough for many of them. */
static void scene_open(struct scene *scene, const char *fault, uint64_t memory_limit_bytes, uint64_t quota_bytes) {
  scene->shard = cluster_shard_with(fault ? "fault+loop" : "loop", fault, memory_limit_bytes,
                                    (struct zps_quota){.memory_bytes = quota_bytes});
  cluster_open(&scene->cluster, scene->shard, "loop", NULL, JOB, RANKS);
  scene->cluster.quorum = IN_TIME;
  scene->cluster.late = 1u << LATE;
  scene->tensor = cluster_tensor(&scene->cluster, 100000, 16, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.01);
}

static void scene_close(struct scene *scene) {
  cluster_close(&scene->cluster);
  zps_shard_destroy(scene->shard);
}

static void push(struct scene *scene, uint64_t step, uint32_t rank) {
  cluster_push(&scene->cluster, scene->tensor, step, rank, PATIENCE_NEVER_MS);
}

static void push_in_time(struct scene *scene, uint64_t step) {
  for (uint32_t rank = 0; rank < IN_TIME; rank++) push(scene, step, rank);
}

static void read_sums(struct scene *scene, uint64_t step, uint32_t rank) {
  cluster_check(&scene->cluster, scene->tensor, step, rank);
  cluster_done(&scene->cluster, scene->tensor, step, rank);
  rig_release(scene->cluster.ranks[rank]);
}

static void read_in_time(struct scene *scene, uint64_t step) {
  for (uint32_t rank = 0; rank < IN_TIME; rank++) read_sums(scene, step, rank);
}

static void expect_abort(struct scene *scene, uint64_t step, uint32_t rank, zps_err_t code, const char *text) {
  cluster_abort(&scene->cluster, scene->tensor, step, rank, code, text);
}

/* All frames of the rank that came before are dealt with. */
static void settle(struct scene *scene, uint32_t rank) {
  const struct rig_slice slice = {.partition = 0};
  rig_push(scene->cluster.ranks[rank], 99, 1, PATIENCE_NEVER_MS, 0, &slice, 1);
  free(rig_take_abort(scene->cluster.ranks[rank], 99, 1));
}

/* ---- a look inside ---- */

struct look {
  struct zps_command command;
  uint64_t step, deadline_ns;
  unsigned n_orphans, n_read, n_here; /* n_read: contributions of the late rank; n_here: of all, with their bytes */
  bool is_there, is_closed, expires;
};

static void run_look(struct zps_command *command, void *ctx) {
  struct look *const look = (struct look *)command;
  struct zps_shard *const shard = ctx;
  const struct zps_job *const job = zps_job_find(shard->jobs, JOB);
  struct zps_shard_round *const round = zps_shard_round_find(job->tensors, look->step);
  look->n_orphans = shard->n_orphans;
  look->is_there = round;
  if (!round) return;
  look->is_closed = round->machine->is_closed;
  look->deadline_ns = round->machine->deadline_ns;
  for (uint32_t part = 0; part < round->machine->n_parts; part++) {
    for (uint32_t rank = 0; rank < job->world; rank++) {
      const struct zps_contribution *const contribution = *zps_shard_round_slot(round, part, rank);
      look->n_read += rank == LATE && contribution && contribution->buf.data;
      look->n_here += contribution && contribution->is_here;
    }
  }
  if (look->expires) round->machine->deadline_ns = shard->next_deadline_ns = 0;
}

static struct look look_at(struct scene *scene, uint64_t step, bool expires) {
  struct look look = {.command = {.run = run_look}, .step = step, .expires = expires};
  assert_int_equal(zps_engine_call(scene->shard->engine, &look.command), ZPS_OK);
  return look;
}

static void await_closed(struct scene *scene, uint64_t step) {
  while (!look_at(scene, step, false).is_closed) patience_nap();
}

/* Reads that the injector stalls end. */
static void run_unstall(struct zps_command *command, void *ctx) {
  struct fault *const fault = to_fault(((struct zps_shard *)ctx)->net);
  (void)command;
  for (struct fault_op *op = fault->ops; op; op = op->next)
    if (op->peer && op->peer->stalls) op->state = OP_LANDED;
}

static void unstall(struct scene *scene) {
  struct zps_command command = {.run = run_unstall};
  assert_int_equal(zps_engine_call(scene->shard->engine, &command), ZPS_OK);
}

static const char stalls[] = "stall=3"; /* reads from rank 2 */

/* Step 1 closes while both of the late rank's pushes are read. */
static void stall_while_it_is_read(struct scene *scene, double density) {
  const double usual = scene->tensor->density;
  scene->tensor->density = density;
  push(scene, 1, LATE);
  settle(scene, LATE);
  scene->tensor->density = usual;
  assert_int_equal(look_at(scene, 1, false).n_read, 2);
  push_in_time(scene, 1);
  read_in_time(scene, 1);
  assert_true(look_at(scene, 1, false).is_there);
}

/* ---- tests ---- */

static void test_late_ranks_get_the_sum(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, NULL, 64 * MIB, 0);
  for (uint64_t step = 1; step <= 4; step++) {
    push_in_time(&scene, step);
    read_in_time(&scene, step);
  }
  for (uint64_t step = 1; step <= 4; step++) {
    push(&scene, step, LATE);
    read_sums(&scene, step, LATE);
  }
  cluster_drain(scene.shard);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).rounds, 4);
  cluster_check_released(scene.shard);
  scene_close(&scene);
}

/* Whatever comes meanwhile: a rank that has announced all is answered when no read from it is under way. */
static void answer_after(struct scene *scene, uint64_t last) {
  stall_while_it_is_read(scene, scene->tensor->density);
  for (uint64_t step = 2; step <= last; step++) {
    push_in_time(scene, step);
    read_in_time(scene, step);
  }
  assert_true(look_at(scene, 1, false).is_there);
  push(scene, 3, LATE);
  expect_abort(scene, 3, LATE, ZPS_ERR_STALE, "too late: the step has closed without rank 2 (quorum 2)");
  assert_int_equal(rig_left(scene->cluster.ranks[LATE]), 0);
  unstall(scene);
  read_sums(scene, 1, LATE);
  push(scene, last, LATE);
  read_sums(scene, last, LATE);
  scene_close(scene);
}

static void test_the_17th_sum_while_a_late_rank_is_read(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, stalls, 64 * MIB, 0);
  answer_after(&scene, ZPS_SHARD_KEPT_LATE + 3);
}

/* Sums that are retained make room, but for that one. */
static void test_short_memory_while_a_late_rank_is_read(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, stalls, 16 * MIB, 0);
  scene.tensor->density = 0.1;
  answer_after(&scene, ZPS_SHARD_KEPT_LATE);
}

/* What a late rank pushes is checked, and refused to it alone. */
static void refuse_push(const struct rig_slice *slices, unsigned n, const char *text) {
  struct scene scene;
  scene_open(&scene, NULL, 64 * MIB, 0);
  push_in_time(&scene, 1);
  await_closed(&scene, 1);
  rig_push(scene.cluster.ranks[LATE], scene.tensor->spec.tensor, 1, PATIENCE_NEVER_MS, 1000000, slices, n);
  expect_abort(&scene, 1, LATE, ZPS_ERR_PROTOCOL, text);
  read_in_time(&scene, 1);
  cluster_drain(scene.shard); /* no rank is awaited any more */
  push(&scene, 1, LATE);
  expect_abort(&scene, 1, LATE, ZPS_ERR_STALE, "too late: the step has closed without rank 2");
  for (uint32_t rank = 0; rank < RANKS; rank++) assert_int_equal(rig_left(scene.cluster.ranks[rank]), 0);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).aborted, 0);
  push_in_time(&scene, 2);
  read_in_time(&scene, 2);
  push(&scene, 2, LATE);
  read_sums(&scene, 2, LATE);
  cluster_drain(scene.shard);
  cluster_check_released(scene.shard);
  scene_close(&scene);
}

static void test_a_late_push_that_is_wrong(void **state) {
  (void)state;
  const uint8_t byte = 1;
  const struct rig_slice good = {.partition = 1, .codec = ZPS_CODEC_COO};
  refuse_push((struct rig_slice[]){good, {.partition = 9, .codec = ZPS_CODEC_COO}}, 2,
              "rank 2: it pushed partition 9, but there are 2");
  refuse_push((struct rig_slice[]){good, good}, 2, "rank 2 pushed partition 1 twice");
  refuse_push(&(struct rig_slice){.partition = 1, .n_more = 1, .codec = ZPS_CODEC_COO}, 1,
              "rank 2: it pushed partition 1 and the next 1 here, but there are 0 of them");
  refuse_push(&(struct rig_slice){.codec = ZPS_CODEC_COO, .nnz = 7, .payload = &byte, .len_bytes = 1}, 1,
              "rank 2: partition 0: ");
}

/* What a late rank pushes is not read. So it is not counted in the job's memory either. */
static void test_a_late_push_beyond_the_quota(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, NULL, 64 * MIB, RANKS * ZPS_LINK_BYTES + 2 * MIB);
  push_in_time(&scene, 1);
  await_closed(&scene, 1);
  scene.tensor->density = 1;
  push(&scene, 1, LATE);
  scene.tensor->density = 0.01;
  for (uint32_t rank = 0; rank < RANKS; rank++) read_sums(&scene, 1, rank);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).aborted, 0);
  cluster_drain(scene.shard);
  scene_close(&scene);
}

/* A rank is stopped while its push is read, and its round is over. What it holds is no reason to keep sums: they make
 * room for later rounds. */
static void test_room_beside_a_stopped_rank(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, stalls, 8 * MIB, 0);
  stall_while_it_is_read(&scene, 0.3);
  rig_cancel(scene.cluster.ranks[LATE], scene.tensor->spec.tensor, 1, "and stops");
  settle(&scene, LATE);
  assert_int_equal(look_at(&scene, 1, false).n_orphans, 1);
  scene.tensor->density = 0.1;
  for (uint64_t step = 2; step < 14; step++) {
    push_in_time(&scene, step);
    read_in_time(&scene, step);
  }
  assert_int_equal(look_at(&scene, 1, false).n_orphans, 1);
  scene_close(&scene);
}

/* There is nothing else to make room. A closed round waits for no rank any more, but until its deadline at most. */
static void test_no_room_beside_a_stopped_rank(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, stalls, 6 * MIB, 0);
  stall_while_it_is_read(&scene, 0.3);
  rig_cancel(scene.cluster.ranks[LATE], scene.tensor->spec.tensor, 1, "and stops");
  settle(&scene, LATE);
  scene.tensor->density = 0.3;
  push_in_time(&scene, 2);
  await_closed(&scene, 2);
  const uint64_t most_ns = zps_clock_ns() + PATIENCE_NEVER_MS * ZPS_NS_PER_MS;
  const struct look look = look_at(&scene, 2, true);
  assert_true(look.is_there && look.n_orphans == 1);
  assert_true(look.deadline_ns <= most_ns && look.deadline_ns > most_ns - PATIENCE_WALL_NS);
  for (uint32_t rank = 0; rank < IN_TIME; rank++)
    expect_abort(&scene, 2, rank, ZPS_ERR_TIMEOUT, "the deadline passed with 4 of 6 contributions read and 0 of 2");
  unstall(&scene); /* makes room */
  push_in_time(&scene, 3);
  read_in_time(&scene, 3);
  scene_close(&scene);
}

/* A stopped rank of one job is no reason for another job to wait: nothing of that one's own is about to come back. */
static void test_a_quota_beside_a_stopped_rank_of_another_job(void **state) {
  (void)state;
  enum { OTHER = 2 };
  struct scene scene;
  struct cluster other;
  scene_open(&scene, stalls, 64 * MIB, RANKS * ZPS_LINK_BYTES + 7 * MIB);
  stall_while_it_is_read(&scene, 0.3);
  rig_cancel(scene.cluster.ranks[LATE], scene.tensor->spec.tensor, 1, "and stops");
  settle(&scene, LATE);
  assert_int_equal(look_at(&scene, 1, false).n_orphans, 1);
  cluster_open(&other, scene.shard, "loop", NULL, OTHER, RANKS);
  other.quorum = RANKS; /* all is read before anything is summed */
  const struct cluster_tensor *const tensor = cluster_tensor(&other, 100000, 16, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.3);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_push(&other, tensor, 1, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_abort(&other, tensor, 1, rank, ZPS_ERR_QUOTA, "no room for ");
  assert_int_equal(look_at(&scene, 1, false).n_orphans, 1);
  cluster_close(&other);
  unstall(&scene);
  scene_close(&scene);
}

/* A read from a late rank is under way, and what it holds is missed by the sum. That waits for the end of the read. */
static void make_room_by_a_read(uint64_t memory_limit_bytes, uint64_t quota_bytes) {
  struct scene scene;
  scene_open(&scene, stalls, memory_limit_bytes, quota_bytes);
  scene.tensor->density = 0.3;
  push(&scene, 1, LATE);
  settle(&scene, LATE);
  assert_int_equal(look_at(&scene, 1, false).n_read, 2);
  push_in_time(&scene, 1);
  await_closed(&scene, 1);
  while (look_at(&scene, 1, false).n_orphans > 1) patience_nap(); /* one of both was not begun */
  assert_int_equal(look_at(&scene, 1, false).n_orphans, 1);
  unstall(&scene);
  for (uint32_t rank = 0; rank < RANKS; rank++) read_sums(&scene, 1, rank);
  assert_int_equal(look_at(&scene, 1, false).n_orphans, 0);
  assert_int_equal(cluster_stats(&scene.cluster, scene.tensor).aborted, 0);
  scene_close(&scene);
}

static void test_sums_wait_for_the_read_of_a_late_rank(void **state) {
  (void)state;
  make_room_by_a_read(6 * MIB, 0);
  make_room_by_a_read(64 * MIB, RANKS * ZPS_LINK_BYTES + 7 * MIB);
}

/* ---- decisions ---- */

static void say_closed(struct scene *scene, uint32_t tensor, uint64_t step, uint32_t rank, uint32_t late) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_CLOSED, .u.closed = {.tensor = tensor, .step = step}};
  zps_frame_closed_add(&frame.u.closed, late);
  rig_send(scene->cluster.ranks[rank], &frame);
}

/* The decision is for the owner of the tensor. To another server it says nothing, and begins no round there. */
static void test_decisions_for_another_server(void **state) {
  (void)state;
  struct scene scene;
  struct zps_error error;
  uint32_t owners[] = {1, 1};
  scene_open(&scene, NULL, 64 * MIB, 0);
  struct zps_tensor_spec elsewhere = scene.tensor->spec;
  elsewhere.tensor = 40;
  elsewhere.owners = owners;
  snprintf(elsewhere.name, sizeof elsewhere.name, "elsewhere");
  assert_int_equal(zps_shard_tensor_open(scene.shard, &elsewhere, &error), ZPS_OK);
  for (uint64_t step = 1; step <= ZPS_SHARD_ROUNDS_MAX + 1; step++) {
    say_closed(&scene, elsewhere.tensor, step, 0, LATE);
    rig_cancel(scene.cluster.ranks[1], elsewhere.tensor, step, "it has had enough");
  }
  for (uint32_t rank = 0; rank < RANKS; rank++) settle(&scene, rank);
  assert_int_equal(cluster_totals(scene.shard).rounds_in_flight, 0);
  for (uint32_t rank = 0; rank < RANKS; rank++) assert_int_equal(rig_left(scene.cluster.ranks[rank]), 0);
  scene_close(&scene);
}

/* A decision names ranks beyond those of the job. Only its sender gets an error. */
static void test_decisions_about_strangers(void **state) {
  (void)state;
  static const uint32_t strangers[] = {RANKS, 7, 8, 4095};
  struct scene scene;
  scene_open(&scene, NULL, 64 * MIB, 0);
  for (unsigned i = 0; i < 4; i++) {
    char text[100];
    snprintf(text, sizeof text, "rank 0 says that rank %u is late, but the job has 3 ranks", strangers[i]);
    say_closed(&scene, scene.tensor->spec.tensor, 1, 0, strangers[i]);
    expect_abort(&scene, 1, 0, ZPS_ERR_PROTOCOL, text);
    assert_int_equal(cluster_totals(scene.shard).rounds_in_flight, 0);
  }
  push_in_time(&scene, 1);
  read_in_time(&scene, 1);
  scene_close(&scene);
}

/* The owner waits for the ranks of the decision, whoever else is here. */
static void test_decisions_of_an_earlier_epoch(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, NULL, 64 * MIB, 0);
  scene.cluster.late = 1u << 0;
  say_closed(&scene, scene.tensor->spec.tensor, 1, 2, 0);
  settle(&scene, 2);
  push(&scene, 1, 0);
  push(&scene, 1, 1);
  settle(&scene, 1);
  assert_false(look_at(&scene, 1, false).is_closed);
  push(&scene, 1, 2);
  for (uint32_t rank = 0; rank < RANKS; rank++) read_sums(&scene, 1, rank);
  cluster_drain(scene.shard);
  scene_close(&scene);
}

/* A rank is late by decision, and gives the step up before the round closes. Its push is no part of the sum. */
static void test_a_rank_of_a_decision_gives_up(void **state) {
  (void)state;
  enum { WORLD = 2 };
  struct scene scene;
  scene.shard = open_with(&scene.cluster, 64 * MIB, WORLD * ZPS_LINK_BYTES + 13 * MIB, WORLD, 1);
  scene.cluster.grace_ms = PATIENCE_NEVER_MS;
  scene.cluster.late = 1u << 0;
  scene.tensor = cluster_tensor(&scene.cluster, 100000, 64, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.25);
  push(&scene, 1, 0);
  while (look_at(&scene, 1, false).n_here < 2) patience_nap();
  say_closed(&scene, scene.tensor->spec.tensor, 1, 1, 0);
  settle(&scene, 1);
  rig_cancel(scene.cluster.ranks[0], scene.tensor->spec.tensor, 1, "it has had enough");
  expect_abort(&scene, 1, 0, ZPS_ERR_CANCELED, "rank 0 gave it up, and the others go on");
  push(&scene, 1, 1);
  read_sums(&scene, 1, 1);
  scene_close(&scene);
}

static void test_a_round_without_room_for_its_sums_ends(void **state) {
  (void)state;
  end_without_room(64 * MIB, 2 * ZPS_LINK_BYTES + 5 * MIB, ZPS_ERR_QUOTA, "no room for ");
  end_without_room(5 * MIB, 0, ZPS_ERR_NOMEM, "no memory for ");
}

/* Pushes of ranks that gave up are no part of the sum: there is room for the sum of the others. */
static void test_room_after_large_pushes_were_given_up(void **state) {
  (void)state;
  enum { WORLD = 4, STAYS = 3 };
  struct scene scene;
  scene.shard = open_with(&scene.cluster, 64 * MIB, WORLD * ZPS_LINK_BYTES + 13 * MIB, WORLD, 1);
  scene.cluster.grace_ms = PATIENCE_NEVER_MS;
  scene.tensor = cluster_tensor(&scene.cluster, 100000, 64, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.2);
  for (uint32_t rank = 0; rank < STAYS; rank++) {
    push(&scene, 1, rank);
    rig_cancel(scene.cluster.ranks[rank], scene.tensor->spec.tensor, 1, "it has had enough");
    settle(&scene, rank);
  }
  scene.cluster.late = (1u << STAYS) - 1;
  push(&scene, 1, STAYS);
  read_sums(&scene, 1, STAYS);
  scene_close(&scene);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_round_without_room_for_its_sums_ends),
      cmocka_unit_test(test_late_ranks_get_the_sum),
      cmocka_unit_test(test_the_17th_sum_while_a_late_rank_is_read),
      cmocka_unit_test(test_short_memory_while_a_late_rank_is_read),
      cmocka_unit_test(test_a_late_push_that_is_wrong),
      cmocka_unit_test(test_a_late_push_beyond_the_quota),
      cmocka_unit_test(test_a_quota_beside_a_stopped_rank_of_another_job),
      cmocka_unit_test(test_room_beside_a_stopped_rank),
      cmocka_unit_test(test_no_room_beside_a_stopped_rank),
      cmocka_unit_test(test_sums_wait_for_the_read_of_a_late_rank),
      cmocka_unit_test(test_decisions_for_another_server),
      cmocka_unit_test(test_a_rank_of_a_decision_gives_up),
      cmocka_unit_test(test_decisions_about_strangers),
      cmocka_unit_test(test_decisions_of_an_earlier_epoch),
      cmocka_unit_test(test_room_after_large_pushes_were_given_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What one job may take of a server: what is beyond ends with both numbers, and other jobs go on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/session/link.h"
#include "tests/support/views.h"
#include "tests/unit/server/shard/shard_cluster.h"

#define MIB ((uint64_t)1 << 20)
#define PROVIDER "loop"

static struct zps_shard *shard_of(uint64_t memory_bytes, uint64_t rounds) {
  return cluster_shard_with(PROVIDER, NULL, 64 * MIB,
                            (struct zps_quota){.memory_bytes = memory_bytes, .rounds = rounds});
}

static void test_links_that_are_too_many_are_refused(void **state) {
  (void)state;
  struct zps_shard *shard = shard_of(3 * ZPS_LINK_BYTES, 0);
  struct cluster cluster;
  struct zps_error error;
  struct zps_member_spec members[4] = {0};
  struct zps_place_image place;
  char numbers[80];
  cluster_open(&cluster, shard, PROVIDER, NULL, 1, 3); /* fills the memory */
  for (uint32_t rank = 0; rank < 4; rank++) members[rank] = (struct zps_member_spec){.rank = rank};
  const struct zps_job_spec spec = {
      .job_id = 2, .name = "large", .view = view_of(&place, 1, 1, "i"), .world = 4, .members = members};
  assert_int_equal(zps_shard_job_open(shard, &spec, &error), ZPS_ERR_QUOTA);
  snprintf(numbers, sizeof numbers, "job large: links to 4 ranks take %llu bytes",
           (unsigned long long)(4 * ZPS_LINK_BYTES));
  assert_non_null(strstr(error.text, numbers));
  snprintf(numbers, sizeof numbers, "0 of the %llu that a job may have are taken (job.max_memory)",
           (unsigned long long)(3 * ZPS_LINK_BYTES));
  assert_non_null(strstr(error.text, numbers));
  assert_int_equal(zps_shard_jobs(shard), 1);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

/* Registering alone takes memory, of the ranks' statistics: 8 bytes a rank and partition. */
static void test_tensors_that_are_too_many_are_refused(void **state) {
  (void)state;
  enum { WORLD = 2 };
  struct zps_shard *shard = shard_of(WORLD * ZPS_LINK_BYTES + MIB / 4, 0);
  struct cluster cluster;
  struct zps_error error;
  uint32_t owners[4096] = {0};
  unsigned n = 0;
  zps_err_t code = ZPS_OK;
  cluster_open(&cluster, shard, PROVIDER, NULL, 1, WORLD);
  struct zps_tensor_spec spec = {.job_id = 1,
                                 .rows = 1 << 20,
                                 .width = 1,
                                 .dtype = ZPS_DTYPE_F32,
                                 .op = ZPS_OP_SUM,
                                 .codec = ZPS_CODEC_AUTO,
                                 .value_codec = ZPS_VALUES_RAW,
                                 .n_parts = 4096,
                                 .owners = owners};
  while (code == ZPS_OK && n < 100) {
    spec.tensor = 100 + n;
    snprintf(spec.name, sizeof spec.name, "t%u", n);
    code = zps_shard_tensor_open(shard, &spec, &error);
    n += code == ZPS_OK;
  }
  assert_int_equal(code, ZPS_ERR_QUOTA);
  assert_in_range(n, 1, 3); /* each of 100 KiB or so */
  assert_non_null(strstr(error.text, "and its statistics take "));
  assert_int_equal(zps_shard_tensor_open(shard, &spec, &error), ZPS_ERR_QUOTA);
  for (unsigned turn = 0; turn < 20; turn++) { /* what is closed comes back, all of it */
    assert_int_equal(zps_shard_tensor_close(shard, 1, 100, &error), ZPS_OK);
    spec.tensor = 100;
    assert_int_equal(zps_shard_tensor_open(shard, &spec, &error), ZPS_OK);
  }
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

static void test_a_round_beyond_the_quota_ends_with_both_numbers(void **state) {
  (void)state;
  const uint64_t quota_bytes = 3 * ZPS_LINK_BYTES + 4 * MIB;
  struct zps_shard *shard = shard_of(quota_bytes, 0);
  struct cluster cluster;
  char number[40];
  snprintf(number, sizeof number, " of the %llu bytes", (unsigned long long)quota_bytes);
  cluster_open(&cluster, shard, PROVIDER, NULL, 1, 3);
  struct cluster_tensor *tensor = cluster_tensor(&cluster, 100000, 16, ZPS_DTYPE_F32, ZPS_OP_SUM, 1, 0.4);
  for (uint32_t rank = 0; rank < 3; rank++) cluster_push(&cluster, tensor, 4, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < 3; rank++) cluster_abort(&cluster, tensor, 4, rank, ZPS_ERR_QUOTA, number);
  tensor->density = 0.01; /* rounds that fit go on working, however many: all that they took has come back */
  for (uint64_t step = 5; step < 60; step++) cluster_round(&cluster, tensor, step);
  cluster_drain(shard);
  assert_true(cluster_totals(shard).slab.high_water_bytes <= 8 * MIB);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

/* That the sums will not fit is known from what the first rank announces: nothing is read for them. */
/* That the sums, of 2 MiB each, will not fit is known from what the first rank announces, though each partition by
 * itself fits: nothing is read. */
static void test_a_round_whose_sums_do_not_fit_is_refused_unread(void **state) {
  (void)state;
  const uint64_t quota_bytes = 2 * ZPS_LINK_BYTES + 5 * MIB;
  struct zps_shard *shard = shard_of(quota_bytes, 0);
  struct cluster cluster;
  char number[40];
  snprintf(number, sizeof number, " of the %llu bytes", (unsigned long long)quota_bytes);
  cluster_open(&cluster, shard, PROVIDER, NULL, 1, 2);
  struct cluster_tensor *tensor = cluster_tensor(&cluster, 400000, 10, ZPS_DTYPE_F32, ZPS_OP_SUM, 12, 0.9);
  assert_true(quota_bytes < 16 * MIB);             /* two of three partitions are here */
  for (uint64_t step = 1; step <= 21; step += 4) { /* all partitions in a frame */
    for (uint32_t rank = 0; rank < 2; rank++) cluster_push(&cluster, tensor, step, rank, PATIENCE_NEVER_MS);
    for (uint32_t rank = 0; rank < 2; rank++) cluster_abort(&cluster, tensor, step, rank, ZPS_ERR_QUOTA, number);
  }
  assert_int_equal(cluster_totals(shard).net.reads, 0);
  assert_int_equal(cluster_totals(shard).slab.high_water_bytes, 0);
  tensor->density = 0.02; /* rounds that fit are as before */
  for (uint64_t step = 22; step < 30; step++) cluster_round(&cluster, tensor, step);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

static void test_rounds_that_are_too_many_are_refused(void **state) {
  (void)state;
  struct zps_shard *shard = shard_of(0, 2);
  struct cluster cluster;
  cluster_open(&cluster, shard, PROVIDER, NULL, 1, 2);
  struct cluster_tensor *one = cluster_tensor(&cluster, 900, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.5);
  struct cluster_tensor *other = cluster_tensor(&cluster, 900, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.5);
  cluster_push(&cluster, one, 1, 0, PATIENCE_NEVER_MS);
  cluster_push(&cluster, other, 1, 0, PATIENCE_NEVER_MS);
  cluster_push(&cluster, one, 2, 0, PATIENCE_NEVER_MS);
  cluster_abort(&cluster, one, 2, 0, ZPS_ERR_QUOTA,
                "2 rounds of the job are in flight on this server, and it may have 2 (job.max_rounds)");
  cluster_push(&cluster, one, 1, 1, PATIENCE_NEVER_MS);
  cluster_push(&cluster, other, 1, 1, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < 2; rank++) {
    cluster_check(&cluster, one, 1, rank);
    cluster_done(&cluster, one, 1, rank);
    cluster_check(&cluster, other, 1, rank);
    cluster_done(&cluster, other, 1, rank);
  }
  cluster_drain(shard);
  for (uint64_t step = 3; step < 20; step++) cluster_round(&cluster, one, step);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

/* One rank of a job pushes step after step, and the other none: what it pushed waits, and takes all that the job may
 * have. Another job's rounds are served meanwhile, whose memory is asked for later. */
static void test_a_greedy_job_keeps_no_other_waiting(void **state) {
  (void)state;
  enum { GREEDY_STEPS = 40 };
  struct zps_shard *shard = shard_of(2 * ZPS_LINK_BYTES + 8 * MIB, 0);
  struct cluster greedy, modest;
  cluster_open(&greedy, shard, PROVIDER, NULL, 1, 2);
  cluster_open(&modest, shard, PROVIDER, NULL, 2, 2);
  struct cluster_tensor *large = cluster_tensor(&greedy, 100000, 8, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.5);
  struct cluster_tensor *small = cluster_tensor(&modest, 20000, 4, ZPS_DTYPE_F32, ZPS_OP_SUM, 4, 0.5);
  for (uint64_t step = 1; step <= GREEDY_STEPS; step++) cluster_push(&greedy, large, step, 0, 600000);
  for (uint64_t step = 1; step <= 30; step++) cluster_round(&modest, small, step);
  assert_true(cluster_totals(shard).slab.in_use_bytes <= 9 * MIB);
  for (uint64_t step = 1; step <= GREEDY_STEPS; step++) { /* the greedy job loses nothing, either */
    cluster_push(&greedy, large, step, 1, 600000);
    for (uint32_t rank = 0; rank < 2; rank++) {
      cluster_check(&greedy, large, step, rank);
      cluster_done(&greedy, large, step, rank);
    }
  }
  cluster_drain(shard);
  cluster_close(&modest);
  cluster_close(&greedy);
  zps_shard_destroy(shard);
}

/* Links take most of what the job may have, and a round waits for a rank: what is left is not all kept for that round.
 */
static void test_a_round_that_waits_keeps_no_later_one_waiting(void **state) {
  (void)state;
  enum { WORLD = 3 };
  struct zps_shard *shard = shard_of(WORLD * ZPS_LINK_BYTES + 2 * MIB, 0);
  struct cluster cluster;
  assert_true(WORLD * ZPS_LINK_BYTES > 2 * MIB);
  cluster_open(&cluster, shard, PROVIDER, NULL, 1, WORLD);
  struct cluster_tensor *waits = cluster_tensor(&cluster, 900, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.5);
  struct cluster_tensor *later = cluster_tensor(&cluster, 20000, 4, ZPS_DTYPE_F32, ZPS_OP_SUM, 4, 0.5);
  cluster_push(&cluster, waits, 1, 0, PATIENCE_NEVER_MS);
  for (uint64_t step = 1; step <= 3; step++) cluster_round(&cluster, later, step);
  for (uint32_t rank = 1; rank < WORLD; rank++) cluster_push(&cluster, waits, 1, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < WORLD; rank++) {
    cluster_check(&cluster, waits, 1, rank);
    cluster_done(&cluster, waits, 1, rank);
  }
  cluster_drain(shard);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

/* A barrier that one rank has entered: it may be left only when rounds that began later are over. These may take all of
 * what the job may have, and where that is too little they are told so. */
static void test_a_small_round_that_waits_leaves_all_to_later_ones(void **state) {
  (void)state;
  enum { WORLD = 2 };
  const uint64_t quota_bytes = WORLD * ZPS_LINK_BYTES + 2 * MIB;
  struct zps_shard *shard = shard_of(quota_bytes, 0);
  struct cluster cluster;
  char number[40];
  snprintf(number, sizeof number, " of the %llu bytes", (unsigned long long)quota_bytes);
  cluster_open(&cluster, shard, PROVIDER, NULL, 1, WORLD);
  struct cluster_tensor *waits = cluster_tensor(&cluster, 400, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.5);
  struct cluster_tensor *later = cluster_tensor(&cluster, 100000, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 1.0);
  struct cluster_tensor *too_large = cluster_tensor(&cluster, 600000, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 1.0);
  cluster_push(&cluster, waits, 1, 0, PATIENCE_NEVER_MS);
  for (uint64_t step = 1; step <= 9; step++) {
    cluster_round(&cluster, later, step); /* pushes of half of it, and as much again in sums */
    if (step % 3) continue;
    for (uint32_t rank = 0; rank < WORLD; rank++) cluster_push(&cluster, too_large, step, rank, PATIENCE_NEVER_MS);
    for (uint32_t rank = 0; rank < WORLD; rank++) cluster_abort(&cluster, too_large, step, rank, ZPS_ERR_QUOTA, number);
  }
  cluster_push(&cluster, waits, 1, 1, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < WORLD; rank++) {
    cluster_check(&cluster, waits, 1, rank);
    cluster_done(&cluster, waits, 1, rank);
  }
  cluster_drain(shard);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_links_that_are_too_many_are_refused),
      cmocka_unit_test(test_tensors_that_are_too_many_are_refused),
      cmocka_unit_test(test_a_round_beyond_the_quota_ends_with_both_numbers),
      cmocka_unit_test(test_a_round_whose_sums_do_not_fit_is_refused_unread),
      cmocka_unit_test(test_rounds_that_are_too_many_are_refused),
      cmocka_unit_test(test_a_greedy_job_keeps_no_other_waiting),
      cmocka_unit_test(test_a_round_that_waits_keeps_no_later_one_waiting),
      cmocka_unit_test(test_a_small_round_that_waits_leaves_all_to_later_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

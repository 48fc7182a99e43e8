/* Jobs without quotas, where memory is short: whoever has little goes on, and the greedy one loses nothing. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/unit/server/shard/shard_cluster.h"

#define MIB ((uint64_t)1 << 20)
#define PROVIDER "loop"

enum { GREEDY_STEPS = 40 };

/* One rank pushes step after step, 1.8 MB each, and the other none. */
static struct cluster_tensor *push_ahead(struct cluster *greedy) {
  struct cluster_tensor *tensor = cluster_tensor(greedy, 100000, 8, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.5);
  for (uint64_t step = 1; step <= GREEDY_STEPS; step++) cluster_push(greedy, tensor, step, 0, 60000);
  return tensor;
}

static void finish(struct cluster *greedy, const struct cluster_tensor *tensor, uint64_t step) {
  cluster_push(greedy, tensor, step, 1, 60000);
  for (uint32_t rank = 0; rank < 2; rank++) {
    cluster_check(greedy, tensor, step, rank);
    cluster_done(greedy, tensor, step, rank);
  }
}

static void until_read(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t bytes) {
  const uint64_t give_up_ns = zps_clock_ns() + 20 * ZPS_NS_PER_S;
  for (uint64_t read; (read = cluster_stats(cluster, tensor).bytes_in) < bytes; sched_yield())
    if (zps_clock_ns() > give_up_ns) fail_msg("%llu bytes were read", (unsigned long long)read);
}

static void take_share(void *ctx, const struct zps_job_share *share) {
  *(*(struct zps_job_share **)ctx)++ = *share;
}

/* The greedy job's oldest round is the oldest of all, and stands still: others go on with what is their own. */
static void test_a_job_that_stands_still_keeps_no_other_waiting(void **state) {
  (void)state;
  struct zps_shard *shard = cluster_shard(PROVIDER, NULL, 32 * MIB);
  struct cluster greedy, modest;
  cluster_open(&greedy, shard, PROVIDER, NULL, 1, 2);
  struct cluster_tensor *large = push_ahead(&greedy);
  until_read(&greedy, large, 10 * MIB); /* half of the limit, but for what is nobody's */
  cluster_open(&modest, shard, PROVIDER, NULL, 2, 2);
  struct cluster_tensor *small = cluster_tensor(&modest, 20000, 4, ZPS_DTYPE_F32, ZPS_OP_SUM, 4, 0.5);
  for (uint64_t step = 1; step <= 30; step++) cluster_round(&modest, small, step);
  for (uint64_t step = 1; step <= GREEDY_STEPS; step++) finish(&greedy, large, step);
  cluster_drain(shard);
  cluster_close(&modest);
  cluster_close(&greedy);
  zps_shard_destroy(shard);
}

/* What comes back goes to the job that has less, though the other has asked before. */
static void test_what_comes_back_goes_to_who_has_less(void **state) {
  (void)state;
  struct zps_shard *shard = cluster_shard(PROVIDER, NULL, 32 * MIB);
  struct cluster first, second;
  cluster_open(&first, shard, PROVIDER, NULL, 1, 2);
  cluster_open(&second, shard, PROVIDER, NULL, 2, 2);
  struct cluster_tensor *early = push_ahead(&first);
  until_read(&first, early,
             9 * MIB); /* 11 buffers of 1 MiB: of the oldest partition, its own, and all that is common */
  struct cluster_tensor *late = push_ahead(&second);
  until_read(&second, late, MIB); /* its own */
  const uint64_t early_bytes = cluster_stats(&first, early).bytes_in;
  struct zps_job_share shares[2], *share = shares;
  assert_int_equal(zps_shard_shares(shard, take_share, &share, NULL), ZPS_OK);
  assert_ptr_equal(share, shares + 2);
  for (unsigned i = 0; i < 2; i++) {
    assert_int_equal(shares[i].job_id, 2 - i);
    assert_int_equal(shares[i].weight, 1);
    assert_true(shares[i].pool.all > MIB); /* checksums */
  }
  assert_int_equal(shares[1].memory_bytes, 11 * MIB);
  assert_in_range(shares[0].memory_bytes, 2 * MIB, 4 * MIB);
  for (uint64_t step = 1; step <= 2; step++) finish(&first, early, step);
  until_read(&second, late, 4 * MIB);
  assert_true(cluster_stats(&first, early).bytes_in <= early_bytes + 4 * MIB); /* the other rank's pushes, no more */
  for (uint64_t step = 3; step <= GREEDY_STEPS; step++) finish(&first, early, step);
  for (uint64_t step = 1; step <= GREEDY_STEPS; step++) finish(&second, late, step);
  cluster_drain(shard);
  cluster_close(&second);
  cluster_close(&first);
  zps_shard_destroy(shard);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_job_that_stands_still_keeps_no_other_waiting),
      cmocka_unit_test(test_what_comes_back_goes_to_who_has_less),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

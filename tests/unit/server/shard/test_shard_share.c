/* What each job has of a server: its weight, work of the pool, memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/server/shard/shard_cluster.h"

#define MIB ((uint64_t)1 << 20)
#define PROVIDER "loop"

static void take_share(void *ctx, const struct zps_job_share *share) {
  *(*(struct zps_job_share **)ctx)++ = *share;
}

/* The first job has done a round and has nothing; of the second one a push waits, and is held. */
static void test_shares_are_told(void **state) {
  (void)state;
  struct zps_shard *shard = cluster_shard(PROVIDER, NULL, 64 * MIB);
  struct cluster first, second;
  cluster_open(&first, shard, PROVIDER, NULL, 1, 2);
  cluster_open(&second, shard, PROVIDER, NULL, 2, 2);
  cluster_round(&first, cluster_tensor(&first, 100000, 8, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.5), 1);
  struct cluster_tensor *const tensor = cluster_tensor(&second, 100000, 8, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.5);
  cluster_push(&second, tensor, 1, 0, PATIENCE_NEVER_MS);
  while (cluster_stats(&second, tensor).bytes_in < MIB) patience_nap();
  while (cluster_totals(shard).rounds_in_flight > 1) patience_nap();
  struct zps_job_share shares[2], *share = shares;
  assert_int_equal(zps_shard_shares(shard, take_share, &share, NULL), ZPS_OK);
  assert_ptr_equal(share, shares + 2);
  for (unsigned i = 0; i < 2; i++) {
    assert_int_equal(shares[i].job_id, 2 - i);
    assert_int_equal(shares[i].weight, 1);
  }
  assert_true(shares[1].pool.all > MIB && shares[0].memory_bytes >= MIB);
  cluster_close(&second);
  cluster_close(&first);
  zps_shard_destroy(shard);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares_are_told)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

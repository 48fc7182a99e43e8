/* Rounds with a quorum on a shard: what they lack, and what a late rank does wrong, is no matter to others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "common/session/link.h"
#include "tests/unit/server/shard/shard_cluster.h"

#define MIB ((uint64_t)1 << 20)

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

static void test_a_round_without_room_for_its_sums_ends(void **state) {
  (void)state;
  end_without_room(64 * MIB, 2 * ZPS_LINK_BYTES + 5 * MIB, ZPS_ERR_QUOTA, "no room for ");
  end_without_room(5 * MIB, 0, ZPS_ERR_NOMEM, "no memory for ");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_round_without_room_for_its_sums_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

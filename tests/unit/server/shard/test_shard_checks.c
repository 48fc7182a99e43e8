/* What a server reads of ranks is what they announced, or is read again, or fails its round; no sum is ever wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "tests/support/logs.h"
#include "tests/unit/server/shard/shard_cluster.h"

enum { MIB = 1 << 20, STEPS = 60 };

static const char not_announced[] = "what came, twice, is not what was announced";

/* Whether the fault injector changes a byte of the next read, by its own random numbers. */
static bool is_flipped(struct zps_rng *rng, double probability) {
  if (zps_rng_unit(rng) >= probability) return false;
  for (unsigned i = 0; i < 2; i++) (void)zps_rng_u64(rng);
  return true;
}

/* One rank with one partition here, so that reads come one by one. */
static void test_a_byte_that_changes_is_read_again(void **state) {
  (void)state;
  const double probability = 0.4;
  struct zps_shard *shard = cluster_shard("fault+loop", "seed=11,flip=0.4", 256 * MIB);
  struct zps_rng rng = {.state = 11};
  struct cluster cluster;
  unsigned n_again = 0, n_failed = 0;
  cluster_open(&cluster, shard, "loop", NULL, 5, 1);
  struct cluster_tensor *tensor = cluster_tensor(&cluster, 2000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 1, 0.5);
  for (uint64_t step = 0; step < STEPS; step++) {
    const bool first = is_flipped(&rng, probability), second = first && is_flipped(&rng, probability);
    cluster_push(&cluster, tensor, step, 0, PATIENCE_NEVER_MS);
    if (second) {
      cluster_abort(&cluster, tensor, step, 0, ZPS_ERR_FABRIC, not_announced);
    } else {
      cluster_check(&cluster, tensor, step, 0);
      cluster_done(&cluster, tensor, step, 0);
    }
    n_again += first && !second;
    n_failed += second;
    rig_release(cluster.ranks[0]);
  }
  assert_true(n_again > 5 && n_failed > 5);
  assert_int_equal(cluster_totals(shard).mishaps.corrupt, n_again);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

/* Memory that has something else in it by the time that it is read; a large payload is checked on the pool. */
static void memory_changes(uint64_t rows) {
  struct zps_shard *shard = cluster_shard("loop", NULL, 256 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, "loop", NULL, 5, 2);
  struct cluster_tensor *tensor = cluster_tensor(&cluster, rows, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 1, 0.5);
  cluster_round(&cluster, tensor, 0);
  assert_int_equal(cluster_totals(shard).mishaps.corrupt, 0);
  rig_overwrites(cluster.ranks[0], true);
  for (uint32_t rank = 0; rank < 2; rank++) cluster_push(&cluster, tensor, 1, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < 2; rank++) cluster_abort(&cluster, tensor, 1, rank, ZPS_ERR_FABRIC, not_announced);
  assert_int_equal(cluster_totals(shard).mishaps.corrupt, 0); /* The round said it. */
  rig_overwrites(cluster.ranks[0], false);
  cluster_round(&cluster, tensor, 2);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

static void test_memory_that_is_another_gradients(void **state) {
  (void)state;
  memory_changes(3000);
}

static void test_large_memory_that_is_another_gradients(void **state) {
  (void)state;
  memory_changes(300000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_byte_that_changes_is_read_again),
      cmocka_unit_test(test_large_memory_that_is_another_gradients),
      cmocka_unit_test(test_memory_that_is_another_gradients),
  };
  logs_start();
  logs_expect(ZPS_LOG_WARN, "bytes brought others than the announced ones");
  return cmocka_run_group_tests(tests, NULL, logs_check);
}

/* The data plane with fake workers over the in-process fabric: sums to the bit, jobs side by side, memory. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/support/thin.h"
#include "tests/unit/server/shard/shard_cluster.h"

static const struct fabric {
  const char *provider, *fault;
} fabrics[] = {{"loop", NULL}, {"fault+loop", "seed=3,again=0.2,delay=0.1:1ms"}};

enum { MIB = 1 << 20 };

static void test_sums_are_exact(void **state) {
  const struct fabric *fabric = *state;
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 256 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, fabric->provider, fabric->fault, 1, 4);
  struct cluster_tensor *tensors[] = {
      cluster_tensor(&cluster, 30000, 3, ZPS_DTYPE_F32, ZPS_OP_SUM, 7, 0.2),
      cluster_tensor(&cluster, 9000, 1, ZPS_DTYPE_F64, ZPS_OP_MEAN, 5, 0.03),
      cluster_tensor(&cluster, 5000, 17, ZPS_DTYPE_U8, ZPS_OP_SUM, 4, 1.0),
      cluster_tensor(&cluster, 6, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 16, 0.5), /* partitions without a row */
  };
  for (uint64_t step = 0; step < 6; step++)
    for (unsigned i = 0; i < 4; i++) cluster_round(&cluster, tensors[i], step * 10);
  for (unsigned i = 0; i < 4; i++) cluster_round(&cluster, tensors[i], 1);
  cluster_drain(shard);
  const struct zps_tensor_stats stats = cluster_stats(&cluster, tensors[0]);
  assert_int_equal(stats.rounds, 7);
  assert_int_equal(stats.aborted, 0);
  assert_int_equal(stats.parts_here, 5);
  assert_int_equal(stats.world, 4);
  assert_int_equal(stats.bytes_in, stats.push_rows * (3 * 4 + 4)); /* COO: values and a word a row */
  assert_true(stats.union_rows < stats.push_rows && stats.union_rows > stats.push_rows / 4);
  assert_true(stats.union_rows_max_part * 5 >= stats.union_rows);
  assert_true(stats.imbalance_push > 1.0 && stats.imbalance_push < 1.2);
  assert_true(stats.step_loads > 1.0 * 7 && stats.step_loads < 1.1 * 7);
  assert_true(stats.reduce_ns > 0 && stats.collect_ns > 0 && stats.publish_ns > 0);
  cluster_check_released(shard);
  for (uint32_t rank = 0; rank < 4; rank++) assert_int_equal(rig_left(cluster.ranks[rank]), 0);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

static void test_narrow_values(void **state) {
  const struct fabric *fabric = *state;
  static const enum zps_value_codec codecs[] = {ZPS_VALUES_BF16, ZPS_VALUES_F16, ZPS_VALUES_QSGD2, ZPS_VALUES_QSGD8};
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 256 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, fabric->provider, fabric->fault, 1, 4);
  struct cluster_tensor *tensors[4];
  for (unsigned i = 0; i < 4; i++) {
    cluster.value_codec = codecs[i];
    tensors[i] = cluster_tensor(&cluster, i % 2 ? 300 : 20000, 1 + 2 * i, i < 2 ? ZPS_DTYPE_F32 : ZPS_DTYPE_F64,
                                i % 2 ? ZPS_OP_MEAN : ZPS_OP_SUM, 6, 0.1);
  }
  for (uint64_t step = 0; step < 5; step++)
    for (unsigned i = 0; i < 4; i++) cluster_round(&cluster, tensors[i], step);
  cluster_drain(shard);
  cluster_check_released(shard);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

/* The server has a card of 100 Gbit/s: sums are not coded again. */
static void test_sums_over_a_fast_card(void **state) {
  (void)state;
  struct zps_shard *shard = cluster_shard("fault+loop", "gbit=100", 256 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, "fault+loop", "gbit=100", 1, 4);
  const struct cluster_tensor *tensor = cluster_tensor(&cluster, 100000, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.05);
  for (uint64_t step = 0; step < 3; step++) cluster_round(&cluster, tensor, step);
  assert_int_equal(cluster.expected[tensor - cluster.tensors][0].codec, ZPS_CODEC_BITMAP);
  cluster_drain(shard);
  cluster_check_released(shard);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

/* Ranks that push halves, and ranks whose own sums are floats. */
static void test_halves(void **state) {
  const struct fabric *fabric = *state;
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 256 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, fabric->provider, fabric->fault, 1, 4);
  struct cluster_tensor *tensors[] = {
      cluster_tensor(&cluster, 30000, 3, ZPS_DTYPE_BF16, ZPS_OP_SUM, 7, 0.2),
      cluster_tensor(&cluster, 9000, 1, ZPS_DTYPE_F16, ZPS_OP_MEAN, 5, 0.03),
      cluster_tensor(&cluster, 100, 5, ZPS_DTYPE_BF16, ZPS_OP_MEAN, 4, 0.3), /* joined */
      NULL,
  };
  cluster.value_codec = ZPS_VALUES_QSGD8;
  tensors[3] = cluster_tensor(&cluster, 5000, 2, ZPS_DTYPE_F16, ZPS_OP_SUM, 4, 0.1);
  for (uint64_t step = 0; step < 5; step++)
    for (unsigned i = 0; i < 4; i++) cluster_round(&cluster, tensors[i], step);
  cluster_drain(shard);
  assert_int_equal(cluster_stats(&cluster, tensors[0]).dtype, ZPS_DTYPE_BF16);
  cluster_check_released(shard);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

static void test_empty_pushes(void **state) {
  const struct fabric *fabric = *state;
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 64 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, fabric->provider, fabric->fault, 1, 3);
  struct cluster_tensor *tensor = cluster_tensor(&cluster, 100000, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 4, 0.0);
  cluster_round(&cluster, tensor, 5);
  tensor->density = 0.0001; /* some are empty, some hold a row */
  for (uint64_t step = 6; step < 12; step++) cluster_round(&cluster, tensor, step);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

static void test_one_rank(void **state) {
  const struct fabric *fabric = *state;
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 64 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, fabric->provider, fabric->fault, 1, 1);
  struct cluster_tensor *tensor = cluster_tensor(&cluster, 3000, 4, ZPS_DTYPE_F32, ZPS_OP_MEAN, 2, 0.5);
  for (uint64_t step = 0; step < 5; step++) cluster_round(&cluster, tensor, step);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

/* Of some tensors only some ranks push, in the same job as others. */
static void test_some_ranks_have_no_part(void **state) {
  const struct fabric *fabric = *state;
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 64 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, fabric->provider, fabric->fault, 1, 5);
  const struct cluster_tensor *all = cluster_tensor(&cluster, 3000, 4, ZPS_DTYPE_F32, ZPS_OP_SUM, 3, 0.5);
  cluster.idle = 1u << 1 | 1u << 2 | 1u << 4;
  const struct cluster_tensor *some = cluster_tensor(&cluster, 20000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 4, 0.3);
  cluster.idle = 0xfu;
  const struct cluster_tensor *last = cluster_tensor(&cluster, 100, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.3);
  for (uint64_t step = 0; step < 5; step++) {
    cluster_round(&cluster, some, step);
    cluster_round(&cluster, all, step);
    cluster_round(&cluster, last, step);
  }
  cluster_push(&cluster, some, 9, 2, PATIENCE_NEVER_MS);
  cluster_abort(&cluster, some, 9, 2, ZPS_ERR_PROTOCOL, "this rank has no part in it");
  rig_cancel(cluster.ranks[4], some->spec.tensor, 9, "not its business");
  cluster_round(&cluster, some, 9); /* the round was not spoilt */
  cluster_drain(shard);
  const struct zps_tensor_stats stats = cluster_stats(&cluster, some);
  assert_int_equal(stats.rounds, 6);
  assert_int_equal(stats.aborted, 0);
  /* each frame of rank 2 was answered */
  for (uint32_t rank = 0; rank < 5; rank++)
    if (rank != 2) assert_int_equal(rig_left(cluster.ranks[rank]), 0);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

static void test_jobs_and_rounds_side_by_side(void **state) {
  const struct fabric *fabric = *state;
  enum { JOBS = 3, STEPS = 6 };
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 256 * MIB);
  struct cluster clusters[JOBS];
  for (unsigned j = 0; j < JOBS; j++) {
    cluster_open(&clusters[j], shard, fabric->provider, fabric->fault, 1000 + j, 2 + j);
    cluster_tensor(&clusters[j], 8000 + j, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.3);
    cluster_tensor(&clusters[j], 500, 8, ZPS_DTYPE_F64, ZPS_OP_SUM, 3, 0.05);
  }
  assert_int_equal(zps_shard_jobs(shard), JOBS);
  assert_int_equal(cluster_totals(shard).tensors, 2 * JOBS);
  /* Every round of every job is in flight before any result is asked for; the ranks come last to first. */
  for (uint32_t rank = CLUSTER_RANKS; rank-- > 0;)
    for (unsigned j = 0; j < JOBS; j++)
      for (uint64_t step = 0; step < STEPS && rank < clusters[j].world; step++)
        for (unsigned t = 0; t < 2; t++)
          cluster_push(&clusters[j], &clusters[j].tensors[t], step, rank, PATIENCE_NEVER_MS);
  for (unsigned j = 0; j < JOBS; j++)
    for (uint32_t rank = 0; rank < clusters[j].world; rank++)
      for (uint64_t step = 0; step < STEPS; step++)
        for (unsigned t = 0; t < 2; t++) {
          cluster_check(&clusters[j], &clusters[j].tensors[t], step, rank);
          cluster_done(&clusters[j], &clusters[j].tensors[t], step, rank);
        }
  cluster_drain(shard);
  for (unsigned j = 0; j < JOBS; j++) {
    assert_true(cluster_totals(shard).slab.cached_bytes > 0);
    cluster_close(&clusters[j]);
  }
  assert_int_equal(zps_shard_jobs(shard), 0);
  /* Their registrations go with them, some in each turn of the thread; what a job keeps it keeps for half a minute. */
  for (unsigned turns = 0; turns < 2000 && cluster_totals(shard).slab.cached_bytes > 0;) turns++;
  assert_int_equal(cluster_totals(shard).slab.cached_bytes, 0);
  zps_shard_destroy(shard);
}

/* Eight rounds, each of which needs about half of the limit, pushed all at once and youngest first. */
static void test_little_memory_is_enough_for_one_round_after_the_other(void **state) {
  const struct fabric *fabric = *state;
  enum { STEPS = 8 };
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 8 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, fabric->provider, fabric->fault, 1, 3);
  struct cluster_tensor *tensor = cluster_tensor(&cluster, 100000, 4, ZPS_DTYPE_F32, ZPS_OP_SUM, 4, 0.4);
  for (uint32_t rank = 0; rank < 3; rank++)
    for (uint64_t step = STEPS; step-- > 0;) cluster_push(&cluster, tensor, step, rank, PATIENCE_NEVER_MS);
  for (uint64_t step = STEPS; step-- > 0;)
    for (uint32_t rank = 0; rank < 3; rank++) {
      cluster_check(&cluster, tensor, step, rank);
      cluster_done(&cluster, tensor, step, rank);
    }
  cluster_drain(shard);
  const struct zps_shard_totals totals = cluster_totals(shard);
  assert_true(totals.slab.high_water_bytes <= 8 * MIB);
  assert_int_equal(totals.slab.in_use_bytes, 0);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

/* All but one rank push all of a large tensor: not all of it is read before it can be summed. */
static void test_little_is_read_ahead_of_the_sums(void **state) {
  const struct fabric *fabric = *state;
  enum { RANKS = 6, PUSHED_MIB = 12 };
  if (fabric->fault && THIN_TO_ONE_IN > 1) return; /* these threads would take minutes */
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 1024 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, fabric->provider, fabric->fault, 1, RANKS);
  struct cluster_tensor *large = cluster_tensor(&cluster, 4608, 1024, ZPS_DTYPE_F32, ZPS_OP_SUM, 16, 1.0);
  struct cluster_tensor *small = cluster_tensor(&cluster, 20000, 4, ZPS_DTYPE_F32, ZPS_OP_SUM, 4, 0.5);
  for (uint32_t rank = 0; rank < RANKS - 1; rank++) cluster_push(&cluster, large, 1, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) cluster_push(&cluster, small, 1, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) { /* a younger round is not held up by a round that waits */
    cluster_check(&cluster, small, 1, rank);
    cluster_done(&cluster, small, 1, rank);
  }
  cluster_push(&cluster, large, 1, RANKS - 1, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    cluster_check(&cluster, large, 1, rank);
    cluster_done(&cluster, large, 1, rank);
  }
  cluster_drain(shard);
  assert_in_range(cluster_totals(shard).slab.high_water_bytes, PUSHED_MIB * MIB, (2 * PUSHED_MIB + 20) * MIB);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

static void test_too_little_memory_says_how_much(void **state) {
  const struct fabric *fabric = *state;
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 4 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, fabric->provider, fabric->fault, 1, 3);
  struct cluster_tensor *tensor = cluster_tensor(&cluster, 100000, 16, ZPS_DTYPE_F32, ZPS_OP_SUM, 1, 0.4);
  for (uint32_t rank = 0; rank < 3; rank++) cluster_push(&cluster, tensor, 4, rank, PATIENCE_NEVER_MS);
  for (uint32_t rank = 0; rank < 3; rank++)
    cluster_abort(&cluster, tensor, 4, rank, ZPS_ERR_NOMEM, "server.memory_limit is 4194304; set it to at least ");
  tensor->density = 0.01; /* rounds that fit go on working */
  for (uint64_t step = 5; step < 8; step++) cluster_round(&cluster, tensor, step);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

static size_t heap_bytes(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 0;
#else
  return mallinfo2().uordblks;
#endif
}

static void test_memory_is_flat(void **state) {
  const struct fabric *fabric = *state;
  enum { FLIGHT = 4, WARM = 75 / THIN_TO_ONE_IN * FLIGHT, ROUNDS = 500 / THIN_TO_ONE_IN * FLIGHT };
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 64 * MIB);
  struct cluster cluster;
  size_t warm_heap = 0;
  uint64_t warm_slab = 0;
  cluster_open(&cluster, shard, fabric->provider, fabric->fault, 1, 2);
  struct cluster_tensor *tensor = cluster_tensor(&cluster, 900, 1, ZPS_DTYPE_F32, ZPS_OP_SUM, 2, 0.5);
  for (uint64_t step = 0; step < ROUNDS; step += FLIGHT) {
    for (uint32_t rank = 0; rank < 2; rank++)
      for (unsigned i = 0; i < FLIGHT; i++) cluster_push(&cluster, tensor, step + i, rank, PATIENCE_NEVER_MS);
    for (unsigned i = 0; i < FLIGHT; i++)
      for (uint32_t rank = 0; rank < 2; rank++) {
        cluster_check(&cluster, tensor, step + i, rank);
        cluster_done(&cluster, tensor, step + i, rank);
      }
    rig_release(cluster.ranks[0]);
    rig_release(cluster.ranks[1]);
    if (step != WARM) continue;
    cluster_drain(shard);
    warm_heap = heap_bytes();
    warm_slab = cluster_totals(shard).slab.high_water_bytes;
  }
  cluster_drain(shard);
  assert_true(warm_slab > 0 && cluster_totals(shard).slab.high_water_bytes <= warm_slab + MIB);
  /* Under 320 bytes a round; a thread of the pool that sums for the first time takes half of that for itself. */
  assert_true(heap_bytes() < warm_heap + (512 << 10) || heap_bytes() == 0);
  assert_int_equal(cluster_stats(&cluster, tensor).rounds, ROUNDS);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

struct flights {
  unsigned n;
  struct zps_round_flight first;
};

static void note_flight(void *ctx, const struct zps_round_flight *flight) {
  struct flights *const flights = ctx;
  if (flights->n++ == 0) flights->first = *flight;
}

static struct flights flights_of(struct zps_shard *shard, unsigned max) {
  struct flights flights = {.n = 0};
  assert_int_equal(zps_shard_rounds(shard, max, note_flight, &flights, NULL), ZPS_OK);
  return flights;
}

/* An operator sees rounds in flight, the oldest first, and the missing ranks of each. */
static void test_rounds_in_flight(void **state) {
  const struct fabric *fabric = *state;
  struct zps_shard *shard = cluster_shard(fabric->provider, fabric->fault, 64 * MIB);
  struct cluster cluster;
  cluster_open(&cluster, shard, fabric->provider, fabric->fault, 7, 4);
  const struct cluster_tensor *tensor = cluster_tensor(&cluster, 3000, 4, ZPS_DTYPE_F32, ZPS_OP_SUM, 3, 0.5);
  assert_int_equal(flights_of(shard, 9).n, 0);
  for (uint32_t rank = 0; rank < 3; rank++) cluster_push(&cluster, tensor, 1, rank, 60000);
  cluster_push(&cluster, tensor, 2, 3, 60000);
  struct flights flights;
  do flights = flights_of(shard, 9);
  while (flights.n < 2 || flights.first.n_ranks > 1); /* frames arrive one by one */
  assert_int_equal(flights.n, 2);
  assert_int_equal(flights_of(shard, 1).n, 1);
  assert_int_equal(flights.first.job_id, 7);
  assert_int_equal(flights.first.step, 1);
  assert_int_equal(flights.first.world, 4);
  assert_int_equal(flights.first.wait, ZPS_FLIGHT_PUSH);
  assert_int_equal(flights.first.ranks[0], 3);
  assert_true(flights.first.left_ns > 0 && flights.first.left_ns <= 60 * ZPS_NS_PER_S);
  cluster_push(&cluster, tensor, 1, 3, 60000);
  for (uint32_t rank = 0; rank < 4; rank++) cluster_check(&cluster, tensor, 1, rank);
  for (uint32_t rank = 0; rank < 4; rank++)
    if (rank != 2) cluster_done(&cluster, tensor, 1, rank);
  do flights = flights_of(shard, 9);
  while (flights.first.wait != ZPS_FLIGHT_PULL || flights.first.n_ranks > 1);
  assert_int_equal(flights.first.step, 1);
  assert_int_equal(flights.first.ranks[0], 2);
  cluster_done(&cluster, tensor, 1, 2);
  while (flights_of(shard, 9).n > 1) {
  }
  assert_int_equal(flights_of(shard, 9).first.n_ranks, 3);
  cluster_close(&cluster);
  zps_shard_destroy(shard);
}

#define ON_LOOP(test) \
  { #test, test, NULL, NULL, (void *)&fabrics[0] }
#define ON_BOTH(test)                                           \
  ON_LOOP(test), {                                              \
#test " with faults", test, NULL, NULL, (void *)&fabrics[1] \
  }

int main(void) {
  mallopt(M_ARENA_MAX, 1); /* the one that is counted */
  const struct CMUnitTest tests[] = {
      ON_BOTH(test_sums_are_exact),
      cmocka_unit_test(test_sums_over_a_fast_card),
      ON_BOTH(test_narrow_values),
      ON_BOTH(test_halves),
      ON_BOTH(test_empty_pushes),
      ON_BOTH(test_some_ranks_have_no_part),
      ON_BOTH(test_one_rank),
      ON_BOTH(test_jobs_and_rounds_side_by_side),
      ON_BOTH(test_little_memory_is_enough_for_one_round_after_the_other),
      ON_BOTH(test_little_is_read_ahead_of_the_sums),
      ON_BOTH(test_too_little_memory_says_how_much),
      ON_LOOP(test_rounds_in_flight),
      ON_LOOP(test_memory_is_flat),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

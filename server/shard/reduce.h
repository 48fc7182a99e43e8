/* Sums of partitions: large ones on the pool, small ones on the engine thread. */
#ifndef ZPS_SERVER_SHARD_REDUCE_H
#define ZPS_SERVER_SHARD_REDUCE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct zps_reduce_task;
struct zps_contribution;
struct zps_shard;
struct zps_shard_round;
struct zps_tensor;

/* The round's estimate of its large sums: how much a push adds to it; with what was pushed; and without that again. */
uint64_t zps_reduce_more_bytes(const struct zps_shard_round *round, uint32_t part, uint32_t nnz, uint64_t len_bytes);
void zps_reduce_expect(struct zps_shard_round *round, const struct zps_contribution *pushed);
void zps_reduce_expect_no_more(struct zps_shard_round *round, const struct zps_contribution *pushed);
void zps_reduce_begin(struct zps_shard_round *round, uint32_t part);
/* By the most that the sum can take, once it has begun. */
bool zps_reduce_is_small(const struct zps_shard_round *round, uint32_t part);
/* Makes the sums that are too small for the pool. */
void zps_reduce_run_small(struct zps_shard *shard);
/* The round does not wait for the sum any more. */
void zps_reduce_forget(struct zps_reduce_task *task);
void zps_reduce_tasks_free(struct zps_tensor *tensor);
zps_err_t zps_reduce_init(struct zps_shard *shard) ZPS_MUSTCHECK;
void zps_reduce_fini(struct zps_shard *shard);

#endif

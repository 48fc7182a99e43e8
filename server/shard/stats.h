/* Sums over a tensor's rounds. */
#ifndef ZPS_SERVER_SHARD_STATS_H
#define ZPS_SERVER_SHARD_STATS_H

#include "server/shard/shard.h"

struct zps_shard_round;
struct zps_tensor;

/* The counters behind zps_tensor_stats. */
struct zps_tensor_sums {
  uint64_t since_ns; /* when the tensor was opened here */
  uint64_t rounds, aborted, bytes_in, bytes_out, push_rows, union_rows, collect_ns, reduce_ns, publish_ns;
  double step_loads;            /* of rounds: how many times an even share the server's heaviest push had here */
  uint64_t *rows;               /* [part * world + rank] */
  uint64_t *part_union;         /* by part */
  uint64_t *total_nnz, *lag_ns; /* by rank */
  uint64_t *late;               /* by rank: rounds that closed without it */
};

/* Makes the counts of ranks and of all. */
zps_err_t zps_sums_init(struct zps_tensor *tensor) ZPS_MUSTCHECK;
/* Makes the counts of partitions, for tensor->placing. */
zps_err_t zps_sums_place(struct zps_tensor *tensor) ZPS_MUSTCHECK;
/* Takes the counts of the `n_parts` partitions of before into those of the placing. */
void zps_sums_move(struct zps_tensor *tensor, const uint32_t *partitions, uint32_t n_parts);
void zps_sums_fini(struct zps_tensor *tensor);
/* The round's results are all published. */
void zps_sums_add(struct zps_tensor *tensor, const struct zps_shard_round *round);
void zps_sums_visit(const struct zps_tensor *tensor, void (*visit)(void *ctx, const struct zps_tensor_stats *stats),
                    void *ctx);

#endif

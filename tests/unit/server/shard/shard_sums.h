/* What fake workers push, and the sums that servers must make of it: both follow from (tensor, step, rank). */
#ifndef ZPS_TESTS_SERVER_SHARD_SHARD_SUMS_H
#define ZPS_TESTS_SERVER_SHARD_SHARD_SUMS_H

#include "tests/unit/server/shard/shard_cluster.h"

struct shard_contribution {
  uint32_t m, nnz;
  enum zps_dtype dtype;
  enum zps_value_codec value_codec;
  uint32_t *ranks;
  uint8_t *values;  /* in the server's form */
  uint8_t *payload; /* coded values, then COO */
  uint64_t len_bytes;
};

/* What the rank pushes of the partition; freed by shard_contribution_free(). */
struct shard_contribution shard_contribution(const struct cluster_tensor *tensor, uint64_t step, uint32_t rank,
                                             uint32_t p);
void shard_contribution_free(struct shard_contribution *contribution);
bool shard_is_wide(const struct cluster_tensor *tensor, uint32_t rank);
bool shard_has_part(const struct cluster_tensor *tensor, uint32_t rank);
void shard_expected(const struct cluster *cluster, const struct cluster_tensor *tensor, uint32_t p,
                    struct cluster_expected *expected);

#endif

#include "common/codec/partition.h"

zps_err_t zps_partition_init(struct zps_partition *part, uint64_t rows, uint32_t n_parts, uint32_t block_bits,
                             uint64_t seed, struct zps_error *error) {
  if (rows == 0 || rows > ZPS_PARTITION_ROWS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "%llu rows cannot be partitioned: 1 to 2^40 can", (unsigned long long)rows);
  if (n_parts == 0 || n_parts > ZPS_PARTITION_PARTS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "%u partitions: must be 1 to %u", n_parts, ZPS_PARTITION_PARTS_MAX);
  if (block_bits > ZPS_PARTITION_BLOCK_BITS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "blocks of 2^%u rows: must be 2^0 to 2^%u", block_bits,
                    ZPS_PARTITION_BLOCK_BITS_MAX);
  const uint64_t n_blocks = ((rows - 1) >> block_bits) + 1, n_groups = (n_blocks - 1) / n_parts + 1;
  if (n_groups << block_bits > UINT32_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "%llu rows in %u partitions: a partition must have fewer than 2^32 rows",
                    (unsigned long long)rows, n_parts);
  *part = (struct zps_partition){.rows = rows,
                                 .seed = seed,
                                 .n_parts = n_parts,
                                 .block_bits = block_bits,
                                 .n_blocks = n_blocks,
                                 .n_groups = n_groups,
                                 .inverse = UINT64_MAX / n_parts};
  return ZPS_OK;
}

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
  *part = (struct zps_partition){.rows = rows, .seed = seed, .n_parts = n_parts, .block_bits = block_bits,
                                 .n_blocks = n_blocks, .n_groups = n_groups};
  return ZPS_OK;
}

/* The block that group `group` deals to partition `p`; may lie beyond the last block in the last group. */
static uint64_t block_of(const struct zps_partition *part, uint64_t group, uint32_t p) {
  const uint32_t rotation = zps_partition_rotation(part, group);
  const uint32_t position = p >= rotation ? p - rotation : p + part->n_parts - rotation;
  return group * part->n_parts + position;
}

uint32_t zps_partition_size(const struct zps_partition *part, uint32_t p) {
  const uint64_t full = (part->n_groups - 1) << part->block_bits;
  const uint64_t block = block_of(part, part->n_groups - 1, p);
  if (block >= part->n_blocks) return (uint32_t)full;
  const uint64_t first = block << part->block_bits, block_rows = 1ull << part->block_bits;
  return (uint32_t)(full + (part->rows - first < block_rows ? part->rows - first : block_rows));
}

uint64_t zps_partition_row(const struct zps_partition *part, uint32_t p, uint32_t local) {
  const uint64_t mask = (1ull << part->block_bits) - 1;
  return (block_of(part, local >> part->block_bits, p) << part->block_bits) | (local & mask);
}

/*
 * Which partition a row belongs to, and where inside it: Zen's h0, stratified.
 *
 * Rows are cut into blocks of 2^block_bits, blocks into groups of n_parts consecutive ones. Group g is dealt out, one
 * block to each partition, starting at a rotation drawn by MurmurHash3's finaliser from (g, seed):
 *
 *     q = row >> block_bits;  g = q / n_parts;  partition = (q % n_parts + rot(g)) % n_parts
 *     local rank = (g << block_bits) + (row & mask)
 *
 * Every row's partition is uniform over the seeds, rows of different groups fall independently, and rows of one group
 * never collide: so Zen's theorem 2 holds with room to spare (the codec README has the measurements). And because each
 * partition gets exactly one block of each group, local ranks ascend with rows and cost no table, in either direction.
 */
#ifndef ZPS_CODEC_PARTITION_H
#define ZPS_CODEC_PARTITION_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/base/hash.h"

#define ZPS_PARTITION_ROWS_MAX (1ull << 40)
#define ZPS_PARTITION_PARTS_MAX 65536u
#define ZPS_PARTITION_BLOCK_BITS_MAX 31u /* local ranks are 32 bits */

struct zps_partition {
  uint64_t rows;
  uint64_t seed;
  uint32_t n_parts;
  uint32_t block_bits;
  uint64_t n_blocks; /* ceil(rows / 2^block_bits) */
  uint64_t n_groups; /* ceil(n_blocks / n_parts) */
  uint64_t inverse;  /* floor((2^64 - 1) / n_parts): blocks are divided by n_parts with a multiplication */
};

/* Refuses what cannot work: rows 0 or over the limit, n_parts 0 or over the limit, a partition of 2^32 or more rows. */
zps_err_t zps_partition_init(struct zps_partition *part, uint64_t rows, uint32_t n_parts, uint32_t block_bits,
                             uint64_t seed, struct zps_error *error) ZPS_MUSTCHECK;
ZPS_INLINE uint32_t zps_partition_rotation(const struct zps_partition *part, uint64_t group) {
  return zps_hash_reduce(zps_hash_mix64(group ^ part->seed), part->n_parts);
}

/* The block that group `group` deals to partition `p`; may lie beyond the last block in the last group. */
ZPS_INLINE uint64_t zps_partition_block(const struct zps_partition *part, uint64_t group, uint32_t p) {
  const uint32_t rotation = zps_partition_rotation(part, group);
  const uint32_t position = p >= rotation ? p - rotation : p + part->n_parts - rotation;
  return group * part->n_parts + position;
}

/* Number of rows in partition `p` (m); may be 0 when there are fewer blocks than partitions. */
ZPS_INLINE uint32_t zps_partition_size(const struct zps_partition *part, uint32_t p) {
  const uint64_t full = (part->n_groups - 1) << part->block_bits;
  const uint64_t block = zps_partition_block(part, part->n_groups - 1, p);
  if (block >= part->n_blocks) return (uint32_t)full;
  const uint64_t first = block << part->block_bits, block_rows = 1ull << part->block_bits;
  return (uint32_t)(full + (part->rows - first < block_rows ? part->rows - first : block_rows));
}

/* The row at local rank `local` (< size) of partition `p`. */
ZPS_INLINE uint64_t zps_partition_row(const struct zps_partition *part, uint32_t p, uint32_t local) {
  const uint64_t mask = (1ull << part->block_bits) - 1;
  return (zps_partition_block(part, local >> part->block_bits, p) << part->block_bits) | (local & mask);
}

/* Partition and local rank of `row` (< rows). */
ZPS_INLINE uint32_t zps_partition_of(const struct zps_partition *part, uint64_t row, uint32_t *local_p) {
  const uint64_t block = row >> part->block_bits;
  /* block / n_parts, exactly: (block + 1) * inverse falls short of (block + 1) * 2^64 / n_parts by less than 2^64 /
   * n_parts as long as block + 1 <= 2^40 and n_parts <= 2^16, and by more than nothing. */
  const uint64_t group = (uint64_t)(((unsigned __int128)(block + 1) * part->inverse) >> 64);
  uint32_t p = (uint32_t)(block - group * part->n_parts) + zps_partition_rotation(part, group);
  if (p >= part->n_parts) p -= part->n_parts;
  *local_p = (uint32_t)((group << part->block_bits) | (row & ((1ull << part->block_bits) - 1)));
  return p;
}

#endif

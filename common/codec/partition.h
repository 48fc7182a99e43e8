/*
 * The partition that a row belongs to, and its index there: Zen's h0, stratified; or h0 itself, by a table
 * (partition_murmur.h).
 *
 * Rows are cut into blocks of 2^block_bits, blocks into groups of n_parts consecutive ones. Group g is dealt out, one
 * block to each partition, starting at a rotation drawn by MurmurHash3's finaliser from (g, seed):
 *
 *     q = row >> block_bits;  g = q / n_parts;  partition = (q % n_parts + rot(g)) % n_parts
 *     local index = (g << block_bits) + (row & mask)
 *
 * Zen hashes every index on its own; here each group is dealt out like cards, from a hashed start. A row's partition is
 * still uniform over the seeds and rows of different groups fall independently, but rows of one group never meet: a
 * partition's load is a sum of independent draws, one a group, from which Zen's theorem 2 (imbalance is 1 + O(sqrt(P
 * log P / rows))) follows as it does in the paper. test_partition checks 1 + 2 sqrt(P ln P / rows) on eight random
 * sets, of tensors of one stripe; tests/bench/results/balance.md has measurements. And because each partition gets
 * exactly one block of each group, local indices ascend with rows and cost no table, in either direction.
 *
 * Large tensors are cut into *stripes* first, 2^stripe_bits of them (2 to 16), so that some partitions are complete
 * when a part of the rows has been looked at: chunks of 2^chunk_bits consecutive rows (65536) go to the stripes in
 * turns, so that each gets its share of rows that lie dense in one place, as at the head of tensors sorted by
 * frequency. The rows of one stripe, counted without the others', are dealt to the stripe's own partitions, as above.
 * Partitions of one stripe have consecutive numbers. The working set of one stripe (its rows that were found, the
 * places they are dealt to, its part of the result) fits the cache, too. Between stripes nothing is random: rows that
 * lie in the chunks of one stripe are all in its partitions.
 *
 * Both sides compute the number of stripes from rows, n_parts and block_bits. Where it is one, as in small tensors and
 * in those of blocks or ranges, that one has all rows and partitions.
 */
#ifndef ZPS_CODEC_PARTITION_H
#define ZPS_CODEC_PARTITION_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/codec/partition_table.h"

#define ZPS_PARTITION_ROWS_MAX (1ull << 40)
#define ZPS_PARTITION_PARTS_MAX 65536u
#define ZPS_PARTITION_BLOCK_BITS_MAX 31u /* local indices are 32 bits */
#define ZPS_PARTITION_STRIPES_MAX 16u
#define ZPS_PARTITION_CHUNK_BITS 16u /* of several stripes: memory is read ahead beyond a chunk's end, for nothing */
#define ZPS_PARTITION_STRIPE_ROWS_MIN 20u   /* log2: with fewer, stripes are done before anybody has made use of them */
#define ZPS_PARTITION_STRIPE_PARTS_MIN 8u   /* so that a stripe's partitions are spread over servers */
#define ZPS_PARTITION_STRIPE_SEED_SHIFT 40u /* groups have fewer bits */

struct zps_partition {
  uint64_t rows;
  uint64_t seed;
  uint32_t n_parts;
  uint32_t block_bits;
  uint32_t stripe_bits;             /* 2^stripe_bits stripes */
  uint32_t chunk_bits;              /* of one stripe: so many that no row number has more */
  uint32_t stripe_parts;            /* n_parts / stripes */
  uint64_t n_groups;                /* of the longest stripe: ceil(blocks / stripe_parts) */
  uint64_t inverse;                 /* floor((2^64 - 1) / stripe_parts): blocks are divided with a multiplication */
  uint64_t stripe_inverse;          /* floor(2^32 / stripe_parts) + 1: partitions are, too */
  struct zps_partition_table table; /* of h0 itself (partition_murmur.h); none: stratified, as above */
};

ZPS_INLINE bool zps_partition_is_hashed(const struct zps_partition *part) {
  return part->table.ranks;
}

/* The partition with the device's copy of its table, for lookups on the device. */
ZPS_INLINE struct zps_partition zps_partition_on_device(struct zps_partition part) {
  part.table.ranks = part.table.on_device.ranks;
  part.table.before = part.table.on_device.before;
  part.table.lists = part.table.on_device.lists;
  part.table.starts = part.table.on_device.starts;
  return part;
}

/* Refuses what cannot work: rows 0 or over the limit, n_parts 0 or over the limit, a partition of 2^32 or more rows. */
zps_err_t zps_partition_init(struct zps_partition *part, uint64_t rows, uint32_t n_parts, uint32_t block_bits,
                             uint64_t seed, struct zps_error *error) ZPS_MUSTCHECK;
/* A partition of one stripe. The numbers have been checked. */
struct zps_partition zps_partition_whole(uint64_t rows, uint32_t n_parts, uint64_t seed);
ZPS_INLINE uint32_t zps_partition_stripes(const struct zps_partition *part) {
  return 1u << part->stripe_bits;
}

/* The stripe that partition `p` is one of. Exact: p * (stripe_inverse * stripe_parts - 2^32) is below 2^32. */
ZPS_INLINE uint32_t zps_partition_stripe_of(const struct zps_partition *part, uint32_t p) {
  return (uint32_t)((p * part->stripe_inverse) >> 32);
}

/* The number of the tensor's first `rows` rows that are in the stripe. */
ZPS_INLINE uint64_t zps_partition_stripe_rows(const struct zps_partition *part, uint32_t stripe, uint64_t rows) {
  const uint64_t chunk = 1ull << part->chunk_bits, before = (uint64_t)stripe << part->chunk_bits;
  const uint32_t turn_bits = part->chunk_bits + part->stripe_bits;
  const uint64_t rest = rows & ((1ull << turn_bits) - 1), last = rest > before ? rest - before : 0;
  return ((rows >> turn_bits) << part->chunk_bits) + (last < chunk ? last : chunk);
}

/* The tensor's row that is row `inner` of the stripe. */
ZPS_INLINE uint64_t zps_partition_stripe_row(const struct zps_partition *part, uint32_t stripe, uint64_t inner) {
  const uint64_t in_chunk = inner & ((1ull << part->chunk_bits) - 1);
  return ((inner - in_chunk) << part->stripe_bits) + ((uint64_t)stripe << part->chunk_bits) + in_chunk;
}

/* The stripe alone: its rows, as a tensor of one stripe, dealt to its partitions, counted from 0. */
struct zps_partition zps_partition_stripe(const struct zps_partition *part, uint32_t stripe);

/* The rotation of the stripe's group `group`: the stripe's partition that gets its first block. */
ZPS_INLINE uint32_t zps_partition_rotation(const struct zps_partition *part, uint32_t stripe, uint64_t group) {
  const uint64_t in_stripe = group ^ (uint64_t)stripe << ZPS_PARTITION_STRIPE_SEED_SHIFT;
  return zps_hash_reduce(zps_hash_mix64(in_stripe ^ part->seed), part->stripe_parts);
}

/* block / stripe_parts, exactly: (block + 1) * inverse falls short of (block + 1) * 2^64 / stripe_parts by less than
 * 2^64 / stripe_parts as long as block + 1 <= 2^40 and stripe_parts <= 2^16, and by more than nothing. */
ZPS_INLINE uint64_t zps_partition_group(const struct zps_partition *part, uint64_t block) {
  return (uint64_t)(((unsigned __int128)(block + 1) * part->inverse) >> 64);
}

/* The block, of its stripe's, that group `group` deals to partition `p`; may lie beyond the last block in the last
 * group. */
ZPS_INLINE uint64_t zps_partition_block(const struct zps_partition *part, uint64_t group, uint32_t p) {
  const uint32_t stripe = zps_partition_stripe_of(part, p), in_stripe = p - stripe * part->stripe_parts;
  const uint32_t rotation = zps_partition_rotation(part, stripe, group);
  const uint32_t position = in_stripe >= rotation ? in_stripe - rotation : in_stripe + part->stripe_parts - rotation;
  return group * part->stripe_parts + position;
}

/* The number of partition `p`'s rows among the first `inner` rows of its stripe. */
ZPS_INLINE uint32_t zps_partition_indices_below(const struct zps_partition *part, uint32_t p, uint64_t inner) {
  if (zps_partition_is_hashed(part)) return zps_partition_table_below(&part->table, p, inner);
  const uint64_t at = inner >> part->block_bits, group = zps_partition_group(part, at);
  const uint64_t block = zps_partition_block(part, group, p), whole = group << part->block_bits;
  if (block > at) return (uint32_t)whole;
  return (uint32_t)(whole + (block < at ? 1ull << part->block_bits : inner & ((1ull << part->block_bits) - 1)));
}

/* Number of rows in partition `p` (m); may be 0 when there are fewer blocks than partitions. */
ZPS_INLINE uint32_t zps_partition_size(const struct zps_partition *part, uint32_t p) {
  const uint32_t stripe = zps_partition_stripe_of(part, p);
  return zps_partition_indices_below(part, p, zps_partition_stripe_rows(part, stripe, part->rows));
}

/* The row at local index `local` (< size) of partition `p`. */
ZPS_INLINE uint64_t zps_partition_row(const struct zps_partition *part, uint32_t p, uint32_t local) {
  if (zps_partition_is_hashed(part)) return zps_partition_table_row(&part->table, p, local);
  const uint64_t mask = (1ull << part->block_bits) - 1;
  const uint64_t inner = (zps_partition_block(part, local >> part->block_bits, p) << part->block_bits) | (local & mask);
  return zps_partition_stripe_row(part, zps_partition_stripe_of(part, p), inner);
}

/* Partition and local index of `row` (< rows). */
ZPS_INLINE uint32_t zps_partition_of(const struct zps_partition *part, uint64_t row, uint32_t *local_p) {
  if (zps_partition_is_hashed(part)) return zps_partition_table_of(&part->table, row, local_p);
  const uint32_t stripe = (uint32_t)(row >> part->chunk_bits) & ((1u << part->stripe_bits) - 1);
  const uint64_t in_chunk = row & ((1ull << part->chunk_bits) - 1);
  const uint64_t inner = (row >> (part->chunk_bits + part->stripe_bits) << part->chunk_bits) + in_chunk;
  const uint64_t block = inner >> part->block_bits, group = zps_partition_group(part, block);
  uint32_t in_stripe = (uint32_t)(block - group * part->stripe_parts) + zps_partition_rotation(part, stripe, group);
  if (in_stripe >= part->stripe_parts) in_stripe -= part->stripe_parts;
  *local_p = (uint32_t)((group << part->block_bits) | (inner & ((1ull << part->block_bits) - 1)));
  return stripe * part->stripe_parts + in_stripe;
}

#endif

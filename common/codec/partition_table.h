/*
 * Where rows are that MurmurHash deals out one by one: Zen's h0 as the paper has it.
 *
 * A row's partition is its hash. Its index there is the number of the partition's rows before it, which no arithmetic
 * gives: a table counts them. Rows are cut into blocks; `before` counts each partition's rows before each block, and
 * `ranks` those of a row's own partition before it in its block. So an index is found by two reads; the way back is
 * one, from the ascending lists of the partitions' rows that the paper keeps, too.
 *
 * That takes 4 bytes a row for the lists, 1 for the rank and 4 n_parts bytes a block, which has enough rows to make
 * that a byte a row at most: 5 to 6 bytes a row (up to 16384 partitions). A device looks rows up in a copy of its
 * own (zps_partition_on_device()).
 */
#ifndef ZPS_CODEC_PARTITION_TABLE_H
#define ZPS_CODEC_PARTITION_TABLE_H

#include <stdint.h>

#include "common/base/hash.h"

struct zps_partition_table {
  const uint8_t *ranks;   /* [rows]; NULL: there is no table */
  const uint32_t *before; /* [n_blocks + 1][n_parts] */
  const uint32_t *lists;  /* [rows]: of one partition after the other */
  const uint32_t *starts; /* [n_parts]: where a partition's begins */
  uint64_t rows, seed;
  uint32_t n_parts, n_blocks;
  uint32_t block_bits; /* a block has 2^block_bits rows, the last one perhaps fewer */
  struct {
    const uint8_t *ranks;
    const uint32_t *before, *lists, *starts;
  } on_device; /* copies in a device's memory; NULL: none */
};

/* h0: Zen's, of the job's seed. */
ZPS_INLINE uint32_t zps_partition_hash(uint64_t seed, uint32_t n_parts, uint64_t row) {
  return zps_hash_reduce(zps_hash_mix64(row ^ seed), n_parts);
}

ZPS_INLINE uint32_t zps_partition_table_before(const struct zps_partition_table *table, uint64_t block, uint32_t p) {
  return table->before[block * table->n_parts + p];
}

/* Partition and index of `row` (< rows). */
ZPS_INLINE uint32_t zps_partition_table_of(const struct zps_partition_table *table, uint64_t row, uint32_t *local_p) {
  const uint32_t p = zps_partition_hash(table->seed, table->n_parts, row);
  *local_p = zps_partition_table_before(table, row >> table->block_bits, p) + table->ranks[row];
  return p;
}

/* The number of partition `p`'s rows among the first `rows`. */
ZPS_INLINE uint32_t zps_partition_table_below(const struct zps_partition_table *table, uint32_t p, uint64_t rows) {
  if (rows >= table->rows) return zps_partition_table_before(table, table->n_blocks, p);
  const uint64_t block = rows >> table->block_bits;
  uint32_t n = zps_partition_table_before(table, block, p);
  for (uint64_t row = block << table->block_bits; row < rows; row++)
    n += zps_partition_hash(table->seed, table->n_parts, row) == p;
  return n;
}

/* The row at index `local` (< the partition's size). */
ZPS_INLINE uint64_t zps_partition_table_row(const struct zps_partition_table *table, uint32_t p, uint32_t local) {
  return table->lists[table->starts[p] + local];
}

#endif

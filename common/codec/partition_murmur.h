/*
 * Partitions of the paper's h0, MurmurHash of each row, in place of the stratified deal (partition.h).
 *
 * A worker makes the table (partition_table.h) once, when it opens the tensor; a server needs but the partitions'
 * sizes. Both hash every row of the tensor for that. Such a tensor has one stripe, and no blocks of rows that stay
 * together. Its n_groups is the most rows that a partition has.
 */
#ifndef ZPS_CODEC_PARTITION_MURMUR_H
#define ZPS_CODEC_PARTITION_MURMUR_H

#include "common/base/workpool.h"
#include "common/codec/partition.h"

/* Tables of more rows would take more than 3 GiB; stratified partitions take none. */
#define ZPS_MURMUR_ROWS_MAX (1ull << 29)

/* The number of each partition's rows. `pool` (may be NULL) spreads the work. */
zps_err_t zps_murmur_sizes(uint64_t rows, uint32_t n_parts, uint64_t seed, struct zps_workpool *pool, uint32_t *sizes,
                           struct zps_error *error) ZPS_MUSTCHECK;

struct zps_murmur;
/* Makes the table and a partition of it, which is good while the table is there. */
zps_err_t zps_murmur_create(uint64_t rows, uint32_t n_parts, uint64_t seed, struct zps_workpool *pool,
                            struct zps_murmur **murmur_p, struct zps_partition *part,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* NULL is allowed. */
void zps_murmur_destroy(struct zps_murmur *murmur);

/* The two loops of rounds over the table; those over stratified partitions are in simd/. As zps_simd.locate() and
 * rows_of(). */
void zps_murmur_locate(const struct zps_partition *part, uint64_t first, const uint32_t *positions, uint32_t n,
                       uint16_t *parts, uint32_t *locals);
void zps_murmur_rows_of(const struct zps_partition *part, uint32_t p, const uint32_t *indices, uint32_t n,
                        uint64_t *rows);

#endif

/* Where many rows are at once, and back: loops over stratified partitions, or over the table of hashed ones. */
#ifndef ZPS_CODEC_LOCATE_H
#define ZPS_CODEC_LOCATE_H

#include "common/codec/partition_murmur.h"
#include "common/codec/simd/simd.h"

/* Partitions and local indices of rows first + positions[i], of a partition of one stripe; `positions` can be read up
 * to ZPS_SIMD_SLACK, outputs be written. */
static inline void zps_partition_locate(const struct zps_partition *part, uint64_t first, const uint32_t *positions,
                                        uint32_t n, uint16_t *parts, uint32_t *locals) {
  if (zps_partition_is_hashed(part))
    zps_murmur_locate(part, first, positions, n, parts, locals);
  else
    zps_simd()->locate(part, first, positions, n, parts, locals);
}

/* Rows at ascending local indices of partition `p`, with the same slack. */
static inline void zps_partition_rows_of(const struct zps_partition *part, uint32_t p, const uint32_t *indices,
                                         uint32_t n, uint64_t *rows) {
  if (zps_partition_is_hashed(part))
    zps_murmur_rows_of(part, p, indices, n, rows);
  else
    zps_simd()->rows_of(part, p, indices, n, rows);
}

#endif

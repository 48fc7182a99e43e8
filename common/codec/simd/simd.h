/*
 * The inner loops that vector instructions speed up, one table of functions for each instruction set. All tables yield
 * the same bytes: they differ in time alone, and the tests run every one that the machine has.
 *
 * Arrays that are written may be written beyond the elements asked for, by up to ZPS_SIMD_SLACK elements.
 */
#ifndef ZPS_CODEC_SIMD_SIMD_H
#define ZPS_CODEC_SIMD_SIMD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/codec/partition.h"
#include "common/codec/simd/rice_block.h"
#include "common/codec/simd/rice_write.h"
#include "common/codec/simd/values_loops.h"

enum { ZPS_SIMD_SLACK = 16, ZPS_SIMD_WINDOW = 128, ZPS_SIMD_MARKED = 16 };

/* Partitions are cut into `n_chunks` of 2^chunk_bits indices; chunk c of partition p is bucket p * n_chunks + c. */
struct zps_simd_chunks {
  const struct zps_partition *part;
  uint32_t n_chunks;
  unsigned chunk_bits;
};

/* A COO entry of a bucket: its local index, and its value. */
struct zps_simd_entry {
  uint32_t index;
  float value;
};

struct zps_simd {
  const char *name;
  /* Lists those of `n` values that have a bit of `mask` set: their positions and themselves. Returns their number.
   * Meanwhile as many from `next` on are fetched, which may lie beyond readable memory. */
  uint32_t (*compact)(const void *values, uint32_t n, uint32_t mask, const void *next, uint32_t *positions,
                      uint32_t *kept);
  /* Copies the values, of `n`, that have a bit of `mask` set, and sets their bits; those from n on in the last word are
   * cleared. Returns how many. */
  uint32_t (*pack)(const void *values, uint32_t n, uint32_t mask, uint32_t *kept, uint64_t *bits);
  /* Partitions and local indices of rows first + positions[i], of a partition of one stripe; `positions` can be read up
   * to the slack. */
  void (*locate)(const struct zps_partition *part, uint64_t first, const uint32_t *positions, uint32_t n,
                 uint16_t *parts, uint32_t *locals);
  /* The bucket of each entry of row rows[i] and value values[i]. False when a row is not below part->rows. */
  bool (*deal)(const struct zps_simd_chunks *chunks, const int64_t *rows, const float *values, uint32_t n,
               uint32_t *buckets, struct zps_simd_entry *entries);
  /* Rows at local indices `indices` of partition `p`; `indices` can be read up to the slack. */
  void (*rows_of)(const struct zps_partition *part, uint32_t p, const uint32_t *indices, uint32_t n, uint64_t *rows);
  /* Whether each of `n` numbers, which may lie anywhere in memory, is greater than the one before. */
  bool (*ascends)(const void *numbers, uint32_t n);
  /* How many of ZPS_SIMD_WINDOW ascending numbers, which may lie anywhere in memory, are below the limit. */
  uint32_t (*count_below)(const void *numbers, uint32_t limit);
  /* Adds the `n` values to those of 64 * n_words `sums` whose bits are set, -0.0 as +0.0. */
  void (*add)(float *sums, const uint64_t *bits, uint32_t n_words, const void *values, uint32_t n);
  /* Adds values to sums[indices[i] - base], -0.0 as +0.0, for as many of `n` strictly ascending indices as are below
   * the limit, and returns how many. Both may lie anywhere in memory. */
  uint32_t (*add_below)(float *sums, uint32_t base, uint32_t limit, const void *indices, uint32_t n,
                        const void *values);
  /* Adds rows of `width` floats: row i of `values` to row slots[indices[i] - base] of `sums`. */
  void (*add_rows)(float *sums, const uint32_t *slots, uint32_t base, const void *indices, uint32_t n_rows,
                   uint32_t width, const void *values);
  /* Moves the floats of 64 * n_words `sums` that are not -0.0 to `out` and sets their bits, with -0.0 left behind.
   * Returns how many. */
  uint32_t (*take)(float *sums, uint32_t n_words, float *out, uint64_t *bits);
  /* Writes the `n` sums times `factor` to `out`, which is aligned to floats, and leaves -0.0 behind; a sum of -0.0 was
   * not added to, and is written as +0.0. Returns the number of the others. `past_caches`: lines of `out` are neither
   * read before they are written nor kept; a fence must follow. */
  uint32_t (*deliver)(float *sums, uint32_t n, float factor, float *out, bool past_caches);
  /* Moves the floats that are neither +0.0 nor -0.0 out of those lines of ZPS_SIMD_MARKED `sums` (from a multiple of 64
   * bytes on) whose mark is 1: base + their positions, and themselves. It leaves +0.0, and marks that are 0.
   * `n_lines` is a multiple of 64. Returns how many. */
  uint32_t (*take_marked)(float *sums, uint8_t *marks, uint32_t n_lines, uint32_t base, uint32_t *positions,
                          float *kept);
  /* Lists base + position of each bit, ascending, and returns how many there are. */
  uint32_t (*list)(const uint64_t *bits, uint32_t n_words, uint32_t base, uint32_t *out);
  /* Copies the 4 bytes of those of 64 * n_words `slots` whose bits are set to `values`, which may lie anywhere in
   * memory, and first + their positions to `rows`. Returns how many. */
  uint32_t (*take_rows)(const uint64_t *bits, uint32_t n_words, const uint32_t *slots, int64_t first, int64_t *rows,
                        void *values);
  zps_rice_list_fn *rice_list;
  zps_rice_skip_fn *rice_skip;
  zps_rice_gaps_fn *rice_gaps;
  zps_rice_zeros_fn *rice_zeros;
  zps_rice_put_fn *rice_put;
  const struct zps_values_loops *values;
};

/* The fastest that this machine has, or the one that zps_simd_use() was given. */
const struct zps_simd *zps_simd(void);
/* Variant `i` of those that this machine has, 0 is the plainest; NULL beyond the last. */
const struct zps_simd *zps_simd_variant(unsigned i);
/* For tests and benchmarks: `simd` from here on, NULL for the fastest. Not while others are at work. */
void zps_simd_use(const struct zps_simd *simd);

#endif

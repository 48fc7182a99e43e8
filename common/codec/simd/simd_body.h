/* Loops of simd.h that are the same text for every instruction set: the compiler turns their vectors into the
 * instructions that the function they are inlined into may use. */
#ifndef ZPS_CODEC_SIMD_SIMD_BODY_H
#define ZPS_CODEC_SIMD_SIMD_BODY_H

#include <string.h>

#include "common/codec/bits.h"
#include "common/codec/simd/simd.h"

#define ZPS_SIMD_BODY static inline __attribute__((always_inline))
enum { ZPS_SIMD_LANES = 8 };

typedef uint64_t zps_vec_u64 __attribute__((vector_size(64)));
typedef int64_t zps_vec_i64 __attribute__((vector_size(64)));
typedef double zps_vec_f64 __attribute__((vector_size(64)));
typedef float zps_vec_line __attribute__((vector_size(64)));
typedef uint32_t zps_vec_u32 __attribute__((vector_size(32)));
typedef int32_t zps_vec_i32 __attribute__((vector_size(32)));
typedef uint16_t zps_vec_u16 __attribute__((vector_size(16)));

ZPS_SIMD_BODY void zps_simd_load_positions(uint64_t first, const uint32_t *positions, zps_vec_u64 *rows) {
  zps_vec_u32 narrow;
  memcpy(&narrow, positions, sizeof narrow);
  *rows = __builtin_convertvector(narrow, zps_vec_u64) + first;
}

/* zps_hash_mix64() */
ZPS_SIMD_BODY void zps_simd_mix64(zps_vec_u64 *x) {
  *x ^= *x >> 33;
  *x *= 0xff51afd7ed558ccdull;
  *x ^= *x >> 33;
  *x *= 0xc4ceb9fe1a85ec53ull;
  *x ^= *x >> 33;
}

/* The rotation of each group, its stripe's number above its own: its hash, reduced to stripe_parts. */
ZPS_SIMD_BODY void zps_simd_rotations(const struct zps_partition *part, const zps_vec_u64 *groups,
                                      zps_vec_u64 *rotations) {
  zps_vec_u64 x = *groups ^ part->seed;
  zps_simd_mix64(&x);
  *rotations = ((x >> 32) * part->stripe_parts) >> 32;
}

/* zps_partition_of(), for eight rows of their stripes: partitions of the stripes, and indices. `stripes` has each one's
 * number where the seed takes it. Blocks are divided in doubles, which hold every block number (below 2^40), and the
 * quotient, which may be one too small or too large in any rounding mode, is put right. */
ZPS_SIMD_BODY void zps_simd_locate(const struct zps_partition *part, const zps_vec_u64 *rows,
                                   const zps_vec_u64 *stripes, zps_vec_u64 *parts, zps_vec_u64 *indices) {
  const uint64_t bits_of_2_52 = 0x4330000000000000ull, n_parts = part->stripe_parts;
  const uint64_t in_block = ((uint64_t)1 << part->block_bits) - 1;
  const double two_52 = 0x1.0p52, inverse = 1.0 / (double)part->stripe_parts;
  const zps_vec_u64 blocks = *rows >> part->block_bits;
  const zps_vec_f64 quotients = ((zps_vec_f64)(blocks | bits_of_2_52) - two_52) * inverse + two_52;
  zps_vec_u64 groups = (zps_vec_u64)quotients - bits_of_2_52, rotations;
  zps_vec_u64 rest = blocks - groups * n_parts;
  const zps_vec_u64 below = (zps_vec_u64)((zps_vec_i64)rest < 0); /* all ones where true */
  groups += below;
  rest += below & n_parts;
  const zps_vec_u64 above = (zps_vec_u64)((zps_vec_i64)rest >= (int64_t)n_parts);
  groups -= above;
  rest -= above & n_parts;
  const zps_vec_u64 seeded = groups | *stripes;
  zps_simd_rotations(part, &seeded, &rotations);
  rest += rotations;
  rest -= (zps_vec_u64)((zps_vec_i64)rest >= (int64_t)n_parts) & n_parts;
  *parts = rest;
  *indices = groups << part->block_bits | (*rows & in_block);
}

ZPS_SIMD_BODY void zps_simd_body_locate(const struct zps_partition *part, uint64_t first, const uint32_t *positions,
                                        uint32_t n, uint16_t *parts, uint32_t *locals) {
  const struct zps_partition local = *part; /* a copy that stores cannot change */
  const zps_vec_u64 no_stripes = {0};
  for (uint32_t i = 0; i < n; i += ZPS_SIMD_LANES) {
    zps_vec_u64 rows, wide_parts, wide_indices;
    zps_simd_load_positions(first, positions + i, &rows);
    zps_simd_locate(&local, &rows, &no_stripes, &wide_parts, &wide_indices);
    const zps_vec_u16 narrow_parts = __builtin_convertvector(wide_parts, zps_vec_u16);
    const zps_vec_u32 narrow_indices = __builtin_convertvector(wide_indices, zps_vec_u32);
    memcpy(parts + i, &narrow_parts, sizeof narrow_parts);
    memcpy(locals + i, &narrow_indices, sizeof narrow_indices);
  }
}

/* Takes eight rows apart: their stripes, and which of their stripes' rows they are. */
ZPS_SIMD_BODY void zps_simd_stripes(const struct zps_partition *part, const zps_vec_u64 *rows, zps_vec_u64 *stripes,
                                    zps_vec_u64 *inner) {
  const uint64_t in_chunk = ((uint64_t)1 << part->chunk_bits) - 1;
  *stripes = *rows >> part->chunk_bits & (zps_partition_stripes(part) - 1);
  *inner = *rows >> (part->chunk_bits + part->stripe_bits) << part->chunk_bits | (*rows & in_chunk);
}

/* deal() for eight entries; little-endian. */
ZPS_SIMD_BODY void zps_simd_deal(const struct zps_simd_chunks *chunks, const struct zps_partition *part,
                                 const zps_vec_u64 *rows, const zps_vec_u32 *values, uint32_t *buckets,
                                 struct zps_simd_entry *entries) {
  zps_vec_u64 parts, indices, stripes = {0}, inner = *rows;
  if (part->stripe_bits) zps_simd_stripes(part, rows, &stripes, &inner);
  const zps_vec_u64 above = stripes << ZPS_PARTITION_STRIPE_SEED_SHIFT;
  zps_simd_locate(part, &inner, &above, &parts, &indices);
  parts += stripes * part->stripe_parts;
  const zps_vec_u32 narrow_parts = __builtin_convertvector(parts, zps_vec_u32);
  const zps_vec_u32 narrow_indices = __builtin_convertvector(indices, zps_vec_u32);
  const zps_vec_u32 here = narrow_parts * chunks->n_chunks + (narrow_indices >> chunks->chunk_bits);
  const zps_vec_u64 both = indices | __builtin_convertvector(*values, zps_vec_u64) << 32;
  memcpy(buckets, &here, sizeof here);
  memcpy(entries, &both, sizeof both);
}

ZPS_SIMD_BODY bool zps_simd_body_deal(const struct zps_simd_chunks *chunks, const int64_t *rows, const float *values,
                                      uint32_t n, uint32_t *buckets, struct zps_simd_entry *entries) {
  enum { ROWS_AHEAD = 768 };                  /* beyond the page, where the machine does not look by itself */
  const struct zps_simd_chunks cut = *chunks; /* copies that stores cannot change */
  const struct zps_partition part = *chunks->part;
  zps_vec_u64 bad = {0};
  for (uint32_t i = 0; i < n; i += ZPS_SIMD_LANES) {
    const uint32_t here = n - i < ZPS_SIMD_LANES ? n - i : ZPS_SIMD_LANES;
    zps_vec_u64 eight = {0};
    zps_vec_u32 eight_values = {0};
    __builtin_prefetch(rows + i + ROWS_AHEAD);
    __builtin_prefetch(values + i + ROWS_AHEAD);
    if (here == ZPS_SIMD_LANES) {
      memcpy(&eight, rows + i, sizeof eight);
      memcpy(&eight_values, values + i, sizeof eight_values);
    } else {
      memcpy(&eight, rows + i, here * sizeof *rows);
      memcpy(&eight_values, values + i, here * sizeof *values);
    }
    bad |= (zps_vec_u64)(eight >= part.rows);
    zps_simd_deal(&cut, &part, &eight, &eight_values, buckets + i, entries + i);
  }
  uint64_t any = 0;
  for (unsigned lane = 0; lane < ZPS_SIMD_LANES; lane++) any |= bad[lane];
  return any == 0;
}

/* zps_partition_row(), for eight indices at a time. */
ZPS_SIMD_BODY void zps_simd_body_rows_of(const struct zps_partition *part, uint32_t p, const uint32_t *indices,
                                         uint32_t n, uint64_t *rows) {
  const struct zps_partition local = *part;
  const uint64_t n_parts = local.stripe_parts, mask = ((uint64_t)1 << local.block_bits) - 1;
  const uint64_t stripe = zps_partition_stripe_of(part, p), in_stripe = p - stripe * n_parts;
  const uint64_t above = stripe << ZPS_PARTITION_STRIPE_SEED_SHIFT, first = stripe << local.chunk_bits;
  const uint64_t in_chunk = ((uint64_t)1 << local.chunk_bits) - 1;
  for (uint32_t i = 0; i < n; i += ZPS_SIMD_LANES) {
    zps_vec_u64 wide, rotations;
    zps_simd_load_positions(0, indices + i, &wide);
    const zps_vec_u64 groups = wide >> local.block_bits;
    const zps_vec_u64 seeded = groups | above;
    zps_simd_rotations(&local, &seeded, &rotations);
    zps_vec_u64 position = in_stripe - rotations;
    position += (zps_vec_u64)((zps_vec_i64)position < 0) & n_parts;
    const zps_vec_u64 inner = (groups * n_parts + position) << local.block_bits | (wide & mask);
    const zps_vec_u64 kept = inner & in_chunk;
    const zps_vec_u64 result = ((inner ^ kept) << local.stripe_bits) + (kept + first);
    memcpy(rows + i, &result, sizeof result);
  }
}

ZPS_SIMD_BODY uint32_t zps_simd_body_list(const uint64_t *bits, uint32_t n_words, uint32_t base, uint32_t *out) {
  uint32_t n = 0;
  for (uint32_t w = 0; w < n_words; w++)
    if (bits[w]) n += zps_bits_list(bits[w], base + w * 64, out + n);
  return n;
}

ZPS_SIMD_BODY uint32_t zps_simd_body_take_rows(const uint64_t *bits, uint32_t n_words, const uint32_t *slots,
                                               int64_t first, int64_t *rows, void *values) {
  uint32_t n = 0;
  for (uint32_t w = 0; w < n_words; w++, slots += 64, first += 64) {
    if (bits[w] == 0) continue;
    uint32_t positions[64];
    const uint32_t here = zps_bits_list(bits[w], 0, positions);
    for (uint32_t i = 0; i < here; i++) {
      rows[n + i] = first + positions[i];
      memcpy((char *)values + 4 * (uint64_t)(n + i), &slots[positions[i]], 4);
    }
    n += here;
  }
  return n;
}

ZPS_SIMD_BODY bool zps_simd_body_ascends(const char *numbers, uint32_t n) {
  enum { AHEAD_BYTES = 4096 }; /* beyond the page, where the machine does not look by itself */
  zps_vec_i32 all = ~(zps_vec_i32){0};
  uint32_t i = 1;
  for (; i + 2 * ZPS_SIMD_LANES <= n; i += 2 * ZPS_SIMD_LANES) {
    const char *const at = numbers + 4 * (uint64_t)i;
    __builtin_prefetch(at + AHEAD_BYTES);
    zps_vec_i32 before[2], here[2];
    memcpy(before, at - 4, sizeof before);
    memcpy(here, at, sizeof here);
    /* every machine compares signed numbers */
    for (unsigned j = 0; j < 2; j++) all &= (here[j] ^ INT32_MIN) > (before[j] ^ INT32_MIN);
  }
  int32_t good = -1;
  for (unsigned lane = 0; lane < ZPS_SIMD_LANES; lane++) good &= all[lane];
  for (; i < n; i++) {
    uint32_t pair[2];
    memcpy(pair, numbers + 4 * (uint64_t)i - 4, sizeof pair);
    good &= -(pair[1] > pair[0]);
  }
  return good != 0;
}

ZPS_SIMD_BODY uint32_t zps_simd_body_count_below(const char *numbers, uint32_t limit) {
  const int32_t limit_signed = (int32_t)(limit ^ (uint32_t)INT32_MIN);
  zps_vec_i32 below = {0};
  for (uint32_t i = 0; i < ZPS_SIMD_WINDOW; i += ZPS_SIMD_LANES) {
    zps_vec_i32 here;
    memcpy(&here, numbers + 4 * (uint64_t)i, sizeof here);
    below += (here ^ INT32_MIN) < limit_signed;
  }
  int32_t n = 0;
  for (unsigned lane = 0; lane < ZPS_SIMD_LANES; lane++) n -= below[lane];
  return (uint32_t)n;
}

ZPS_SIMD_BODY void zps_simd_body_add(float *sums, const uint64_t *bits, uint32_t n_words, const char *values) {
  uint32_t positions[64 + ZPS_SIMD_SLACK];
  for (uint32_t w = 0; w < n_words; w++, sums += 64) {
    if (bits[w] == 0) continue;
    const uint32_t n = zps_bits_list(bits[w], 0, positions);
    for (uint32_t i = 0; i < n; i++, values += sizeof(float)) {
      float value;
      memcpy(&value, values, sizeof value);
      sums[positions[i]] += 0.0f + value;
    }
  }
}

/* `origin` is where the sum of index 0 would be. +0.0 + value is the value, and +0.0 for -0.0. */
ZPS_SIMD_BODY void zps_simd_add_one(uintptr_t origin, const char *index_at, const char *value_at) {
  uint32_t index;
  float value;
  memcpy(&index, index_at, sizeof index);
  memcpy(&value, value_at, sizeof value);
  float *const sum = (float *)(origin + (uint64_t)index * sizeof *sum);
  *sum += 0.0f + value;
}

ZPS_SIMD_BODY uint32_t zps_simd_body_add_below(float *sums, uint32_t base, uint32_t limit, const char *indices,
                                               uint32_t n, const char *values) {
  enum {
    STEP = 8,
    AHEAD_BYTES = 1024
  }; /* the values added to a chunk at a time are too few for the machine to look ahead */
  const uintptr_t origin = (uintptr_t)sums - (uint64_t)base * sizeof *sums;
  uint32_t i = 0;
  for (uint32_t last; i + STEP <= n; i += STEP) {
    memcpy(&last, indices + 4 * (uint64_t)(i + STEP - 1), sizeof last);
    if (last >= limit) break;
    __builtin_prefetch(indices + 4 * (uint64_t)i + AHEAD_BYTES);
    __builtin_prefetch(values + 4 * (uint64_t)i + AHEAD_BYTES);
#pragma GCC unroll 8
    for (unsigned j = 0; j < STEP; j++)
      zps_simd_add_one(origin, indices + 4 * (uint64_t)(i + j), values + 4 * (uint64_t)(i + j));
  }
  for (uint32_t index; i < n; i++) {
    memcpy(&index, indices + 4 * (uint64_t)i, sizeof index);
    if (index >= limit) break;
    zps_simd_add_one(origin, indices + 4 * (uint64_t)i, values + 4 * (uint64_t)i);
  }
  return i;
}

ZPS_SIMD_BODY void zps_simd_body_add_rows(float *sums, const uint32_t *slots, uint32_t base, const char *indices,
                                          uint32_t n_rows, uint32_t width, const char *values) {
  enum { LANES = 16, LINE_BYTES = 64, AHEAD_BYTES = 2048 };
  const uint64_t row_bytes = (uint64_t)width * sizeof *sums;
  for (uint32_t i = 0; i < n_rows; i++) {
    uint32_t index;
    memcpy(&index, indices + 4 * (uint64_t)i, sizeof index);
    float *sum = sums + (uint64_t)slots[index - base] * width;
    for (uint64_t at = 0; at < row_bytes; at += LINE_BYTES) __builtin_prefetch(values + at + AHEAD_BYTES);
    uint32_t left = width;
    for (; left >= LANES; left -= LANES, sum += LANES, values += LINE_BYTES) {
      zps_vec_line old, added;
      memcpy(&old, sum, sizeof old);
      memcpy(&added, values, sizeof added);
      old += added;
      memcpy(sum, &old, sizeof old);
    }
    for (; left > 0; left--, sum++, values += sizeof *sum) {
      float added;
      memcpy(&added, values, sizeof added);
      *sum += added;
    }
  }
}

/* pack() looks at values in a row, and asks for them so far ahead. */
enum { ZPS_SIMD_AHEAD_BYTES = 8 << 10 };

/* Asks for 64 values that are looked at once, soon: the machine by itself does not look far enough ahead to keep up
 * with memory, and the lines that it would keep have no further use. */
ZPS_SIMD_BODY void zps_simd_fetch_once(const char *at) {
  enum { LINE_BYTES = 64 };
  for (unsigned i = 0; i < 64 * sizeof(float); i += LINE_BYTES) __builtin_prefetch(at + i, 0, 0);
}

/* The rest of compact() for 64 values: `word` has a bit for each that is kept. */
ZPS_SIMD_BODY uint32_t zps_simd_pick(const char *values, uint64_t word, uint32_t base, uint32_t *positions,
                                     uint32_t *kept) {
  if (word == 0) return 0;
  const uint32_t n = zps_bits_list(word, base, positions);
  for (uint32_t i = 0; i < n; i++) memcpy(&kept[i], values + 4 * (uint64_t)positions[i], sizeof kept[i]);
  return n;
}

/* compact() for fewer than 64 values from `base` on. */
ZPS_SIMD_BODY uint32_t zps_simd_compact_rest(const char *values, uint32_t base, uint32_t end, uint32_t mask,
                                             uint32_t *positions, uint32_t *kept) {
  uint32_t n = 0;
  for (uint32_t i = base; i < end; i++) {
    uint32_t value;
    memcpy(&value, values + 4 * (uint64_t)i, sizeof value);
    positions[n] = i;
    kept[n] = value;
    n += (value & mask) != 0;
  }
  return n;
}

/* The rest of pack() for 64 values: `word` has a bit for each that is kept. */
ZPS_SIMD_BODY uint32_t zps_simd_pack_word(const char *values, uint64_t word, uint32_t *kept) {
  uint32_t positions[64 + ZPS_SIMD_SLACK];
  return zps_simd_pick(values, word, 0, positions, kept);
}

/* pack() for fewer than 64 values from `base` on. */
ZPS_SIMD_BODY uint32_t zps_simd_pack_rest(const char *values, uint32_t base, uint32_t end, uint32_t mask,
                                          uint32_t *kept, uint64_t *bits) {
  uint32_t positions[64 + ZPS_SIMD_SLACK];
  if (base == end) return 0;
  const uint32_t n = zps_simd_compact_rest(values, base, end, mask, positions, kept);
  bits[base / 64] = 0;
  for (uint32_t i = 0; i < n; i++) bits[base / 64] |= (uint64_t)1 << positions[i] % 64;
  return n;
}

/* deliver() for the sums from `first` up to `end`, one at a time. */
ZPS_SIMD_BODY uint32_t zps_simd_deliver_some(float *sums, uint32_t first, uint32_t end, float factor, float *out) {
  uint32_t n_added = 0;
  for (uint32_t i = first; i < end; i++) {
    uint32_t bits;
    memcpy(&bits, &sums[i], sizeof bits);
    n_added += bits != 0x80000000u;
    out[i] = (sums[i] + 0.0f) * factor;
    sums[i] = -0.0f;
  }
  return n_added;
}

/* The number of `n` floats that lie ahead of the first cache line's begin. */
ZPS_SIMD_BODY uint32_t zps_simd_ahead_of_line(const float *out, uint32_t n) {
  const uint32_t ahead = (uint32_t)(-(uintptr_t)out % 64 / sizeof *out);
  return ahead < n ? ahead : n;
}

/* take_marked() for the line at `at`, of which `word` has a bit for each float that is taken. */
ZPS_SIMD_BODY uint32_t zps_simd_take_line(float *sums, uint32_t at, uint32_t word, uint32_t base, uint32_t *positions,
                                          float *kept) {
  const uint32_t n = zps_bits_list(word, at, positions);
  for (uint32_t i = 0; i < n; i++) {
    kept[i] = sums[positions[i]];
    positions[i] += base;
  }
  memset(sums + at, 0, ZPS_SIMD_MARKED * sizeof *sums);
  return n;
}

/* The rest of take() for 64 sums: `word` has a bit for each that is taken. */
ZPS_SIMD_BODY uint32_t zps_simd_take_word(float *sums, uint64_t word, float *out) {
  uint32_t positions[64 + ZPS_SIMD_SLACK];
  if (word == 0) return 0;
  const uint32_t n = zps_bits_list(word, 0, positions);
  for (uint32_t i = 0; i < n; i++) {
    out[i] = sums[positions[i]];
    sums[positions[i]] = -0.0f;
  }
  return n;
}

#endif

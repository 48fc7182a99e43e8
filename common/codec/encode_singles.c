/*
 * COO gradients of single floats: entries are dealt, in order of appearance, to buckets of ranks whose sums fit the
 * cache, and added up there. That takes the place of a sort: what is left is in the order of ranks, without repeats.
 */
#include <string.h>

#include "common/codec/encode_internal.h"
#include "common/codec/rowscan.h"
#include "common/codec/simd.h"

enum {
  BATCH = 512,
  CHUNK_BITS_MIN = 15,
  CHUNK_BITS_MAX = 18,      /* 1 MiB of sums */
  BUCKETS_MAX = 4096,       /* their ends stay in the second-level cache */
  ROWS_PER_ENTRY_MAX = 128, /* all sums are looked at: with fewer entries, sorting these is less work */
};

struct single {
  uint32_t rank;
  float value;
};

static uint32_t chunks_per_part(const struct zps_partition *part, unsigned chunk_bits) {
  return (uint32_t)((((part->n_groups << part->block_bits) - 1) >> chunk_bits) + 1);
}

bool zps_encoder_is_singles(struct zps_encoder *encoder) {
  const struct zps_encode_input *const input = &encoder->input;
  if (input->dtype != ZPS_DTYPE_F32 || input->width != 1 || encoder->partitioner != ZPS_PARTITIONER_ORDERED ||
      input->n_entries < input->part->rows / ROWS_PER_ENTRY_MAX)
    return false;
  for (unsigned bits = CHUNK_BITS_MIN; bits <= CHUNK_BITS_MAX; bits++) {
    if ((uint64_t)encoder->n_parts * chunks_per_part(input->part, bits) > BUCKETS_MAX) continue;
    encoder->chunk_bits = bits;
    encoder->n_chunks = chunks_per_part(input->part, bits);
    return true;
  }
  return false;
}

static uint64_t *places_of(const struct zps_encoder *encoder, unsigned range) {
  return (uint64_t *)encoder->buckets.data + (uint64_t)range * encoder->n_parts * encoder->n_chunks;
}

/* Up to BATCH entries of range `i` from `*entry` on; false at the end. */
static bool next_batch(const struct zps_encoder *encoder, unsigned i, uint64_t *entry, uint32_t *n_p) {
  const uint64_t n = encoder->input.n_entries, range_end = (i + 1) * encoder->range_len;
  const uint64_t end = range_end < n ? range_end : n;
  *entry += *n_p;
  if (*entry >= end) return false;
  *n_p = end - *entry < BATCH ? (uint32_t)(end - *entry) : BATCH;
  return true;
}

static void count_range(void *ctx, unsigned i) {
  struct zps_encoder *const encoder = ctx;
  const struct zps_encode_input *const input = &encoder->input;
  uint64_t *const counts = places_of(encoder, i), *const bad = &((uint64_t *)encoder->bad.data)[i];
  uint64_t entry = i * encoder->range_len;
  uint16_t parts[BATCH + ZPS_SIMD_SLACK];
  uint32_t ranks[BATCH + ZPS_SIMD_SLACK];
  *bad = UINT64_MAX;
  for (uint32_t n = 0; next_batch(encoder, i, &entry, &n);) {
    if (!zps_simd()->locate_rows(input->part, input->rows + entry, n, parts, ranks)) {
      while ((uint64_t)input->rows[entry] < input->part->rows) entry++;
      *bad = entry;
      return;
    }
    for (uint32_t j = 0; j < n; j++) counts[parts[j] * encoder->n_chunks + (ranks[j] >> encoder->chunk_bits)]++;
  }
}

static void deal_range(void *ctx, unsigned i) {
  struct zps_encoder *const encoder = ctx;
  const struct zps_encode_input *const input = &encoder->input;
  uint64_t *const places = places_of(encoder, i);
  struct single *const singles = encoder->pairs.data;
  uint64_t entry = i * encoder->range_len;
  uint16_t parts[BATCH + ZPS_SIMD_SLACK];
  uint32_t ranks[BATCH + ZPS_SIMD_SLACK];
  for (uint32_t n = 0; next_batch(encoder, i, &entry, &n);) {
    const float *const values = (const float *)input->values + entry;
    if (!zps_simd()->locate_rows(input->part, input->rows + entry, n, parts, ranks)) return; /* counted: cannot be */
    for (uint32_t j = 0; j < n; j++) {
      uint64_t *const place = &places[parts[j] * encoder->n_chunks + (ranks[j] >> encoder->chunk_bits)];
      singles[(*place)++] = (struct single){ranks[j], values[j]};
    }
  }
}

/* Turns counts into places, bucket by bucket and within a bucket range by range, with room to spare behind every
 * partition. */
static void place_buckets(struct zps_encoder *encoder) {
  uint64_t *const starts = encoder->starts.data, place = 0;
  for (uint32_t p = 0; p < encoder->n_parts; p++, place += ZPS_SIMD_SLACK) {
    starts[p] = place;
    for (uint32_t bucket = p * encoder->n_chunks; bucket < (p + 1) * encoder->n_chunks; bucket++) {
      for (unsigned range = 0; range < encoder->n_ranges; range++) {
        uint64_t *const count = &places_of(encoder, range)[bucket], n = *count;
        *count = place;
        place += n;
      }
    }
  }
  starts[encoder->n_parts] = place;
}

static void sum_partition(struct zps_encoder *encoder, uint32_t p, float *sums) {
  const uint64_t start = ((const uint64_t *)encoder->starts.data)[p];
  const uint64_t *const ends = places_of(encoder, encoder->n_ranges - 1) + p * encoder->n_chunks;
  const struct single *single = (const struct single *)encoder->pairs.data + start;
  uint32_t *const ranks = (uint32_t *)encoder->ranks.data + start;
  uint32_t *const staged = (uint32_t *)encoder->staged.data + start, nnz = 0;
  for (uint32_t chunk = 0; chunk < encoder->n_chunks; chunk++) {
    const struct single *const end = (const struct single *)encoder->pairs.data + ends[chunk];
    const uint32_t base = chunk << encoder->chunk_bits, chunk_rows = 1u << encoder->chunk_bits;
    if (single == end) continue;
    for (; single < end; single++) sums[single->rank - base] += single->value;
    const uint32_t n =
        zps_simd()->compact(sums, chunk_rows, zps_rowscan_mask(ZPS_DTYPE_F32), ranks + nnz, staged + nnz);
    for (uint32_t i = 0; i < n; i++) ranks[nnz + i] += base;
    nnz += n;
    memset(sums, 0, chunk_rows * sizeof *sums);
  }
  ((uint32_t *)encoder->nnz.data)[p] = nnz;
}

/* Sums every n_slots-th partition with the sums of this slot. */
static void sum_slot(void *ctx, unsigned slot) {
  struct zps_encoder *const encoder = ctx;
  float *const sums = (float *)encoder->sums.data + ((uint64_t)slot << encoder->chunk_bits);
  memset(sums, 0, sizeof *sums << encoder->chunk_bits);
  for (uint32_t p = slot; p < encoder->n_parts; p += encoder->n_slots) sum_partition(encoder, p, sums);
}

zps_err_t zps_encoder_scan_singles(struct zps_encoder *encoder, struct zps_error *error) {
  const uint64_t n = encoder->input.n_entries, room = n + (uint64_t)encoder->n_parts * ZPS_SIMD_SLACK;
  const uint64_t n_counts = (uint64_t)encoder->n_ranges * encoder->n_parts * encoder->n_chunks;
  const unsigned n_threads = 1 + (encoder->pool ? zps_workpool_threads(encoder->pool) : 0);
  encoder->n_slots = n_threads < encoder->n_parts ? n_threads : encoder->n_parts;
  zps_err_t code = zps_buffer_need(&encoder->buckets, n_counts, sizeof(uint64_t));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->pairs, room, sizeof(struct single));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->ranks, room, sizeof(uint32_t));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->staged, room, sizeof(float));
  if (code == ZPS_OK)
    code = zps_buffer_need(&encoder->sums, (uint64_t)encoder->n_slots << encoder->chunk_bits, sizeof(float));
  if (code != ZPS_OK) return code;
  memset(encoder->buckets.data, 0, n_counts * sizeof(uint64_t));
  encoder->is_staged = true;
  zps_workpool_for(encoder->pool, encoder->n_ranges, count_range, encoder);
  code = zps_encoder_check_rows(encoder, error);
  if (code != ZPS_OK) return code;
  place_buckets(encoder);
  zps_workpool_for(encoder->pool, encoder->n_ranges, deal_range, encoder);
  zps_workpool_for(encoder->pool, encoder->n_slots, sum_slot, encoder);
  return ZPS_OK;
}

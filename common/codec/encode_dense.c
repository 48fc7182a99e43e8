/* Dense gradients: one look at all values leaves a bit per row; everything after works on the bits. */
#include <string.h>

#include "common/codec/bits.h"
#include "common/codec/encode_internal.h"
#include "common/codec/rowscan.h"

/* The rows of one range, as words of the bitmap. */
struct range {
  uint64_t first_row, n_rows;
  uint64_t *bits;
  uint64_t n_words;
};

static struct range range_of(const struct zps_encoder *encoder, unsigned i) {
  const uint64_t rows = encoder->input.part->rows, first = i * encoder->range_len;
  if (first >= rows) return (struct range){0};
  const uint64_t n_rows = rows - first < encoder->range_len ? rows - first : encoder->range_len;
  return (struct range){first, n_rows, (uint64_t *)encoder->bitmap.data + first / 64, (n_rows + 63) / 64};
}

enum { PIECE_WORDS = 32, PIECE_ROWS = PIECE_WORDS * 64, LINE_PLACES = 16 };

/* Lists the rows of up to PIECE_WORDS words from word `w` on, counted from the first row of that word. */
static inline uint32_t list_piece(const struct range *range, uint64_t w, uint32_t *rows) {
  const uint64_t n_words = range->n_words - w < PIECE_WORDS ? range->n_words - w : PIECE_WORDS;
  uint32_t n = 0;
  for (uint64_t i = 0; i < n_words; i++)
    if (range->bits[w + i]) n += zps_bits_list(range->bits[w + i], (uint32_t)i * 64, rows + n);
  return n;
}

static void scan_range(void *ctx, unsigned i) {
  struct zps_encoder *const encoder = ctx;
  const struct zps_encode_input *const input = &encoder->input;
  const struct range range = range_of(encoder, i);
  uint64_t *const counts = zps_encoder_counts(encoder, i);
  if (range.n_rows == 0) return;
  zps_rowscan(input->dtype, input->width, (const char *)input->values + range.first_row * encoder->row_bytes,
              range.n_rows, range.bits);
  const struct zps_partition part = *input->part; /* a copy that counting cannot change */
  for (uint64_t w = 0; w < range.n_words; w += PIECE_WORDS) {
    uint32_t rows[PIECE_ROWS + 4], local;
    const uint32_t n = list_piece(&range, w, rows);
    for (uint32_t j = 0; j < n; j++) counts[zps_partition_of(&part, range.first_row + w * 64 + rows[j], &local)]++;
  }
}

static inline __attribute__((always_inline)) void fill(struct zps_encoder *encoder, const struct range *range,
                                                       uint64_t *places, uint64_t row_bytes, bool stage) {
  const struct zps_partition part = *encoder->input.part;
  const char *const values = encoder->input.values;
  uint32_t *const ranks = encoder->ranks.data;
  uint64_t *const sources = encoder->sources.data;
  char *const staged = encoder->staged.data;
  for (uint64_t w = 0; w < range->n_words; w += PIECE_WORDS) {
    uint32_t rows[PIECE_ROWS + 4];
    const uint32_t n = list_piece(range, w, rows);
    for (uint32_t j = 0; j < n; j++) {
      const uint64_t row = range->first_row + w * 64 + rows[j];
      uint32_t local;
      const uint64_t place = places[zps_partition_of(&part, row, &local)]++;
      ranks[place] = local;
      if (stage)
        memcpy(staged + place * row_bytes, values + row * row_bytes, row_bytes);
      else
        sources[place] = row;
    }
  }
}

static void fill_range(void *ctx, unsigned i) {
  struct zps_encoder *const encoder = ctx;
  const struct range range = range_of(encoder, i);
  uint64_t *const places = zps_encoder_counts(encoder, i);
  if (!encoder->is_staged)
    fill(encoder, &range, places, encoder->row_bytes, false);
  else if (encoder->row_bytes == 4)
    fill(encoder, &range, places, 4, true);
  else if (encoder->row_bytes == 8)
    fill(encoder, &range, places, 8, true);
  else
    fill(encoder, &range, places, encoder->row_bytes, true);
}

/* Takes the rows of partition `p` from the sorted result of Algorithm 1. */
static void fill_from_pairs(void *ctx, unsigned p) {
  struct zps_encoder *const encoder = ctx;
  const uint64_t *const starts = encoder->starts.data, row_bytes = encoder->row_bytes;
  const struct zps_sort_pair *const pairs = encoder->pairs.data;
  for (uint64_t i = starts[p]; i < starts[p + 1]; i++) {
    const uint64_t row = pairs[i].key;
    zps_partition_of(encoder->input.part, row, (uint32_t *)encoder->ranks.data + i);
    if (encoder->is_staged)
      memcpy((char *)encoder->staged.data + i * row_bytes, (const char *)encoder->input.values + row * row_bytes,
             row_bytes);
    else
      ((uint64_t *)encoder->sources.data)[i] = row;
  }
}

static zps_err_t partition_hierarchically(struct zps_encoder *encoder) {
  uint64_t total = 0;
  for (uint32_t p = 0; p < encoder->n_parts; p++) total += ((const uint32_t *)encoder->nnz.data)[p];
  const zps_err_t code = zps_buffer_need(&encoder->indices, total, sizeof(uint64_t));
  if (code != ZPS_OK) return code;
  uint64_t *rows = encoder->indices.data;
  for (unsigned i = 0; i < encoder->n_ranges; i++) {
    const struct range range = range_of(encoder, i);
    for (uint64_t w = 0; w < range.n_words; w += PIECE_WORDS) {
      uint32_t piece[PIECE_ROWS + 4];
      const uint32_t n = list_piece(&range, w, piece);
      for (uint32_t j = 0; j < n; j++) *rows++ = range.first_row + w * 64 + piece[j];
    }
  }
  return zps_encoder_hierarchical(encoder, encoder->indices.data, total);
}

zps_err_t zps_encoder_scan_dense(struct zps_encoder *encoder) {
  const struct zps_encode_input *const input = &encoder->input;
  zps_err_t code = zps_buffer_need(&encoder->bitmap, (input->part->rows + 63) / 64, sizeof(uint64_t));
  if (code == ZPS_OK) code = zps_encoder_cut(encoder, input->part->rows, encoder->row_bytes);
  if (code != ZPS_OK) return code;
  zps_workpool_for(encoder->pool, encoder->n_ranges, scan_range, encoder);

  /* Partitions are filled side by side. A cache line between them keeps those of 2^k rows, whose places would lie a
   * power of two apart, from contending for the same cache sets. */
  const uint64_t n_places = zps_encoder_place(encoder, LINE_PLACES);
  encoder->is_staged = encoder->row_bytes < ZPS_ENCODE_STAGE_BELOW_BYTES;
  code = zps_buffer_need(&encoder->ranks, n_places, sizeof(uint32_t));
  if (code == ZPS_OK)
    code = encoder->is_staged ? zps_buffer_need(&encoder->staged, n_places, encoder->row_bytes)
                              : zps_buffer_need(&encoder->sources, n_places, sizeof(uint64_t));
  if (code != ZPS_OK) return code;
  if (encoder->partitioner == ZPS_PARTITIONER_ORDERED) {
    zps_workpool_for(encoder->pool, encoder->n_ranges, fill_range, encoder);
    return ZPS_OK;
  }
  code = partition_hierarchically(encoder);
  if (code == ZPS_OK) zps_workpool_for(encoder->pool, encoder->n_parts, fill_from_pairs, encoder);
  return code;
}

/* Dense gradients: one look at the values lists the rows that are not zero, with partition, index and bytes, while they
 * are in cache; then the list, not the gradient, is dealt out to the partitions. */
#include <string.h>

#include "common/base/enlarge.h"
#include "common/codec/encode_impl.h"
#include "common/codec/locate.h"
#include "common/codec/rowscan.h"

/* Rows are looked at in blocks whose lists stay in the first-level cache. */
enum { BLOCK_ROWS = 2048, LINE_PLACES = 16, RANGES_PER_THREAD = 16 };

/* The number of rows that are looked at together from row `at` of the stripe on: rows of one chunk, which lie side by
 * side. */
static uint32_t block_rows(const struct zps_encoder *encoder, uint64_t at, uint64_t end) {
  const uint64_t chunk_rows = (uint64_t)1 << encoder->input.part->chunk_bits;
  uint64_t n = chunk_rows - (at & (chunk_rows - 1));
  if (n > end - at) n = end - at;
  return n < BLOCK_ROWS ? (uint32_t)n : BLOCK_ROWS;
}

/* Lists the rows that are not zero among `n_rows` from `row` on, which are at `values`, and appends their bytes or
 * sources to `items`. Those at `next` are looked at next. */
static uint32_t list_block(const struct zps_encoder *encoder, uint64_t row, const char *values, uint32_t n_rows,
                           const char *next, uint32_t *positions, char *items) {
  const struct zps_encode_input *const input = &encoder->input;
  const uint64_t row_bytes = encoder->row_bytes;
  const bool by_number = encoder->partitioner == ZPS_PARTITIONER_HIERARCHICAL;
  if (row_bytes == 4 && encoder->is_staged)
    return zps_simd()->compact(values, n_rows, zps_rowscan_mask(input->dtype), next, positions, (uint32_t *)items);
  uint64_t bits[BLOCK_ROWS / 64];
  const bool apart = input->last_row && row + n_rows == input->part->rows;
  if (apart) {
    const uint32_t last = n_rows - 1;
    bits[last / 64] = 0;
    zps_rowscan(input->dtype, input->width, values, last, bits);
    bits[last / 64] |= (uint64_t)!zps_rowscan_is_zero(input->dtype, input->width, input->last_row) << last % 64;
  } else {
    zps_rowscan(input->dtype, input->width, values, n_rows, bits);
  }
  const uint32_t n = zps_simd()->list(bits, (n_rows + 63) / 64, 0, positions);
  if (!encoder->is_staged)
    for (uint32_t j = 0; j < n; j++)
      ((uint64_t *)items)[j] = by_number ? row + positions[j] : (uintptr_t)values + positions[j] * row_bytes;
  else if (row_bytes == 8)
    for (uint32_t j = 0; j < n; j++) memcpy(items + j * 8ull, values + positions[j] * 8ull, 8);
  else if (row_bytes == 2)
    for (uint32_t j = 0; j < n; j++) memcpy(items + j * 2ull, values + positions[j] * 2ull, 2);
  else
    for (uint32_t j = 0; j < n; j++) memcpy(items + j * row_bytes, values + positions[j] * row_bytes, row_bytes);
  return n;
}

/* Rows that are looked at together, in one section or in none, and the number of the first of them. */
struct block {
  uint64_t row;
  struct zps_section_rows rows;
};

static struct block block_at(const struct zps_encoder *encoder, uint64_t at, uint64_t end) {
  struct block block = {.row = zps_partition_stripe_row(encoder->input.part, encoder->scan, at)};
  block.rows = zps_sections_rows(&encoder->sections, block.row, block_rows(encoder, at, end), encoder->row_bytes);
  return block;
}

static void scan_range(void *ctx, unsigned i) {
  struct zps_encoder *const encoder = ctx;
  const struct zps_partition stripe = encoder->scan_part;
  const uint64_t first = i * encoder->range_len, left = first < stripe.rows ? stripe.rows - first : 0;
  const uint64_t end = first + (left < encoder->range_len ? left : encoder->range_len);
  struct zps_encode_found local = encoder->found[i], *const found = &local; /* no line that another thread writes to */
  uint64_t *const counts = zps_encoder_counts(encoder, i);
  uint32_t positions[BLOCK_ROWS + ZPS_SIMD_SLACK] = {0};
  found->n = 0;
  found->code = ZPS_OK;
  uint32_t n_rows;
  struct block next = block_at(encoder, first, end);
  for (uint64_t at = first; at < end; at += n_rows) {
    const struct block block = next;
    n_rows = (uint32_t)block.rows.n;
    if (at + n_rows < end) next = block_at(encoder, at + n_rows, end);
    if (!block.rows.values) continue;
    const uint64_t need = found->n + BLOCK_ROWS + ZPS_SIMD_SLACK;
    found->code = zps_buffer_extend(&found->parts, need, sizeof(uint16_t));
    if (found->code == ZPS_OK) found->code = zps_buffer_extend(&found->indices, need, sizeof(uint32_t));
    if (found->code == ZPS_OK) found->code = zps_buffer_extend(&found->items, need, encoder->item_bytes);
    if (found->code != ZPS_OK) break;
    uint16_t *const parts = (uint16_t *)found->parts.data + found->n;
    char *const items = (char *)found->items.data + found->n * encoder->item_bytes;
    const uint32_t n = list_block(encoder, block.row, block.rows.values, n_rows,
                                  next.rows.values ? next.rows.values : block.rows.values, positions, items);
    zps_partition_locate(&stripe, at, positions, n, parts, (uint32_t *)found->indices.data + found->n);
    for (uint32_t j = 0; j < n; j++) counts[parts[j]]++;
    found->n += n;
  }
  encoder->found[i] = local;
}

static inline __attribute__((always_inline)) void deal(const struct zps_encode_found *found, uint64_t *places,
                                                       uint32_t *indices_out, char *items_out, uint64_t item_bytes) {
  const uint16_t *const parts = found->parts.data;
  const uint32_t *const indices = found->indices.data;
  const char *items = found->items.data;
  for (uint64_t j = 0; j < found->n; j++, items += item_bytes) {
    const uint64_t place = places[parts[j]]++;
    indices_out[place] = indices[j];
    memcpy(items_out + place * item_bytes, items, item_bytes);
  }
}

static void deal_range(void *ctx, unsigned i) {
  struct zps_encoder *const encoder = ctx;
  const struct zps_encode_found *const found = &encoder->found[i];
  uint64_t *const places = zps_encoder_counts(encoder, i);
  const struct zps_encode_lists *const lists = zps_encoder_lists(encoder);
  uint32_t *const indices = lists->indices.data;
  char *const items = encoder->is_staged ? lists->staged.data : lists->sources.data;
  if (encoder->item_bytes == 4)
    deal(found, places, indices, items, 4);
  else if (encoder->item_bytes == 8)
    deal(found, places, indices, items, 8);
  else if (encoder->item_bytes == 2)
    deal(found, places, indices, items, 2);
  else
    deal(found, places, indices, items, encoder->item_bytes);
}

/* Takes the rows of the scan's partition `p` from the result of Algorithm 1. */
static void deal_from_pairs(void *ctx, unsigned p) {
  struct zps_encoder *const encoder = ctx;
  const uint64_t *const starts = (const uint64_t *)encoder->starts.data + encoder->first_part;
  const struct zps_sort_pair *const pairs = encoder->pairs.data;
  const struct zps_encode_lists *const lists = zps_encoder_lists(encoder);
  for (uint64_t i = starts[p]; i < starts[p + 1]; i++) {
    zps_partition_of(encoder->input.part, pairs[i].key, (uint32_t *)lists->indices.data + i);
    ((uint64_t *)lists->sources.data)[i] = pairs[i].key;
  }
}

static zps_err_t partition_hierarchically(struct zps_encoder *encoder) {
  uint64_t total = 0;
  for (unsigned i = 0; i < encoder->n_ranges; i++) total += encoder->found[i].n;
  zps_err_t code = zps_buffer_need(&encoder->indices, total, sizeof(uint64_t));
  if (code != ZPS_OK) return code;
  uint64_t *rows = encoder->indices.data;
  for (unsigned i = 0; i < encoder->n_ranges; i++) {
    const struct zps_encode_found *const found = &encoder->found[i];
    if (found->n) memcpy(rows, found->items.data, found->n * sizeof *rows);
    rows += found->n;
  }
  code = zps_encoder_hierarchical(encoder, encoder->indices.data, total);
  if (code == ZPS_OK) zps_workpool_for(encoder->pool, encoder->scan_parts, deal_from_pairs, encoder);
  return code;
}

zps_err_t zps_encoder_need_found(struct zps_encoder *encoder) {
  if (encoder->n_found >= encoder->n_ranges) return ZPS_OK;
  if (!zps_enlarge(&encoder->found, encoder->n_ranges, sizeof *encoder->found)) return ZPS_ERR_NOMEM;
  memset(encoder->found + encoder->n_found, 0, (encoder->n_ranges - encoder->n_found) * sizeof *encoder->found);
  encoder->n_found = encoder->n_ranges;
  return ZPS_OK;
}

/* The last row, where it was found, is taken from `sums`. */
static void place_last(struct zps_encoder *encoder) {
  const struct zps_encode_input *const input = &encoder->input;
  if (!input->last_row) return;
  uint32_t local;
  const uint32_t p = zps_partition_of(input->part, input->part->rows - 1, &local);
  if (p / encoder->scan_parts != encoder->scan) return;
  const uint64_t start = ((const uint64_t *)encoder->starts.data)[p];
  const struct zps_encode_lists *const lists = zps_encoder_lists(encoder);
  uint32_t place = zps_encoder_nnz(encoder, p); /* the last one's, but with any_order */
  while (place > 0 && ((const uint32_t *)lists->indices.data)[start + place - 1] != local) {
    if (!encoder->input.any_order) return;
    place--;
  }
  if (place > 0) ((uint64_t *)lists->sources.data)[start + place - 1] = ZPS_ENCODE_SUM_BIT;
}

static bool is_ordered(const struct zps_encoder *encoder) {
  return encoder->partitioner != ZPS_PARTITIONER_HIERARCHICAL;
}

zps_err_t zps_encoder_begin_dense(struct zps_encoder *encoder) {
  encoder->is_staged = is_ordered(encoder) && encoder->row_bytes < ZPS_ENCODE_STAGE_BELOW_BYTES;
  encoder->item_bytes = encoder->is_staged ? encoder->row_bytes : sizeof(uint64_t);
  if (!encoder->input.last_row) return ZPS_OK;
  const zps_err_t code = zps_buffer_need(&encoder->sums, 1, encoder->sum_bytes);
  if (code == ZPS_OK) zps_encoder_widen(encoder, encoder->input.last_row, 1, encoder->sums.data);
  return code;
}

zps_err_t zps_encoder_scan_dense(struct zps_encoder *encoder) {
  struct zps_encode_lists *const lists = zps_encoder_lists(encoder);
  zps_err_t code = zps_encoder_cut(encoder, encoder->scan_part.rows, encoder->row_bytes, RANGES_PER_THREAD);
  if (code == ZPS_OK) code = zps_encoder_need_found(encoder);
  if (code != ZPS_OK) return code;
  zps_workpool_for(encoder->pool, encoder->n_ranges, scan_range, encoder);
  for (unsigned i = 0; i < encoder->n_ranges; i++)
    if (encoder->found[i].code != ZPS_OK) return encoder->found[i].code;

  /* Partitions are filled side by side. A cache line between them keeps those of 2^k rows, whose places would lie a
   * power of two apart, from contending for the same cache sets. */
  const uint64_t n_places = zps_encoder_place(encoder, LINE_PLACES);
  code = zps_buffer_need(&lists->indices, n_places, sizeof(uint32_t));
  if (code == ZPS_OK)
    code = zps_buffer_need(encoder->is_staged ? &lists->staged : &lists->sources, n_places, encoder->item_bytes);
  if (code != ZPS_OK) return code;
  if (is_ordered(encoder))
    zps_workpool_for(encoder->pool, encoder->n_ranges, deal_range, encoder);
  else
    code = partition_hierarchically(encoder);
  if (code == ZPS_OK) place_last(encoder);
  return code;
}

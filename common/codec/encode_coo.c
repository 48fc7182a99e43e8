/* COO gradients: entries are dealt to their partitions in order of appearance, sorted there by index (stably), and
 * repeats added up. Partitions are independent of each other from the deal on. */
#include <string.h>

#include "common/codec/encode_impl.h"
#include "common/codec/rowscan.h"

static uint64_t range_end(const struct zps_encoder *encoder, unsigned i) {
  const uint64_t end = (i + 1) * encoder->range_len;
  return end < encoder->input.n_entries ? end : encoder->input.n_entries;
}

static void count_range(void *ctx, unsigned i) {
  struct zps_encoder *const encoder = ctx;
  const struct zps_encode_input *const input = &encoder->input;
  uint64_t *const counts = zps_encoder_counts(encoder, i), *const bad = &((uint64_t *)encoder->bad.data)[i];
  *bad = UINT64_MAX;
  for (uint64_t entry = i * encoder->range_len; entry < range_end(encoder, i); entry++) {
    const uint64_t row = (uint64_t)input->rows[entry];
    uint32_t local;
    if (row >= input->part->rows) {
      *bad = entry;
      return;
    }
    counts[zps_partition_of(input->part, row, &local)]++;
  }
}

static void deal_range(void *ctx, unsigned i) {
  struct zps_encoder *const encoder = ctx;
  const struct zps_encode_input *const input = &encoder->input;
  uint64_t *const places = zps_encoder_counts(encoder, i);
  struct zps_sort_pair *const pairs = encoder->pairs.data;
  for (uint64_t entry = i * encoder->range_len; entry < range_end(encoder, i); entry++) {
    uint32_t local;
    const uint32_t p = zps_partition_of(input->part, (uint64_t)input->rows[entry], &local);
    pairs[places[p]++] = (struct zps_sort_pair){.key = local, .value = entry};
  }
}

/* Of each partition, as many as the largest needs. */
static uint64_t marks_words(const struct zps_encoder *encoder) {
  const struct zps_partition *const part = encoder->input.part;
  return (part->n_groups << part->block_bits) / 64 + 1;
}

/* All zero: they are left as they are found. */
static zps_err_t need_marks(struct zps_encoder *encoder) {
  struct zps_buffer *const marks = &encoder->marks;
  const uint64_t size_bytes = encoder->n_parts * marks_words(encoder) * sizeof(uint64_t);
  if (marks->data && size_bytes <= marks->size_bytes) return ZPS_OK;
  const zps_err_t code = zps_buffer_need(marks, size_bytes, 1);
  if (code == ZPS_OK) memset(marks->data, 0, marks->size_bytes);
  return code;
}

/* Algorithm 1 left entries as keys, in order of appearance: the counterpart of the order that deal_range() leaves. */
static void deal_from_pairs(void *ctx, unsigned p) {
  struct zps_encoder *const encoder = ctx;
  const uint64_t *const starts = encoder->starts.data;
  struct zps_sort_pair *const pairs = encoder->pairs.data;
  for (uint64_t i = starts[p]; i < starts[p + 1]; i++) {
    uint32_t local;
    pairs[i].value = pairs[i].key;
    zps_partition_of(encoder->input.part, (uint64_t)encoder->input.rows[pairs[i].value], &local);
    pairs[i].key = local;
  }
}

/* Entries in any order stay so where no two have one index; a bit for each index tells. */
static bool are_distinct(struct zps_encoder *encoder, unsigned p) {
  const uint64_t *const starts = encoder->starts.data;
  const struct zps_sort_pair *const pairs = encoder->pairs.data;
  uint64_t *const marks = (uint64_t *)encoder->marks.data + p * marks_words(encoder), i = starts[p];
  for (; i < starts[p + 1]; i++) {
    uint64_t *const word = &marks[pairs[i].key / 64], bit = 1ull << pairs[i].key % 64;
    if (*word & bit) break;
    *word |= bit;
  }
  const bool all = i == starts[p + 1];
  for (i = starts[p]; i < starts[p + 1]; i++) marks[pairs[i].key / 64] = 0;
  return all;
}

/* Back to the order of appearance. */
static void order_entries(struct zps_encoder *encoder, unsigned p) {
  const uint64_t *const starts = encoder->starts.data;
  struct zps_sort_pair *const pairs = encoder->pairs.data, *const scratch = encoder->scratch.data;
  for (uint64_t i = starts[p]; i < starts[p + 1]; i++) pairs[i].key = pairs[i].value;
  zps_sort_pairs(pairs + starts[p], scratch + starts[p], starts[p + 1] - starts[p]);
  deal_from_pairs(encoder, p);
}

/* The end of the run of entries with the index of the entry at `i`. */
static uint64_t run_end(const struct zps_sort_pair *pairs, uint64_t i, uint64_t end) {
  const uint64_t index = pairs[i].key;
  while (++i < end && pairs[i].key == index) continue;
  return i;
}

static void sort_partition(void *ctx, unsigned p) {
  struct zps_encoder *const encoder = ctx;
  const uint64_t *const starts = encoder->starts.data, end = starts[p + 1];
  struct zps_sort_pair *const pairs = encoder->pairs.data, *const scratch = encoder->scratch.data;
  uint64_t n_repeated = 0;
  if (encoder->input.any_order) {
    ((uint64_t *)encoder->repeats.data)[p] = 0;
    if (are_distinct(encoder, p)) return;
    order_entries(encoder, p);
  }
  zps_sort_pairs(pairs + starts[p], scratch + starts[p], end - starts[p]);
  for (uint64_t i = starts[p], next; i < end; i = next) {
    next = run_end(pairs, i, end);
    n_repeated += next - i > 1;
  }
  ((uint64_t *)encoder->repeats.data)[p] = n_repeated;
}

/* Adds up repeated rows and drops those that are all zero, unless they are asked for. */
static void merge_partition(void *ctx, unsigned p) {
  struct zps_encoder *const encoder = ctx;
  const struct zps_encode_input *const input = &encoder->input;
  const uint64_t *const starts = encoder->starts.data, end = starts[p + 1], row_bytes = encoder->row_bytes;
  const enum zps_dtype sum_dtype = zps_dtype_sum(input->dtype);
  const struct zps_sort_pair *const pairs = encoder->pairs.data;
  const char *const values = input->values;
  char *const sums = encoder->sums.data;
  uint32_t *const indices = zps_encoder_lists(encoder)->indices.data;
  uint64_t *const sources = zps_encoder_lists(encoder)->sources.data;
  uint64_t place = starts[p], sum = ((const uint64_t *)encoder->repeats.data)[p];
  for (uint64_t i = starts[p], next; i < end; i = next) {
    next = run_end(pairs, i, end);
    uint64_t source = pairs[i].value;
    const bool is_sum = next - i > 1;
    const char *row = values + source * row_bytes;
    if (is_sum) {
      char *const to = sums + sum * encoder->sum_bytes;
      memset(to, 0, encoder->sum_bytes);
      for (uint64_t j = i; j < next; j++) zps_encoder_add(encoder, to, values + pairs[j].value * row_bytes);
      source = sum++ | ZPS_ENCODE_SUM_BIT;
      row = to;
    }
    if (!input->zero_rows && zps_rowscan_is_zero(is_sum ? sum_dtype : input->dtype, input->width, row)) continue;
    if (is_sum) zps_encoder_note_sums(encoder, p, row, 1);
    indices[place] = (uint32_t)pairs[i].key;
    sources[place++] = source;
  }
  ((uint32_t *)encoder->nnz.data)[p] = (uint32_t)(place - starts[p]);
}

static zps_err_t partition_hierarchically(struct zps_encoder *encoder) {
  const uint64_t n = encoder->input.n_entries;
  zps_err_t code = zps_buffer_need(&encoder->indices, n, sizeof(uint64_t));
  if (code == ZPS_OK && encoder->input.any_order) code = need_marks(encoder);
  if (code != ZPS_OK) return code;
  for (uint64_t entry = 0; entry < n; entry++) ((uint64_t *)encoder->indices.data)[entry] = entry;
  code = zps_encoder_hierarchical(encoder, encoder->indices.data, n);
  if (code == ZPS_OK) zps_workpool_for(encoder->pool, encoder->n_parts, deal_from_pairs, encoder);
  return code;
}

/* Gives every partition its part of `sums`, and makes room. */
static zps_err_t place_sums(struct zps_encoder *encoder) {
  uint64_t *const repeats = encoder->repeats.data, total = 0;
  for (uint32_t p = 0; p < encoder->n_parts; p++) {
    const uint64_t n = repeats[p];
    repeats[p] = total;
    total += n;
  }
  return zps_buffer_need(&encoder->sums, total, encoder->sum_bytes);
}

zps_err_t zps_encoder_scan_coo(struct zps_encoder *encoder, struct zps_error *error) {
  enum { RANGES_PER_THREAD = 4 };
  const uint64_t n = encoder->input.n_entries;
  struct zps_encode_lists *const lists = zps_encoder_lists(encoder);
  zps_err_t code = zps_encoder_cut(encoder, n, sizeof(struct zps_sort_pair), RANGES_PER_THREAD);
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->bad, encoder->n_ranges, sizeof(uint64_t));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->repeats, encoder->n_parts, sizeof(uint64_t));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->pairs, n, sizeof(struct zps_sort_pair));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->scratch, n, sizeof(struct zps_sort_pair));
  if (code == ZPS_OK) code = zps_buffer_need(&lists->indices, n, sizeof(uint32_t));
  if (code == ZPS_OK) code = zps_buffer_need(&lists->sources, n, sizeof(uint64_t));
  if (code != ZPS_OK) return code;

  zps_workpool_for(encoder->pool, encoder->n_ranges, count_range, encoder);
  code = zps_encoder_check_rows(encoder, error);
  if (code != ZPS_OK) return code;
  encoder->is_staged = false;
  if (encoder->partitioner != ZPS_PARTITIONER_HIERARCHICAL) {
    ((uint64_t *)encoder->starts.data)[encoder->n_parts] = zps_encoder_place(encoder, 0);
    zps_workpool_for(encoder->pool, encoder->n_ranges, deal_range, encoder);
  } else {
    code = partition_hierarchically(encoder);
    if (code != ZPS_OK) return code;
  }
  zps_workpool_for(encoder->pool, encoder->n_parts, sort_partition, encoder);
  code = place_sums(encoder);
  if (code == ZPS_OK) zps_workpool_for(encoder->pool, encoder->n_parts, merge_partition, encoder);
  return code;
}

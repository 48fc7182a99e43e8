/* COO gradients: entries are dealt to their partitions in order of appearance, sorted there by index (stably), and
 * repeats added up. Partitions are independent of each other from the deal on. Of sections that are dense, among lists,
 * the rows that are not zero are such entries. */
#include <string.h>

#include "common/codec/encode_impl.h"
#include "common/codec/rowscan.h"
#include "common/codec/simd/simd.h"

static uint64_t range_end(const struct zps_encoder *encoder, unsigned i) {
  const uint64_t end = (i + 1) * encoder->range_len;
  return end < encoder->sections.n_entries ? end : encoder->sections.n_entries;
}

/* The part of a range that is in one section. */
struct run {
  const struct zps_section *section; /* NULL: there is no more */
  uint64_t first, end;               /* of its entries; dense: rows */
};

/* The run behind this one. */
static struct run next_run(const struct zps_encoder *encoder, unsigned i, struct run run) {
  const struct zps_sections *const sections = &encoder->sections;
  const uint64_t end = range_end(encoder, i);
  const struct zps_section *const section = run.section + 1;
  if (section == sections->list + sections->n || section->first_entry >= end) return (struct run){0};
  const uint64_t left = end - section->first_entry;
  return (struct run){section, 0, left < section->n_entries ? left : section->n_entries};
}

static struct run first_run(const struct zps_encoder *encoder, unsigned i) {
  const struct zps_sections *const sections = &encoder->sections;
  const uint64_t first = i * encoder->range_len, end = range_end(encoder, i);
  uint32_t low = 0, high = sections->n; /* the last section that begins there or before */
  while (low + 1 < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (sections->list[middle].first_entry <= first)
      low = middle;
    else
      high = middle;
  }
  const struct zps_section *const section = &sections->list[low];
  const uint64_t from = first - section->first_entry, to = end > first ? end - section->first_entry : from;
  const uint64_t n = section->n_entries;
  return (struct run){section, from < n ? from : n, to < n ? to : n};
}

static bool count_list(const struct zps_encoder *encoder, struct run run, uint64_t *counts, uint64_t *bad) {
  const struct zps_section section = *run.section;
  for (uint64_t entry = run.first; entry < run.end; entry++) {
    const uint64_t row = (uint64_t)section.rows[entry];
    uint32_t local;
    if (row >= section.n_rows) {
      *bad = section.first_entry + entry;
      return false;
    }
    counts[zps_partition_of(encoder->input.part, section.first_row + row, &local)]++;
  }
  return true;
}

/* Lists the rows that are not zero. */
static zps_err_t count_dense(const struct zps_encoder *encoder, struct run run, uint64_t *counts,
                             struct zps_encode_found *found) {
  enum { BLOCK_ROWS = 1024 };
  const struct zps_encode_input *const input = &encoder->input;
  uint64_t bits[BLOCK_ROWS / 64];
  uint32_t positions[BLOCK_ROWS + ZPS_SIMD_SLACK] = {0}, n_rows;
  for (uint64_t at = run.first; at < run.end; at += n_rows) {
    n_rows = run.end - at < BLOCK_ROWS ? (uint32_t)(run.end - at) : BLOCK_ROWS;
    const char *const values = (const char *)run.section->values + at * encoder->row_bytes;
    zps_rowscan(input->dtype, input->width, values, n_rows, bits);
    const uint32_t n = zps_simd()->list(bits, (n_rows + 63) / 64, 0, positions);
    zps_err_t code = zps_buffer_extend(&found->parts, found->n + n, sizeof(uint16_t));
    if (code == ZPS_OK) code = zps_buffer_extend(&found->indices, found->n + n, sizeof(uint32_t));
    if (code == ZPS_OK) code = zps_buffer_extend(&found->items, found->n + n, sizeof(uint64_t));
    if (code != ZPS_OK) return code;
    for (uint32_t j = 0; j < n; j++, found->n++) {
      const uint64_t row = run.section->first_row + at + positions[j];
      const uint32_t p = zps_partition_of(input->part, row, (uint32_t *)found->indices.data + found->n);
      ((uint16_t *)found->parts.data)[found->n] = (uint16_t)p;
      ((uint64_t *)found->items.data)[found->n] = (uintptr_t)values + positions[j] * encoder->row_bytes;
      counts[p]++;
    }
  }
  return ZPS_OK;
}

static void count_range(void *ctx, unsigned i) {
  struct zps_encoder *const encoder = ctx;
  uint64_t *const counts = zps_encoder_counts(encoder, i), *const bad = &((uint64_t *)encoder->bad.data)[i];
  struct zps_encode_found *const found = &encoder->found[i];
  *bad = UINT64_MAX;
  found->n = 0;
  found->code = ZPS_OK;
  for (struct run run = first_run(encoder, i); run.section && found->code == ZPS_OK; run = next_run(encoder, i, run)) {
    if (!run.section->rows)
      found->code = count_dense(encoder, run, counts, found);
    else if (!count_list(encoder, run, counts, bad))
      return;
  }
}

/* The order of entries of one row alone matters, and no two sections have the same row. */
static void deal_range(void *ctx, unsigned i) {
  struct zps_encoder *const encoder = ctx;
  const struct zps_encode_found *const found = &encoder->found[i];
  uint64_t *const places = zps_encoder_counts(encoder, i);
  struct zps_sort_pair *const pairs = encoder->pairs.data;
  for (struct run run = first_run(encoder, i); run.section; run = next_run(encoder, i, run)) {
    const struct zps_section section = *run.section;
    for (uint64_t entry = run.first; section.rows && entry < run.end; entry++) {
      uint32_t local;
      const uint32_t p =
          zps_partition_of(encoder->input.part, section.first_row + (uint64_t)section.rows[entry], &local);
      const uintptr_t at = (uintptr_t)section.values + entry * encoder->row_bytes;
      pairs[places[p]++] = (struct zps_sort_pair){.key = local, .value = at};
    }
  }
  for (uint64_t j = 0; j < found->n; j++)
    pairs[places[((const uint16_t *)found->parts.data)[j]]++] = (struct zps_sort_pair){
        .key = ((const uint32_t *)found->indices.data)[j], .value = ((const uint64_t *)found->items.data)[j]};
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
  const uint64_t *const starts = encoder->starts.data, end = starts[p + 1];
  const enum zps_dtype sum_dtype = zps_dtype_sum(input->dtype);
  const struct zps_sort_pair *const pairs = encoder->pairs.data;
  char *const sums = encoder->sums.data;
  uint32_t *const indices = zps_encoder_lists(encoder)->indices.data;
  uint64_t *const sources = zps_encoder_lists(encoder)->sources.data;
  uint64_t place = starts[p], sum = ((const uint64_t *)encoder->repeats.data)[p];
  for (uint64_t i = starts[p], next; i < end; i = next) {
    next = run_end(pairs, i, end);
    uint64_t source = pairs[i].value;
    const bool is_sum = next - i > 1;
    const char *row = zps_encoder_source(encoder, source);
    if (is_sum) {
      char *const to = sums + sum * encoder->sum_bytes;
      memset(to, 0, encoder->sum_bytes);
      for (uint64_t j = i; j < next; j++) zps_encoder_add(encoder, to, zps_encoder_source(encoder, pairs[j].value));
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
  const bool is_hierarchical = encoder->partitioner == ZPS_PARTITIONER_HIERARCHICAL;
  uint64_t n = encoder->sections.n_entries;
  struct zps_encode_lists *const lists = zps_encoder_lists(encoder);
  zps_err_t code = zps_encoder_cut(encoder, n, sizeof(struct zps_sort_pair), RANGES_PER_THREAD);
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->bad, encoder->n_ranges, sizeof(uint64_t));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->repeats, encoder->n_parts, sizeof(uint64_t));
  if (code == ZPS_OK) code = zps_encoder_need_found(encoder);
  if (code != ZPS_OK) return code;

  zps_workpool_for(encoder->pool, encoder->n_ranges, count_range, encoder);
  code = zps_encoder_check_rows(encoder, error);
  for (unsigned i = 0; i < encoder->n_ranges && code == ZPS_OK; i++) code = encoder->found[i].code;
  if (code != ZPS_OK) return code;
  encoder->is_staged = false;
  if (!is_hierarchical) ((uint64_t *)encoder->starts.data)[encoder->n_parts] = n = zps_encoder_place(encoder, 0);
  code = zps_buffer_need(&encoder->pairs, n, sizeof(struct zps_sort_pair));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->scratch, n, sizeof(struct zps_sort_pair));
  if (code == ZPS_OK) code = zps_buffer_need(&lists->indices, n, sizeof(uint32_t));
  if (code == ZPS_OK) code = zps_buffer_need(&lists->sources, n, sizeof(uint64_t));
  if (code == ZPS_OK && is_hierarchical) code = partition_hierarchically(encoder);
  if (code != ZPS_OK) return code;
  if (!is_hierarchical) zps_workpool_for(encoder->pool, encoder->n_ranges, deal_range, encoder);
  zps_workpool_for(encoder->pool, encoder->n_parts, sort_partition, encoder);
  code = place_sums(encoder);
  if (code == ZPS_OK) zps_workpool_for(encoder->pool, encoder->n_parts, merge_partition, encoder);
  return code;
}

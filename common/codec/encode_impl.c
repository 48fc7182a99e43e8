/* Shared by the ways of finding rows: cutting the input into ranges, and dealing the rows that these found to
 * partitions. */
#include <string.h>

#include "common/codec/encode_impl.h"
#include "common/codec/hierarchical.h"

zps_err_t zps_encoder_cut(struct zps_encoder *encoder, uint64_t len, uint64_t item_bytes, unsigned per_thread) {
  enum { RANGE_BYTES_MIN = 256 << 10, RANGES_MAX = 256, BYTES_PER_COUNT_MIN = 64, RANGE_LEN_MAX_BITS = 31 };
  const unsigned n_threads = 1 + (encoder->pool ? zps_workpool_threads(encoder->pool) : 0);
  uint64_t n_ranges = n_threads == 1 ? 1 : n_threads * (uint64_t)per_thread;
  if (n_ranges > RANGES_MAX) n_ranges = RANGES_MAX;
  const uint64_t bytes_min = (uint64_t)encoder->scan_parts * BYTES_PER_COUNT_MIN;
  const uint64_t range_bytes_min = bytes_min > RANGE_BYTES_MIN ? bytes_min : RANGE_BYTES_MIN;
  if (n_ranges > len * item_bytes / range_bytes_min) n_ranges = len * item_bytes / range_bytes_min;
  if (n_ranges <= len >> RANGE_LEN_MAX_BITS) n_ranges = (len >> RANGE_LEN_MAX_BITS) + 1;
  encoder->range_len = ((len / n_ranges + 1) + 63) & ~63ull;
  encoder->n_ranges = (unsigned)(len / encoder->range_len + 1);
  const uint64_t n_counts = (uint64_t)encoder->n_ranges * zps_encoder_counts_stride(encoder);
  const zps_err_t code = zps_buffer_need(&encoder->counts, n_counts, sizeof(uint64_t));
  if (code == ZPS_OK) memset(encoder->counts.data, 0, n_counts * sizeof(uint64_t));
  return code;
}

uint64_t zps_encoder_place(struct zps_encoder *encoder, uint64_t gap) {
  uint64_t *const starts = (uint64_t *)encoder->starts.data + encoder->first_part, place = 0;
  uint32_t *const nnz = (uint32_t *)encoder->nnz.data + encoder->first_part;
  for (uint32_t p = 0; p < encoder->scan_parts; p++) {
    starts[p] = place;
    for (unsigned range = 0; range < encoder->n_ranges; range++) {
      uint64_t *const count = &zps_encoder_counts(encoder, range)[p];
      const uint64_t n = *count;
      *count = place;
      place += n;
    }
    nnz[p] = (uint32_t)(place - starts[p]);
    place += gap;
  }
  return place;
}

static uint32_t partition_of_index(void *ctx, uint64_t index) {
  const struct zps_encoder *const encoder = ctx;
  const struct zps_encode_input *const input = &encoder->input;
  const uint64_t row = input->rows ? (uint64_t)input->rows[index] : index;
  uint32_t local;
  if (zps_partition_is_hashed(input->part)) return zps_partition_hash(input->part->seed, input->part->n_parts, row);
  return zps_partition_of(input->part, row, &local) - encoder->first_part;
}

static void sort_partition(void *ctx, unsigned p) {
  struct zps_encoder *const encoder = ctx;
  const uint64_t *const starts = (const uint64_t *)encoder->starts.data + encoder->first_part;
  const uint64_t *const indices = encoder->partitioned.data;
  struct zps_sort_pair *const pairs = encoder->pairs.data, *const scratch = encoder->scratch.data;
  for (uint64_t i = starts[p]; i < starts[p + 1]; i++) pairs[i] = (struct zps_sort_pair){.key = indices[i]};
  if (!encoder->input.any_order) zps_sort_pairs(pairs + starts[p], scratch + starts[p], starts[p + 1] - starts[p]);
}

static void add_stats(struct zps_hier_stats *to, const struct zps_hier_stats *stats) {
  to->parallel += stats->parallel;
  to->serial += stats->serial;
  to->lost_races += stats->lost_races;
  to->redone += stats->redone;
}

zps_err_t zps_encoder_hierarchical(struct zps_encoder *encoder, const uint64_t *indices, uint64_t n) {
  const struct zps_hier_config config = {.n_parts = encoder->scan_parts,
                                         .options = encoder->input.hashing,
                                         .seed = ~encoder->input.part->seed, /* h_1.. independent of h0 */
                                         .h0 = partition_of_index,
                                         .h0_ctx = encoder};
  uint64_t *const starts = (uint64_t *)encoder->starts.data + encoder->first_part;
  struct zps_hier_stats stats;
  zps_err_t code = zps_buffer_need(&encoder->partitioned, n, sizeof(uint64_t));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->pairs, n, sizeof(struct zps_sort_pair));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->scratch, n, sizeof(struct zps_sort_pair));
  if (code == ZPS_OK)
    code = zps_hier_partition(&config, indices, n, encoder->pool, encoder->partitioned.data, starts, &stats);
  if (code != ZPS_OK) return code;
  add_stats(&encoder->hashed, &stats);
  zps_workpool_for(encoder->pool, encoder->scan_parts, sort_partition, encoder);
  return code;
}

void zps_encoder_note_sums(struct zps_encoder *encoder, uint32_t p, const void *sums, uint64_t n_rows) {
  const struct zps_encode_input *const input = &encoder->input;
  if (!zps_dtype_is_half(input->dtype)) return;
  uint8_t *const is_wide = &((uint8_t *)encoder->wide.data)[p];
  if (!*is_wide) *is_wide = !zps_values_hold(zps_values_own(input->dtype), sums, n_rows * input->width);
}

enum zps_value_codec zps_encoder_value_codec(const struct zps_encoder *encoder, uint32_t p) {
  const struct zps_encode_input *const input = &encoder->input;
  const bool may_be_wide = zps_dtype_is_half(input->dtype) && input->value_codec == zps_values_own(input->dtype);
  return may_be_wide && ((const uint8_t *)encoder->wide.data)[p] ? ZPS_VALUES_RAW : input->value_codec;
}

uint32_t zps_encoder_nnz(const struct zps_encoder *encoder, uint32_t p) {
  return p < encoder->n_parts ? ((const uint32_t *)encoder->nnz.data)[p] : 0;
}

static zps_err_t name_in_section(const struct zps_encode_input *input, uint64_t bad, struct zps_error *error) {
  uint32_t k = 0;
  while (bad - input->sections->list[k].first_entry >= input->sections->list[k].n_entries) k++;
  const struct zps_section *const section = &input->sections->list[k];
  const uint64_t i = bad - section->first_entry;
  return zps_fail(error, ZPS_ERR_INVALID, "row number %lld at position %llu of %llu of part %u: it has rows 0 to %llu",
                  (long long)section->rows[i], (unsigned long long)i, (unsigned long long)section->n_entries, k,
                  (unsigned long long)section->n_rows - 1);
}

zps_err_t zps_encoder_check_rows(const struct zps_encoder *encoder, struct zps_error *error) {
  const struct zps_encode_input *const input = &encoder->input;
  for (unsigned i = 0; i < encoder->n_ranges; i++) {
    const uint64_t bad = ((const uint64_t *)encoder->bad.data)[i];
    if (bad == UINT64_MAX) continue;
    if (input->sections) return name_in_section(input, bad, error);
    return zps_fail(error, ZPS_ERR_INVALID, "row number %lld at position %llu of %llu: the tensor has rows 0 to %llu",
                    (long long)input->rows[bad], (unsigned long long)bad, (unsigned long long)input->n_entries,
                    (unsigned long long)input->part->rows - 1);
  }
  return ZPS_OK;
}

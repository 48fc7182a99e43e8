/*
 * COO gradients of single floats to one partition, where ranks are row numbers: entries that ascend as they are, or too
 * few of them for sums of the whole partition to be worth looking at (encode_singles.c). Few are sorted with their
 * values, in less memory than there is cache.
 */
#include <string.h>

#include "common/codec/encode_internal.h"
#include "common/codec/simd/simd.h"

enum {
  ENTRIES_MAX = 1 << 15,
  ROWS_PER_ENTRY_MIN = 512, /* more of them than that have cache lines of sums in common */
};

bool zps_encoder_ascends(const struct zps_encode_input *input) {
  for (uint64_t i = 1; i < input->n_entries; i++)
    if (input->rows[i - 1] >= input->rows[i]) return false;
  return true;
}

bool zps_encoder_is_few(const struct zps_encoder *encoder) {
  const struct zps_encode_input *const input = &encoder->input;
  if (input->dtype != ZPS_DTYPE_F32 || input->width != 1 || input->zero_rows || encoder->n_parts != 1 ||
      encoder->partitioner != ZPS_PARTITIONER_ORDERED)
    return false;
  return (input->n_entries <= ENTRIES_MAX && input->n_entries < input->part->rows / ROWS_PER_ENTRY_MIN) ||
         zps_encoder_ascends(input);
}

/* The first row number that the tensor does not have, or n_entries. */
static uint64_t find_bad(const struct zps_encode_input *input) {
  uint64_t i = 0;
  while (i < input->n_entries && (uint64_t)input->rows[i] < input->part->rows) i++;
  return i;
}

/* Entries in the order of ranks, repeats in order of appearance: added up, and left out where that makes zero. */
static uint32_t take_sorted(const struct zps_sort_entry *entries, uint64_t n, uint32_t *ranks, float *staged) {
  uint32_t nnz = 0;
  for (uint64_t i = 0; i < n;) {
    const uint32_t rank = entries[i].key;
    float sum = 0;
    for (; i < n && entries[i].key == rank; i++) sum += entries[i].value;
    ranks[nnz] = rank;
    staged[nnz] = sum;
    nnz += sum != 0;
  }
  return nnz;
}

static uint32_t take_as_they_are(const struct zps_encode_input *input, uint32_t *ranks, float *staged) {
  const float *const values = input->values;
  uint32_t nnz = 0;
  for (uint64_t i = 0; i < input->n_entries; i++) {
    ranks[nnz] = (uint32_t)input->rows[i];
    staged[nnz] = values[i];
    nnz += values[i] != 0;
  }
  return nnz;
}

zps_err_t zps_encoder_scan_few(struct zps_encoder *encoder, struct zps_error *error) {
  const struct zps_encode_input *const input = &encoder->input;
  const uint64_t n = input->n_entries, bad = find_bad(input);
  struct zps_encode_lists *const lists = zps_encoder_lists(encoder);
  const bool sorted = zps_encoder_ascends(input);
  zps_err_t code = zps_buffer_need(&lists->ranks, n + ZPS_SIMD_SLACK, sizeof(uint32_t));
  if (code == ZPS_OK) code = zps_buffer_need(&lists->staged, n + ZPS_SIMD_SLACK, sizeof(float));
  if (code == ZPS_OK && !sorted) code = zps_buffer_need(&encoder->pairs, n, sizeof(struct zps_sort_entry));
  if (code == ZPS_OK && !sorted) code = zps_buffer_need(&encoder->scratch, n, sizeof(struct zps_sort_entry));
  if (code != ZPS_OK) return code;
  memset(encoder->bad.data, 0xff, encoder->n_ranges * sizeof(uint64_t));
  if (bad < n) {
    *(uint64_t *)encoder->bad.data = bad;
    return zps_encoder_check_rows(encoder, error);
  }
  encoder->is_staged = true;
  uint32_t *const ranks = lists->ranks.data;
  float *const staged = lists->staged.data;
  uint64_t *const starts = encoder->starts.data;
  starts[0] = 0;
  starts[1] = n;
  if (sorted)
    *(uint32_t *)encoder->nnz.data = take_as_they_are(input, ranks, staged);
  else
    *(uint32_t *)encoder->nnz.data = take_sorted(zps_sort_floats(input->rows, input->values, n, input->part->rows - 1,
                                                                 encoder->pairs.data, encoder->scratch.data),
                                                 n, ranks, staged);
  return ZPS_OK;
}

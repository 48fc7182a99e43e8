/*
 * COO gradients of single floats to one partition, where indices are row numbers: entries that ascend as they are, or
 * too few of them for sums of the whole partition to be worth looking at (encode_singles.c). Few are sorted with their
 * values, in less memory than there is cache.
 */
#include "common/codec/encode_impl.h"
#include "common/codec/simd/simd.h"

/* The first row number that the tensor does not have, or n_entries. */
static uint64_t find_bad(const struct zps_encode_input *input, bool ascends) {
  const uint64_t n = input->n_entries;
  if (ascends && n > 0 && input->rows[0] >= 0 && (uint64_t)input->rows[n - 1] < input->part->rows) return n;
  uint64_t i = 0;
  while (i < input->n_entries && (uint64_t)input->rows[i] < input->part->rows) i++;
  return i;
}

/* Entries in the order of indices, repeats in order of appearance: added up, and left out where that makes zero. */
static uint32_t take_sorted(const struct zps_sort_entry *entries, uint64_t n, uint32_t *indices, float *staged) {
  uint32_t nnz = 0;
  for (uint64_t i = 0; i < n;) {
    const uint32_t index = entries[i].key;
    float sum = 0;
    for (; i < n && entries[i].key == index; i++) sum += entries[i].value;
    indices[nnz] = index;
    staged[nnz] = sum;
    nnz += sum != 0;
  }
  return nnz;
}

static uint32_t take_as_they_are(const struct zps_encode_input *input, uint32_t *indices, float *staged) {
  const float *const values = input->values;
  uint32_t nnz = 0;
  for (uint64_t i = 0; i < input->n_entries; i++) {
    indices[nnz] = (uint32_t)input->rows[i];
    staged[nnz] = values[i];
    nnz += values[i] != 0;
  }
  return nnz;
}

zps_err_t zps_encoder_scan_few(struct zps_encoder *encoder, struct zps_error *error) {
  const struct zps_encode_input *const input = &encoder->input;
  const uint64_t n = input->n_entries;
  const bool ascends = encoder->way.ascends;
  struct zps_encode_lists *const lists = zps_encoder_lists(encoder);
  zps_err_t code = zps_buffer_need(&encoder->bad, 1, sizeof(uint64_t));
  if (code == ZPS_OK) code = zps_buffer_need(&lists->indices, n + ZPS_SIMD_SLACK, sizeof(uint32_t));
  if (code == ZPS_OK) code = zps_buffer_need(&lists->staged, n + ZPS_SIMD_SLACK, sizeof(float));
  if (code == ZPS_OK && !ascends) code = zps_buffer_need(&encoder->pairs, n, sizeof(struct zps_sort_entry));
  if (code == ZPS_OK && !ascends) code = zps_buffer_need(&encoder->scratch, n, sizeof(struct zps_sort_entry));
  if (code != ZPS_OK) return code;
  const uint64_t bad = find_bad(input, ascends);
  encoder->n_ranges = 1;
  *(uint64_t *)encoder->bad.data = bad < n ? bad : UINT64_MAX;
  code = zps_encoder_check_rows(encoder, error);
  if (code != ZPS_OK) return code;
  encoder->is_staged = true;
  uint32_t *const indices = lists->indices.data;
  float *const staged = lists->staged.data;
  uint64_t *const starts = encoder->starts.data;
  starts[0] = 0;
  starts[1] = n;
  if (ascends)
    *(uint32_t *)encoder->nnz.data = take_as_they_are(input, indices, staged);
  else
    *(uint32_t *)encoder->nnz.data = take_sorted(zps_sort_floats(input->rows, input->values, n, input->part->rows - 1,
                                                                 encoder->pairs.data, encoder->scratch.data),
                                                 n, indices, staged);
  return ZPS_OK;
}

/*
 * All rows of a gradient, zeros too: nothing is looked for. In place of lists there is one array of all rows,
 * the trainer's own where that is dense, and the indices 0, 1, 2, ..., the same for every partition.
 */
#include <string.h>

#include "common/codec/encode_impl.h"

/* Adds the entries up in order of appearance. */
static zps_err_t spread(struct zps_encoder *encoder, struct zps_error *error) {
  const struct zps_encode_input *const input = &encoder->input;
  const uint64_t sum_bytes = encoder->sum_bytes;
  zps_err_t code = zps_buffer_need(&encoder->sums, input->part->rows, sum_bytes);
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->bad, 1, sizeof(uint64_t));
  if (code != ZPS_OK) return code;
  uint64_t *const bad = encoder->bad.data;
  *bad = UINT64_MAX;
  encoder->n_ranges = 1;
  for (uint64_t i = 0; i < input->n_entries && *bad == UINT64_MAX; i++)
    if ((uint64_t)input->rows[i] >= input->part->rows) *bad = i;
  code = zps_encoder_check_rows(encoder, error);
  if (code != ZPS_OK) return code;
  char *const sums = encoder->sums.data;
  const char *values = input->values;
  memset(sums, 0, input->part->rows * sum_bytes);
  for (uint64_t i = 0; i < input->n_entries; i++, values += encoder->row_bytes)
    zps_encoder_add(encoder, sums + (uint64_t)input->rows[i] * sum_bytes, values);
  encoder->whole = sums;
  encoder->is_whole_sum = true;
  for (uint32_t p = 0; p < encoder->n_parts; p++) {
    const uint32_t m = zps_encoder_nnz(encoder, p);
    for (uint32_t first = 0, n; first < m; first += n) {
      const char *const run = zps_encoder_run(encoder, p, first, m - first, &n);
      zps_encoder_note_sums(encoder, p, run, n);
    }
  }
  return ZPS_OK;
}

zps_err_t zps_encoder_scan_all(struct zps_encoder *encoder, struct zps_error *error) {
  const struct zps_encode_input *const input = &encoder->input;
  uint32_t *const nnz = encoder->nnz.data, most = 0;
  uint64_t *const starts = encoder->starts.data;
  zps_err_t code = ZPS_OK;
  for (uint32_t p = 0; p < encoder->n_parts; p++) {
    starts[p] = 0;
    nnz[p] = zps_partition_size(input->part, p);
    if (nnz[p] > most) most = nnz[p];
  }
  struct zps_buffer *const indices = &zps_encoder_lists(encoder)->indices;
  code = zps_buffer_need(indices, most, sizeof(uint32_t));
  if (code != ZPS_OK) return code;
  for (uint32_t index = 0; index < most; index++) ((uint32_t *)indices->data)[index] = index;
  if (input->rows) return spread(encoder, error);
  encoder->whole = input->values;
  return ZPS_OK;
}

const char *zps_encoder_run(const struct zps_encoder *encoder, uint32_t p, uint32_t first, uint32_t n,
                            uint32_t *n_rows_p) {
  const struct zps_partition *const part = encoder->input.part;
  const uint64_t block_rows = (uint64_t)1 << part->block_bits, left = block_rows - (first & (block_rows - 1));
  *n_rows_p = n < left ? n : (uint32_t)left;
  return encoder->whole +
         zps_partition_row(part, p, first) * (encoder->is_whole_sum ? encoder->sum_bytes : encoder->row_bytes);
}

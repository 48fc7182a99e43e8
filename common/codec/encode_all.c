/*
 * All rows of a gradient, zeros too: nothing is looked for. In place of lists there is one array of all rows,
 * the trainer's own where that is dense, and the indices 0, 1, 2, ..., the same for every partition.
 */
#include <string.h>

#include "common/codec/encode_impl.h"

/* Adds the entries up in order of appearance. */
static zps_err_t spread(struct zps_encoder *encoder, struct zps_error *error) {
  const struct zps_encode_input *const input = &encoder->input;
  const uint64_t sum_bytes = encoder->sum_bytes, row_bytes = encoder->row_bytes;
  zps_err_t code = zps_buffer_need(&encoder->sums, input->part->rows, sum_bytes);
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->bad, 1, sizeof(uint64_t));
  if (code != ZPS_OK) return code;
  uint64_t *const bad = encoder->bad.data;
  *bad = UINT64_MAX;
  encoder->n_ranges = 1;
  for (uint32_t k = 0; k < encoder->sections.n; k++) {
    const struct zps_section *const section = &encoder->sections.list[k];
    for (uint64_t i = 0; section->rows && i < section->n_entries && *bad == UINT64_MAX; i++)
      if ((uint64_t)section->rows[i] >= section->n_rows) *bad = section->first_entry + i;
  }
  code = zps_encoder_check_rows(encoder, error);
  if (code != ZPS_OK) return code;
  memset(encoder->sums.data, 0, input->part->rows * sum_bytes);
  for (uint32_t k = 0; k < encoder->sections.n; k++) {
    const struct zps_section *const section = &encoder->sections.list[k];
    char *const sums = (char *)encoder->sums.data + section->first_row * sum_bytes;
    const char *const values = section->values;
    for (uint64_t i = 0; i < section->n_entries; i++)
      zps_encoder_add(encoder, sums + (section->rows ? (uint64_t)section->rows[i] : i) * sum_bytes,
                      values + i * row_bytes);
  }
  encoder->is_whole = encoder->is_whole_sum = true;
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
  if (zps_encode_input_is_list(input)) return spread(encoder, error);
  code = zps_buffer_need(&encoder->sums, 1, encoder->sum_bytes); /* a row that no section has */
  if (code != ZPS_OK) return code;
  memset(encoder->sums.data, 0, encoder->sum_bytes);
  encoder->is_whole = true;
  return ZPS_OK;
}

const char *zps_encoder_run(const struct zps_encoder *encoder, uint32_t p, uint32_t first, uint32_t n,
                            uint32_t *n_rows_p) {
  const struct zps_partition *const part = encoder->input.part;
  const uint64_t block_rows = (uint64_t)1 << part->block_bits, left = block_rows - (first & (block_rows - 1));
  const uint64_t row = zps_partition_row(part, p, first);
  *n_rows_p = n < left ? n : (uint32_t)left;
  if (encoder->is_whole_sum) return (const char *)encoder->sums.data + row * encoder->sum_bytes;
  const struct zps_section_rows rows = zps_sections_rows(&encoder->sections, row, *n_rows_p, encoder->row_bytes);
  *n_rows_p = rows.values ? (uint32_t)rows.n : 1;
  return rows.values ? rows.values : encoder->sums.data;
}

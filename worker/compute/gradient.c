#include "worker/compute/gradient.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/bisect.h"
#include "common/codec/encode.h"
#include "common/codec/rowscan.h"
#include "common/codec/simd/simd.h"

struct zps_own {
  struct zps_own_input input;
  struct zps_encoder *encoder; /* of a single partition: indices are row numbers */
  struct zps_partition part;
  uint64_t row_bytes;
  bool scanned;
};

zps_err_t zps_own_create(struct zps_own **own_p) {
  struct zps_own *const own = calloc(1, sizeof *own);
  if (!own) return ZPS_ERR_NOMEM;
  const zps_err_t code = zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &own->encoder);
  if (code != ZPS_OK) {
    free(own);
    return code;
  }
  *own_p = own;
  return ZPS_OK;
}

void zps_own_destroy(struct zps_own *own) {
  if (!own) return;
  zps_encoder_destroy(own->encoder);
  free(own);
}

bool zps_own_must_scan(const struct zps_program *program, const struct zps_own_input *input) {
  for (uint32_t i = 0; i < program->n_instrs; i++) {
    const struct zps_instr *const instr = &program->instrs[i];
    if (instr->type == ZPS_INSTR_OWN && (instr->form == ZPS_FORM_SPARSE || input->rows)) return true;
  }
  return false;
}

zps_err_t zps_own_begin(struct zps_own *own, const struct zps_own_input *input, bool scan, struct zps_workpool *pool,
                        struct zps_error *error) {
  own->input = *input;
  own->row_bytes = zps_row_bytes(input->width, input->dtype);
  own->scanned = false;
  if (!scan) return ZPS_OK;
  zps_err_t code = zps_partition_init(&own->part, input->n_rows, 1, 0, 0, error);
  if (code != ZPS_OK) return code;
  const struct zps_encode_input encode = {.part = &own->part,
                                          .width = input->width,
                                          .dtype = input->dtype,
                                          .value_codec = zps_values_own(input->dtype),
                                          .values = input->values,
                                          .rows = input->rows,
                                          .n_entries = input->n_entries,
                                          .zero_rows = input->zero_rows};
  code = zps_encoder_scan(own->encoder, &encode, pool, error);
  own->scanned = code == ZPS_OK;
  own->row_bytes = zps_values_row_bytes(zps_own_value_codec(own), zps_dtype_sum(input->dtype), input->width);
  return code;
}

enum zps_value_codec zps_own_value_codec(const struct zps_own *own) {
  return own->scanned ? zps_encoder_value_codec(own->encoder, 0) : zps_values_own(own->input.dtype);
}

bool zps_own_is_scanned(const struct zps_own *own) {
  return own->scanned;
}

/* How many of the rows found are below `row`. */
static uint32_t count_below(const struct zps_own *own, uint64_t row) {
  const uint32_t *const indices = zps_encoder_indices(own->encoder, 0);
  uint32_t low = 0, high = zps_encoder_nnz(own->encoder, 0);
  zps_bisect(low, high, middle, indices[middle] < row);
  return low;
}

uint32_t zps_own_count(const struct zps_own *own, uint64_t lo, uint64_t hi) {
  return own->scanned ? count_below(own, hi) - count_below(own, lo) : 0;
}

void zps_own_indices(const struct zps_own *own, uint64_t lo, uint64_t hi, uint32_t *indices) {
  const uint32_t n = zps_own_count(own, lo, hi);
  if (n == 0) return;
  const uint32_t *const from = zps_encoder_indices(own->encoder, 0) + count_below(own, lo);
  for (uint32_t i = 0; i < n; i++) indices[i] = from[i] - (uint32_t)lo;
}

void zps_own_values(const struct zps_own *own, uint64_t lo, uint64_t hi, void *values) {
  const uint32_t n = zps_own_count(own, lo, hi);
  if (n > 0) zps_encoder_values(own->encoder, 0, count_below(own, lo), n, values);
}

void zps_own_all(const struct zps_own *own, uint64_t lo, uint64_t hi, void *values) {
  const uint64_t row_bytes = own->row_bytes;
  if (hi == lo) return;
  if (!own->input.rows) {
    memcpy(values, (const char *)own->input.values + lo * row_bytes, (hi - lo) * row_bytes);
    return;
  }
  memset(values, 0, (hi - lo) * row_bytes);
  const uint32_t n = zps_own_count(own, lo, hi);
  if (n == 0) return;
  const uint32_t first = count_below(own, lo), *const indices = zps_encoder_indices(own->encoder, 0) + first;
  for (uint32_t i = 0; i < n; i++)
    zps_encoder_values(own->encoder, 0, first + i, 1, (char *)values + (indices[i] - lo) * row_bytes);
}

/* Rows of four bytes. The last ones go through `room`, since more are written than are kept. */
static uint32_t pack_words(const char *from, uint32_t n, uint32_t mask, uint64_t *bits, char *to) {
  enum { REST = 64 };
  uint32_t room[2 * REST + ZPS_SIMD_SLACK];
  const uint32_t whole = n > REST ? (n - REST) & ~63u : 0;
  const uint32_t kept = zps_simd()->pack(from, whole, mask, (uint32_t *)(void *)to, bits);
  const uint32_t rest = zps_simd()->pack(from + 4 * (uint64_t)whole, n - whole, mask, room, bits + whole / 64);
  memcpy(to + 4 * (uint64_t)kept, room, rest * sizeof *room);
  return kept + rest;
}

static uint32_t pack_rows(const char *from, const uint64_t *bits, uint64_t n_words, uint64_t row_bytes, char *to) {
  uint32_t kept = 0;
  for (uint64_t w = 0; w < n_words; w++) {
    for (uint64_t word = bits[w]; word != 0; word &= word - 1) {
      const uint64_t row = 64 * w + (unsigned)__builtin_ctzll(word);
      memcpy(to + kept++ * row_bytes, from + row * row_bytes, row_bytes);
    }
  }
  return kept;
}

uint32_t zps_own_bits(const struct zps_own *own, uint64_t lo, uint64_t hi, uint64_t *bits, void *values) {
  const struct zps_own_input *const input = &own->input;
  const uint64_t row_bytes = own->row_bytes, n = hi - lo;
  const char *const from = (const char *)input->values + lo * row_bytes;
  if (n == 0) return 0;
  if (row_bytes == 4) return pack_words(from, (uint32_t)n, zps_rowscan_mask(input->dtype), bits, values);
  zps_rowscan(input->dtype, input->width, from, n, bits);
  return pack_rows(from, bits, (n + 63) / 64, row_bytes, values);
}

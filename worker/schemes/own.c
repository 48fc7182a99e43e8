#include "worker/schemes/own.h"

#include <stdlib.h>
#include <string.h>

#include "common/codec/encode.h"

struct zps_own {
  struct zps_own_input input;
  struct zps_encoder *encoder; /* of a single partition: ranks are row numbers */
  struct zps_partition part;
  uint64_t row_bytes;
  bool scanned;
};

zps_err_t zps_own_create(struct zps_own **own_p) {
  struct zps_own *const own = calloc(1, sizeof *own);
  if (!own) return ZPS_ERR_NOMEM;
  const zps_err_t code = zps_encoder_create(ZPS_PARTITIONER_ORDERED, &own->encoder);
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
    if (instr->type == ZPS_INSTR_OWN && (!instr->dense || input->rows)) return true;
  }
  return false;
}

zps_err_t zps_own_begin(struct zps_own *own, const struct zps_own_input *input, bool scan, struct zps_workpool *pool,
                        struct zps_error *error) {
  own->input = *input;
  own->row_bytes = input->width * (uint64_t)zps_dtype_size(input->dtype);
  own->scanned = false;
  if (!scan) return ZPS_OK;
  zps_err_t code = zps_partition_init(&own->part, input->n_rows, 1, 0, 0, error);
  if (code != ZPS_OK) return code;
  const struct zps_encode_input encode = {.part = &own->part,
                                          .width = input->width,
                                          .dtype = input->dtype,
                                          .value_codec = ZPS_VALUES_RAW,
                                          .values = input->values,
                                          .rows = input->rows,
                                          .n_entries = input->n_entries};
  code = zps_encoder_scan(own->encoder, &encode, pool, error);
  own->scanned = code == ZPS_OK;
  return code;
}

/* How many of the rows found are below `row`. */
static uint32_t count_below(const struct zps_own *own, uint64_t row) {
  const uint32_t *const ranks = zps_encoder_ranks(own->encoder, 0);
  uint32_t low = 0, high = zps_encoder_nnz(own->encoder, 0);
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (ranks[middle] < row)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

uint32_t zps_own_count(const struct zps_own *own, uint64_t lo, uint64_t hi) {
  return own->scanned ? count_below(own, hi) - count_below(own, lo) : 0;
}

void zps_own_ranks(const struct zps_own *own, uint64_t lo, uint64_t hi, uint32_t *ranks) {
  const uint32_t n = zps_own_count(own, lo, hi);
  if (n == 0) return;
  const uint32_t *const from = zps_encoder_ranks(own->encoder, 0) + count_below(own, lo);
  for (uint32_t i = 0; i < n; i++) ranks[i] = from[i] - (uint32_t)lo;
}

void zps_own_values(const struct zps_own *own, uint64_t lo, uint64_t hi, void *values) {
  const uint32_t n = zps_own_count(own, lo, hi);
  if (n > 0) zps_encoder_values(own->encoder, 0, count_below(own, lo), n, values);
}

void zps_own_dense(const struct zps_own *own, uint64_t lo, uint64_t hi, void *values) {
  const uint64_t row_bytes = own->row_bytes;
  if (hi == lo) return;
  if (!own->input.rows) {
    memcpy(values, (const char *)own->input.values + lo * row_bytes, (hi - lo) * row_bytes);
    return;
  }
  memset(values, 0, (hi - lo) * row_bytes);
  const uint32_t n = zps_own_count(own, lo, hi);
  if (n == 0) return;
  const uint32_t first = count_below(own, lo), *const ranks = zps_encoder_ranks(own->encoder, 0) + first;
  for (uint32_t i = 0; i < n; i++)
    zps_encoder_values(own->encoder, 0, first + i, 1, (char *)values + (ranks[i] - lo) * row_bytes);
}

#include "worker/served/blocks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec/accumulate.h"
#include "common/codec/rowscan.h"

/* Values [first, end) of the tensor. */
struct span {
  uint64_t first, end;
};

static uint64_t n_values(const struct zps_tensor_shape *shape) {
  return shape->rows * shape->width;
}

static struct span row_span(const struct zps_tensor_shape *shape, uint64_t row) {
  return (struct span){row * shape->width, (row + 1) * shape->width};
}

static struct span block_span(const struct zps_tensor_shape *shape, uint64_t block) {
  const uint64_t first = block * ZPS_BLOCK_VALUES, end = first + ZPS_BLOCK_VALUES;
  return (struct span){first, end < n_values(shape) ? end : n_values(shape)};
}

static struct span meet(struct span a, struct span b) {
  return (struct span){a.first > b.first ? a.first : b.first, a.end < b.end ? a.end : b.end};
}

uint64_t zps_blocks_count(const struct zps_tensor_shape *shape) {
  return (n_values(shape) - 1) / ZPS_BLOCK_VALUES + 1;
}

void zps_blocks_init(struct zps_blocks *blocks, const struct zps_tensor_shape *shape) {
  *blocks = (struct zps_blocks){.shape = *shape};
}

void zps_blocks_fini(struct zps_blocks *blocks) {
  free(blocks->slots);
  zps_buffer_fini(&blocks->ids);
  zps_buffer_fini(&blocks->values);
}

/* ------------------------------------------------------------ in */

static zps_err_t dense_input(struct zps_blocks *blocks, const void *values, struct zps_encode_input *input) {
  const uint64_t size = zps_dtype_size(blocks->shape.dtype), n_blocks = zps_blocks_count(&blocks->shape);
  const struct span last = block_span(&blocks->shape, n_blocks - 1);
  input->values = values;
  if (last.end - last.first == ZPS_BLOCK_VALUES) return ZPS_OK;
  const zps_err_t code = zps_buffer_need(&blocks->values, ZPS_BLOCK_VALUES, size);
  if (code != ZPS_OK) return code;
  memset(blocks->values.data, 0, ZPS_BLOCK_VALUES * size);
  memcpy(blocks->values.data, (const char *)values + last.first * size, (last.end - last.first) * size);
  input->last_row = blocks->values.data;
  return ZPS_OK;
}

/* Gives every block that the row lies in a slot. */
static zps_err_t take_slots(struct zps_blocks *blocks, uint64_t row, uint64_t *n_slots) {
  const struct span span = row_span(&blocks->shape, row);
  for (uint64_t block = span.first / ZPS_BLOCK_VALUES; block <= (span.end - 1) / ZPS_BLOCK_VALUES; block++) {
    if (blocks->slots[block]) continue;
    if (*n_slots == UINT32_MAX) return ZPS_ERR_NOMEM;
    const zps_err_t code = zps_buffer_extend(&blocks->ids, *n_slots + 1, sizeof(int64_t));
    if (code != ZPS_OK) return code;
    ((int64_t *)blocks->ids.data)[(*n_slots)++] = (int64_t)block;
    blocks->slots[block] = (uint32_t)*n_slots;
  }
  return ZPS_OK;
}

static void add_row(struct zps_blocks *blocks, uint64_t row, const char *values) {
  const struct span span = row_span(&blocks->shape, row);
  const uint64_t size = zps_dtype_size(blocks->shape.dtype);
  const uint64_t sum_size = zps_dtype_size(zps_dtype_sum(blocks->shape.dtype));
  for (uint64_t block = span.first / ZPS_BLOCK_VALUES; block <= (span.end - 1) / ZPS_BLOCK_VALUES; block++) {
    const struct span piece = meet(span, block_span(&blocks->shape, block));
    const uint64_t at = (blocks->slots[block] - 1ull) * ZPS_BLOCK_VALUES + piece.first % ZPS_BLOCK_VALUES;
    zps_accumulate(blocks->shape.dtype, (char *)blocks->values.data + at * sum_size,
                   values + (piece.first - span.first) * size, piece.end - piece.first);
  }
}

static zps_err_t stage_rows(struct zps_blocks *blocks, const char *values, const int64_t *rows, uint64_t n,
                            uint64_t *n_slots) {
  const struct zps_tensor_shape *shape = &blocks->shape;
  const uint64_t size = zps_dtype_size(shape->dtype), sum_size = zps_dtype_size(zps_dtype_sum(shape->dtype));
  if (!blocks->slots) blocks->slots = calloc(zps_blocks_count(shape), sizeof *blocks->slots);
  if (!blocks->slots) return ZPS_ERR_NOMEM;
  zps_err_t code = ZPS_OK;
  for (uint64_t i = 0; i < n && code == ZPS_OK; i++) code = take_slots(blocks, (uint64_t)rows[i], n_slots);
  if (code == ZPS_OK) code = zps_buffer_need(&blocks->values, *n_slots, ZPS_BLOCK_VALUES * sum_size);
  if (code == ZPS_OK) {
    memset(blocks->values.data, 0, *n_slots * ZPS_BLOCK_VALUES * sum_size);
    for (uint64_t i = 0; i < n; i++) add_row(blocks, (uint64_t)rows[i], values + i * shape->width * size);
  }
  for (uint64_t i = 0; i < *n_slots; i++) blocks->slots[((const int64_t *)blocks->ids.data)[i]] = 0;
  return code;
}

/* Sums of halves as halves, where all are some; else as the floats that they are. */
static void take_halves(struct zps_blocks *blocks, uint64_t n, struct zps_encode_input *input) {
  void *const sums = blocks->values.data;
  if (n == 0) return;
  if (zps_values_hold(zps_values_own(blocks->shape.dtype), sums, n)) {
    zps_values_narrow(blocks->shape.dtype, sums, n, sums);
    return;
  }
  input->dtype = ZPS_DTYPE_F32;
  input->value_codec = ZPS_VALUES_RAW;
}

zps_err_t zps_blocks_input(struct zps_blocks *blocks, const void *values, const int64_t *rows, uint64_t n,
                           struct zps_encode_input *input, struct zps_error *error) {
  const struct zps_tensor_shape *shape = &blocks->shape;
  static const int64_t none[1];
  uint64_t n_slots = 0;
  zps_err_t code = ZPS_OK;
  input->width = ZPS_BLOCK_VALUES;
  input->dtype = shape->dtype;
  for (uint64_t i = 0; rows && i < n; i++)
    if ((uint64_t)rows[i] >= shape->rows)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "row number %" PRId64 " at position %" PRIu64 " of %" PRIu64
                      ": the tensor has rows 0 to %" PRIu64,
                      rows[i], i, n, shape->rows - 1);
  code = rows ? stage_rows(blocks, values, rows, n, &n_slots) : dense_input(blocks, values, input);
  if (code != ZPS_OK)
    return zps_fail(error, code, "no memory to put a gradient into blocks of %u values", ZPS_BLOCK_VALUES);
  if (!rows) return ZPS_OK;
  if (zps_dtype_is_half(shape->dtype)) take_halves(blocks, n_slots * ZPS_BLOCK_VALUES, input);
  input->rows = n_slots ? blocks->ids.data : none;
  input->values = blocks->values.data;
  input->n_entries = n_slots;
  return ZPS_OK;
}

/* ------------------------------------------------------------ out */

/* Blocks of a result, from one on. */
struct list {
  const struct zps_tensor_shape *shape;
  const int64_t *ids;
  const char *blocks;
  uint64_t n;
};

/* The part of a row that lies in block `i` of the list, and where it is. */
static struct span piece_of(const struct list *list, uint64_t i, struct span row, const char **at_p) {
  const struct span block = block_span(list->shape, (uint64_t)list->ids[i]), piece = meet(row, block);
  *at_p = list->blocks + (i * ZPS_BLOCK_VALUES + (piece.first - block.first)) * zps_dtype_size(list->shape->dtype);
  return piece;
}

static bool in_row(const struct list *list, uint64_t i, struct span row) {
  return i < list->n && (uint64_t)list->ids[i] * ZPS_BLOCK_VALUES < row.end;
}

static bool is_zero(const struct list *list, uint64_t i, struct span row) {
  for (const char *at; in_row(list, i, row); i++) {
    const struct span piece = piece_of(list, i, row, &at);
    if (!zps_rowscan_is_zero(list->shape->dtype, (uint32_t)(piece.end - piece.first), at)) return false;
  }
  return true;
}

static void copy(const struct list *list, uint64_t i, struct span row, char *out) {
  const uint64_t size = zps_dtype_size(list->shape->dtype);
  memset(out, 0, (row.end - row.first) * size);
  for (const char *at; in_row(list, i, row); i++) {
    const struct span piece = piece_of(list, i, row, &at);
    memcpy(out + (piece.first - row.first) * size, at, (piece.end - piece.first) * size);
  }
}

uint64_t zps_blocks_rows(const struct zps_tensor_shape *shape, const int64_t *ids, const void *blocks, uint64_t n,
                         int64_t *rows, void *values) {
  const struct list list = {.shape = shape, .ids = ids, .blocks = blocks, .n = n};
  const uint64_t row_bytes = shape->width * zps_dtype_size(shape->dtype);
  uint64_t found = 0, next = 0;
  for (uint64_t i = 0; i < n; i++) {
    const struct span block = block_span(shape, (uint64_t)ids[i]);
    uint64_t row = block.first / shape->width;
    if (row < next) row = next;
    for (; row * shape->width < block.end; row++) {
      const struct span span = row_span(shape, row);
      if (is_zero(&list, i, span)) continue;
      if (rows) {
        rows[found] = (int64_t)row;
        copy(&list, i, span, (char *)values + found * row_bytes);
      }
      found++;
    }
    next = row;
  }
  return found;
}

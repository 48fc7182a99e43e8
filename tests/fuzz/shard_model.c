#include "tests/fuzz/shard_model.h"

#include <math.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/codec/codec_choice.h"
#include "common/codec/join.h"
#include "tests/fuzz/must.h"

/* ---- contributions ---- */

static uint64_t dice(const struct model_tensor *tensor, uint64_t step, uint32_t rank, uint32_t part, uint32_t row) {
  return zps_hash_mix64((((step * 8 + rank) * 8 + part) * 256 + row) * 8 + tensor->spec.tensor % 8);
}

/* Sparser from step to step; the last one is empty now and then. */
static bool has_row(const struct model_tensor *tensor, uint64_t step, uint32_t rank, uint32_t part, uint32_t row) {
  return dice(tensor, step, rank, part, row) % (step + 1) == 0;
}

/* Small whole numbers: their sums are exact in every type. */
static double value_of(const struct model_tensor *tensor, uint64_t step, uint32_t rank, uint32_t part, uint32_t row,
                       uint32_t column) {
  return (double)(zps_hash_mix64(dice(tensor, step, rank, part, row) + column) % 7) - 3;
}

bool model_takes_part(const struct model_tensor *tensor, uint32_t rank) {
  for (uint32_t i = 0; i < tensor->spec.n_ranks; i++)
    if (tensor->spec.ranks[i] == rank) return true;
  return tensor->spec.n_ranks == 0 && rank < tensor->world;
}

static enum zps_value_codec value_codec_of(const struct model_tensor *tensor) {
  return zps_values_of(tensor->spec.value_codec, tensor->spec.dtype);
}

static void put(enum zps_dtype dtype, void *values, uint64_t i, double value) {
  if (dtype == ZPS_DTYPE_F64)
    ((double *)values)[i] = value;
  else
    ((float *)values)[i] = (float)value;
}

/* At any alignment. */
static double get(enum zps_dtype dtype, const void *values, uint64_t i) {
  double wide;
  float narrow;
  if (dtype == ZPS_DTYPE_F64) {
    memcpy(&wide, (const uint8_t *)values + i * sizeof wide, sizeof wide);
    return wide;
  }
  memcpy(&narrow, (const uint8_t *)values + i * sizeof narrow, sizeof narrow);
  return narrow;
}

void model_slice(const struct model_tensor *tensor, uint64_t step, uint32_t rank, uint32_t part, bool is_coo,
                 bool is_wide, struct model_slice *slice) {
  static _Alignas(16) uint8_t plain[MODEL_ROWS * MODEL_WIDTH * sizeof(double)];
  const uint32_t m = tensor->sizes[part], width = tensor->spec.width;
  const enum zps_dtype dtype = zps_dtype_sum(tensor->spec.dtype);
  uint32_t rows[MODEL_ROWS], n = 0;
  uint64_t index_bytes;
  slice->is_wide = is_wide && zps_dtype_is_half(tensor->spec.dtype) && tensor->spec.value_codec == ZPS_VALUES_RAW;
  const enum zps_value_codec values = slice->is_wide ? ZPS_VALUES_RAW : value_codec_of(tensor);
  for (uint32_t i = 0; i < m; i++) {
    const uint32_t row = tensor->any_order ? m - 1 - i : i;
    if (has_row(tensor, step, rank, part, row)) rows[n++] = row;
  }
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t c = 0; c < width; c++)
      put(dtype, plain, (uint64_t)i * width + c, value_of(tensor, step, rank, part, rows[i], c));
  const uint64_t value_bytes = zps_values_bytes(values, dtype, (uint64_t)n * width);
  zps_values_encode(values, dtype, plain, (uint64_t)n * width, step, slice->bytes);
  slice->nnz = n;
  if (tensor->any_order) {
    memcpy(slice->bytes + value_bytes, rows, n * sizeof rows[0]);
    slice->codec = ZPS_CODEC_COO_ANY;
    slice->len_bytes = value_bytes + n * sizeof rows[0];
    return;
  }
  slice->codec = ZPS_CODEC_COO;
  if (!is_coo) slice->codec = (uint8_t)zps_codec_choose(zps_codec_push_set(ZPS_CODEC_AUTO), m, rows, n, &index_bytes);
  slice->len_bytes =
      value_bytes + zps_codec_index_encode((enum zps_codec)slice->codec, m, rows, n, slice->bytes + value_bytes);
}

/* ---- sums ---- */

static bool is_known(const struct model_tensor *tensor) {
  return (tensor->spec.op == ZPS_OP_SUM || tensor->spec.op == ZPS_OP_MEAN) &&
         zps_values_level_bits(tensor->spec.value_codec) == 0;
}

static double expected(const struct model_tensor *tensor, uint64_t step, uint32_t part, uint32_t row, uint32_t column) {
  double sum = 0;
  unsigned n = 0;
  for (uint32_t rank = 0; rank < MODEL_RANKS; rank++) {
    if (!model_takes_part(tensor, rank)) continue;
    n++;
    if (has_row(tensor, step, rank, part, row)) sum += value_of(tensor, step, rank, part, row, column);
  }
  return tensor->spec.op == ZPS_OP_MEAN ? sum / n : sum;
}

static bool is_near(const struct model_tensor *tensor, double is, double should) {
  return tensor->spec.op == ZPS_OP_MEAN ? fabs(is - should) < 0.02 : is == should;
}

/* One partition's rows. */
static void check_part(const struct model_tensor *tensor, uint64_t step, uint32_t rank, bool is_found, uint32_t part,
                       const struct zps_slice_view *view) {
  static _Alignas(16) uint8_t room[MODEL_ROWS * MODEL_WIDTH * sizeof(double)];
  const uint32_t width = tensor->spec.width;
  uint32_t rows[MODEL_ROWS];
  uint64_t has = 0;
  struct zps_index_cursor cursor;
  zps_index_cursor_init(&cursor, view);
  const uint32_t n = zps_index_cursor_read(&cursor, view->m, rows, MODEL_ROWS);
  must(n == view->z);
  if (!is_known(tensor) || step >= MODEL_STEPS || tensor->steps[step].tainted) return;
  for (uint32_t r = 0; r < MODEL_RANKS; r++)
    must(!model_takes_part(tensor, r) || tensor->steps[step].ranks[r].sent[part]);
  const struct model_asked *asked = &tensor->steps[step].ranks[rank];
  const void *const values = n ? zps_slice_values(view, 0, n, room) : NULL;
  for (uint32_t i = 0; i < n; i++) {
    has |= 1ull << rows[i];
    for (uint32_t c = 0; c < width; c++) {
      const uint64_t at = (uint64_t)i * width + c;
      const double is = get(view->dtype, values, at);
      must(is_near(tensor, is, expected(tensor, step, part, rows[i], c)));
    }
  }
  const uint64_t all = tensor->sizes[part] < MODEL_ROWS ? (1ull << tensor->sizes[part]) - 1 : UINT64_MAX;
  const bool only_pushed = asked->n_pulls == 0, only_pulled = !asked->all && asked->n_pulls == 1;
  if (is_found || (!only_pushed && !only_pulled)) return; /* the answer may be to either */
  const uint64_t wanted = only_pushed ? all : asked->wanted[part];
  must((has & ~wanted) == 0);
  for (uint32_t row = 0; row < tensor->sizes[part]; row++)
    if (wanted & ~has & 1ull << row)
      for (uint32_t c = 0; c < width; c++) must(expected(tensor, step, part, row, c) == 0);
}

void model_check(const struct model_tensor *tensor, uint64_t step, uint32_t rank, bool is_found,
                 const struct zps_slice *slice, const void *data) {
  const enum zps_dtype dtype = zps_dtype_sum(tensor->spec.dtype);
  const uint32_t width = tensor->spec.width;
  struct zps_slice_view view;
  static struct zps_split split;
  must(slice->partition < tensor->spec.n_parts && tensor->here[slice->partition]);
  if (slice->n_more == 0) {
    must(zps_slice_view_init(&view, slice->codec, tensor->sizes[slice->partition], slice->nnz, width, dtype,
                             value_codec_of(tensor), data, slice->len_bytes, NULL) == ZPS_OK);
    check_part(tensor, step, rank, is_found, slice->partition, &view);
    return;
  }
  uint32_t parts[MODEL_PARTS], n = 0;
  uint64_t m = 0;
  for (uint32_t p = slice->partition; p < tensor->spec.n_parts && n <= slice->n_more; p++) {
    if (!tensor->here[p]) continue;
    parts[n++] = p;
    m += tensor->sizes[p];
  }
  must(n == slice->n_more + 1);
  must(zps_split_init(&split, slice->codec, m, slice->nnz, width, dtype, value_codec_of(tensor), data, slice->len_bytes,
                      NULL) == ZPS_OK);
  for (uint32_t i = 0; i < n; i++) {
    static _Alignas(16) uint8_t coo[ZPS_JOIN_BYTES_MAX];
    const uint32_t nnz = zps_split_next(&split, tensor->sizes[parts[i]]);
    const uint64_t len = zps_split_write(&split, coo);
    must(zps_slice_view_init(&view, ZPS_CODEC_COO, tensor->sizes[parts[i]], nnz, width, dtype, value_codec_of(tensor),
                             coo, len, NULL) == ZPS_OK);
    check_part(tensor, step, rank, is_found, parts[i], &view);
  }
}

#include "common/codec/join.h"

#include <string.h>

#include "common/codec/codec_choice.h"

/* Writes values and the padding that makes them a list. */
static void put_values(const void *values, uint64_t values_bytes, uint64_t list_bytes, void *out) {
  memcpy(out, values, values_bytes);
  memset((char *)out + values_bytes, 0, list_bytes - values_bytes);
}

bool zps_join_fits(uint64_t m, uint64_t nnz, uint32_t width, enum zps_dtype dtype, enum zps_value_codec value_codec) {
  if (zps_values_level_bits(value_codec)) return false;
  return m <= UINT32_MAX && nnz <= ZPS_JOIN_ROWS_MAX &&
         zps_codec_slice_bytes(ZPS_CODEC_COO, (uint32_t)m, (uint32_t)nnz, width, dtype, value_codec) <=
             ZPS_JOIN_BYTES_MAX;
}

void zps_join_init(struct zps_joined *join, uint32_t width, enum zps_dtype dtype, enum zps_value_codec value_codec) {
  join->width = width;
  join->dtype = dtype;
  join->value_codec = value_codec;
  join->row_bytes = zps_values_row_bytes(value_codec, dtype, width);
  join->m = join->z = 0;
}

/* All of the view's indices, each plus `base`. */
static void read_indices(const struct zps_slice_view *view, uint32_t base, uint32_t *indices) {
  struct zps_index_cursor cursor;
  zps_index_cursor_init(&cursor, view);
  while (zps_index_cursor_read(&cursor, view->m, indices + cursor.next, view->z - cursor.next) > 0) {
  }
  for (uint32_t i = 0; i < view->z; i++) indices[i] += base;
}

void zps_join_add(struct zps_joined *join, const struct zps_slice_view *view) {
  const uint64_t each = join->row_bytes;
  if (view->z > 0) {
    read_indices(view, join->m, join->indices + join->z);
    memcpy(join->values + join->z * each, view->values, view->z * each);
  }
  join->z += view->z;
  join->m += view->m;
}

bool zps_join_write(const struct zps_joined *join, unsigned allowed, void *out, uint64_t cap, enum zps_codec *codec_p,
                    uint64_t *len_bytes_p) {
  const uint64_t values_bytes = zps_values_bytes(join->value_codec, join->dtype, (uint64_t)join->z * join->width);
  uint64_t index_bytes;
  const enum zps_codec codec = zps_codec_choose(allowed, join->m, join->indices, join->z, &index_bytes);
  if (index_bytes > cap || values_bytes > cap - index_bytes) return false;
  if (values_bytes + index_bytes > 0) {
    put_values(join->values, join->z * join->row_bytes, values_bytes, out);
    zps_codec_index_encode(codec, join->m, join->indices, join->z, (char *)out + values_bytes);
  }
  *codec_p = codec;
  *len_bytes_p = values_bytes + index_bytes;
  return true;
}

zps_err_t zps_split_init(struct zps_split *split, uint32_t codec, uint64_t m, uint32_t nnz, uint32_t width,
                         enum zps_dtype dtype, enum zps_value_codec value_codec, const void *payload,
                         uint64_t len_bytes, struct zps_error *error) {
  if (!zps_join_fits(m, nnz, width, dtype, value_codec))
    return zps_fail(
        error, ZPS_ERR_PROTOCOL,
        "joined slice of %u of %llu rows of %u x %s as %s: joined are at most %u bytes as coo, of fewer than 2^32 "
        "rows, of values that are coded one by one",
        nnz, (unsigned long long)m, width, zps_dtype_name(dtype), zps_values_name(value_codec), ZPS_JOIN_BYTES_MAX);
  const zps_err_t code =
      zps_slice_view_init(&split->view, codec, (uint32_t)m, nnz, width, dtype, value_codec, payload, len_bytes, error);
  if (code != ZPS_OK) return code;
  split->row_bytes = zps_values_row_bytes(value_codec, dtype, width);
  read_indices(&split->view, 0, split->indices);
  split->first = split->next = 0;
  split->base = split->end = 0;
  return ZPS_OK;
}

uint32_t zps_split_next(struct zps_split *split, uint32_t m) {
  split->first = split->next;
  split->base = split->end;
  split->end += m;
  while (split->next < split->view.z && split->indices[split->next] < split->end) split->next++;
  return split->next - split->first;
}

uint64_t zps_split_write(const struct zps_split *split, void *out) {
  const struct zps_slice_view *const view = &split->view;
  const uint64_t each = split->row_bytes;
  const uint32_t z = split->next - split->first;
  if (z == 0) return 0;
  const uint64_t list_bytes = zps_values_bytes(view->value_codec, view->dtype, (uint64_t)z * view->width);
  put_values((const char *)view->values + split->first * each, z * each, list_bytes, out);
  for (uint32_t i = 0; i < z; i++) {
    const uint32_t index = (uint32_t)(split->indices[split->first + i] - split->base);
    memcpy((char *)out + list_bytes + i * sizeof index, &index, sizeof index);
  }
  return list_bytes + z * sizeof(uint32_t);
}

/* Takes arbitrary bytes for a slice that a peer announced and sent: codec, m, z, dtype and value codec, and the
 * payload. An accepted slice must yield z ascending indices below m, and these must survive coding in every other
 * codec. What is announced as in any order is put in order first, as servers do. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "common/codec/codec_choice.h"
#include "common/codec/order.h"
#include "common/codec/simd/simd.h"

enum { HEAD_BYTES = 6, INDICES_MAX = 1 << 16 };

static void check(const struct zps_slice_view *view, uint32_t *indices, uint32_t limit_step, uint32_t cap) {
  struct zps_index_cursor cursor;
  uint32_t n = 0;
  zps_index_cursor_init(&cursor, view);
  for (uint64_t limit = limit_step;; limit += limit_step) {
    const uint32_t end = limit < view->m ? (uint32_t)limit : view->m;
    for (uint32_t got; (got = zps_index_cursor_read(&cursor, end, indices + n, cap)) > 0; n += got) {
      if (indices[n + got - 1] >= end) abort();
    }
    if (end == view->m) break;
  }
  if (n != view->z || zps_index_cursor_peek(&cursor) != UINT32_MAX) abort();
  for (uint32_t i = 1; i < n; i++) {
    if (indices[i - 1] >= indices[i]) abort();
  }
}

/* From the beginning to a limit in one go, and to all of them in turn. */
static void seek(const struct zps_slice_view *view, const uint32_t *indices, uint32_t limit_step) {
  struct zps_index_cursor all, one;
  uint32_t n = 0;
  zps_index_cursor_init(&all, view);
  for (uint64_t limit = limit_step; limit <= view->m; limit += limit_step) {
    while (n < view->z && indices[n] < limit) n++;
    const uint32_t index = n < view->z ? indices[n] : UINT32_MAX;
    zps_index_cursor_init(&one, view);
    zps_index_cursor_seek(&one, (uint32_t)limit);
    zps_index_cursor_seek(&all, (uint32_t)limit);
    if (one.next != n || all.next != n) abort();
    if (zps_index_cursor_peek(&one) != index || zps_index_cursor_peek(&all) != index) abort();
  }
}

static void code_again(const struct zps_slice_view *view, const uint32_t *indices) {
  uint64_t bytes;
  struct zps_slice_view again;
  const enum zps_codec codec = zps_codec_choose(zps_codec_push_set(ZPS_CODEC_AUTO), view->m, indices, view->z, &bytes);
  char *const payload = malloc(view->z + bytes + 1);
  if (!payload) abort();
  memset(payload, 0, view->z);
  if (zps_codec_index_encode(codec, view->m, indices, view->z, payload + view->z) != bytes) abort();
  if (zps_slice_view_init(&again, codec, view->m, view->z, 1, ZPS_DTYPE_U8, ZPS_VALUES_RAW, payload, view->z + bytes,
                          NULL) != ZPS_OK)
    abort();
  uint32_t *const decoded = malloc((view->z + 64ull) * sizeof *decoded);
  if (!decoded) abort();
  check(&again, decoded, view->m, view->z + 1);
  seek(&again, indices, view->m / 5 + 1);
  if (view->z && memcmp(decoded, indices, view->z * sizeof *indices) != 0) abort();
  free(decoded);
  free(payload);
}

/* A copy of the payload, in order; NULL where its sizes or indices are wrong. */
static uint8_t *put_in_order(const uint8_t *data, size_t size, uint32_t m, uint32_t z, enum zps_dtype dtype,
                             enum zps_value_codec value_codec) {
  struct zps_buffer scratch = {0};
  if (zps_slice_check_sizes(ZPS_CODEC_COO, m, z, 1, dtype, value_codec, size, NULL) != ZPS_OK ||
      !zps_order_is_any(ZPS_PARTITIONER_HIERARCHICAL, ZPS_CODEC_PAPER, value_codec))
    return NULL;
  uint8_t *const payload = malloc(size + 1);
  if (!payload) abort();
  memcpy(payload, data, size);
  const zps_err_t code = zps_slice_order(m, z, 1, dtype, value_codec, payload, &scratch, NULL);
  zps_buffer_fini(&scratch);
  if (code == ZPS_OK) return payload;
  if (memcmp(payload, data, size) != 0) abort();
  free(payload);
  return NULL;
}

static bool open_view(const uint8_t *data, size_t size, struct zps_slice_view *view) {
  struct zps_error error;
  /* small numbers, so that lengths fit now and then */
  const uint32_t codec = data[0] % 6, m = data[1] | (uint32_t)data[2] << 8, z = data[3] | (uint32_t)data[4] << 8;
  const enum zps_dtype dtype = data[5] & 1 ? ZPS_DTYPE_F32 : ZPS_DTYPE_U8;
  const enum zps_value_codec value_codec = (enum zps_value_codec)(ZPS_VALUES_RAW + (data[5] >> 1) % 7);
  if (codec == ZPS_CODEC_COO_ANY) {
    static uint8_t *ordered; /* the view's, until the next one */
    free(ordered);
    ordered = put_in_order(data + HEAD_BYTES, size - HEAD_BYTES, m, z, dtype, value_codec);
    return ordered && zps_slice_view_init(view, ZPS_CODEC_COO, m, z, 1, dtype, value_codec, ordered, size - HEAD_BYTES,
                                          NULL) == ZPS_OK;
  }
  return zps_slice_view_init(view, codec, m, z, 1, dtype, value_codec, data + HEAD_BYTES, size - HEAD_BYTES, &error) ==
         ZPS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint32_t indices[INDICES_MAX + 64], plain[INDICES_MAX + 64];
  struct zps_slice_view view;
  if (size < HEAD_BYTES) return 0;
  const struct zps_simd *simd;
  bool is_good = false;
  for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
    zps_simd_use(simd);
    const bool accepted = open_view(data, size, &view);
    if (v > 0 && accepted != is_good) abort();
    is_good = accepted;
    if (!is_good) continue;
    check(&view, indices, view.m ? view.m : 1, INDICES_MAX);
    if (v > 0 && memcmp(indices, plain, view.z * sizeof *indices) != 0) abort();
    memcpy(plain, indices, view.z * sizeof *indices);
  }
  zps_simd_use(NULL);
  if (!is_good) return 0;
  check(&view, indices, view.m / 7 + 1, 5);
  seek(&view, plain, view.m / 11 + 1);
  code_again(&view, plain);
  static float values[INDICES_MAX];
  if (view.z > 0) zps_slice_values(&view, view.z / 3, view.z - view.z / 3, values);
  return 0;
}

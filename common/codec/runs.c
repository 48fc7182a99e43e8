#include "common/codec/runs.h"

#include <string.h>

#include "common/base/varint.h"
#include "common/codec/codec_choice.h"

uint8_t *zps_index_run_put(uint8_t *at, uint32_t end, struct zps_index_run run) {
  at = zps_varint_put(at, (uint64_t)(run.first - end) << 1 | (run.n > 1));
  return run.n > 1 ? zps_varint_put(at, run.n - 2) : at;
}

zps_err_t zps_index_run_get(const uint8_t **at_p, const uint8_t *bytes_end, uint32_t end, uint32_t m,
                            struct zps_index_run *run_p, struct zps_error *error) {
  uint64_t gap, more = 0;
  bool ok = zps_varint_get(at_p, bytes_end, &gap);
  const bool several = ok && gap & 1;
  if (several) ok = zps_varint_get(at_p, bytes_end, &more);
  if (!ok) return zps_fail(error, ZPS_ERR_PROTOCOL, "a run after index %u: no number where one is due", end);
  const uint64_t left = m - end, n = several ? more + 2 : 1;
  gap >>= 1;
  if (gap >= left || more > UINT32_MAX || n > left - gap)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "a run of %llu rows, %llu after index %u, in a partition of %u",
                    (unsigned long long)n, (unsigned long long)gap, end, m);
  *run_p = (struct zps_index_run){.first = end + (uint32_t)gap, .n = (uint32_t)n};
  return ZPS_OK;
}

bool zps_runs_have(const struct zps_index_run *runs, size_t n_runs, const uint32_t *indices, uint32_t n) {
  size_t at = 0;
  for (uint32_t i = 0; i < n; i++) {
    while (at < n_runs && indices[i] - runs[at].first >= runs[at].n && indices[i] >= runs[at].first) at++;
    if (at == n_runs || indices[i] < runs[at].first) return false;
  }
  return true;
}

/* ------------------------------------------------------------ those rows of a slice */

uint64_t zps_pick_bound(unsigned allowed, const struct zps_slice_view *slice, uint64_t n) {
  const uint32_t z = n < slice->z ? (uint32_t)n : slice->z;
  return zps_codec_slice_bytes(zps_codec_plain(allowed, slice->m, z), slice->m, z, slice->width, slice->dtype,
                               slice->value_codec);
}

zps_err_t zps_pick(const struct zps_slice_view *slice, const struct zps_index_run *runs, size_t n_runs,
                   unsigned allowed, struct zps_buffer *indices, void *out, struct zps_picked *picked_p) {
  const uint64_t row_bytes = zps_values_row_bytes(slice->value_codec, slice->dtype, slice->width);
  const char *const values = slice->values;
  char *to = out;
  uint32_t z = 0;
  const zps_err_t err = zps_buffer_need(indices, slice->z + 1ull, sizeof(uint32_t));
  if (err != ZPS_OK) return err;
  uint32_t *const picked = indices->data;
  struct zps_index_cursor cursor;
  zps_index_cursor_init(&cursor, slice);
  for (size_t i = 0; i < n_runs && cursor.next < slice->z; i++) {
    zps_index_cursor_seek(&cursor, runs[i].first);
    const uint32_t from = cursor.next;
    for (uint32_t n; (n = zps_index_cursor_read(&cursor, runs[i].first + runs[i].n, picked + z, slice->z - z)) > 0;)
      z += n;
    if (cursor.next == from) continue;
    memcpy(to, values + from * row_bytes, (cursor.next - from) * row_bytes);
    to += (cursor.next - from) * row_bytes;
  }
  const uint64_t values_bytes = zps_values_bytes(slice->value_codec, slice->dtype, (uint64_t)z * slice->width);
  memset(to, 0, values_bytes - z * row_bytes);
  uint64_t index_bytes;
  picked_p->codec = zps_codec_choose(allowed, slice->m, picked, z, &index_bytes);
  picked_p->nnz = z;
  picked_p->len_bytes = values_bytes + index_bytes;
  zps_codec_index_encode(picked_p->codec, slice->m, picked, z, (char *)out + values_bytes);
  return ZPS_OK;
}

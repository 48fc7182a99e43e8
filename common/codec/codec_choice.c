#include "common/codec/codec_choice.h"

#include <math.h>

enum {
  COO = 1u << ZPS_CODEC_COO,
  BITMAP = 1u << ZPS_CODEC_BITMAP,
  RICE = 1u << ZPS_CODEC_RICE,
  HOLES = 1u << ZPS_CODEC_HOLES,
};

static const struct {
  const char *name;
  unsigned push, result;
} policies[] = {[ZPS_CODEC_AUTO] = {"auto", COO | BITMAP | RICE | HOLES, COO | BITMAP | RICE | HOLES},
                [ZPS_CODEC_PAPER] = {"paper", COO, BITMAP},
                [ZPS_CODEC_COO_ONLY] = {"coo", COO, COO}};
enum { N_POLICIES = sizeof policies / sizeof policies[0] };

const char *zps_codec_policy_name(enum zps_codec_policy policy) {
  return (unsigned)policy < N_POLICIES && policies[policy].name ? policies[policy].name : "?";
}

unsigned zps_codec_push_set(enum zps_codec_policy policy) {
  return (unsigned)policy < N_POLICIES ? policies[policy].push : 0;
}

unsigned zps_codec_result_set(enum zps_codec_policy policy) {
  return (unsigned)policy < N_POLICIES ? policies[policy].result : 0;
}

enum zps_codec zps_codec_choose(unsigned allowed, uint32_t m, const uint32_t *indices, uint32_t z,
                                uint64_t *index_bytes_p) {
  /* Rice codes are for the rarer of indices and holes. */
  if (allowed & (COO | BITMAP)) allowed &= ~(z > m / 2 ? (unsigned)RICE : (unsigned)HOLES);
  enum zps_codec best = ZPS_CODEC_COO;
  uint64_t best_bytes = UINT64_MAX;
  for (unsigned codec = 0; codec <= ZPS_CODEC_COO_ANY && best_bytes > 0; codec++) {
    if (!(allowed >> codec & 1)) continue;
    const uint64_t bytes = zps_codec_index_exact((enum zps_codec)codec, m, indices, z);
    if (bytes >= best_bytes) continue;
    best = (enum zps_codec)codec;
    best_bytes = bytes;
  }
  *index_bytes_p = best_bytes;
  return best;
}

enum zps_codec zps_codec_plain(unsigned allowed, uint32_t m, uint32_t z) {
  if (!(allowed & BITMAP)) return ZPS_CODEC_COO;
  if (!(allowed & COO)) return ZPS_CODEC_BITMAP;
  return zps_codec_index_bytes(ZPS_CODEC_COO, m, z) < zps_codec_index_bytes(ZPS_CODEC_BITMAP, m, z) ? ZPS_CODEC_COO
                                                                                                    : ZPS_CODEC_BITMAP;
}

zps_err_t zps_slice_recode(struct zps_slice_view *view, unsigned allowed, struct zps_buffer *scratch) {
  if (allowed == 1u << view->codec) return ZPS_OK;
  const zps_err_t code = zps_buffer_need(scratch, view->z + 1ull, sizeof(uint32_t));
  if (code != ZPS_OK) return code;
  uint32_t *const indices = scratch->data;
  struct zps_index_cursor cursor;
  zps_index_cursor_init(&cursor, view);
  while (zps_index_cursor_read(&cursor, view->m, indices + cursor.next, view->z - cursor.next) > 0) {
  }
  uint64_t bytes;
  const enum zps_codec codec = zps_codec_choose(allowed, view->m, indices, view->z, &bytes);
  if (codec == view->codec || bytes > view->index_bytes) return ZPS_OK;
  view->codec = codec;
  view->index_bytes = zps_codec_index_encode(codec, view->m, indices, view->z, (void *)view->index);
  return ZPS_OK;
}

double zps_codec_bound_bytes(uint32_t m, uint32_t z, uint32_t width, enum zps_dtype dtype,
                             enum zps_value_codec value_codec) {
  double bits = 0;
  if (z > 0 && z < m) {
    const double n = m, ones = z, zeros = n - ones;
    bits = ones * log2(n / ones) + zeros * log2(n / zeros);
  }
  return zps_values_bound_bytes(value_codec, dtype, (uint64_t)z * width) + bits / 8;
}

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

/* Slower links keep the fewest bytes; so do links that processors move the bytes of, where a byte takes about as long
 * as its code. */
#define FAST_LINK_BITS 50000000000u
/* One core takes so long for an index in Rice codes, more than for one in plain codes. */
#define RICE_INDEX_S 1.9e-9

unsigned zps_codec_price(uint64_t link_bits, uint32_t n_readers) {
  if (link_bits < FAST_LINK_BITS) return 0;
  const double price = (double)link_bits * RICE_INDEX_S / (n_readers > 0 ? n_readers : 1);
  return price < ZPS_CODEC_PRICE_MAX ? (unsigned)price : ZPS_CODEC_PRICE_MAX;
}

unsigned zps_codec_priced(unsigned allowed, unsigned price) {
  return allowed & (RICE | HOLES) ? allowed | price << ZPS_CODEC_PRICE_SHIFT : allowed;
}

static bool is_rice(enum zps_codec codec) {
  return codec == ZPS_CODEC_RICE || codec == ZPS_CODEC_HOLES;
}

static uint64_t price_bits(unsigned allowed, uint32_t n) {
  return n < ZPS_CODEC_PRICED_MIN ? 0 : (uint64_t)n * (allowed >> ZPS_CODEC_PRICE_SHIFT);
}

/* Rice codes are for the rarer of indices and holes. */
static bool is_allowed(unsigned allowed, enum zps_codec codec, uint32_t m, uint32_t z) {
  if (!(allowed >> codec & 1)) return false;
  return !is_rice(codec) || !(allowed & (COO | BITMAP)) || (codec == ZPS_CODEC_HOLES) == (z > m / 2);
}

/* The least bits that a set of z indices costs: its own where the code is plain. */
static uint64_t least_bits(unsigned allowed, enum zps_codec codec, uint32_t m, uint32_t z) {
  if (!is_rice(codec)) return 8 * zps_codec_index_bytes(codec, m, z);
  const uint32_t n = codec == ZPS_CODEC_RICE ? z : m - z;
  return 8 * zps_rice_bytes_min(n) + price_bits(allowed, n);
}

/* The bits of the smallest plain code. UINT64_MAX: none is allowed. */
static uint64_t best_plain(unsigned allowed, uint32_t m, uint32_t z, enum zps_codec *codec_p) {
  uint64_t best = UINT64_MAX;
  for (enum zps_codec codec = 0; codec <= ZPS_CODEC_COO_ANY; codec++) {
    if (is_rice(codec) || !is_allowed(allowed, codec, m, z) || least_bits(allowed, codec, m, z) >= best) continue;
    best = least_bits(allowed, codec, m, z);
    *codec_p = codec;
  }
  return best;
}

enum zps_codec zps_codec_choose(unsigned allowed, uint32_t m, const uint32_t *indices, uint32_t z,
                                uint64_t *index_bytes_p) {
  enum zps_codec best = ZPS_CODEC_COO;
  uint64_t best_bits = best_plain(allowed, m, z, &best);
  *index_bytes_p = best_bits / 8;
  for (enum zps_codec codec = ZPS_CODEC_RICE; codec <= ZPS_CODEC_HOLES; codec++) {
    if (!is_allowed(allowed, codec, m, z) || least_bits(allowed, codec, m, z) >= best_bits) continue;
    const uint64_t bytes = zps_codec_index_exact(codec, m, indices, z);
    const uint64_t bits = 8 * bytes + price_bits(allowed, codec == ZPS_CODEC_RICE ? z : m - z);
    if (bits >= best_bits) continue;
    best = codec;
    best_bits = bits;
    *index_bytes_p = bytes;
  }
  return best;
}

enum zps_codec zps_codec_plain(unsigned allowed, uint32_t m, uint32_t z) {
  if (!(allowed & BITMAP)) return ZPS_CODEC_COO;
  if (!(allowed & COO)) return ZPS_CODEC_BITMAP;
  return zps_codec_index_bytes(ZPS_CODEC_COO, m, z) < zps_codec_index_bytes(ZPS_CODEC_BITMAP, m, z) ? ZPS_CODEC_COO
                                                                                                    : ZPS_CODEC_BITMAP;
}

/* No set of z indices can be cheaper in Rice codes than in the plain code. */
static bool is_cheapest(unsigned allowed, enum zps_codec codec, uint32_t m, uint32_t z) {
  enum zps_codec plain = ZPS_CODEC_COUNT;
  const uint64_t bits = best_plain(allowed, m, z, &plain);
  return plain == codec && (!(allowed & (RICE | HOLES)) ||
                            least_bits(allowed, z > m / 2 ? ZPS_CODEC_HOLES : ZPS_CODEC_RICE, m, z) >= bits);
}

zps_err_t zps_slice_recode(struct zps_slice_view *view, unsigned allowed, struct zps_buffer *scratch) {
  if (is_cheapest(allowed, view->codec, view->m, view->z)) return ZPS_OK;
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

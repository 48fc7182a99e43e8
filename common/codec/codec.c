#include "common/codec/codec.h"

#include <string.h>

#include "common/codec/bits.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values and indices are little-endian on the wire");

static const struct {
  const char *name;
  size_t size;
} dtypes[] = {[ZPS_DTYPE_F32] = {"f32", 4}, [ZPS_DTYPE_F64] = {"f64", 8}, [ZPS_DTYPE_U8] = {"u8", 1}};
static const char *const codecs[] = {[ZPS_CODEC_COO] = "coo", [ZPS_CODEC_BITMAP] = "bitmap"};
static const char *const ops[] = {[ZPS_OP_SUM] = "sum", [ZPS_OP_MEAN] = "mean"};

enum {
  N_DTYPES = sizeof dtypes / sizeof dtypes[0],
  N_CODECS = sizeof codecs / sizeof codecs[0],
  N_OPS = sizeof ops / sizeof ops[0],
};

size_t zps_dtype_size(enum zps_dtype dtype) {
  return (unsigned)dtype < N_DTYPES ? dtypes[dtype].size : 0;
}

const char *zps_dtype_name(enum zps_dtype dtype) {
  return zps_dtype_size(dtype) ? dtypes[dtype].name : "?";
}

const char *zps_codec_name(enum zps_codec codec) {
  return (unsigned)codec < N_CODECS ? codecs[codec] : "?";
}

const char *zps_op_name(enum zps_op op) {
  return (unsigned)op < N_OPS && ops[op] ? ops[op] : "?";
}

bool zps_dtype_parse(const char *name, enum zps_dtype *dtype_p) {
  for (unsigned i = 0; i < N_DTYPES; i++) {
    if (!dtypes[i].name || strcmp(dtypes[i].name, name) != 0) continue;
    *dtype_p = (enum zps_dtype)i;
    return true;
  }
  return false;
}

bool zps_op_parse(const char *name, enum zps_op *op_p) {
  for (unsigned i = 0; i < N_OPS; i++) {
    if (!ops[i] || strcmp(ops[i], name) != 0) continue;
    *op_p = (enum zps_op)i;
    return true;
  }
  return false;
}

/* Words of a bitmap over m ranks; m may be close to 2^32. */
static uint32_t bitmap_words(uint32_t m) {
  return m / 32 + (m % 32 != 0);
}

uint64_t zps_codec_index_bytes(enum zps_codec codec, uint32_t m, uint32_t z) {
  return 4 * (uint64_t)(codec == ZPS_CODEC_BITMAP ? bitmap_words(m) : z);
}

uint64_t zps_codec_slice_bytes(enum zps_codec codec, uint32_t m, uint32_t z, uint32_t width, enum zps_dtype dtype) {
  uint64_t bytes;
  if (__builtin_mul_overflow((uint64_t)z * width, (uint64_t)zps_dtype_size(dtype), &bytes) ||
      __builtin_add_overflow(bytes, zps_codec_index_bytes(codec, m, z), &bytes))
    return UINT64_MAX;
  return bytes;
}

/* The coded set follows the values and need not be aligned when these are bytes. */
static uint32_t load_u32(const void *base, uint64_t i) {
  uint32_t word;
  memcpy(&word, (const char *)base + 4 * i, sizeof word);
  return word;
}

static void store_u32(void *base, uint64_t i, uint32_t word) {
  memcpy((char *)base + 4 * i, &word, sizeof word);
}

void zps_codec_index_encode(enum zps_codec codec, uint32_t m, const uint32_t *ranks, uint32_t z, void *out) {
  if (codec == ZPS_CODEC_COO) {
    if (z) memcpy(out, ranks, 4 * (uint64_t)z);
    return;
  }
  memset(out, 0, zps_codec_index_bytes(codec, m, z));
  for (uint32_t i = 0; i < z;) {
    const uint32_t at = ranks[i] / 32;
    uint32_t word = 0;
    do {
      word |= 1u << (ranks[i] % 32);
    } while (++i < z && ranks[i] / 32 == at);
    store_u32(out, at, word);
  }
}

zps_err_t zps_slice_check_sizes(uint32_t codec, uint32_t m, uint32_t nnz, uint32_t width, enum zps_dtype dtype,
                                uint64_t len_bytes, struct zps_error *error) {
  if (zps_dtype_size(dtype) == 0 || width == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "rows of %u elements of dtype %d: there must be a dtype and an element",
                    width, (int)dtype);
  if (codec >= N_CODECS)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "slice in codec %u: must be 0 (coo) or 1 (bitmap)", codec);
  if (nnz > m) return zps_fail(error, ZPS_ERR_PROTOCOL, "slice of %u rows in a partition of %u", nnz, m);
  const uint64_t right = zps_codec_slice_bytes((enum zps_codec)codec, m, nnz, width, dtype);
  if (len_bytes != right)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "slice of %llu bytes: %u of %u rows of %u x %s as %s take %llu",
                    (unsigned long long)len_bytes, nnz, m, width, zps_dtype_name(dtype), codecs[codec],
                    (unsigned long long)right);
  return ZPS_OK;
}

static zps_err_t check_coo(const struct zps_slice_view *view, struct zps_error *error) {
  const uint32_t z = view->z;
  if (z == 0) return ZPS_OK;
  unsigned bad = 0;
  for (uint32_t i = 1; i < z; i++) bad |= load_u32(view->index, i - 1) >= load_u32(view->index, i);
  for (uint32_t i = 1; bad && i < z; i++) {
    if (load_u32(view->index, i - 1) >= load_u32(view->index, i))
      return zps_fail(error, ZPS_ERR_PROTOCOL, "coo slice: rank %u at position %u follows %u: ranks must ascend",
                      load_u32(view->index, i), i, load_u32(view->index, i - 1));
  }
  const uint32_t last = load_u32(view->index, z - 1);
  if (last >= view->m)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "coo slice: rank %u at position %u: the partition has ranks 0 to %u", last,
                    z - 1, view->m - 1);
  return ZPS_OK;
}

static zps_err_t check_bitmap(const struct zps_slice_view *view, struct zps_error *error) {
  const uint32_t n_words = bitmap_words(view->m);
  uint32_t count = 0; /* at most 32 * n_words: may only wrap to zero, when all of 2^32 bits are set; padding tells */
  for (uint32_t i = 0; i < n_words; i++) count += zps_bits_count(load_u32(view->index, i));
  if (view->m % 32 != 0 && load_u32(view->index, n_words - 1) >> (view->m % 32) != 0)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "bitmap slice: a bit is set beyond the partition's %u ranks", view->m);
  if (count != view->z)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "bitmap slice: %u bits are set, %u rows were announced", count, view->z);
  return ZPS_OK;
}

zps_err_t zps_slice_view_init(struct zps_slice_view *view, uint32_t codec, uint32_t m, uint32_t nnz, uint32_t width,
                              enum zps_dtype dtype, const void *payload, uint64_t len_bytes, struct zps_error *error) {
  zps_err_t code = zps_slice_check_sizes(codec, m, nnz, width, dtype, len_bytes, error);
  if (code != ZPS_OK) return code;
  const struct zps_slice_view checked = {
      .codec = (enum zps_codec)codec,
      .dtype = dtype,
      .m = m,
      .z = nnz,
      .width = width,
      .values = payload,
      .index = len_bytes ? (const char *)payload + (uint64_t)nnz * width * zps_dtype_size(dtype) : payload};
  code = codec == ZPS_CODEC_COO ? check_coo(&checked, error) : check_bitmap(&checked, error);
  if (code == ZPS_OK) *view = checked;
  return code;
}

void zps_rank_cursor_init(struct zps_rank_cursor *cursor, const struct zps_slice_view *view) {
  *cursor = (struct zps_rank_cursor){.view = view};
  if (view->codec == ZPS_CODEC_BITMAP && view->m > 0) cursor->bits = load_u32(view->index, 0);
}

/* Moves on to the next word with a bit; the caller knows that there is one. */
static void skip_empty_words(struct zps_rank_cursor *cursor) {
  while (cursor->bits == 0) cursor->bits = load_u32(cursor->view->index, ++cursor->word);
}

uint32_t zps_rank_cursor_peek(struct zps_rank_cursor *cursor) {
  const struct zps_slice_view *const view = cursor->view;
  if (cursor->next == view->z) return UINT32_MAX;
  if (view->codec == ZPS_CODEC_COO) return load_u32(view->index, cursor->next);
  skip_empty_words(cursor);
  return cursor->word * 32 + (uint32_t)__builtin_ctz(cursor->bits);
}

static uint32_t read_coo(struct zps_rank_cursor *cursor, uint32_t limit, uint32_t *ranks, uint32_t cap) {
  memcpy(ranks, (const char *)cursor->view->index + 4 * (uint64_t)cursor->next, 4 * (uint64_t)cap);
  uint32_t low = 0, high = cap;
  if (ranks[cap - 1] < limit) low = cap;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (ranks[middle] < limit)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static uint32_t read_bitmap(struct zps_rank_cursor *cursor, uint32_t limit, uint32_t *ranks, uint32_t cap) {
  uint32_t n = 0;
  /* whole words, while there is room for all that they may hold; a next word exists as long as ranks are left */
  while (cap - n >= 32) {
    skip_empty_words(cursor);
    if (cursor->word * 32 >= limit || limit - cursor->word * 32 < 32) break;
    n += zps_bits_list(cursor->bits, cursor->word * 32, ranks + n);
    cursor->bits = 0;
    if (cursor->next + n == cursor->view->z) return n;
    cursor->bits = load_u32(cursor->view->index, ++cursor->word);
  }
  while (n < cap) {
    skip_empty_words(cursor);
    const uint32_t base = cursor->word * 32;
    if (base >= limit) break;
    uint32_t bits = cursor->bits;
    if (limit - base < 32) bits &= (1u << (limit - base)) - 1;
    const uint32_t beyond = cursor->bits ^ bits;
    for (; bits && n < cap; bits &= bits - 1) ranks[n++] = base + (uint32_t)__builtin_ctz(bits);
    cursor->bits = bits | beyond;
    if (beyond) break;
  }
  return n;
}

uint32_t zps_rank_cursor_read(struct zps_rank_cursor *cursor, uint32_t limit, uint32_t *ranks, uint32_t cap) {
  const struct zps_slice_view *const view = cursor->view;
  if (cap > view->z - cursor->next) cap = view->z - cursor->next;
  if (cap == 0) return 0;
  const uint32_t n =
      view->codec == ZPS_CODEC_COO ? read_coo(cursor, limit, ranks, cap) : read_bitmap(cursor, limit, ranks, cap);
  cursor->next += n;
  return n;
}

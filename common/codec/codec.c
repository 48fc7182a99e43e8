#include "common/codec/codec.h"

#include <stdio.h>
#include <string.h>

#include "common/codec/bits.h"
#include "common/codec/codec_impl.h"
#include "common/codec/simd/simd.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values and indices are little-endian on the wire");

static const char *const codecs[] = {[ZPS_CODEC_COO] = "coo",
                                     [ZPS_CODEC_BITMAP] = "bitmap",
                                     [ZPS_CODEC_RICE] = "rice",
                                     [ZPS_CODEC_HOLES] = "holes",
                                     [ZPS_CODEC_COO_ANY] = "coo-any"};
static const char *const ops[] = {[ZPS_OP_SUM] = "sum",
                                  [ZPS_OP_MEAN] = "mean",
                                  [ZPS_OP_MAX] = "max",
                                  [ZPS_OP_MIN] = "min",
                                  [ZPS_OP_MEAN_PRESENT] = "mean_present",
                                  [ZPS_OP_ONE] = "one"};

enum { N_OPS = sizeof ops / sizeof ops[0] };

const char *zps_codec_name(enum zps_codec codec) {
  return (unsigned)codec <= ZPS_CODEC_COO_ANY ? codecs[codec] : "?";
}

const char *zps_op_name(enum zps_op op) {
  return (unsigned)op < N_OPS && ops[op] ? ops[op] : "?";
}

uint64_t zps_codec_index_bytes(enum zps_codec codec, uint32_t m, uint32_t z) {
  switch (codec) {
    case ZPS_CODEC_BITMAP:
      return 4 * (uint64_t)zps_bitmap_words(m);
    case ZPS_CODEC_RICE:
      return zps_rice_bytes_max(m, z);
    case ZPS_CODEC_HOLES:
      return zps_rice_bytes_max(m, m - z);
    default:
      return 4 * (uint64_t)z;
  }
}

static struct zps_rice_set rice_set(enum zps_codec codec, uint32_t m, const uint32_t *indices, uint32_t z) {
  return (struct zps_rice_set){.m = m, .indices = indices, .z = z, .holes = codec == ZPS_CODEC_HOLES};
}

uint64_t zps_codec_index_exact(enum zps_codec codec, uint32_t m, const uint32_t *indices, uint32_t z) {
  if (codec != ZPS_CODEC_RICE && codec != ZPS_CODEC_HOLES) return zps_codec_index_bytes(codec, m, z);
  const struct zps_rice_set set = rice_set(codec, m, indices, z);
  return zps_rice_bytes(&set);
}

uint64_t zps_codec_slice_bytes(enum zps_codec codec, uint32_t m, uint32_t z, uint32_t width, enum zps_dtype dtype,
                               enum zps_value_codec value_codec) {
  uint64_t bytes = zps_values_bytes(value_codec, dtype, (uint64_t)z * width);
  if (__builtin_add_overflow(bytes, zps_codec_index_bytes(codec, m, z), &bytes)) return UINT64_MAX;
  return bytes;
}

static void store_u32(void *base, uint64_t i, uint32_t word) {
  memcpy((char *)base + 4 * i, &word, sizeof word);
}

static void encode_bitmap(uint32_t m, const uint32_t *indices, uint32_t z, void *out) {
  memset(out, 0, 4 * (uint64_t)zps_bitmap_words(m));
  for (uint32_t i = 0; i < z;) {
    const uint32_t at = indices[i] / 32;
    uint32_t word = 0;
    do {
      word |= 1u << (indices[i] % 32);
    } while (++i < z && indices[i] / 32 == at);
    store_u32(out, at, word);
  }
}

uint64_t zps_codec_index_encode(enum zps_codec codec, uint32_t m, const uint32_t *indices, uint32_t z, void *out) {
  switch (codec) {
    case ZPS_CODEC_RICE:
    case ZPS_CODEC_HOLES: {
      const struct zps_rice_set set = rice_set(codec, m, indices, z);
      return zps_rice_encode(&set, out);
    }
    case ZPS_CODEC_BITMAP:
      encode_bitmap(m, indices, z, out);
      break;
    default:
      if (z) memcpy(out, indices, 4 * (uint64_t)z);
  }
  return zps_codec_index_bytes(codec, m, z);
}

zps_err_t zps_slice_check_sizes(uint32_t codec, uint32_t m, uint32_t nnz, uint32_t width, enum zps_dtype dtype,
                                enum zps_value_codec value_codec, uint64_t len_bytes, struct zps_error *error) {
  if (!zps_values_suit(value_codec, dtype) || width == 0)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "rows of %u elements of dtype %d as %s: there must be an element, a dtype, and a codec for it",
                    width, (int)dtype, zps_values_name(value_codec));
  if (codec >= ZPS_CODEC_COUNT)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "slice in codec %u: must be 0 (coo), 1 (bitmap), 2 (rice) or 3 (holes)",
                    codec);
  if (nnz > m) return zps_fail(error, ZPS_ERR_PROTOCOL, "slice of %u rows in a partition of %u", nnz, m);
  const uint64_t most = zps_codec_slice_bytes((enum zps_codec)codec, m, nnz, width, dtype, value_codec);
  uint64_t least = most;
  if (codec == ZPS_CODEC_RICE || codec == ZPS_CODEC_HOLES) {
    const uint32_t n = codec == ZPS_CODEC_RICE ? nnz : m - nnz;
    least -= zps_rice_bytes_max(m, n) - zps_rice_bytes_min(n);
  }
  if (len_bytes >= least && len_bytes <= most) return ZPS_OK;
  char range[64];
  snprintf(range, sizeof range, least < most ? "%llu to %llu" : "%llu", (unsigned long long)least,
           (unsigned long long)most);
  return zps_fail(error, ZPS_ERR_PROTOCOL, "slice of %llu bytes: %u of %u rows of %u x %s as %s%s%s take %s",
                  (unsigned long long)len_bytes, nnz, m, width, zps_dtype_name(dtype), codecs[codec],
                  value_codec == ZPS_VALUES_RAW ? "" : " and ",
                  value_codec == ZPS_VALUES_RAW ? "" : zps_values_name(value_codec), range);
}

static zps_err_t check_coo(const struct zps_slice_view *view, struct zps_error *error) {
  const uint32_t z = view->z;
  if (z == 0) return ZPS_OK;
  const bool bad = !zps_simd()->ascends(view->index, z);
  for (uint32_t i = 1; bad && i < z; i++) {
    if (zps_load_u32(view->index, i - 1) >= zps_load_u32(view->index, i))
      return zps_fail(error, ZPS_ERR_PROTOCOL, "coo slice: index %u at position %u follows %u: indices must ascend",
                      zps_load_u32(view->index, i), i, zps_load_u32(view->index, i - 1));
  }
  const uint32_t last = zps_load_u32(view->index, z - 1);
  if (last >= view->m)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "coo slice: index %u at position %u: the partition has indices 0 to %u",
                    last, z - 1, view->m - 1);
  return ZPS_OK;
}

/* The number of indices in words [first, end). */
static uint32_t count_words(const void *index, uint32_t first, uint32_t end) {
  uint32_t count = 0;
  for (uint32_t i = first; i < end; i++) count += zps_bits_count(zps_load_u32(index, i));
  return count;
}

static zps_err_t check_bitmap(struct zps_slice_view *view, struct zps_error *error) {
  const uint32_t n_words = zps_bitmap_words(view->m), step = n_words / ZPS_BITMAP_MARKS + 1;
  struct zps_bitmap_marks *const marks = &view->bitmap_marks;
  uint32_t count = 0; /* at most 32 * n_words: may only wrap to zero, when all of 2^32 bits are set; padding tells */
  marks->step = step;
  for (uint32_t i = 0; i < n_words; i += step) {
    marks->before[marks->n++] = count;
    count += count_words(view->index, i, n_words - i > step ? i + step : n_words);
  }
  if (view->m % 32 != 0 && zps_load_u32(view->index, n_words - 1) >> (view->m % 32) != 0)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "bitmap slice: a bit is set beyond the partition's %u indices", view->m);
  if (count != view->z)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "bitmap slice: %u bits are set, %u rows were announced", count, view->z);
  return ZPS_OK;
}

/* The indices of RICE, the holes of HOLES. */
static zps_err_t check_rice(struct zps_slice_view *view, struct zps_error *error) {
  const char *const name = codecs[view->codec];
  const uint32_t n = view->codec == ZPS_CODEC_RICE ? view->z : view->m - view->z;
  struct zps_rice_reader reader;
  zps_rice_reader_init(&reader, view->m, n, view->index, view->index_bytes);
  if (zps_rice_skip(&reader, &view->marks)) return ZPS_OK;
  if (reader.left > 0)
    return zps_fail(
        error, ZPS_ERR_PROTOCOL,
        "%s slice: the block at position %u of %u leads beyond the partition's %u indices or the %llu bytes", name,
        n - reader.left, n, view->m, (unsigned long long)view->index_bytes);
  return zps_fail(error, ZPS_ERR_PROTOCOL,
                  "%s slice: the code ends at bit %llu: its %llu bytes must end there, "
                  "padded with zeros",
                  name, (unsigned long long)reader.bit, (unsigned long long)view->index_bytes);
}

struct zps_slice_view zps_slice_view_own(enum zps_codec codec, uint32_t m, uint32_t nnz, uint32_t width,
                                         enum zps_dtype dtype, enum zps_value_codec value_codec, const void *payload,
                                         uint64_t len_bytes) {
  const uint64_t values_bytes = zps_values_bytes(value_codec, dtype, (uint64_t)nnz * width);
  return (struct zps_slice_view){.codec = codec,
                                 .dtype = dtype,
                                 .value_codec = value_codec,
                                 .m = m,
                                 .z = nnz,
                                 .width = width,
                                 .values = payload,
                                 .index = len_bytes ? (const char *)payload + values_bytes : payload,
                                 .index_bytes = len_bytes - values_bytes};
}

zps_err_t zps_slice_view_init(struct zps_slice_view *view, uint32_t codec, uint32_t m, uint32_t nnz, uint32_t width,
                              enum zps_dtype dtype, enum zps_value_codec value_codec, const void *payload,
                              uint64_t len_bytes, struct zps_error *error) {
  zps_err_t code = zps_slice_check_sizes(codec, m, nnz, width, dtype, value_codec, len_bytes, error);
  if (code != ZPS_OK) return code;
  struct zps_slice_view checked =
      zps_slice_view_own((enum zps_codec)codec, m, nnz, width, dtype, value_codec, payload, len_bytes);
  code = codec == ZPS_CODEC_COO      ? check_coo(&checked, error)
         : codec == ZPS_CODEC_BITMAP ? check_bitmap(&checked, error)
                                     : check_rice(&checked, error);
  if (code == ZPS_OK) code = zps_values_check(value_codec, dtype, payload, (uint64_t)nnz * width, error);
  if (code == ZPS_OK) *view = checked;
  return code;
}

const void *zps_slice_values(const struct zps_slice_view *view, uint32_t first, uint32_t n, void *room) {
  const uint64_t at = (uint64_t)first * view->width, n_values = (uint64_t)view->z * view->width;
  if (zps_values_are_plain(view->value_codec, view->dtype))
    return (const char *)view->values + at * zps_dtype_size(view->dtype);
  zps_values_decode(view->value_codec, view->dtype, view->values, n_values, at, (uint64_t)n * view->width, room);
  return room;
}

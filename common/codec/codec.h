/*
 * Slices and index codecs: exact sizes, encoding, checked decoding.
 *
 * An index set is z ascending local indices below m. A slice's payload is: the values of those rows in the same order
 * (z * width of them, coded as values.h says), then the coded set, so that values are always aligned. Sizes are exact
 * and known before encoding; every decoder checks everything it reads (a peer wrote it).
 */
#ifndef ZPS_CODEC_CODEC_H
#define ZPS_CODEC_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/codec/codec_rice.h"
#include "common/codec/values.h"

enum zps_codec {
  ZPS_CODEC_COO = 0,    /* z x u32 little-endian, strictly ascending: Zen's push */
  ZPS_CODEC_BITMAP = 1, /* ceil(m / 32) x u32 little-endian, bit r%32 of word r/32: Zen's hash bitmap (its pull);
                           bits from m on are zero */
  ZPS_CODEC_RICE = 2,   /* gaps between indices, in blocks of Rice codes (codec_rice.h): near the entropy up to m / 2 */
  ZPS_CODEC_HOLES = 3,  /* Rice codes of the m - z absent indices; no bytes when none is absent */
  ZPS_CODEC_COUNT,      /* of those above, which any slice may be in */
  ZPS_CODEC_COO_ANY = ZPS_CODEC_COUNT, /* COO in any order, without repeats: pushed to servers alone, which put it in
                                          order (order.h) */
};

/* Numbers are ABI (zenps.h). MAX and MIN: of the ranks that hold a row, value by value; -0.0 counts as +0.0, a NaN is
 * the result wherever one is. */
enum zps_op {
  ZPS_OP_SUM = 1,
  ZPS_OP_MEAN = 2,
  ZPS_OP_MAX = 3,
  ZPS_OP_MIN = 4,
  ZPS_OP_MEAN_PRESENT = 5, /* the sum by the number of ranks that contribute to the step */
  ZPS_OP_ONE = 6           /* of bytes: the row of the one rank that has it; two are an error */
};

const char *zps_codec_name(enum zps_codec codec);
const char *zps_op_name(enum zps_op op);

/* Bytes of the coded set of z indices out of m, and of a whole slice (UINT64_MAX when 64 bits cannot hold it). They
 * depend on m and z alone for COO and BITMAP; for RICE and HOLES they are the most that any set takes. */
uint64_t zps_codec_index_bytes(enum zps_codec codec, uint32_t m, uint32_t z);
uint64_t zps_codec_slice_bytes(enum zps_codec codec, uint32_t m, uint32_t z, uint32_t width, enum zps_dtype dtype,
                               enum zps_value_codec value_codec);

/* Bytes that the coded set of these `z` strictly ascending `indices` (all below m) takes, exactly. */
uint64_t zps_codec_index_exact(enum zps_codec codec, uint32_t m, const uint32_t *indices, uint32_t z);
/* Writes the coded set: exactly zps_codec_index_exact() bytes, which is what it returns. */
uint64_t zps_codec_index_encode(enum zps_codec codec, uint32_t m, const uint32_t *indices, uint32_t z, void *out);

/* BITMAP: the number of indices in the set before word i * step, of bits that have been checked; `n` of these numbers,
 * 0: not checked. As much memory as the marks of the other codes take. */
enum { ZPS_BITMAP_MARKS = (sizeof(struct zps_rice_marks) / sizeof(uint32_t)) - 2 };
struct zps_bitmap_marks {
  uint32_t step, n;
  uint32_t before[ZPS_BITMAP_MARKS];
};

/* A checked, borrowed view of a slice's payload. */
struct zps_slice_view {
  enum zps_codec codec;
  enum zps_dtype dtype;
  enum zps_value_codec value_codec;
  uint32_t m, z, width;
  const void *values; /* the coded z * width values: elements of the dtype when raw */
  const void *index;  /* the coded set */
  uint64_t index_bytes;
  union {                        /* of the set, where it has been checked; none otherwise */
    struct zps_rice_marks marks; /* RICE, HOLES */
    struct zps_bitmap_marks bitmap_marks;
  };
};

/* The view of a slice that this process wrote itself: nothing is checked. `len_bytes` is at least that of its values.
 */
struct zps_slice_view zps_slice_view_own(enum zps_codec codec, uint32_t m, uint32_t nnz, uint32_t width,
                                         enum zps_dtype dtype, enum zps_value_codec value_codec, const void *payload,
                                         uint64_t len_bytes);
/* Checks codec, sizes, the whole index set (order, range, counts, padding) and the coded values of a payload that a
 * peer announced as `codec`, `nnz`, `len_bytes`. The text of ZPS_ERR_PROTOCOL names the fault and its place. */
zps_err_t zps_slice_view_init(struct zps_slice_view *view, uint32_t codec, uint32_t m, uint32_t nnz, uint32_t width,
                              enum zps_dtype dtype, enum zps_value_codec value_codec, const void *payload,
                              uint64_t len_bytes, struct zps_error *error) ZPS_MUSTCHECK;
/* Checks only the sizes, when a payload is announced and before it is read. COO_ANY is refused, here and above. */
zps_err_t zps_slice_check_sizes(uint32_t codec, uint32_t m, uint32_t nnz, uint32_t width, enum zps_dtype dtype,
                                enum zps_value_codec value_codec, uint64_t len_bytes,
                                struct zps_error *error) ZPS_MUSTCHECK;
/* The values of rows [first, first + n) of the z: where they lie when plain (values.h), else decoded to `room` (n *
 * width elements, aligned). */
const void *zps_slice_values(const struct zps_slice_view *view, uint32_t first, uint32_t n, void *room);

/* A cursor over a view's indices, ascending, in batches: fills up to `cap` indices below `limit`, returns how many. */
struct zps_index_cursor {
  const struct zps_slice_view *view;
  uint32_t next;  /* position among the z indices */
  uint32_t guess; /* COO: how many were lent at a time */
  uint32_t word;  /* BITMAP: word being read, and the part of it that is left */
  uint32_t bits;
  uint32_t index;               /* HOLES: the least index that may be next */
  uint32_t block_at, block_len; /* RICE, HOLES: the part of `block` that is still to be used */
  struct zps_rice_reader reader;
  uint32_t block[4 * ZPS_RICE_BLOCK];
};
void zps_index_cursor_init(struct zps_index_cursor *cursor, const struct zps_slice_view *view);
uint32_t zps_index_cursor_read(struct zps_index_cursor *cursor, uint32_t limit, uint32_t *indices, uint32_t cap);
/* Lends the next indices below `limit` where they lie, which may be anywhere in memory, or in `room`. Returns how many,
 * 0 at the limit or the end. */
typedef uint32_t zps_lent_index __attribute__((aligned(1), may_alias));
enum { ZPS_INDEX_CURSOR_ROOM = 512 };
uint32_t zps_index_cursor_lend(struct zps_index_cursor *cursor, uint32_t limit, uint32_t *room,
                               const zps_lent_index **indices_p);
/* COO and RICE: lends indices from the next one on where they lie, without looking at where the limit is among them. 0
 * at the limit or the end. They are not passed but by zps_index_cursor_pass(). */
uint32_t zps_index_cursor_offer(struct zps_index_cursor *cursor, uint32_t limit, const zps_lent_index **indices_p);
void zps_index_cursor_pass(struct zps_index_cursor *cursor, uint32_t n);
/* BITMAP and HOLES: sets bit i % 64 of bits[i / 64] where index first + i is in the set, clears the others, passes all
 * of these indices and returns how many there are. `first` is a multiple of 64; no index below it is left to be read.
 */
uint32_t zps_index_cursor_bits(struct zps_index_cursor *cursor, uint32_t first, uint32_t n_words, uint64_t *bits);
/* Passes all indices below the limit, which is m at most, without listing them. */
void zps_index_cursor_seek(struct zps_index_cursor *cursor, uint32_t limit);
/* The index that is read next, or UINT32_MAX (which is no index) at the end. */
uint32_t zps_index_cursor_peek(struct zps_index_cursor *cursor);

#endif

/*
 * Index codecs and element types: exact sizes, encoding, checked decoding.
 *
 * An index set is z ascending local ranks below m. A slice's payload is: the values of those rows in the same order
 * (z * width * element size), then the coded set, so that values are always aligned. Sizes are exact and known before
 * encoding; every decoder checks everything it reads (a peer wrote it).
 */
#ifndef ZPS_CODEC_CODEC_H
#define ZPS_CODEC_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum zps_codec {
  ZPS_CODEC_COO = 0,    /* z x u32 little-endian, strictly ascending: Zen's push */
  ZPS_CODEC_BITMAP = 1, /* ceil(m / 32) x u32 little-endian, bit r%32 of word r/32: Zen's hash bitmap (its pull);
                           bits from m on are zero */
};

enum zps_dtype { /* numbers are ABI (zenps.h) and wire */
  ZPS_DTYPE_F32 = 1,
  ZPS_DTYPE_F64 = 2,
  ZPS_DTYPE_U8 = 3, /* bytes, added modulo 256: carries zenps_broadcast() */
};

enum zps_op { ZPS_OP_SUM = 1, ZPS_OP_MEAN = 2 };

size_t zps_dtype_size(enum zps_dtype dtype); /* 0 for a number that is no dtype */
const char *zps_dtype_name(enum zps_dtype dtype);
const char *zps_codec_name(enum zps_codec codec);
const char *zps_op_name(enum zps_op op);
/* "f32" -> ZPS_DTYPE_F32 and so on; false for unknown names. */
bool zps_dtype_parse(const char *name, enum zps_dtype *dtype_p);
bool zps_op_parse(const char *name, enum zps_op *op_p);

/* Bytes of the coded set of z ranks out of m, and of a whole slice (UINT64_MAX when 64 bits cannot hold it). */
uint64_t zps_codec_index_bytes(enum zps_codec codec, uint32_t m, uint32_t z);
uint64_t zps_codec_slice_bytes(enum zps_codec codec, uint32_t m, uint32_t z, uint32_t width, enum zps_dtype dtype);

/* Writes the coded set of `z` strictly ascending `ranks` (all below m): exactly zps_codec_index_bytes(). */
void zps_codec_index_encode(enum zps_codec codec, uint32_t m, const uint32_t *ranks, uint32_t z, void *out);

/* A checked, borrowed view of a slice's payload. */
struct zps_slice_view {
  enum zps_codec codec;
  enum zps_dtype dtype;
  uint32_t m, z, width;
  const void *values; /* z * width elements */
  const void *index;  /* the coded set */
};

/* Checks codec, sizes and the whole index set (order, range, counts, padding) of a payload that a peer announced as
 * `codec`, `nnz`, `len_bytes`. ZPS_ERR_PROTOCOL says what is wrong and where. */
zps_err_t zps_slice_view_init(struct zps_slice_view *view, uint32_t codec, uint32_t m, uint32_t nnz, uint32_t width,
                              enum zps_dtype dtype, const void *payload, uint64_t len_bytes,
                              struct zps_error *error) ZPS_MUSTCHECK;
/* Only the sizes: what can be checked when a payload is announced and before it is read. */
zps_err_t zps_slice_check_sizes(uint32_t codec, uint32_t m, uint32_t nnz, uint32_t width, enum zps_dtype dtype,
                                uint64_t len_bytes, struct zps_error *error) ZPS_MUSTCHECK;

/* A cursor over a view's ranks, ascending, in batches: fills up to `cap` ranks below `limit`, returns how many. */
struct zps_rank_cursor {
  const struct zps_slice_view *view;
  uint32_t next;      /* position among the z ranks */
  uint32_t word;      /* BITMAP: word being read, and what is left of it */
  uint32_t bits;
};
void zps_rank_cursor_init(struct zps_rank_cursor *cursor, const struct zps_slice_view *view);
uint32_t zps_rank_cursor_read(struct zps_rank_cursor *cursor, uint32_t limit, uint32_t *ranks, uint32_t cap);
/* The rank that is read next, or UINT32_MAX (which is no rank) at the end. */
uint32_t zps_rank_cursor_peek(struct zps_rank_cursor *cursor);

#endif

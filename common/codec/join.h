/*
 * Small slices of successive partitions as one slice, and back.
 *
 * The joined slice is a slice of one partition that has all their rows: the indices of each partition come after the
 * sizes of those before it. So one count, one codec and one code do for all of them, which pays where slices are not
 * much longer than their descriptions. Values keep their order.
 */
#ifndef ZPS_CODEC_JOIN_H
#define ZPS_CODEC_JOIN_H

#include "common/codec/codec.h"

/* The most that the rows of a joined slice take with their indices as COO: what a receiver needs to take it apart. */
#define ZPS_JOIN_BYTES_MAX 4096u
#define ZPS_JOIN_ROWS_MAX (ZPS_JOIN_BYTES_MAX / 5) /* a row has a byte, an index four */

/* Whether slices of `nnz` rows out of `m` in all may be joined. Values in buckets with a scale are not joined: the
 * values that share one scale depend on the number of rows of each partition. */
bool zps_join_fits(uint64_t m, uint64_t nnz, uint32_t width, enum zps_dtype dtype, enum zps_value_codec value_codec);

struct zps_joined {
  enum zps_dtype dtype;
  enum zps_value_codec value_codec;
  uint32_t width;
  uint64_t row_bytes;
  uint32_t m, z; /* so far */
  uint32_t indices[ZPS_JOIN_ROWS_MAX];
  unsigned char values[ZPS_JOIN_BYTES_MAX];
};

void zps_join_init(struct zps_joined *join, uint32_t width, enum zps_dtype dtype, enum zps_value_codec value_codec);
/* The next partition's slice, checked; all of them together fit. */
void zps_join_add(struct zps_joined *join, const struct zps_slice_view *view);
/* Writes the joined slice in the codec out of `allowed` that takes the fewest bytes, unless these are more than `cap`:
 * then it returns false. */
bool zps_join_write(const struct zps_joined *join, unsigned allowed, void *out, uint64_t cap, enum zps_codec *codec_p,
                    uint64_t *len_bytes_p);

struct zps_split {
  struct zps_slice_view view;
  uint64_t row_bytes;
  uint32_t first, next; /* indices of the partition at hand */
  uint64_t base, end;
  uint32_t indices[ZPS_JOIN_ROWS_MAX];
};

/* Checks a payload that a peer announced as joined, as zps_slice_view_init() does; `m` is the sum of the partitions'
 * sizes. */
zps_err_t zps_split_init(struct zps_split *split, uint32_t codec, uint64_t m, uint32_t nnz, uint32_t width,
                         enum zps_dtype dtype, enum zps_value_codec value_codec, const void *payload,
                         uint64_t len_bytes, struct zps_error *error) ZPS_MUSTCHECK;
/* Goes on to the next partition, of `m` rows. Returns the number of them that are in the slice. */
uint32_t zps_split_next(struct zps_split *split, uint32_t m);
/* Writes that partition's slice as COO and returns its bytes, at most ZPS_JOIN_BYTES_MAX. */
uint64_t zps_split_write(const struct zps_split *split, void *out);

#endif

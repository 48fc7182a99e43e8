/* The codec that a slice travels in: the smallest of those that are allowed. */
#ifndef ZPS_CODEC_CHOICE_H
#define ZPS_CODEC_CHOICE_H

#include "common/codec/buffer.h"
#include "common/codec/codec.h"

/* Numbers are ABI (zenps.h). */
enum zps_codec_policy {
  ZPS_CODEC_AUTO = 1,     /* the smallest, in both directions */
  ZPS_CODEC_PAPER = 2,    /* Zen's choice: COO to the servers, the hash bitmap back */
  ZPS_CODEC_COO_ONLY = 3, /* "coo", both ways: as in the parameter servers that Zen is compared with */
};

const char *zps_codec_policy_name(enum zps_codec_policy policy);

/* Sets of codecs: bit 1u << codec. Empty for a number that is no policy. */
unsigned zps_codec_push_set(enum zps_codec_policy policy);
unsigned zps_codec_result_set(enum zps_codec_policy policy);

/* The set that takes the place of {COO} where rows may be pushed in any order. */
#define ZPS_CODEC_ANY_ORDER (1u << ZPS_CODEC_COO_ANY)

/* Beyond this share of all rows, all are written and read in less time than a bitmap and its rows. */
#define ZPS_CODEC_MOST 0.75

/* The codec out of `allowed` (not empty) that takes the fewest bytes for this set, and how many these are. */
enum zps_codec zps_codec_choose(unsigned allowed, uint32_t m, const uint32_t *indices, uint32_t z,
                                uint64_t *index_bytes_p);
/* Of two allowed codecs whose size follows from m and z, COO and BITMAP, the smaller; the other where only one is. For
 * sums, whose indices are not known before they are made. */
enum zps_codec zps_codec_plain(unsigned allowed, uint32_t m, uint32_t z);
/* Codes the index set of a slice that this process has made anew, in place, as the smallest out of `allowed`. The bytes
 * never get more. `scratch` is the caller's, kept from call to call. */
zps_err_t zps_slice_recode(struct zps_slice_view *view, unsigned allowed, struct zps_buffer *scratch) ZPS_MUSTCHECK;

/* The least bytes that a random set of z rows out of m takes: their values, at the width that they travel in, and
 * m * H(z / m) bits. */
double zps_codec_bound_bytes(uint32_t m, uint32_t z, uint32_t width, enum zps_dtype dtype,
                             enum zps_value_codec value_codec);

#endif

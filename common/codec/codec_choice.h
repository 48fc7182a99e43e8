/* Chooses the codec of a slice: the smallest allowed one, or the cheapest in time. */
#ifndef ZPS_CODEC_CHOICE_H
#define ZPS_CODEC_CHOICE_H

#include "common/codec/buffer.h"
#include "common/codec/codec.h"

/* Numbers are ABI (zenps.h). */
enum zps_codec_policy {
  ZPS_CODEC_AUTO = 1,     /* the smallest, in both directions; for sums on fast links the cheapest in time */
  ZPS_CODEC_PAPER = 2,    /* Zen's choice: COO to the servers, the hash bitmap back */
  ZPS_CODEC_COO_ONLY = 3, /* "coo", both ways: as in the parameter servers that Zen is compared with */
};

const char *zps_codec_policy_name(enum zps_codec_policy policy);

/* Sets of codecs: bit 1u << codec. Empty for a number that is no policy. */
unsigned zps_codec_push_set(enum zps_codec_policy policy);
unsigned zps_codec_result_set(enum zps_codec_policy policy);

/* The set that takes the place of {COO} where rows may be pushed in any order. */
#define ZPS_CODEC_ANY_ORDER (1u << ZPS_CODEC_COO_ANY)

/*
 * A set of codecs carries a price above its bits. An index takes longer in Rice codes than in plain ones, and the price
 * is the bits that the link carries meanwhile. Each index of a Rice code, or each hole, counts for that many bits more.
 * So the cheapest codec in time is chosen. Price 0: the fewest bytes win, as always for small sets, inside frames.
 */
enum { ZPS_CODEC_PRICE_SHIFT = 8, ZPS_CODEC_PRICE_MAX = 255, ZPS_CODEC_PRICED_MIN = 1024 };
/* `link_bits`: a second, of a card that moves bytes by itself; 0: not known. `n_readers`: how often the link carries
 * what is coded once. The price is 0 on slow links. */
unsigned zps_codec_price(uint64_t link_bits, uint32_t n_readers);
/* The set at this price; a set without Rice codes has none. */
unsigned zps_codec_priced(unsigned allowed, unsigned price);

/* Beyond this share of all rows, all are written and read in less time than a bitmap and its rows. */
#define ZPS_CODEC_MOST 0.75

/* The codec out of `allowed` (not empty) that takes the fewest bytes for this set, with the price, and its bytes alone.
 */
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

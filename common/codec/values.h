/*
 * Value codecs: the coding in which the values of a slice travel. A list of n values takes (padded with zeros to 4
 * bytes, but for raw):
 *
 *   raw      the values, whatever they are (the only one for bytes)
 *   bf16     2 bytes each: the upper half of a float
 *   f16      2 bytes each: IEEE 754 binary16
 *   qsgdB    B = 2, 4 or 8 bits each, in buckets of 1024: first all buckets' scales (f32), then all levels
 *
 * bf16 and f16 round to nearest, ties to even; too large a value becomes infinite, a NaN stays one and becomes quiet.
 * Doubles are rounded once: they pass through a float that is rounded to odd.
 *
 * QSGD: a bucket's scale is its largest magnitude (of doubles: rounded up to a float), s = 2^(B - 1) - 1, and a value v
 * becomes the level floor(|v| * (s / scale) + u) with v's sign, in double precision. u = (r + 0.5) / 2^32 is drawn for
 * every value: of the key and the value's position i in the list,
 *
 *   h = mix64(key + 8 * (i / 16) + i % 8);  r = i % 16 < 8 ? low 32 bits of h : high 32 bits of h
 *
 * so the expected level is the exact quotient, the same key draws the same, and zero stays zero. Levels are two's
 * complement numbers of B bits, value i's in bits i * B and up of the list's levels, least significant first; -2^(B -
 * 1) is no level. Level l stands for l * (scale / s), computed in double precision and rounded to a float: at most
 * scale / s, and that rounding, from v. In a bucket with a value that is not finite (of doubles: not finite as a float)
 * the scale is NaN and all levels are 0: it is NaN throughout.
 *
 * Arrays of halves (dtype.h) are coded and decoded, too: as bf16 or f16, by whichever name they have, they are copied
 * as they are; in any other codec they travel as the floats that they stand for, and what comes out is rounded to them.
 *
 * Every decoded value is a float, which doubles widen. An encoder loses the difference to its values; a caller that
 * wants to keep it, as a residual for the next step, can decode its own code. The trainer's interface does not.
 *
 * Draws are by counter (key, position), so that any thread may code any part, and a push that is sent again is the
 * same. Values are widened a part of a chunk at a time where they are added up, and where a result is put together; a
 * sum is narrowed when all of it is there, because scales come first. The number of values alone decides the bytes. On
 * one core a value takes 0.1 ns to become or to come from bf16, 0.2 ns f16, 0.5 ns to become a QSGD level and 0.4 ns to
 * come from one (AVX-512; with AVX2 0.1, 0.3, 1.3 and 0.4; without 0.5, 1.2, 2.8 and 0.4).
 */
#ifndef ZPS_CODEC_VALUES_H
#define ZPS_CODEC_VALUES_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/codec/dtype.h"

/* Numbers are ABI (zenps.h). */
enum zps_value_codec {
  ZPS_VALUES_RAW = 1,
  ZPS_VALUES_BF16 = 2,
  ZPS_VALUES_F16 = 3,
  ZPS_VALUES_QSGD2 = 4,
  ZPS_VALUES_QSGD4 = 5,
  ZPS_VALUES_QSGD8 = 6,
};

#define ZPS_VALUES_BUCKET 1024u

const char *zps_values_name(enum zps_value_codec codec);
/* All names in the order of their numbers, which start at 1: for tables of options. */
#define ZPS_VALUES_NAME_LIST "raw", "bf16", "f16", "qsgd2", "qsgd4", "qsgd8"
/* True when values of this dtype can travel in this codec; false for numbers that are no codec. Halves do not travel as
 * halves of the other kind, which would round them twice. */
bool zps_values_suit(enum zps_value_codec codec, enum zps_dtype dtype);
/* The codec that has the elements of this dtype as they are: of halves their own format, of others raw. */
enum zps_value_codec zps_values_own(enum zps_dtype dtype);
/* The codec in which the values of such arrays travel when `codec` is asked for: raw stands for their own. */
static inline enum zps_value_codec zps_values_of(enum zps_value_codec codec, enum zps_dtype dtype) {
  return codec == ZPS_VALUES_RAW ? zps_values_own(dtype) : codec;
}
/* The list has the dtype's elements as they are, so it need not be coded. */
static inline bool zps_values_are_plain(enum zps_value_codec codec, enum zps_dtype dtype) {
  return codec == ZPS_VALUES_RAW || codec == zps_values_own(dtype);
}
/* n halves of the dtype to floats, or floats to halves, which may be where the floats are. */
void zps_values_widen(enum zps_dtype dtype, const void *halves, uint64_t n, void *floats);
void zps_values_narrow(enum zps_dtype dtype, const void *floats, uint64_t n, void *halves);
/* Each of the floats is one of `codec`, bf16 or f16: narrowed and widened again it is the same. All NaNs count as the
 * same. */
bool zps_values_hold(enum zps_value_codec codec, const void *floats, uint64_t n);
/* Bits of a QSGD level, 0 for the other codecs. */
unsigned zps_values_level_bits(enum zps_value_codec codec);
/* The other way round: of 2, 4 or 8 bits. */
ZPS_INLINE enum zps_value_codec zps_values_of_bits(uint32_t bits) {
  return bits == 2 ? ZPS_VALUES_QSGD2 : bits == 4 ? ZPS_VALUES_QSGD4 : ZPS_VALUES_QSGD8;
}

/* Bytes of a row of `width` values of a list whose values are coded one by one (raw, bf16 or f16), without its padding.
 */
static inline uint64_t zps_values_row_bytes(enum zps_value_codec codec, enum zps_dtype dtype, uint32_t width) {
  return width * (uint64_t)(codec == ZPS_VALUES_RAW ? zps_dtype_size(dtype) : 2);
}
/* Writes the zeros that make a list of n elements one, where it has any. */
void zps_values_pad(enum zps_value_codec codec, uint64_t n, void *list);
/* Bytes of a list of n values; UINT64_MAX when 64 bits cannot hold it. */
uint64_t zps_values_bytes(enum zps_value_codec codec, enum zps_dtype dtype, uint64_t n);
/* Bytes of a list of n values, without the list's padding. */
double zps_values_bound_bytes(enum zps_value_codec codec, enum zps_dtype dtype, uint64_t n);
/* The sender of values: a rank, or the number `world` for sums. */
struct zps_values_origin {
  uint64_t seed; /* of the job */
  uint64_t step;
  uint32_t tensor, rank;
};
/* The key of the values that are sent for a partition. */
ZPS_INLINE uint64_t zps_values_key(const struct zps_values_origin *origin, uint32_t partition) {
  const uint64_t of_slice = zps_hash_mix64(origin->seed ^ ((uint64_t)origin->tensor << 32 | partition));
  return zps_hash_mix64(zps_hash_mix64(of_slice ^ origin->step) ^ origin->rank);
}

/* Writes a list piece by piece. */
struct zps_values_writer {
  enum zps_value_codec codec;
  enum zps_dtype dtype;
  uint64_t key, n, at; /* values of the list, values written */
  unsigned char *out;
  uint32_t n_held; /* values in `bucket` */
  double bucket[ZPS_VALUES_BUCKET];
};
/* A list of `n` values, to zps_values_bytes() at `out`, which must not overlap the values put. */
void zps_values_writer_init(struct zps_values_writer *writer, enum zps_value_codec codec, enum zps_dtype dtype,
                            uint64_t n, uint64_t key, void *out);
void zps_values_writer_put(struct zps_values_writer *writer, const void *values, uint64_t n);
/* Puts halves into a writer of floats. */
void zps_values_writer_put_halves(struct zps_values_writer *writer, enum zps_dtype dtype, const void *halves,
                                  uint64_t n);
/* After the last of the values. */
void zps_values_writer_end(struct zps_values_writer *writer);
/* All at once. */
void zps_values_encode(enum zps_value_codec codec, enum zps_dtype dtype, const void *values, uint64_t n, uint64_t key,
                       void *out);

/* Checks zps_values_bytes() that a peer wrote: scales, levels, padding. The text of ZPS_ERR_PROTOCOL names the
 * fault. */
zps_err_t zps_values_check(enum zps_value_codec codec, enum zps_dtype dtype, const void *list, uint64_t n,
                           struct zps_error *error) ZPS_MUSTCHECK;
/* Decodes values [first, first + count) of a checked list of n to `out` (of the dtype). */
void zps_values_decode(enum zps_value_codec codec, enum zps_dtype dtype, const void *list, uint64_t n, uint64_t first,
                       uint64_t count, void *out);

#endif

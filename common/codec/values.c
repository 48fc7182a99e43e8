#include "common/codec/values.h"

#include <string.h>

#include "common/codec/simd/simd.h"
#include "common/codec/simd/values_loops.h"

#define SCALE_NAN 0x7fc00000u
#define INFINITE 0x7f800000u

enum { FLOATS = 256 }; /* halves are widened so many at a time */

static const struct {
  const char *name;
  unsigned level_bits;
} codecs[] = {[ZPS_VALUES_RAW] = {"raw", 0},     [ZPS_VALUES_BF16] = {"bf16", 0},   [ZPS_VALUES_F16] = {"f16", 0},
              [ZPS_VALUES_QSGD2] = {"qsgd2", 2}, [ZPS_VALUES_QSGD4] = {"qsgd4", 4}, [ZPS_VALUES_QSGD8] = {"qsgd8", 8}};
enum { N_CODECS = sizeof codecs / sizeof codecs[0] };

const char *zps_values_name(enum zps_value_codec codec) {
  return (unsigned)codec < N_CODECS && codecs[codec].name ? codecs[codec].name : "?";
}

bool zps_values_suit(enum zps_value_codec codec, enum zps_dtype dtype) {
  if ((unsigned)codec >= N_CODECS || !codecs[codec].name || zps_dtype_size(dtype) == 0) return false;
  if (zps_dtype_is_half(dtype) && !codecs[codec].level_bits) return zps_values_are_plain(codec, dtype);
  return codec == ZPS_VALUES_RAW || dtype != ZPS_DTYPE_U8;
}

enum zps_value_codec zps_values_own(enum zps_dtype dtype) {
  return dtype == ZPS_DTYPE_BF16 ? ZPS_VALUES_BF16 : dtype == ZPS_DTYPE_F16 ? ZPS_VALUES_F16 : ZPS_VALUES_RAW;
}

unsigned zps_values_level_bits(enum zps_value_codec codec) {
  return (unsigned)codec < N_CODECS ? codecs[codec].level_bits : 0;
}

/* All of these are safe for any n that zps_values_bytes() has a number for. */
static uint64_t buckets(uint64_t n) {
  return n / ZPS_VALUES_BUCKET + (n % ZPS_VALUES_BUCKET != 0);
}

static uint64_t level_bytes(unsigned bits, uint64_t n) {
  const uint64_t per_word = 32 / bits;
  return 4 * (n / per_word + (n % per_word != 0));
}

uint64_t zps_values_bytes(enum zps_value_codec codec, enum zps_dtype dtype, uint64_t n) {
  uint64_t bytes;
  if (codec == ZPS_VALUES_RAW)
    return __builtin_mul_overflow(n, (uint64_t)zps_dtype_size(dtype), &bytes) ? UINT64_MAX : bytes;
  if (n > UINT64_MAX / 8) return UINT64_MAX;
  const unsigned bits = zps_values_level_bits(codec);
  return bits ? 4 * buckets(n) + level_bytes(bits, n) : 4 * (n / 2 + n % 2);
}

double zps_values_bound_bytes(enum zps_value_codec codec, enum zps_dtype dtype, uint64_t n) {
  const unsigned bits = zps_values_level_bits(codec);
  if (bits) return 4.0 * (double)buckets(n) + (double)n * bits / 8;
  return (double)n * (codec == ZPS_VALUES_RAW ? (double)zps_dtype_size(dtype) : 2);
}

/* ---- writing ---- */

void zps_values_writer_init(struct zps_values_writer *writer, enum zps_value_codec codec, enum zps_dtype dtype,
                            uint64_t n, uint64_t key, void *out) {
  writer->codec = codec;
  writer->dtype = dtype;
  writer->key = key;
  writer->n = n;
  writer->at = 0;
  writer->out = out;
  writer->n_held = 0;
}

/* Writes the next `n` values; these are whole buckets, but for the last ones of the list. */
static void write_values(struct zps_values_writer *writer, const void *values, uint64_t n) {
  const bool is_f64 = writer->dtype == ZPS_DTYPE_F64;
  const unsigned bits = zps_values_level_bits(writer->codec);
  const struct zps_values_loops *const loops = zps_simd()->values;
  if (bits == 0) {
    loops->narrow(writer->codec, is_f64, values, n, writer->out + 2 * writer->at);
    writer->at += n;
    return;
  }
  unsigned char *const levels = writer->out + 4 * buckets(writer->n);
  const char *from = values;
  while (n > 0) {
    const uint32_t here = n < ZPS_VALUES_BUCKET ? (uint32_t)n : ZPS_VALUES_BUCKET;
    const float scale =
        loops->quantise(bits, is_f64, from, here, writer->key, writer->at, levels + writer->at / 8 * bits);
    memcpy(writer->out + 4 * (writer->at / ZPS_VALUES_BUCKET), &scale, sizeof scale);
    writer->at += here;
    from += here * zps_dtype_size(writer->dtype);
    n -= here;
  }
}

void zps_values_writer_put(struct zps_values_writer *writer, const void *values, uint64_t n) {
  const uint64_t size = zps_dtype_size(writer->dtype);
  const char *from = values;
  if (n == 0) return;
  if (zps_values_are_plain(writer->codec, writer->dtype)) {
    memcpy(writer->out + writer->at * size, values, n * size);
    writer->at += n;
    return;
  }
  while (n > 0) {
    uint64_t here;
    if (writer->n_held == 0 && n >= ZPS_VALUES_BUCKET) {
      here = n - n % ZPS_VALUES_BUCKET;
      write_values(writer, from, here);
    } else {
      const uint32_t room = ZPS_VALUES_BUCKET - writer->n_held;
      here = n < room ? n : room;
      memcpy((char *)writer->bucket + writer->n_held * size, from, here * size);
      writer->n_held += (uint32_t)here;
      if (writer->n_held == ZPS_VALUES_BUCKET) {
        write_values(writer, writer->bucket, ZPS_VALUES_BUCKET);
        writer->n_held = 0;
      }
    }
    from += here * size;
    n -= here;
  }
}

void zps_values_pad(enum zps_value_codec codec, uint64_t n, void *list) {
  const bool is_half = codec == ZPS_VALUES_BF16 || codec == ZPS_VALUES_F16;
  if (is_half && n % 2) memset((char *)list + 2 * n, 0, 2);
}

void zps_values_writer_put_halves(struct zps_values_writer *writer, enum zps_dtype dtype, const void *halves,
                                  uint64_t n) {
  float floats[FLOATS];
  const char *from = halves;
  for (uint64_t here; n > 0; n -= here, from += 2 * here) {
    here = n < FLOATS ? n : FLOATS;
    zps_values_widen(dtype, from, here, floats);
    zps_values_writer_put(writer, floats, here);
  }
}

void zps_values_writer_end(struct zps_values_writer *writer) {
  if (writer->n_held > 0) write_values(writer, writer->bucket, writer->n_held);
  writer->n_held = 0;
  zps_values_pad(writer->codec, writer->n, writer->out);
}

void zps_values_encode(enum zps_value_codec codec, enum zps_dtype dtype, const void *values, uint64_t n, uint64_t key,
                       void *out) {
  struct zps_values_writer writer;
  const bool widens = zps_dtype_is_half(dtype) && !zps_values_are_plain(codec, dtype);
  zps_values_writer_init(&writer, codec, widens ? ZPS_DTYPE_F32 : dtype, n, key, out);
  if (widens)
    zps_values_writer_put_halves(&writer, dtype, values, n);
  else
    zps_values_writer_put(&writer, values, n);
  zps_values_writer_end(&writer);
}

/* ---- checking ---- */

/* The bits of `word` that are the lowest of a level -2^(bits - 1). */
static uint64_t impossible_levels(unsigned bits, uint64_t word) {
  if (bits == 2) return word >> 1 & ~word & 0x5555555555555555ull;
  if (bits == 4) return word >> 3 & ~(word >> 2) & ~(word >> 1) & ~word & 0x1111111111111111ull;
  const uint64_t low = (word & 0x7f7f7f7f7f7f7f7full) + 0x7f7f7f7f7f7f7f7full; /* bit 7: one of the lower 7 is set */
  return (word & ~low) >> 7 & 0x0101010101010101ull;
}

static uint64_t load_word(const unsigned char *levels, uint64_t len, uint64_t at) {
  uint64_t word = 0;
  memcpy(&word, levels + at, len - at < sizeof word ? len - at : sizeof word);
  return word;
}

static zps_err_t check_levels(enum zps_value_codec codec, const unsigned char *levels, uint64_t n,
                              struct zps_error *error) {
  const unsigned bits = zps_values_level_bits(codec);
  const uint64_t len = level_bytes(bits, n), whole = len & ~7ull;
  uint64_t any = 0, at = 0;
  for (; at < whole; at += 8) any |= impossible_levels(bits, load_word(levels, len, at));
  if (at < len) any |= impossible_levels(bits, load_word(levels, len, at));
  for (at = 0; any && at < len; at += 8) {
    const uint64_t bad = impossible_levels(bits, load_word(levels, len, at));
    if (bad == 0) continue;
    const int most = (1 << (bits - 1)) - 1;
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s values: level %d at position %llu of %llu: levels are %d to %d",
                    codecs[codec].name, -most - 1,
                    (unsigned long long)(8 / bits * at + (unsigned)__builtin_ctzll(bad) / bits), (unsigned long long)n,
                    -most, most);
  }
  const uint64_t used = n * bits % 32; /* bits of the last word */
  uint32_t last = 0;
  if (used) memcpy(&last, levels + len - 4, sizeof last);
  if (used && last >> used != 0)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s values: the bits beyond the last of %llu levels must be zero",
                    codecs[codec].name, (unsigned long long)n);
  return ZPS_OK;
}

static bool is_zero(const unsigned char *bytes, uint64_t len) {
  return len == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0);
}

static zps_err_t check_scales(enum zps_value_codec codec, const unsigned char *list, uint64_t n,
                              struct zps_error *error) {
  const unsigned bits = zps_values_level_bits(codec);
  const unsigned char *const levels = list + 4 * buckets(n);
  for (uint64_t i = 0; i < buckets(n); i++) {
    uint32_t scale;
    float value;
    memcpy(&scale, list + 4 * i, sizeof scale);
    memcpy(&value, &scale, sizeof value);
    if (scale >= INFINITE && scale != SCALE_NAN)
      return zps_fail(error, ZPS_ERR_PROTOCOL,
                      "%s values: the scale of bucket %llu is %g (0x%08x): must be finite and not negative, or the NaN "
                      "0x%08x",
                      codecs[codec].name, (unsigned long long)i, (double)value, scale, SCALE_NAN);
    if (scale != 0 && scale != SCALE_NAN) continue;
    const uint64_t first = i * ZPS_VALUES_BUCKET, here = n - first < ZPS_VALUES_BUCKET ? n - first : ZPS_VALUES_BUCKET;
    if (!is_zero(levels + first / 8 * bits, level_bytes(bits, here)))
      return zps_fail(error, ZPS_ERR_PROTOCOL, "%s values: bucket %llu has the scale %g: its levels must be 0",
                      codecs[codec].name, (unsigned long long)i, (double)value);
  }
  return ZPS_OK;
}

zps_err_t zps_values_check(enum zps_value_codec codec, enum zps_dtype dtype, const void *list, uint64_t n,
                           struct zps_error *error) {
  const unsigned char *const bytes = list;
  if (!zps_values_suit(codec, dtype))
    return zps_fail(error, ZPS_ERR_INVALID, "values of dtype %s do not travel as %s", zps_dtype_name(dtype),
                    zps_values_name(codec));
  if (codec == ZPS_VALUES_RAW || n == 0) return ZPS_OK;
  if (zps_values_level_bits(codec)) {
    const zps_err_t code = check_levels(codec, bytes + 4 * buckets(n), n, error);
    return code == ZPS_OK ? check_scales(codec, bytes, n, error) : code;
  }
  if (n % 2 && !is_zero(bytes + 2 * n, 2))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s values: the 2 bytes beyond the last of %llu values must be zero",
                    codecs[codec].name, (unsigned long long)n);
  return ZPS_OK;
}

/* ---- reading ---- */

void zps_values_widen(enum zps_dtype dtype, const void *halves, uint64_t n, void *floats) {
  zps_simd()->values->widen(zps_values_own(dtype), false, halves, n, floats);
}

void zps_values_narrow(enum zps_dtype dtype, const void *floats, uint64_t n, void *halves) {
  zps_simd()->values->narrow(zps_values_own(dtype), false, floats, n, halves);
}

bool zps_values_hold(enum zps_value_codec codec, const void *floats, uint64_t n) {
  const struct zps_values_loops *const loops = zps_simd()->values;
  const char *from = floats;
  uint16_t halves[FLOATS];
  float is[FLOATS], was[FLOATS];
  uint32_t bits_is[FLOATS], bits_was[FLOATS];
  for (uint64_t here; n > 0; n -= here, from += here * sizeof *is) {
    here = n < FLOATS ? n : FLOATS;
    memcpy(was, from, here * sizeof *was);
    loops->narrow(codec, false, was, here, halves);
    loops->widen(codec, false, halves, here, is);
    memcpy(bits_is, is, here * sizeof *is);
    memcpy(bits_was, was, here * sizeof *was);
    uint32_t differ = 0;
    for (uint64_t i = 0; i < here; i++) differ |= (bits_is[i] ^ bits_was[i]) && was[i] >= was[i];
    if (differ) return false;
  }
  return true;
}

/* Through floats, rounded once. */
static void decode_halves(enum zps_value_codec codec, enum zps_dtype dtype, const void *list, uint64_t n,
                          uint64_t first, uint64_t count, char *out) {
  float floats[FLOATS];
  for (uint64_t here; count > 0; count -= here, first += here, out += 2 * here) {
    here = count < FLOATS ? count : FLOATS;
    zps_values_decode(codec, ZPS_DTYPE_F32, list, n, first, here, floats);
    zps_values_narrow(dtype, floats, here, out);
  }
}

/* Some values of one block. */
static void decode_block(unsigned bits, bool is_f64, const unsigned char *levels, uint64_t n, uint64_t at,
                         uint32_t count, float scale, char *out) {
  const uint64_t size = is_f64 ? 8 : 4, offset = at / ZPS_VALUES_BLOCK * ZPS_VALUES_BLOCK / 8 * bits;
  const uint64_t left = level_bytes(bits, n) - offset, len = ZPS_VALUES_BLOCK / 8 * bits;
  char block[ZPS_VALUES_BLOCK] = {0}, values[ZPS_VALUES_BLOCK * sizeof(double)];
  memcpy(block, levels + offset, left < len ? left : len);
  zps_simd()->values->restore(bits, is_f64, block, 1, scale, values);
  memcpy(out, values + at % ZPS_VALUES_BLOCK * size, count * size);
}

/* Values of one bucket. */
static void decode_levels(unsigned bits, bool is_f64, const unsigned char *levels, uint64_t n, uint64_t at,
                          uint32_t count, float scale, char *out) {
  const uint64_t size = is_f64 ? 8 : 4;
  const uint32_t in_block = at % ZPS_VALUES_BLOCK;
  if (in_block > 0) {
    const uint32_t here = count < ZPS_VALUES_BLOCK - in_block ? count : ZPS_VALUES_BLOCK - in_block;
    decode_block(bits, is_f64, levels, n, at, here, scale, out);
    at += here;
    count -= here;
    out += here * size;
  }
  const uint32_t n_blocks = count / ZPS_VALUES_BLOCK;
  if (n_blocks > 0) zps_simd()->values->restore(bits, is_f64, levels + at / 8 * bits, n_blocks, scale, out);
  at += n_blocks * ZPS_VALUES_BLOCK;
  out += n_blocks * ZPS_VALUES_BLOCK * size;
  if (count % ZPS_VALUES_BLOCK > 0) decode_block(bits, is_f64, levels, n, at, count % ZPS_VALUES_BLOCK, scale, out);
}

void zps_values_decode(enum zps_value_codec codec, enum zps_dtype dtype, const void *list, uint64_t n, uint64_t first,
                       uint64_t count, void *out) {
  const uint64_t size = zps_dtype_size(dtype);
  const unsigned bits = zps_values_level_bits(codec);
  const unsigned char *const bytes = list;
  const bool is_f64 = dtype == ZPS_DTYPE_F64;
  char *to = out;
  if (count == 0) return;
  if (zps_values_are_plain(codec, dtype)) {
    memcpy(out, bytes + first * size, count * size);
    return;
  }
  if (zps_dtype_is_half(dtype)) {
    decode_halves(codec, dtype, list, n, first, count, out);
    return;
  }
  if (bits == 0) {
    zps_simd()->values->widen(codec, is_f64, bytes + 2 * first, count, out);
    return;
  }
  while (count > 0) {
    const uint32_t room = ZPS_VALUES_BUCKET - first % ZPS_VALUES_BUCKET;
    const uint32_t here = count < room ? (uint32_t)count : room;
    float scale;
    memcpy(&scale, bytes + 4 * (first / ZPS_VALUES_BUCKET), sizeof scale);
    decode_levels(bits, is_f64, bytes + 4 * buckets(n), n, first, here, scale, to);
    first += here;
    count -= here;
    to += here * size;
  }
}

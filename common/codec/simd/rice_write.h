/*
 * Writing one block of a Rice code (codec_rice.h): its gaps, what each parameter would cost, its bits. A loop for each
 * instruction set (simd.h); all write the same.
 */
#ifndef ZPS_CODEC_SIMD_RICE_WRITE_H
#define ZPS_CODEC_SIMD_RICE_WRITE_H

#include <stdint.h>
#include <string.h>

#include "common/codec/codec_rice.h"
#include "common/codec/simd/rice_block.h"

/* Bits on their way to memory, whole bytes of which are there already; up to seven bytes behind them are overwritten.
 */
struct zps_rice_writer {
  unsigned char *at;
  uint64_t bits;
  unsigned n_bits; /* below 8 */
};
enum { ZPS_RICE_PUT_MAX = 56, ZPS_RICE_PUT_SLACK = 8 };

/* The gaps of `n` strictly ascending indices, of which the first is at least `next`; zeros up to
 * ZPS_RICE_BLOCK. */
typedef void zps_rice_gaps_fn(const uint32_t *indices, uint32_t n, uint32_t next, uint32_t *gaps);
/* The sum of all ZPS_RICE_BLOCK gaps, each shifted right by k; below 2^32. */
typedef uint32_t zps_rice_zeros_fn(const uint32_t *gaps, unsigned k);
/* Puts the low bits and the ones of `n` gaps, zeros up to ZPS_RICE_BLOCK. */
typedef void zps_rice_put_fn(struct zps_rice_writer *writer, const uint32_t *gaps, uint32_t n, unsigned k);

#ifdef __x86_64__
zps_rice_gaps_fn zps_rice_gaps_avx2, zps_rice_gaps_avx512;
zps_rice_zeros_fn zps_rice_zeros_avx2, zps_rice_zeros_avx512;
zps_rice_put_fn zps_rice_put_avx2, zps_rice_put_avx512;
#endif

/* `n_bits` up to ZPS_RICE_PUT_MAX; no other bits are set. */
ZPS_RICE_BODY void zps_rice_put(struct zps_rice_writer *writer, uint64_t bits, unsigned n_bits) {
  const uint64_t all = writer->bits | bits << writer->n_bits;
  const unsigned n = writer->n_bits + n_bits;
  memcpy(writer->at, &all, sizeof all);
  writer->at += n / 8;
  writer->bits = all >> (n & ~7u);
  writer->n_bits = n % 8;
}

/* ------------------------------------------------------------ the same text for every instruction set */

enum { ZPS_RICE_LANES = 16 };
typedef uint32_t zps_rice_vec __attribute__((vector_size(64)));

ZPS_RICE_BODY void zps_rice_body_gaps(const uint32_t *indices, uint32_t n, uint32_t next, uint32_t *gaps) {
  uint32_t i = 1;
  memset(gaps, 0, ZPS_RICE_BLOCK * sizeof *gaps);
  gaps[0] = indices[0] - next;
  for (; i + ZPS_RICE_LANES <= n; i += ZPS_RICE_LANES) {
    zps_rice_vec here, before;
    memcpy(&here, indices + i, sizeof here);
    memcpy(&before, indices + i - 1, sizeof before);
    here -= before + 1;
    memcpy(gaps + i, &here, sizeof here);
  }
  for (; i < n; i++) gaps[i] = indices[i] - indices[i - 1] - 1;
}

ZPS_RICE_BODY uint32_t zps_rice_body_zeros(const uint32_t *gaps, unsigned k) {
  zps_rice_vec sums = {0};
  uint32_t sum = 0;
  for (uint32_t i = 0; i < ZPS_RICE_BLOCK; i += ZPS_RICE_LANES) {
    zps_rice_vec here;
    memcpy(&here, gaps + i, sizeof here);
    sums += here >> k;
  }
  for (unsigned lane = 0; lane < ZPS_RICE_LANES; lane++) sum += sums[lane];
  return sum;
}

/* The low bits, as many gaps' at a time as fit. */
ZPS_RICE_BODY void zps_rice_body_put_low(struct zps_rice_writer *writer, const uint32_t *gaps, uint32_t n, unsigned k) {
  const uint32_t mask = (1u << k) - 1, at_once = k > 0 ? ZPS_RICE_PUT_MAX / k : n;
  for (uint32_t i = 0, here; i < n; i += here) {
    uint64_t bits = 0;
    here = n - i < at_once ? n - i : at_once;
    for (uint32_t j = 0; j < here; j++) bits |= (uint64_t)(gaps[i + j] & mask) << j * k;
    zps_rice_put(writer, bits, here * k);
  }
}

ZPS_RICE_BODY void zps_rice_body_put_ones(struct zps_rice_writer *writer, const uint32_t *gaps, uint32_t n,
                                          unsigned k) {
  uint64_t bits = 0;
  unsigned n_bits = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t zeros = gaps[i] >> k;
    if (zeros >= ZPS_RICE_PUT_MAX - n_bits) {
      zps_rice_put(writer, bits, n_bits);
      bits = n_bits = 0;
      for (; zeros >= ZPS_RICE_PUT_MAX; zeros -= ZPS_RICE_PUT_MAX) zps_rice_put(writer, 0, ZPS_RICE_PUT_MAX);
    }
    bits |= (uint64_t)1 << (n_bits + zeros);
    n_bits += zeros + 1;
  }
  zps_rice_put(writer, bits, n_bits);
}

ZPS_RICE_BODY void zps_rice_body_put(struct zps_rice_writer *writer, const uint32_t *gaps, uint32_t n, unsigned k) {
  struct zps_rice_writer local = *writer; /* a copy that stores cannot change */
  if (k > 0) zps_rice_body_put_low(&local, gaps, n, k);
  zps_rice_body_put_ones(&local, gaps, n, k);
  *writer = local;
}

#endif

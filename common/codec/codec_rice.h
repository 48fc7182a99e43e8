/*
 * Rice codes of ascending numbers in blocks, each block with its own parameter: Elias-Fano whose high bits restart at
 * every number. Within 0.1 bits per number of the entropy of a random set (Elias-Fano: half a bit), and below it where
 * dense and sparse stretches take turns.
 *
 * The numbers are n_1 < n_2 < ... < n_z < m, the gaps g_1 = n_1 and g_i = n_i - n_(i-1) - 1. One stream of bits, the
 * least significant bit of each byte first, holds for each block of up to ZPS_RICE_BLOCK gaps:
 *
 *   1 bit         0: k is that of the block before (the first block's: zps_rice_parameter(m, z)); 1: k follows
 *   5 bits        k, if it follows
 *   n * k bits    of each gap its k low bits
 *   the rest      of each gap floor(g / 2^k) zeros and a one
 *
 * and zeros up to the next byte. No numbers take no bytes. A block is decoded without a branch per gap: the ones'
 * places give all quotients, and the low bits lie at multiples of k.
 *
 * Why not Elias-Fano: it costs half a bit per index more than the entropy at every density: with 32-bit values 1.1% to
 * 2.1% of everything at densities below 0.3, and more above without the complement. Rice codes keep its layout (low
 * bits packed, high bits in unary) but code gaps, so that nothing is lost to the restart of each high part: 0.03 to 0.1
 * bits over the entropy, 1.000 to 1.003 of all bytes. One parameter per 128 indices lets them follow a dense head and a
 * sparse tail. The price: an index's place is known only after those before it in its stream. On one core (that of
 * tests/bench/results/codec.md) an index takes about 0.3 ns to size, 1.1 ns to code, 0.14 ns to check and 0.3 ns to
 * decode (AVX-512 with VBMI2; without 1.7 ns to decode): sizes and codes are made of whole blocks of gaps, checking
 * finds only where each block ends, decoding lists sixteen indices at a time.
 */
#ifndef ZPS_CODEC_RICE_H
#define ZPS_CODEC_RICE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/inline.h"

#define ZPS_RICE_BLOCK 128u
enum { ZPS_RICE_K_MAX = 31, ZPS_RICE_K_BITS = 5, ZPS_RICE_MARKS = 64 };

/* The numbers to code: `indices`, or those below m that are not among them. */
struct zps_rice_set {
  uint32_t m;
  const uint32_t *indices; /* z of them, strictly ascending */
  uint32_t z;
  bool holes;
};

/* The parameter of a first block that does not say its own: the best one for z random numbers out of m; z > 0. */
ZPS_INLINE unsigned zps_rice_parameter(uint32_t m, uint32_t z) {
  /* One more low bit pays while it saves a zero per gap: while 2^k is below about half the mean distance. */
  const uint64_t wanted = 2 * (uint64_t)m > z ? 2 * (uint64_t)m - z : 0;
  unsigned k = 0;
  while (k < ZPS_RICE_K_MAX && (uint64_t)z << (k + 2) < wanted) k++;
  return k;
}

/* The most and the fewest bytes that `z` numbers below m can take. */
uint64_t zps_rice_bytes_max(uint32_t m, uint32_t z);
uint64_t zps_rice_bytes_min(uint32_t z);
/* Bytes of the set's code, exactly. */
uint64_t zps_rice_bytes(const struct zps_rice_set *set);
/* Writes the code and returns its bytes. */
uint64_t zps_rice_encode(const struct zps_rice_set *set, void *out);

/* Decodes block by block. No byte read is trusted. */
struct zps_rice_reader {
  const unsigned char *data; /* borrowed */
  uint64_t len_bytes, bit;
  uint64_t next; /* the least number that may follow */
  uint32_t m, left;
  unsigned k;
};

/* The places of the blocks that reach index i * step, in a code that has been checked: a reader that wants the numbers
 * from there on need not look at those before. */
struct zps_rice_marks {
  uint32_t step, n; /* the first n, from i = 0 on */
  struct {
    uint64_t bit : 56, k : 8;
    uint32_t next, left;
  } marks[ZPS_RICE_MARKS];
};

void zps_rice_reader_init(struct zps_rice_reader *reader, uint32_t m, uint32_t z, const void *data, uint64_t len_bytes);
/* The next block's numbers, room for ZPS_RICE_BLOCK; returns how many. 0: there are none left, or (reader->left > 0)
 * the bytes end too early or lead beyond m. */
uint32_t zps_rice_read(struct zps_rice_reader *reader, uint32_t *numbers);
/* Passes all blocks without telling their numbers, and marks some. False: reader->left > 0 as above, or the bytes do
 * not end here, padded with zeros. */
bool zps_rice_skip(struct zps_rice_reader *reader, struct zps_rice_marks *marks);
/* Of checked code, with its marks: passes whole blocks as long as all of their numbers are below the limit. */
void zps_rice_skip_below(struct zps_rice_reader *reader, const struct zps_rice_marks *marks, uint32_t limit);

#endif

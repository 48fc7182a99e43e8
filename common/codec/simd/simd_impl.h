/* The variants that not every machine of an architecture has. */
#ifndef ZPS_CODEC_SIMD_SIMD_IMPL_H
#define ZPS_CODEC_SIMD_SIMD_IMPL_H

#include "common/codec/simd/simd.h"

#define ZPS_SIMD_NEGATIVE_ZERO 0x80000000u /* of a float */

#ifdef __x86_64__
extern const struct zps_simd zps_simd_avx2, zps_simd_avx512, zps_simd_vbmi2;

void zps_simd_locate_avx2(const struct zps_partition *part, uint64_t first, const uint32_t *positions, uint32_t n,
                          uint16_t *parts, uint32_t *locals);
bool zps_simd_deal_avx2(const struct zps_simd_chunks *chunks, const int64_t *rows, const float *values, uint32_t n,
                        uint32_t *buckets, struct zps_simd_entry *entries);
void zps_simd_locate_avx512(const struct zps_partition *part, uint64_t first, const uint32_t *positions, uint32_t n,
                            uint16_t *parts, uint32_t *locals);
bool zps_simd_deal_avx512(const struct zps_simd_chunks *chunks, const int64_t *rows, const float *values, uint32_t n,
                          uint32_t *buckets, struct zps_simd_entry *entries);
#endif

#endif

/* The variants that not every machine of an architecture has. */
#ifndef ZPS_CODEC_SIMD_INTERNAL_H
#define ZPS_CODEC_SIMD_INTERNAL_H

#include "common/codec/simd.h"

#define ZPS_SIMD_NEGATIVE_ZERO 0x80000000u /* of a float */

#ifdef __x86_64__
extern const struct zps_simd zps_simd_avx2, zps_simd_avx512, zps_simd_vbmi2;
#endif

#endif

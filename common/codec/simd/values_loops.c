/* The value codecs' loops, compiled for the instructions that every machine of the architecture has and for those that
 * some have. */
#include "common/codec/simd/values_body.h"

#define BASELINE
ZPS_VALUES_DEFINE_LOOPS(baseline, BASELINE)

#ifdef __x86_64__
ZPS_VALUES_DEFINE_LOOPS(avx2, __attribute__((target("avx2,bmi,popcnt"))))
ZPS_VALUES_DEFINE_LOOPS(avx512, __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,bmi,popcnt"))))
#endif

/* Elements: their types, the test for zero, arithmetic, and the forms in which they travel. */
#ifndef ZPS_GPU_CUDA_VALUES_CUH
#define ZPS_GPU_CUDA_VALUES_CUH

#include <type_traits>

#include "gpu/cuda/port.cuh"

#ifndef __CUDACC__
#include <cstring>
#endif

namespace zps {

/* Halves are types of arrays alone. */
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
template <typename T>
constexpr bool is_half = std::is_same<T, Bf16>::value || std::is_same<T, F16>::value;
/* The type in which elements are added up. */
template <typename T>
using SumOf = std::conditional_t<is_half<T>, float, T>;

/* Calls what(T()) with the type of the dtype's elements. */
template <typename What>
void by_dtype(enum zps_dtype dtype, What what) {
  switch (dtype) {
    case ZPS_DTYPE_F32:
      what(0.0f);
      break;
    case ZPS_DTYPE_F64:
      what(0.0);
      break;
    case ZPS_DTYPE_U8:
      what(static_cast<uint8_t>(0));
      break;
    case ZPS_DTYPE_BF16:
      what(Bf16());
      break;
    case ZPS_DTYPE_F16:
      what(F16());
      break;
  }
}

/* NaN is none, -0.0 is one. */
__device__ __forceinline__ bool is_zero(float value) {
  return value == 0.0f;
}
__device__ __forceinline__ bool is_zero(double value) {
  return value == 0.0;
}
__device__ __forceinline__ bool is_zero(uint8_t value) {
  return value == 0;
}
__device__ __forceinline__ bool is_zero(Bf16 value) {
  return (value.bits & 0x7fffu) == 0;
}
__device__ __forceinline__ bool is_zero(F16 value) {
  return (value.bits & 0x7fffu) == 0;
}

template <typename To, typename From>
__device__ __forceinline__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

/* ------------------------------------------------------------ arithmetic, with the host's bits */

/* What an x86 processor makes of operands whose result is a NaN: the first of them that is one, made quiet; where
 * neither is (Inf - Inf, 0 * Inf), its own one. A GPU knows a single NaN, whatever the operands. */
__device__ __forceinline__ bool is_nan(float value) {
  return value != value;
}
__device__ __forceinline__ bool is_nan(double value) {
  return value != value;
}
__device__ __forceinline__ bool is_nan(uint8_t) {
  return false;
}
__device__ __forceinline__ float nan_of(float a, float b) {
  return bits_as<float>(is_nan(a)   ? bits_as<u32>(a) | 0x400000u
                        : is_nan(b) ? bits_as<u32>(b) | 0x400000u
                                    : 0xffc00000u);
}
__device__ __forceinline__ double nan_of(double a, double b) {
  const u64 quiet = 1ull << 51;
  return bits_as<double>(is_nan(a) ? bits_as<u64>(a) | quiet : is_nan(b) ? bits_as<u64>(b) | quiet : 0xfff8ull << 48);
}
__device__ __forceinline__ uint8_t nan_of(uint8_t a, uint8_t) {
  return a;
}
template <typename T>
__device__ __forceinline__ T sum_of(T a, T b) {
  const T sum = static_cast<T>(a + b);
  return is_nan(sum) ? nan_of(a, b) : sum;
}
template <typename T>
__device__ __forceinline__ T product_of(T a, T b) {
  const T product = static_cast<T>(a * b);
  return is_nan(product) ? nan_of(a, b) : product;
}

/* ------------------------------------------------------------ value codecs (common/codec/values.h) */

/* Lists of values of `size` bytes each, when raw. */
struct ValueFormat {
  u32 codec; /* enum zps_value_codec */
  u32 size;
};

__host__ __device__ __forceinline__ u32 level_bits(u32 codec) {
  return codec == ZPS_VALUES_QSGD2 ? 2 : codec == ZPS_VALUES_QSGD4 ? 4 : codec == ZPS_VALUES_QSGD8 ? 8 : 0;
}
__host__ __device__ __forceinline__ u64 value_buckets(u64 n) {
  return (n + ZPS_VALUES_BUCKET - 1) / ZPS_VALUES_BUCKET;
}
__host__ __device__ __forceinline__ u64 list_bytes(const ValueFormat &format, u64 n) {
  const u32 bits = level_bits(format.codec);
  if (format.codec == ZPS_VALUES_RAW) return n * format.size;
  return bits ? 4 * value_buckets(n) + 4 * ((n * bits + 31) / 32) : 4 * ((n + 1) / 2);
}

/* The bits of a float, or of a double rounded to an odd float: towards zero, and the last bit set where something was
 * lost, so that rounding once more yields what rounding the double would. */
__device__ __forceinline__ u32 odd_bits(float value) {
  return bits_as<u32>(value);
}
__device__ __forceinline__ u32 odd_bits(double value) {
  const float near = static_cast<float>(value);
  const double back = static_cast<double>(near);
  u32 bits = bits_as<u32>(near);
  if ((back < 0 ? -back : back) > (value < 0 ? -value : value)) bits--;
  return back != value ? bits | 1 : bits;
}
__device__ __forceinline__ u32 odd_bits(uint8_t value) {
  return value;
}

__device__ __forceinline__ u32 to_bf16(u32 bits) {
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return (is_nan ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

__device__ __forceinline__ u32 to_f16(u32 bits) {
  const u32 magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
  if (magnitude > 0x7f800000) return sign | (magnitude >> 13 & 0x3ff) | 0x7e00;
  if (magnitude >= 0x47800000) return sign | 0x7c00;
  /* The last bit of 0.5 is worth as much as the last one of a subnormal half: the addition rounds to it. */
  if (magnitude < 0x38800000) return sign | (bits_as<u32>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000);
  return sign | (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
}

__device__ __forceinline__ float from_bf16(u32 half) {
  const u32 bits = half << 16;
  return bits_as<float>((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : bits);
}

__device__ __forceinline__ float from_f16(u32 half) {
  const u32 magnitude = half & 0x7fff, sign = (half & 0x8000) << 16;
  if (magnitude < 0x400) return bits_as<float>(bits_as<u32>(static_cast<float>(magnitude) * 0x1p-24f) | sign);
  u32 bits = (magnitude << 13) + (112u << 23);
  if (magnitude >= 0x7c00) bits += 112u << 23;
  if (magnitude > 0x7c00) bits |= 0x400000;
  return bits_as<float>(bits | sign);
}

/* A value as an element of another type. Halves become floats without loss, floats are rounded to halves, and an
 * element of the same type keeps its bits. */
template <typename To, typename From>
__device__ __forceinline__ To value_as(From value) {
  if constexpr (std::is_same<To, From>::value)
    return value;
  else if constexpr (std::is_same<From, Bf16>::value)
    return static_cast<To>(from_bf16(value.bits));
  else if constexpr (std::is_same<From, F16>::value)
    return static_cast<To>(from_f16(value.bits));
  else if constexpr (std::is_same<To, Bf16>::value)
    return {static_cast<uint16_t>(to_bf16(bits_as<u32>(value)))};
  else if constexpr (std::is_same<To, F16>::value)
    return {static_cast<uint16_t>(to_f16(bits_as<u32>(value)))};
  else
    return static_cast<To>(value);
}

/* Whether a sum of halves is one. All NaNs count as the same. */
template <typename T>
__device__ __forceinline__ bool is_held(float sum) {
  return is_nan(sum) || bits_as<u32>(value_as<float>(value_as<T>(sum))) == bits_as<u32>(sum);
}

/* Level i of a list of n, as a number. */
__device__ __forceinline__ int level_at(const uint8_t *list, u32 bits, u64 n, u64 i) {
  const u32 *const levels = reinterpret_cast<const u32 *>(list + 4 * value_buckets(n));
  const u32 code = levels[i * bits / 32] >> i * bits % 32 & ((1u << bits) - 1), sign = 1u << (bits - 1);
  return static_cast<int>(code ^ sign) - static_cast<int>(sign);
}

/* Value i of a list of n; halves travel in their own codec (values_suit()), or as levels. */
template <typename T>
__device__ __forceinline__ T value_at(u32 codec, const void *list, u64 n, u64 i) {
  if (codec == ZPS_VALUES_RAW || (is_half<T> && level_bits(codec) == 0)) return static_cast<const T *>(list)[i];
  if (codec == ZPS_VALUES_BF16) return value_as<T>(from_bf16(static_cast<const uint16_t *>(list)[i]));
  if (codec == ZPS_VALUES_F16) return value_as<T>(from_f16(static_cast<const uint16_t *>(list)[i]));
  const u32 bits = level_bits(codec);
  const float scale = static_cast<const float *>(list)[i / ZPS_VALUES_BUCKET];
  const double unit = static_cast<double>(scale) / static_cast<double>((1u << (bits - 1)) - 1);
  const int level = level_at(static_cast<const uint8_t *>(list), bits, n, i);
  return value_as<T>(static_cast<float>(static_cast<double>(level) * unit));
}

}  // namespace zps

#endif

// SPDX-License-Identifier: MIT
// Element types and their conversions. bf16 and f16 are plain 16-bit structs: no vendor header, the same bits
// everywhere.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

/// How a float becomes 16 bits: to nearest, ties to even | ties away from zero, or towards zero. The numbers are the
/// values of AITER's how_v3_bf16_cvt.
enum class Rounding : int { kNearestEven = 0, kNearestAway = 1, kTowardZero = 2 };

__device__ inline uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
__device__ inline float bits_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return bits_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ inline float to_float(f16 x) {
#if defined(__HIP__)
  return static_cast<float>(__builtin_bit_cast(_Float16, x));
#else
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
#endif
}

/// Float bits whose upper half is the bf16 of `x`. A NaN whose payload carries out of the lower half is not kept:
/// callers that may meet one use from_float. NaNs of arithmetic or from a bf16 input have a zero lower half: kept.
template <Rounding kMode>
__device__ inline uint32_t round_to_upper_half(float x) {
  const uint32_t bits = float_bits(x);
  if constexpr (kMode == Rounding::kNearestEven) return bits + 0x7FFFu + ((bits >> 16) & 1u);
  if constexpr (kMode == Rounding::kNearestAway) return bits + 0x8000u;
  return bits;
}

template <class T, Rounding kMode = Rounding::kNearestEven>
struct FromFloat;

template <Rounding kMode>
struct FromFloat<float, kMode> {
  __device__ static float convert(float x) { return x; }
};

template <Rounding kMode>
struct FromFloat<bf16, kMode> {
  __device__ static bf16 convert(float x) {
    const uint32_t rounded = x != x ? 0x7FFF0000u : round_to_upper_half<kMode>(x);  // any NaN becomes 0x7FFF
    return {static_cast<uint16_t>(rounded >> 16)};
  }
};

template <>
struct FromFloat<f16, Rounding::kNearestEven> {
  __device__ static f16 convert(float x) {
#if defined(__HIP__)
    return __builtin_bit_cast(f16, static_cast<_Float16>(x));
#else
    f16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
#endif
  }
};

template <class T, Rounding kMode = Rounding::kNearestEven>
__device__ inline T from_float(float x) {
  return FromFloat<T, kMode>::convert(x);
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Functions that need no device library, with their accuracy, and division of indices. ε = 2^-24; what would be a
// denormal becomes zero.
#pragma once

#include "aiter_like/dtype.h"

namespace aiter_like {

/// 2^x by one instruction: 4 ε relative.
__device__ inline float fast_exp2(float x) {
#if defined(__HIP__)
  return __builtin_amdgcn_exp2f(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

/// log2(x) by one instruction: 2 ε relative, 4 ε absolute near 1.
__device__ inline float fast_log2(float x) {
#if defined(__HIP__)
  return __builtin_amdgcn_logf(x);
#else
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

/// 1 / x by one instruction: 2 ε relative.
__device__ inline float fast_reciprocal(float x) {
#if defined(__HIP__)
  return __builtin_amdgcn_rcpf(x);
#else
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

/// `x`, or `bound` where x is beyond it; NaN stays. One instruction each on NVIDIA, two on gfx942.
__device__ inline float at_most(float x, float bound) {
#if defined(__HIP__)
  return x > bound ? bound : x;
#else
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(bound));
  return result;
#endif
}
__device__ inline float at_least(float x, float bound) { return -at_most(-x, -bound); }

/// e^x: (4 + 2 |x|) ε relative.
__device__ inline float fast_exp(float x) { return fast_exp2(x * 1.44269504f); }

/// 1 / (1 + e^-x): (8 + 2 |x|) ε relative.
__device__ inline float sigmoid(float x) { return fast_reciprocal(1.f + fast_exp(-x)); }

/// tanh(x): 10 ε relative. By a polynomial where 1 - 2 / (1 + e^2x) would cancel (Chebyshev fit, 1.3 ε).
__device__ inline float fast_tanh(float x) {
  const float square = x * x;
  float p = -0x1.ac0ca8p-8f;
  p = __builtin_fmaf(p, square, 0x1.5c70cep-6f);
  p = __builtin_fmaf(p, square, -0x1.b991bep-5f);
  p = __builtin_fmaf(p, square, 0x1.110fbcp-3f);
  p = __builtin_fmaf(p, square, -0x1.555554p-2f);
  const float small = __builtin_fmaf(x * square, p, x);
  const float large = 1.f - 2.f * fast_reciprocal(1.f + fast_exp(2.f * __builtin_fabsf(x)));
  return __builtin_fabsf(x) < 0.5625f ? small : __builtin_copysignf(large, x);
}

/// Divides indices below 2^31 by a number from 1 to 2^31, found at run time, with one multiplication.
struct Divider {
  uint32_t divisor, factor;
  int shift;

  Divider() = default;
  explicit Divider(uint32_t divisor) : divisor(divisor), shift(31) {
    while ((uint64_t{1} << (shift - 31)) < divisor) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << shift) + divisor - 1) / divisor);
  }

  __device__ uint32_t divide(uint32_t index) const {
    return static_cast<uint32_t>((uint64_t{index} * factor) >> shift);
  }
};

}  // namespace aiter_like

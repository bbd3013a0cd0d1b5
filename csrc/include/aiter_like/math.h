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

/// The normal distribution's Φ(x) = (1 + erf(x / √2)) / 2: (16 + x²) ε relative, the lower tail included, where 1 + erf
/// would cancel. Φ(-|x|) = e^(-x²/2) · t · p(t) with t = 1 / (1 + 0.4 |x| / √2); p is a fit to SciPy's erfcx.
__device__ inline float normal_cdf(float x) {
  constexpr float kFit[] = {0x1.55f8bap-6f,  -0x1.2419eep-4f, 0x1.6ac570p-5f, 0x1.53d708p-5f, 0x1.540cbcp-5f,
                            0x1.89670ep-4f, 0x1.9e1914p-4f,  0x1.cfaca2p-4f, 0x1.ce1a6cp-4f};
  const float t = fast_reciprocal(__builtin_fmaf(__builtin_fabsf(x), 0.282842712f, 1.f));
  float p = kFit[0];
#pragma unroll
  for (int i = 1; i < 9; ++i) p = __builtin_fmaf(p, t, kFit[i]);
  const float tail = p * t * fast_exp(-0.5f * x * x);
  return x < 0.f ? tail : 1.f - tail;
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

// SPDX-License-Identifier: MIT
// The activations of gated layers, in fp32, with their accuracy; ε = 2^-24, as in math.h. Used by csrc/activation/.
#pragma once

#include "aiter_like/math.h"

namespace aiter_like {

enum class Activation { silu, gelu, gelu_tanh, swiglu };

/// terms[0] + x · (terms[1] + x · …)
template <int kTerms>
__device__ inline float polynomial(const float (&terms)[kTerms], float x) {
  float p = terms[kTerms - 1];
#pragma unroll
  for (int i = kTerms - 2; i >= 0; --i) p = __builtin_fmaf(p, x, terms[i]);
  return p;
}

/// x · Φ(x), Φ of the normal distribution: (16 + 2 x²) ε relative, the lower tail included, where 1 + erf would cancel;
/// kIsShort: 2^-17 besides, which a result in bf16 does not show. Computed as max(x, 0) − |x| Φ(−|x|), the latter u ·
/// 2^(p(u) − x²/2 log2 e) with u = |x| / (1 + c |x|); p is fitted to log2(Φ(−a) e^(a²/2) (1 + c a)), a < 13.6, of erfcx
/// in float64, by least squares reweighted until the largest error no longer falls: 2^-17.2 and 2^-24.4.
template <bool kIsShort>
__device__ inline float gelu(float x) {
  constexpr float kShort[] = {-0x1.fffec4p-1f, -0x1.4b04bap-1f, -0x1.9b0f4cp-5f,
                              0x1.748568p-8f,  0x1.2e715ep-7f,  -0x1.ca8868p-10f};
  constexpr float kLong[] = {-0x1.fffffep-1f,  -0x1.85ed28p-1f,  0x1.fd2bfep-9f,  0x1.e556dcp-7f, 0x1.738e36p-11f,
                             -0x1.92bdacp-14f, -0x1.9eeddap-12f, 0x1.e46a0cp-14f, -0x1.4b3f1ep-17f};
  // An infinity would make the tail 0 · ∞; a NaN, which minimum and maximum may lose, stays in the power.
  const float a = __builtin_fminf(__builtin_fabsf(x), 40.f);
  const float u = a * fast_reciprocal(__builtin_fmaf(a, kIsShort ? 0.35f : 0.27f, 1.f));
  float p;
  if constexpr (kIsShort) p = polynomial(kShort, u);
  else p = polynomial(kLong, u);
  const float power = fast_exp2(__builtin_fmaf(x * -0.72134752f, x, p));
  return __builtin_fmaf(-u, power, __builtin_fmaxf(x, 0.f));
}

/// act(x) of one number, for a result in Out. swiglu: the sigmoid of 1.702 x, as GPT-OSS has it.
template <Activation kActivation, class Out>
__device__ inline float activated(float x) {
  if constexpr (kActivation == Activation::silu) return x * sigmoid(x);
  if constexpr (kActivation == Activation::swiglu) return x * sigmoid(1.702f * x);
  if constexpr (kActivation == Activation::gelu) return gelu<__is_same(Out, bf16)>(x);
  // 0.5 x (1 + tanh u) = x · sigmoid(2 u), u = √(2/π) (x + 0.044715 x³)
  return x * sigmoid(1.59576912f * __builtin_fmaf(0.044715f * x * x, x, x));
}

/// y = act(gate) · up, element by element, for a result in Out; a limit > 0 bounds gate from above and up on both sides
/// first. NaN stays.
template <Activation kActivation, class Out, int kCount>
__device__ inline void gated(float (&y)[kCount], float (&gate)[kCount], float (&up)[kCount], float limit) {
  if (limit > 0.f) {  // the same in all lanes: up to six instructions per element that most calls do without
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      gate[e] = at_most(gate[e], limit);
      up[e] = at_least(at_most(up[e], limit), -limit);
    }
  }
#pragma unroll
  for (int e = 0; e < kCount; ++e)
    y[e] = activated<kActivation, Out>(gate[e]) * (kActivation == Activation::swiglu ? up[e] + 1.f : up[e]);
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// The activations of gated layers, in fp32; accuracy as of the functions of math.h. Used by csrc/activation/.
#pragma once

#include "aiter_like/math.h"

namespace aiter_like {

enum class Activation { silu, gelu, gelu_tanh, swiglu };

/// act(x) of one number. swiglu: the sigmoid of 1.702 x, as GPT-OSS has it.
template <Activation kActivation>
__device__ inline float activated(float x) {
  if constexpr (kActivation == Activation::silu) return x * sigmoid(x);
  if constexpr (kActivation == Activation::swiglu) return x * sigmoid(1.702f * x);
  if constexpr (kActivation == Activation::gelu) return x * normal_cdf(x);
  // 0.5 x (1 + tanh u) = x · sigmoid(2 u), u = √(2/π) (x + 0.044715 x³)
  return x * sigmoid(1.59576912f * __builtin_fmaf(0.044715f * x * x, x, x));
}

/// act(gate) · up; gate at most `bound`, up within ±bound. NaN stays.
template <Activation kActivation>
__device__ inline float gated(float gate, float up, float bound) {
  const float y = up > bound ? bound : up < -bound ? -bound : up;
  return activated<kActivation>(gate > bound ? bound : gate) * (kActivation == Activation::swiglu ? y + 1.f : y);
}

}  // namespace aiter_like

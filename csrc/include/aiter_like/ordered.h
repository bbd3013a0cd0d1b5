// SPDX-License-Identifier: MIT
// Floats as numbers that are ordered like them, and the largest of a wave: what selects the best of some.
#pragma once

#include "aiter_like/dtype.h"
#include "aiter_like/reduce.h"

namespace aiter_like {

/// Bits that are ordered like floats: -inf 0x007FFFFF, both zeros 0x80000000, +inf 0xFF800000; a NaN is below all, 0.
__device__ inline uint32_t ordered_key(float x) {
  if (x != x) return 0;
  if (x == 0.f) return 0x80000000u;
  const uint32_t bits = float_bits(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// The float of such a key; NaN for 0.
__device__ inline float key_float(uint32_t key) {
  if (key == 0) return bits_float(0x7FC00000u);
  return bits_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

/// The largest word of the wave, in every lane. All lanes must be active.
__device__ inline uint32_t wave_largest(uint32_t x) { return float_bits(wave_max(bits_float(x))); }  // it compares bits

}  // namespace aiter_like

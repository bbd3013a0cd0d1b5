// SPDX-License-Identifier: MIT
// Floats as numbers that are ordered like them, alone or with a place, and the best of a wave.
#pragma once

#include "aiter_like/dtype.h"

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

/// An element of a row as one number: the larger the better, of equal keys the lower column.
__device__ inline uint64_t candidate(uint32_t key, uint32_t column) {
  return uint64_t{key} << 32 | static_cast<uint32_t>(~column);
}
__device__ inline uint32_t candidate_key(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
__device__ inline uint32_t candidate_column(uint64_t x) { return ~static_cast<uint32_t>(x); }

template <int kMask>
__device__ inline uint64_t lane_xor_pair(uint64_t x) {
  const float low = lane_xor<kMask>(bits_float(static_cast<uint32_t>(x)));
  const float high = lane_xor<kMask>(bits_float(static_cast<uint32_t>(x >> 32)));
  return uint64_t{float_bits(high)} << 32 | float_bits(low);
}

/// The largest number of the wave, in every lane. All lanes must be active.
template <int kMask = kWaveSize / 2>
__device__ inline uint64_t wave_best(uint64_t x) {
  const uint64_t other = lane_xor_pair<kMask>(x);
  x = other > x ? other : x;
  if constexpr (kMask > 1) return wave_best<kMask / 2>(x);
  return x;
}

}  // namespace aiter_like

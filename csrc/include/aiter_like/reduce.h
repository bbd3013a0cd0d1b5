// SPDX-License-Identifier: MIT
// Sums and maxima over a wave and over a workgroup. The order of additions depends on the shape only: results repeat
// bit for bit.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like {

#if defined(__HIP__)
/// f over the aligned group of 2 · kMask lanes that holds the lane, in every lane; f(x, 0) is x. Within rows of 16 by
/// DPP, whose operands are mirrored: after each step the lanes of a group have one value.
template <int kMask, class T, class F>
__device__ inline T wave_reduced(T x, F f) {
  if constexpr (kMask == 32) {  // the last lane has the total: row 3 takes row 2, then both of the lower half
    x = wave_reduced<8>(x, f);
    x = f(x, dpp<kRowBroadcast15>(x));
    x = f(x, dpp<kRowBroadcast31>(x));
    return __builtin_bit_cast(T, __builtin_amdgcn_readlane(__builtin_bit_cast(int, x), kWaveSize - 1));
  } else {
    if constexpr (kMask > 1) x = wave_reduced<kMask / 2>(x, f);
    if constexpr (kMask == 16)
      return f(x, __builtin_bit_cast(T, lane_xor<16>(__builtin_bit_cast(float, x))));
    else
      return f(x, dpp<kOtherHalf<kMask>>(x));
  }
}
#endif

/// Sum over the aligned group of 2 · kMask lanes that holds the lane, in every lane. All lanes must be active.
template <int kMask = kWaveSize / 2>
__device__ inline float wave_sum(float x) {
#if defined(__HIP__)
  return wave_reduced<kMask>(x, [](float a, float b) { return a + b; });
#endif
  x += lane_xor<kMask>(x);
  if constexpr (kMask > 1) return wave_sum<kMask / 2>(x);
  return x;
}

/// The larger of two values ≥ 0, or NaN if one is NaN: their bits are ordered like the values, NaNs above infinity.
__device__ inline float larger(float a, float b) {
  const auto x = __builtin_bit_cast(uint32_t, a), y = __builtin_bit_cast(uint32_t, b);
  return __builtin_bit_cast(float, x > y ? x : y);
}

/// Makes *address the larger of itself and `x`, both ≥ 0 or NaN, at once for all workgroups.
__device__ inline void atomic_larger(float* address, float x) {
  atomic_max(reinterpret_cast<uint32_t*>(address), __builtin_bit_cast(uint32_t, x));
}

/// Maximum of values ≥ 0 over the aligned group of 2 · kMask lanes, in every lane; NaN if one is NaN.
template <int kMask = kWaveSize / 2>
__device__ inline float wave_max(float x) {
#if defined(__HIP__)
  return __builtin_bit_cast(float, wave_reduced<kMask>(__builtin_bit_cast(uint32_t, x), [](uint32_t a, uint32_t b) {
                              return a > b ? a : b;
                            }));
#endif
  if constexpr (kHasWaveMax && kMask == kWaveSize / 2)  // the bits are ordered as in `larger`
    return __builtin_bit_cast(float, wave_max_word(__builtin_bit_cast(uint32_t, x)));
  x = larger(x, lane_xor<kMask>(x));
  if constexpr (kMask > 1) return wave_max<kMask / 2>(x);
  return x;
}

/// Combines the waves' results, from 0 on and in their order, in every work-item: f(f(f(0, first), second), …).
template <int kWaves, class F>
__device__ inline float across_waves(float of_wave, float (&scratch)[kWaves], F f) {
  if (lane_index() == 0) scratch[wave_index()] = of_wave;
  workgroup_barrier();
  float total = 0.f;
#pragma unroll
  for (int wave = 0; wave < kWaves; ++wave) total = f(total, scratch[wave]);
  return total;
}

/// Sum over a workgroup of kThreads, in every work-item. `scratch` is LDS for one float per wave, used once per launch.
template <int kThreads>
__device__ inline float workgroup_sum(float x, float (&scratch)[kThreads / kWaveSize]) {
  return across_waves(wave_sum(x), scratch, [](float a, float b) { return a + b; });
}

/// Maximum of values ≥ 0 over a workgroup of kThreads, in every work-item; NaN if one is NaN. `scratch` as above.
template <int kThreads>
__device__ inline float workgroup_max(float x, float (&scratch)[kThreads / kWaveSize]) {
  return across_waves(wave_max(x), scratch, [](float a, float b) { return larger(a, b); });
}

}  // namespace aiter_like

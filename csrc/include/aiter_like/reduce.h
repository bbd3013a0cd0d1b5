// SPDX-License-Identifier: MIT
// Sums over a wave and over a workgroup. The order of additions depends on the shape only: results repeat bit for bit.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like {

/// Sum over the wave, in every lane. All lanes must be active.
template <int kMask = kWaveSize / 2>
__device__ inline float wave_sum(float x) {
  x += lane_xor<kMask>(x);
  if constexpr (kMask > 1) return wave_sum<kMask / 2>(x);
  return x;
}

/// Sum over a workgroup of kThreads, in every work-item. `scratch` is LDS for one float per wave, used once per launch.
template <int kThreads>
__device__ inline float workgroup_sum(float x, float (&scratch)[kThreads / kWaveSize]) {
  x = wave_sum(x);
  if (lane_index() == 0) scratch[wave_index()] = x;
  workgroup_barrier();
  float total = 0.f;
#pragma unroll
  for (int wave = 0; wave < kThreads / kWaveSize; ++wave) total += scratch[wave];
  return total;
}

}  // namespace aiter_like

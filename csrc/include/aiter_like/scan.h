// SPDX-License-Identifier: MIT
// Sums over the threads of a workgroup before each of them.
#pragma once

#include "aiter_like/gpu.h"
#include "aiter_like/lanes.h"

namespace aiter_like {

/// The LDS of scan() for LISTS lists at once: the sums of all waves.
template <int LISTS, int WAVE_COUNT>
struct ScanLds {
  uint32_t of_waves[LISTS][WAVE_COUNT];
};

/// Replaces each thread's value by the sum of those of the threads before it, in COUNT lists at once; the sums of all
/// are returned in `totals`. All threads of the workgroup call it; sums are below 2^31.
template <int LISTS, int WAVE_COUNT, int COUNT>
__device__ inline void scan(ScanLds<LISTS, WAVE_COUNT>& lds, int (&values)[COUNT], int (&totals)[COUNT]) {
  static_assert(COUNT <= LISTS, "a place for each list");
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const uint32_t own = static_cast<uint32_t>(values[i]), sum = sum_up_to_lane(own);
    if (lane_index() == kWaveSize - 1) lds.of_waves[i][wave_index()] = sum;
    values[i] = static_cast<int>(sum - own);
  }
  workgroup_barrier();
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    totals[i] = 0;
#pragma unroll
    for (int wave = 0; wave < WAVE_COUNT; ++wave) {
      const int of_wave = static_cast<int>(lds.of_waves[i][wave]);
      if (wave < wave_index()) values[i] += of_wave;
      totals[i] += of_wave;
    }
  }
  workgroup_barrier();
}

}  // namespace aiter_like

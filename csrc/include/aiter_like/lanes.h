// SPDX-License-Identifier: MIT
// Sets of lanes, and what one lane of a wave tells the others. All lanes of the wave take part in each function.
#pragma once

#include "aiter_like/dtype.h"

namespace aiter_like {

/// Bit l says whether `condition` holds in lane l.
__device__ inline uint64_t lanes_with(bool condition) {
#if defined(__HIP__)
  return __builtin_amdgcn_ballot_w64(condition);
#else
  return __ballot_sync(0xFFFFFFFFu, condition);
#endif
}

/// How many lanes a set has.
__device__ inline int lane_count(uint64_t lanes) {
#if defined(__HIP__)
  return __builtin_popcountll(lanes);
#else
  return __popcll(lanes);
#endif
}

/// The lowest lane of a set that has one.
__device__ inline int lowest_lane(uint64_t lanes) {
#if defined(__HIP__)
  return __builtin_ctzll(lanes);
#else
  return __ffsll(static_cast<long long>(lanes)) - 1;
#endif
}

/// The `x` of lane `from`, which is the same number in all lanes.
__device__ inline int32_t of_lane(int32_t x, int from) {
#if defined(__HIP__)
  return __builtin_amdgcn_readlane(x, from);
#else
  return __shfl_sync(0xFFFFFFFFu, x, from);
#endif
}
__device__ inline uint32_t of_lane(uint32_t x, int from) {
  return static_cast<uint32_t>(of_lane(static_cast<int32_t>(x), from));
}
__device__ inline float of_lane(float x, int from) {
  return bits_float(static_cast<uint32_t>(of_lane(static_cast<int32_t>(float_bits(x)), from)));
}

/// The `x` of a lane that each lane chooses itself.
__device__ inline uint32_t from_lane(uint32_t x, int from) {
#if defined(__HIP__)
  return static_cast<uint32_t>(__builtin_amdgcn_ds_bpermute(from * 4, static_cast<int>(x)));
#else
  return __shfl_sync(0xFFFFFFFFu, x, from);
#endif
}

/// The sum of `x` over this lane and those below it.
__device__ inline uint32_t sum_up_to_lane(uint32_t x) {
#if defined(__HIP__)
  x += dpp<row_shift(1)>(x);
  x += dpp<row_shift(2)>(x);
  x += dpp<row_shift(4)>(x);
  x += dpp<row_shift(8)>(x);
  const uint32_t row = dpp<kRowBroadcast15>(x);  // odd rows take the row before them
  x += lane_index() & 16 ? row : 0;
  const uint32_t half = dpp<kRowBroadcast31>(x);  // the upper half takes the lower one
  return x + (lane_index() & 32 ? half : 0);
#endif
#pragma unroll
  for (int step = 1; step < kWaveSize; step *= 2) {
    const bool is_there = lane_index() >= step;
    const uint32_t below = from_lane(x, is_there ? lane_index() - step : 0);
    x += is_there ? below : 0;
  }
  return x;
}

/// Orders the wave's accesses to LDS before this line and after it. No instruction on gfx942, whose waves make them in
/// their order.
__device__ inline void wave_barrier() {
#if defined(__HIP__)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
  __syncwarp();
#endif
}

/// The lanes whose number, of kBits bits, is that of this lane.
template <int kBits>
__device__ inline uint64_t lanes_like(uint32_t number) {
  uint64_t same = ~uint64_t{0};
#pragma unroll
  for (int bit = 0; bit < kBits; ++bit) {
    const bool is_set = number >> bit & 1;
    const uint64_t set = lanes_with(is_set);
    same &= is_set ? set : ~set;
  }
  return same;
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Reductions of tiles of floats along one axis, by an associative and commutative f. Along the depth a lane first
// combines what it holds, then the groups exchange; along the owned axis the lanes of a group do. The order is fixed by
// the type.
#pragma once

#include "aiter_like/tile/reg_tile.h"

namespace aiter_like::tile {

struct Maximum {
  __device__ float operator()(float a, float b) const { return __builtin_fmaxf(a, b); }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

/// f over strip `strip` of what this lane holds.
template <class TILE, class F>
__device__ inline float reduce_strip(const TILE& tile, int strip, F f) {
  float result = tile.get(strip, 0);
#pragma unroll
  for (int e = 1; e < TILE::kPerStrip; ++e) result = f(result, tile.get(strip, e));
  return result;
}

/// f over the lanes with the same owner, in each of them.
template <class LAYOUT, class F>
__device__ inline float across_groups(float x, F f) {
  if constexpr (LAYOUT::kWidth == 16) x = f(x, lane_xor<16>(x));
  return f(x, lane_xor<32>(x));
}

/// f over the lanes of a group, in each of them.
template <class LAYOUT, class F>
__device__ inline float across_owners(float x, F f) {
  x = f(x, lane_xor<1>(x));
  x = f(x, lane_xor<2>(x));
  x = f(x, lane_xor<4>(x));
  x = f(x, lane_xor<8>(x));
  if constexpr (LAYOUT::kWidth == 32) x = f(x, lane_xor<16>(x));
  return x;
}

/// One value per index of the owned axis.
template <class TILE, class F>
__device__ inline auto reduce_depth(const TILE& tile, F f) {
  RegVec<float, TILE::kOwned, typename TILE::Layout, true> result;
#pragma unroll
  for (int s = 0; s < TILE::kStrips; ++s)
    result[s] = across_groups<typename TILE::Layout>(reduce_strip(tile, s, f), f);
  return result;
}

/// One value per index of the depth.
template <class TILE, class F>
__device__ inline auto reduce_owned(const TILE& tile, F f) {
  RegVec<float, TILE::kDepth, typename TILE::Layout, false> result;
#pragma unroll
  for (int e = 0; e < TILE::kPerStrip; ++e) {
    float x = tile.get(0, e);
#pragma unroll
    for (int s = 1; s < TILE::kStrips; ++s) x = f(x, tile.get(s, e));
    result[e] = across_owners<typename TILE::Layout>(x, f);
  }
  return result;
}

/// One value per row: f over its columns.
template <class TILE, class F>
__device__ inline typename TILE::PerRow reduce_rows(const TILE& tile, F f) {
  if constexpr (TILE::kOwnsRows) return reduce_depth(tile, f);
  else return reduce_owned(tile, f);
}

/// One value per column: f over its rows.
template <class TILE, class F>
__device__ inline typename TILE::PerColumn reduce_columns(const TILE& tile, F f) {
  if constexpr (TILE::kOwnsRows) return reduce_owned(tile, f);
  else return reduce_depth(tile, f);
}

}  // namespace aiter_like::tile

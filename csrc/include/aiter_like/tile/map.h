// SPDX-License-Identifier: MIT
// Elementwise functions of tiles of floats: of the element alone, with its place, or with a vector's value for its row
// or column (broadcast).
#pragma once

#include "aiter_like/tile/reg_tile.h"

namespace aiter_like::tile {

/// x = f(x, strip, element) for what this lane holds: the others here are made of it.
template <class TILE, class F>
__device__ inline void map_registers(TILE& tile, F f) {
#pragma unroll
  for (int s = 0; s < TILE::kStrips; ++s) {
#pragma unroll
    for (int e = 0; e < TILE::kPerStrip; ++e) tile.set(s, e, f(tile.get(s, e), s, e));
  }
}

/// The tile of U that has f(x, row, column) where `tile` has x.
template <class U, class TILE, class F>
__device__ inline auto mapped(const TILE& tile, F f) {
  RegTile<U, TILE::kRows, TILE::kColumns, typename TILE::Layout> result;
#pragma unroll
  for (int s = 0; s < TILE::kStrips; ++s) {
#pragma unroll
    for (int e = 0; e < TILE::kPerStrip; ++e) result.set(s, e, f(tile.get(s, e), TILE::row(s, e), TILE::column(s, e)));
  }
  return result;
}

/// x = f(x)
template <class TILE, class F>
__device__ inline void map(TILE& tile, F f) {
  map_registers(tile, [&](float x, int, int) { return f(x); });
}

/// x = f(x, row, column)
template <class TILE, class F>
__device__ inline void map_indexed(TILE& tile, F f) {
  map_registers(tile, [&](float x, int s, int e) { return f(x, TILE::row(s, e), TILE::column(s, e)); });
}

/// x = f(x, value of its row)
template <class TILE, class F>
__device__ inline void apply_rows(TILE& tile, const typename TILE::PerRow& rows, F f) {
  map_registers(tile, [&](float x, int s, int e) { return f(x, rows[TILE::kOwnsRows ? s : e]); });
}

/// x = f(x, value of its column)
template <class TILE, class F>
__device__ inline void apply_columns(TILE& tile, const typename TILE::PerColumn& columns, F f) {
  map_registers(tile, [&](float x, int s, int e) { return f(x, columns[TILE::kOwnsRows ? e : s]); });
}

/// x *= factor for strip `strip`: one row or column per lane.
template <class TILE>
__device__ inline void scale_strip(TILE& tile, int strip, float factor) {
#pragma unroll
  for (int p = 0; p < TILE::kPieces; ++p) tile.pieces[strip][p] *= factor;
}

}  // namespace aiter_like::tile

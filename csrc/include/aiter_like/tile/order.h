// SPDX-License-Identifier: MIT
// Which tile of a product a workgroup computes, so that workgroups that run together read the same operands.
//
// An MI300X hands workgroups to its 8 XCDs in turns, each with an L2 of its own: the numbers that one XCD gets become
// neighbours here. They walk down kGroupRows tiles before they go on to the next column, so that what is in the L2 at a
// time is about square.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like::tile {

struct TilePlace {
  uint32_t row, column;  // in tiles
};

/// A bijection of 0 … count − 1, less than 2^31: the workgroups of an XCD get neighbours.
__device__ inline uint32_t neighbour_on_xcd(uint32_t workgroup, uint32_t count) {
  constexpr uint32_t kXcds = 8;  // AMD, CDNA3 white paper
  const uint32_t share = count / kXcds, rest = count % kXcds, xcd = workgroup % kXcds;
  return xcd * share + (xcd < rest ? xcd : rest) + workgroup / kXcds;
}

/// The tiles of a product of rows × columns tiles, less than 2^31 of them.
struct TileOrder {
  static constexpr uint32_t kGroupRows = 8;
  uint32_t rows, columns;

  __device__ uint32_t count() const { return rows * columns; }

  /// The tile of a workgroup where the launch has one for each.
  __device__ TilePlace at(uint32_t workgroup) const { return place(neighbour_on_xcd(workgroup, count())); }

  /// A bijection from 0 … count() − 1 to the tiles.
  __device__ TilePlace place(uint32_t index) const {
    const uint32_t group_tiles = kGroupRows * columns, group = index / group_tiles, inside = index % group_tiles;
    const uint32_t first_row = group * kGroupRows, left = rows - first_row;
    const uint32_t height = left < kGroupRows ? left : kGroupRows;
    return {first_row + inside % height, inside / height};
  }
};

}  // namespace aiter_like::tile

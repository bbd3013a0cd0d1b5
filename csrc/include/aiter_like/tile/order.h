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

/// A bijection from 0 … rows · columns − 1 to the tiles of a product of rows × columns tiles, less than 2^31 of them.
struct TileOrder {
  static constexpr uint32_t kXcds = 8;  // AMD, CDNA3 white paper
  static constexpr uint32_t kGroupRows = 8;
  uint32_t rows, columns;

  __device__ TilePlace at(uint32_t workgroup) const {
    const uint32_t count = rows * columns, share = count / kXcds, rest = count % kXcds;
    const uint32_t xcd = workgroup % kXcds;
    const uint32_t index = xcd * share + (xcd < rest ? xcd : rest) + workgroup / kXcds;
    const uint32_t group_tiles = kGroupRows * columns, group = index / group_tiles, inside = index % group_tiles;
    const uint32_t first_row = group * kGroupRows, left = rows - first_row;
    const uint32_t height = left < kGroupRows ? left : kGroupRows;
    return {first_row + inside % height, inside / height};
  }
};

}  // namespace aiter_like::tile

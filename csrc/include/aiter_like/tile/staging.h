// SPDX-License-Identifier: MIT
// Moving a tile from global memory to LDS by all waves of a workgroup, through registers: the loads are under way while
// something else runs, the stores come when the tile in LDS has been read.
#pragma once

#include "aiter_like/tile/global.h"

namespace aiter_like::tile {

/// A work-item's share of an LDS tile, for THREADS work-items: chunks of 16 bytes, neighbours to neighbours.
template <class LDS, int THREADS>
struct Staged {
  using T = typename LDS::Element;
  static constexpr int kChunkElements = 16 / sizeof(T);
  static constexpr int kChunksPerRow = LDS::kColumns / kChunkElements;
  static constexpr int kChunks = LDS::kRows * kChunksPerRow;
  static constexpr int kCount = (kChunks + THREADS - 1) / THREADS;
  static_assert(LDS::kColumns % kChunkElements == 0, "rows of whole chunks");

  Chunk chunks[kCount];

  __device__ static int row(int i) { return (thread_index() + i * THREADS) / kChunksPerRow; }
  __device__ static int column(int i) { return (thread_index() + i * THREADS) % kChunksPerRow * kChunkElements; }
  /// Only the last share of a tile that does not divide evenly has work-items without a chunk.
  __device__ static bool is_inside(int i) {
    return kChunks % THREADS == 0 || i < kCount - 1 || thread_index() + i * THREADS < kChunks;
  }

  /// Starts the loads; outside of the window there are zeros.
  template <class WINDOW>
  __device__ void load(const WINDOW& window) {
    static_assert(WINDOW::kRows == LDS::kRows && WINDOW::kColumns == LDS::kColumns, "the window of this tile");
    const BufferDescriptor buffer = window.descriptor();
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (is_inside(i)) chunks[i] = load_chunk(buffer, window.offset(row(i), column(i)));
  }

  __device__ void store(LDS& lds) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (is_inside(i)) lds.template at<Chunk>(row(i), static_cast<int>(column(i) * sizeof(T))) = chunks[i];
  }
};

}  // namespace aiter_like::tile

// SPDX-License-Identifier: MIT
// Scales of a's rows whose blocks of the depth are neighbours in memory, written anew with the rows as neighbours. The
// product reads a block's scales of all its rows in each step: by rows that is a cache line for each of them, and the
// L2 that all CUs ask at once is what the step then takes.
//
// A workgroup turns 64 rows × 64 blocks through LDS: both sides are accesses of 256 bytes. LDS: 16 KiB. Bound: latency.
#pragma once

#include "block_scales.h"

namespace aiter_like::gemm {

constexpr int kTurnedTile = 64, kTurnThreads = 256;

/// turned[block · rows + row] = scales[row, block].
struct TurnArgs {
  ScaleMatrix scales;  // strides[1] is 1
  float* turned;
  int rows, blocks;
};

__device__ inline void turn_scales(const TurnArgs& args, WorkgroupIndex workgroup) {
  constexpr int kRowsAtOnce = kTurnThreads / kTurnedTile, kEach = kTurnedTile / kRowsAtOnce;
  __shared__ float square[kTurnedTile][kTurnedTile + 1];
  const int first_row = static_cast<int>(workgroup.x) * kTurnedTile, x = thread_index() % kTurnedTile;
  const int first_block = static_cast<int>(workgroup.y) * kTurnedTile, y = thread_index() / kTurnedTile;
  const int rows = args.rows - first_row < kTurnedTile ? args.rows - first_row : kTurnedTile;
  const auto row_bytes = static_cast<uint32_t>(args.scales.strides[0] * sizeof(float));
  const auto buffer = tile::make_buffer(args.scales.data + int64_t{first_row} * args.scales.strides[0],
                                        (rows - 1) * row_bytes + args.blocks * static_cast<uint32_t>(sizeof(float)));
  float values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int row = y + i * kRowsAtOnce, block = first_block + x;
    const bool is_there = row < rows && block < args.blocks;
    values[i] = tile::load_float(buffer, is_there ? row * row_bytes + block * 4u : tile::kOutOfRange);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) square[y + i * kRowsAtOnce][x] = values[i];
  workgroup_barrier();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int block = y + i * kRowsAtOnce;
    if (x < rows && first_block + block < args.blocks)
      args.turned[int64_t{first_block + block} * args.rows + first_row + x] = square[x][block];
  }
}

}  // namespace aiter_like::gemm

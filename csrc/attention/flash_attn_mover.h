// SPDX-License-Identifier: MIT
// The way of K and V from memory to LDS: group A moves K, group B moves V, 16 rows of each block per wave.
#pragma once

#include "aiter_like/tile/dma.h"
#include "flash_attn_task.h"

namespace aiter_like {
namespace {

/// One wave's share of the blocks of K or of V. LDS is written linearly, 256 bytes per instruction, so the swizzle is
/// applied to the source address.
struct BlockMover {
  static constexpr int kRowsPerMove = 256 / kRowBytes;
  static constexpr int kMoves = kBlockN / kGroupWaves / kRowsPerMove;

  const char* block;      // first row of the next block; a 64-bit address, so that no span of keys is too long
  int64_t block_bytes;    // from one block to the next
  int rows, block_rows;   // rows from there to the end of the sequence; what a block takes of them
  int row_bytes;          // from row to row
  int first_row;          // of this wave in each block
  int key_mask;           // all ones in group A
  uint32_t lds;           // where the next block's first_row goes

  __device__ bool is_group_b() const { return key_mask == 0; }

  /// Begins with block `first_block`; from there every task.parts-th one.
  __device__ void start(const Task& task, const FlashAttnArgs& args, int first_block, const char* tiles) {
    const int wave = wave_index(), group = wave / kGroupWaves;
    key_mask = group - 1;
    const FlashAttnTensor& source = group == 0 ? args.k : args.v;
    row_bytes = static_cast<int>(source.row);
    block = task.keys_of(source) + first_block * (kBlockN * source.row);
    block_bytes = task.parts * (kBlockN * source.row);
    rows = task.keys - kBlockN * first_block;
    block_rows = kBlockN * task.parts;
    first_row = wave % kGroupWaves * (kBlockN / kGroupWaves);
    lds = tile::lds_address(tiles) + group * kValueTiles + first_row * kRowBytes;
  }

  /// Begins to move the next block. Rows past the end become zeros.
  __device__ void move() {
    const int inside = rows < kBlockN ? rows : kBlockN;
    const tile::BufferDescriptor source =
        tile::make_buffer(block, inside <= 0 ? 0 : (inside - 1) * row_bytes + kRowBytes);
    const int byte = 4 * fresh_lane(), row = byte / kRowBytes;
    move_rows<0>(source, (byte % kRowBytes) ^ swizzle(row), (first_row + row) * row_bytes);
    block += block_bytes;
    rows -= block_rows;
    lds ^= kTileBytes;
  }

 private:
  // Of sums of a row below 8 · n and a row 8 · m alike: both swizzles are linear over XOR and depend on row mod 8.
  __device__ int swizzle(int row) const {
    return (KeyTile::swizzle(row) & key_mask) | (ValueTile::swizzle(row) & ~key_mask);
  }

  template <int kMove>
  __device__ void move_rows(const tile::BufferDescriptor& source, int byte, int row_offset) {
    if constexpr (kMove < kMoves) {
      constexpr int kRow = kMove * kRowsPerMove;
      tile::dma_dwords<256 * kMove>(source, (byte ^ swizzle(kRow)) + row_offset + kRow * row_bytes, lds);
      move_rows<kMove + 1>(source, byte, row_offset);
    }
  }
};

}  // namespace
}  // namespace aiter_like

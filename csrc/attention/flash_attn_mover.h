// SPDX-License-Identifier: MIT
// How K and V come from memory to LDS in flash_attn_fwd: group A moves K, group B moves V, and each wave moves 16 rows
// of a block. These are rings of two stages whose barriers are those of the groups' slots, two for each block;
// tile/ring.h has one, its own.
#pragma once

#include "aiter_like/tile/dma.h"
#include "flash_attn_task.h"

namespace aiter_like::flash_attn {

/// One wave's share of the blocks of K or of V. LDS is written linearly, 256 bytes per instruction, so the swizzle is
/// applied to the source address.
template <class Shape>
struct BlockMover {
  static constexpr int kRowsPerMove = 256 / Shape::kRowBytes;
  static constexpr int kMoves = kBlockN / Groups::kGroupWaves / kRowsPerMove;

  const char* block;     // first row of the next block; a 64-bit address, so that no span of keys is too long
  int64_t block_bytes;   // from one block to the next
  int rows, block_rows;  // rows from the next block to the end of the sequence; rows from one block to the next
  int row_bytes;         // from row to row
  int first_row;         // of this wave in each block
  int key_mask;          // all ones in group A, 0 in group B
  uint32_t lds;          // where the next block's first_row goes

  __device__ bool is_group_b() const { return key_mask == 0; }

  /// Begins with block `first_block`; every task.parts-th block follows.
  __device__ void start(const Task<Shape>& task, const FlashAttnArgs& args, int first_block, const char* tiles) {
    const int wave = wave_index(), group = wave / Groups::kGroupWaves;
    key_mask = group - 1;
    const FlashAttnTensor& source = group == 0 ? args.k : args.v;
    row_bytes = static_cast<int>(source.row);
    block = task.keys_of(source) + first_block * (kBlockN * source.row);
    block_bytes = task.parts * (kBlockN * source.row);
    rows = task.keys - kBlockN * first_block;
    block_rows = kBlockN * task.parts;
    first_row = wave % Groups::kGroupWaves * (kBlockN / Groups::kGroupWaves);
    lds = tile::lds_address(tiles) + group * Shape::kValueTiles + first_row * Shape::kRowBytes;
  }

  /// Begins to move the next block. Rows past the end become zeros.
  __device__ void move() {
    const int inside = rows < kBlockN ? rows : kBlockN;
    const tile::BufferDescriptor source =
        tile::make_buffer(block, inside <= 0 ? 0 : (inside - 1) * row_bytes + Shape::kRowBytes);
    const int byte = 4 * fresh_lane(), row = byte / Shape::kRowBytes;
    move_rows<0>(source, (byte % Shape::kRowBytes) ^ swizzle(row), (first_row + row) * row_bytes);
    block += block_bytes;
    rows -= block_rows;
    lds ^= Shape::kTileBytes;
  }

 private:
  // Both swizzles are linear over XOR and depend on row mod 8. A row is first_row, a multiple of 8, plus kRow, a
  // multiple of kRowsPerMove, plus the lane's row, which is less: its swizzle is that of kRow XOR that of the lane's.
  __device__ int swizzle(int row) const {
    return (KeyTile<Shape>::swizzle(row) & key_mask) | (ValueTile<Shape>::swizzle(row) & ~key_mask);
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

}  // namespace aiter_like::flash_attn

// SPDX-License-Identifier: MIT
// Tiles in LDS. The type owns its bytes and its swizzle; a wave reads its operands from it, by rows or transposed.
//
// LDS has 32 banks of 4 bytes. It serves ds_read_b128 for 8 consecutive lanes at once, b64 for 16 and b32 for 32: the
// swizzles put what these read into different banks. A swizzle flips bits of an offset, which bits depends on the row.
// It is its own inverse, so that a copy that can only write linearly (dma.h) swizzles its source instead.
#pragma once

#include "aiter_like/tile/reg_tile.h"

namespace aiter_like::tile {

struct Linear {
  template <int ROW_BYTES>
  static constexpr __host__ __device__ int flips(int) {
    return 0;
  }
};

/// For operands by row: 16-byte reads at the same column of 8 (or 4 and 4) rows. Chunk c of row r is at c ^ (r mod 8);
/// where two rows share the 128 bytes of all banks, at c ^ (r / 2 mod 4).
struct SwizzledByRow {
  template <int ROW_BYTES>
  static constexpr __host__ __device__ int flips(int row) {
    return (ROW_BYTES == 64 ? (row >> 1) & 3 : row & 7) << 4;
  }
};

/// For operands by column: dword reads of 16 neighbours in rows r and r + 4. Odd groups of four rows swap halves of 128
/// bytes.
struct SwizzledByColumn {
  template <int ROW_BYTES>
  static constexpr __host__ __device__ int flips(int row) {
    return ((row >> 2) & 1) << 6;
  }
};

template <class T, int ROWS, int COLUMNS, class SWIZZLE>
struct alignas(128) LdsTile {
  using Element = T;
  static constexpr int kRows = ROWS, kColumns = COLUMNS;
  static constexpr int kUsedBytes = COLUMNS * sizeof(T);
  /// A row is 64 bytes or a multiple of 128: swizzled chunks stay in their row.
  static constexpr int kRowBytes = kUsedBytes <= 64 ? 64 : (kUsedBytes + 127) / 128 * 128;
  static constexpr int kBytes = ROWS * kRowBytes;

  char bytes[kBytes];

  static constexpr __host__ __device__ int offset(int row, int byte) {
    const int flips = SWIZZLE::template flips<kRowBytes>(row);
    if constexpr (kRowBytes == 64) return (row * kRowBytes + byte) ^ flips;  // may swap two rows
    return row * kRowBytes + (byte ^ flips);  // equal, and constants in row and byte end up in the instruction
  }
  /// row · kRowBytes + byte of what is at an offset.
  static constexpr __host__ __device__ int unswizzled(int offset) {
    return offset ^ SWIZZLE::template flips<kRowBytes>(offset / kRowBytes);
  }
  template <class WORD>
  __device__ WORD& at(int row, int byte) {
    return *reinterpret_cast<WORD*>(bytes + offset(row, byte));
  }
  template <class WORD>
  __device__ const WORD& at(int row, int byte) const {
    return *reinterpret_cast<const WORD*>(bytes + offset(row, byte));
  }
};

using Chunk = __attribute__((ext_vector_type(4))) uint32_t;  // 16 bytes

/// The operand by row at (first_row, first_column): one 16-byte read per run.
template <class TILE, class LDS>
__device__ inline TILE load(const LDS& lds, int first_row, int first_column) {
  using T = typename TILE::Element;
  using Layout = typename TILE::Layout;
  static_assert(std::is_same_v<T, typename LDS::Element> && TILE::kOwnsRows, "an operand by row, of the same elements");
  static_assert(Layout::kRun * sizeof(T) == 16, "runs of 16 bytes");
  TILE tile;
#pragma unroll
  for (int s = 0; s < TILE::kStrips; ++s) {
#pragma unroll
    for (int r = 0; r < TILE::kPieces / 2; ++r) {
      const int byte = static_cast<int>((first_column + Layout::depth(r * Layout::kRun)) * sizeof(T));
      const Chunk chunk = lds.template at<Chunk>(first_row + Layout::owned(s), byte);
      tile.pieces[s][2 * r] = chunk.lo;
      tile.pieces[s][2 * r + 1] = chunk.hi;
    }
  }
  return tile;
}

/// Writes an operand by row to (first_row, first_column).
template <class TILE, class LDS>
__device__ inline void store(LDS& lds, const TILE& tile, int first_row, int first_column) {
  using T = typename TILE::Element;
  using Layout = typename TILE::Layout;
  static_assert(std::is_same_v<T, typename LDS::Element> && TILE::kOwnsRows, "an operand by row, of the same elements");
  static_assert(Layout::kRun * sizeof(T) == 16, "runs of 16 bytes");
#pragma unroll
  for (int s = 0; s < TILE::kStrips; ++s) {
#pragma unroll
    for (int r = 0; r < TILE::kPieces / 2; ++r) {
      const int byte = static_cast<int>((first_column + Layout::depth(r * Layout::kRun)) * sizeof(T));
      const Fragment low = tile.pieces[s][2 * r], high = tile.pieces[s][2 * r + 1];
      lds.template at<Chunk>(first_row + Layout::owned(s), byte) = Chunk{low[0], low[1], high[0], high[1]};
    }
  }
}

/// From four rows of 4 bytes to their columns: element 0 of all rows, then element 1 …, each with the first row lowest.
__device__ inline void transpose(uint32_t (&words)[4], bf16) {
  const uint32_t w0 = words[0], w1 = words[1], w2 = words[2], w3 = words[3];
  words[0] = pack_lower(w0, w1), words[1] = pack_lower(w2, w3);  // even
  words[2] = pack_upper(w0, w1), words[3] = pack_upper(w2, w3);  // odd
}
__device__ inline void transpose(uint32_t (&words)[4], f16) { transpose(words, bf16{}); }
__device__ inline void transpose(uint32_t (&words)[4], fp8) {
  constexpr uint32_t kEven = 0x06020400u, kOdd = 0x07030501u;  // bytes 0, 2 or 1, 3 of two words, in turns
  const uint32_t low_even = __builtin_amdgcn_perm(words[1], words[0], kEven);    // a0 b0 a2 b2
  const uint32_t low_odd = __builtin_amdgcn_perm(words[1], words[0], kOdd);      // a1 b1 a3 b3
  const uint32_t high_even = __builtin_amdgcn_perm(words[3], words[2], kEven);
  const uint32_t high_odd = __builtin_amdgcn_perm(words[3], words[2], kOdd);
  words[0] = pack_lower(low_even, high_even);
  words[1] = pack_lower(low_odd, high_odd);
  words[2] = pack_upper(low_even, high_even);
  words[3] = pack_upper(low_odd, high_odd);
}

/// The operand by column at (first_row, first_column): each dword read is one row of kOwnedStep neighbouring columns.
template <class TILE, class LDS>
__device__ inline TILE load_transposed(const LDS& lds, int first_row, int first_column) {
  using T = typename TILE::Element;
  using Layout = typename TILE::Layout;
  constexpr int kStep = 4 / sizeof(T);  // columns of a dword; 4 rows make kWords words of each
  constexpr int kWords = 4 / kStep;
  static_assert(std::is_same_v<T, typename LDS::Element> && !TILE::kOwnsRows, "an operand by column, same elements");
  static_assert(Layout::kRun == 4 && Layout::kOwnedStep == kStep, "runs of 4 rows, columns in steps of a dword");
  TILE tile;
#pragma unroll
  for (int set = 0; set < TILE::kStrips / kStep; ++set) {
#pragma unroll
    for (int r = 0; r < TILE::kPerStrip / 4; ++r) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int byte = static_cast<int>((first_column + Layout::owned(set * kStep)) * sizeof(T));
        words[i] = lds.template at<uint32_t>(first_row + Layout::depth(4 * r + i), byte);
      }
      transpose(words, T{});
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int word = kWords * r + w % kWords;
        tile.pieces[set * kStep + w / kWords][word / 2][word % 2] = words[w];
      }
    }
  }
  return tile;
}

}  // namespace aiter_like::tile

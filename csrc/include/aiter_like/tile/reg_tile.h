// SPDX-License-Identifier: MIT
// Tiles and vectors in the registers of one wave. The type carries element, shape and layout; an object is the
// registers of one lane.
#pragma once

#include <type_traits>

#include "aiter_like/mfma.h"
#include "aiter_like/tile/layout.h"

namespace aiter_like::tile {

/// Whether a tile of T holds sums, which have 32 bits: floats, or those of int8 products.
template <class T>
constexpr bool kIsSum = std::is_same_v<T, float> || std::is_same_v<T, int32_t>;

/// A lane's operand (8 bytes) or result (WIDTH² / 64 sums) of one matrix instruction.
template <class T, int WIDTH, bool IS_SUM = kIsSum<T>>
struct PieceOf {
  using type = Fragment;
  static constexpr int kElements = 8 / sizeof(T);
};
template <class T, int WIDTH>
struct PieceOf<T, WIDTH, true> {
  static constexpr int kElements = WIDTH * WIDTH / kWaveSize;
  using type = __attribute__((ext_vector_type(kElements))) T;
};

/// Values of one axis of a tile. ALONG the owned axis: one per strip, the same in all groups once reduced; along the
/// depth: one per element, the same in all owners.
template <class T, int SIZE, class LAYOUT, bool ALONG_OWNED>
struct RegVec {
  static constexpr int kCount = SIZE / (ALONG_OWNED ? LAYOUT::kWidth : LAYOUT::kGroups);
  T values[kCount];
  __device__ T& operator[](int i) { return values[i]; }
  __device__ const T& operator[](int i) const { return values[i]; }

  /// Index on the tile's axis of value i.
  __device__ static int index(int i) {
    if constexpr (ALONG_OWNED) return LAYOUT::owned(i);
    return LAYOUT::depth(i);
  }
};

template <class T, int ROWS, int COLUMNS, class LAYOUT>
struct RegTile {
  using Element = T;
  using Layout = LAYOUT;
  static constexpr int kRows = ROWS, kColumns = COLUMNS;
  static constexpr bool kOwnsRows = LAYOUT::kOwned == Axis::kRow;
  static constexpr int kOwned = kOwnsRows ? ROWS : COLUMNS, kDepth = kOwnsRows ? COLUMNS : ROWS;
  static constexpr int kStrips = kOwned / LAYOUT::kWidth;
  static constexpr int kPerStrip = kDepth / LAYOUT::kGroups;  // elements of one lane
  using Piece = typename PieceOf<T, LAYOUT::kWidth>::type;
  static constexpr int kPieceElements = PieceOf<T, LAYOUT::kWidth>::kElements;
  static constexpr int kPieces = kPerStrip / kPieceElements;
  static_assert(kOwned % (LAYOUT::kWidth * LAYOUT::kOwnedStep) == 0, "the owned axis must be whole strips");
  static_assert(kDepth % (LAYOUT::kGroups * LAYOUT::kSpan) == 0, "the depth must be whole runs of every group");
  static_assert(kPerStrip % kPieceElements == 0, "the depth must be whole pieces of a matrix instruction");

  using PerRow = RegVec<float, ROWS, LAYOUT, kOwnsRows>;
  using PerColumn = RegVec<float, COLUMNS, LAYOUT, !kOwnsRows>;
  using PerOwned = RegVec<float, kOwned, LAYOUT, true>;

  Piece pieces[kStrips][kPieces];

  __device__ static int row(int strip, int element) {
    return kOwnsRows ? LAYOUT::owned(strip) : LAYOUT::depth(element);
  }
  __device__ static int column(int strip, int element) {
    return kOwnsRows ? LAYOUT::depth(element) : LAYOUT::owned(strip);
  }

  /// An element of a tile of sums.
  __device__ T get(int strip, int element) const {
    static_assert(kIsSum<T>, "rounded elements are packed: only whole pieces can be had");
    return pieces[strip][element / kPieceElements][element % kPieceElements];
  }
  __device__ void set(int strip, int element, T x) {
    static_assert(kIsSum<T>, "rounded elements are packed: only whole pieces can be set");
    pieces[strip][element / kPieceElements][element % kPieceElements] = x;
  }
};

/// All elements zero.
template <class TILE>
__device__ inline void clear(TILE& tile) {
#pragma unroll
  for (int s = 0; s < TILE::kStrips; ++s) {
#pragma unroll
    for (int p = 0; p < TILE::kPieces; ++p) tile.pieces[s][p] = typename TILE::Piece{};
  }
}

}  // namespace aiter_like::tile

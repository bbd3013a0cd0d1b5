// SPDX-License-Identifier: MIT
// The tiles, waves and LDS of a matrix product (gemm_body.h), and where a wave's part of it is.
#pragma once

#include <type_traits>

#include "aiter_like/dtype.h"
#include "aiter_like/gpu.h"
#include "aiter_like/tile/mma.h"
#include "aiter_like/tile/order.h"
#include "aiter_like/tile/staging.h"

namespace aiter_like::gemm {

using namespace tile;

/// The sums of WAVES waves, COUNT pieces of each lane: no room in LDS where no waves share a part.
template <class Piece, int WAVES, int COUNT>
struct SharedPart {
  Piece pieces[WAVES][COUNT][kWaveSize];
};
template <class Piece, int COUNT>
struct SharedPart<Piece, 0, COUNT> {};

/// A configuration, and the tiles that follow from it. A Config has
///   Element, Sum                       what is multiplied: bf16, f16, fp8, int8_t; what is added up: float, int32_t
///   kBlockM, kBlockN                   of out, for a workgroup
///   kWavesM, kWavesN, kWavesK          waves along the rows, the columns and the depth
///   kSplits                            workgroups that share the depth; above 1 a second kernel adds their sums up
template <class Config>
struct Shape : Config {
  using Element = typename Config::Element;
  using Sum = typename Config::Sum;
  static constexpr int kParts = Config::kWavesM * Config::kWavesN;
  static constexpr int kThreads = kParts * Config::kWavesK * kWaveSize;
  static constexpr int kWaveM = Config::kBlockM / Config::kWavesM, kWaveN = Config::kBlockN / Config::kWavesN;

  /// 16 bytes of each lane cover a slice of the depth; a row of a wave's tile in LDS is all 32 banks, two slices.
  static constexpr int kRun = 16 / sizeof(Element), kSlice = 4 * kRun, kSlices = 2, kWaveDepth = kSlices * kSlice;
  static constexpr int kDepth = kWaveDepth * Config::kWavesK;

  /// Steps that are under way while one is multiplied: two where few rows make it short beside the time of the memory.
  static constexpr int kAhead = kParts == 1 && Config::kWavesK > 1 ? 2 : 1;

  using Sums = RegTile<Sum, kWaveN, kWaveM, Product<>>;

  /// The sums' place in LDS: a strip of each part on its way to memory, and the sums of the waves that share a part
  /// with its first one.
  static constexpr int kStripRows = kWaveM < 32 ? kWaveM : 32;
  struct WaveSums : SharedPart<typename Sums::Piece, (Config::kWavesK - 1) * kParts, Sums::kStrips * Sums::kPieces> {
    LdsTile<Sum, kStripRows, kWaveN, SwizzledByRow> strips[kParts];
  };
};

/// A workgroup's LDS: the operands of a step, then the sums of the waves that share a part.
template <class Shape, class Left, class Right>
union Memory {
  struct {
    typename Left::Memory left;
    typename Right::Memory right;
  } operands;
  typename Shape::WaveSums sums;
};

/// The part of the tile and of a step's depth that a wave has, and where that is in out.
template <class Shape>
struct WavePlace {
  int part = wave_index() % Shape::kParts, depth = wave_index() / Shape::kParts;
  int tile_row = part / Shape::kWavesN * Shape::kWaveM, tile_column = part % Shape::kWavesN * Shape::kWaveN;
  int64_t first_row, first_column;  // the workgroup's tile's

  __device__ explicit WavePlace(TilePlace tile)
      : first_row(int64_t{tile.row} * Shape::kBlockM), first_column(int64_t{tile.column} * Shape::kBlockN) {}
  __device__ int64_t row() const { return first_row + tile_row; }
  __device__ int64_t column() const { return first_column + tile_column; }
};

/// The part of the depth that a workgroup has.
struct Span {
  int64_t first, end;
};
__device__ inline Span span_of(int64_t depth, int64_t split, int64_t split_depth) {
  const int64_t first = split * split_depth;
  return {first, depth - first < split_depth ? depth : first + split_depth};
}

}  // namespace aiter_like::gemm

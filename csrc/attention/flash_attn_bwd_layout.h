// SPDX-License-Identifier: MIT
// The sizes of flash_attn_bwd, and where everything lies: fragments in registers, images of Q and dout in LDS.
//
// A workgroup keeps kBlockN keys and takes blocks of kBlockM rows, one after another. Wave w owns kWaveKeys of the
// keys: their K and V are in its registers, and so are their dK and dV. With lane = 16 g + c, element i = 0…3 of an
// operand or a result, and h = 0, 1 the halves of a 16-byte read,
//   Q, dout by row, operand A   row 16 rt + c, column 32 j + 8 g + 4 h + i
//   K, V, operand B             key 16 kt + c of the wave, the same column: both permute the contraction alike
//   S, dP, results              row 16 rt + 4 g + i, key 16 kt + c. Rounded, P and dS are operand B of the next two:
//   Q, dout transposed, A       row 16 rt + 4 g + i, column 32 j + 2 c + h
//   dK^T, dV^T, results         column 32 j + 8 g + 2 i + h, key 16 kt + c; h = 0 and 1 interleave to 16 bytes
// dQ sums over all keys of the workgroup, so dS goes through LDS, and the waves divide dQ by columns (kRowSplit 1), or
// by row tiles and columns (2):
//   K transposed, operand A     key 32 t + 16 h + 4 g + i of the workgroup, column 32 (x / 2) + 2 c + x % 2
//   dS from LDS, operand B      row 16 rt + c, the same keys
//   dQ^T, result, tile x        column 32 (x / 2) + 2 (4 g + i) + x % 2, row 16 rt + c
#pragma once

#include "aiter_like/mfma.h"
#include "aiter_like/tile/global.h"

namespace aiter_like::attn_bwd {

using tile::Chunk;

constexpr int kThreads = 256, kWaves = kThreads / kWaveSize;
constexpr int kMatrix = 16;  // width and depth of the matrix instructions

/// A configuration and the sizes that follow from it. A Config has
///   Element          bf16 or f16
///   kDim, kDimV      head dimensions as computed with: multiples of 32
///   kKeyTiles        tiles of 16 keys per wave
///   kRowTiles        tiles of 16 rows per block
///   kRowSplit        1, or 2: the waves divide dQ by row tiles, too
///   kAhead           steps of a product from the request of an operand to its use
///   kIsMasked        whether a row may not see a key before the end
///   kIsAtomic        dQ is added up by atomics, in any order; else by turns
///   Scores           what happens to a score before the softmax (flash_attn_bwd_scores.h)
///   kPlanCosts       what the host plans with (flash_attn_bwd_launch.h)
template <class Config>
struct Shape : Config {
  static constexpr int kDim = Config::kDim, kDimV = Config::kDimV;
  static constexpr int kKeyTiles = Config::kKeyTiles, kRowTiles = Config::kRowTiles, kRowSplit = Config::kRowSplit;
  static constexpr int kBlockM = kMatrix * kRowTiles;
  static constexpr int kWaveKeys = kMatrix * kKeyTiles, kBlockN = kWaves * kWaveKeys;
  static constexpr int kDqTiles = kDim / kMatrix * kRowSplit / kWaves;  // of a wave, in each of its row tiles
  static constexpr int kDqRowTiles = kRowTiles / kRowSplit;
  static constexpr int kDqFloats = kBlockM * kDim;  // of a block of dQ
  static constexpr int kPartFloats = kBlockN * (kDim + kDimV);
  static_assert(kDim % 32 == 0 && kDimV % 32 == 0 && kRowTiles % kRowSplit == 0);
  static_assert(kDim / kMatrix * kRowSplit % kWaves == 0, "each wave has as many tiles of dQ");

  /// The first tile of dQ of a wave, and its first row tile.
  __device__ static int dq_tile(int wave) { return wave / kRowSplit * kDqTiles; }
  __device__ static int dq_row_tile(int wave) { return kRowSplit == 1 ? 0 : wave % 2 * kDqRowTiles; }

  /// The place of tile (x, rt) of this lane among the floats of a block of dQ, 4 of them.
  __device__ static int dq_place(int x, int rt) { return ((x * kRowTiles + rt) * kWaveSize + lane_index()) * 4; }
};

/// An image of ROWS × DIM elements by row. With a gap of 32 bytes behind each row, the lanes that LDS serves at once,
/// of 16-byte reads 0-3 and 20-23, 4-7 and 16-19 …, touch all banks.
template <int ROWS, int DIM>
struct ByRow {
  static constexpr int kRowBytes = 2 * DIM + 32, kBytes = ROWS * kRowBytes;
  __device__ static int read_place() { return lane_index() % 16 * kRowBytes + lane_index() / 16 * 16; }
  static constexpr int step(int row_tile, int j) { return 16 * row_tile * kRowBytes + 64 * j; }
};

/// The same transposed: what a step takes lies from end to end, 16 bytes of each lane.
template <int ROWS, int DIM>
struct Transposed {
  static constexpr int kStepBytes = 16 * kWaveSize, kBytes = ROWS / 16 * (DIM / 32) * kStepBytes;
  /// The place of a lane's 16 bytes, in units of 16: lanes that write at once write even and odd units.
  __device__ static constexpr int unit(int lane) { return lane ^ ((lane >> 3) & 1); }
  __device__ static int read_place() { return 16 * unit(lane_index()); }
  static constexpr int step(int row_tile, int j) { return (row_tile * (DIM / 32) + j) * kStepBytes; }
  /// The place of rows 4 quad … 4 quad + 3 of columns 2 pair and 2 pair + 1.
  __device__ static int place(int quad, int pair) {
    return step(quad / 4, 0) + pair / 16 * kStepBytes + 16 * unit(quad % 4 * 16 + pair % 16);
  }
};

/// dS by row, of all keys of the workgroup. Within 32 keys those of both halves of a read are neighbours. Rows with bit
/// 2 set have neighbours of 32 keys exchanged: what writes rows 4 g and 4 g + 4 at once touches other banks for each.
template <class Shape>
struct ScoreGradients {
  static constexpr int kRowBytes = 2 * Shape::kBlockN + 32, kBytes = Shape::kBlockM * kRowBytes;
  static_assert(Shape::kBlockN % 64 == 0);
  /// Where this lane reads step t of row tile 0, t even (0) or odd (1); constants from one to the next.
  __device__ static int read_place(int odd) {
    const int c = lane_index() % 16;
    return c * kRowBytes + lane_index() / 16 * 16 + 64 * (odd ^ (c >> 2 & 1));
  }
  static constexpr int step(int row_tile, int t) { return 16 * row_tile * kRowBytes + 128 * (t / 2); }
  /// Where this lane writes its key of key tile `tile` of the workgroup, in row 4 g.
  __device__ static int write_place(int tile) {
    const int g = lane_index() / 16, c = lane_index() % 16;
    return 4 * g * kRowBytes + (64 * (tile / 2) ^ 64 * (g & 1)) + 16 * (c / 4) + 8 * (tile % 2) + 2 * (c % 4);
  }
};

/// LDS from its beginning.
template <class Shape>
struct Places {
  static constexpr int kM = Shape::kBlockM;
  using QRows = ByRow<kM, Shape::kDim>;
  using GradRows = ByRow<kM, Shape::kDimV>;
  using QColumns = Transposed<kM, Shape::kDim>;
  using GradColumns = Transposed<kM, Shape::kDimV>;
  using Gradients = ScoreGradients<Shape>;
  static constexpr int kQRows = 0, kGradRows = kQRows + QRows::kBytes, kQColumns = kGradRows + GradRows::kBytes,
                       kGradColumns = kQColumns + QColumns::kBytes, kGradients = kGradColumns + GradColumns::kBytes,
                       kEnd = kGradients + Gradients::kBytes;
  static constexpr int kKeyBytes = ByRow<Shape::kBlockN, Shape::kDim>::kBytes;  // before the first block of rows
  static constexpr int kLdsBytes = kEnd > kKeyBytes ? kEnd : kKeyBytes;
  static_assert(kLdsBytes <= 65536);
};

}  // namespace aiter_like::attn_bwd

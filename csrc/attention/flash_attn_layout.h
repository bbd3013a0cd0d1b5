// SPDX-License-Identifier: MIT
// The sizes of flash_attn_fwd, and where everything lies: blocks of K and V in LDS, fragments in registers.
// Matrix instructions have the width W: 16 at head dimension 128, 32 at 64. With G = 64 / W groups of lanes and
// lane = W · group + col, element i = 0…3 of a fragment or of part a of an accumulator is
//   K, step (kk, j), operand A     K[W kk + col][8 G j + 8 group + 4 h + i]; one 16-byte read gives both halves h
//   Q, step (kk, j), operand B     Q[row(t) + col][the same d]; K and Q permute the contraction alike
//   S^T, result                    the score of query col against key W kk + 4 G a + 4 group + i
//   P, fragment f, operand B       as S^T, f counting its parts: between the products P is only rounded and packed
//   V^T tile (f, g, e), operand A  V[4 G f + 4 group + i][2 W g + 2 col + e]
//   O^T tile (g, e), result        O[col][2 W g + 8 G a + 8 group + 2 i + e]; e = 0 and 1 interleave to 16 bytes
#pragma once

#include "aiter_like/mfma.h"
#include "aiter_like/tile/ping_pong.h"
#include "flash_attn_plan.h"

namespace aiter_like::flash_attn {

constexpr int kThreads = 512;
constexpr int kWaves = kThreads / kWaveSize;
using Groups = tile::PingPong<kWaves>;  // Group A is waves 0-3, group B waves 4-7; each SIMD has one wave of each.

/// A configuration and the sizes that follow from it. A Config has
///   Element                    bf16 or f16
///   kHeadDim                   64 or 128
///   kRounding                  of P and out; f16 has no ties away from zero
///   kLimitsRight, kLimitsLeft  the sides on which a mask may hide keys; keys past the end are hidden in any case
///   kIsPaged                   whether K and V lie in pages, of a multiple of 16 keys
template <class Config>
struct Shape : Config {
  static constexpr int kHeadDim = Config::kHeadDim;
  static_assert(kHeadDim == 64 || kHeadDim == 128);
  static_assert(Config::kLimitsRight || !Config::kLimitsLeft, "a mask limits the right side, or both");

  /// Whether the keys of a query block may be split. With a left limit the three loops need the scalar registers.
  static constexpr bool kSplits = !Config::kLimitsLeft;

  /// Whether row tiles without rows are left out, where there are enough of them: sequences that are decoded have a few
  /// rows each, beside others with whole blocks.
  static constexpr bool kSkipsTiles = Config::kIsPaged && Config::kLimitsRight;

  /// W. A wide instruction takes twice the time of a narrow one and one slot of the port that vector arithmetic shares:
  /// head dimension 64 has too little of it. At 128 the registers take 48 rows a wave, which 32 do not divide.
  static constexpr int kWidth = kHeadDim == 128 ? 16 : 32;
  static constexpr int kGroups = kWaveSize / kWidth;
  static constexpr int kParts = kWidth * kWidth / kWaveSize / 4;  // parts of four elements in an accumulator
  using Accumulators = decltype(Mfma<typename Config::Element, kWidth>::multiply({}, {}, {}));

  static constexpr int kRowTiles = kHeadDim == 128 ? 3 : 2;     // tiles of kWidth query rows per wave
  static constexpr int kBlockM = kWidth * kRowTiles * kWaves;   // 384 | 512 query rows per workgroup
  static constexpr int kKeyTiles = kBlockN / kWidth;
  static constexpr int kFragments = kKeyTiles * kParts;         // fragments of P in a row tile
  static constexpr int kChunks = kHeadDim / (8 * kGroups);      // 16 bytes of each lane: a row of K, Q or out
  static constexpr int kDimGroups = kHeadDim / (2 * kWidth);
  static constexpr int kSteps = kKeyTiles * kChunks;            // A step of a product takes 16 bytes of K or V.
  static constexpr int kTileSteps = kSteps / kKeyTiles;         // steps of a key tile
  static_assert(kSteps == kFragments * kDimGroups);
  static constexpr int kMergeRows = kThreads / (kHeadDim / 8);  // A work-item merges 8 elements of a row.

  static constexpr int kRowBytes = 2 * kHeadDim;
};

/// 16 bytes of a lane: a K fragment (h = 0, 1), or the V fragments (e = 0, 1) of a step.
using Chunk = __attribute__((ext_vector_type(4))) uint32_t;

/// The two A operands of a step.
struct StepOperands {
  Fragment first, second;
};

/// The lane index, computed anew at each call: a register that kept it over the loop would be one too many.
__device__ inline int fresh_lane() {
  uint32_t below_32;
  asm volatile("v_mbcnt_lo_u32_b32 %0, -1, 0" : "=v"(below_32));
  return static_cast<int>(__builtin_amdgcn_mbcnt_hi(~0u, below_32));
}

/// The group and the column of a lane.
template <class Shape>
__device__ inline int group_of(int lane) { return lane / Shape::kWidth; }
template <class Shape>
__device__ inline int column_of(int lane) { return lane % Shape::kWidth; }

/// A block of V in LDS: what a step takes lies from end to end, 16 bytes of each lane.
template <class Shape>
struct ValueBlocks {
  static constexpr int kStepBytes = 16 * kWaveSize;
  static constexpr int kValueBytes = Shape::kSteps * kStepBytes;

  /// The place of a lane's 16 bytes within a step, in units of 16 bytes: lanes that write at once write even and odd
  /// units, and so touch more banks.
  __device__ static constexpr int unit(int lane) { return lane ^ ((lane >> 3) & 1); }

  /// The place of keys 4 keys … 4 keys + 3 of columns 2 pair and 2 pair + 1, after the beginning of V; `pair` is even.
  __device__ static int place_of(int keys, int pair) {
    const int f = keys / Shape::kGroups, group = keys % Shape::kGroups;
    const int step = f * Shape::kDimGroups + pair / Shape::kWidth;
    return step * kStepBytes + 16 * unit(group * Shape::kWidth + pair % Shape::kWidth);
  }
  /// … and those of pair + w, w < 4, if that of a pair that 4 divides goes to `place`, or w < 2.
  __device__ static int next_value_place(int place, int w) { return (place ^ 16 * (w % 2)) + 32 * (w / 2); }
};

/// Blocks of K and of V in LDS, twice each, and where a lane reads them: at a lane's offset of step 0, which the
/// buffer is part of, and constants. K has rows as in memory, placed so that the 8 lanes that ds_read_b128 serves at
/// once touch all 32 banks.
template <class Shape, int WIDTH = Shape::kWidth>
struct Blocks;

/// Byte b of row r of K holds the row's byte b ^ 16 (r mod 8).
template <class Shape>
struct Blocks<Shape, 16> : ValueBlocks<Shape> {
  static constexpr int kOtherBuffer = kBlockN * Shape::kRowBytes;  // K lies at 0 and there, V behind
  static constexpr int kValues = 2 * kOtherBuffer;
  static constexpr int kLdsBytes = kValues + 2 * ValueBlocks<Shape>::kValueBytes;

  __device__ static int key_place(int row, int byte) { return row * Shape::kRowBytes + (byte ^ 16 * (row & 7)); }
  /// … and that of the row 4 i further down, if bit 2 of the row is 0.
  __device__ static int key_place_below(int place, int i) { return (place ^ 64 * (i % 2)) + 4 * i * Shape::kRowBytes; }
  __device__ static int value_place(int keys, int pair) { return kValues + ValueBlocks<Shape>::place_of(keys, pair); }

  /// The place at which this lane reads step 0.
  __device__ static int key_offset(int lane) { return key_place(lane % 16, 16 * (lane / 16)); }
  __device__ static int value_offset(int lane) { return kValues + 16 * ValueBlocks<Shape>::unit(lane); }

  __device__ static Chunk read_keys(const char* lds, int lane_offset, int step) {
    const int kk = step / Shape::kChunks, j = step % Shape::kChunks;
    const int offset = (lane_offset ^ 64 * (j % 2)) + 128 * (j / 2) + 16 * kk * Shape::kRowBytes;
    return *reinterpret_cast<const Chunk*>(lds + offset);
  }
};

/// Rows of K have a gap behind each, so that every step is a constant away from the first one.
template <class Shape>
struct Blocks<Shape, 32> : ValueBlocks<Shape> {
  static constexpr int kKeyRowBytes = Shape::kRowBytes + 16;
  static constexpr int kOtherBuffer = 32768;
  static constexpr int kValues = kBlockN * kKeyRowBytes;
  static constexpr int kLdsBytes = kOtherBuffer + kValues + ValueBlocks<Shape>::kValueBytes;
  static_assert(kLdsBytes - kOtherBuffer <= kOtherBuffer && kLdsBytes <= 65536);

  __device__ static int key_place(int row, int byte) { return row * kKeyRowBytes + byte; }
  __device__ static int key_place_below(int place, int i) { return place + 4 * i * kKeyRowBytes; }
  __device__ static int value_place(int keys, int pair) { return kValues + ValueBlocks<Shape>::place_of(keys, pair); }

  __device__ static int key_offset(int lane) { return key_place(lane % 32, 16 * (lane / 32)); }
  __device__ static int value_offset(int lane) { return kValues + 16 * ValueBlocks<Shape>::unit(lane); }

  __device__ static Chunk read_keys(const char* lds, int lane_offset, int step) {
    const int kk = step / Shape::kChunks, j = step % Shape::kChunks;
    return *reinterpret_cast<const Chunk*>(lds + lane_offset + 32 * kk * kKeyRowBytes + 32 * j);
  }
};

}  // namespace aiter_like::flash_attn

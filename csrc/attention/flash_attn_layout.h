// SPDX-License-Identifier: MIT
// The sizes of flash_attn_fwd, and where everything lies: blocks of K and V in LDS, fragments in registers.
// With lane = 16 · quad + col, element i = 0…3 of a fragment or an accumulator is
//   K, step (j, h), operand A      K[16 kk + col][32 j + 8 quad + 4 h + i]; one 16-byte read gives both halves h
//   Q, step (j, h), operand B      Q[row(t) + col][the same d]; K and Q permute the contraction alike
//   S^T, result                    the score of query col against key 16 kk + 4 quad + i
//   P, operand B                   as S^T, so that between the products P is only rounded and packed
//   V^T tile (g, e), operand A     V[16 kk + 4 quad + i][32 g + 2 col + e]
//   O^T tile (g, e), result        O[col][32 g + 8 quad + 2 i + e]; the tiles e = 0 and 1 interleave to 16 bytes
#pragma once

#include "aiter_like/mfma.h"
#include "aiter_like/tile/ping_pong.h"
#include "flash_attn_plan.h"

namespace aiter_like::flash_attn {

constexpr int kThreads = 512;
constexpr int kWaves = kThreads / kWaveSize;
using Groups = tile::PingPong<kWaves>;  // Group A is waves 0-3, group B waves 4-7; each SIMD has one wave of each.
constexpr int kKeyTiles = kBlockN / 16;

/// A configuration and the sizes that follow from it. A Config has
///   Element                    bf16 or f16
///   kHeadDim                   64 or 128
///   kRounding                  of P and out; f16 has no ties away from zero
///   kLimitsRight, kLimitsLeft  the sides on which a mask may hide keys; keys past the end are hidden in any case
template <class Config>
struct Shape : Config {
  static constexpr int kHeadDim = Config::kHeadDim;
  static_assert(kHeadDim == 64 || kHeadDim == 128);
  static_assert(Config::kLimitsRight || !Config::kLimitsLeft, "a mask limits the right side, or both");

  /// Whether the keys of a query block may be split. With a left limit the three loops need the scalar registers.
  static constexpr bool kSplits = !Config::kLimitsLeft;

  static constexpr int kRowTiles = kHeadDim == 128 ? 3 : 4;  // tiles of 16 query rows per wave
  static constexpr int kBlockM = 16 * kRowTiles * kWaves;    // 384 | 512 query rows per workgroup
  static constexpr int kDimGroups = kHeadDim / 32;
  static constexpr int kSteps = kDimGroups * kKeyTiles;      // A step of a product takes one fragment of K or V.
  static constexpr int kMergeRows = kThreads / (kHeadDim / 8);  // A work-item merges 8 elements of a row.

  static constexpr int kRowBytes = 2 * kHeadDim;
  static constexpr int kTileBytes = kBlockN * kRowBytes;
  static constexpr int kValueTiles = 2 * kTileBytes;  // K lies at 0 and kTileBytes, V behind; a block's parity chooses.
  static constexpr int kLdsBytes = 4 * kTileBytes;
};

/// 16 bytes of a lane: a K fragment (h = 0, 1), or the four dwords that hold the V fragments (e = 0, 1) of a step.
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

__device__ inline int quad() { return lane_index() / 16; }
__device__ inline int column() { return lane_index() % 16; }

/// A block of K in LDS. Byte b of row r holds the row's byte b ^ swizzle(r), so that the 8 lanes that ds_read_b128
/// serves at once touch all 32 banks.
template <class Shape>
struct KeyTile {
  __host__ __device__ static constexpr int swizzle(int row) { return (row & 7) << 4; }

  __device__ static Chunk read(const char* tile, int lane_offset, int step) {
    const int kk = step / Shape::kDimGroups, j = step % Shape::kDimGroups;
    const int offset = (lane_offset ^ 64 * (j % 2)) + 128 * (j / 2) + 16 * kk * Shape::kRowBytes;
    return *reinterpret_cast<const Chunk*>(tile + offset);
  }
  /// Where this lane reads step 0.
  __device__ static int lane_offset() { return column() * Shape::kRowBytes + ((16 * quad()) ^ swizzle(column())); }

  __device__ static StepOperands operands(Chunk chunk) { return {chunk.lo, chunk.hi}; }
};

/// A block of V in LDS. Bit 6 of a byte's place is flipped in odd groups of four rows: the two quads that ds_read_b32
/// serves at once read rows r and r + 4, which would otherwise share their 16 banks.
template <class Shape>
struct ValueTile {
  __host__ __device__ static constexpr int swizzle(int row) { return ((row >> 2) & 1) << 6; }

  __device__ static Chunk read(const char* tile, int lane_offset, int step) {
    const int kk = step / Shape::kDimGroups, g = step % Shape::kDimGroups;
    const int offset = (lane_offset ^ 64 * (g % 2)) + 128 * (g / 2);
    Chunk words;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = *reinterpret_cast<const uint32_t*>(tile + offset + (16 * kk + i) * Shape::kRowBytes);
    return words;
  }
  /// Where this lane reads step 0.
  __device__ static int lane_offset() {
    return 4 * quad() * Shape::kRowBytes + ((4 * column()) ^ swizzle(4 * quad()));
  }

  __device__ static StepOperands operands(Chunk words) {
    return {{pack_lower(words[0], words[1]), pack_lower(words[2], words[3])},
            {pack_upper(words[0], words[1]), pack_upper(words[2], words[3])}};
  }
};

}  // namespace aiter_like::flash_attn

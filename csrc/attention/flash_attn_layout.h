// SPDX-License-Identifier: MIT
// Shapes of flash_attn_fwd.hip and where everything lies: blocks in LDS, fragments in registers.
// With lane = 16 · quad + col, element i = 0…3 of
//   K, step (j, h), operand A      K[16 kk + col][32 j + 8 quad + 4 h + i]: one 16-byte read gives both halves h
//   Q, step (j, h), operand B      Q[row(t) + col][the same d]: K and Q permute the contraction alike
//   S^T, result                    score of query col against key 16 kk + 4 quad + i
//   P, operand B                   the same lanes and order: between the products P is only rounded and packed
//   V^T tile (g, e), operand A     V[16 kk + 4 quad + i][32 g + 2 col + e]
//   O^T tile (g, e), result        O[col][32 g + 8 quad + 2 i + e]: tiles e = 0, 1 interleave to 16 bytes
#pragma once

#include "aiter_like/mfma.h"
#include "flash_attn_plan.h"

#if !defined(ELEMENT) || !defined(HEAD_DIM) || !defined(ROUNDING) || !defined(MASK)
#error "flash_attn_fwd.hip: -DELEMENT=bf16|f16 -DHEAD_DIM=64|128 -DROUNDING=0|1|2 -DMASK=0|1|2 (none, right, both)"
#endif

namespace aiter_like {
namespace {

using Element = ELEMENT;
constexpr int kHeadDim = HEAD_DIM;
static_assert(kHeadDim == 64 || kHeadDim == 128);

/// Which side of a row's keys a mask may hide, besides those past the end.
constexpr bool kLimitsRight = MASK != 0, kLimitsLeft = MASK == 2;

/// Whether keys may be split. Not with a left limit, whose three loops need the scalar registers.
constexpr bool kSplits = !kLimitsLeft;

constexpr int kThreads = 512;
constexpr int kWaves = kThreads / kWaveSize;
constexpr int kGroupWaves = kWaves / 2;                 // group A: waves 0-3, group B: 4-7, one of each per SIMD
constexpr int kRowTiles = kHeadDim == 128 ? 3 : 4;      // tiles of 16 query rows per wave
constexpr int kBlockM = 16 * kRowTiles * kWaves;        // 384, 512 query rows per workgroup
constexpr int kKeyTiles = kBlockN / 16;
constexpr int kDimGroups = kHeadDim / 32;
constexpr int kSteps = kDimGroups * kKeyTiles;          // of a product: one fragment of K or V each

constexpr int kRowBytes = 2 * kHeadDim;
constexpr int kTileBytes = kBlockN * kRowBytes;
constexpr int kValueTiles = 2 * kTileBytes;             // K at 0 and kTileBytes, V behind: the block's parity chooses
constexpr int kLdsBytes = 4 * kTileBytes;

/// 16 bytes of a lane: a K fragment (h = 0, 1), or the four dwords that hold the V fragments (e = 0, 1) of a step.
using Chunk = __attribute__((ext_vector_type(4))) uint32_t;

/// The two A operands of a step.
struct StepOperands {
  Fragment first, second;
};

/// Lane index computed anew where it stands: in the loop over key blocks a register that keeps it is one too many.
__device__ inline int fresh_lane() {
  uint32_t below_32;
  asm volatile("v_mbcnt_lo_u32_b32 %0, -1, 0" : "=v"(below_32));
  return static_cast<int>(__builtin_amdgcn_mbcnt_hi(~0u, below_32));
}

__device__ inline int quad() { return lane_index() / 16; }
__device__ inline int column() { return lane_index() % 16; }

/// K in LDS: byte b of row r holds the row's byte b ^ swizzle(r): the 8 lanes that ds_read_b128 serves at once touch
/// all 32 banks.
struct KeyTile {
  __host__ __device__ static constexpr int swizzle(int row) { return (row & 7) << 4; }

  __device__ static Chunk read(const char* tile, int lane_offset, int step) {
    const int kk = step / kDimGroups, j = step % kDimGroups;
    return *reinterpret_cast<const Chunk*>(tile + (lane_offset ^ 64 * (j % 2)) + 128 * (j / 2) + 16 * kk * kRowBytes);
  }
  /// Of step 0.
  __device__ static int lane_offset() { return column() * kRowBytes + ((16 * quad()) ^ swizzle(column())); }

  __device__ static StepOperands operands(Chunk chunk) { return {chunk.lo, chunk.hi}; }
};

/// V in LDS: bit 6 is flipped in odd groups of four rows: the two quads that ds_read_b32 serves at once read rows r and
/// r + 4, which would otherwise share their 16 banks.
struct ValueTile {
  __host__ __device__ static constexpr int swizzle(int row) { return ((row >> 2) & 1) << 6; }

  __device__ static Chunk read(const char* tile, int lane_offset, int step) {
    const int kk = step / kDimGroups, g = step % kDimGroups;
    const int offset = (lane_offset ^ 64 * (g % 2)) + 128 * (g / 2);
    Chunk words;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = *reinterpret_cast<const uint32_t*>(tile + offset + (16 * kk + i) * kRowBytes);
    return words;
  }
  /// Of step 0.
  __device__ static int lane_offset() { return 4 * quad() * kRowBytes + ((4 * column()) ^ swizzle(4 * quad())); }

  __device__ static StepOperands operands(Chunk words) {
    return {{pack_lower(words[0], words[1]), pack_lower(words[2], words[3])},
            {pack_upper(words[0], words[1]), pack_upper(words[2], words[3])}};
  }
};

}  // namespace
}  // namespace aiter_like

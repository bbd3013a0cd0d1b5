// SPDX-License-Identifier: MIT
// A tile of tokens on its way into a cache that keeps tokens together (kv_cache.h): what was read token by token waits
// in LDS and leaves in stores of 16 bytes.
#pragma once

#include "aiter_like/kv_cache.h"

namespace aiter_like {

/// Stores 16 bytes as one value: stores of structs in two branches are merged into pieces.
template <class T, int kCount>
__device__ inline void store_whole(T* address, const Vec<T, kCount>& value) {
  static_assert(sizeof(value) == 16, "one access");
  *reinterpret_cast<unsigned __int128*>(address) = __builtin_bit_cast(unsigned __int128, value);
}

/// Tokens of a tile that leave together. A pack is 2^n = kPack tokens of consecutive slots, the first a multiple of
/// kPack; a tile has room for kTokens / kPack of them, wherever they begin. All other tokens are single.
template <uint32_t kTokens, uint32_t kPack>
struct TilePacks {
  static constexpr uint32_t kCount = kTokens / kPack;

  uint32_t single[kTokens];                      // slot of a token that leaves by itself, or kNowhere
  uint32_t pack_slot[kCount], pack_row[kCount];  // a pack's first token's; kNowhere: no pack

#if defined(__HIP__)
  /// Whether the slots of the pack that begins at the lane's row `start` of the tile are consecutive, where a wave has
  /// the tile's tokens and its lanes their slots: none is read again.
  __device__ static bool follow_one_another(uint32_t slot, uint32_t start) {
    constexpr int kPreviousLane = 0x138;  // DPP's wave_shr:1
    constexpr uint64_t kOthers = (uint64_t{1} << (kPack - 1)) - 1;
    const uint64_t followers = __builtin_amdgcn_ballot_w64(dpp<kPreviousLane>(slot) + 1 == slot);
    return (followers >> ((start + 1) % kWaveSize) & kOthers) == kOthers;
  }
#endif

  /// Sorts the tokens from `first` on, one for each of the workgroup's first kTokens work-items; returns its slot. A
  /// barrier has to follow.
  __device__ uint32_t sort(const SlotMapping& slots, uint32_t first, uint32_t tokens, bool has_packs) {
    const uint32_t row = thread_index();
    if (row >= kTokens) return SlotMapping::kNowhere;
    const uint32_t slot = first + row < tokens ? slots.number(first + row) : SlotMapping::kNowhere;
    const uint32_t pack = slot / kPack * kPack, start = row - slot % kPack;  // wraps where the pack begins earlier
    bool is_packed = has_packs && slot != SlotMapping::kNowhere && start < kTokens && start + kPack <= kTokens &&
                     first + start + kPack <= tokens;
#if defined(__HIP__)
    if (kTokens == kWaveSize) is_packed = follow_one_another(slot, start) && is_packed;
    else
#endif
    if (is_packed) {
#pragma unroll 4  // loads in flight; all 16 of one-byte elements would take 30 registers more
      for (uint32_t i = 0; i < kPack; ++i) is_packed &= slots.number(first + start + i) == pack + i;
    }
    single[row] = is_packed ? SlotMapping::kNowhere : slot;
    // Packs that begin within kPack rows overlap: at most one does, and it holds the last of these rows.
    if (row % kPack == kPack - 1) {
      pack_slot[row / kPack] = is_packed ? pack : SlotMapping::kNowhere;
      pack_row[row / kPack] = start;
    }
    return slot;
  }
};

/// kTokens rows of kColumns elements, in vectors of 16 bytes.
template <class T, uint32_t kTokens, uint32_t kColumns>
struct TileRows {
  static constexpr uint32_t kPack = 16 / sizeof(T);

  Vec<T, kPack> data[kTokens][kColumns / kPack];

  __device__ T* at(uint32_t row, uint32_t column) { return &data[row][0][0] + column; }

  /// One column of kPack rows from `row` on.
  __device__ Vec<T, kPack> column(uint32_t row, uint32_t column) {
    const T* from = at(row, column);
    Vec<T, kPack> result;
#pragma unroll
    for (uint32_t i = 0; i < kPack; ++i) result[i] = from[i * kColumns];
    return result;
  }
};

/// The pack and the column that work-item number `item` of a tile stores, so that neighbours fill sectors of 32 bytes:
/// neighbouring columns where the cache keeps these together, else two packs of 16 columns.
template <Pack kLayout, uint32_t kColumns>
struct TileItem {
  static constexpr uint32_t kRun = kLayout == Pack::kTokens ? kColumns : 16, kPair = kLayout == Pack::kTokens ? 1 : 2;
  static constexpr uint32_t kRuns = kColumns / kRun;

  uint32_t pack, column;

  __device__ explicit TileItem(uint32_t item) {
    const uint32_t run = item / (kRun * kPair);
    pack = run / kRuns * kPair + item / kRun % kPair;
    column = run % kRuns * kRun + item % kRun;
  }
};

}  // namespace aiter_like

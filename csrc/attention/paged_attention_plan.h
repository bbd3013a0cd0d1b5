// SPDX-License-Identifier: MIT
// Which keys of which sequence a workgroup of paged_attention has, planned by each wave from the lengths; the same rule
// as ops/attention/paged_attention_call.py and triton/paged_attention_plan.py.
#pragma once

#include "aiter_like/gpu.h"
#include "paged_lengths.h"

namespace aiter_like::paged {

struct Plan {
  Lengths lengths;
  int window_left;
  int share, most, least;  // those of Parts; the least keys of a part where the lengths decide
  Divider by_share;
  int is_split;

  /// The first key that the sequence's first row sees, or one before it: a multiple of TILE.
  template <int TILE>
  __device__ int first_key(const Lengths::Sequence& s) const {
    if (window_left < 0) return 0;
    const int first = s.keys - s.rows - window_left;
    return first > 0 ? first / TILE * TILE : 0;
  }

  template <int TILE>
  __device__ int parts_of(const Lengths::Sequence& s, int chunk) const {
    if (s.rows <= 0) return 0;
    const int visible = s.keys - first_key<TILE>(s);
    const int parts = visible > 0 ? (visible + chunk - 1) / chunk : 1;
    return parts < most ? parts : most;
  }
};

/// The sum of this lane's and all lanes' before it, by data parallel primitives: no trip through LDS.
__device__ inline uint32_t wave_scan(uint32_t x) {
  constexpr int kShift = 0x110, kLast15 = 0x142, kLast31 = 0x143;  // row_shr, row_bcast:15 and :31 (ISA, DPP_CTRL)
  const auto moved = [&]<int CONTROL, int ROWS>() {
    return static_cast<uint32_t>(
        __builtin_amdgcn_update_dpp(0, static_cast<int>(x), CONTROL, ROWS, 0xF, false));
  };
  x += moved.template operator()<kShift + 1, 0xF>();
  x += moved.template operator()<kShift + 2, 0xF>();
  x += moved.template operator()<kShift + 4, 0xF>();
  x += moved.template operator()<kShift + 8, 0xF>();
  x += moved.template operator()<kLast15, 0xA>();
  x += moved.template operator()<kLast31, 0xC>();
  return x;
}

/// The value of lane `from`, the same lane for all.
__device__ inline int lane_value(int x, int from) { return __builtin_amdgcn_readlane(x, from); }

/// The wave's sum.
__device__ inline uint32_t wave_sum(uint32_t x) {
  return static_cast<uint32_t>(lane_value(static_cast<int>(wave_scan(x)), kWaveSize - 1));
}

/// The result of find: the sequence (the batch's size: there is none), parts and slots before it, its parts and
/// lengths.
struct Found {
  int sequence, parts_before, slots_before, parts;
  Lengths::Sequence lengths;
};

/// Keys of a part.
template <int TILE>
__device__ inline int chunk_of(const Plan& plan, const Lengths::Sequence& own) {
  if (plan.share == 0) return TILE;
  uint32_t low = 0, high = 0;  // halves: the keys of 65535 sequences are too many for 32 bits
  for (int i = lane_index(); i < plan.lengths.batch; i += kWaveSize) {
    const auto s = i < kWaveSize ? own : plan.lengths.of(i);
    const int visible = s.keys - plan.first_key<TILE>(s);
    if (s.rows > 0 && visible > 0) low += visible & 0xFFFF, high += visible >> 16;
  }
  const uint64_t total = (uint64_t{wave_sum(high)} << 16) + wave_sum(low) + plan.share - 1;
  constexpr uint64_t kMostDivided = uint64_t{1} << 31;  // larger ones are divided without multiplication
  const auto chunk = static_cast<int>(total < kMostDivided ? plan.by_share.divide(static_cast<uint32_t>(total))
                                                           : total / static_cast<uint32_t>(plan.share));
  return chunk > plan.least ? chunk : plan.least;
}

/// The sequence of part `number`. By all lanes of a wave.
template <int TILE>
__device__ inline Found find(const Plan& plan, int number) {
  const int lane = lane_index(), batch = plan.lengths.batch;
  Lengths::Sequence own{};  // one of 64 sequences'
  if (lane < batch) own = plan.lengths.of(lane);
  const int chunk = chunk_of<TILE>(plan, own);
  Found found{};
  for (int first = 0; first < batch; first += kWaveSize) {
    const int index = first + lane, count = batch - first < kWaveSize ? batch - first : kWaveSize;
    if (first > 0 && index < batch) own = plan.lengths.of(index);
    const int parts = index < batch ? plan.parts_of<TILE>(own, chunk) : 0, slots = parts > 1 ? parts : 0;
    const int end = found.parts_before + static_cast<int>(wave_scan(parts));
    const int end_slot = found.slots_before + static_cast<int>(wave_scan(slots));
    const int before = __builtin_popcountll(__builtin_amdgcn_ballot_w64(index < batch && end <= number));
    found.sequence = first + before;
    if (before < count) {
      found.parts = lane_value(parts, before);
      found.parts_before = lane_value(end - parts, before);
      found.slots_before = lane_value(end_slot - slots, before);
      found.lengths = {lane_value(own.first_row, before), lane_value(own.rows, before),
                       lane_value(own.first_entry, before), lane_value(own.keys, before)};
      return found;
    }
    found.parts_before = lane_value(end, kWaveSize - 1);
    found.slots_before = lane_value(end_slot, kWaveSize - 1);
  }
  return found;
}

/// A sequence's entry for the merge: where its partial sums are. Written by the sequence's first part.
struct Split {
  int first_slot, parts;
};

}  // namespace aiter_like::paged

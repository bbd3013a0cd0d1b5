// SPDX-License-Identifier: MIT
// Which keys of which sequence a workgroup of paged_attention has, planned by each wave from the lengths; the same rule
// as ops/attention/paged_attention_call.py and triton/paged_attention_plan.py.
#pragma once

#include "aiter_like/gpu.h"
#include "attention_sequence.h"

namespace aiter_like::paged {

/// Lengths of sequences. The index tensors are not trusted: whatever they hold, ranges lie inside the tensors.
struct Lengths {
  const int *cu_seqlens_q, *seqlens_k, *page_starts;  // each may be null, but seqlens_k only with page_starts
  int batch, num_starts, total_q, max_seqlen_q, page_size;
  int capacity;  // keys of a row of the block table; with page_starts entries of the table

  struct Sequence {
    int first_row, rows, first_entry, keys;
  };
  __device__ Sequence of(int index) const {
    Sequence s{index * max_seqlen_q, max_seqlen_q, 0, 0};
    if (cu_seqlens_q != nullptr) {
      s.first_row = clamped(cu_seqlens_q[index], 0, total_q);
      const int last = total_q - max_seqlen_q < s.first_row ? total_q : s.first_row + max_seqlen_q;
      const int end = index + 1 < num_starts ? clamped(cu_seqlens_q[index + 1], s.first_row, total_q) : last;
      s.rows = end - s.first_row;
    }
    if (page_starts == nullptr) {
      s.keys = clamped(seqlens_k[index], 0, capacity);
      return s;
    }
    s.first_entry = clamped(page_starts[index], 0, capacity);
    const int pages = clamped(page_starts[index + 1], s.first_entry, capacity) - s.first_entry;
    const int last = seqlens_k == nullptr ? page_size : clamped(seqlens_k[index], 0, page_size);
    s.keys = pages > 0 ? (pages - 1) * page_size + last : 0;
    return s;
  }
};

struct Plan {
  Lengths lengths;
  int window_left;
  int share, most, least;  // of Parts; the least keys of a part where the lengths decide
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

/// The wave's sum, in each lane.
template <class T>
__device__ inline T wave_sum(T x) {
#pragma unroll
  for (int d = 1; d < kWaveSize; d *= 2) {
    const int from = (lane_index() ^ d) * 4;
    if constexpr (sizeof(T) == 8) {
      const auto bits = static_cast<uint64_t>(x);
      const uint32_t low = __builtin_amdgcn_ds_bpermute(from, static_cast<int>(bits));
      const uint32_t high = __builtin_amdgcn_ds_bpermute(from, static_cast<int>(bits >> 32));
      x += static_cast<T>(uint64_t{high} << 32 | low);
    } else {
      x += __builtin_amdgcn_ds_bpermute(from, x);
    }
  }
  return x;
}

/// The sum of this lane's and all lanes' before it.
__device__ inline int wave_scan(int x) {
#pragma unroll
  for (int d = 1; d < kWaveSize; d *= 2) {
    const int before = __builtin_amdgcn_ds_bpermute((lane_index() - d) * 4, x);
    if (lane_index() >= d) x += before;
  }
  return x;
}

/// What find says: the sequence (the batch's size: there is none), parts and slots before it, and its parts.
struct Found {
  int sequence, parts_before, slots_before, parts;
};

/// The sequence of part `number`; IS_MERGE: sequence `number` of those with two parts or more. By all lanes of a wave.
template <int TILE, bool IS_MERGE>
__device__ inline Found find(const Plan& plan, int number) {
  const int lane = lane_index(), batch = plan.lengths.batch;
  int chunk = TILE;
  if (plan.share > 0) {
    int64_t total = 0;
    for (int i = lane; i < batch; i += kWaveSize) {
      const auto s = plan.lengths.of(i);
      const int visible = s.keys - plan.first_key<TILE>(s);
      if (s.rows > 0 && visible > 0) total += visible;
    }
    total = (wave_sum(total) + plan.share - 1) / plan.share;
    chunk = total > plan.least ? static_cast<int>(total) : plan.least;
  }
  Found found{0, 0, 0, 0};
  int counted = 0;
  for (int first = 0; first < batch; first += kWaveSize) {
    const int index = first + lane;
    const int parts = index < batch ? plan.parts_of<TILE>(plan.lengths.of(index), chunk) : 0;
    const int slots = parts > 1 ? parts : 0;
    const int end = counted + wave_scan(IS_MERGE ? (parts > 1) : parts);
    const bool is_before = end <= number && index < batch;
    const uint64_t before = __builtin_amdgcn_ballot_w64(is_before);
    found.sequence += __builtin_popcountll(before);
    found.parts_before += wave_sum(is_before ? parts : 0);
    found.slots_before += wave_sum(is_before ? slots : 0);
    if (found.sequence < first + kWaveSize && found.sequence < batch) break;
    counted = __builtin_amdgcn_readlane(end, kWaveSize - 1);
  }
  found.sequence = __builtin_amdgcn_readfirstlane(found.sequence);
  found.parts_before = __builtin_amdgcn_readfirstlane(found.parts_before);
  found.slots_before = __builtin_amdgcn_readfirstlane(found.slots_before);
  if (found.sequence < batch)
    found.parts = __builtin_amdgcn_readfirstlane(plan.parts_of<TILE>(plan.lengths.of(found.sequence), chunk));
  return found;
}

}  // namespace aiter_like::paged

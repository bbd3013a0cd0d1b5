// SPDX-License-Identifier: MIT
// Adds up partial results of attention: out = Σ w · part / Σ w, w = exp(lse − max lse), in the order of the map.
//
// A workgroup takes one row of one head:
//   1. each lane the place and the log-sum-exp of one part; of up to 512 columns, four per work-item, 128 apart, those
//      of the first eight parts are under way meanwhile
//   2. the largest log-sum-exp, the parts' weights, and Σ weight · part
//   3. divides, rounds once, stores
// What a part without keys has is not used: its memory may be of nobody. LDS: none. Bound: memory, of few rows latency.
#pragma once

#include "aiter_like/dtype.h"
#include "aiter_like/ffi.h"
#include "aiter_like/gpu.h"
#include "aiter_like/lanes.h"
#include "aiter_like/math.h"
#include "aiter_like/reduce.h"

namespace aiter_like {

struct MlaSumArgs {
  void* out;
  float* lse;  // or null
  const float *partial_out, *partial_lse;
  const int *reduce_indptr, *reduce_final_map, *reduce_partial_map;  // the second may be null
  int64_t out_row, out_head, lse_row, lse_head, part_row, part_head, sum_row, sum_head;  // strides
  int num_tiles, max_seqlen_q, num_heads, total_q, num_rows, num_slots, v_dim;
};

namespace mla_sum {

constexpr int kThreads = 128, kPerItem = 4, kAtOnce = 8;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

/// The largest value of a wave, in every lane. A DPP without a source gives 0, but none of those steps leads to the
/// last lane, which tells the others: values may be negative.
template <int kMask = kWaveSize / 2>
__device__ inline float wave_highest(float x) {
  const auto higher = [](float a, float b) { return __builtin_fmaxf(a, b); };
#if defined(__HIP__)
  return wave_reduced<kMask>(x, higher);
#endif
  x = higher(x, lane_xor<kMask>(x));
  if constexpr (kMask > 1) return wave_highest<kMask / 2>(x);
  return x;
}

/// A row of a head of a tile, with the parts [first, last) of the map; inside of the tensors whatever the maps hold.
struct Row {
  int head, row, query, first, last;
  bool has_parts;  // false: whoever computed the result has written it, or no such row exists

  __device__ Row(const MlaSumArgs& args, uint32_t program) {
    head = static_cast<int>(program % args.num_heads);
    row = static_cast<int>(program / args.num_heads % args.max_seqlen_q);
    const int tile = static_cast<int>(program / args.num_heads / args.max_seqlen_q);
    first = args.reduce_indptr[tile], last = args.reduce_indptr[tile + 1];
    int start = tile * args.max_seqlen_q, rows = args.max_seqlen_q;
    if (args.reduce_final_map != nullptr) {
      start = args.reduce_final_map[2 * tile];
      const int64_t given = static_cast<int64_t>(args.reduce_final_map[2 * tile + 1]) - start;
      rows = given < rows ? static_cast<int>(given) : rows;
    }
    first = first > 0 ? first : 0, last = last < args.num_slots ? last : args.num_slots;
    query = start + row;
    has_parts = last > first && start >= 0 && row < rows && query < args.total_q && query >= 0;
  }
};

/// Up to kWaveSize parts, one for each lane: where its row is, and the log-sum-exp in base 2, −inf where there is none.
struct Parts {
  int place;
  float sum;

  __device__ Parts(const MlaSumArgs& args, const Row& row, int begin) {
    const bool is_part = begin + lane_index() < row.last;
    const int start = args.reduce_partial_map[is_part ? begin + lane_index() : begin];
    const int64_t at = int64_t{start} + row.row;
    const bool is_inside = is_part && start >= 0 && at < args.num_rows;
    place = is_inside ? static_cast<int>(at) : 0;
    const float found = args.partial_lse[place * args.sum_row + row.head * args.sum_head];
    sum = is_inside ? found * kLog2E : -__builtin_inff();
  }
};

/// A work-item's columns of kAtOnce parts: all under way at once, before their weights are known.
struct Loaded {
  float values[kAtOnce][kPerItem];

  __device__ void load(const MlaSumArgs& args, const Row& row, const Parts& parts, int from, int count, int column) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t place = of_lane(parts.place, from + i < count ? from + i : count - 1);
      const float* part = args.partial_out + place * args.part_row + row.head * args.part_head;
#pragma unroll
      for (int j = 0; j < kPerItem; ++j) {
        const int at = column + j * kThreads;
        values[i][j] = part[at < args.v_dim ? at : 0];
      }
    }
  }
};

template <class Out>
__device__ inline void add_up(const MlaSumArgs& args, uint32_t program) {
  const Row row(args, program);
  if (!row.has_parts) return;
  float highest = 0.f, total = 0.f;
  for (int block = 0; block < args.v_dim; block += kThreads * kPerItem) {
    const int column = block + thread_index();
    float acc[kPerItem]{};
    highest = -__builtin_inff(), total = 0.f;
#pragma unroll 1
    for (int begin = row.first; begin < row.last; begin += kWaveSize) {
      const int count = row.last - begin < kWaveSize ? row.last - begin : kWaveSize;
      const Parts parts(args, row, begin);
      Loaded loaded;
      loaded.load(args, row, parts, 0, count, column);
      const float raised = __builtin_fmaxf(highest, wave_highest(parts.sum));
      const float origin = raised == -__builtin_inff() ? 0.f : raised;
      const float old = fast_exp2(highest - origin), weight = fast_exp2(parts.sum - origin);
      highest = raised, total = __builtin_fmaf(total, old, wave_sum(weight));
#pragma unroll
      for (int j = 0; j < kPerItem; ++j) acc[j] *= old;
#pragma unroll 1
      for (int from = 0; from < count; from += kAtOnce) {
        if (from > 0) loaded.load(args, row, parts, from, count, column);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const float by = from + i < count ? of_lane(weight, from + i) : 0.f;
          if (by == 0.f) continue;  // a part without keys weighs 0, and its memory may be of nobody
#pragma unroll
          for (int j = 0; j < kPerItem; ++j) acc[j] = __builtin_fmaf(by, loaded.values[i][j], acc[j]);
        }
      }
    }
    Out* out = static_cast<Out*>(args.out) + row.query * args.out_row + row.head * args.out_head;
    const float scale = total == 0.f ? 0.f : 1.f / total;
#pragma unroll
    for (int j = 0; j < kPerItem; ++j) {
      if (column + j * kThreads < args.v_dim) out[column + j * kThreads] = from_float<Out>(acc[j] * scale);
    }
  }
  if (args.lse != nullptr && thread_index() == 0)
    args.lse[row.query * args.lse_row + row.head * args.lse_head] =
        total == 0.f ? -__builtin_inff() : (highest + fast_log2(total)) * kLn2;
}

}  // namespace mla_sum

template <class Out>
__global__ __launch_bounds__(mla_sum::kThreads) void mla_reduce_kernel(MlaSumArgs args) {
  await_stream();
  mla_sum::add_up<Out>(args, workgroup_index().x);
}

template <class Out>
inline void launch_mla_reduce(const MlaSumArgs& args, Stream stream) {
  const dim3 grid(static_cast<uint32_t>(args.num_tiles) * args.max_seqlen_q * args.num_heads);
  launch_overlapped(mla_reduce_kernel<Out>, grid, mla_sum::kThreads, stream, args);
  check_launch("mla_reduce_kernel");
}

#if AITER_LIKE_HOST_PASS

namespace ffi {

/// Results [total_q, heads, v_dim], and the memory of parts.
template <class Out>
MlaSumArgs mla_sum(Match& match, const Tensor& out, const OptionalTensor& lse, const Tensor& partial_out,
                   const Tensor& partial_lse) {
  Size total_q{"total_q", int64_t{1} << 30}, heads{"num_heads"}, v_dim{"v_dim"}, rows{"rows of parts"};
  const auto results = match.take<Out>(out, {total_q, heads, v_dim}, "out", kStrided);
  const auto parts = match.take<const float>(partial_out, {rows, heads, v_dim}, "partial_out", kStrided);
  const auto sums = match.take<const float>(partial_lse, {rows, heads}, "partial_lse", kStrided);
  const auto logs = match.take<float>(lse, {total_q, heads}, "lse", kStrided);
  MlaSumArgs args{};
  args.out = results, args.out_row = results.stride(0), args.out_head = results.stride(1);
  args.partial_out = parts, args.part_row = parts.stride(0), args.part_head = parts.stride(1);
  args.partial_lse = sums, args.sum_row = sums.stride(0), args.sum_head = sums.stride(1);
  args.lse = logs, args.lse_row = logs.stride(0), args.lse_head = logs.stride(1);
  args.total_q = total_q, args.num_heads = heads, args.v_dim = v_dim, args.num_rows = rows;
  return args;
}

}  // namespace ffi

#endif

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Adds up partial results of attention: out = Σ w · part / Σ w, w = exp(lse − max lse), in the order of the map.
//
// A workgroup takes one row of one head:
//   1. the largest log-sum-exp of the row's parts
//   2. part by part its weight, and weight · part for up to 512 columns, four per work-item, 128 apart
//   3. divides, rounds once, stores
// A part without keys is not read: its memory may be of nobody. LDS: none. Bound: memory.
#pragma once

#include "aiter_like/dtype.h"
#include "aiter_like/ffi.h"
#include "aiter_like/gpu.h"
#include "aiter_like/math.h"

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

constexpr int kThreads = 128, kPerItem = 4;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

template <class Out>
__device__ inline void add_up(const MlaSumArgs& args, uint32_t program) {
  const int head = static_cast<int>(program % args.num_heads);
  const int row = static_cast<int>(program / args.num_heads % args.max_seqlen_q);
  const int tile = static_cast<int>(program / args.num_heads / args.max_seqlen_q);
  int first = args.reduce_indptr[tile], last = args.reduce_indptr[tile + 1];
  first = first > 0 ? first : 0, last = last < args.num_slots ? last : args.num_slots;
  if (last <= first) return;  // written by whoever computed it
  int query = tile * args.max_seqlen_q + row;
  if (args.reduce_final_map != nullptr) {
    const int start = args.reduce_final_map[2 * tile], end = args.reduce_final_map[2 * tile + 1];
    if (start < 0 || row >= static_cast<int64_t>(end) - start) return;
    query = start + row;
  }
  if (query >= args.total_q || query < 0) return;

  // The log-sum-exp of part i in base 2; −inf of a place outside the parts.
  const auto sum_of = [&](int i, int64_t& place) {
    const int64_t start = args.reduce_partial_map[i];
    place = start + row;
    if (start < 0 || place >= args.num_rows) return -__builtin_inff();
    return args.partial_lse[place * args.sum_row + head * args.sum_head] * kLog2E;
  };
  float highest = -__builtin_inff();
  int64_t place;
  for (int i = first; i < last; ++i) highest = __builtin_fmaxf(highest, sum_of(i, place));
  const float origin = highest == -__builtin_inff() ? 0.f : highest;
  float total = 0.f;
  for (int block = 0; block < args.v_dim; block += kThreads * kPerItem) {
    float acc[kPerItem]{};
    total = 0.f;
#pragma unroll 4
    for (int i = first; i < last; ++i) {
      const float sum = sum_of(i, place);
      if (sum == -__builtin_inff()) continue;
      const float weight = fast_exp2(sum - origin);
      total += weight;
      const float* part = args.partial_out + place * args.part_row + head * args.part_head;
#pragma unroll
      for (int j = 0; j < kPerItem; ++j) {
        const int column = block + j * kThreads + thread_index();
        if (column < args.v_dim) acc[j] += weight * part[column];
      }
    }
    Out* out = static_cast<Out*>(args.out) + query * args.out_row + head * args.out_head;
    const float scale = total == 0.f ? 0.f : 1.f / total;
#pragma unroll
    for (int j = 0; j < kPerItem; ++j) {
      const int column = block + j * kThreads + thread_index();
      if (column < args.v_dim) out[column] = from_float<Out>(acc[j] * scale);
    }
  }
  if (args.lse != nullptr && thread_index() == 0)
    args.lse[query * args.lse_row + head * args.lse_head] =
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
MlaSumArgs mla_sum(const Tensor& out, const Optional<Tensor>& lse, const Tensor& partial_out,
                   const Tensor& partial_lse) {
  MlaSumArgs args{};
  check_type(has_element<Out>(out) && is_f32(partial_out) && is_f32(partial_lse),
             "mla_reduce: out has another dtype than this module was built for, or the parts are not fp32");
  check_value(out.ndim() == 3 && partial_out.ndim() == 3 && partial_lse.ndim() == 2 &&
                  partial_out.size(1) == out.size(1) && partial_out.size(2) == out.size(2) &&
                  partial_lse.size(0) == partial_out.size(0) && partial_lse.size(1) == out.size(1) &&
                  out.size(0) < int64_t{1} << 30 && partial_out.size(0) < int64_t{1} << 31,
              "mla_reduce: out and parts must have the same heads and columns");
  args.out = out.data_ptr(), args.out_row = out.stride(0), args.out_head = out.stride(1);
  args.partial_out = static_cast<const float*>(partial_out.data_ptr());
  args.part_row = partial_out.stride(0), args.part_head = partial_out.stride(1);
  args.partial_lse = static_cast<const float*>(partial_lse.data_ptr());
  args.sum_row = partial_lse.stride(0), args.sum_head = partial_lse.stride(1);
  if (lse.has_value()) {
    const Tensor value = lse.value();
    check_type(is_f32(value), "mla_reduce: lse must be fp32");
    check_value(value.ndim() == 2 && value.size(0) == out.size(0) && value.size(1) == out.size(1),
                "mla_reduce: lse must be [total_q, heads]");
    args.lse = static_cast<float*>(value.data_ptr());
    args.lse_row = value.stride(0), args.lse_head = value.stride(1);
  }
  args.total_q = static_cast<int>(out.size(0)), args.num_heads = static_cast<int>(out.size(1));
  args.v_dim = static_cast<int>(out.size(2)), args.num_rows = static_cast<int>(partial_out.size(0));
  return args;
}

}  // namespace ffi
#endif

}  // namespace aiter_like

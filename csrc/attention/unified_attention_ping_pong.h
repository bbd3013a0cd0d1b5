// SPDX-License-Identifier: MIT
// Attention over pages in the pipeline of flash_attn_fwd.hip: bf16 or f16, head dimension 64 or 128, pages of a
// multiple of 16 keys, and nothing but masks. The 16 keys that a wave moves of a block have one page, whose number is
// in scalar registers; so K and V come as fast as without pages. One build per ELEMENT × HEAD_DIM × MASK; registers,
// LDS and bounds are those of flash_attn_fwd. P and out are rounded to nearest even.
#pragma once

#include "flash_attn_fwd_body.h"
#include "flash_attn_launch.h"
#include "unified_attention_call.h"

#if !defined(ELEMENT) || !defined(HEAD_DIM) || !defined(MASK)
#error "unified_attention.hip: -DELEMENT=bf16|f16 -DHEAD_DIM=64|128 -DMASK=0|1|2 (none, right, both)"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  static constexpr int kHeadDim = HEAD_DIM;
  static constexpr Rounding kRounding = Rounding::kNearestEven;
  static constexpr bool kLimitsRight = MASK != 0, kLimitsLeft = MASK == 2, kIsPaged = true;
};
using Shape = flash_attn::Shape<Config>;
using flash_attn::kThreads;

}  // namespace

__global__ __launch_bounds__(kThreads) void unified_attention_kernel(PagedFlashAttnArgs args) {
  __shared__ __attribute__((aligned(1024))) char tiles[flash_attn::Blocks<Shape>::kLdsBytes];
  flash_attn::forward_body<Config>(args, static_cast<int>(workgroup_index().x), tiles);
}

template <class Config>
__global__ __launch_bounds__(kThreads) void unified_attention_merge_kernel(PagedFlashAttnArgs args) {
  flash_attn::merge_body<Config>(args, static_cast<int>(workgroup_index().x));
}

void launch_unified_attention(const PagedFlashAttnArgs& args, int query_blocks, Stream stream) {
  unified_attention_kernel<<<flash_attn::grid_of(args, query_blocks), kThreads, 0, stream>>>(args);
  check_launch("unified_attention_kernel");
  if constexpr (Shape::kSplits) {
    if (args.split.parts == 1) return;
    const uint32_t grid = flash_attn::merge_grid_of<Shape>(args, query_blocks);
    unified_attention_merge_kernel<Config><<<grid, kThreads, 0, stream>>>(args);
    check_launch("unified_attention_merge_kernel");
  }
}

#if AITER_LIKE_HOST_PASS

void unified_attention(ffi::Tensor out, ffi::OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                       ffi::Tensor cu_seqlens_q, ffi::OptionalTensor seqlens_k, ffi::Tensor block_table,
                       ffi::OptionalTensor page_starts, ffi::OptionalTensor, ffi::OptionalTensor, ffi::OptionalTensor,
                       ffi::OptionalTensor alibi_slopes, ffi::OptionalTensor output_scale, ffi::OptionalTensor qq_bias,
                       ffi::OptionalTensor sink, int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale,
                       int64_t window_left, int64_t window_right, int64_t sink_size, double softcap) {
  unified::Call call(out, q, k, v, cu_seqlens_q, seqlens_k, block_table, page_starts, max_seqlen_q, HEAD_DIM,
                     softmax_scale);
  ffi::Match& match = call.match;
  match.built(!alibi_slopes.has_value() && !output_scale.has_value() && !qq_bias.has_value() && !sink.has_value() &&
              softcap == 0 && (sink_size == 0 || window_left < 0) && call.page_size % 16 == 0 &&
              (Shape::kLimitsLeft || window_left < 0) && (Shape::kLimitsRight || window_right < 0), "features");
  PagedFlashAttnArgs args{};
  const auto take_rows = [&](const ffi::Tensor& tensor, const char* name) {
    const ffi::Shape shape{call.rows, call.heads, HEAD_DIM};
    const auto rows = ffi::bytes_of_heads<FlashAttnTensor, Config::Element>(match, tensor, shape, name);
    match.require(rows.row >= Shape::kRowBytes && rows.row < 2 << 23, name,
                  "must have rows that do not overlap and are less than 2^23 elements apart");
    return rows;
  };
  const auto take_pages = [&](const ffi::Tensor& tensor, const char* name) {
    call.take_pages<Config::Element>(tensor, HEAD_DIM, name);
    const ffi::Shape shape{call.pages, call.page_size, call.kv_heads, HEAD_DIM};
    const auto pages = ffi::bytes_of_heads<FlashAttnTensor, Config::Element>(match, tensor, shape, name);
    match.require(flash_attn::is_key_row_stride(pages.row, Shape::kRowBytes), name,
                  "must have rows that are at least head_dim and less than 2^24 elements apart");
    return pages;
  };
  args.q = take_rows(q, "q"), args.out = take_rows(out, "out");
  args.k = take_pages(k, "k"), args.v = take_pages(v, "v");
  const auto sums = call.lse_of(lse);
  args.lse = sums, args.lse_head = sums.stride(0);
  if (call.is_empty()) return;
  call.set_pages(args, cu_seqlens_q, seqlens_k, page_starts);
  args.cu_seqlens_q = args.lengths.cu_seqlens_q;
  args.batch = call.batch, args.seqlen_q = call.rows;
  args.seqlen_k = static_cast<int>(max_seqlen_k < call.most_keys() ? max_seqlen_k : call.most_keys());
  flash_attn::set_window(args, window_left, window_right, call.rows, call.most_keys());
  args.scale_log2 = static_cast<float>(softmax_scale * 1.4426950408889634);

  const int64_t group = call.heads / call.kv_heads, mean = (call.rows + call.batch - 1) / call.batch;
  const int pack = packed_heads(group, mean, call.rows, Shape::kBlockM);
  const int64_t slots = flash_attn::slots_of(call.rows * pack, call.batch, Shape::kBlockM);
  const int64_t query_blocks = slots * (call.heads / pack);
  match.require(query_blocks * kMostPartsPerCu < flash_attn::kMostGrid, "more query blocks than a launch holds");
  args.slots = static_cast<int>(slots);
  args.pack = Divider(pack), args.group = Divider(group / pack), args.kv_heads = Divider(call.kv_heads);
  // One sequence is as long as the host may know; of several it does not know which is.
  const int blocks = static_cast<int>(query_blocks), num_cus = num_compute_units(q.device().device_id);
  if (call.batch == 1 || !Shape::kSplits) {
    flash_attn::plan_launch<Shape>(args, blocks, call.batch == 1 ? 0 : 1, num_cus);
  } else {
    const int64_t part_bytes = call.rows * call.heads * (HEAD_DIM + 2) * int64_t{sizeof(float)};
    const int key_blocks = (args.seqlen_k + kBlockN - 1) / kBlockN;
    flash_attn::order_launch<Shape>(args, blocks, KeySplit::plan_all(blocks, key_blocks, part_bytes, num_cus), num_cus);
  }
  const ffi::Scratch partials(flash_attn::partial_bytes<Shape>(args, query_blocks), q.device());
  args.partials = partials.data<float>();
  launch_unified_attention(args, blocks, ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Attention over pages in the pipeline of flash_attn_fwd.hip: bf16 or f16, head dimension 64 or 128, pages of a
// multiple of 16 keys, and nothing but masks. The 16 keys that a wave moves of a block have one page, whose number is
// in scalar registers; so K and V come as fast as without pages. One build per ELEMENT × HEAD_DIM × MASK; registers,
// LDS and bounds are those of flash_attn_fwd. P and out are rounded to nearest even.
#pragma once

#include <optional>

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

static_assert(Shape::kSplits == (MASK != 2));
#if MASK != 2
__global__ __launch_bounds__(kThreads) void unified_attention_merge_kernel(PagedFlashAttnArgs args) {
  flash_attn::merge_body<Config>(args, static_cast<int>(workgroup_index().x));
}
#endif

void launch_unified_attention(const PagedFlashAttnArgs& args, int query_blocks, Stream stream) {
  unified_attention_kernel<<<flash_attn::grid_of(args, query_blocks), kThreads, 0, stream>>>(args);
  check_launch("unified_attention_kernel");
#if MASK != 2
  if (args.split.parts == 1) return;
  unified_attention_merge_kernel<<<flash_attn::merge_grid_of<Shape>(args, query_blocks), kThreads, 0, stream>>>(args);
  check_launch("unified_attention_merge_kernel");
#endif
}

#if AITER_LIKE_HOST_PASS

namespace {

using ffi::check_value;
using unified::OptionalTensor;

/// Strides come in elements. What a lane reads at once begins at a multiple of 16 bytes.
FlashAttnTensor aligned(const ffi::Tensor& tensor, int64_t page, int64_t row, int64_t head) {
  check_value((page | row | head) % 8 == 0, "unified_attention: strides must be multiples of 8 elements");
  if (reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 != 0)
    TVM_FFI_THROW(AddressError) << "unified_attention: q, k, v and out must begin at a multiple of 16 bytes";
  return {tensor.data_ptr(), 2 * page, 2 * row, 2 * head};
}

FlashAttnTensor rows_of(const ffi::Tensor& tensor) {
  const auto strides = unified::strides_of_rows<Config::Element, HEAD_DIM>(tensor);
  return aligned(tensor, 0, strides.row, strides.head);
}

FlashAttnTensor pages_of(const ffi::Tensor& tensor) {
  const auto strides = unified::strides_of_pages<Config::Element, HEAD_DIM>(tensor);
  const FlashAttnTensor pages = aligned(tensor, strides.page, strides.place, strides.head);
  check_value(flash_attn::is_key_row_stride(pages.row, Shape::kRowBytes),
              "unified_attention: rows of k and v must be at least head_dim and less than 2^24 elements apart");
  return pages;
}

}  // namespace

void unified_attention(ffi::Tensor out, OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                       ffi::Tensor cu_seqlens_q, OptionalTensor seqlens_k, ffi::Tensor block_table,
                       OptionalTensor page_starts, OptionalTensor, OptionalTensor, OptionalTensor,
                       OptionalTensor alibi_slopes, OptionalTensor output_scale, OptionalTensor qq_bias,
                       OptionalTensor sink, int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale,
                       int64_t window_left, int64_t window_right, int64_t sink_size, double softcap) {
  const unified::Sizes sizes =
      unified::sizes_of(out, q, k, v, cu_seqlens_q, seqlens_k, block_table, page_starts, max_seqlen_q);
  check_value(!alibi_slopes.has_value() && !output_scale.has_value() && !qq_bias.has_value() && !sink.has_value() &&
                  softcap == 0 && (sink_size == 0 || window_left < 0) && softmax_scale >= 1e-8 &&
                  softmax_scale < 1e30 && sizes.page_size % 16 == 0 && (Shape::kLimitsLeft || window_left < 0) &&
                  (Shape::kLimitsRight || window_right < 0),
              "unified_attention: this module was built for other features");
  PagedFlashAttnArgs args{};
  args.q = rows_of(q);
  args.out = rows_of(out);
  args.k = pages_of(k);
  args.v = pages_of(v);
  if (lse.has_value()) args.lse = unified::lse_of(lse.value(), sizes), args.lse_head = lse.value().stride(0);
  if (sizes.is_empty()) return;
  unified::set_pages(args, sizes, cu_seqlens_q, seqlens_k, block_table, page_starts);
  args.cu_seqlens_q = args.lengths.cu_seqlens_q;
  args.batch = static_cast<int>(sizes.batch);
  args.seqlen_q = static_cast<int>(sizes.rows);
  args.seqlen_k = static_cast<int>(max_seqlen_k < sizes.most_keys() ? max_seqlen_k : sizes.most_keys());
  flash_attn::set_window(args, window_left, window_right, sizes.rows, sizes.most_keys());
  args.scale_log2 = static_cast<float>(softmax_scale * 1.4426950408889634);

  const int64_t mean = (sizes.rows + sizes.batch - 1) / sizes.batch;
  const int pack = packed_heads(sizes.heads / sizes.kv_heads, mean, sizes.rows, Shape::kBlockM);
  const int64_t slots = flash_attn::slots_of(sizes.rows * pack, sizes.batch, Shape::kBlockM);
  const int64_t query_blocks = slots * (sizes.heads / pack);
  check_value(query_blocks * kMostPartsPerCu < flash_attn::kMostGrid,
              "unified_attention: more query blocks than a launch holds");
  args.slots = static_cast<int>(slots);
  args.pack = Divider(static_cast<uint32_t>(pack));
  args.group = Divider(static_cast<uint32_t>(sizes.heads / sizes.kv_heads / pack));
  args.kv_heads = Divider(static_cast<uint32_t>(sizes.kv_heads));
  // One sequence is as long as the host may know; of several it does not know which is.
  const int blocks = static_cast<int>(query_blocks), num_cus = num_compute_units(q.device().device_id);
  if (sizes.batch == 1 || !Shape::kSplits) {
    flash_attn::plan_launch<Shape>(args, blocks, sizes.batch == 1 ? 0 : 1, num_cus);
  } else {
    const int64_t part_bytes = sizes.rows * sizes.heads * (HEAD_DIM + 2) * int64_t{sizeof(float)};
    const int key_blocks = (args.seqlen_k + kBlockN - 1) / kBlockN;
    flash_attn::order_launch<Shape>(args, blocks, KeySplit::plan_all(blocks, key_blocks, part_bytes, num_cus), num_cus);
  }
  const int64_t bytes = flash_attn::partial_bytes<Shape>(args, query_blocks);
  std::optional<ffi::Scratch> scratch;
  if (bytes != 0) args.partials = static_cast<float*>(scratch.emplace(bytes, q.device()).data());
  launch_unified_attention(args, blocks, ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

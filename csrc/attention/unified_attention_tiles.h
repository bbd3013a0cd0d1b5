// SPDX-License-Identifier: MIT
// Attention over pages, composed from the tile library as flash_attn_fwd_tile.hip is; unified_attention_body.h has its
// steps. One build per element, head dimension, and what happens to a score.
//
// Tiles: 128 rows of one head, 64 keys. LDS: 64 rows of K and of V. Bound: MFMA, 4 · HEAD_DIM flop per score; K and V
// are gathered from their pages once per 128 rows.
#pragma once

#include "unified_attention_body.h"
#include "unified_attention_call.h"

#if !defined(ELEMENT) || !defined(HEAD_DIM) || !defined(NUM_WAVES) || !defined(IS_MASKED) || !defined(HAS_ALIBI) || \
    !defined(HAS_SOFTCAP)
#error "unified_attention.hip: the macros that ops/attention/unified_attention_ck.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using OutElement = ELEMENT;
  using BiasElement = void;
  static constexpr int kHeadDim = HEAD_DIM, kHeadDimV = HEAD_DIM, kWaves = NUM_WAVES;
  static constexpr bool kIsMasked = IS_MASKED, kHasAlibi = HAS_ALIBI, kHasSoftcap = HAS_SOFTCAP;
  static constexpr Rounding kRounding = Rounding::kNearestEven;
};
using Shape = flash_attn_tile::Shape<Config>;
using Args = UnifiedAttentionArgs<Config::Element, Config::OutElement>;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) __attribute__((amdgpu_waves_per_eu(Shape::kWavesPerSimd)))
void unified_attention_kernel(Args args) {
  __shared__ flash_attn_tile::QrKsVsPaged<Shape> pipeline;
  flash_attn_tile::unified_body<Config>(args, workgroup_index(), pipeline);
}

void launch_unified_attention(const Args& args, int batch, Stream stream) {
  const dim3 grid(static_cast<uint32_t>(args.num_blocks_m), static_cast<uint32_t>(args.q.sizes[2]),
                  static_cast<uint32_t>(batch));
  unified_attention_kernel<<<grid, Shape::kThreads, 0, stream>>>(args);
  check_launch("unified_attention_kernel");
}

#if AITER_LIKE_HOST_PASS

namespace {

using ffi::check_value;
using unified::OptionalTensor;

/// The view of rows [rows, heads, dim], as one batch.
template <class T>
tile::GlobalView<T, 4> view_of(const ffi::Tensor& tensor) {
  const auto strides = unified::strides_of_rows<Config::Element, HEAD_DIM>(tensor);
  return {static_cast<T*>(tensor.data_ptr()), {1, tensor.size(0), tensor.size(1), HEAD_DIM},
          {0, strides.row, strides.head, 1}};
}

int window_of(int64_t size) { return static_cast<int>(size < 0 ? -1 : size < (1 << 30) ? size : 1 << 30); }

}  // namespace

void unified_attention(ffi::Tensor out, OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                       ffi::Tensor cu_seqlens_q, OptionalTensor seqlens_k, ffi::Tensor block_table,
                       OptionalTensor page_starts, OptionalTensor, OptionalTensor, OptionalTensor,
                       OptionalTensor alibi_slopes, OptionalTensor output_scale, OptionalTensor qq_bias,
                       OptionalTensor sink, int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale,
                       int64_t window_left, int64_t window_right, int64_t sink_size, double softcap) {
  const unified::Sizes sizes =
      unified::sizes_of(out, q, k, v, cu_seqlens_q, seqlens_k, block_table, page_starts, max_seqlen_q);
  const int64_t heads = sizes.heads, batch = sizes.batch;
  Args args{};
  args.q = view_of<const Config::Element>(q);
  args.out = view_of<Config::OutElement>(out);
  const auto k_strides = unified::strides_of_pages<Config::Element, HEAD_DIM>(k);
  const auto v_strides = unified::strides_of_pages<Config::Element, HEAD_DIM>(v);
  args.k_pages = static_cast<const Config::Element*>(k.data_ptr());
  args.v_pages = static_cast<const Config::Element*>(v.data_ptr());
  args.k_page = k_strides.page, args.k_place = k_strides.place, args.k_head = k_strides.head;
  args.v_page = v_strides.page, args.v_place = v_strides.place, args.v_head = v_strides.head;
  check_value(!output_scale.has_value() && !qq_bias.has_value() && softmax_scale >= 1e-8 && softmax_scale < 1e30 &&
                  (softcap > 0) == Config::kHasSoftcap && alibi_slopes.has_value() == Config::kHasAlibi &&
                  (Config::kIsMasked || (window_left < 0 && window_right < 0)),
              "unified_attention: this module was built for other features");
  args.num_blocks_m = static_cast<int>((sizes.longest + flash_attn_tile::kBlockM - 1) / flash_attn_tile::kBlockM);
  if (sizes.is_empty()) return;

  unified::set_pages(args, sizes, cu_seqlens_q, seqlens_k, block_table, page_starts);
  if (lse.has_value()) args.lse = unified::lse_of(lse.value(), sizes), args.lse_head_stride = lse.value().stride(0);
  if (sink.has_value()) {
    const ffi::Tensor t = sink.value();
    ffi::check_type(ffi::is_f32(t), "unified_attention: sink must be float32");
    check_value(t.ndim() == 1 && t.size(0) == heads && t.IsContiguous(), "unified_attention: sink must be [num_heads]");
    args.sink = static_cast<const float*>(t.data_ptr());
  }
  if (alibi_slopes.has_value()) {
    const ffi::Tensor t = alibi_slopes.value();
    const int last = t.ndim() - 1;
    ffi::check_type(ffi::is_f32(t), "unified_attention: alibi_slopes must be float32");
    check_value((last == 0 || (last == 1 && t.size(0) == batch)) && t.size(last) == heads &&
                    (heads == 1 || t.stride(last) == 1),
                "unified_attention: alibi_slopes must be [num_heads] or [batch, num_heads]");
    args.alibi_slopes = static_cast<const float*>(t.data_ptr());
    args.alibi_batch_stride = last == 1 ? t.stride(0) : 0;
  }
  args.group_size = static_cast<int>(heads / sizes.kv_heads);
  args.window_left = window_of(window_left);
  args.window_right = window_of(window_right);
  args.sink_size = static_cast<int>(sink_size < unified::kMost ? sink_size : unified::kMost);
  args.softmax_scale = static_cast<float>(softmax_scale);
  args.softcap = static_cast<float>(softcap);
  launch_unified_attention(args, static_cast<int>(batch), ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

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

void unified_attention(ffi::Tensor out, ffi::OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                       ffi::Tensor cu_seqlens_q, ffi::OptionalTensor seqlens_k, ffi::Tensor block_table,
                       ffi::OptionalTensor page_starts, ffi::OptionalTensor, ffi::OptionalTensor, ffi::OptionalTensor,
                       ffi::OptionalTensor alibi_slopes, ffi::OptionalTensor output_scale, ffi::OptionalTensor qq_bias,
                       ffi::OptionalTensor sink, int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale,
                       int64_t window_left, int64_t window_right, int64_t sink_size, double softcap) {
  unified::Call call(out, q, k, v, cu_seqlens_q, seqlens_k, block_table, page_starts, max_seqlen_q, HEAD_DIM,
                     softmax_scale);
  ffi::Match& match = call.match;
  match.built(!output_scale.has_value() && !qq_bias.has_value() && (softcap > 0) == Config::kHasSoftcap &&
              alibi_slopes.has_value() == Config::kHasAlibi &&
              (Config::kIsMasked || (window_left < 0 && window_right < 0)), "features");
  Args args{};
  const ffi::Shape shape{call.rows, call.heads, HEAD_DIM};
  args.q = ffi::view_of_heads<tile::GlobalView<const Config::Element, 4>>(match, q, shape, "q");
  args.out = ffi::view_of_heads<tile::GlobalView<Config::OutElement, 4>>(match, out, shape, "out");
  const auto keys = call.take_pages<const Config::Element>(k, HEAD_DIM, "k");
  const auto values = call.take_pages<const Config::Element>(v, HEAD_DIM, "v");
  args.k_pages = keys, args.k_page = keys.step(0), args.k_place = keys.step(1), args.k_head = keys.step(2);
  args.v_pages = values, args.v_page = values.step(0), args.v_place = values.step(1), args.v_head = values.step(2);
  args.num_blocks_m = static_cast<int>((call.longest + flash_attn_tile::kBlockM - 1) / flash_attn_tile::kBlockM);
  if (call.is_empty()) return;
  call.set_pages(args, cu_seqlens_q, seqlens_k, page_starts);
  const auto sums = call.lse_of(lse);
  args.lse = sums, args.lse_head_stride = sums.stride(0);
  args.sink = match.take<const float>(sink, {call.heads}, "sink");
  const ffi::Slopes slopes = ffi::slopes_of(match, alibi_slopes, call.batch, call.heads);
  args.alibi_slopes = slopes.data, args.alibi_batch_stride = slopes.batch;
  args.group_size = static_cast<int>(call.heads / call.kv_heads);
  args.window_left = ffi::window_of(window_left), args.window_right = ffi::window_of(window_right);
  args.sink_size = static_cast<int>(sink_size < unified::kMost ? sink_size : unified::kMost);
  args.softmax_scale = softmax_scale, args.softcap = softcap;
  launch_unified_attention(args, call.batch, ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Attention forward for gfx942: out = softmax(softmax_scale · q kᵀ + mask) v, online softmax, bf16 or f16, head
// dimension 64 or 128; dense or varlen, causal or window (bottom-right), grouped KV heads, log-sum-exp. There
// is one build per ELEMENT × HEAD_DIM × ROUNDING × MASK; flash_attn_fwd_body.h has its phases.
//
// A workgroup is alone on its CU and takes kBlockM query rows (384 | 512 at HEAD_DIM 128 | 64) of one head, or of all
// heads of a KV head where those rows fit. It has 8 waves of 3 tiles of 16 rows | 2 tiles of 32.
//
// LDS: 64 KB | 49 KB. Registers: O 96, Q 48, S 48 (then P 24), K or V on its way 16 at HEAD_DIM 128.
// Bound at HEAD_DIM 128: MFMA, 192 instructions of 16 clk per wave and block, which the two waves of a SIMD take in
// turns; each of a block's 48 exponentials, of 16 clk, makes one of them 4 clk late. Bound at 64: the port that vector
// instructions share with MFMA. 64 MFMA of 32 clk fill 512 slots of 4 clk; all that goes through the port takes about
// 655 slots rounding to nearest even, 595 to nearest away and 530 towards zero. A K and V block is read once per
// kBlockM rows.
// Rounding of P and out: ROUNDING 0 to nearest even, 1 to nearest away, 2 towards zero; f16 has 0 and 2.
#include <type_traits>

#include "aiter_like/dtype.h"
#include "aiter_like/gpu.h"
#include "attention_host.h"
#include "flash_attn_fwd_body.h"
#include "flash_attn_launch.h"

#if !defined(ELEMENT) || !defined(HEAD_DIM) || !defined(ROUNDING) || !defined(MASK)
#error "flash_attn_fwd.hip: -DELEMENT=bf16|f16 -DHEAD_DIM=64|128 -DROUNDING=0|1|2 -DMASK=0|1|2 (none, right, both)"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  static constexpr int kHeadDim = HEAD_DIM;
  static constexpr Rounding kRounding = static_cast<Rounding>(ROUNDING);
  static constexpr bool kLimitsRight = MASK != 0, kLimitsLeft = MASK == 2, kIsPaged = false;
};
using Shape = flash_attn::Shape<Config>;
using flash_attn::kThreads;

}  // namespace

__global__ __launch_bounds__(kThreads) void flash_attn_fwd_kernel(FlashAttnArgs args) {
  __shared__ __attribute__((aligned(1024))) char tiles[flash_attn::Blocks<Shape>::kLdsBytes];
  flash_attn::forward_body<Config>(args, static_cast<int>(workgroup_index().x), tiles);
}

template <class Config>
__global__ __launch_bounds__(kThreads) void flash_attn_merge_kernel(FlashAttnArgs args) {
  flash_attn::merge_body<Config>(args, static_cast<int>(workgroup_index().x));
}

void launch_flash_attn_fwd(const FlashAttnArgs& args, int query_blocks, Stream stream) {
  flash_attn_fwd_kernel<<<flash_attn::grid_of(args, query_blocks), kThreads, 0, stream>>>(args);
  check_launch("flash_attn_fwd_kernel");
  if constexpr (Shape::kSplits) {
    if (args.split.parts == 1) return;
    const uint32_t grid = flash_attn::merge_grid_of<Shape>(args, query_blocks);
    flash_attn_merge_kernel<Config><<<grid, kThreads, 0, stream>>>(args);
    check_launch("flash_attn_merge_kernel");
  }
}

#if AITER_LIKE_HOST_PASS

void flash_attn_fwd(ffi::Tensor out, ffi::OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                    ffi::OptionalTensor cu_seqlens_q, ffi::OptionalTensor cu_seqlens_k, ffi::OptionalTensor seqlens_k,
                    ffi::OptionalTensor bias, ffi::OptionalTensor alibi_slopes, ffi::OptionalTensor sink,
                    ffi::OptionalTensor q_descale, ffi::OptionalTensor k_descale, ffi::OptionalTensor v_descale,
                    ffi::OptionalTensor rng_state, ffi::OptionalTensor workspace, int64_t max_seqlen_q,
                    int64_t max_seqlen_k, double softmax_scale, int64_t window_left, int64_t window_right,
                    int64_t sink_size, double softcap, double dropout_p, int64_t num_splits,
                    int64_t how_v3_bf16_cvt) {
  constexpr bool kIsF16 = std::is_same_v<Shape::Element, f16>;  // f16 has no ties away: RTNA is RTNE
  constexpr int64_t kMost = flash_attn::kMostRows;
  const bool is_varlen = cu_seqlens_q.has_value();
  ffi::Match match("flash_attn_fwd");
  match.require(!bias.has_value() && !alibi_slopes.has_value() && !sink.has_value() && !q_descale.has_value() &&
                    !k_descale.has_value() && !v_descale.has_value() && softcap == 0 && dropout_p == 0 &&
                    (sink_size == 0 || window_left < 0),
                "no bias, ALiBi, sink, descales, softcap or dropout here");
  match.built((Shape::kLimitsLeft || window_left < 0) && (Shape::kLimitsRight || window_right < 0), "masks");
  match.built((kIsF16 && how_v3_bf16_cvt == 1 ? 0 : how_v3_bf16_cvt) == ROUNDING, "roundings");
  match.require(is_varlen == cu_seqlens_k.has_value(), "cu_seqlens_q and cu_seqlens_k come together");
  ffi::check_scale(match, softmax_scale);

  ffi::Size batch{"batch", kMost}, seqlen_q{"seqlen_q", kMost}, seqlen_k{"seqlen_k", kMost};
  ffi::Size heads{"num_heads"}, kv_heads{"num_kv_heads"};
  const auto take = [&](const ffi::Tensor& tensor, ffi::Size& rows, ffi::Size& heads, const char* name) {
    const ffi::Shape shape = is_varlen ? ffi::Shape{rows, heads, Shape::kHeadDim}
                                       : ffi::Shape{batch, rows, heads, Shape::kHeadDim};
    return ffi::bytes_of_heads<FlashAttnTensor, Shape::Element>(match, tensor, shape, name);
  };
  FlashAttnArgs args{};
  args.q = take(q, seqlen_q, heads, "q");
  args.out = take(out, seqlen_q, heads, "out");
  args.k = take(k, seqlen_k, kv_heads, "k");
  args.v = take(v, seqlen_k, kv_heads, "v");
  if (is_varlen) batch.value = (*cu_seqlens_q).numel() - 1;
  match.require(kv_heads > 0 && heads % kv_heads == 0 && batch >= 0 && batch < kMost,
                "num_heads must be a multiple of num_kv_heads, of at most 2^30 - 1 sequences");
  match.require(flash_attn::is_key_row_stride(args.k.row, Shape::kRowBytes) &&
                    flash_attn::is_key_row_stride(args.v.row, Shape::kRowBytes),
                "the row strides of k and v must be at least head_dim and below 2^24 elements");
  if (batch * seqlen_q * heads == 0) return;
  ffi::take_lengths(match, args, batch, cu_seqlens_q, cu_seqlens_k, seqlens_k);
  args.lse = match.elements<float>(lse, (is_varlen ? 1 : batch) * heads * seqlen_q, "lse");
  args.lse_head = seqlen_q, args.lse_batch = heads * seqlen_q;
  args.batch = batch, args.seqlen_q = seqlen_q, args.seqlen_k = seqlen_k;
  flash_attn::set_window(args, window_left, window_right, seqlen_q, seqlen_k);
  args.scale_log2 = static_cast<float>(softmax_scale * 1.4426950408889634);

  const int pack = packed_heads(heads / kv_heads, is_varlen ? max_seqlen_q : seqlen_q, seqlen_q, Shape::kBlockM);
  const int64_t slots = flash_attn::slots_of(seqlen_q * pack, is_varlen ? batch : 1, Shape::kBlockM);
  const int64_t query_blocks = slots * (heads / pack) * (is_varlen ? 1 : batch);
  match.require(query_blocks * kMostPartsPerCu < flash_attn::kMostGrid, "more query blocks than a launch holds");
  args.slots = static_cast<int>(slots);
  args.pack = Divider(pack), args.group = Divider(heads / kv_heads / pack), args.kv_heads = Divider(kv_heads);
  const bool has_one_length = !is_varlen || batch == 1;
  flash_attn::plan_launch<Shape>(args, static_cast<int>(query_blocks),
                                 has_one_length ? static_cast<int>(num_splits) : 1,
                                 num_compute_units(q.device().device_id));
  const int64_t bytes = flash_attn::partial_bytes<Shape>(args, query_blocks);
  const ffi::Scratch partials(bytes, q.device(), match.memory(workspace, bytes, 16));
  args.partials = partials.data<float>();
  launch_flash_attn_fwd(args, static_cast<int>(query_blocks), ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(flash_attn_fwd, aiter_like::flash_attn_fwd);
#endif

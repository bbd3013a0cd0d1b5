// SPDX-License-Identifier: MIT
// Attention forward for gfx942, composed from the tile library: what the hand-scheduled kernel does not cover, and a
// second implementation of what it does. There is one build per element, head dimensions, rounding, and what happens to
// a score; flash_attn_fwd_tile_body.h has its steps.
//
//   out = Σ p v / Σ p,  p = 2^(score − max),  score = log2 e · (softcap(softmax_scale · q kᵀ) + bias − alibi), masked
//
// Tiles: 128 rows, 64 keys. LDS: 64 rows of K and of V, each padded to 64 bytes or whole 128; twice that in QrAsync.
// Every instance has two waves on each SIMD, one computing while the other waits: 4 waves of 32 rows, of which LDS and
// registers hold two workgroups, or 8 waves of 16 rows.
// Bound: MFMA. (HEAD_DIM + HEAD_DIM_V) · 2 flop per score; K and V are read once per 128 rows, from L2.
#include <type_traits>

#include "attention_host.h"
#include "flash_attn_fwd_tile_body.h"

#if !defined(ELEMENT) || !defined(OUT_ELEMENT) || !defined(HEAD_DIM) || !defined(HEAD_DIM_V) || !defined(NUM_WAVES) || \
    !defined(PIPELINE) || !defined(IS_MASKED) || !defined(BIAS) || !defined(HAS_ALIBI) || !defined(HAS_SOFTCAP) || \
    !defined(ROUNDING)
#error "flash_attn_fwd_tile.hip: the macros that ops/attention/flash_attn_fwd_ck.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using OutElement = OUT_ELEMENT;
  using BiasElement = BIAS;
  static constexpr int kHeadDim = HEAD_DIM, kHeadDimV = HEAD_DIM_V, kWaves = NUM_WAVES;
  static constexpr bool kIsMasked = IS_MASKED, kHasAlibi = HAS_ALIBI, kHasSoftcap = HAS_SOFTCAP;
  static constexpr Rounding kRounding = static_cast<Rounding>(ROUNDING);
  template <class Shape>
  using Pipeline = flash_attn_tile::PIPELINE<Shape>;
};
using Shape = flash_attn_tile::Shape<Config>;
using Args = Shape::Args;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) __attribute__((amdgpu_waves_per_eu(Shape::kWavesPerSimd)))
void flash_attn_fwd_tile_kernel(Args args) {
  __shared__ Config::Pipeline<Shape> pipeline;
  flash_attn_tile::forward_body<Config>(args, workgroup_index(), pipeline);
}

void launch_flash_attn_fwd_tile(const Args& args, int batch, Stream stream) {
  const dim3 grid(static_cast<uint32_t>(args.num_blocks_m), static_cast<uint32_t>(args.q.sizes[2]),
                  static_cast<uint32_t>(batch));
  flash_attn_fwd_tile_kernel<<<grid, Shape::kThreads, 0, stream>>>(args);
  check_launch("flash_attn_fwd_tile_kernel");
}

#if AITER_LIKE_HOST_PASS

/// A bias [1 | rows, columns], or [1 | batch, 1 | num_heads, 1 | rows, columns]. One row serves all rows of q.
void set_bias(ffi::Match& match, Args& args, const ffi::OptionalTensor& bias, int64_t batch, bool is_packed) {
  if (!bias.has_value()) return;
  const int last = (*bias).ndim() - 1;
  match.require(last == 1 || (last == 3 && !is_packed), "bias must have 2 or, unless packed, 4 dimensions");
  const auto one_or = [&](int d, int64_t size) { return (*bias).size(d) == 1 ? 1 : size; };
  constexpr int64_t kMostColumns = 1 << 24;
  ffi::Size columns{"columns", kMostColumns + 1};
  const int64_t rows = one_or(last - 1, args.q.sizes[1]);
  const ffi::Shape shape = last == 1 ? ffi::Shape{rows, columns}
                                     : ffi::Shape{one_or(0, batch), one_or(1, args.q.sizes[2]), rows, columns};
  const auto taken = match.take<const Shape::BiasElement>(bias, shape, "bias");
  args.bias = taken, args.bias_columns = columns, args.bias_row_stride = taken.step(last - 1);
  if (last == 3) args.bias_batch_stride = taken.step(0), args.bias_head_stride = taken.step(1);
  match.require(args.bias_row_stride <= kMostColumns && (columns > 0 || args.k.sizes[1] == 0),
                "bias must have columns, and rows at most 2^24 elements apart");
}

void flash_attn_fwd_tile(ffi::Tensor out, ffi::OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                         ffi::OptionalTensor cu_seqlens_q, ffi::OptionalTensor cu_seqlens_k,
                         ffi::OptionalTensor seqlens_k, ffi::OptionalTensor bias, ffi::OptionalTensor alibi_slopes,
                         ffi::OptionalTensor sink, ffi::OptionalTensor q_descale, ffi::OptionalTensor k_descale,
                         ffi::OptionalTensor v_descale, ffi::OptionalTensor rng_state, ffi::OptionalTensor workspace,
                         int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale, int64_t window_left,
                         int64_t window_right, int64_t sink_size, double softcap, double dropout_p, int64_t num_splits,
                         int64_t how_v3_bf16_cvt) {
  constexpr int64_t kMostRows = int64_t{1} << 30, kGridLimit = 65536, kChunk = 16 / sizeof(Shape::Element);
  const bool is_packed = cu_seqlens_q.has_value();
  ffi::Match match("flash_attn_fwd");
  match.built(dropout_p == 0 && (softcap > 0) == Shape::kHasSoftcap && alibi_slopes.has_value() == Shape::kHasAlibi &&
              bias.has_value() == !std::is_same_v<Shape::BiasElement, void> &&
              (Shape::kIsMasked || (window_left < 0 && window_right < 0)) &&
              (how_v3_bf16_cvt == ROUNDING || !std::is_same_v<Shape::OutElement, bf16>), "features");
  match.require(is_packed == cu_seqlens_k.has_value() && !(is_packed && seqlens_k.has_value()),
                "cu_seqlens_q and cu_seqlens_k come together, and without seqlens_k");
  ffi::check_scale(match, softmax_scale);

  ffi::Size batch{"batch", kGridLimit}, rows{"rows of q", kMostRows}, keys{"rows of k", kMostRows};
  ffi::Size heads{"num_heads", kGridLimit}, kv_heads{"num_kv_heads"}, head_dim{"head_dim"}, head_dim_v{"head_dim_v"};
  const auto shape = [&](ffi::Size& rows, ffi::Size& heads, ffi::Size& dim) {
    return is_packed ? ffi::Shape{rows, heads, dim} : ffi::Shape{batch, rows, heads, dim};
  };
  using View = tile::GlobalView<const Shape::Element, 4>;
  using OutView = tile::GlobalView<Shape::OutElement, 4>;
  Args args{};
  args.q = ffi::view_of_heads<View>(match, q, shape(rows, heads, head_dim), "q");
  args.k = ffi::view_of_heads<View>(match, k, shape(keys, kv_heads, head_dim), "k");
  args.v = ffi::view_of_heads<View>(match, v, shape(keys, kv_heads, head_dim_v), "v");
  args.out = ffi::view_of_heads<OutView>(match, out, shape(rows, heads, head_dim_v), "out");
  match.built(head_dim <= Shape::kHeadDim && head_dim_v <= Shape::kHeadDimV, "head dimensions");
  if (is_packed) batch.value = (*cu_seqlens_q).numel() - 1;
  match.require(head_dim % kChunk == 0 && head_dim_v % kChunk == 0 && kv_heads > 0 && heads % kv_heads == 0,
                "head dimensions must be multiples of 16 bytes of q, and num_heads of num_kv_heads");
  match.require(0 <= batch && batch < kGridLimit && max_seqlen_q >= 0, "at most 65535 sequences fit one launch");
  args.lse = match.take<float>(lse, is_packed ? ffi::Shape{heads, rows} : ffi::Shape{batch, heads, rows}, "lse",
                               ffi::kDense);
  if (lse.has_value()) args.lse_head_stride = rows, args.lse_batch_stride = heads * rows;
  ffi::take_lengths(match, args, batch, cu_seqlens_q, cu_seqlens_k, seqlens_k);
  set_bias(match, args, bias, batch, is_packed);
  const ffi::Slopes slopes = ffi::slopes_of(match, alibi_slopes, batch, heads);
  args.alibi_slopes = slopes.data, args.alibi_batch_stride = slopes.batch;
  args.sink = match.take<const float>(sink, {heads}, "sink");
  args.q_descale = match.elements<const float>(q_descale, 1, "q_descale");
  args.k_descale = match.elements<const float>(k_descale, 1, "k_descale");
  args.v_descale = match.elements<const float>(v_descale, 1, "v_descale");
  const int64_t longest = is_packed && max_seqlen_q < rows ? max_seqlen_q : int64_t{rows};
  args.num_blocks_m = static_cast<int>((longest + flash_attn_tile::kBlockM - 1) / flash_attn_tile::kBlockM);
  if (args.num_blocks_m * heads * batch == 0) return;
  args.group_size = static_cast<int>(heads / kv_heads);
  args.window_left = ffi::window_of(window_left), args.window_right = ffi::window_of(window_right);
  args.sink_size = static_cast<int>(sink_size < kMostRows ? sink_size : kMostRows);
  args.softmax_scale = softmax_scale, args.softcap = softcap;
  launch_flash_attn_fwd_tile(args, batch, ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(flash_attn_fwd, aiter_like::flash_attn_fwd_tile);
#endif

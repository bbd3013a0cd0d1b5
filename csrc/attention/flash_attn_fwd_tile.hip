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

#include "aiter_like/ffi.h"
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
};
using Shape = flash_attn_tile::Shape<Config>;
using Args = Shape::Args;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) __attribute__((amdgpu_waves_per_eu(Shape::kWavesPerSimd)))
void flash_attn_fwd_tile_kernel(Args args) {
  __shared__ flash_attn_tile::PIPELINE<Shape> pipeline;
  flash_attn_tile::forward_body<Config>(args, workgroup_index(), pipeline);
}

void launch_flash_attn_fwd_tile(const Args& args, int batch, Stream stream) {
  const dim3 grid(static_cast<uint32_t>(args.num_blocks_m), static_cast<uint32_t>(args.q.sizes[2]),
                  static_cast<uint32_t>(batch));
  flash_attn_fwd_tile_kernel<<<grid, Shape::kThreads, 0, stream>>>(args);
  check_launch("flash_attn_fwd_tile_kernel");
}

#if AITER_LIKE_HOST_PASS

namespace {

using ffi::check_value;
using tile::GlobalView;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

/// The view of a tensor [batch, rows, heads, dim], or of packed sequences [rows, heads, dim].
template <class T>
GlobalView<T, 4> view_of(const ffi::Tensor& tensor, int ndim, int max_dim) {
  ffi::check_type(ffi::has_element<std::remove_const_t<T>>(tensor),
                  "flash_attn_fwd: q, k, v, out must have the dtypes that this module was built for");
  check_value(tensor.ndim() == ndim && tensor.stride(ndim - 1) == 1 && tensor.size(ndim - 1) <= max_dim,
              "flash_attn_fwd: q, k, v, out must be [batch, rows, heads, dim] or all packed [rows, heads, dim], with "
              "contiguous dimensions of heads that fit this module");
  GlobalView<T, 4> view{static_cast<T*>(tensor.data_ptr()), {1, 0, 0, 0}, {0, 0, 0, 1}};
  for (int d = 0; d < ndim; ++d) {
    view.sizes[4 - ndim + d] = tensor.size(d);
    view.strides[4 - ndim + d] = tensor.size(d) > 1 ? tensor.stride(d) : 0;
  }
  if (view.sizes[1] <= 1) view.strides[1] = view.sizes[3];
  constexpr int64_t kChunk = 16 / sizeof(Shape::Element), kMaxRowStride = int64_t{1} << 23;
  check_value(view.sizes[3] % kChunk == 0 && view.sizes[3] <= view.strides[1] && view.strides[1] < kMaxRowStride,
              "flash_attn_fwd: dimensions of heads must be multiples of 16 bytes of q, rows must not overlap, nor be "
              "2^23 elements apart");
  return view;
}

const int* indices(const OptionalTensor& tensor, int64_t count) {
  if (!tensor.has_value()) return nullptr;
  const ffi::Tensor value = tensor.value();
  ffi::check_type(ffi::has_element<int32_t>(value), "flash_attn_fwd: cu_seqlens and seqlens_k must be int32");
  check_value(value.ndim() == 1 && value.size(0) == count && value.IsContiguous(),
              "flash_attn_fwd: cu_seqlens must have batch + 1 elements, seqlens_k batch");
  return static_cast<const int*>(value.data_ptr());
}

/// The data of an fp32 tensor [count], or [batch, count] with a batch stride; null for none.
const float* floats(const OptionalTensor& tensor, int64_t count, int64_t batch, int64_t* batch_stride) {
  if (!tensor.has_value()) return nullptr;
  const ffi::Tensor value = tensor.value();
  const int ndim = value.ndim();
  ffi::check_type(ffi::is_f32(value), "flash_attn_fwd: alibi_slopes, sink and descales must be float32");
  check_value((ndim == 1 || (ndim == 2 && batch_stride != nullptr && value.size(0) == batch)) &&
                  value.size(ndim - 1) == count && value.IsContiguous(),
              "flash_attn_fwd: alibi_slopes must be [num_heads] or [batch, num_heads], sink [num_heads], descales [1]");
  if (batch_stride != nullptr) *batch_stride = ndim == 2 ? count : 0;
  return static_cast<const float*>(value.data_ptr());
}

void set_bias(Args& args, const OptionalTensor& tensor, int64_t batch, bool is_packed) {
  check_value(tensor.has_value() == !std::is_same_v<Shape::BiasElement, void>,
              "flash_attn_fwd: this module was built with or without bias, the call is the other");
  if (!tensor.has_value()) return;
  const ffi::Tensor bias = tensor.value();
  const int ndim = bias.ndim();
  ffi::check_type(ffi::has_element<Shape::BiasElement>(bias), "flash_attn_fwd: bias has another dtype than the module");
  check_value((ndim == 2 || ndim == 4) && (bias.size(ndim - 1) <= 1 || bias.stride(ndim - 1) == 1),
              "flash_attn_fwd: bias must have 2 or 4 dimensions, the last one contiguous");
  const int64_t num_heads = args.q.sizes[2], rows = bias.size(ndim - 2);
  const auto stride = [&](int d) { return bias.size(d) > 1 ? bias.stride(d) : 0; };
  if (ndim == 4) {
    check_value((bias.size(0) == 1 || bias.size(0) == batch) && (bias.size(1) == 1 || bias.size(1) == num_heads),
                "flash_attn_fwd: bias must be [1 | batch, 1 | num_heads, seqlen_q, seqlen_k]");
    args.bias_batch_stride = stride(0);
    args.bias_head_stride = stride(1);
  }
  // A bias of one row serves all rows of q.
  check_value(rows == 1 || rows == args.q.sizes[1], "flash_attn_fwd: bias must have as many rows as q, or one");
  check_value(!is_packed || ndim == 2, "flash_attn_fwd: bias of packed sequences must be [total_q, max_seqlen_k]");
  args.bias = static_cast<const Shape::BiasElement*>(bias.data_ptr());
  args.bias_row_stride = stride(ndim - 2);
  constexpr int64_t kMaxColumns = 1 << 24;
  const int64_t columns = bias.size(ndim - 1);
  check_value(args.bias_row_stride <= kMaxColumns && columns <= kMaxColumns && (columns > 0 || args.k.sizes[1] == 0),
              "flash_attn_fwd: bias must have 1 to 2^24 columns, and rows at most 2^24 elements apart");
  args.bias_columns = static_cast<int>(columns);
}

int window_of(int64_t size) { return static_cast<int>(size < 0 ? -1 : size < (1 << 30) ? size : 1 << 30); }

}  // namespace

void flash_attn_fwd_tile(ffi::Tensor out, OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                         OptionalTensor cu_seqlens_q, OptionalTensor cu_seqlens_k, OptionalTensor seqlens_k,
                         OptionalTensor bias, OptionalTensor alibi_slopes, OptionalTensor sink,
                         OptionalTensor q_descale, OptionalTensor k_descale, OptionalTensor v_descale,
                         OptionalTensor rng_state, OptionalTensor workspace, int64_t max_seqlen_q,
                         int64_t max_seqlen_k, double softmax_scale, int64_t window_left, int64_t window_right,
                         int64_t sink_size, double softcap, double dropout_p, int64_t num_splits,
                         int64_t how_v3_bf16_cvt) {
  const bool is_packed = cu_seqlens_q.has_value();
  check_value(is_packed == cu_seqlens_k.has_value() && !(is_packed && seqlens_k.has_value()),
              "flash_attn_fwd: cu_seqlens_q and cu_seqlens_k come together, and without seqlens_k");
  const int ndim = is_packed ? 3 : 4;
  Args args{};
  args.q = view_of<const Shape::Element>(q, ndim, Shape::kHeadDim);
  args.k = view_of<const Shape::Element>(k, ndim, Shape::kHeadDim);
  args.v = view_of<const Shape::Element>(v, ndim, Shape::kHeadDimV);
  args.out = view_of<Shape::OutElement>(out, ndim, Shape::kHeadDimV);
  const int64_t batch = is_packed ? cu_seqlens_q.value().numel() - 1 : args.q.sizes[0], num_heads = args.q.sizes[2];
  const int64_t num_kv_heads = args.k.sizes[2], rows = args.q.sizes[1], keys = args.k.sizes[1];
  const auto is_like = [](const auto& a, const auto& b) {
    return a.sizes[0] == b.sizes[0] && a.sizes[1] == b.sizes[1] && a.sizes[2] == b.sizes[2];
  };
  check_value(is_like(args.q, args.out) && is_like(args.k, args.v) && args.q.sizes[3] == args.k.sizes[3] &&
                  args.out.sizes[3] == args.v.sizes[3] && args.q.sizes[0] == args.k.sizes[0] && num_kv_heads > 0 &&
                  num_heads % num_kv_heads == 0,
              "flash_attn_fwd: q and k must have one head dimension, v and out another, q and out the same rows and "
              "heads, k and v others, of which the heads divide those of q");
  constexpr int64_t kMaxRows = int64_t{1} << 30, kMaxGrid = 65535;
  check_value(rows < kMaxRows && keys < kMaxRows && 0 <= batch && batch <= kMaxGrid && num_heads <= kMaxGrid &&
                  max_seqlen_q >= 0,
              "flash_attn_fwd: at most 2^30 - 1 rows, 65535 sequences and 65535 heads fit one launch");
  check_value(softmax_scale >= 1e-8 && softmax_scale < 1e30, "flash_attn_fwd: softmax_scale must be in 1e-8 … 1e30");
  check_value(dropout_p == 0 && (softcap > 0) == Shape::kHasSoftcap && alibi_slopes.has_value() == Shape::kHasAlibi &&
                  (Shape::kIsMasked || (window_left < 0 && window_right < 0)) &&
                  (how_v3_bf16_cvt == ROUNDING || !std::is_same_v<Shape::OutElement, bf16>),
              "flash_attn_fwd: this module was built for other features");
  if (lse.has_value()) {
    const ffi::Tensor t = lse.value();
    ffi::check_type(ffi::is_f32(t), "flash_attn_fwd: lse must be float32");
    check_value(t.ndim() == ndim - 1 && t.size(ndim - 3) == num_heads && t.size(ndim - 2) == rows &&
                    (is_packed || t.size(0) == batch) && t.IsContiguous(),
                "flash_attn_fwd: lse must be contiguous, [batch, num_heads, seqlen_q] or [num_heads, total_q]");
    args.lse = static_cast<float*>(t.data_ptr());
    args.lse_head_stride = rows;
    args.lse_batch_stride = num_heads * rows;
  }
  args.cu_seqlens_q = indices(cu_seqlens_q, batch + 1);
  args.cu_seqlens_k = indices(cu_seqlens_k, batch + 1);
  args.seqlens_k = indices(seqlens_k, batch);
  set_bias(args, bias, batch, is_packed);
  args.alibi_slopes = floats(alibi_slopes, num_heads, batch, &args.alibi_batch_stride);
  args.sink = floats(sink, num_heads, batch, nullptr);
  args.q_descale = floats(q_descale, 1, batch, nullptr);
  args.k_descale = floats(k_descale, 1, batch, nullptr);
  args.v_descale = floats(v_descale, 1, batch, nullptr);
  const int64_t longest = is_packed ? (max_seqlen_q < rows ? max_seqlen_q : rows) : rows;
  args.num_blocks_m = static_cast<int>((longest + flash_attn_tile::kBlockM - 1) / flash_attn_tile::kBlockM);
  if (args.num_blocks_m * num_heads * batch == 0) return;
  args.group_size = static_cast<int>(num_heads / num_kv_heads);
  args.window_left = window_of(window_left);
  args.window_right = window_of(window_right);
  args.sink_size = sink_size < kMaxRows ? static_cast<int>(sink_size) : static_cast<int>(kMaxRows);
  args.softmax_scale = static_cast<float>(softmax_scale);
  args.softcap = static_cast<float>(softcap);
  launch_flash_attn_fwd_tile(args, static_cast<int>(batch), ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(flash_attn_fwd, aiter_like::flash_attn_fwd_tile);
#endif

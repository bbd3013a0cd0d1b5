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
#include <optional>
#include <type_traits>

#include "aiter_like/dtype.h"
#include "aiter_like/ffi.h"
#include "aiter_like/gpu.h"
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

static_assert(Shape::kSplits == (MASK != 2));
#if MASK != 2
__global__ __launch_bounds__(kThreads) void flash_attn_merge_kernel(FlashAttnArgs args) {
  flash_attn::merge_body<Config>(args, static_cast<int>(workgroup_index().x));
}
#endif

void launch_flash_attn_fwd(const FlashAttnArgs& args, int query_blocks, Stream stream) {
  flash_attn_fwd_kernel<<<flash_attn::grid_of(args, query_blocks), kThreads, 0, stream>>>(args);
  check_launch("flash_attn_fwd_kernel");
#if MASK != 2
  if (args.split.parts == 1) return;
  flash_attn_merge_kernel<<<flash_attn::merge_grid_of<Shape>(args, query_blocks), kThreads, 0, stream>>>(args);
  check_launch("flash_attn_merge_kernel");
#endif
}

#if AITER_LIKE_HOST_PASS

namespace {

using flash_attn::kMostRows;

/// A tensor [batch, rows, heads, kHeadDim], varlen without batch, as the kernel takes it.
FlashAttnTensor heads_of(const ffi::Tensor& tensor, bool is_varlen, int64_t heads, const char* name) {
  ffi::check_type(ffi::has_element<Shape::Element>(tensor),
                  "flash_attn_fwd: q, k, v, out must have the dtype that this module was built for");
  const int rank = is_varlen ? 3 : 4;
  if (tensor.ndim() != rank || tensor.size(rank - 1) != Shape::kHeadDim || tensor.size(rank - 2) != heads ||
      tensor.stride(rank - 1) != 1)
    TVM_FFI_THROW(ValueError) << "flash_attn_fwd: " << name << " must be [" << (is_varlen ? "total" : "batch, seqlen")
                              << ", " << heads << ", " << Shape::kHeadDim << "], its last dimension contiguous";
  const auto stride = [&](int d) { return tensor.size(d) > 1 ? 2 * tensor.stride(d) : 0; };
  FlashAttnTensor result{tensor.data_ptr(), is_varlen ? 0 : stride(0), stride(rank - 3), stride(rank - 2)};
  if (tensor.size(rank - 3) <= 1) result.row = Shape::kRowBytes;
  if ((result.batch | result.row | result.head) % 16 != 0)
    TVM_FFI_THROW(ValueError) << "flash_attn_fwd: rows and heads of " << name << " must be multiples of 16 bytes apart";
  if (reinterpret_cast<uintptr_t>(result.data) % 16 != 0)
    TVM_FFI_THROW(AddressError) << "flash_attn_fwd: " << name << " must begin at a multiple of 16 bytes";
  return result;
}

/// An int32 tensor of [size]; null for none.
const int* lengths_of(const ffi::Optional<ffi::Tensor>& tensor, int64_t size, const char* name) {
  if (!tensor.has_value()) return nullptr;
  const ffi::Tensor value = tensor.value();
  if (!ffi::has_element<int32_t>(value) || value.ndim() != 1 || value.size(0) != size || !value.IsContiguous())
    TVM_FFI_THROW(ValueError) << "flash_attn_fwd: " << name << " must be int32 [" << size << "], contiguous";
  return static_cast<const int*>(value.data_ptr());
}

/// The caller's memory for the partial results of split query blocks.
float* workspace_of(const ffi::Tensor& tensor, int64_t bytes) {
  if (tensor.numel() * tensor.dtype().bits / 8 < bytes || !tensor.IsContiguous() ||
      reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 != 0)
    TVM_FFI_THROW(ValueError) << "flash_attn_fwd: workspace must have " << bytes
                              << " bytes, contiguous, from a multiple of 16 on";
  return static_cast<float*>(tensor.data_ptr());
}

void check_options(const ffi::Tensor& q, const ffi::Tensor& k, double softmax_scale, int64_t how_v3_bf16_cvt) {
  const int64_t heads = q.size(q.ndim() - 2), kv_heads = k.size(k.ndim() - 2);
  ffi::check_value(kv_heads > 0 && heads % kv_heads == 0,
                   "flash_attn_fwd: num_heads must be a multiple of num_kv_heads");
  ffi::check_value(softmax_scale >= 1e-8 && softmax_scale < 1e30,
                   "flash_attn_fwd: softmax_scale must be finite and at least 1e-8");
  constexpr bool kIsF16 = std::is_same_v<Shape::Element, f16>;  // f16 has no ties away: RTNA is RTNE
  ffi::check_value((kIsF16 && how_v3_bf16_cvt == 1 ? 0 : how_v3_bf16_cvt) == ROUNDING,
                   "flash_attn_fwd: this module was built for another how_v3_bf16_cvt");
}

}  // namespace

void flash_attn_fwd(ffi::Tensor out, ffi::Optional<ffi::Tensor> lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                    ffi::Optional<ffi::Tensor> cu_seqlens_q, ffi::Optional<ffi::Tensor> cu_seqlens_k,
                    ffi::Optional<ffi::Tensor> seqlens_k, ffi::Optional<ffi::Tensor> bias,
                    ffi::Optional<ffi::Tensor> alibi_slopes, ffi::Optional<ffi::Tensor> sink,
                    ffi::Optional<ffi::Tensor> q_descale, ffi::Optional<ffi::Tensor> k_descale,
                    ffi::Optional<ffi::Tensor> v_descale, ffi::Optional<ffi::Tensor> rng_state,
                    ffi::Optional<ffi::Tensor> workspace, int64_t max_seqlen_q, int64_t max_seqlen_k,
                    double softmax_scale, int64_t window_left, int64_t window_right, int64_t sink_size, double softcap,
                    double dropout_p, int64_t num_splits, int64_t how_v3_bf16_cvt) {
  ffi::check_value(!bias.has_value() && !alibi_slopes.has_value() && !sink.has_value() && !q_descale.has_value() &&
                       !k_descale.has_value() && !v_descale.has_value() && softcap == 0 && dropout_p == 0 &&
                       (sink_size == 0 || window_left < 0),
                   "flash_attn_fwd: no bias, ALiBi, sink, descales, softcap or dropout here");
  ffi::check_value((Shape::kLimitsLeft || window_left < 0) && (Shape::kLimitsRight || window_right < 0),
                   "flash_attn_fwd: this module was built for another mask");
  const bool is_varlen = cu_seqlens_q.has_value();
  ffi::check_value(q.ndim() >= 3 && k.ndim() >= 3 && is_varlen == cu_seqlens_k.has_value(),
                   "flash_attn_fwd: q and k must be dense, or both varlen with both cu_seqlens");
  check_options(q, k, softmax_scale, how_v3_bf16_cvt);
  const int64_t heads = q.size(q.ndim() - 2), kv_heads = k.size(k.ndim() - 2);
  FlashAttnArgs args{};
  args.q = heads_of(q, is_varlen, heads, "q");
  args.k = heads_of(k, is_varlen, kv_heads, "k");
  args.v = heads_of(v, is_varlen, kv_heads, "v");
  args.out = heads_of(out, is_varlen, heads, "out");
  const int rows = is_varlen ? 0 : 1;  // dimension of rows
  const int64_t batch = is_varlen ? cu_seqlens_q.value().size(0) - 1 : q.size(0);
  const int64_t seqlen_q = q.size(rows), seqlen_k = k.size(rows);
  ffi::check_value(v.size(rows) == seqlen_k && out.size(rows) == seqlen_q && batch >= 0 &&
                       (is_varlen || (k.size(0) == batch && v.size(0) == batch && out.size(0) == batch)),
                   "flash_attn_fwd: q and out must be of one size, k and v of one, all of one batch");
  ffi::check_value(seqlen_q < kMostRows && seqlen_k < kMostRows && batch < kMostRows,
                   "flash_attn_fwd: at most 2^30 - 1 rows, keys and sequences fit one launch");
  ffi::check_value(flash_attn::is_key_row_stride(args.k.row, Shape::kRowBytes) &&
                       flash_attn::is_key_row_stride(args.v.row, Shape::kRowBytes),
                   "flash_attn_fwd: the row strides of k and v must be at least head_dim and below 2^24 elements");
  if (batch * seqlen_q * heads == 0) return;

  args.cu_seqlens_q = lengths_of(cu_seqlens_q, batch + 1, "cu_seqlens_q");
  args.cu_seqlens_k = lengths_of(cu_seqlens_k, batch + 1, "cu_seqlens_k");
  args.seqlens_k = lengths_of(seqlens_k, batch, "seqlens_k");
  if (lse.has_value()) {
    const ffi::Tensor t = lse.value();
    ffi::check_type(ffi::is_f32(t), "flash_attn_fwd: lse must be float32");
    ffi::check_value(t.numel() == (is_varlen ? 1 : batch) * heads * seqlen_q && t.IsContiguous(),
                     "flash_attn_fwd: lse must be contiguous, [batch, num_heads, seqlen_q] or [num_heads, total_q]");
    args.lse = static_cast<float*>(t.data_ptr());
  }
  args.lse_head = seqlen_q;
  args.lse_batch = heads * seqlen_q;
  args.batch = static_cast<int>(batch);
  args.seqlen_q = static_cast<int>(seqlen_q);
  args.seqlen_k = static_cast<int>(seqlen_k);
  flash_attn::set_window(args, window_left, window_right, seqlen_q, seqlen_k);
  args.scale_log2 = static_cast<float>(softmax_scale * 1.4426950408889634);

  const int pack = packed_heads(heads / kv_heads, is_varlen ? max_seqlen_q : seqlen_q, seqlen_q, Shape::kBlockM);
  const int64_t rows_of_heads = seqlen_q * pack;
  const int64_t slots = flash_attn::slots_of(rows_of_heads, is_varlen ? batch : 1, Shape::kBlockM);
  const int64_t query_blocks = slots * (heads / pack) * (is_varlen ? 1 : batch);
  ffi::check_value(query_blocks * kMostPartsPerCu < flash_attn::kMostGrid,
                   "flash_attn_fwd: more query blocks than a launch holds");
  args.slots = static_cast<int>(slots);
  args.pack = Divider(static_cast<uint32_t>(pack));
  args.group = Divider(static_cast<uint32_t>(heads / kv_heads / pack));
  args.kv_heads = Divider(static_cast<uint32_t>(kv_heads));
  const bool has_one_length = !is_varlen || batch == 1;
  flash_attn::plan_launch<Shape>(args, static_cast<int>(query_blocks),
                                 has_one_length ? static_cast<int>(num_splits) : 1,
                                 num_compute_units(q.device().device_id));
  const int64_t bytes = flash_attn::partial_bytes<Shape>(args, query_blocks);
  std::optional<ffi::Scratch> scratch;
  if (bytes != 0) {
    if (workspace.has_value())
      args.partials = workspace_of(workspace.value(), bytes);
    else
      args.partials = static_cast<float*>(scratch.emplace(bytes, q.device()).data());
  }
  launch_flash_attn_fwd(args, static_cast<int>(query_blocks), ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(flash_attn_fwd, aiter_like::flash_attn_fwd);
#endif

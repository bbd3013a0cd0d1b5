// SPDX-License-Identifier: MIT
// Attention backward for gfx942: dQ, dK and dV of flash_attn_fwd by five products, and the gradient of a sink; dense or
// packed, causal or window, grouped KV heads. There is one build per ELEMENT, head dimensions, and what happens to a
// score; flash_attn_bwd_body.h has a workgroup's way, flash_attn_bwd_wave.h the schedule of a wave.
//
//   P = exp2(score - LSE),  dS = P (dout V^T - delta),  delta = Σ dout · out - dLSE
//   dV = P^T dout,  dK = scale dS^T Q,  dQ = scale dS K
//
// A workgroup of 4 waves is alone on its CU and keeps K, V, dK and dV of 64 kKeyTiles keys in registers: 448 of them a
// lane at HEAD_DIM 128. dQ is added up in fp32 by turns (flash_attn_bwd_turns.h), the same in each run, or by atomics.
// Bound at HEAD_DIM 128: MFMA, 240 instructions of 16 clk per wave and block of 32 rows; the other 200 vector
// instructions stand between them. LDS is busy half of that time.
#include <type_traits>

#include "attention_host.h"
#include "flash_attn_bwd_body.h"
#include "flash_attn_bwd_launch.h"
#include "flash_attn_bwd_rows_body.h"

#if !defined(ELEMENT) || !defined(HEAD_DIM) || !defined(HEAD_DIM_V) || !defined(HAS_SOFTCAP) || !defined(HAS_ALIBI) || \
    !defined(HAS_DROPOUT) || !defined(HAS_SINK_TOKENS) || !defined(BIAS) || !defined(HAS_MASK) || \
    !defined(IS_ATOMIC) || !defined(LEAST_STEPS) || !defined(TURN_STEPS) || !defined(STEP_BYTES)
#error "flash_attn_bwd.hip: the macros that ops/attention/flash_attn_bwd_hip.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config : attn_bwd::Tiles<HEAD_DIM, HEAD_DIM_V,
                                attn_bwd::Scores<HAS_SOFTCAP, HAS_ALIBI, HAS_DROPOUT, HAS_SINK_TOKENS, BIAS>> {
  using Element = ELEMENT;
  static constexpr bool kIsMasked = HAS_MASK, kIsAtomic = IS_ATOMIC;
  static constexpr attn_bwd::PlanCosts kPlanCosts{LEAST_STEPS, TURN_STEPS, STEP_BYTES};
};
using Scores = Config::Scores;
using Shape = attn_bwd::Shape<Config>;
using Args = attn_bwd::Args;
using attn_bwd::kThreads;

}  // namespace

__global__ __launch_bounds__(kThreads) void flash_attn_bwd_prepare_kernel(Args args) {
  __shared__ float sink_parts[kThreads];
  attn_bwd::prepare_body<Config>(args, workgroup_index(), sink_parts);
}

__global__ __launch_bounds__(kThreads) __attribute__((amdgpu_waves_per_eu(1, 1)))
void flash_attn_bwd_kernel(Args args) {
  __shared__ __attribute__((aligned(1024))) char tiles[attn_bwd::Places<Shape>::kLdsBytes];
  attn_bwd::gradients_body<Config>(args, static_cast<int>(workgroup_index().x), tiles);
}

__global__ __launch_bounds__(kThreads) void flash_attn_bwd_parts_kernel(Args args) {
  const WorkgroupIndex workgroup = workgroup_index();
  attn_bwd::add_parts_body<Config>(args, static_cast<int>(workgroup.x), static_cast<int>(workgroup.y),
                                   static_cast<int>(workgroup.z));
}

__global__ __launch_bounds__(kThreads) void flash_attn_bwd_finish_kernel(Args args) {
  attn_bwd::finish_body<Config>(args, workgroup_index());
}

__global__ __launch_bounds__(kWaveSize) void flash_attn_bwd_sink_kernel(Args args) {
  attn_bwd::sink_body<Config>(args, static_cast<int>(workgroup_index().x));
}

__global__ __launch_bounds__(kThreads) void flash_attn_bwd_strays_kernel(Args args) {
  attn_bwd::strays_body<Config>(args, static_cast<int>(workgroup_index().x), workgroup_index().y == 0);
}

void launch_flash_attn_bwd(const Args& args, int workgroups, bool has_parts, Stream stream) {
  const auto row_blocks = static_cast<uint32_t>((args.max_rows + Shape::kBlockM - 1) / Shape::kBlockM);
  const auto count = static_cast<uint32_t>(workgroups);
  const dim3 rows(row_blocks, static_cast<uint32_t>(args.heads), static_cast<uint32_t>(args.batch));
  const dim3 parts(count, Shape::kKeyTiles, 2);
  const bool has_rows = row_blocks > 0 && args.heads > 0 && args.batch > 0;
  if (has_rows)
    launch_named("flash_attn_bwd_prepare_kernel", flash_attn_bwd_prepare_kernel, rows, kThreads, stream, args);
  if (count > 0) launch_named("flash_attn_bwd_kernel", flash_attn_bwd_kernel, count, kThreads, stream, args);
  if (has_parts)
    launch_named("flash_attn_bwd_parts_kernel", flash_attn_bwd_parts_kernel, parts, kThreads, stream, args);
  if (has_rows)
    launch_named("flash_attn_bwd_finish_kernel", flash_attn_bwd_finish_kernel, rows, kThreads, stream, args);
  if (args.dsink != nullptr && args.heads > 0)
    launch_named("flash_attn_bwd_sink_kernel", flash_attn_bwd_sink_kernel, args.heads, kWaveSize, stream, args);
  if (args.cu_seqlens_q == nullptr) return;
  const int longest = args.rows > args.keys ? args.rows : args.keys;
  const dim3 strays(static_cast<uint32_t>((longest + kThreads - 1) / kThreads), 2);
  if (longest > 0)
    launch_named("flash_attn_bwd_strays_kernel", flash_attn_bwd_strays_kernel, strays, kThreads, stream, args);
}

#if AITER_LIKE_HOST_PASS

void flash_attn_bwd(ffi::Tensor dq, ffi::Tensor dk, ffi::Tensor dv, ffi::OptionalTensor dsink, ffi::Tensor dout,
                    ffi::OptionalTensor dlse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v, ffi::Tensor out,
                    ffi::Tensor lse, ffi::OptionalTensor cu_seqlens_q, ffi::OptionalTensor cu_seqlens_k,
                    ffi::OptionalTensor bias, ffi::OptionalTensor alibi_slopes, ffi::OptionalTensor sink,
                    ffi::OptionalTensor rng_state, int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale,
                    int64_t window_left, int64_t window_right, int64_t sink_size, double softcap, double dropout_p,
                    bool deterministic) {
  constexpr int64_t kMostRows = int64_t{1} << 30, kGridLimit = 65536;
  const bool is_packed = cu_seqlens_q.has_value();
  ffi::Match match("flash_attn_bwd");
  match.built(deterministic != Config::kIsAtomic && (Config::kIsMasked || (window_left < 0 && window_right < 0)) &&
              (sink_size > 0 && window_left >= 0) == Scores::kHasSinkTokens && (softcap > 0) == Scores::kIsCapped &&
              alibi_slopes.has_value() == Scores::kHasAlibi &&
              (dropout_p > 0) == Scores::kDrops && bias.has_value() == !std::is_void_v<Scores::Bias>, "features");
  match.require(is_packed == cu_seqlens_k.has_value(), "cu_seqlens_q and cu_seqlens_k come together");
  ffi::check_scale(match, softmax_scale);

  ffi::Size batch{"batch", kGridLimit}, rows{"seqlen_q", kMostRows}, keys{"seqlen_k", kMostRows};
  ffi::Size heads{"num_heads", kGridLimit}, kv_heads{"num_kv_heads"}, dim{"head_dim"}, dim_v{"head_dim_v"};
  const auto take = [&](const ffi::Tensor& tensor, ffi::Size& rows, ffi::Size& heads, ffi::Size& dim,
                        const char* name) {
    const ffi::Shape shape = is_packed ? ffi::Shape{rows, heads, dim} : ffi::Shape{batch, rows, heads, dim};
    return ffi::bytes_of_heads<FlashAttnTensor, Shape::Element>(match, tensor, shape, name);
  };
  Args args{};
  args.q = take(q, rows, heads, dim, "q"), args.dq = take(dq, rows, heads, dim, "dq");
  args.k = take(k, keys, kv_heads, dim, "k"), args.dk = take(dk, keys, kv_heads, dim, "dk");
  args.v = take(v, keys, kv_heads, dim_v, "v"), args.dv = take(dv, keys, kv_heads, dim_v, "dv");
  args.out = take(out, rows, heads, dim_v, "out"), args.dout = take(dout, rows, heads, dim_v, "dout");
  if (is_packed) batch.value = (*cu_seqlens_q).numel() - 1;
  match.built(dim <= Shape::kDim && dim_v <= Shape::kDimV, "head dimensions");
  match.require(dim % 8 == 0 && dim_v % 8 == 0 && (kv_heads > 0 ? heads % kv_heads : heads) == 0 && batch >= 0,
                "head dimensions must be multiples of 8, and num_heads of num_kv_heads");
  for (const auto* tensor : {&args.q, &args.k, &args.v, &args.dout})
    match.require(0 <= tensor->row && tensor->row < (int64_t{1} << 24),
                  "rows must be less than 2^23 elements apart");
  args.lse = match.elements<const float>(lse, (is_packed ? 1 : batch) * heads * rows, "lse");
  args.dlse = match.elements<const float>(dlse, (is_packed ? 1 : batch) * heads * rows, "dlse");
  args.sink = match.take<const float>(sink, {heads}, "sink");
  args.dsink = match.take<float>(dsink, {heads}, "dsink", ffi::kDense);
  match.require(args.dsink == nullptr || args.sink != nullptr, "dsink must be None where there is no sink");
  ffi::take_lengths(match, args, batch, cu_seqlens_q, cu_seqlens_k);
  args.lse_head = rows, args.lse_batch = is_packed ? 0 : heads * rows;
  args.batch = batch, args.heads = heads, args.kv_heads = kv_heads;
  args.group = kv_heads > 0 ? heads / kv_heads : 0, args.dim = dim, args.dim_v = dim_v;
  args.rows = rows, args.keys = keys;
  args.max_rows = is_packed && max_seqlen_q < rows ? max_seqlen_q : int64_t{rows};
  args.max_keys = is_packed && max_seqlen_k < keys ? max_seqlen_k : int64_t{keys};
  args.left = ffi::window_of(window_left), args.right = ffi::window_of(window_right);
  args.sink_size = static_cast<int>(sink_size < kMostRows ? sink_size : kMostRows);
  args.softmax_scale = softmax_scale, args.scale_log2 = static_cast<float>(softmax_scale * 1.4426950408889634);
  attn_bwd::set_features(match, args, bias, alibi_slopes, rng_state, batch, heads, softcap, dropout_p);
  attn_bwd::run<Shape>(args, match, q.device(), ffi::stream_of(q), launch_flash_attn_bwd);
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(flash_attn_bwd, aiter_like::flash_attn_bwd);
#endif

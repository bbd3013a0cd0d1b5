// SPDX-License-Identifier: MIT
// out = a_scale · (a · bᵀ) · b_scale + bias for each matrix of a batch on gfx942, in 16 bits, fp8 or int8, composed
// from the tile library. One build per elements, tile, and what happens to a sum; batched_gemm_body.h, gemm_pipeline.h
// and gemm_body.h have its steps.
//
// As gemm_a16w16, with a workgroup for each tile of each matrix. Sums are kept in fp32, those of int8 in int32.
// Bound: MFMA, 2 m n k flop per matrix at 1307 TFLOP/s in 16 bits and twice that in 8; for few rows memory, the bytes
// of b at 5.3 TB/s.
#include "batched_gemm_body.h"
#include "gemm_host.h"

#if !defined(ELEMENT) || !defined(SUM) || !defined(OUT_ELEMENT) || !defined(BIAS_ELEMENT) || !defined(BLOCK_M) || \
    !defined(BLOCK_N) || !defined(WAVES_M) || !defined(WAVES_N) || !defined(WAVES_K) || !defined(HAS_BIAS) ||     \
    !defined(HAS_SCALES) || !defined(SPLITS)
#error "batched_gemm.hip: the macros that ops/gemm/batched_gemm.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using Sum = SUM;
  using OutElement = OUT_ELEMENT;
  using BiasElement = BIAS_ELEMENT;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr int kWavesM = WAVES_M, kWavesN = WAVES_N, kWavesK = WAVES_K;
  static constexpr int kSplits = SPLITS;
  static constexpr bool kHasBias = HAS_BIAS, kHasScales = HAS_SCALES;
};
using Body = batched_gemm::Body<Config>;
using Shape = Body::Shape;
using Args = Body::Args;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) void batched_gemm_kernel(Args args) {
  gemm::multiply_tile<Body>(args);
}

__global__ __launch_bounds__(gemm::kSumThreads) void batched_gemm_sum_kernel(Args args) {
  Body::sum(args, workgroup_index());
}

void launch_batched_gemm(const Args& args, Stream stream) {
  gemm::launch_tiles<Shape>(batched_gemm_kernel, batched_gemm_sum_kernel, args, "batched_gemm", stream,
                            static_cast<uint32_t>(args.a.sizes[0]));
}

#if AITER_LIKE_HOST_PASS

void batched_gemm_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::OptionalTensor bias,
                     ffi::OptionalTensor a_scale, ffi::OptionalTensor b_scale) {
  ffi::Match match("batched_gemm");
  match.built(bias.has_value() == Config::kHasBias && a_scale.has_value() == Config::kHasScales &&
              b_scale.has_value() == Config::kHasScales);
  ffi::Size batch{"batch"}, m{"m"}, n{"n"}, k{"k"};
  Args args{};
  args.out = gemm::view_of<Config::OutElement, 3>(match, out, {batch, m, n}, "out");
  args.a = gemm::view_of<const Config::Element, 3>(match, a, {batch, m, k}, "a");
  args.b = gemm::view_of<const Config::Element, 3>(match, b, {batch, n, k}, "b");
  args.bias = match.rows<const Config::BiasElement>(bias, batch, n, "bias");
  args.a_scale = match.rows<const float>(a_scale, batch, m, "a_scale");
  args.b_scale = match.rows<const float>(b_scale, batch, n, "b_scale");
  gemm::run<Shape>(match, args, m, n, k, out.device(), [&] { launch_batched_gemm(args, ffi::stream_of(a)); }, batch);
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(batched_gemm, aiter_like::batched_gemm_ck);
#endif

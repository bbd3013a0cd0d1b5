// SPDX-License-Identifier: MIT
// out = act(a · bᵀ + bias) + residual for gfx942, in 16 bits with sums in fp32, composed from the tile library. One
// build per elements, tile, order of b, and what happens to a sum; gemm_a16w16_body.h, gemm_pipeline.h and gemm_body.h
// have its steps.
//
// Operands go through LDS, 64 of the depth for each wave along it, shuffled weights straight to registers; while a step
// is multiplied the next one is under way. Where out has too few tiles for 304 CUs the depth is split between
// workgroups: their sums go to memory in fp32 and a second kernel adds them up in a fixed order, so that equal calls
// give equal results.
// Bound: MFMA, 2 m n k flop at 1307 TFLOP/s; for few rows memory, 2 n k bytes at 5.3 TB/s.
#include "gemm_a16w16_body.h"
#include "gemm_host.h"

#if !defined(ELEMENT) || !defined(OUT_ELEMENT) || !defined(BIAS_ELEMENT) || !defined(BLOCK_M) || !defined(BLOCK_N) || \
    !defined(WAVES_M) || !defined(WAVES_N) || !defined(WAVES_K) || !defined(HAS_BIAS) || !defined(HAS_RESIDUAL) ||    \
    !defined(HAS_ACTIVATION) || !defined(ACTIVATION) || !defined(SPLITS) || !defined(IS_SHUFFLED) || !defined(IS_GATED)
#error "gemm_a16w16.hip: the macros that ops/gemm/gemm_a16w16.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using Sum = float;
  using OutElement = OUT_ELEMENT;
  using BiasElement = BIAS_ELEMENT;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr int kWavesM = WAVES_M, kWavesN = WAVES_N, kWavesK = WAVES_K;
  static constexpr int kSplits = SPLITS;
  static constexpr bool kIsShuffled = IS_SHUFFLED;
  static constexpr bool kHasBias = HAS_BIAS, kHasResidual = HAS_RESIDUAL, kHasActivation = HAS_ACTIVATION;
  static constexpr Activation kActivation = Activation::ACTIVATION;
  static constexpr bool kIsGated = IS_GATED;
};
using Body = gemm_a16w16::Body<Config>;
using Shape = Body::Shape;
using Args = Body::Args;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) void gemm_a16w16_kernel(Args args) {
  gemm::multiply_tile<Body>(args);
}

__global__ __launch_bounds__(gemm::kSumThreads) void gemm_a16w16_sum_kernel(Args args) {
  Body::sum(args, workgroup_index().x);
}

void launch_gemm_a16w16(const Args& args, Stream stream) {
  gemm::launch_tiles<Shape>(gemm_a16w16_kernel, gemm_a16w16_sum_kernel, args, "gemm_a16w16", stream);
}

#if AITER_LIKE_HOST_PASS

void gemm_a16w16_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::OptionalTensor bias,
                    ffi::OptionalTensor residual, ffi::String, bool is_shuffled) {
  ffi::Match match("gemm_a16w16");
  match.built(is_shuffled == Config::kIsShuffled && bias.has_value() == Config::kHasBias &&
              residual.has_value() == Config::kHasResidual);
  ffi::Size m{"m"}, n{"n"}, k{"k"};
  Args args{};
  args.out = gemm::view_of<Config::OutElement>(match, out, {m, n}, "out");
  const int64_t b_rows = n * (Config::kIsGated ? 2 : 1);
  args.a = gemm::view_of<const Config::Element>(match, a, {m, k}, "a");
  args.b = gemm::view_of<const Config::Element>(match, b, {b_rows, k}, "b");
  match.require(!is_shuffled || (n % 16 == 0 && k % 32 == 0 && args.b.strides[0] == k),
                "shuffled, b must be contiguous, of rows a multiple of 16 and columns of 32");
  args.bias = match.take<const Config::BiasElement>(bias, {b_rows}, "bias");
  args.residual = gemm::view_of<const Config::OutElement>(match, residual, {m, n}, "residual");
  match.require(n % 4 == 0, "n must be a multiple of 4");
  gemm::run<Shape>(match, args, m, b_rows, k, out.device(), [&] {
    args.partials.columns = n;
    launch_gemm_a16w16(args, ffi::stream_of(a));
  });
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gemm_a16w16, aiter_like::gemm_a16w16_ck);
#endif

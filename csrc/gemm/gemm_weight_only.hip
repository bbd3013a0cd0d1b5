// SPDX-License-Identifier: MIT
// out = act(a · ((b − zero_points) · scale)ᵀ + bias) + residual for gfx942, activations in 16 bits, weights in 8 (as
// integers, or fp8) or 4, sums in fp32, composed from the tile library. One build per elements, tile, and what happens
// to a sum; gemm_weight_only_body.h and gemm_body.h have its steps.
//
// Packed weights travel in registers while a step is multiplied and become 16-bit numbers on their way to LDS; for few
// rows they go straight from there to the matrix unit. Where out has too few tiles for 304 CUs the depth is split
// between workgroups; a second kernel adds their sums up in a fixed order, so that equal calls give equal results.
// Bound: MFMA, 2 m n k flop at 1307 TFLOP/s; for few rows memory, n k bytes (of 4-bit weights half) at 5.3 TB/s.
#include "gemm_host.h"
#include "gemm_weight_only_body.h"

#if !defined(ELEMENT) || !defined(OUT_ELEMENT) || !defined(BIAS_ELEMENT) || !defined(SCALE_ELEMENT) || \
    !defined(BITS) || !defined(IS_FP8) || !defined(SCALE_ROWS) || !defined(GROUP_SIZE) || !defined(BLOCK_M) || \
    !defined(BLOCK_N) || !defined(WAVES_M) || !defined(WAVES_N) || !defined(WAVES_K) || !defined(SPLITS) || \
    !defined(HAS_ZERO_POINTS) || !defined(HAS_BIAS) || !defined(HAS_RESIDUAL) || !defined(HAS_ACTIVATION) || \
    !defined(ACTIVATION)
#error "gemm_weight_only.hip: the macros that ops/gemm/gemm_weight_only.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using Sum = float;
  using OutElement = OUT_ELEMENT;
  using BiasElement = BIAS_ELEMENT;
  using ScaleElement = SCALE_ELEMENT;
  static constexpr int kBits = BITS, kGroupSize = GROUP_SIZE, kScaleRows = SCALE_ROWS;
  static constexpr bool kIsFp8 = IS_FP8;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr int kWavesM = WAVES_M, kWavesN = WAVES_N, kWavesK = WAVES_K;
  static constexpr int kSplits = SPLITS;
  static constexpr bool kHasZeroPoints = HAS_ZERO_POINTS, kHasBias = HAS_BIAS, kHasResidual = HAS_RESIDUAL;
  static constexpr bool kHasActivation = HAS_ACTIVATION;
  static constexpr Activation kActivation = Activation::ACTIVATION;
};
using Body = gemm_weight_only::Body<Config>;
using Shape = Body::Shape;
using Args = Body::Args;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) __attribute__((amdgpu_waves_per_eu(Body::kWavesPerSimd)))
void gemm_weight_only_kernel(Args args) {
  gemm::multiply_tile<Body>(args);
}

__global__ __launch_bounds__(gemm::kSumThreads) void gemm_weight_only_sum_kernel(Args args) {
  Body::sum(args, workgroup_index().x);
}

void launch_gemm_weight_only(const Args& args, Stream stream) {
  gemm::launch_tiles<Shape>(gemm_weight_only_kernel, gemm_weight_only_sum_kernel, args, "gemm_weight_only", stream);
}

#if AITER_LIKE_HOST_PASS

void gemm_weight_only_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor scale,
                         ffi::OptionalTensor zero_points, ffi::OptionalTensor bias, ffi::OptionalTensor residual,
                         int64_t bits, int64_t group_size, ffi::String, int64_t scale_rows) {
  using Weights = std::conditional_t<Config::kIsFp8, fp8, int8_t>;
  ffi::Match match("gemm_weight_only");
  match.built(bits == BITS && group_size == GROUP_SIZE && scale_rows == SCALE_ROWS, "weights");
  match.built(zero_points.has_value() == Config::kHasZeroPoints && bias.has_value() == Config::kHasBias &&
              residual.has_value() == Config::kHasResidual);
  ffi::Size m{"m"}, n{"n"}, k{"k"};
  Args args{};
  args.out = gemm::view_of<Config::OutElement>(match, out, {m, n}, "out");
  args.a = gemm::view_of<const Config::Element>(match, a, {m, k}, "a");
  const auto weights = gemm::view_of<const Weights>(match, b, {n, k * BITS / 8}, "b");
  args.b = {reinterpret_cast<const int8_t*>(weights.data), {n, weights.sizes[1]}, {weights.strides[0], 1}};
  const int64_t groups = GROUP_SIZE > 0 ? (k + GROUP_SIZE - 1) / (GROUP_SIZE > 0 ? GROUP_SIZE : 1) : 1;
  constexpr int kScaleRows = SCALE_ROWS > 0 ? SCALE_ROWS : 1;
  const int64_t scales = SCALE_ROWS > 0 ? (n + kScaleRows - 1) / kScaleRows : 1;
  args.scale = gemm::view_of<const Config::ScaleElement>(match, scale, {scales, groups}, "scale", ffi::kDense);
  args.zero_points = gemm::view_of<const int8_t>(match, zero_points, {n, groups}, "zero_points", ffi::kDense);
  args.bias = match.take<const Config::BiasElement>(bias, {n}, "bias");
  args.residual = gemm::view_of<const Config::OutElement>(match, residual, {m, n}, "residual");
  gemm::run<Shape>(match, args, m, n, k, out.device(), [&] { launch_gemm_weight_only(args, ffi::stream_of(a)); });
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gemm_weight_only, aiter_like::gemm_weight_only_ck);
#endif

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

namespace {

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;
constexpr const char* kOp = "gemm_weight_only";

/// The view of what the weights have an entry of per row and group.
template <class T>
tile::MatrixView<const T> entries(const ffi::Tensor& tensor, int64_t n, int64_t groups, const char* name) {
  const auto view = gemm::matrix_view<const T>(tensor, kOp, name);
  if (view.sizes[0] != n || view.sizes[1] != groups || !tensor.IsContiguous())
    TVM_FFI_THROW(ValueError) << kOp << ": " << name << " must be contiguous, of [" << n << ", " << groups << "]";
  return view;
}

template <class T>
tile::MatrixView<const int8_t> bytes_of(const ffi::Tensor& tensor) {
  const auto view = gemm::matrix_view<const T>(tensor, kOp, "b");
  return {reinterpret_cast<const int8_t*>(view.data), {view.sizes[0], view.sizes[1]}, {view.strides[0], 1}};
}

}  // namespace

void gemm_weight_only_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor scale, OptionalTensor zero_points,
                         OptionalTensor bias, OptionalTensor residual, int64_t bits, int64_t group_size, ffi::String,
                         int64_t scale_rows) {
  Args args{};
  args.a = gemm::matrix_view<const Config::Element>(a, kOp, "a");
  args.b = bytes_of<std::conditional_t<Config::kIsFp8, fp8, int8_t>>(b);
  args.out = gemm::matrix_view<Config::OutElement>(out, kOp, "out");
  const int64_t m = args.out.sizes[0], n = args.out.sizes[1], k = args.a.sizes[1];
  check_value(bits == BITS && group_size == GROUP_SIZE && scale_rows == SCALE_ROWS,
              "gemm_weight_only: this module was built for other weights");
  check_value(args.a.sizes[0] == m && args.b.sizes[0] == n && args.b.sizes[1] * 8 == k * BITS,
              "gemm_weight_only: a must be [m, k], b [n, k weights], out [m, n]");
  check_value(k % Shape::kRun == 0 && n % 4 == 0, "gemm_weight_only: k must be a multiple of 8, n of 4");
  check_value(zero_points.has_value() == Config::kHasZeroPoints && bias.has_value() == Config::kHasBias &&
                  residual.has_value() == Config::kHasResidual,
              "gemm_weight_only: this module was built with other optional arguments than the call has");
  const int64_t groups = GROUP_SIZE > 0 ? (k + GROUP_SIZE - 1) / (GROUP_SIZE > 0 ? GROUP_SIZE : 1) : 1;
  constexpr int kScaleRows = SCALE_ROWS > 0 ? SCALE_ROWS : 1;
  const int64_t scale_entries = SCALE_ROWS > 0 ? (n + kScaleRows - 1) / kScaleRows : 1;
  args.scale = entries<Config::ScaleElement>(scale, scale_entries, groups, "scale");
  if (zero_points.has_value()) args.zero_points = entries<int8_t>(zero_points.value(), n, groups, "zero_points");
  if (bias.has_value()) args.bias = gemm::vector_of<Config::BiasElement>(bias.value(), n, kOp, "bias");
  if (residual.has_value()) {
    args.residual = gemm::matrix_view<const Config::OutElement>(residual.value(), kOp, "residual");
    check_value(args.residual.sizes[0] == m && args.residual.sizes[1] == n,
                "gemm_weight_only: residual must be [m, n]");
  }
  if (m == 0 || n == 0) return;
  args.order = gemm::tiles_of<Shape>(m, n, kOp);
  args.split_depth = gemm::split_depth_of<Shape>(k);
  const Stream stream = ffi::stream_of(a);
  gemm::with_partials<Shape>(args, m, n, out.device(), [&] { launch_gemm_weight_only(args, stream); });
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gemm_weight_only, aiter_like::gemm_weight_only_ck);
#endif

// SPDX-License-Identifier: MIT
// out = act(a · bᵀ + bias) + residual for gfx942, in 16 bits with sums in fp32, composed from the tile library. One
// build per elements, tile, and what happens to a sum; gemm_a16w16_body.h has its steps.
//
// Operands go through LDS, 64 of the depth for each wave along it; while a step is multiplied the next one is under way
// in registers. Where out has too few tiles for 304 CUs the depth is split between workgroups: their sums go to memory
// in fp32 and a second kernel adds them up in a fixed order, so that equal calls give equal results.
// Bound: MFMA, 2 m n k flop at 1307 TFLOP/s; for few rows memory, 2 n k bytes at 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "gemm_a16w16_body.h"

#if !defined(ELEMENT) || !defined(OUT_ELEMENT) || !defined(BIAS_ELEMENT) || !defined(BLOCK_M) || !defined(BLOCK_N) || \
    !defined(WAVES_M) || !defined(WAVES_N) || !defined(WAVES_K) || !defined(HAS_BIAS) || !defined(HAS_RESIDUAL) ||    \
    !defined(HAS_ACTIVATION) || !defined(ACTIVATION) || !defined(SPLITS)
#error "gemm_a16w16.hip: the macros that ops/gemm/gemm_a16w16.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using OutElement = OUT_ELEMENT;
  using BiasElement = BIAS_ELEMENT;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr int kWavesM = WAVES_M, kWavesN = WAVES_N, kWavesK = WAVES_K;
  static constexpr bool kHasBias = HAS_BIAS, kHasResidual = HAS_RESIDUAL, kHasActivation = HAS_ACTIVATION;
  static constexpr Activation kActivation = Activation::ACTIVATION;
  static constexpr bool kIsSplit = SPLITS > 1;
};
using Shape = gemm_a16w16::Shape<Config>;
using Args = Shape::Args;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) void gemm_a16w16_kernel(Args args) {
  __shared__ Shape::Memory lds;
  gemm_a16w16::product_body<Config>(args, workgroup_index(), lds);
}

__global__ __launch_bounds__(gemm_a16w16::kSumThreads) void gemm_a16w16_sum_kernel(Args args) {
  gemm_a16w16::sum_body<Config>(args, workgroup_index().x, SPLITS);
}

// Both passes compile this function: the device pass emits a kernel only where a launch of it is instantiated.
void launch_gemm_a16w16(const Args& args, Stream stream) {
  gemm_a16w16_kernel<<<dim3(args.order.rows * args.order.columns, 1, SPLITS), Shape::kThreads, 0, stream>>>(args);
  check_launch("gemm_a16w16_kernel");
  if constexpr (Config::kIsSplit) {
    constexpr int64_t kPerGroup = gemm_a16w16::kSumThreads * gemm_a16w16::kSumColumns;
    const int64_t groups = (args.out.sizes[0] * args.out.sizes[1] + kPerGroup - 1) / kPerGroup;
    gemm_a16w16_sum_kernel<<<dim3(static_cast<uint32_t>(groups)), gemm_a16w16::kSumThreads, 0, stream>>>(args);
    check_launch("gemm_a16w16_sum_kernel");
  }
}

#if AITER_LIKE_HOST_PASS

namespace {

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

constexpr int64_t kMaxRowBytes = int64_t{1} << 23;  // 256 rows within 31 bits

/// The view of a matrix with contiguous rows. A single row is as far from the next one as it is long.
template <class T>
tile::MatrixView<T> view_of(const ffi::Tensor& tensor) {
  ffi::check_type(ffi::has_element<std::remove_const_t<T>>(tensor),
                  "gemm_a16w16: a, b, out and residual must have the dtypes that this module was built for");
  check_value(tensor.ndim() == 2 && (tensor.size(1) <= 1 || tensor.stride(1) == 1),
              "gemm_a16w16: a, b, out and residual must be matrices with contiguous rows");
  const int64_t stride = tensor.size(0) > 1 ? tensor.stride(0) : tensor.size(1);
  check_value(stride >= tensor.size(1) && stride * static_cast<int64_t>(sizeof(T)) < kMaxRowBytes,
              "gemm_a16w16: rows must not overlap, nor be 2^23 bytes apart");
  return {static_cast<T*>(tensor.data_ptr()), {tensor.size(0), tensor.size(1)}, {stride, 1}};
}

}  // namespace

void gemm_a16w16_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, OptionalTensor bias, OptionalTensor residual,
                    ffi::String) {
  Args args{};
  args.a = view_of<const Config::Element>(a);
  args.b = view_of<const Config::Element>(b);
  args.out = view_of<Config::OutElement>(out);
  const int64_t m = args.out.sizes[0], n = args.out.sizes[1], k = args.a.sizes[1];
  check_value(args.a.sizes[0] == m && args.b.sizes[0] == n && args.b.sizes[1] == k,
              "gemm_a16w16: a must be [m, k], b [n, k], out [m, n]");
  check_value(k % Shape::kRun == 0 && n % 4 == 0, "gemm_a16w16: k must be a multiple of 8, n of 4");
  check_value(bias.has_value() == Config::kHasBias && residual.has_value() == Config::kHasResidual,
              "gemm_a16w16: this module was built with or without bias and residual, the call is the other");
  if (bias.has_value()) {
    const ffi::Tensor values = bias.value();
    ffi::check_type(ffi::has_element<Config::BiasElement>(values), "gemm_a16w16: bias has another dtype");
    check_value(values.ndim() == 1 && values.size(0) == n && values.IsContiguous(), "gemm_a16w16: bias must be [n]");
    args.bias = static_cast<const Config::BiasElement*>(values.data_ptr());
  }
  if (residual.has_value()) {
    args.residual = view_of<const Config::OutElement>(residual.value());
    check_value(args.residual.sizes[0] == m && args.residual.sizes[1] == n, "gemm_a16w16: residual must be [m, n]");
  }
  if (m == 0 || n == 0) return;
  const int64_t rows = (m + BLOCK_M - 1) / BLOCK_M, columns = (n + BLOCK_N - 1) / BLOCK_N;
  constexpr int64_t kMaxGrid = int64_t{1} << 31;
  check_value(rows < kMaxGrid && columns < kMaxGrid && rows * columns < kMaxGrid / Shape::kThreads &&
                  (!Config::kIsSplit || m * n < kMaxGrid),
              "gemm_a16w16: out has too many tiles for one launch");
  args.order = {static_cast<uint32_t>(rows), static_cast<uint32_t>(columns)};
  constexpr int64_t kStep = Shape::kDepth * SPLITS;
  args.split_depth = (k + kStep - 1) / kStep * Shape::kDepth;
  const Stream stream = ffi::stream_of(a);
  if constexpr (Config::kIsSplit) {
    const ffi::Scratch partials(SPLITS * m * n * static_cast<int64_t>(sizeof(float)), out.device());
    args.partials = static_cast<float*>(partials.data());
    launch_gemm_a16w16(args, stream);
  } else {
    launch_gemm_a16w16(args, stream);
  }
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gemm_a16w16, aiter_like::gemm_a16w16_ck);
#endif

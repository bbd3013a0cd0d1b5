// SPDX-License-Identifier: MIT
// out = act(a · bᵀ + bias) + residual for at most 16 rows of a; HIP (gfx942) and CUDA (sm_80 and later). One build per
// elements, block, and what happens to a sum; gemm_a16w16_skinny_body.h has the kernel.
//
// Where out has too few columns for all CUs the depth is split between workgroups: their sums go to memory in fp32 and
// a second kernel adds them up in a fixed order, so that equal calls give equal results.
// Bound: memory, 2 n k bytes of weights: 8192 × 8192 = 134 MB, 25 us at 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "gemm_a16w16_skinny_body.h"

#if !defined(ELEMENT) || !defined(OUT_ELEMENT) || !defined(BIAS_ELEMENT) || !defined(BLOCK_M) || !defined(BLOCK_N) || \
    !defined(WAVES) || !defined(STAGES) || !defined(SPLITS) || !defined(HAS_BIAS) || !defined(HAS_RESIDUAL) ||        \
    !defined(HAS_ACTIVATION) || !defined(ACTIVATION) || !defined(IS_GATED)
#error "gemm_a16w16_skinny.hip: the macros that ops/gemm/gemm_a16w16.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using OutElement = OUT_ELEMENT;
  using BiasElement = BIAS_ELEMENT;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N, kWaves = WAVES, kStages = STAGES, kSplits = SPLITS;
  static constexpr bool kHasBias = HAS_BIAS, kHasResidual = HAS_RESIDUAL, kHasActivation = HAS_ACTIVATION;
  static constexpr bool kIsGated = IS_GATED;
  [[maybe_unused]] static constexpr Activation kActivation = Activation::ACTIVATION;
};
using Shape = skinny::Shape<Config>;
using Args = SkinnyArgs<Shape>;

}  // namespace

template <bool kIsAligned>
__global__ __launch_bounds__(Shape::kThreads) void gemm_a16w16_skinny_kernel(Args args) {
  await_stream();
  __shared__ Shape::Memory lds[Shape::kWaves];
  skinny::product_body<Shape, kIsAligned>(args, workgroup_index(), lds);
}

__global__ __launch_bounds__(skinny::kSumThreads) void gemm_a16w16_skinny_sum_kernel(Args args) {
  await_stream();
  skinny::sum_body<Shape>(args, workgroup_index().x);
}

// Both passes compile this function: the device pass emits a kernel only where a launch of it is instantiated.
void launch_gemm_a16w16_skinny(const Args& args, bool is_aligned, Stream stream) {
  const dim3 grid((args.columns + BLOCK_N - 1) / BLOCK_N, SPLITS);
  if (is_aligned) launch_overlapped(gemm_a16w16_skinny_kernel<true>, grid, Shape::kThreads, stream, args);
  else launch_overlapped(gemm_a16w16_skinny_kernel<false>, grid, Shape::kThreads, stream, args);
  check_launch("gemm_a16w16_skinny_kernel");
  if constexpr (Shape::kSplits > 1) {
    const uint32_t groups = (args.rows * args.columns + skinny::kSumThreads - 1) / skinny::kSumThreads;
    launch_overlapped(gemm_a16w16_skinny_sum_kernel, dim3(groups), skinny::kSumThreads, stream, args);
    check_launch("gemm_a16w16_skinny_sum_kernel");
  }
}

#if AITER_LIKE_HOST_PASS

namespace {

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

template <class T>
T* data_of(const ffi::Tensor& tensor, const char* name) {
  if (!ffi::has_element<std::remove_const_t<T>>(tensor))
    TVM_FFI_THROW(TypeError) << "gemm_a16w16: " << name << " has another dtype than this module was built for";
  return static_cast<T*>(tensor.data_ptr());
}

bool is_matrix(const ffi::Tensor& tensor, int64_t rows, int64_t columns) {
  return tensor.ndim() == 2 && tensor.size(0) == rows && tensor.size(1) == columns;
}

/// In elements. That of a single row or column is of no account.
uint32_t stride_of(const ffi::Tensor& tensor, int dimension) {
  if (tensor.size(dimension) <= 1) return 0;
  check_value(tensor.stride(dimension) < int64_t{1} << 31, "gemm_a16w16: strides must be less than 2^31 elements");
  return static_cast<uint32_t>(tensor.stride(dimension));
}

bool are_rows_aligned(const ffi::Tensor& tensor) {
  const auto stride = static_cast<uintptr_t>(tensor.stride(0) * static_cast<int64_t>(sizeof(Config::Element)));
  return (reinterpret_cast<uintptr_t>(tensor.data_ptr()) | (tensor.size(0) > 1 ? stride : 0)) % 16 == 0;
}

}  // namespace

void gemm_a16w16_skinny(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, OptionalTensor bias, OptionalTensor residual,
                        ffi::String, bool is_shuffled) {
  check_value(out.ndim() == 2 && a.ndim() == 2, "gemm_a16w16: a must be [m, k], b [n, k], out [m, n]");
  const int64_t m = out.size(0), n = out.size(1), k = a.size(1), b_rows = n * Shape::kHalves;
  check_value(is_matrix(a, m, k) && is_matrix(b, b_rows, k), "gemm_a16w16: a must be [m, k], b [n, k], out [m, n]");
  check_value(!is_shuffled, "gemm_a16w16: b must not be shuffled here");
  check_value(m <= BLOCK_M && k >= Shape::Unit::kRun, "gemm_a16w16: this module was built for other numbers of rows");
  check_value(n < int64_t{1} << 21 && k < int64_t{1} << 30, "gemm_a16w16: n must be less than 2^21, k than 2^30");
  check_value(a.stride(1) == 1 && b.stride(1) == 1, "gemm_a16w16: rows of a and b must be contiguous");
  check_value(bias.has_value() == Config::kHasBias && residual.has_value() == Config::kHasResidual,
              "gemm_a16w16: this module was built with or without bias and residual, the call is the other");
  Args args{};
  args.a = data_of<const Config::Element>(a, "a");
  args.b = data_of<const Config::Element>(b, "b");
  args.out = data_of<Config::OutElement>(out, "out");
  args.a_row = stride_of(a, 0), args.b_row = stride_of(b, 0);
  args.out_row = stride_of(out, 0), args.out_column = stride_of(out, 1);
  args.rows = static_cast<uint32_t>(m), args.columns = static_cast<uint32_t>(n);
  args.depth = static_cast<uint32_t>(k);
  if (bias.has_value()) {
    const ffi::Tensor values = bias.value();
    check_value(values.ndim() == 1 && values.size(0) == b_rows && values.IsContiguous(),
                "gemm_a16w16: bias must have an element for each row of b");
    args.bias = data_of<const Config::BiasElement>(values, "bias");
  }
  if (residual.has_value()) {
    const ffi::Tensor values = residual.value();
    check_value(is_matrix(values, m, n), "gemm_a16w16: residual must be [m, n]");
    args.residual = data_of<const Config::OutElement>(values, "residual");
    args.residual_row = stride_of(values, 0), args.residual_column = stride_of(values, 1);
  }
  if (m == 0 || n == 0) return;
  const Stream stream = ffi::stream_of(a);
  const bool is_aligned = are_rows_aligned(a) && are_rows_aligned(b);
  if constexpr (Shape::kSplits > 1) {
    const ffi::Scratch partials(SPLITS * Shape::kHalves * m * n * static_cast<int64_t>(sizeof(float)), out.device());
    args.partials = static_cast<float*>(partials.data());
    launch_gemm_a16w16_skinny(args, is_aligned, stream);
  } else {
    launch_gemm_a16w16_skinny(args, is_aligned, stream);
  }
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gemm_a16w16_skinny, aiter_like::gemm_a16w16_skinny);
#endif

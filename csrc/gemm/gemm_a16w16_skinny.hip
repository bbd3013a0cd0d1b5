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
  const dim3 grid((args.columns + Shape::kBlockN - 1) / Shape::kBlockN, Shape::kSplits);
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

void gemm_a16w16_skinny(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::OptionalTensor bias,
                        ffi::OptionalTensor residual, ffi::String, bool is_shuffled) {
  ffi::Match match("gemm_a16w16");
  match.built(!is_shuffled && bias.has_value() == Config::kHasBias && residual.has_value() == Config::kHasResidual);
  ffi::Size m{"m"}, n{"n", 1 << 21}, k{"k", 1 << 30};
  const auto y = match.take<Config::OutElement>(out, {m, n}, "out", ffi::kStrided);
  const auto rows = match.take<const Config::Element>(a, {m, k}, "a");
  const auto columns = match.take<const Config::Element>(b, {n * Shape::kHalves, k}, "b");
  const auto added = match.take<const Config::OutElement>(residual, {m, n}, "residual", ffi::kStrided);
  match.built(m <= BLOCK_M && k >= Shape::Unit::kRun, "numbers of rows");
  Args args{};
  args.out = y, args.out_row = match.near_step(y, 0), args.out_column = match.near_step(y, 1);
  args.a = rows, args.a_row = match.near_step(rows, 0);
  args.b = columns, args.b_row = match.near_step(columns, 0);
  args.residual = added;
  args.residual_row = match.near_step(added, 0), args.residual_column = match.near_step(added, 1);
  args.bias = match.take<const Config::BiasElement>(bias, {n * Shape::kHalves}, "bias");
  args.rows = m, args.columns = n, args.depth = k;
  if (m == 0 || n == 0) return;
  const int64_t sums = Shape::kSplits > 1 ? SPLITS * Shape::kHalves * m * n : 0;
  const ffi::Scratch partials(sums * int64_t{sizeof(float)}, out.device());
  args.partials = partials.data<float>();
  const bool is_aligned = ffi::are_rows_aligned(a, 16) && ffi::are_rows_aligned(b, 16);
  launch_gemm_a16w16_skinny(args, is_aligned, ffi::stream_of(a));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gemm_a16w16_skinny, aiter_like::gemm_a16w16_skinny);
#endif

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

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

void batched_gemm_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, OptionalTensor bias, OptionalTensor a_scale,
                     OptionalTensor b_scale) {
  constexpr const char* kOp = "batched_gemm";
  Args args{};
  args.a = gemm::batch_view<const Config::Element>(a, kOp, "a");
  args.b = gemm::batch_view<const Config::Element>(b, kOp, "b");
  args.out = gemm::batch_view<Config::OutElement>(out, kOp, "out");
  const int64_t batch = args.out.sizes[0], m = args.out.sizes[1], n = args.out.sizes[2], k = args.a.sizes[2];
  check_value(args.a.sizes[0] == batch && args.b.sizes[0] == batch && args.a.sizes[1] == m && args.b.sizes[1] == n &&
                  args.b.sizes[2] == k,
              "batched_gemm: a must be [batch, m, k], b [batch, n, k], out [batch, m, n]");
  check_value(k % Shape::kRun == 0 && n % 4 == 0,
              "batched_gemm: k must be a multiple of 16 bytes of elements, n of 4");
  check_value(bias.has_value() == Config::kHasBias && a_scale.has_value() == Config::kHasScales &&
                  b_scale.has_value() == Config::kHasScales,
              "batched_gemm: this module was built with or without bias and scales, the call is the other");
  if (bias.has_value()) args.bias = gemm::vectors_of<Config::BiasElement>(bias.value(), batch, n, kOp, "bias");
  if (a_scale.has_value()) args.a_scale = gemm::vectors_of<float>(a_scale.value(), batch, m, kOp, "a_scale");
  if (b_scale.has_value()) args.b_scale = gemm::vectors_of<float>(b_scale.value(), batch, n, kOp, "b_scale");
  if (batch == 0 || m == 0 || n == 0) return;
  args.order = gemm::tiles_of<Shape>(m, n, kOp, batch);
  args.split_depth = gemm::split_depth_of<Shape>(k);
  const Stream stream = ffi::stream_of(a);
  gemm::with_partials<Shape>(args, m, n, out.device(), [&] { launch_batched_gemm(args, stream); }, batch);
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(batched_gemm, aiter_like::batched_gemm_ck);
#endif

// SPDX-License-Identifier: MIT
// out = (a · bᵀ) · a_scale · b_scale + bias for gfx942, of fp8 (sums in fp32) or int8 (sums in int32, exact), composed
// from the tile library. One build per elements, tile and layout of b; gemm_a8w8_body.h, gemm_pipeline.h and
// gemm_body.h have its steps.
//
// a goes through LDS, 128 of the depth for each wave along it, and so does b where it stands in rows; shuffled, its
// packs of 16 bytes go straight to the registers of the lanes that multiply them. The next step is under way in
// registers while one is multiplied. Splits of the depth are added up by a second kernel, in a fixed order.
// Bound: MFMA, 2 m n k operations at 2615 T/s; for few rows memory, n k bytes at 5.3 TB/s.
#include "gemm_a8w8_body.h"
#include "gemm_host.h"

#if !defined(ELEMENT) || !defined(OUT_ELEMENT) || !defined(BIAS_ELEMENT) || !defined(BLOCK_M) || !defined(BLOCK_N) || \
    !defined(WAVES_M) || !defined(WAVES_N) || !defined(WAVES_K) || !defined(SPLITS) || !defined(B_BAND) ||            \
    !defined(HAS_BIAS)
#error "gemm_a8w8.hip: the macros that ops/gemm/gemm_a8w8.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using Sum = std::conditional_t<std::is_same_v<Element, int8_t>, int32_t, float>;
  using OutElement = OUT_ELEMENT;
  using BiasElement = BIAS_ELEMENT;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr int kWavesM = WAVES_M, kWavesN = WAVES_N, kWavesK = WAVES_K;
  static constexpr int kSplits = SPLITS, kBand = B_BAND;
  static constexpr bool kHasBias = HAS_BIAS;
};
using Body = gemm_a8w8::Body<Config>;
using Shape = Body::Shape;
using Args = Body::Args;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) void gemm_a8w8_kernel(Args args) {
  gemm::multiply_tile<Body>(args);
}

__global__ __launch_bounds__(gemm::kSumThreads) void gemm_a8w8_sum_kernel(Args args) {
  Body::sum(args, workgroup_index().x);
}

void launch_gemm_a8w8(const Args& args, Stream stream) {
  gemm::launch_tiles<Shape>(gemm_a8w8_kernel, gemm_a8w8_sum_kernel, args, "gemm_a8w8", stream);
}

#if AITER_LIKE_HOST_PASS

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

void gemm_a8w8_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor a_scale, ffi::Tensor b_scale,
                  OptionalTensor bias, int64_t band, bool) {
  constexpr const char* kOp = "gemm_a8w8";
  Args args{};
  args.a = gemm::matrix_view<const Config::Element>(a, kOp, "a");
  args.b = gemm::matrix_view<const Config::Element>(b, kOp, "b");
  args.out = gemm::matrix_view<Config::OutElement>(out, kOp, "out");
  const int64_t m = args.out.sizes[0], n = args.out.sizes[1], k = args.a.sizes[1], columns = args.b.sizes[1];
  check_value(args.a.sizes[0] == m && args.b.sizes[0] == n && (B_BAND > 0 ? columns >= k : columns == k),
              "gemm_a8w8: a must be [m, k], b [n, k], out [m, n]");
  check_value(k % Shape::kRun == 0 && n % 4 == 0, "gemm_a8w8: k must be a multiple of 16, n of 4");
  check_value(band == B_BAND, "gemm_a8w8: this module was built for another layout of b");
  if constexpr (B_BAND > 0)
    check_value(n % B_BAND == 0 && columns % Shape::kRun == 0 && (n <= 1 || args.b.strides[0] == columns),
                "gemm_a8w8: shuffled, b must be contiguous, of whole bands and packs");
  const auto scales = [&](const ffi::Tensor& scale, int64_t count, const char* name) {
    const bool is_each = scale.ndim() != 1 || scale.size(0) != 1;
    return GemmScales{gemm::vector_of<float>(scale, is_each ? count : 1, kOp, name), is_each};
  };
  args.a_scale = scales(a_scale, m, "a_scale");
  args.b_scale = scales(b_scale, n, "b_scale");
  check_value(bias.has_value() == Config::kHasBias,
              "gemm_a8w8: this module was built with or without bias, the call is the other");
  if (bias.has_value()) args.bias = gemm::vector_of<Config::BiasElement>(bias.value(), n, kOp, "bias");
  if (m == 0 || n == 0) return;
  args.order = gemm::tiles_of<Shape>(m, n, kOp);
  args.split_depth = gemm::split_depth_of<Shape>(k);
  const Stream stream = ffi::stream_of(a);
  gemm::with_partials<Shape>(args, m, n, out.device(), [&] { launch_gemm_a8w8(args, stream); });
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gemm_a8w8, aiter_like::gemm_a8w8_ck);
#endif

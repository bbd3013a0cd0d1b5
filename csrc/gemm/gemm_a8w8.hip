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

void gemm_a8w8_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor a_scale, ffi::Tensor b_scale,
                  ffi::OptionalTensor bias, int64_t band, bool) {
  ffi::Match match("gemm_a8w8");
  match.built(band == B_BAND && bias.has_value() == Config::kHasBias);
  ffi::Size m{"m"}, n{"n"}, k{"k"};
  Args args{};
  args.out = gemm::view_of<Config::OutElement>(match, out, {m, n}, "out");
  args.a = gemm::view_of<const Config::Element>(match, a, {m, k}, "a");
  args.b = gemm::view_of<const Config::Element>(match, b, {n, B_BAND > 0 ? ffi::at_least(k) : k}, "b");
  if constexpr (B_BAND > 0)
    match.require(n % B_BAND == 0 && args.b.sizes[1] % Shape::kRun == 0 && args.b.strides[0] == args.b.sizes[1],
                  "shuffled, b must be contiguous, of whole bands and packs");
  const auto scales = [&](const ffi::Tensor& scale, ffi::Size& count, const char* name) {
    const bool is_each = scale.ndim() != 1 || scale.size(0) != 1;
    return GemmScales{match.take<const float>(scale, {is_each ? count : ffi::Dim(1)}, name), is_each};
  };
  args.a_scale = scales(a_scale, m, "a_scale");
  args.b_scale = scales(b_scale, n, "b_scale");
  args.bias = match.take<const Config::BiasElement>(bias, {n}, "bias");
  gemm::run<Shape>(match, args, m, n, k, out.device(), [&] { launch_gemm_a8w8(args, ffi::stream_of(a)); });
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gemm_a8w8, aiter_like::gemm_a8w8_ck);
#endif

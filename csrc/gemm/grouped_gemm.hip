// SPDX-License-Identifier: MIT
// out = a_scale · (a · bᵀ) · b_scale + bias on gfx942, each group of rows with a matrix b of its own, in 16 bits, fp8
// or int8, composed from the tile library. One build per elements, tile, and what happens to a sum; grouped_gemm_body.h
// and gemm_body.h have its steps.
//
// The sizes of the groups are on the device: the launch has as many tiles of rows as they can need at most, and a
// workgroup finds its group. Rows stand sorted by group, or an index chooses them, as a router sorts tokens by expert.
// Bound: MFMA, 2 rows n k flop at 1307 TFLOP/s in 16 bits and twice that in 8; for few rows per group memory, the bytes
// of b at 5.3 TB/s.
#include "gemm_host.h"
#include "grouped_gemm_body.h"

#if !defined(ELEMENT) || !defined(SUM) || !defined(OUT_ELEMENT) || !defined(BIAS_ELEMENT) || !defined(BLOCK_M) || \
    !defined(BLOCK_N) || !defined(WAVES_M) || !defined(WAVES_N) || !defined(WAVES_K) || !defined(HAS_BIAS) ||     \
    !defined(HAS_SCALES) || !defined(SPLITS) || !defined(IS_GATHERED) || !defined(IS_SHUFFLED)
#error "grouped_gemm.hip: the macros that ops/gemm/grouped_gemm.py gives are missing"
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
  static constexpr bool kHasBias = HAS_BIAS, kHasScales = HAS_SCALES, kIsGathered = IS_GATHERED;
  static constexpr bool kIsShuffled = IS_SHUFFLED;
};
using Body = grouped_gemm::Body<Config>;
using Shape = Body::Shape;
using Args = Body::Args;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) void grouped_gemm_kernel(Args args) {
  gemm::multiply_tile<Body>(args);
}

void launch_grouped_gemm(const Args& args, Stream stream) {
  gemm::launch_tiles<Shape, Args>(grouped_gemm_kernel, nullptr, args, "grouped_gemm", stream);
}

#if AITER_LIKE_HOST_PASS

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

void grouped_gemm_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor group_offsets, OptionalTensor bias,
                     OptionalTensor a_scale, OptionalTensor b_scale, OptionalTensor row_index, bool is_shuffled) {
  constexpr const char* kOp = "grouped_gemm";
  Args args{};
  args.a = gemm::matrix_view<const Config::Element>(a, kOp, "a");
  args.b = gemm::batch_view<const Config::Element>(b, kOp, "b");
  args.out = gemm::matrix_view<Config::OutElement>(out, kOp, "out");
  const int64_t groups = args.b.sizes[0], rows = args.out.sizes[0], n = args.out.sizes[1], k = args.a.sizes[1];
  check_value(args.b.sizes[1] == n && args.b.sizes[2] == k && (Config::kIsGathered || args.a.sizes[0] == rows),
              "grouped_gemm: a must be [rows, k], b [groups, n, k], out [rows, n]");
  check_value(is_shuffled == Config::kIsShuffled,
              "grouped_gemm: this module was built for shuffled weights or for others, the call has the other ones");
  if (is_shuffled)
    check_value(n % 16 == 0 && k % 32 == 0 && args.b.strides[1] == k && args.b.strides[0] == n * k,
                "grouped_gemm: shuffled, b must be contiguous with n % 16 == 0 and k % 32 == 0");
  check_value(k % Shape::kRun == 0 && n % 4 == 0, "grouped_gemm: k must be a multiple of 16 bytes of elements, n of 4");
  check_value(bias.has_value() == Config::kHasBias && a_scale.has_value() == Config::kHasScales &&
                  b_scale.has_value() == Config::kHasScales && row_index.has_value() == Config::kIsGathered,
              "grouped_gemm: this module was built with or without bias, scales and row_index, the call is the other");
  args.group_offsets = gemm::vector_of<int32_t>(group_offsets, groups + 1, kOp, "group_offsets");
  if (bias.has_value()) args.bias = gemm::vectors_of<Config::BiasElement>(bias.value(), groups, n, kOp, "bias");
  if (a_scale.has_value()) args.a_scale = gemm::vector_of<float>(a_scale.value(), args.a.sizes[0], kOp, "a_scale");
  if (b_scale.has_value()) args.b_scale = gemm::vectors_of<float>(b_scale.value(), groups, n, kOp, "b_scale");
  if (row_index.has_value()) {
    args.row_index = gemm::vector_of<int32_t>(row_index.value(), rows, kOp, "row_index");
    constexpr int64_t kMaxBytes = int64_t{1} << 31;
    check_value(args.a.sizes[0] * args.a.strides[0] * static_cast<int64_t>(sizeof(Config::Element)) < kMaxBytes,
                "grouped_gemm: the rows that row_index chooses from must lie within 2^31 bytes");
  }
  if (groups == 0 || rows == 0 || n == 0 || args.a.sizes[0] == 0) return;
  args.order = gemm::tiles_of<Shape>((rows / Shape::kBlockM + groups) * Shape::kBlockM, n, kOp);
  launch_grouped_gemm(args, ffi::stream_of(a));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(grouped_gemm, aiter_like::grouped_gemm_ck);
#endif

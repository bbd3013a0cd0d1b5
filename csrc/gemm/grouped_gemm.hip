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

void grouped_gemm_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor group_offsets,
                     ffi::OptionalTensor bias, ffi::OptionalTensor a_scale, ffi::OptionalTensor b_scale,
                     ffi::OptionalTensor row_index, bool is_shuffled) {
  ffi::Match match("grouped_gemm");
  match.built(is_shuffled == Config::kIsShuffled && bias.has_value() == Config::kHasBias &&
              a_scale.has_value() == Config::kHasScales && b_scale.has_value() == Config::kHasScales &&
              row_index.has_value() == Config::kIsGathered);
  ffi::Size groups{"groups"}, rows{"rows"}, n{"n"}, k{"k"}, chosen{"rows of a"};
  ffi::Size& a_rows = Config::kIsGathered ? chosen : rows;
  Args args{};
  args.out = gemm::view_of<Config::OutElement>(match, out, {rows, n}, "out");
  args.a = gemm::view_of<const Config::Element>(match, a, {a_rows, k}, "a");
  args.b = gemm::view_of<const Config::Element, 3>(match, b, {groups, n, k}, "b");
  if (is_shuffled)
    match.require(n % 16 == 0 && k % 32 == 0 && args.b.strides[1] == k && args.b.strides[0] == n * k,
                  "shuffled, b must be contiguous with n % 16 == 0 and k % 32 == 0");
  match.require(k % Shape::kRun == 0 && n % 4 == 0, "k must be a multiple of 16 bytes of elements, n of 4");
  args.group_offsets = match.take<const int32_t>(group_offsets, {groups + 1}, "group_offsets");
  args.bias = match.rows<const Config::BiasElement>(bias, groups, n, "bias");
  args.a_scale = match.take<const float>(a_scale, {a_rows}, "a_scale");
  args.b_scale = match.rows<const float>(b_scale, groups, n, "b_scale");
  args.row_index = match.take<const int32_t>(row_index, {rows}, "row_index");
  constexpr int64_t kMost = (int64_t{1} << 31) / sizeof(Config::Element);
  match.require(!Config::kIsGathered || a_rows * args.a.strides[0] < kMost,
                "the rows that row_index chooses from must lie within 2^31 bytes");
  if (groups == 0 || rows == 0 || n == 0 || a_rows == 0) return;
  args.order = gemm::tiles_of<Shape>(match, (rows / Shape::kBlockM + groups) * Shape::kBlockM, n);
  launch_grouped_gemm(args, ffi::stream_of(a));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(grouped_gemm, aiter_like::grouped_gemm_ck);
#endif

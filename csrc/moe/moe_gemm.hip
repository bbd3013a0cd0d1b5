// SPDX-License-Identifier: MIT
// out[pair] = act((a_scale · (a[row] · b[expert]ᵀ) · b_scale + bias) · weight) on gfx942 for the pairs of token and
// expert that moe_sorting has sorted, in 16 bits, fp8 or int8, scales of rows and columns or of blocks, composed from
// the tile library. One build per elements, tile, order of the weights, and what happens to a sum; moe_gemm_body.h,
// gemm_pipeline.h, gemm_scaled_pipeline.h and gemm_body.h have its steps.
//
// A tile's rows are those of a block of sorted places, or some of them; how many count is on the device. The launch has
// tiles for all places, and those that count are the first ones, spread evenly over the XCDs: workgroups beyond leave.
// Tiles that run together have the same columns of an expert's weights.
// Bound: MFMA, 2 pairs n k flop at 1307 TFLOP/s in 16 bits and twice that in 8; for few pairs of an expert memory, the
// bytes of b at 5.3 TB/s.
#include "../gemm/gemm_host.h"
#include "moe_gemm_body.h"

#if !defined(ELEMENT) || !defined(SUM) || !defined(OUT_ELEMENT) || !defined(BIAS_ELEMENT) || !defined(BLOCK_M) ||     \
    !defined(BLOCK_N) || !defined(WAVES_M) || !defined(WAVES_N) || !defined(WAVES_K) || !defined(HAS_BIAS) ||         \
    !defined(HAS_SCALES) || !defined(HAS_BLOCK_SCALES) || !defined(SPLITS) || !defined(IS_SHUFFLED) ||                \
    !defined(HAS_ACTIVATION) || !defined(ACTIVATION) || !defined(IS_GATED) || !defined(IS_INTERLEAVED)
#error "moe_gemm.hip: the macros that ops/moe/moe_gemm_ck.py gives are missing"
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
  static constexpr bool kHasBias = HAS_BIAS, kHasScales = HAS_SCALES, kHasBlockScales = HAS_BLOCK_SCALES;
  static constexpr bool kIsShuffled = IS_SHUFFLED;
  static constexpr bool kHasActivation = HAS_ACTIVATION, kIsGated = IS_GATED, kIsInterleaved = IS_INTERLEAVED;
  static constexpr Activation kActivation = Activation::ACTIVATION;
};
using Body = moe_gemm::Body<Config>;
using Shape = Body::Shape;
using Args = Body::Args;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) __attribute__((amdgpu_waves_per_eu(Body::Loop::kWavesPerSimd)))
void moe_gemm_kernel(Args args) {
  gemm::multiply_tile<Body>(args);
}

void launch_moe_gemm(const Args& args, Stream stream) {
  gemm::launch_tiles<Shape, Args>(moe_gemm_kernel, nullptr, args, "moe_gemm", stream);
}

#if AITER_LIKE_HOST_PASS

/// Whether `rows` of so many bytes lie within 2^31 bytes.
bool is_near(int64_t rows, int64_t row_bytes) {
  return row_bytes >= 0 && (rows == 0 || row_bytes < (int64_t{1} << 31) / rows);
}

void take_scales(ffi::Match& match, Args& args, const ffi::OptionalTensor& a_scale,
                 const ffi::OptionalTensor& b_scale) {
  constexpr bool kIsOfBlocks = Config::kHasBlockScales, kIsOfAny = Config::kHasScales || kIsOfBlocks;
  match.built(a_scale.has_value() == kIsOfAny && b_scale.has_value() == kIsOfAny, "scales");
  if (!kIsOfAny) return;
  constexpr int64_t kUnit = kIsOfBlocks ? gemm::kScaleBlock : 1;
  const int64_t rows = args.a.sizes[0], experts = args.b.sizes[0];
  const int64_t blocks = (args.a.sizes[1] + kUnit - 1) / kUnit, row_blocks = (args.b.sizes[1] + kUnit - 1) / kUnit;
  const auto of_a = kIsOfBlocks ? match.take<const float>(a_scale, {rows, blocks}, "a_scale", ffi::kStrided)
                                : match.take<const float>(a_scale, {rows}, "a_scale", ffi::kStrided);
  const auto of_b = kIsOfBlocks
                        ? match.take<const float>(b_scale, {experts, row_blocks, blocks}, "b_scale", ffi::kStrided)
                        : match.take<const float>(b_scale, {experts, row_blocks}, "b_scale", ffi::kStrided);
  args.a_scale = {of_a, {rows > 1 ? of_a.strides[0] : 1, kIsOfBlocks ? of_a.strides[1] : 0}};
  match.require(is_near(rows, args.a_scale.strides[0] * int64_t{sizeof(float)}),
                "the scales of all rows of a must lie within 2^31 bytes");
  args.b_scale = of_b;
  for (int d = 0; d < (kIsOfBlocks ? 3 : 2); ++d) args.b_scale_strides[d] = of_b.strides[d];
}

void moe_gemm_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor experts, ffi::OptionalTensor sorted_ids,
                 ffi::OptionalTensor valid, ffi::OptionalTensor weights, ffi::OptionalTensor bias,
                 ffi::OptionalTensor a_scale, ffi::OptionalTensor b_scale, int64_t slots, int64_t block, ffi::String,
                 double limit, ffi::String, int64_t, bool is_shuffled, bool is_interleaved, bool sums_slots) {
  ffi::Match match("moe_gemm");
  match.built(is_shuffled == Config::kIsShuffled && is_interleaved == Config::kIsInterleaved && !sums_slots &&
              bias.has_value() == Config::kHasBias);
  ffi::Size pairs{"pairs"}, columns{"columns"}, rows{"rows of a"}, k{"k"}, count{"experts"};
  constexpr int64_t kSize = sizeof(Config::Element);
  Args args{};
  args.out = gemm::view_of<Config::OutElement>(match, out, {pairs, columns}, "out");
  args.a = gemm::view_of<const Config::Element>(match, a, {rows, k}, "a");
  const int64_t n = columns * (Config::kIsGated ? 2 : 1);
  args.b = gemm::view_of<const Config::Element, 3>(match, b, {count, n, k}, "b");
  match.require(sorted_ids.has_value() && valid.has_value() && slots > 0 && slots < 128 &&
                    (rows == pairs || rows * slots == pairs),
                "a must have rows of tokens or pairs, sorted, of 1 to 127 slots");
  match.require(k % Shape::kRun == 0 && columns % 4 == 0,
                "k must be a multiple of 16 bytes of elements, columns of 4");
  match.require(block > 0 && block % Shape::kBlockM == 0, "block must be a multiple of the tile's rows");
  match.require(!is_shuffled || (n % 16 == 0 && k * kSize % 32 == 0 && args.b.strides[1] == k),
                "shuffled, matrices of b must be contiguous, of rows a multiple of 16 and of 32 bytes");
  match.require(is_near(rows, args.a.strides[0] * kSize) && is_near(n, args.b.strides[1] * kSize),
                "the rows of a, and of each matrix of b, must lie within 2^31 bytes");
  args.bias = match.rows<const Config::BiasElement>(bias, count, n, "bias");
  if constexpr (Config::kHasBlockScales && Config::kIsGated && !Config::kIsInterleaved)
    match.require(columns % (Shape::kWaveN / 2) == 0, "half of a wave's rows of b must lie in one block of scales");
  take_scales(match, args, a_scale, b_scale);
  ffi::Size blocks{"blocks"}, places{"places"};
  args.experts = match.take<const int32_t>(experts, {blocks}, "experts");
  args.sorted_ids = match.take<const int32_t>(sorted_ids, {places}, "sorted_ids");
  args.places = blocks * block < places ? blocks * block : places;  // the last block may have fewer
  args.valid = match.take<const int32_t>(valid, {ffi::at_least(1)}, "valid");
  args.weights = match.take<const float>(weights, {ffi::at_least(args.places)}, "weights");
  args.slots = static_cast<int32_t>(slots);
  args.block = static_cast<int32_t>(block);
  args.is_of_pairs = rows == pairs;
  args.limit = static_cast<float>(limit);
  if (args.places == 0 || pairs == 0 || columns == 0 || count == 0) return;
  args.order = gemm::tiles_of<Shape>(match, args.places, n);
  launch_moe_gemm(args, ffi::stream_of(a));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_gemm, aiter_like::moe_gemm_ck);
#endif

// SPDX-License-Identifier: MIT
// moe_gemm for few rows of each expert; HIP (gfx942) and, for 16-bit elements, CUDA (sm_80 and later). One build per
// elements, format of the weights, block, kind of rows, and what happens to a sum; moe_gemm_skinny_body.h has the
// kernel.
//
// Bound: memory, the weights of the experts that have a row: 8 of Qwen3-30B-A3B, gates and up, 50 MB, 9.5 us at
// 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "moe_gemm_skinny_body.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(SCALE) || !defined(FORMAT) || !defined(OUT_ELEMENT) ||           \
    !defined(BIAS_ELEMENT) || !defined(ROWS) || !defined(SCALES) || !defined(BLOCK_M) || !defined(BLOCK_N) ||          \
    !defined(TEAMS) || !defined(WAVES) || !defined(STAGES) || !defined(HAS_BIAS) || !defined(HAS_WEIGHTS) ||           \
    !defined(IS_SHUFFLED) || !defined(HAS_ACTIVATION) || !defined(ACTIVATION) || !defined(IS_GATED) ||                 \
    !defined(IS_INTERLEAVED) || !defined(GROUP)
#error "moe_gemm_skinny.hip: the macros that ops/moe/moe_gemm_hip.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using OutElement = OUT_ELEMENT;
  using BiasElement = BIAS_ELEMENT;
  using Weight = WEIGHT;
  using Scale = SCALE;
  static constexpr skinny::Format kFormat = skinny::Format::FORMAT;
  static constexpr moe_skinny::Rows kRows = moe_skinny::Rows::ROWS;
  static constexpr moe_skinny::ScaleKind kScales = moe_skinny::ScaleKind::SCALES;
  static constexpr int kGroup = GROUP;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr int kTeams = TEAMS, kWaves = WAVES, kStages = STAGES;
  using Order = std::conditional_t<IS_SHUFFLED, moe_skinny::ShuffledRows, moe_skinny::RowsInOrder>;
  using Acted = std::conditional_t<HAS_ACTIVATION, moe_skinny::Activated<Activation::ACTIVATION>, moe_skinny::AsItIs>;
  using Finish = std::conditional_t<IS_GATED, moe_skinny::Gated<Activation::ACTIVATION>, Acted>;
  static constexpr bool kHasBias = HAS_BIAS, kHasWeights = HAS_WEIGHTS, kIsInterleaved = IS_INTERLEAVED;
};
using Shape = moe_skinny::Shape<Config>;
using Args = MoeGemmSkinnyArgs<Shape>;

}  // namespace

template <bool kIsAligned>
__global__ __launch_bounds__(Shape::kThreads) void moe_gemm_skinny_kernel(Args args) {
  await_stream();
  __shared__ Shape::Memory lds;
  moe_skinny::product_body<Shape, kIsAligned>(args, workgroup_index(), lds);
}

// Both passes compile this function: the device pass emits a kernel only where a launch of it is instantiated.
void launch_moe_gemm_skinny(const Args& args, uint32_t groups, bool is_aligned, Stream stream) {
  const dim3 grid((args.columns + Shape::kColumns - 1) / Shape::kColumns, groups);
  if (is_aligned) launch_overlapped(moe_gemm_skinny_kernel<true>, grid, Shape::kThreads, stream, args);
  else launch_overlapped(moe_gemm_skinny_kernel<false>, grid, Shape::kThreads, stream, args);
  check_launch("moe_gemm_skinny_kernel");
}

#if AITER_LIKE_HOST_PASS

using moe_skinny::Rows;

constexpr int64_t kFar = int64_t{1} << 31;

void set_scales(ffi::Match& match, Args& args, const ffi::OptionalTensor& a_scale, const ffi::OptionalTensor& b_scale,
                ffi::Size& rows) {
  using Scales = Shape::Scales;
  match.built(a_scale.has_value() == Scales::kIsOfA && b_scale.has_value() == Scales::kIsOfB, "scales");
  const int64_t groups = Scales::groups(args.depth), block = Scales::kRows, row_blocks = (args.n + block - 1) / block;
  constexpr bool kHasBlocks = Scales::kIsOfProducts;
  const auto of_a = kHasBlocks ? match.take<const float>(a_scale, {rows, groups}, "a_scale", ffi::kStrided)
                               : match.take<const float>(a_scale, {rows}, "a_scale", ffi::kStrided);
  args.a_scale = of_a, args.a_scale_row = match.near_step(of_a, 0);
  args.a_scale_group = kHasBlocks ? match.near_step(of_a, 1) : 0;
  const ffi::Shape shape = groups > 0 ? ffi::Shape{args.num_experts, row_blocks, groups}
                                      : ffi::Shape{args.num_experts, row_blocks};
  const auto of_b = match.take<const Config::Scale>(b_scale, shape, "b_scale", ffi::kStrided);
  args.b_scale = of_b, args.b_scale_expert = of_b.step(0), args.b_scale_row = match.near_step(of_b, 1);
  args.b_scale_group = groups > 0 ? match.near_step(of_b, 2) : 0;
  args.are_groups_dense = args.b_scale_group == 1 && groups >= 4;
  match.require(rows * args.a_scale_row + groups * args.a_scale_group < kFar &&
                    row_blocks * args.b_scale_row + groups * args.b_scale_group < kFar,
                "scales of a, and those of an expert, must lie within 2^31 elements");
}

/// The pairs: which there are, and their experts. Returns the launch's tokens, pairs or blocks.
int64_t set_order(ffi::Match& match, Args& args, const ffi::Tensor& experts, const ffi::OptionalTensor& sorted_ids,
                  const ffi::OptionalTensor& valid, const ffi::OptionalTensor& weights, int64_t block, int64_t tokens) {
  constexpr bool kIsSorted = Config::kRows == Rows::sorted;
  match.built(sorted_ids.has_value() == kIsSorted && valid.has_value() == kIsSorted &&
              weights.has_value() == Config::kHasWeights && (!kIsSorted || (block >= 1 && block <= BLOCK_M)), "pairs");
  ffi::Size numbers{"experts"}, places{"places"};
  if (!kIsSorted) numbers.value = places.value = args.pairs;
  args.experts = match.take<const int32_t>(experts, {numbers}, "experts");
  args.sorted_ids = match.take<const int32_t>(sorted_ids, {places}, "sorted_ids");
  args.valid = match.take<const int32_t>(valid, {ffi::at_least(1)}, "valid");
  args.weights = match.take<const float>(weights, {ffi::at_least(places)}, "weights");
  args.places = places;
  int64_t groups = Config::kRows == Rows::token ? tokens : int64_t{numbers};
  if (kIsSorted) {
    const int64_t blocks = (places + block - 1) / block;
    groups = groups < blocks ? groups : blocks;
    args.block = static_cast<uint32_t>(block);
  }
  match.require(groups < 1 << 16, "there must be less than 2^16 pairs, tokens or blocks");
  return groups;
}

void moe_gemm_skinny(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor experts,
                     ffi::OptionalTensor sorted_ids, ffi::OptionalTensor valid, ffi::OptionalTensor weights,
                     ffi::OptionalTensor bias, ffi::OptionalTensor a_scale, ffi::OptionalTensor b_scale, int64_t slots,
                     int64_t block, ffi::String, double limit, ffi::String, int64_t, bool is_shuffled,
                     bool is_interleaved, bool sums_slots) {
  constexpr int64_t kPerWeight = Shape::Unit::kRun * int64_t{sizeof(Config::Weight)} / skinny::kRunBytes;
  ffi::Match match("moe_gemm");
  match.built(is_shuffled == std::is_same_v<Config::Order, moe_skinny::ShuffledRows> &&
              is_interleaved == Config::kIsInterleaved && sums_slots == Shape::kIsSum &&
              bias.has_value() == Config::kHasBias);
  match.built(slots >= 1 && slots <= (Shape::kIsSum ? int64_t{moe_skinny::kMostSlots} : 127), "numbers of slots");
  ffi::Size results{"rows of out"}, columns{"columns"}, rows{"rows of a"}, k{"k", 1 << 18}, count{"experts"};
  const auto y = match.take<Config::OutElement>(out, {results, columns}, "out");
  const auto x = match.take<const Config::Element>(a, {rows, k}, "a");
  const int64_t n = columns * Shape::kHalves, pairs = results * (sums_slots ? slots : 1);
  const auto matrices = match.take<const Config::Weight>(b, {count, n, k / kPerWeight}, "b");
  const auto added = match.take<const Config::BiasElement>(bias, {count, n}, "bias");
  match.require(k >= Shape::Unit::kRun && k % Shape::Weights::kMultiple == 0,
                "rows of weights must be runs of 16 bytes, and whole ones of packed weights");
  match.require(rows == pairs || rows * slots == pairs, "a must have a row for each pair or each token");
  match.built(pairs < kFar && n < 1 << 21, "sizes");
  Args args{};
  args.out = y, args.out_row = match.near_step(y, 0);
  args.a = x, args.a_row = match.near_step(x, 0);
  args.b = matrices, args.b_expert = matrices.step(0), args.b_row = match.near_step(matrices, 1);
  args.bias = added, args.bias_expert = added.step(0);
  args.num_experts = count, args.pairs = pairs, args.slots = slots, args.columns = columns, args.n = n, args.depth = k;
  args.row_division = rows == pairs ? 1 : slots;
  args.steps = (args.depth + Shape::Unit::kDepth - 1) / Shape::Unit::kDepth;
  args.of_steps = ((uint32_t{1} << 31) + args.steps - 1) / args.steps;
  args.limit = limit;
  match.require((rows * args.a_row + k) * int64_t{sizeof(Config::Element)} < 2 * kFar &&
                    (n * args.b_row + k) * int64_t{sizeof(Config::Weight)} < 2 * kFar,
                "a, and the matrix of an expert, must lie within 2^32 bytes");
  set_scales(match, args, a_scale, b_scale, rows);
  const int64_t groups = set_order(match, args, experts, sorted_ids, valid, weights, block, results);
  if (groups == 0 || columns == 0 || count == 0) return;
  const bool is_aligned = ffi::are_rows_aligned(a, 16) && ffi::are_rows_aligned(b, 16);
  launch_moe_gemm_skinny(args, static_cast<uint32_t>(groups), is_aligned, ffi::stream_of(a));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_gemm_skinny, aiter_like::moe_gemm_skinny);
#endif

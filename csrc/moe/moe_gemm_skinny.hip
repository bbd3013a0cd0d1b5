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
  static constexpr moe_skinny::Scales kScales = moe_skinny::Scales::SCALES;
  static constexpr int kGroup = GROUP;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr int kTeams = TEAMS, kWaves = WAVES, kStages = STAGES;
  static constexpr bool kHasBias = HAS_BIAS, kHasWeights = HAS_WEIGHTS, kIsShuffled = IS_SHUFFLED;
  static constexpr bool kHasActivation = HAS_ACTIVATION, kIsGated = IS_GATED, kIsInterleaved = IS_INTERLEAVED;
  [[maybe_unused]] static constexpr Activation kActivation = Activation::ACTIVATION;
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

namespace {

using ffi::check_value;
using moe_skinny::Rows, moe_skinny::Scales;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

template <class T>
T* data_of(const ffi::Tensor& tensor, const char* name) {
  if (!ffi::has_element<std::remove_const_t<T>>(tensor))
    TVM_FFI_THROW(TypeError) << "moe_gemm: " << name << " has another dtype than this module was built for";
  return static_cast<T*>(tensor.data_ptr());
}

/// In elements. That of a single row or column is of no account.
int64_t stride_of(const ffi::Tensor& tensor, int dimension) {
  return tensor.size(dimension) > 1 ? tensor.stride(dimension) : 0;
}
uint32_t row_of(const ffi::Tensor& tensor, int dimension) {
  const int64_t stride = stride_of(tensor, dimension);
  check_value(stride >= 0 && stride < int64_t{1} << 31, "moe_gemm: strides must be less than 2^31 elements");
  return static_cast<uint32_t>(stride);
}

template <class Element>
bool are_rows_aligned(const ffi::Tensor& tensor) {
  auto bits = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  for (int d = 0; d + 1 < tensor.ndim(); ++d)
    bits |= static_cast<uintptr_t>(stride_of(tensor, d) * static_cast<int64_t>(sizeof(Element)));
  return bits % 16 == 0;
}

/// Numbers of b_scale along the depth, 0 where a row has one.
int64_t groups_of(int64_t depth) {
  if (Shape::kHasBlocks) return (depth + moe_skinny::kScaleBlock - 1) / moe_skinny::kScaleBlock;
  if constexpr (Shape::kScalesSums) return (depth + Config::kGroup - 1) / Config::kGroup;
  return Shape::kHasGroups ? depth / moe_skinny::kScaleGroup : 0;
}

void set_row_scales(Args& args, const ffi::Tensor& scale, int64_t rows) {
  const int64_t blocks = groups_of(args.depth);
  check_value(scale.ndim() == (Shape::kHasBlocks ? 2 : 1) && scale.size(0) == rows &&
                  (!Shape::kHasBlocks || scale.size(1) == blocks),
              "moe_gemm: a_scale must have a number for each row of a, and for each block of the depth");
  args.a_scale = data_of<const float>(scale, "a_scale");
  args.a_scale_row = row_of(scale, 0), args.a_scale_group = Shape::kHasBlocks ? row_of(scale, 1) : 0;
  check_value(rows * args.a_scale_row + blocks * args.a_scale_group < int64_t{1} << 31,
              "moe_gemm: a_scale must lie within 2^31 elements");
}

void set_scales(Args& args, const OptionalTensor& a_scale, const OptionalTensor& b_scale, int64_t rows) {
  check_value(a_scale.has_value() == (Config::kScales == Scales::rows || Shape::kHasBlocks) &&
                  b_scale.has_value() == (Config::kScales != Scales::none),
              "moe_gemm: this module was built with or without scales, the call is the other");
  if (a_scale.has_value()) set_row_scales(args, a_scale.value(), rows);
  if (!b_scale.has_value()) return;
  const ffi::Tensor scale = b_scale.value();
  const int64_t groups = groups_of(args.depth), block = Shape::kScaleRows;
  check_value(scale.ndim() == (groups > 0 ? 3 : 2) && scale.size(0) == args.num_experts &&
                  scale.size(1) == (args.n + block - 1) / block &&
                  (groups == 0 || scale.size(2) == groups),
              "moe_gemm: b_scale must have a number for each expert, row or block of b, and group of the depth");
  args.b_scale = data_of<const Config::Scale>(scale, "b_scale");
  args.b_scale_expert = stride_of(scale, 0);
  args.b_scale_row = row_of(scale, 1), args.b_scale_group = groups > 0 ? row_of(scale, 2) : 0;
  args.are_groups_dense = args.b_scale_group == 1 && groups >= 4;
  check_value(scale.size(1) * args.b_scale_row + groups * args.b_scale_group < int64_t{1} << 31,
              "moe_gemm: the scales of an expert must lie within 2^31 elements");
}

/// The pairs: which there are, and their experts.
int64_t set_order(Args& args, const ffi::Tensor& experts, const OptionalTensor& sorted_ids, const OptionalTensor& valid,
                  const OptionalTensor& weights, int64_t block, int64_t tokens) {
  const bool is_sorted = Config::kRows == Rows::sorted;
  check_value(sorted_ids.has_value() == is_sorted && valid.has_value() == is_sorted,
              "moe_gemm: this module was built for pairs that are sorted, or not; the call is the other");
  check_value(experts.ndim() == 1 && experts.IsContiguous(), "moe_gemm: experts must be dense");
  args.experts = data_of<const int32_t>(experts, "experts");
  int64_t groups = Config::kRows == Rows::token ? tokens : experts.size(0), places = args.pairs;
  if (is_sorted) {
    const ffi::Tensor ids = sorted_ids.value(), end = valid.value();
    check_value(block >= 1 && block <= BLOCK_M, "moe_gemm: this module was built for other blocks");
    check_value(ids.ndim() == 1 && end.ndim() == 1 && end.size(0) >= 1 && ids.size(0) < int64_t{1} << 31,
                "moe_gemm: sorted_ids and valid must be vectors");
    check_value(row_of(ids, 0) <= 1, "moe_gemm: sorted_ids must be contiguous");
    args.sorted_ids = data_of<const int32_t>(ids, "sorted_ids");
    args.valid = data_of<const int32_t>(end, "valid");
    places = ids.size(0);
    const int64_t blocks = (places + block - 1) / block;
    groups = groups < blocks ? groups : blocks;
    args.block = static_cast<uint32_t>(block);
  } else {
    check_value(experts.size(0) == args.pairs, "moe_gemm: experts must have an element for each pair");
  }
  args.places = static_cast<uint32_t>(places);
  check_value(weights.has_value() == Config::kHasWeights,
              "moe_gemm: this module was built with or without weights, the call is the other");
  if (weights.has_value()) {
    const ffi::Tensor values = weights.value();
    check_value(values.ndim() == 1 && values.size(0) >= places && row_of(values, 0) <= 1,
                "moe_gemm: weights must have an element for each place");
    args.weights = data_of<const float>(values, "weights");
  }
  check_value(groups < int64_t{1} << 16, "moe_gemm: there must be less than 2^16 pairs, tokens or blocks");
  return groups;
}

}  // namespace

void moe_gemm_skinny(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor experts, OptionalTensor sorted_ids,
                     OptionalTensor valid, OptionalTensor weights, OptionalTensor bias, OptionalTensor a_scale,
                     OptionalTensor b_scale, int64_t slots, int64_t block, ffi::String, double limit, ffi::String,
                     int64_t, bool is_shuffled, bool is_interleaved, bool sums_slots) {
  constexpr int64_t kPerWeight = Shape::Unit::kRun * int64_t{sizeof(Config::Weight)} / skinny::kRunBytes;
  check_value(out.ndim() == 2 && a.ndim() == 2 && b.ndim() == 3 && b.size(2) * kPerWeight == a.size(1) &&
                  b.size(1) == out.size(1) * Shape::kHalves,
              "moe_gemm: a must be [rows, k], b [experts, n, k or, of 4 bits, k / 2], out [pairs, columns]");
  check_value(!Shape::kIsPacked || a.size(1) % Shape::Unit::kRun == 0,
              "moe_gemm: rows of packed weights must be whole runs of 16 bytes");
  check_value(slots >= 1 && slots <= 127 && (Shape::kIsSum ? slots <= moe_skinny::kMostSlots : true),
              "moe_gemm: this module was built for other numbers of slots");
  check_value(is_shuffled == Config::kIsShuffled && is_interleaved == Config::kIsInterleaved &&
                  sums_slots == Shape::kIsSum,
              "moe_gemm: this module was built for another order of b, or of sums");
  const int64_t pairs = out.size(0) * (sums_slots ? slots : 1), rows = a.size(0), k = a.size(1), n = b.size(1);
  check_value(rows == pairs || rows * slots == pairs, "moe_gemm: a must have a row for each pair or each token");
  check_value(pairs < int64_t{1} << 31 && n < int64_t{1} << 21 && k >= Shape::Unit::kRun && k < int64_t{1} << 18,
              "moe_gemm: this module was built for other sizes");
  check_value(a.stride(1) == 1 && b.stride(2) == 1 && (out.size(1) <= 1 || out.stride(1) == 1),
              "moe_gemm: rows of a, b and out must be contiguous");
  Args args{};
  args.a = data_of<const Config::Element>(a, "a");
  args.b = data_of<const Config::Weight>(b, "b");
  args.out = data_of<Config::OutElement>(out, "out");
  args.a_row = row_of(a, 0), args.b_row = row_of(b, 1), args.out_row = row_of(out, 0);
  args.b_expert = stride_of(b, 0);
  args.num_experts = static_cast<uint32_t>(b.size(0)), args.pairs = static_cast<uint32_t>(pairs);
  args.slots = static_cast<uint32_t>(slots), args.columns = static_cast<uint32_t>(out.size(1));
  args.n = static_cast<uint32_t>(n), args.depth = static_cast<uint32_t>(k);
  args.row_division = static_cast<uint32_t>(rows == pairs ? 1 : slots);
  args.steps = (args.depth + Shape::Unit::kDepth - 1) / Shape::Unit::kDepth;
  args.of_steps = ((uint32_t{1} << 31) + args.steps - 1) / args.steps;
  args.limit = static_cast<float>(limit);
  check_value((rows * args.a_row + k) * int64_t{sizeof(Config::Element)} < int64_t{1} << 32 &&
                  (n * args.b_row + k) * int64_t{sizeof(Config::Weight)} < int64_t{1} << 32,
              "moe_gemm: a, and the matrix of an expert, must lie within 2^32 bytes");
  check_value(bias.has_value() == Config::kHasBias,
              "moe_gemm: this module was built with or without bias, the call is the other");
  if (bias.has_value()) {
    const ffi::Tensor values = bias.value();
    check_value(values.ndim() == 2 && values.size(0) == b.size(0) && values.size(1) == n && row_of(values, 1) <= 1,
                "moe_gemm: bias must have an element for each row of b");
    args.bias = data_of<const Config::BiasElement>(values, "bias");
    args.bias_expert = stride_of(values, 0);
  }
  set_scales(args, a_scale, b_scale, rows);
  const int64_t groups = set_order(args, experts, sorted_ids, valid, weights, block, out.size(0));
  if (groups == 0 || out.size(1) == 0 || b.size(0) == 0) return;
  const bool is_aligned = are_rows_aligned<Config::Element>(a) && are_rows_aligned<Config::Weight>(b);
  launch_moe_gemm_skinny(args, static_cast<uint32_t>(groups), is_aligned, ffi::stream_of(a));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_gemm_skinny, aiter_like::moe_gemm_skinny);
#endif

// SPDX-License-Identifier: MIT
// RMSNorm of a matrix, quantised to fp8 or int8, and of a second one as it is, in one launch; y = x / sqrt(mean(x²) +
// epsilon) · weight, row by row, in fp32. x = input, or input + residual_in, whose rounded sum becomes residual_out.
// HIP (gfx9) and CUDA. One build per combination of the macros below; LANES · VECTORS · VEC elements cover a row of
// input, LANES · SECOND_VECTORS · VEC one of second.
// QUANT none: y alone; fixed: by a scale in memory; found: one per row (GROUP 0) or per GROUP columns, as quant.h says.
//
//   1. the first workgroups take the rows of input, the others those of second: each loads its row into registers
//   2. stores the sum with the residual; the sum of squares over the row's lanes
//   3. stores y as it is where that is wanted, as it always is of second
//   4. scale found per row: largest magnitude of y over the row's lanes; y quantised is stored
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 8 bytes per wave.
// Bound: at decode sizes the launch, which is why there is one; beyond, memory: sizeof(ELEMENT) + 1 bytes per element
// of input, 3 · sizeof(ELEMENT) + 1 with a residual, 2 · sizeof(ELEMENT) of second.
#include "aiter_like/quant.h"
#include "aiter_like/rows/operands.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || \
    !defined(VEC) || !defined(SECOND_VECTORS) || !defined(QUANT) || !defined(GROUP) || !defined(HAS_RESIDUAL) || \
    !defined(HAS_PLAIN) || !defined(HAS_SECOND) || !defined(IS_ROUNDED) || !defined(IS_GEMMA)
#error "fused_rms_quant.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DOUT=fp8|int8_t -DQUANT, sizes and flags"
#endif

namespace aiter_like {

enum class Quant { none, fixed, found };
constexpr Quant kQuant = Quant::QUANT;
constexpr int kBytes = (HAS_RESIDUAL ? 4 : sizeof(ELEMENT)) + sizeof(WEIGHT);  // of registers for an element

/// What both matrices have.
struct NormSide {
  Matrix<const ELEMENT> input;
  Matrix<ELEMENT> out;  // y as it is
  const WEIGHT* weight;
  int64_t rows;
  int hidden;
  float epsilon;
};

struct FusedRmsQuantArgs {
  NormSide first, second;
  Matrix<OUT> out;
  Matrix<ELEMENT> residual_out;
  Matrix<const ELEMENT> residual_in;
  float* scale;                        // [1] if fixed
  int64_t scale_stride, group_stride;  // scales from row to row, from group to group
  int64_t first_rows;                  // rounded up to whole workgroups
};

/// Rows of input (kIsFirst) or of second, `index` counted among them.
template <class Layout, bool kIsFirst>
__device__ inline void norm_rows(const FusedRmsQuantArgs& args, const NormSide& side, int64_t index) {
  constexpr bool kHasResidual = kIsFirst && HAS_RESIDUAL, kHasPlain = !kIsFirst || HAS_PLAIN;
  __shared__ RowScratch<Layout> squares_scratch, amax_scratch;
  // Lanes of a row that is not there take part in the reductions with zeros.
  const int64_t row = index < side.rows ? index : side.rows - 1;
  const int hidden = index < side.rows ? side.hidden : 0;

  SumTile<Layout, ELEMENT, kHasResidual> x;
  RowTile<Layout, WEIGHT> weight;
  x.load(side.input.row(row), hidden);
  weight.load(side.weight, hidden);  // with the row, not after the reduction
  if constexpr (kHasResidual) {
    x.add(args.residual_in.row(row), hidden);
    store_row<Layout>(args.residual_out.row(row), hidden, [&](int v, int e) { return x.at(v, e); });
  }
  const float squares = lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
  const float mean = row_sum<Layout>(squares, squares_scratch) / static_cast<float>(side.hidden);
  x.drop_floats();
  const float inverse_rms = reciprocal_square_root(mean + side.epsilon);
  const auto normed = [&](int v, int e) {
    const float y = x.at(v, e) * inverse_rms * (IS_GEMMA ? weight.at(v, e) + 1.f : weight.at(v, e));
    return IS_ROUNDED ? to_float(from_float<ELEMENT>(y)) : y;
  };

  if constexpr (kHasPlain) store_row<Layout>(side.out.row(row), hidden, normed);
  if constexpr (kQuant == Quant::none || !kIsFirst) {
    return;
  } else if constexpr (kQuant == Quant::fixed) {
    store_quantised<Layout>(args.out.row(row), hidden, 1.f / *args.scale, normed);
  } else if constexpr (GROUP > 0) {
    store_groups<Layout, GROUP>(args.out.row(row), args.scale + row * args.scale_stride, args.group_stride, hidden,
                                normed);
  } else {
    const QuantScale scale = quant_scale<OUT>(row_max<Layout>(lane_amax<Layout>(normed), amax_scratch));
    if (Layout::lane() == 0 && hidden > 0) args.scale[row * args.scale_stride] = scale.scale;
    x.drop_floats();
    weight.drop_floats();
    store_quantised<Layout>(args.out.row(row), hidden, scale.inverse, normed);
  }
}

template <bool kIsAligned, class First = RowLayout<LANES, VECTORS, VEC, kIsAligned>,
          class Second = RowLayout<LANES, SECOND_VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(First::kThreads, First::min_groups(kBytes)) void fused_rms_quant_kernel(
    FusedRmsQuantArgs args) {
  await_stream();
  if (!HAS_SECOND || int64_t{workgroup_index().x} * First::kRows < args.first_rows)
    norm_rows<First, true>(args, args.first, First::row());
  else
    norm_rows<Second, false>(args, args.second, First::row() - args.first_rows);
}

void launch_fused_rms_quant(FusedRmsQuantArgs args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const auto groups = [](int64_t rows) { return static_cast<uint32_t>((rows + Layout::kRows - 1) / Layout::kRows); };
  args.first_rows = int64_t{groups(args.first.rows)} * Layout::kRows;
  const dim3 grid(groups(args.first.rows) + groups(args.second.rows));
  if (is_aligned)
    launch_overlapped(fused_rms_quant_kernel<true>, grid, Layout::kThreads, stream, args);
  else
    launch_overlapped(fused_rms_quant_kernel<false>, grid, Layout::kThreads, stream, args);
  check_launch("fused_rms_quant_kernel");
}

#if AITER_LIKE_HOST_PASS

using OptionalTensor = ffi::Optional<ffi::Tensor>;

NormSide side_of(ffi::RowOperands<VEC>& operands, const ffi::Tensor& input, const OptionalTensor& out,
                 const ffi::Tensor& weight, double epsilon, int64_t vectors) {
  const NormSide side{operands.matrix<const ELEMENT>(input, "input"), operands.matrix<ELEMENT>(out, "out"),
                      operands.vector<const WEIGHT>(weight, "weight"), operands.rows(),
                      static_cast<int>(operands.size()), static_cast<float>(epsilon)};
  ffi::check_value(side.hidden <= LANES * vectors * VEC,
                   "fused_rms_quant: this module was built for other row lengths");
  return side;
}

void fused_rms_quant(OptionalTensor out, OptionalTensor scale, OptionalTensor plain_out, OptionalTensor residual_out,
                     OptionalTensor second_out, ffi::Tensor input, ffi::Tensor weight, double epsilon,
                     OptionalTensor residual_in, OptionalTensor second, OptionalTensor second_weight,
                     double second_epsilon, int64_t group_size, bool is_static, bool is_rounded, bool gemma_norm) {
  const Quant quant = !out.has_value() ? Quant::none : is_static ? Quant::fixed : Quant::found;
  ffi::check_value(quant == kQuant && scale.has_value() == out.has_value() && group_size == GROUP &&
                       plain_out.has_value() == HAS_PLAIN && residual_in.has_value() == HAS_RESIDUAL &&
                       residual_out.has_value() == HAS_RESIDUAL && second.has_value() == HAS_SECOND &&
                       second_out.has_value() == HAS_SECOND && second_weight.has_value() == HAS_SECOND &&
                       is_rounded == IS_ROUNDED && gemma_norm == IS_GEMMA,
                   "fused_rms_quant: this module was built for other flags");
  ffi::RowOperands<VEC> operands("fused_rms_quant", input);
  FusedRmsQuantArgs args{};
  args.first = side_of(operands, input, plain_out, weight, epsilon, VECTORS);
  args.out = operands.matrix<OUT>(out, "out");
  args.residual_in = operands.matrix<const ELEMENT>(residual_in, "residual_in");
  args.residual_out = operands.matrix<ELEMENT>(residual_out, "residual_out");
  bool is_aligned = operands.is_aligned();
  if (second.has_value()) {
    ffi::RowOperands<VEC> others("fused_rms_quant: second", second.value());
    args.second = side_of(others, second.value(), second_out, second_weight.value(), second_epsilon,
                          SECOND_VECTORS);
    is_aligned = is_aligned && others.is_aligned();
  }
  if (args.first.rows + args.second.rows == 0) return;
  ffi::check_value(args.first.rows + args.second.rows < int64_t{1} << 24,
                   "fused_rms_quant: at most 2^24 - 1 rows together");
  ffi::check_value(GROUP == 0 || args.first.hidden % GROUP == 0, "fused_rms_quant: group_size must divide the row");
  if (quant == Quant::fixed) {
    args.scale = const_cast<float*>(ffi::scalar<float>(scale, "fused_rms_quant: scale"));
  } else if (quant == Quant::found) {
    const Matrix<float> scales =
        operands.scales(scale.value(), GROUP == 0 ? 1 : args.first.hidden / GROUP, args.group_stride);
    args.scale = scales.data;
    args.scale_stride = scales.stride;
  }
  launch_fused_rms_quant(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(fused_rms_quant, aiter_like::fused_rms_quant);
#endif

// SPDX-License-Identifier: MIT
// fused_rms_quant of PyTorch tensors; fused_rms_quant_body.h has the kernel. One build per combination of the macros.
#include "aiter_like/rows/operands.h"
#include "fused_rms_quant_body.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || \
    !defined(VEC) || !defined(SECOND_VECTORS) || !defined(QUANT) || !defined(GROUP) || !defined(HAS_RESIDUAL) || \
    !defined(HAS_PLAIN) || !defined(HAS_SECOND) || !defined(IS_ROUNDED) || !defined(IS_GEMMA)
#error "fused_rms_quant.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DOUT=fp8|int8_t -DQUANT, sizes and flags"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Weight = WEIGHT;
  using Out = OUT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
  template <bool kIsAligned>
  using SecondLayout = RowLayout<LANES, SECOND_VECTORS, VEC, kIsAligned>;
  static constexpr Quant kQuant = Quant::QUANT;
  static constexpr int kGroup = GROUP;  // columns with a scale of their own; 0: a scale per row
  static constexpr bool kHasResidual = HAS_RESIDUAL;
  static constexpr bool kHasPlain = HAS_PLAIN;    // y of input is stored unquantised too
  static constexpr bool kHasSecond = HAS_SECOND;
  static constexpr bool kIsRounded = IS_ROUNDED;  // y is rounded to Element before it is quantised
  static constexpr bool kIsGemma = IS_GEMMA;      // multiplies by weight + 1
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_fused_rms_quant(FusedRmsQuantArgs<Config>, bool, Stream);

#if AITER_LIKE_HOST_PASS

using OptionalTensor = ffi::Optional<ffi::Tensor>;

template <class Layout>
NormSide<Config> side_of(ffi::RowOperands<Layout::kVec>& operands, const ffi::Tensor& input, const OptionalTensor& out,
                         const ffi::Tensor& weight, double epsilon) {
  const NormSide<Config> side{operands.template matrix<const Config::Element>(input, "input"),
                              operands.template matrix<Config::Element>(out, "out"),
                              operands.template vector<const Config::Weight>(weight, "weight"),
                              operands.rows(), static_cast<int>(operands.size()), static_cast<float>(epsilon)};
  ffi::check_value(side.hidden <= Layout::kCapacity,
                   "fused_rms_quant: this module was built for other row lengths");
  return side;
}

void fused_rms_quant(OptionalTensor out, OptionalTensor scale, OptionalTensor plain_out, OptionalTensor residual_out,
                     OptionalTensor second_out, ffi::Tensor input, ffi::Tensor weight, double epsilon,
                     OptionalTensor residual_in, OptionalTensor second, OptionalTensor second_weight,
                     double second_epsilon, int64_t group_size, bool is_static, bool is_rounded, bool gemma_norm) {
  const Quant quant = !out.has_value() ? Quant::none : is_static ? Quant::fixed : Quant::found;
  ffi::check_value(quant == Config::kQuant && scale.has_value() == out.has_value() && group_size == Config::kGroup &&
                       plain_out.has_value() == Config::kHasPlain &&
                       residual_in.has_value() == Config::kHasResidual &&
                       residual_out.has_value() == Config::kHasResidual &&
                       second.has_value() == Config::kHasSecond && second_out.has_value() == Config::kHasSecond &&
                       second_weight.has_value() == Config::kHasSecond &&
                       is_rounded == Config::kIsRounded && gemma_norm == Config::kIsGemma,
                   "fused_rms_quant: this module was built for other flags");
  using Layout = Config::Layout<true>;
  ffi::RowOperands<Layout::kVec> operands("fused_rms_quant", input);
  FusedRmsQuantArgs<Config> args{};
  args.first = side_of<Layout>(operands, input, plain_out, weight, epsilon);
  args.out = operands.matrix<Config::Out>(out, "out");
  args.residual_in = operands.matrix<const Config::Element>(residual_in, "residual_in");
  args.residual_out = operands.matrix<Config::Element>(residual_out, "residual_out");
  bool is_aligned = operands.is_aligned();
  if (second.has_value()) {
    ffi::RowOperands<Layout::kVec> others("fused_rms_quant: second", second.value());
    args.second = side_of<Config::SecondLayout<true>>(others, second.value(), second_out, second_weight.value(),
                                                      second_epsilon);
    is_aligned = is_aligned && others.is_aligned();
  }
  if (args.first.rows + args.second.rows == 0) return;
  ffi::check_value(args.first.rows + args.second.rows < int64_t{1} << 24,
                   "fused_rms_quant: at most 2^24 - 1 rows together");
  constexpr int kGroup = Config::kGroup;
  ffi::check_value(kGroup == 0 || args.first.hidden % kGroup == 0, "fused_rms_quant: group_size must divide the row");
  if (quant == Quant::fixed) {
    args.scale = const_cast<float*>(ffi::scalar<float>(scale, "fused_rms_quant: scale"));
  } else if (quant == Quant::found) {
    const Matrix<float> scales =
        operands.scales(scale.value(), kGroup == 0 ? 1 : args.first.hidden / kGroup, args.group_stride);
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

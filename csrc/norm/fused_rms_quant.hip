// SPDX-License-Identifier: MIT
// fused_rms_quant of PyTorch tensors; fused_rms_quant_body.h has the kernel. One build per combination of the macros.
#include "aiter_like/rows/scales.h"
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

template <class Layout>
NormSide<Config> side_of(ffi::Match& match, const ffi::Tensor& input, const ffi::OptionalTensor& out,
                         const ffi::Tensor& weight, ffi::Size& rows, ffi::Size& hidden, double epsilon) {
  const NormSide<Config> side{match.rows<const Config::Element>(input, rows, hidden, "input"),
                              match.rows<Config::Element>(out, rows, hidden, "out"),
                              match.elements<const Config::Weight>(weight, hidden, "weight"), rows,
                              static_cast<int>(hidden), static_cast<float>(epsilon)};
  match.built(hidden <= Layout::kCapacity, "row lengths");
  return side;
}

void fused_rms_quant(ffi::OptionalTensor out, ffi::OptionalTensor scale, ffi::OptionalTensor plain_out,
                     ffi::OptionalTensor residual_out, ffi::OptionalTensor second_out, ffi::Tensor input,
                     ffi::Tensor weight, double epsilon, ffi::OptionalTensor residual_in, ffi::OptionalTensor second,
                     ffi::OptionalTensor second_weight, double second_epsilon, int64_t group_size, bool is_static,
                     bool is_rounded, bool gemma_norm) {
  using Layout = Config::Layout<true>;
  constexpr int kGroup = Config::kGroup;
  const Quant quant = !out.has_value() ? Quant::none : is_static ? Quant::fixed : Quant::found;
  ffi::Match match("fused_rms_quant");
  match.built(quant == Config::kQuant && scale.has_value() == out.has_value() && group_size == kGroup &&
              plain_out.has_value() == Config::kHasPlain && residual_in.has_value() == Config::kHasResidual &&
              residual_out.has_value() == Config::kHasResidual && second.has_value() == Config::kHasSecond &&
              second_out.has_value() == Config::kHasSecond && second_weight.has_value() == Config::kHasSecond &&
              is_rounded == Config::kIsRounded && gemma_norm == Config::kIsGemma);
  ffi::Size rows{"rows", 1 << 24}, hidden{"hidden"}, others{"rows", 1 << 24}, other_hidden{"hidden"};
  FusedRmsQuantArgs<Config> args{};
  args.first = side_of<Layout>(match, input, plain_out, weight, rows, hidden, epsilon);
  args.out = match.rows<Config::Out>(out, rows, hidden, "out");
  args.residual_in = match.rows<const Config::Element>(residual_in, rows, hidden, "residual_in");
  args.residual_out = match.rows<Config::Element>(residual_out, rows, hidden, "residual_out");
  if (second.has_value())
    args.second = side_of<Config::SecondLayout<true>>(match, *second, second_out, *second_weight, others, other_hidden,
                                                      second_epsilon);
  if (args.first.rows + args.second.rows == 0) return;
  match.require(args.first.rows + args.second.rows < (1 << 24), "at most 2^24 - 1 rows together");
  match.require(kGroup == 0 || hidden % kGroup == 0, "group_size must divide the row");
  if (quant == Quant::fixed) {
    args.scale = match.elements<float>(scale, 1, "scale");
  } else {
    const auto scales = ffi::row_scales(match, scale, rows, kGroup == 0 ? 1 : hidden / kGroup);
    args.scale = scales.data, args.scale_stride = scales.row, args.group_stride = scales.group;
  }
  const bool is_aligned = ffi::takes_vectors(Layout::kVec, input, plain_out, weight, out, residual_in, residual_out,
                                             second, second_out, second_weight);
  launch_fused_rms_quant(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(fused_rms_quant, aiter_like::fused_rms_quant);
#endif

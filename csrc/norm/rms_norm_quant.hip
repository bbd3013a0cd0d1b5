// SPDX-License-Identifier: MIT
// rms_norm_quant of PyTorch tensors; rms_norm_quant_body.h has the kernel. One build per combination of the macros.
#include "aiter_like/rows/scales.h"
#include "norm_host.h"
#include "rms_norm_quant_body.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || \
    !defined(VEC) || !defined(IS_WHOLE) || !defined(GROUP) || !defined(HAS_RESIDUAL) || !defined(HAS_SMOOTH) || \
    !defined(HAS_PLAIN) || !defined(IS_GEMMA) || !defined(IS_MODEL_SENSITIVE)
#error "rms_norm_quant.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DOUT=fp8|int8_t, sizes and flags"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Weight = WEIGHT;
  using Out = OUT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
  static constexpr bool kIsWhole = IS_WHOLE;  // a row fits in the lanes' registers
  static constexpr int kGroup = GROUP;        // columns with a scale of their own; 0: a scale per row
  static constexpr bool kHasResidual = HAS_RESIDUAL;
  static constexpr bool kHasSmooth = HAS_SMOOTH;                 // x_scale
  static constexpr bool kHasPlain = HAS_PLAIN;                   // y is stored unquantised too
  static constexpr bool kIsGemma = IS_GEMMA;                     // multiplies by weight + 1
  static constexpr bool kIsModelSensitive = IS_MODEL_SENSITIVE;  // rounds before it multiplies with the weight
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_rms_norm_quant(const RmsNormQuantArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void rms_norm_quant(ffi::Tensor out, ffi::Tensor scale, ffi::OptionalTensor residual_out,
                    ffi::OptionalTensor plain_out, ffi::Tensor input, ffi::Tensor weight, double epsilon,
                    ffi::OptionalTensor residual_in, ffi::OptionalTensor x_scale, int64_t group_size,
                    int64_t use_model_sensitive_rmsnorm, bool gemma_norm) {
  using Layout = Config::Layout<true>;
  constexpr int kGroup = Config::kGroup;
  ffi::Match match("rms_norm_quant");
  match.built(gemma_norm == Config::kIsGemma && (use_model_sensitive_rmsnorm != 0) == Config::kIsModelSensitive &&
              residual_in.has_value() == Config::kHasResidual && residual_out.has_value() == Config::kHasResidual &&
              plain_out.has_value() == Config::kHasPlain && x_scale.has_value() == Config::kHasSmooth &&
              group_size == kGroup);
  ffi::Size rows{"rows", 1 << 24}, hidden{"hidden"};
  RmsNormQuantArgs<Config> args{};
  ffi::take_rows(match, args, rows, hidden, input, out, residual_in, residual_out, epsilon);
  args.plain_out = match.rows<Config::Element>(plain_out, rows, hidden, "out_before_quant");
  args.weight = match.elements<const Config::Weight>(weight, hidden, "weight");
  args.x_scale = match.elements<const float>(x_scale, hidden, "x_scale");
  if (rows == 0) return;
  match.built(!Config::kIsWhole || hidden <= Layout::kCapacity, "row lengths");
  match.require(kGroup == 0 || hidden % kGroup == 0, "group_size must divide the row");
  const auto scales = ffi::row_scales(match, scale, rows, kGroup == 0 ? 1 : hidden / kGroup);
  args.scale = scales.data, args.scale_stride = scales.row, args.group_stride = scales.group;
  const bool is_aligned =
      ffi::takes_vectors(Layout::kVec, input, out, residual_in, residual_out, plain_out, weight, x_scale);
  launch_rms_norm_quant(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(rms_norm_quant, aiter_like::rms_norm_quant);
#endif

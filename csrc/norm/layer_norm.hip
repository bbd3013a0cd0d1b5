// SPDX-License-Identifier: MIT
// layer_norm of PyTorch tensors; layer_norm_body.h has the kernel. One build per combination of the macros.
#include "aiter_like/rows/scales.h"
#include "layer_norm_body.h"
#include "norm_host.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || \
    !defined(VEC) || !defined(IS_WHOLE) || !defined(HAS_RESIDUAL) || !defined(HAS_X_BIAS) || !defined(HAS_WEIGHT) || \
    !defined(HAS_BIAS) || !defined(IS_QUANT) || !defined(HAS_SMOOTH)
#error "layer_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DOUT=ELEMENT|fp8|int8_t, sizes and flags"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Weight = WEIGHT;
  using Out = OUT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
  static constexpr bool kIsWhole = IS_WHOLE;  // a row fits in the lanes' registers
  static constexpr bool kHasResidual = HAS_RESIDUAL, kHasXBias = HAS_X_BIAS;
  static constexpr bool kHasWeight = HAS_WEIGHT, kHasBias = HAS_BIAS;
  static constexpr bool kIsQuant = IS_QUANT;
  static constexpr bool kHasSmooth = HAS_SMOOTH;  // x_scale
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_layer_norm(const LayerNormArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void layer_norm(ffi::Tensor out, ffi::OptionalTensor scale, ffi::OptionalTensor residual_out, ffi::Tensor input,
                ffi::OptionalTensor weight, ffi::OptionalTensor bias, double epsilon, ffi::OptionalTensor x_bias,
                ffi::OptionalTensor residual_in, ffi::OptionalTensor x_scale) {
  using Layout = Config::Layout<true>;
  ffi::Match match("layer_norm");
  match.built(residual_in.has_value() == Config::kHasResidual && residual_out.has_value() == Config::kHasResidual &&
              x_bias.has_value() == Config::kHasXBias && weight.has_value() == Config::kHasWeight &&
              bias.has_value() == Config::kHasBias && scale.has_value() == Config::kIsQuant &&
              x_scale.has_value() == Config::kHasSmooth);
  ffi::Size rows{"rows", 1 << 24}, hidden{"hidden"};
  LayerNormArgs<Config> args{};
  ffi::take_rows(match, args, rows, hidden, input, out, residual_in, residual_out, epsilon);
  args.weight = match.elements<const Config::Weight>(weight, hidden, "weight");
  args.bias = match.elements<const Config::Weight>(bias, hidden, "bias");
  args.x_bias = match.elements<const Config::Element>(x_bias, hidden, "x_bias");
  args.x_scale = match.elements<const float>(x_scale, hidden, "x_scale");
  if (rows == 0) return;
  match.built(!Config::kIsWhole || hidden <= Layout::kCapacity, "row lengths");
  const auto scales = ffi::row_scales(match, scale, rows, 1);
  args.scale = scales.data, args.scale_stride = scales.row;
  const bool is_aligned =
      ffi::takes_vectors(Layout::kVec, input, out, residual_in, residual_out, weight, bias, x_bias, x_scale);
  launch_layer_norm(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(layer_norm, aiter_like::layer_norm);
#endif

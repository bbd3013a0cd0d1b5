// SPDX-License-Identifier: MIT
// layer_norm of PyTorch tensors; layer_norm_body.h has the kernel. One build per combination of the macros.
#include "aiter_like/rows/operands.h"
#include "layer_norm_body.h"

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

void layer_norm(ffi::Tensor out, ffi::Optional<ffi::Tensor> scale, ffi::Optional<ffi::Tensor> residual_out,
                ffi::Tensor input, ffi::Optional<ffi::Tensor> weight, ffi::Optional<ffi::Tensor> bias, double epsilon,
                ffi::Optional<ffi::Tensor> x_bias, ffi::Optional<ffi::Tensor> residual_in,
                ffi::Optional<ffi::Tensor> x_scale) {
  ffi::check_value(residual_in.has_value() == Config::kHasResidual &&
                       residual_out.has_value() == Config::kHasResidual &&
                       x_bias.has_value() == Config::kHasXBias && weight.has_value() == Config::kHasWeight &&
                       bias.has_value() == Config::kHasBias && scale.has_value() == Config::kIsQuant &&
                       x_scale.has_value() == Config::kHasSmooth,
                   "layer_norm: this module was built for other flags");
  using Layout = Config::Layout<true>;
  ffi::RowOperands<Layout::kVec> operands("layer_norm", input);
  LayerNormArgs<Config> args{};
  args.input = operands.matrix<const Config::Element>(input, "input");
  args.out = operands.matrix<Config::Out>(out, "out");
  args.residual_in = operands.matrix<const Config::Element>(residual_in, "residual_in");
  args.residual_out = operands.matrix<Config::Element>(residual_out, "residual_out");
  args.weight = operands.vector<const Config::Weight>(weight, "weight");
  args.bias = operands.vector<const Config::Weight>(bias, "bias");
  args.x_bias = operands.vector<const Config::Element>(x_bias, "x_bias");
  args.x_scale = operands.vector<const float>(x_scale, "x_scale");
  args.rows = operands.rows();
  args.hidden = static_cast<int>(operands.size());
  args.epsilon = static_cast<float>(epsilon);
  if (args.rows == 0) return;
  ffi::check_value(!Config::kIsWhole || args.hidden <= Layout::kCapacity,
                   "layer_norm: this module was built for other row lengths");
  if constexpr (Config::kIsQuant) {
    int64_t group_stride;
    const Matrix<float> scales = operands.scales(scale.value(), 1, group_stride);
    args.scale = scales.data;
    args.scale_stride = scales.stride;
  }
  launch_layer_norm(args, operands.is_aligned(), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(layer_norm, aiter_like::layer_norm);
#endif

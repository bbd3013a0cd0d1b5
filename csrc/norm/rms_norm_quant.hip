// SPDX-License-Identifier: MIT
// rms_norm_quant of PyTorch tensors; rms_norm_quant_body.h has the kernel. One build per combination of the macros.
#include "aiter_like/rows/operands.h"
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

void rms_norm_quant(ffi::Tensor out, ffi::Tensor scale, ffi::Optional<ffi::Tensor> residual_out,
                    ffi::Optional<ffi::Tensor> plain_out, ffi::Tensor input, ffi::Tensor weight, double epsilon,
                    ffi::Optional<ffi::Tensor> residual_in, ffi::Optional<ffi::Tensor> x_scale, int64_t group_size,
                    int64_t use_model_sensitive_rmsnorm, bool gemma_norm) {
  ffi::check_value(gemma_norm == Config::kIsGemma &&
                       (use_model_sensitive_rmsnorm != 0) == Config::kIsModelSensitive &&
                       residual_in.has_value() == Config::kHasResidual &&
                       residual_out.has_value() == Config::kHasResidual &&
                       plain_out.has_value() == Config::kHasPlain && x_scale.has_value() == Config::kHasSmooth &&
                       group_size == Config::kGroup,
                   "rms_norm_quant: this module was built for other flags");
  using Layout = Config::Layout<true>;
  ffi::RowOperands<Layout::kVec> operands("rms_norm_quant", input);
  RmsNormQuantArgs<Config> args{};
  args.input = operands.matrix<const Config::Element>(input, "input");
  args.out = operands.matrix<Config::Out>(out, "out");
  args.residual_in = operands.matrix<const Config::Element>(residual_in, "residual_in");
  args.residual_out = operands.matrix<Config::Element>(residual_out, "residual_out");
  args.plain_out = operands.matrix<Config::Element>(plain_out, "out_before_quant");
  args.weight = operands.vector<const Config::Weight>(weight, "weight");
  args.x_scale = operands.vector<const float>(x_scale, "x_scale");
  args.rows = operands.rows();
  args.hidden = static_cast<int>(operands.size());
  args.epsilon = static_cast<float>(epsilon);
  if (args.rows == 0) return;
  ffi::check_value(!Config::kIsWhole || args.hidden <= Layout::kCapacity,
                   "rms_norm_quant: this module was built for other row lengths");
  constexpr int kGroup = Config::kGroup;
  ffi::check_value(kGroup == 0 || args.hidden % kGroup == 0, "rms_norm_quant: group_size must divide the row");
  const Matrix<float> scales = operands.scales(scale, kGroup == 0 ? 1 : args.hidden / kGroup, args.group_stride);
  args.scale = scales.data;
  args.scale_stride = scales.stride;
  launch_rms_norm_quant(args, operands.is_aligned(), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(rms_norm_quant, aiter_like::rms_norm_quant);
#endif

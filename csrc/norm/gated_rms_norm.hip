// SPDX-License-Identifier: MIT
// gated_rms_norm of PyTorch tensors; gated_rms_norm_body.h has the kernel. One build per combination of the macros.
#include "aiter_like/rows/operands.h"
#include "gated_rms_norm_body.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || \
    !defined(VEC) || !defined(IS_WHOLE) || !defined(IS_QUANT)
#error "gated_rms_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DOUT=ELEMENT|fp8|int8_t, sizes and flags"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Weight = WEIGHT;
  using Out = OUT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
  static constexpr bool kIsWhole = IS_WHOLE;  // a row fits in the lanes' registers
  static constexpr bool kIsQuant = IS_QUANT;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_gated_rms_norm(const GatedRmsNormArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void gated_rms_norm(ffi::Tensor out, ffi::Optional<ffi::Tensor> scale, ffi::Tensor input, ffi::Tensor gate,
                    ffi::Tensor weight, double epsilon) {
  ffi::check_value(scale.has_value() == Config::kIsQuant, "gated_rms_norm: this module was built for another result");
  using Layout = Config::Layout<true>;
  ffi::RowOperands<Layout::kVec> operands("gated_rms_norm", input);
  GatedRmsNormArgs<Config> args{};
  args.input = operands.matrix<const Config::Element>(input, "input");
  args.gate = operands.matrix<const Config::Element>(gate, "gate");
  args.out = operands.matrix<Config::Out>(out, "out");
  args.weight = operands.vector<const Config::Weight>(weight, "weight");
  args.rows = operands.rows();
  args.hidden = static_cast<int>(operands.size());
  args.epsilon = static_cast<float>(epsilon);
  if (args.rows == 0) return;
  ffi::check_value(!Config::kIsWhole || args.hidden <= Layout::kCapacity,
                   "gated_rms_norm: this module was built for other row lengths");
  if constexpr (Config::kIsQuant) {
    int64_t group_stride;
    const Matrix<float> scales = operands.scales(scale.value(), 1, group_stride);
    args.scale = scales.data;
    args.scale_stride = scales.stride;
  }
  launch_gated_rms_norm(args, operands.is_aligned(), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gated_rms_norm, aiter_like::gated_rms_norm);
#endif

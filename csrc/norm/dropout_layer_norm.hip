// SPDX-License-Identifier: MIT
// dropout_layer_norm of PyTorch tensors; dropout_layer_norm_body.h has the kernel. One build per combination of the
// macros.
#include "aiter_like/rows/operands.h"
#include "dropout_layer_norm_body.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC)
#error "dropout_layer_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DLANES -DVECTORS -DVEC"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Weight = WEIGHT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_dropout_layer_norm(const DropoutLayerNormArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void dropout_layer_norm(ffi::Tensor out, ffi::Tensor residual_out, ffi::Tensor input, ffi::Tensor residual_in,
                        ffi::Tensor weight, ffi::Tensor bias, double p, int64_t seed, int64_t offset, double epsilon) {
  using Layout = Config::Layout<true>;
  ffi::RowOperands<Layout::kVec> operands("dropout_layer_norm", input);
  DropoutLayerNormArgs<Config> args{};
  args.input = operands.matrix<const Config::Element>(input, "input");
  args.residual_in = operands.matrix<const Config::Element>(residual_in, "residual");
  args.out = operands.matrix<Config::Element>(out, "out");
  args.residual_out = operands.matrix<Config::Element>(residual_out, "residual_out");
  args.weight = operands.vector<const Config::Weight>(weight, "weight");
  args.bias = operands.vector<const Config::Weight>(bias, "bias");
  args.seed = static_cast<uint64_t>(seed);
  args.offset = static_cast<uint64_t>(offset);
  args.rows = operands.rows();
  args.hidden = static_cast<int>(operands.size());
  args.threshold = static_cast<uint32_t>(p * (1 << 24));
  args.kept_scale = static_cast<float>(1.0 / (1.0 - p));
  args.epsilon = static_cast<float>(epsilon);
  if (args.rows == 0) return;
  ffi::check_value(args.hidden <= Layout::kCapacity,
                   "dropout_layer_norm: this module was built for other row lengths");
  launch_dropout_layer_norm(args, operands.is_aligned(), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(dropout_layer_norm, aiter_like::dropout_layer_norm);
#endif

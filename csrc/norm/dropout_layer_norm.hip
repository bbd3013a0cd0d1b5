// SPDX-License-Identifier: MIT
// dropout_layer_norm of PyTorch tensors; dropout_layer_norm_body.h has the kernel. One build per combination of the
// macros.
#include "dropout_layer_norm_body.h"
#include "norm_host.h"

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
  ffi::Match match("dropout_layer_norm");
  ffi::Size rows{"rows", 1 << 24}, hidden{"hidden"};
  DropoutLayerNormArgs<Config> args{};
  ffi::take_rows(match, args, rows, hidden, input, out, residual_in, residual_out, epsilon);
  args.weight = match.elements<const Config::Weight>(weight, hidden, "weight");
  args.bias = match.elements<const Config::Weight>(bias, hidden, "bias");
  args.seed = seed, args.offset = offset;
  args.threshold = static_cast<uint32_t>(p * (1 << 24));
  args.kept_scale = static_cast<float>(1.0 / (1.0 - p));
  if (rows == 0) return;
  match.built(hidden <= Layout::kCapacity, "row lengths");
  const bool is_aligned = ffi::takes_vectors(Layout::kVec, input, residual_in, out, residual_out, weight, bias);
  launch_dropout_layer_norm(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(dropout_layer_norm, aiter_like::dropout_layer_norm);
#endif

// SPDX-License-Identifier: MIT
// gated_rms_norm of PyTorch tensors; gated_rms_norm_body.h has the kernel. One build per combination of the macros.
#include "aiter_like/rows/scales.h"
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

void gated_rms_norm(ffi::Tensor out, ffi::OptionalTensor scale, ffi::Tensor input, ffi::Tensor gate,
                    ffi::Tensor weight, double epsilon) {
  using Layout = Config::Layout<true>;
  ffi::Match match("gated_rms_norm");
  match.built(scale.has_value() == Config::kIsQuant, "results");
  ffi::Size rows{"rows", 1 << 24}, hidden{"hidden"};
  GatedRmsNormArgs<Config> args{};
  args.input = match.rows<const Config::Element>(input, rows, hidden, "input");
  args.gate = match.rows<const Config::Element>(gate, rows, hidden, "gate");
  args.out = match.rows<Config::Out>(out, rows, hidden, "out");
  args.weight = match.elements<const Config::Weight>(weight, hidden, "weight");
  args.rows = rows, args.hidden = hidden, args.epsilon = epsilon;
  if (rows == 0) return;
  match.built(!Config::kIsWhole || hidden <= Layout::kCapacity, "row lengths");
  const auto scales = ffi::row_scales(match, scale, rows, 1);
  args.scale = scales.data, args.scale_stride = scales.row;
  launch_gated_rms_norm(args, ffi::takes_vectors(Layout::kVec, input, gate, out, weight), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gated_rms_norm, aiter_like::gated_rms_norm);
#endif

// SPDX-License-Identifier: MIT
// moe_smoothquant of PyTorch tensors; moe_smoothquant_body.h has the kernel. One build per combination of the macros.
#include "moe_smoothquant_body.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC) || !defined(IS_WHOLE)
#error "moe_smoothquant.hip: -DELEMENT=bf16|f16|float -DOUT=fp8|int8_t and sizes"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Out = OUT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
  static constexpr bool kIsWhole = IS_WHOLE;  // a row fits in the lanes' registers
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_moe_smoothquant(const MoeSmoothquantArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void moe_smoothquant(ffi::Tensor out, ffi::Tensor scale, ffi::Tensor input, ffi::Tensor x_scale,
                     ffi::Tensor topk_ids) {
  ffi::Match match("moe_smoothquant");
  ffi::Size tokens{"tokens", 1 << 24}, columns{"columns"}, experts{"experts"}, topk{"topk", 1 << 16};
  ffi::Size rows{"tokens * topk", 1 << 24};
  MoeSmoothquantArgs<Config> args{};
  args.input = match.rows<const ELEMENT>(input, tokens, columns, "input");
  args.topk_ids = match.take<const int32_t>(topk_ids, {tokens, topk}, "topk_ids", ffi::kDense);
  if (tokens == 0 || topk == 0) return;
  args.out = match.rows<OUT>(out, rows, columns, "out");
  args.x_scale = match.rows<const float>(x_scale, experts, columns, "x_scale");
  match.require(rows == tokens * topk, "out must have a row per token and expert");
  args.scale = match.elements<float>(scale, rows, "y_scale");
  args.experts = experts, args.tokens = tokens, args.columns = columns, args.topk = topk;
  match.built(!IS_WHOLE || columns <= LANES * VECTORS * VEC, "row lengths");
  const bool is_aligned = ffi::takes_vectors(VEC, input, out) && ffi::takes_vectors(4, x_scale);
  launch_moe_smoothquant(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_smoothquant, aiter_like::moe_smoothquant);
#endif

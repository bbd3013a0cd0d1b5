// SPDX-License-Identifier: MIT
// flatten_group_quant of PyTorch tensors; flatten_group_quant_body.h has the kernel. One build per combination of the
// macros.
#include "flatten_group_quant_body.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC) || \
    !defined(IS_WHOLE) || !defined(GROUP)
#error "flatten_group_quant.hip: -DELEMENT=bf16|f16|float -DOUT=fp8|int8_t -DGROUP=32|64|128 and sizes"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Out = OUT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
  static constexpr bool kIsWhole = IS_WHOLE;  // a row fits in the lanes' registers
  static constexpr int kGroup = GROUP;  // columns that share a scale
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_flatten_group_quant(const FlattenGroupQuantArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void flatten_group_quant(ffi::Tensor out, ffi::Tensor scale, ffi::Tensor input, int64_t group_size) {
  ffi::Match match("flatten_group_quant");
  match.built(group_size == GROUP, "groups");
  ffi::Size tokens{"tokens"}, heads{"heads"}, columns{"columns"};
  const auto x = match.take<const ELEMENT>(input, {tokens, heads, columns}, "input");
  if (tokens * heads * columns == 0) return;
  match.require(tokens * heads < int64_t{1} << 24 && heads * columns < int64_t{1} << 31 && columns % GROUP == 0,
                "at most 2^24 - 1 heads of all tokens, and whole groups in each");
  FlattenGroupQuantArgs<Config> args{};
  args.out = match.rows<OUT>(out, tokens, heads * columns, "out");
  const auto scales = ffi::row_scales(match, scale, tokens, heads * columns / GROUP);
  args.scale = {scales.data, scales.row}, args.group_stride = scales.group;
  args.input = x, args.token_stride = x.step(0), args.head_stride = x.step(1);
  args.heads = Divider(heads);
  args.rows = tokens * heads, args.columns = columns;
  match.built(!IS_WHOLE || columns <= LANES * VECTORS * VEC, "row lengths");
  launch_flatten_group_quant(args, ffi::takes_vectors(VEC, input, out), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(flatten_group_quant, aiter_like::flatten_group_quant);
#endif

// SPDX-License-Identifier: MIT
// truncated_quant of PyTorch tensors; truncated_quant_body.h has the kernel. One build per combination of the macros.
#include "truncated_quant_body.h"

#if !defined(ELEMENT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC) || !defined(IS_WHOLE) || \
    !defined(IS_DYNAMIC)
#error "truncated_quant.hip: -DELEMENT=bf16|f16|float, sizes and flags"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
  static constexpr bool kIsWhole = IS_WHOLE;  // a row fits in the lanes' registers
  static constexpr bool kIsDynamic = IS_DYNAMIC;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_truncated_quant(const TruncatedQuantArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void truncated_quant(ffi::Tensor out, ffi::Tensor scale, ffi::Tensor input, bool is_dynamic,
                     ffi::OptionalTensor scale_ub, ffi::OptionalTensor num_rows, int64_t num_rows_factor) {
  ffi::Match match("truncated_quant");
  match.built(is_dynamic == bool{IS_DYNAMIC});
  ffi::Size rows{"rows", 1 << 24}, columns{"columns"};
  TruncatedQuantArgs<Config> args{};
  args.input = match.rows<const ELEMENT>(input, rows, columns, "input");
  args.out = match.rows<int8_t>(out, rows, columns, "out");
  args.scale_ub = match.elements<const float>(scale_ub, 1, "scale_ub");
  args.num_rows = match.elements<const int32_t>(num_rows, 1, "num_rows");
  args.num_rows_factor = num_rows_factor, args.rows = rows, args.columns = columns;
  if (rows == 0) return;
  match.built(!IS_WHOLE || columns <= LANES * VECTORS * VEC, "row lengths");
  args.scale = match.elements<float>(scale, IS_DYNAMIC ? rows : 1, "scale");
  launch_truncated_quant(args, ffi::takes_vectors(VEC, input, out), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(truncated_quant, aiter_like::truncated_quant);
#endif

// SPDX-License-Identifier: MIT
// act_and_mul_quant of PyTorch tensors; act_and_mul_quant_body.h has the kernel. One build per combination of the
// macros.
#include "act_and_mul_quant_body.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(ACTIVATION) || !defined(LANES) || !defined(VECTORS) || \
    !defined(VEC) || !defined(IS_WHOLE) || !defined(GROUP) || !defined(WEIGHT) || !defined(WEIGHTS) || \
    !defined(IS_QUANTISED)
#error "act_and_mul_quant.hip: -DELEMENT -DOUT -DWEIGHT (types) -DACTIVATION -DGROUP=0|32|64|128, sizes and flags"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Out = OUT;
  using Weight = WEIGHT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
  static constexpr bool kIsWhole = IS_WHOLE;  // a row fits in the lanes' registers
  static constexpr Activation kActivation = Activation::ACTIVATION;
  static constexpr int kGroup = GROUP;      // columns that share a scale; 0: a row's
  static constexpr int kWeights = WEIGHTS;  // 0: none, 1: one per row, 2: one per element
  static constexpr bool kIsQuantised = IS_QUANTISED;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_act_and_mul_quant(const ActAndMulQuantArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void act_and_mul_quant(ffi::Tensor out, ffi::OptionalTensor scale, ffi::Tensor input, ffi::String activation,
                       double limit, int64_t group_size, ffi::OptionalTensor weights) {
  ffi::Match match("act_and_mul_quant");
  match.built(group_size == GROUP && activation == AITER_LIKE_TEXT(ACTIVATION) && scale.has_value() == IS_QUANTISED &&
              weights.has_value() == (WEIGHTS > 0));
  ffi::Size rows{"rows", 1 << 24}, columns{"columns"};
  ActAndMulQuantArgs<Config> args{};
  args.out = match.rows<OUT>(out, rows, columns, "out");
  if (rows == 0) return;
  args.input = match.rows<const ELEMENT>(input, rows, 2 * columns, "input");
  args.rows = rows, args.columns = columns, args.limit = limit;
  match.built(!IS_WHOLE || columns <= LANES * VECTORS * VEC, "row lengths");
  match.require(GROUP == 0 || columns % GROUP == 0, "group_size must divide the row");
  if constexpr (WEIGHTS == 1)
    args.weights = {match.elements<const WEIGHT>(weights, rows, "weights"), 1};
  else if constexpr (WEIGHTS == 2)
    args.weights = match.rows<const WEIGHT>(weights, rows, columns, "weights");
  const auto scales = ffi::row_scales(match, scale, rows, GROUP == 0 ? 1 : columns / GROUP);
  args.scale = scales.data, args.scale_stride = scales.row, args.group_stride = scales.group;
  const bool is_aligned =
      ffi::takes_vectors(VEC, out, input) && (WEIGHTS != 2 || ffi::takes_vectors(VEC, weights));
  launch_act_and_mul_quant(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(act_and_mul_quant, aiter_like::act_and_mul_quant);
#endif

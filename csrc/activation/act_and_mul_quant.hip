// SPDX-License-Identifier: MIT
// Gated activation with a quantised result: y = act(gate) · up · weights as in act_and_mul.hip, in fp32, to fp8 or int8
// by the rule of quant.h: a scale per row (GROUP 0) or per GROUP columns. WEIGHTS 0: none, 1: one per row, 2: one per
// element. IS_QUANTISED 0: y itself. HIP (gfx9) and CUDA. One build per combination of
// the macros below.
//
//   1. each lane loads its vectors of gate and up and computes y
//   2. largest magnitude over the row's lanes (through LDS beyond a wave), or over a group's within a wave
//   3. multiply with 1 / scale, round, store; one lane stores the scale
// A row longer than the registers' capacity (IS_WHOLE 0) is taken in pieces, for GROUP 0 read and computed twice.
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 4 bytes per wave.
// Bound: memory. A row moves columns · (2 sizeof(ELEMENT) + 1) bytes for about 15 instructions per element:
// 8192 × 8192 bf16 = 336 MB, 63 us at 5.3 TB/s.
#include "aiter_like/preload.h"
#include "aiter_like/quant.h"
#include "aiter_like/rows/scales.h"
#include "activation.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(ACTIVATION) || !defined(LANES) || !defined(VECTORS) || \
    !defined(VEC) || !defined(IS_WHOLE) || !defined(GROUP) || !defined(WEIGHT) || !defined(WEIGHTS) || \
    !defined(IS_QUANTISED)
#error "act_and_mul_quant.hip: -DELEMENT -DOUT -DWEIGHT (types) -DACTIVATION -DGROUP=0|32|64|128, sizes and flags"
#endif

namespace aiter_like {

struct ActAndMulQuantArgs {
  Matrix<OUT> out;              // [rows, columns]
  Matrix<const ELEMENT> input;  // [rows, 2 · columns]: gate, up
  Matrix<const WEIGHT> weights; // [rows, 1 or columns]
  float* scale;
  int64_t scale_stride, group_stride;  // scales from row to row, from group to group
  int64_t rows;
  int columns;
  float limit;
  static constexpr Preload preload() {
    using A = ActAndMulQuantArgs;
    return {offsetof(A, rows), offsetof(A, columns), offsetof(A, input.data), offsetof(A, input.stride),
            offsetof(A, out.data), offsetof(A, out.stride), offsetof(A, scale)};
  }
};

template <bool kIsAligned, class Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(4)) void act_and_mul_quant_kernel(
    AITER_LIKE_PRELOADED(ActAndMulQuantArgs)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  __shared__ RowScratch<Layout> scratch;
  // Lanes of a row that is not there take part in the reduction with zeros.
  const bool is_there = Layout::row() < args.rows;
  const int64_t row = is_there ? Layout::row() : 0;
  const int columns = is_there ? args.columns : 0;

  float y[Layout::kVectors][Layout::kVec];
  const auto compute = [&](int start) {
    RowTile<Layout, ELEMENT> gate, up;
    gate.load(args.input.row(row) + start, columns - start);
    up.load(args.input.row(row) + args.columns + start, columns - start);
    if constexpr (IS_QUANTISED) await_arguments(args.scale_stride);
    if constexpr (GROUP > 0) await_arguments(args.group_stride);
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v) {
      float g[Layout::kVec], u[Layout::kVec];
#pragma unroll
      for (int e = 0; e < Layout::kVec; ++e) g[e] = gate.at(v, e), u[e] = up.at(v, e);
      gated<Activation::ACTIVATION, OUT>(y[v], g, u, args.limit);
    }
    if constexpr (WEIGHTS == 1) {
      const float weight = to_float(*args.weights.row(row));
      each_element<Layout>([&](int v, int e) {  // beyond the row zeros, whatever the weight
        y[v][e] = Layout::column(v) + e < columns - start ? y[v][e] * weight : 0.f;
      });
    } else if constexpr (WEIGHTS == 2) {
      RowTile<Layout, WEIGHT> weights;
      weights.load(args.weights.row(row) + start, columns - start);
      each_element<Layout>([&](int v, int e) { y[v][e] *= weights.at(v, e); });
    }
  };
  const auto value = [&](int v, int e) { return y[v][e]; };

  QuantScale scale{};
  if constexpr (GROUP == 0 && IS_QUANTISED) {
    float amax = 0.f;
    for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
      compute(start);
      amax = larger(amax, lane_amax<Layout>(value));
      if constexpr (IS_WHOLE) break;
    }
    scale = quant_scale<OUT>(row_max<Layout>(amax, scratch));
    if (Layout::lane() == 0 && is_there) args.scale[row * args.scale_stride] = scale.scale;
  }
  for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
    if constexpr (GROUP > 0 || !IS_WHOLE || !IS_QUANTISED) compute(start);
    if constexpr (!IS_QUANTISED)
      store_row<Layout>(args.out.row(row) + start, columns - start, value);
    else if constexpr (GROUP == 0)
      store_quantised<Layout>(args.out.row(row) + start, columns - start, scale.inverse, value);
    else
      store_groups<Layout, GROUP>(args.out.row(row) + start,
                                  args.scale + row * args.scale_stride + start / GROUP * args.group_stride,
                                  args.group_stride, columns - start, value);
    if constexpr (IS_WHOLE) break;
  }
}

void launch_act_and_mul_quant(const ActAndMulQuantArgs& args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const dim3 grid(Layout::workgroups(args.rows));
  const auto kernel = is_aligned ? act_and_mul_quant_kernel<true> : act_and_mul_quant_kernel<false>;
  launch_named("act_and_mul_quant_kernel", kernel, grid, Layout::kThreads, stream, args);
}

#if AITER_LIKE_HOST_PASS

void act_and_mul_quant(ffi::Tensor out, ffi::OptionalTensor scale, ffi::Tensor input, ffi::String activation,
                       double limit, int64_t group_size, ffi::OptionalTensor weights) {
  ffi::Match match("act_and_mul_quant");
  match.built(group_size == GROUP && activation == AITER_LIKE_TEXT(ACTIVATION) && scale.has_value() == IS_QUANTISED &&
              weights.has_value() == (WEIGHTS > 0));
  ffi::Size rows{"rows", 1 << 24}, columns{"columns"};
  ActAndMulQuantArgs args{};
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

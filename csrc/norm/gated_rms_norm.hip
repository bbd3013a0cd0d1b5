// SPDX-License-Identifier: MIT
// RMSNorm times a gate: y = x / sqrt(mean(x²) + epsilon) · weight · silu(gate), row by row, in fp32; out = y, or
// (IS_QUANT) y quantised with a scale per row. HIP (gfx9) and CUDA. One build per combination of the macros below.
//
//   1. load the row and its gate into registers
//   2. the sum of squares over the row's lanes
//   3. IS_QUANT: largest magnitude of y over the row's lanes
//   4. scale, multiply with weight and gate, round, store
// A row longer than the registers' capacity (IS_WHOLE 0) is read again for each step, mostly from cache.
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 4 bytes per wave, 8 if IS_QUANT.
// Bound: memory. A row moves hidden · (2 · sizeof(ELEMENT) + sizeof(OUT)) bytes for 10 flop per element: 65536 heads of
// 128 in bf16 = 50 MB, 9.5 us at 5.3 TB/s.
#include "aiter_like/math.h"
#include "aiter_like/quant.h"
#include "aiter_like/rows/operands.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || \
    !defined(VEC) || !defined(IS_WHOLE) || !defined(IS_QUANT)
#error "gated_rms_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DOUT=ELEMENT|fp8|int8_t, sizes and flags"
#endif

namespace aiter_like {

struct GatedRmsNormArgs {
  Matrix<OUT> out;
  Matrix<const ELEMENT> input, gate;
  const WEIGHT* weight;  // [hidden]
  float* scale;
  int64_t scale_stride;  // from row to row
  int64_t rows;
  int hidden;
  float epsilon;
};

constexpr int kBytes = (2 + IS_QUANT) * sizeof(ELEMENT);  // of registers for an element: x, gate, part of y

template <bool kIsAligned, class Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(kBytes, sizeof(WEIGHT))) void
gated_rms_norm_kernel(GatedRmsNormArgs args) {
  await_stream();
  __shared__ RowScratch<Layout> squares_scratch, amax_scratch;
  // Lanes of a row that is not there take part in the reductions with zeros.
  const int64_t row = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
  const int hidden = Layout::row() < args.rows ? args.hidden : 0;

  RowTile<Layout, ELEMENT> x, gate;
  RowTile<Layout, WEIGHT> weight;
  RowTile<Layout, float> y;
  const auto load = [&](int start) {
    x.load(args.input.row(row) + start, hidden - start);
    gate.load(args.gate.row(row) + start, hidden - start);
  };

  float squares = 0.f;
  for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
    if constexpr (IS_WHOLE)
      load(start);
    else
      x.load(args.input.row(row) + start, hidden - start);
    squares += lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
    if constexpr (IS_WHOLE) break;
  }
  const float mean = row_sum<Layout>(squares, squares_scratch) / static_cast<float>(args.hidden);
  x.drop_floats();
  const float inverse_rms = 1.f / square_root(mean + args.epsilon);
  const auto gated = [&](int v, int e) {
    const float z = gate.at(v, e);
    return x.at(v, e) * inverse_rms * weight.at(v, e) * (z * sigmoid(z));
  };

  // Stores the result, or keeps in `y` what is to be quantised.
  const auto finish = [&](int start) {
    each_vector<Layout>([&](int v) { weight.load(args.weight + start, hidden - start, v); }, [&](int v) {
      if constexpr (IS_QUANT) {
#pragma unroll
        for (int e = 0; e < VEC; ++e) y.set(v, e, gated(v, e));
      } else {
        store_row<Layout>(args.out.row(row) + start, hidden - start, v, gated);
      }
    });
  };
  const auto value = [&](int v, int e) { return y.at(v, e); };

  QuantScale scale{};
  if constexpr (IS_QUANT) {
    float amax = 0.f;
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      if constexpr (!IS_WHOLE) load(start);
      finish(start);
      amax = larger(amax, lane_amax<Layout>(value));
      if constexpr (IS_WHOLE) break;
    }
    scale = quant_scale<OUT>(row_max<Layout>(amax, amax_scratch));
    if (Layout::lane() == 0 && hidden > 0) args.scale[row * args.scale_stride] = scale.scale;
  }
  for (int start = 0; start < hidden; start += Layout::kCapacity) {
    if constexpr (!IS_WHOLE) load(start);
    if constexpr (!IS_QUANT || !IS_WHOLE) finish(start);
    if constexpr (IS_QUANT)
      store_quantised<Layout>(args.out.row(row) + start, hidden - start, scale.inverse, value);
    if constexpr (IS_WHOLE) break;
  }
}

void launch_gated_rms_norm(const GatedRmsNormArgs& args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const dim3 grid(static_cast<uint32_t>((args.rows + Layout::kRows - 1) / Layout::kRows));
  if (is_aligned)
    launch_overlapped(gated_rms_norm_kernel<true>, grid, Layout::kThreads, stream, args);
  else
    launch_overlapped(gated_rms_norm_kernel<false>, grid, Layout::kThreads, stream, args);
  check_launch("gated_rms_norm_kernel");
}

#if AITER_LIKE_HOST_PASS

void gated_rms_norm(ffi::Tensor out, ffi::Optional<ffi::Tensor> scale, ffi::Tensor input, ffi::Tensor gate,
                    ffi::Tensor weight, double epsilon) {
  ffi::check_value(scale.has_value() == IS_QUANT, "gated_rms_norm: this module was built for another result");
  ffi::RowOperands<VEC> operands("gated_rms_norm", input);
  GatedRmsNormArgs args{};
  args.input = operands.matrix<const ELEMENT>(input, "input");
  args.gate = operands.matrix<const ELEMENT>(gate, "gate");
  args.out = operands.matrix<OUT>(out, "out");
  args.weight = operands.vector<const WEIGHT>(weight, "weight");
  args.rows = operands.rows();
  args.hidden = static_cast<int>(operands.size());
  args.epsilon = static_cast<float>(epsilon);
  if (args.rows == 0) return;
  ffi::check_value(!IS_WHOLE || args.hidden <= LANES * VECTORS * VEC,
                   "gated_rms_norm: this module was built for other row lengths");
  if constexpr (IS_QUANT) {
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

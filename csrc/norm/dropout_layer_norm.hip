// SPDX-License-Identifier: MIT
// Dropout, residual add and LayerNorm: x = dropout(input) + residual_in, row by row, in fp32, its rounded value becomes
// residual_out; out = (x - mean(x)) / sqrt(var(x) + epsilon) · weight + bias. HIP (gfx9) and CUDA. One build per
// combination of the macros below; LANES · VECTORS · VEC elements cover a row.
//
//   1. load row and residual; drop elements by Philox, four of them per counter
//   2. the mean over the row's lanes, and the variance from the deviations in registers
//   3. scale, multiply with the weight, add the bias, round, store both
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 8 bytes per wave.
// Bound: memory. A row moves 4 · hidden · sizeof(ELEMENT) bytes, for 10 flop and 15 integer operations per element.
#include "aiter_like/philox.h"
#include "aiter_like/rows/operands.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC)
#error "dropout_layer_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DLANES -DVECTORS -DVEC"
#endif

namespace aiter_like {

struct DropoutLayerNormArgs {
  Matrix<ELEMENT> out, residual_out;
  Matrix<const ELEMENT> input, residual_in;
  const WEIGHT* weight;  // [hidden], as bias
  const WEIGHT* bias;
  uint64_t seed, offset;
  int64_t rows;
  int hidden;
  uint32_t threshold;  // of 2^24: elements whose random number is below are dropped
  float kept_scale;    // 1 / (1 - p)
  float epsilon;
};

template <bool kIsAligned, class Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(4, 2 * sizeof(WEIGHT))) void
dropout_layer_norm_kernel(DropoutLayerNormArgs args) {
  await_stream();
  static_assert(VEC % 4 == 0, "a vector is whole groups of four elements");
  __shared__ RowScratch<Layout> mean_scratch, variance_scratch;
  // Lanes of a row that is not there take part in the reductions with zeros.
  const int64_t row = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
  const int hidden = Layout::row() < args.rows ? args.hidden : 0;
  const float size = static_cast<float>(args.hidden);

  RowTile<Layout, ELEMENT> input, residual;
  input.load(args.input.row(row), hidden);
  residual.load(args.residual_in.row(row), hidden);
  RowTile<Layout, float> x;  // the sum with what is kept
  const uint64_t first = args.offset + static_cast<uint64_t>(row) * ((args.hidden + 3) / 4);
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) {
#pragma unroll
    for (int e = 0; e < VEC; e += 4) {
      const Vec<uint32_t, 4> words = philox(args.seed, first + (Layout::column(v) + e) / 4);
#pragma unroll
      for (int i = e; i < e + 4; ++i) {
        const bool is_kept = (words[i - e] >> 8) >= args.threshold;
        x.set(v, i, (is_kept ? input.at(v, i) * args.kept_scale : 0.f) + residual.at(v, i));
      }
    }
  }
  const auto at = [&](int v, int e) { return x.at(v, e); };

  const float mean = row_sum<Layout>(lane_sum<Layout>(at), mean_scratch) / size;  // zeros beyond the row
  const float squares = lane_sum<Layout>([&](int v, int e) {
    const float deviation = x.at(v, e) - mean;
    return Layout::column(v) + (kIsAligned ? 0 : e) < hidden ? deviation * deviation : 0.f;
  });
  const float variance = row_sum<Layout>(squares, variance_scratch) / size;
  const float inverse_deviation = 1.f / square_root(variance + args.epsilon);

  RowTile<Layout, WEIGHT> weight, bias;
  const auto load_factors = [&](int v) {
    weight.load(args.weight, hidden, v);
    bias.load(args.bias, hidden, v);
  };
  each_vector<Layout>(load_factors, [&](int v) {
    store_row<Layout>(args.residual_out.row(row), hidden, v, at);
    store_row<Layout>(args.out.row(row), hidden, v, [&](int v, int e) {
      return (x.at(v, e) - mean) * inverse_deviation * weight.at(v, e) + bias.at(v, e);
    });
  });
}

void launch_dropout_layer_norm(const DropoutLayerNormArgs& args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const dim3 grid(static_cast<uint32_t>((args.rows + Layout::kRows - 1) / Layout::kRows));
  if (is_aligned)
    launch_overlapped(dropout_layer_norm_kernel<true>, grid, Layout::kThreads, stream, args);
  else
    launch_overlapped(dropout_layer_norm_kernel<false>, grid, Layout::kThreads, stream, args);
  check_launch("dropout_layer_norm_kernel");
}

#if AITER_LIKE_HOST_PASS

void dropout_layer_norm(ffi::Tensor out, ffi::Tensor residual_out, ffi::Tensor input, ffi::Tensor residual_in,
                        ffi::Tensor weight, ffi::Tensor bias, double p, int64_t seed, int64_t offset, double epsilon) {
  ffi::RowOperands<VEC> operands("dropout_layer_norm", input);
  DropoutLayerNormArgs args{};
  args.input = operands.matrix<const ELEMENT>(input, "input");
  args.residual_in = operands.matrix<const ELEMENT>(residual_in, "residual");
  args.out = operands.matrix<ELEMENT>(out, "out");
  args.residual_out = operands.matrix<ELEMENT>(residual_out, "residual_out");
  args.weight = operands.vector<const WEIGHT>(weight, "weight");
  args.bias = operands.vector<const WEIGHT>(bias, "bias");
  args.seed = static_cast<uint64_t>(seed);
  args.offset = static_cast<uint64_t>(offset);
  args.rows = operands.rows();
  args.hidden = static_cast<int>(operands.size());
  args.threshold = static_cast<uint32_t>(p * (1 << 24));
  args.kept_scale = static_cast<float>(1.0 / (1.0 - p));
  args.epsilon = static_cast<float>(epsilon);
  if (args.rows == 0) return;
  ffi::check_value(args.hidden <= LANES * VECTORS * VEC,
                   "dropout_layer_norm: this module was built for other row lengths");
  launch_dropout_layer_norm(args, operands.is_aligned(), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(dropout_layer_norm, aiter_like::dropout_layer_norm);
#endif

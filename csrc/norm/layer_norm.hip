// SPDX-License-Identifier: MIT
// LayerNorm: y = (x - mean(x)) / sqrt(var(x) + epsilon) · weight + bias, row by row, in fp32; x = input, + x_bias, +
// residual_in, whose rounded sum becomes residual_out; out = y, or (IS_QUANT) y · x_scale quantised, a scale per
// row. HIP (gfx9) and CUDA. One build per combination of the macros below.
//
//   1. load the row (and what is added to it) into registers; mean and variance over the row's lanes, at once where
//      that is exact (rows/pairs.h)
//   2. IS_QUANT: largest magnitude of y · x_scale over the row's lanes
//   3. vector by vector: scale, multiply with the weight, add the bias; round, store
// A row longer than the registers' capacity (IS_WHOLE 0) is read again for each step, mostly from cache.
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 12 bytes per wave, 16 if IS_QUANT.
// Bound: memory. A row moves hidden · (sizeof(ELEMENT) + sizeof(OUT)) bytes, 2 · hidden · sizeof(ELEMENT) more with a
// residual, for 7 flop per element. 4096 × 4096 bf16 = 67 MB, 12.7 us at 5.3 TB/s.
#include "aiter_like/quant.h"
#include "aiter_like/rows/operands.h"
#include "aiter_like/rows/pairs.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || \
    !defined(VEC) || !defined(IS_WHOLE) || !defined(HAS_RESIDUAL) || !defined(HAS_X_BIAS) || !defined(HAS_WEIGHT) || \
    !defined(HAS_BIAS) || !defined(IS_QUANT) || !defined(HAS_SMOOTH)
#error "layer_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DOUT=ELEMENT|fp8|int8_t, sizes and flags"
#endif

namespace aiter_like {

struct LayerNormArgs {
  Matrix<OUT> out;
  Matrix<ELEMENT> residual_out;
  Matrix<const ELEMENT> input, residual_in;
  const ELEMENT* x_bias;  // [hidden], as the next three
  const WEIGHT* weight;
  const WEIGHT* bias;
  const float* x_scale;
  float* scale;
  int64_t scale_stride;  // from row to row
  int64_t rows;
  int hidden;
  float epsilon;
};

constexpr bool kIsSum = HAS_RESIDUAL || HAS_X_BIAS;
constexpr int kBytes = kIsSum ? 4 : sizeof(ELEMENT);  // of registers for an element of x
constexpr int kFactorBytes = (HAS_WEIGHT + HAS_BIAS) * sizeof(WEIGHT) + 4 * HAS_SMOOTH;
// Factors that fit beside a lane's part of the row are loaded with it, not after the reductions: 2.7 us instead of 3.0
// for 64 rows of 8192 bf16 on an H200.
constexpr bool kKeepsFactors = IS_WHOLE && VECTORS * VEC * (kBytes + kFactorBytes) <= 192;

template <bool kIsAligned, class Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, kKeepsFactors ? Layout::min_groups(kBytes + kFactorBytes)
                                                             : Layout::min_groups(kBytes, kFactorBytes))
void layer_norm_kernel(LayerNormArgs args) {
  await_stream();
  __shared__ PairScratch<Layout> sums_scratch;
  __shared__ RowScratch<Layout> deviations_scratch, amax_scratch;
  // Lanes of a row that is not there take part in the reductions with zeros.
  const int64_t row = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
  const int hidden = Layout::row() < args.rows ? args.hidden : 0;

  SumTile<Layout, ELEMENT, kIsSum> x;
  RowTile<Layout, WEIGHT> weight, bias;
  RowTile<Layout, float> x_scale;
  const auto load = [&](int start) {
    x.load(args.input.row(row) + start, hidden - start);
    if constexpr (HAS_X_BIAS) x.add(args.x_bias + start, hidden - start);
    if constexpr (HAS_RESIDUAL) x.add(args.residual_in.row(row) + start, hidden - start);
  };
  const auto load_factors = [&](int start, int v) {
    if constexpr (HAS_WEIGHT) weight.load(args.weight + start, hidden - start, v);
    if constexpr (HAS_BIAS) bias.load(args.bias + start, hidden - start, v);
    if constexpr (HAS_SMOOTH) x_scale.load(args.x_scale + start, hidden - start, v);
  };
  const auto sum = [&](int v, int e) { return x.at(v, e); };
  const auto is_inside = [&](int start, int v, int e) {
    return Layout::column(v) + (kIsAligned ? 0 : e) < hidden - start;
  };

  Pair sums{};
  for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
    load(start);
    if constexpr (kKeepsFactors)
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) load_factors(0, v);
    sums.first += lane_sum<Layout>(sum);  // zeros beyond the row
    sums.second += lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
    if constexpr (IS_WHOLE) break;
  }
  const auto deviations = [&](float mean) {
    float squares = 0.f;
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      if constexpr (!IS_WHOLE) load(start);
      squares += lane_sum<Layout>([&](int v, int e) {
        const float deviation = x.at(v, e) - mean;
        return is_inside(start, v, e) ? deviation * deviation : 0.f;
      });
      if constexpr (IS_WHOLE) break;
    }
    return squares;
  };
  const Moments moments = row_moments<Layout>(sums, static_cast<float>(args.hidden), deviations, sums_scratch,
                                              deviations_scratch);
  x.drop_floats();
  const float inverse_deviation = reciprocal_square_root(moments.variance + args.epsilon);
  const auto normed = [&](int v, int e) {
    float value = (x.at(v, e) - moments.mean) * inverse_deviation;
    if constexpr (HAS_WEIGHT) value *= weight.at(v, e);
    if constexpr (HAS_BIAS) value += bias.at(v, e);
    if constexpr (HAS_SMOOTH) value *= x_scale.at(v, e);
    return value;
  };
  // f(vector) for each vector of the piece at `start`, whose factors are there.
  const auto each = [&](int start, auto f) {
    if constexpr (!IS_WHOLE) load(start);
    each_vector<Layout>([&](int v) { if constexpr (!kKeepsFactors) load_factors(start, v); }, f);
  };

  QuantScale scale{};
  if constexpr (IS_QUANT) {
    float amax = 0.f;
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      each(start, [&](int v) {
        const auto value = [&](int w, int e) { return is_inside(start, w, e) ? normed(w, e) : 0.f; };
        amax = larger(amax, vector_amax<Layout>(v, value));
      });
      if constexpr (IS_WHOLE) break;
    }
    scale = quant_scale<OUT>(row_max<Layout>(amax, amax_scratch));
    if (Layout::lane() == 0 && hidden > 0) args.scale[row * args.scale_stride] = scale.scale;
    x.drop_floats();
  }
  const auto result = [&](int v, int e) { return IS_QUANT ? normed(v, e) * scale.inverse : normed(v, e); };
  for (int start = 0; start < hidden; start += Layout::kCapacity) {
    each(start, [&](int v) {
      if constexpr (HAS_RESIDUAL) store_row<Layout>(args.residual_out.row(row) + start, hidden - start, v, sum);
      store_row<Layout>(args.out.row(row) + start, hidden - start, v, result);
    });
    if constexpr (IS_WHOLE) break;
  }
}

void launch_layer_norm(const LayerNormArgs& args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const dim3 grid(static_cast<uint32_t>((args.rows + Layout::kRows - 1) / Layout::kRows));
  if (is_aligned)
    launch_overlapped(layer_norm_kernel<true>, grid, Layout::kThreads, stream, args);
  else
    launch_overlapped(layer_norm_kernel<false>, grid, Layout::kThreads, stream, args);
  check_launch("layer_norm_kernel");
}

#if AITER_LIKE_HOST_PASS

void layer_norm(ffi::Tensor out, ffi::Optional<ffi::Tensor> scale, ffi::Optional<ffi::Tensor> residual_out,
                ffi::Tensor input, ffi::Optional<ffi::Tensor> weight, ffi::Optional<ffi::Tensor> bias, double epsilon,
                ffi::Optional<ffi::Tensor> x_bias, ffi::Optional<ffi::Tensor> residual_in,
                ffi::Optional<ffi::Tensor> x_scale) {
  ffi::check_value(residual_in.has_value() == HAS_RESIDUAL && residual_out.has_value() == HAS_RESIDUAL &&
                       x_bias.has_value() == HAS_X_BIAS && weight.has_value() == HAS_WEIGHT &&
                       bias.has_value() == HAS_BIAS && scale.has_value() == IS_QUANT &&
                       x_scale.has_value() == HAS_SMOOTH,
                   "layer_norm: this module was built for other flags");
  ffi::RowOperands<VEC> operands("layer_norm", input);
  LayerNormArgs args{};
  args.input = operands.matrix<const ELEMENT>(input, "input");
  args.out = operands.matrix<OUT>(out, "out");
  args.residual_in = operands.matrix<const ELEMENT>(residual_in, "residual_in");
  args.residual_out = operands.matrix<ELEMENT>(residual_out, "residual_out");
  args.weight = operands.vector<const WEIGHT>(weight, "weight");
  args.bias = operands.vector<const WEIGHT>(bias, "bias");
  args.x_bias = operands.vector<const ELEMENT>(x_bias, "x_bias");
  args.x_scale = operands.vector<const float>(x_scale, "x_scale");
  args.rows = operands.rows();
  args.hidden = static_cast<int>(operands.size());
  args.epsilon = static_cast<float>(epsilon);
  if (args.rows == 0) return;
  ffi::check_value(!IS_WHOLE || args.hidden <= LANES * VECTORS * VEC,
                   "layer_norm: this module was built for other row lengths");
  if constexpr (IS_QUANT) {
    int64_t group_stride;
    const Matrix<float> scales = operands.scales(scale.value(), 1, group_stride);
    args.scale = scales.data;
    args.scale_stride = scales.stride;
  }
  launch_layer_norm(args, operands.is_aligned(), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(layer_norm, aiter_like::layer_norm);
#endif

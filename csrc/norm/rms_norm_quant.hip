// SPDX-License-Identifier: MIT
// RMSNorm with its result quantised to fp8 or int8: y = x / sqrt(mean(x²) + epsilon) · weight, row by row, in fp32; x =
// input, or input + residual_in, whose rounded sum becomes residual_out. HIP (gfx9) and CUDA. One build per combination
// of the macros below. GROUP 0: one scale per row, of y · x_scale where HAS_SMOOTH; otherwise one per GROUP columns.
//
//   1. load the row (and the residual's, and add them) and the weights into registers; y = x · weight and its largest
//      magnitudes; the sum of squares and the largest of these over the row's lanes: the root is a factor of all
//   2. only where y has more factors or roundings, a residual, or products out of fp32's range: y of x
//   3. the scales; y as it is (HAS_PLAIN) and y quantised are stored; the sums with a residual in step 1
// A row longer than the registers' capacity (IS_WHOLE 0) is read again for steps 2 and 3, mostly from cache, and its
// sums are stored last, where they may be read from.
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 12 bytes per wave.
// Bound: memory. A row moves hidden · (sizeof(ELEMENT) + 1) bytes, 3 · sizeof(ELEMENT) + 1 with a residual: 4096 × 4096
// bf16 = 50 MB, 9.5 us at 5.3 TB/s; about 7 flop per element.
#include "aiter_like/quant.h"
#include "aiter_like/rows/operands.h"
#include "aiter_like/rows/pairs.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || \
    !defined(VEC) || !defined(IS_WHOLE) || !defined(GROUP) || !defined(HAS_RESIDUAL) || !defined(HAS_SMOOTH) || \
    !defined(HAS_PLAIN) || !defined(IS_GEMMA) || !defined(IS_MODEL_SENSITIVE)
#error "rms_norm_quant.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DOUT=fp8|int8_t, sizes and flags"
#endif

namespace aiter_like {

struct RmsNormQuantArgs {
  Matrix<OUT> out;
  Matrix<ELEMENT> residual_out, plain_out;
  Matrix<const ELEMENT> input, residual_in;
  const WEIGHT* weight;  // [hidden], as x_scale
  const float* x_scale;
  float* scale;
  int64_t scale_stride, group_stride;  // scales from row to row, from group to group
  int64_t rows;
  int hidden;
  float epsilon;
};

// y = x · weight · root: not beside the sums with a residual, which have to be kept too, and whose bytes take longer.
constexpr bool kHasProducts = !HAS_RESIDUAL && !HAS_SMOOTH && !IS_MODEL_SENSITIVE && (GROUP == 0 || IS_WHOLE);
constexpr float kLeastProduct = 0x1p-100f, kMostProduct = 0x1p100f;  // one between them has lost no bits
constexpr int kBytes = kHasProducts ? 4 : (HAS_RESIDUAL ? 4 : sizeof(ELEMENT)) + sizeof(WEIGHT) + 4 * HAS_SMOOTH;

template <bool kIsAligned, class Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(kBytes)) void rms_norm_quant_kernel(
    RmsNormQuantArgs args) {
  await_stream();
  static_assert(GROUP == 0 || kHasGroups<Layout, GROUP>, "a group's lanes must be neighbours in a wave");
  constexpr int kGroupLanes = GROUP / VEC;
  __shared__ PairScratch<Layout> scratch;
  __shared__ RowScratch<Layout> amax_scratch;
  // Lanes of a row that is not there take part in the reductions with zeros.
  const int64_t row = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
  const int hidden = Layout::row() < args.rows ? args.hidden : 0;

  SumTile<Layout, ELEMENT, HAS_RESIDUAL> x;
  RowTile<Layout, WEIGHT> weight;
  RowTile<Layout, float> x_scale, y;
  float amax[VECTORS];  // of a vector, or of the group it belongs to
  const auto load = [&](int start) {
    x.load(args.input.row(row) + start, hidden - start);
    weight.load(args.weight + start, hidden - start);
    if constexpr (HAS_RESIDUAL) x.add(args.residual_in.row(row) + start, hidden - start);
    if constexpr (HAS_SMOOTH) x_scale.load(args.x_scale + start, hidden - start);
  };
  const auto smoothed = [&](int v, int e) { return HAS_SMOOTH ? y.at(v, e) * x_scale.at(v, e) : y.at(v, e); };
  const auto multiply = [&](float before) {  // makes y and amax of x · before
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
#pragma unroll
      for (int e = 0; e < VEC; ++e) {
        float value = x.at(v, e) * before;
        if constexpr (IS_MODEL_SENSITIVE) value = to_float(from_float<ELEMENT>(value));
        y.set(v, e, value * (IS_GEMMA ? weight.at(v, e) + 1.f : weight.at(v, e)));
      }
      amax[v] = vector_amax<Layout>(v, smoothed);
      if constexpr (kGroupLanes > 1) amax[v] = wave_max<kGroupLanes / 2>(amax[v]);
    }
  };

  const auto store_sums = [&](int start) {
    store_row<Layout>(args.residual_out.row(row) + start, hidden - start, [&](int v, int e) { return x.at(v, e); });
  };

  Pair found{};  // the squares' sum; the largest product, or too large a number where a group's has lost bits
  for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
    load(start);
    if constexpr (HAS_RESIDUAL && IS_WHOLE) store_sums(start);  // at once: the registers are for y then
    found.first += lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
    if constexpr (kHasProducts) multiply(1.f);
#pragma unroll
    for (int v = 0; kHasProducts && v < VECTORS; ++v) {
      const bool has_lost = GROUP > 0 && Layout::column(v) < hidden && !(kLeastProduct < amax[v]);
      found.second = larger(found.second, has_lost ? kMostProduct : amax[v]);
    }
    if constexpr (IS_WHOLE) break;
  }
  found = row_sum_and_max<Layout>(found, scratch);
  const float inverse_rms = reciprocal_square_root(found.first / static_cast<float>(args.hidden) + args.epsilon);
  const bool is_made = kHasProducts && kLeastProduct < found.second && found.second < kMostProduct;  // no NaN is
  const float before = is_made ? 1.f : inverse_rms, after = is_made ? inverse_rms : 1.f;
  if ((GROUP == 0 || IS_WHOLE) && any_row<Layout>(!is_made)) {
    float of_lane = 0.f;
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      if constexpr (kHasProducts || !IS_WHOLE) load(start);
      multiply(before);
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) of_lane = larger(of_lane, amax[v]);
      if constexpr (IS_WHOLE) break;
    }
    const float of_row = GROUP == 0 ? row_max<Layout>(of_lane, amax_scratch) : 0.f;
    found.second = is_made ? found.second : of_row;  // a row's result does not depend on its neighbours
  }

  QuantScale scale{};
  if constexpr (GROUP == 0) {
    scale = quant_scale<OUT>(found.second * after);
    if (Layout::lane() == 0 && hidden > 0) args.scale[row * args.scale_stride] = scale.scale;
  }
  for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
    if constexpr (!IS_WHOLE) load(start);
    if constexpr (!IS_WHOLE) multiply(before);
    if constexpr (HAS_RESIDUAL && !IS_WHOLE) store_sums(start);
    const int columns = hidden - start;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      if constexpr (HAS_PLAIN)
        store_row<Layout>(args.plain_out.row(row) + start, columns, v, [&](int, int e) { return y.at(v, e) * after; });
      if constexpr (GROUP > 0) {
        scale = quant_scale<OUT>(amax[v] * after);
        if (Layout::column(v) < columns && Layout::lane() % kGroupLanes == 0)
          args.scale[row * args.scale_stride + (start + Layout::column(v)) / GROUP * args.group_stride] = scale.scale;
      }
      const float factor = after * scale.inverse;
      store_row<Layout>(args.out.row(row) + start, columns, v, [&](int, int e) { return smoothed(v, e) * factor; });
    }
    if constexpr (IS_WHOLE) break;
  }
}

void launch_rms_norm_quant(const RmsNormQuantArgs& args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const dim3 grid(static_cast<uint32_t>((args.rows + Layout::kRows - 1) / Layout::kRows));
  if (is_aligned)
    launch_overlapped(rms_norm_quant_kernel<true>, grid, Layout::kThreads, stream, args);
  else
    launch_overlapped(rms_norm_quant_kernel<false>, grid, Layout::kThreads, stream, args);
  check_launch("rms_norm_quant_kernel");
}

#if AITER_LIKE_HOST_PASS

void rms_norm_quant(ffi::Tensor out, ffi::Tensor scale, ffi::Optional<ffi::Tensor> residual_out,
                    ffi::Optional<ffi::Tensor> plain_out, ffi::Tensor input, ffi::Tensor weight, double epsilon,
                    ffi::Optional<ffi::Tensor> residual_in, ffi::Optional<ffi::Tensor> x_scale, int64_t group_size,
                    int64_t use_model_sensitive_rmsnorm, bool gemma_norm) {
  ffi::check_value(gemma_norm == IS_GEMMA && (use_model_sensitive_rmsnorm != 0) == IS_MODEL_SENSITIVE &&
                       residual_in.has_value() == HAS_RESIDUAL && residual_out.has_value() == HAS_RESIDUAL &&
                       plain_out.has_value() == HAS_PLAIN && x_scale.has_value() == HAS_SMOOTH && group_size == GROUP,
                   "rms_norm_quant: this module was built for other flags");
  ffi::RowOperands<VEC> operands("rms_norm_quant", input);
  RmsNormQuantArgs args{};
  args.input = operands.matrix<const ELEMENT>(input, "input");
  args.out = operands.matrix<OUT>(out, "out");
  args.residual_in = operands.matrix<const ELEMENT>(residual_in, "residual_in");
  args.residual_out = operands.matrix<ELEMENT>(residual_out, "residual_out");
  args.plain_out = operands.matrix<ELEMENT>(plain_out, "out_before_quant");
  args.weight = operands.vector<const WEIGHT>(weight, "weight");
  args.x_scale = operands.vector<const float>(x_scale, "x_scale");
  args.rows = operands.rows();
  args.hidden = static_cast<int>(operands.size());
  args.epsilon = static_cast<float>(epsilon);
  if (args.rows == 0) return;
  ffi::check_value(!IS_WHOLE || args.hidden <= LANES * VECTORS * VEC,
                   "rms_norm_quant: this module was built for other row lengths");
  ffi::check_value(GROUP == 0 || args.hidden % GROUP == 0, "rms_norm_quant: group_size must divide the row");
  const Matrix<float> scales = operands.scales(scale, GROUP == 0 ? 1 : args.hidden / GROUP, args.group_stride);
  args.scale = scales.data;
  args.scale_stride = scales.stride;
  launch_rms_norm_quant(args, operands.is_aligned(), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(rms_norm_quant, aiter_like::rms_norm_quant);
#endif

// SPDX-License-Identifier: MIT
// RMSNorm with its result quantised to fp8 or int8: y = x / sqrt(mean(x²) + epsilon) · weight, row by row, in fp32. x
// is input, or input + residual_in, whose rounded sum becomes residual_out. A row has one scale (kGroup 0), that of
// y · x_scale if kHasSmooth, or one scale for each kGroup columns. HIP (gfx9) and CUDA. rms_norm_quant.hip says what a
// Config holds.
//
//   1. load the row (and the residual's, and add them) and the weights into registers; y = x · weight and its largest
//      magnitudes; the sum of squares and the largest of these over the row's lanes: the root is a factor of all
//   2. only where y has more factors or roundings, a residual, or products out of fp32's range: y of x
//   3. the scales; y as it is (kHasPlain) and y quantised are stored; the sums with a residual are stored in step 1
// A row longer than the registers' capacity (kIsWhole false) is read again for steps 2 and 3, mostly from cache. Its
// sums are stored last, since residual_out may be the memory that is read.
//
// Tile: kLanes lanes take a row, kVectors · kVec elements each. LDS: 12 bytes per wave.
// Bound: memory. A row moves hidden · (sizeof(Element) + 1) bytes, 3 · sizeof(Element) + 1 with a residual: 4096 × 4096
// bf16 = 50 MB, 9.5 us at 5.3 TB/s; about 7 flop per element.
#pragma once

#include "aiter_like/preload.h"
#include "aiter_like/quant.h"
#include "aiter_like/rows/pairs.h"

namespace aiter_like {

template <class Config>
struct RmsNormQuantArgs {
  using Element = typename Config::Element;

  Matrix<typename Config::Out> out;
  Matrix<Element> residual_out, plain_out;
  Matrix<const Element> input, residual_in;
  const typename Config::Weight* weight;  // [hidden], like x_scale
  const float* x_scale;
  float* scale;
  int64_t scale_stride, group_stride;  // scales from row to row, from group to group
  int64_t rows;
  int hidden;
  float epsilon;
  static constexpr Preload preload() {
    using A = RmsNormQuantArgs;
    if (Config::kHasResidual)
      return {offsetof(A, rows), offsetof(A, hidden), offsetof(A, input.data), offsetof(A, input.stride),
              offsetof(A, residual_in.data), offsetof(A, residual_in.stride), offsetof(A, weight)};
    return {offsetof(A, rows), offsetof(A, hidden), offsetof(A, input.data), offsetof(A, input.stride),
            offsetof(A, weight), offsetof(A, out.data), offsetof(A, scale)};
  }
};

/// One workgroup's work on its rows.
template <class Config, bool kIsAligned>
struct RmsNormQuantBody {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;
  using Out = typename Config::Out;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = RmsNormQuantArgs<Config>;

  static constexpr int kGroup = Config::kGroup, kGroupLanes = kGroup / Layout::kVec;
  static_assert(kGroup == 0 || kHasGroups<Layout, kGroup>, "a group's lanes must be neighbours in a wave");
  // y is x · weight · root, except beside the sums with a residual: they have to be kept too, and their bytes take
  // longer.
  static constexpr bool kHasProducts = !Config::kHasResidual && !Config::kHasSmooth && !Config::kIsModelSensitive &&
                                       (kGroup == 0 || Config::kIsWhole);
  static constexpr float kLeastProduct = 0x1p-100f, kMostProduct = 0x1p100f;  // a product between them has lost no bits
  static constexpr int kBytes =  // bytes of registers for an element
      kHasProducts ? 4 : (Config::kHasResidual ? 4 : sizeof(Element)) + sizeof(Weight) + 4 * Config::kHasSmooth;
  static constexpr int kMinGroups = Layout::min_groups(kBytes);

  /// The first pass: the sum of squares, and the largest product, or too large a number where a group's has lost bits.
  template <class Sums, class Load, class Multiply, class StoreSums>
  __device__ __forceinline__ static Pair reduce(const Args& args, const int& hidden, const Sums& x,
                                                const float (&amax)[Layout::kVectors], const Load& load,
                                                const Multiply& multiply, const StoreSums& store_sums,
                                                PairScratch<Layout>& scratch) {
    Pair found{};
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      load(start);
      if constexpr (Config::kHasResidual)
        await_arguments(args.residual_out.data, args.residual_out.stride, args.out.data, args.scale);
      if constexpr (Config::kHasResidual && Config::kIsWhole) store_sums(start);  // before y takes the registers
      found.first += lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
      if constexpr (kHasProducts) multiply(1.f);
#pragma unroll
      for (int v = 0; kHasProducts && v < Layout::kVectors; ++v) {
        const bool has_lost = kGroup > 0 && Layout::column(v) < hidden && !(kLeastProduct < amax[v]);
        found.second = larger(found.second, has_lost ? kMostProduct : amax[v]);
      }
      if constexpr (Config::kIsWhole) break;
    }
    await_arguments(args.out.stride, args.scale_stride);
    if constexpr (kGroup > 0) await_arguments(args.group_stride);
    if constexpr (Config::kHasPlain) await_arguments(args.plain_out.data, args.plain_out.stride);
    return row_sum_and_max<Layout>(found, scratch);
  }

  /// Makes y of x · before, and returns its row's largest magnitude; 0 where groups have their own.
  template <class Load, class Multiply>
  __device__ __forceinline__ static float make(const Args& args, const float (&amax)[Layout::kVectors],
                                               const Load& load, const Multiply& multiply, float before,
                                               RowScratch<Layout>& scratch) {
    float of_lane = 0.f;
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      if constexpr (kHasProducts || !Config::kIsWhole) load(start);
      multiply(before);
#pragma unroll
      for (int v = 0; v < Layout::kVectors; ++v) of_lane = larger(of_lane, amax[v]);
      if constexpr (Config::kIsWhole) break;
    }
    return kGroup == 0 ? row_max<Layout>(of_lane, scratch) : 0.f;
  }

  /// Makes y of x · weight · before, and the largest magnitudes of its vectors, or of the groups these belong to.
  template <class Sums, class Weights, class Floats, class Smoothed>
  __device__ __forceinline__ static void multiply_weight(const Sums& x, const Weights& weight, float before, Floats& y,
                                                         float (&amax)[Layout::kVectors], const Smoothed& smoothed) {
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < Layout::kVec; ++e) {
        float value = x.at(v, e) * before;
        if constexpr (Config::kIsModelSensitive) value = to_float(from_float<Element>(value));
        y.set(v, e, value * (Config::kIsGemma ? weight.at(v, e) + 1.f : weight.at(v, e)));
      }
      amax[v] = vector_amax<Layout>(v, smoothed);
      if constexpr (kGroupLanes > 1) amax[v] = wave_max<kGroupLanes / 2>(amax[v]);
    }
  }

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ PairScratch<Layout> scratch;
    __shared__ RowScratch<Layout> amax_scratch;
    // Lanes of a row that is not there take part in the reductions with zeros.
    const int64_t row = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
    const int hidden = Layout::row() < args.rows ? args.hidden : 0;

    SumTile<Layout, Element, Config::kHasResidual> x;
    RowTile<Layout, Weight> weight;
    RowTile<Layout, float> x_scale, y;
    float amax[Layout::kVectors];  // a vector's, or that of the group it belongs to
    const auto load = [&](int start) {
      x.load(args.input.row(row) + start, hidden - start);
      weight.load(args.weight + start, hidden - start);
      if constexpr (Config::kHasResidual) x.add(args.residual_in.row(row) + start, hidden - start);
      if constexpr (Config::kHasSmooth) x_scale.load(args.x_scale + start, hidden - start);
    };
    const auto smoothed = [&](int v, int e) { return Config::kHasSmooth ? y.at(v, e) * x_scale.at(v, e) : y.at(v, e); };
    const auto multiply = [&](float before) { multiply_weight(x, weight, before, y, amax, smoothed); };
    const auto store_sums = [&](int start) {
      store_row<Layout>(args.residual_out.row(row) + start, hidden - start, [&](int v, int e) { return x.at(v, e); });
    };

    Pair found = reduce(args, hidden, x, amax, load, multiply, store_sums, scratch);
    const float inverse_rms = reciprocal_square_root(found.first / static_cast<float>(args.hidden) + args.epsilon);
    const bool is_made = kHasProducts && kLeastProduct < found.second && found.second < kMostProduct;  // no NaN is
    const float before = is_made ? 1.f : inverse_rms, after = is_made ? inverse_rms : 1.f;
    if ((kGroup == 0 || Config::kIsWhole) && any_row<Layout>(!is_made)) {
      const float of_row = make(args, amax, load, multiply, before, amax_scratch);
      found.second = is_made ? found.second : of_row;  // a row's result does not depend on its neighbours
    }

    QuantScale scale{};
    if constexpr (kGroup == 0) {
      scale = quant_scale<Out>(found.second * after);
      if (Layout::lane() == 0 && hidden > 0) args.scale[row * args.scale_stride] = scale.scale;
    }
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      if constexpr (!Config::kIsWhole) load(start);
      if constexpr (!Config::kIsWhole) multiply(before);
      if constexpr (Config::kHasResidual && !Config::kIsWhole) store_sums(start);
      const int columns = hidden - start;
#pragma unroll
      for (int v = 0; v < Layout::kVectors; ++v) {
        if constexpr (Config::kHasPlain)
          store_row<Layout>(args.plain_out.row(row) + start, columns, v,
                            [&](int, int e) { return y.at(v, e) * after; });
        if constexpr (kGroup > 0) {
          scale = quant_scale<Out>(amax[v] * after);
          if (Layout::column(v) < columns && Layout::lane() % kGroupLanes == 0)
            args.scale[row * args.scale_stride + (start + Layout::column(v)) / kGroup * args.group_stride] =
                scale.scale;
        }
        const float factor = after * scale.inverse;
        store_row<Layout>(args.out.row(row) + start, columns, v, [&](int, int e) { return smoothed(v, e) * factor; });
      }
      if constexpr (Config::kIsWhole) break;
    }
  }
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void rms_norm_quant_kernel(
    AITER_LIKE_PRELOADED(typename Body::Args)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  Body::run(args);
}

template <class Config>
void launch_rms_norm_quant(const RmsNormQuantArgs<Config>& args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const auto kernel = is_aligned ? rms_norm_quant_kernel<RmsNormQuantBody<Config, true>>
                                 : rms_norm_quant_kernel<RmsNormQuantBody<Config, false>>;
  launch_named("rms_norm_quant_kernel", kernel, Layout::workgroups(args.rows), Layout::kThreads, stream, args);
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// LayerNorm: y = (x - mean(x)) / sqrt(var(x) + epsilon) · weight + bias, row by row, in fp32. x is input, + x_bias, +
// residual_in, and its rounded value becomes residual_out; out is y, or (kIsQuant) y · x_scale quantised with a scale
// per row. HIP (gfx9) and CUDA. layer_norm.hip says what a Config holds.
//
//   1. load the row (and what is added to it) into registers; mean and variance over the row's lanes, at once where
//      that is exact (rows/pairs.h)
//   2. kIsQuant: largest magnitude of y · x_scale over the row's lanes
//   3. vector by vector: scale, multiply with the weight, add the bias; round, store
// A row longer than the registers' capacity (kIsWhole false) is read again for each step, mostly from cache.
//
// Tile: kLanes lanes take a row, kVectors · kVec elements each. LDS: 12 bytes per wave, 16 if kIsQuant.
// Bound: memory. A row moves hidden · (sizeof(Element) + sizeof(Out)) bytes, 2 · hidden · sizeof(Element) more with a
// residual, for 7 flop per element. 4096 × 4096 bf16 = 67 MB, 12.7 us at 5.3 TB/s.
#pragma once

#include "aiter_like/preload.h"
#include "aiter_like/quant.h"
#include "aiter_like/rows/pairs.h"

namespace aiter_like {

template <class Config>
struct LayerNormArgs {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;

  Matrix<typename Config::Out> out;
  Matrix<Element> residual_out;
  Matrix<const Element> input, residual_in;
  const Element* x_bias;  // [hidden], like the next three
  const Weight* weight;
  const Weight* bias;
  const float* x_scale;
  float* scale;
  int64_t scale_stride;  // from row to row
  int64_t rows;
  int hidden;
  float epsilon;
  static constexpr Preload preload() {
    using A = LayerNormArgs;
    if (Config::kHasResidual)
      return {offsetof(A, rows), offsetof(A, hidden), offsetof(A, input.data), offsetof(A, input.stride),
              offsetof(A, residual_in.data), offsetof(A, residual_in.stride), offsetof(A, weight)};
    return {offsetof(A, rows), offsetof(A, hidden), offsetof(A, input.data), offsetof(A, input.stride),
            offsetof(A, weight), offsetof(A, bias), offsetof(A, out.data)};
  }
};

/// One workgroup's work on its rows.
template <class Config, bool kIsAligned>
struct LayerNormBody {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;
  using Out = typename Config::Out;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = LayerNormArgs<Config>;

  static constexpr bool kIsSum = Config::kHasResidual || Config::kHasXBias;
  static constexpr int kBytes = kIsSum ? 4 : sizeof(Element);  // bytes of registers for an element of x
  static constexpr int kFactorBytes =
      (Config::kHasWeight + Config::kHasBias) * sizeof(Weight) + 4 * Config::kHasSmooth;
  // Factors that fit beside a lane's part of the row are loaded with it, not after the reductions: 2.7 us instead of
  // 3.0 for 64 rows of 8192 bf16 on an H200.
  static constexpr bool kKeepsFactors =
      Config::kIsWhole && Layout::kVectors * Layout::kVec * (kBytes + kFactorBytes) <= 192;
  static constexpr int kMinGroups = kKeepsFactors ? Layout::min_groups(kBytes + kFactorBytes)
                                                  : Layout::min_groups(kBytes, kFactorBytes);

  const Args& args;
  // Lanes of a row that is not there take part in the reductions with zeros.
  const int64_t row = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
  const int hidden = Layout::row() < args.rows ? args.hidden : 0;
  SumTile<Layout, Element, kIsSum> x;
  RowTile<Layout, Weight> weight, bias;
  RowTile<Layout, float> x_scale;
  Moments moments;
  float inverse_deviation;

  __device__ __forceinline__ explicit LayerNormBody(const Args& args) : args(args) {}

  __device__ __forceinline__ void load(int start) {
    x.load(args.input.row(row) + start, hidden - start);
    if constexpr (Config::kHasXBias) x.add(args.x_bias + start, hidden - start);
    if constexpr (Config::kHasResidual) x.add(args.residual_in.row(row) + start, hidden - start);
  }
  __device__ __forceinline__ void load_factors(int start, int v) {
    if constexpr (Config::kHasWeight) weight.load(args.weight + start, hidden - start, v);
    if constexpr (Config::kHasBias) bias.load(args.bias + start, hidden - start, v);
    if constexpr (Config::kHasSmooth) x_scale.load(args.x_scale + start, hidden - start, v);
  }
  __device__ __forceinline__ bool is_inside(int start, int v, int e) const {
    return Layout::column(v) + (kIsAligned ? 0 : e) < hidden - start;
  }
  __device__ __forceinline__ float normed(int v, int e) const {
    float value = (x.at(v, e) - moments.mean) * inverse_deviation;
    if constexpr (Config::kHasWeight) value *= weight.at(v, e);
    if constexpr (Config::kHasBias) value += bias.at(v, e);
    if constexpr (Config::kHasSmooth) value *= x_scale.at(v, e);
    return value;
  }
  /// f(vector) for each vector of the piece at `start`, whose factors are there.
  template <class F>
  __device__ __forceinline__ void each(int start, F f) {
    if constexpr (!Config::kIsWhole) load(start);
    each_vector<Layout>([&](int v) { if constexpr (!kKeepsFactors) load_factors(start, v); }, f);
  }

  /// A lane's sums of its elements and of their squares.
  __device__ __forceinline__ Pair load_and_sum() {
    Pair sums{};
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      load(start);
      if constexpr (kKeepsFactors)
#pragma unroll
        for (int v = 0; v < Layout::kVectors; ++v) load_factors(0, v);
      sums.first += lane_sum<Layout>([&](int v, int e) { return x.at(v, e); });  // zeros beyond the row
      sums.second += lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
      if constexpr (Config::kIsWhole) break;
    }
    await_arguments(args.out.stride);
    if constexpr (Config::kHasResidual)
      await_arguments(args.out.data, args.residual_out.data, args.residual_out.stride);
    if constexpr (Config::kIsQuant) await_arguments(args.scale, args.scale_stride);
    return sums;
  }
  /// Step 2.
  __device__ __forceinline__ QuantScale find_scale(RowScratch<Layout>& scratch) {
    float amax = 0.f;
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      each(start, [&](int v) {
        const auto value = [&](int w, int e) { return is_inside(start, w, e) ? normed(w, e) : 0.f; };
        amax = larger(amax, vector_amax<Layout>(v, value));
      });
      if constexpr (Config::kIsWhole) break;
    }
    const QuantScale scale = quant_scale<Out>(row_max<Layout>(amax, scratch));
    if (Layout::lane() == 0 && hidden > 0) args.scale[row * args.scale_stride] = scale.scale;
    x.drop_floats();
    return scale;
  }
  /// Step 3.
  __device__ __forceinline__ void store(float factor) {
    for (int start = 0; start < hidden; start += Layout::kCapacity) {
      each(start, [&](int v) {
        if constexpr (Config::kHasResidual)
          store_row<Layout>(args.residual_out.row(row) + start, hidden - start, v,
                            [&](int w, int e) { return x.at(w, e); });
        store_row<Layout>(args.out.row(row) + start, hidden - start, v,
                          [&](int w, int e) { return Config::kIsQuant ? normed(w, e) * factor : normed(w, e); });
      });
      if constexpr (Config::kIsWhole) break;
    }
  }

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ PairScratch<Layout> sums_scratch;
    __shared__ RowScratch<Layout> deviations_scratch, amax_scratch;
    LayerNormBody body(args);
    const Pair sums = body.load_and_sum();
    const auto deviations = [&](float mean) {
      float squares = 0.f;
      for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
        if constexpr (!Config::kIsWhole) body.load(start);
        squares += lane_sum<Layout>([&](int v, int e) {
          const float deviation = body.x.at(v, e) - mean;
          return body.is_inside(start, v, e) ? deviation * deviation : 0.f;
        });
        if constexpr (Config::kIsWhole) break;
      }
      return squares;
    };
    const Moments moments = row_moments<Layout>(sums, static_cast<float>(args.hidden), deviations, sums_scratch,
                                                deviations_scratch);
    body.moments = moments;
    body.x.drop_floats();
    body.inverse_deviation = reciprocal_square_root(body.moments.variance + args.epsilon);
    QuantScale scale{};
    if constexpr (Config::kIsQuant) scale = body.find_scale(amax_scratch);
    body.store(scale.inverse);
  }
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void layer_norm_kernel(
    AITER_LIKE_PRELOADED(typename Body::Args)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  Body::run(args);
}

template <class Config>
void launch_layer_norm(const LayerNormArgs<Config>& args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const auto kernel = is_aligned ? layer_norm_kernel<LayerNormBody<Config, true>>
                                 : layer_norm_kernel<LayerNormBody<Config, false>>;
  launch_named("layer_norm_kernel", kernel, Layout::workgroups(args.rows), Layout::kThreads, stream, args);
}

}  // namespace aiter_like

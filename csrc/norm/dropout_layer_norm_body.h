// SPDX-License-Identifier: MIT
// Dropout, residual add and LayerNorm: x = dropout(input) + residual_in, row by row, in fp32, and its rounded value
// becomes residual_out; out = (x - mean(x)) / sqrt(var(x) + epsilon) · weight + bias. HIP (gfx9) and CUDA.
// dropout_layer_norm.hip says what a Config holds; its kLanes · kVectors · kVec elements cover a row.
//
//   1. load row and residual; drop elements by Philox, four of them per counter
//   2. the mean over the row's lanes, and the variance from the deviations in registers
//   3. scale, multiply with the weight, add the bias, round, store both
//
// Tile: kLanes lanes take a row, kVectors · kVec elements each. LDS: 8 bytes per wave.
// Bound: memory. A row moves 4 · hidden · sizeof(Element) bytes, for 10 flop and 15 integer operations per element.
#pragma once

#include "aiter_like/philox.h"
#include "aiter_like/rows/rows.h"

namespace aiter_like {

template <class Config>
struct DropoutLayerNormArgs {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;

  Matrix<Element> out, residual_out;
  Matrix<const Element> input, residual_in;
  const Weight* weight;  // [hidden], like bias
  const Weight* bias;
  uint64_t seed, offset;
  int64_t rows;
  int hidden;
  uint32_t threshold;  // an element is dropped if its random number of 24 bits is below
  float kept_scale;    // 1 / (1 - p)
  float epsilon;
};

/// One workgroup's work on its rows.
template <class Config, bool kIsAligned>
struct DropoutLayerNormBody {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = DropoutLayerNormArgs<Config>;

  static_assert(Layout::kVec % 4 == 0, "a vector is whole groups of four elements");
  static constexpr int kMinGroups = Layout::min_groups(4, 2 * sizeof(Weight));

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ RowScratch<Layout> mean_scratch, variance_scratch;
    // Lanes of a row that is not there take part in the reductions with zeros.
    const int64_t row = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
    const int hidden = Layout::row() < args.rows ? args.hidden : 0;
    const float size = static_cast<float>(args.hidden);

    RowTile<Layout, Element> input, residual;
    input.load(args.input.row(row), hidden);
    residual.load(args.residual_in.row(row), hidden);
    RowTile<Layout, float> x;  // residual_in + dropout(input)
    const uint64_t first = args.offset + static_cast<uint64_t>(row) * ((args.hidden + 3) / 4);
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < Layout::kVec; e += 4) {
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

    RowTile<Layout, Weight> weight, bias;
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
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void dropout_layer_norm_kernel(
    typename Body::Args args) {
  await_stream();
  Body::run(args);
}

template <class Config>
void launch_dropout_layer_norm(const DropoutLayerNormArgs<Config>& args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const auto kernel = is_aligned ? dropout_layer_norm_kernel<DropoutLayerNormBody<Config, true>>
                                 : dropout_layer_norm_kernel<DropoutLayerNormBody<Config, false>>;
  launch_named("dropout_layer_norm_kernel", kernel, Layout::workgroups(args.rows), Layout::kThreads, stream, args);
}

}  // namespace aiter_like

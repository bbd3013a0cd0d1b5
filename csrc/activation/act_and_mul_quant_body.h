// SPDX-License-Identifier: MIT
// Gated activation with a quantised result: y = act(gate) · up · weights as in act_and_mul.hip, in fp32, to fp8 or int8
// by the rule of quant.h: a scale per row (kGroup 0) or per kGroup columns. Without kIsQuantised y itself. HIP (gfx9)
// and CUDA. act_and_mul_quant.hip says what a Config holds.
//
//   1. each lane loads its vectors of gate and up and computes y
//   2. largest magnitude over the row's lanes (through LDS beyond a wave), or over a group's within a wave
//   3. multiply with 1 / scale, round, store; one lane stores the scale
// A row longer than the registers' capacity (kIsWhole 0) is taken in pieces, for kGroup 0 read and computed twice.
//
// Tile: kLanes lanes take a row, kVectors · kVec elements each. LDS: 4 bytes per wave.
// Bound: memory. A row moves columns · (2 sizeof(Element) + 1) bytes for about 15 instructions per element:
// 8192 × 8192 bf16 = 336 MB, 63 us at 5.3 TB/s.
#pragma once

#include "aiter_like/preload.h"
#include "aiter_like/quant.h"
#include "aiter_like/rows/scales.h"
#include "activation.h"

namespace aiter_like {

template <class Config>
struct ActAndMulQuantArgs {
  Matrix<typename Config::Out> out;              // [rows, columns]
  Matrix<const typename Config::Element> input;  // [rows, 2 · columns]: gate, up
  Matrix<const typename Config::Weight> weights; // [rows, 1 or columns]
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

/// One workgroup's work on its rows.
template <class Config, bool kIsAligned>
struct ActAndMulQuantBody {
  using Element = typename Config::Element;
  using Out = typename Config::Out;
  using Weight = typename Config::Weight;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = ActAndMulQuantArgs<Config>;

  static constexpr int kMinGroups = Layout::min_groups(4);

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ RowScratch<Layout> scratch;
    // Lanes of a row that is not there take part in the reduction with zeros.
    const bool is_there = Layout::row() < args.rows;
    const int64_t row = is_there ? Layout::row() : 0;
    const int columns = is_there ? args.columns : 0;

    float y[Layout::kVectors][Layout::kVec];
    const auto compute = [&](int start) {
      RowTile<Layout, Element> gate, up;
      gate.load(args.input.row(row) + start, columns - start);
      up.load(args.input.row(row) + args.columns + start, columns - start);
      if constexpr (Config::kIsQuantised) await_arguments(args.scale_stride);
      if constexpr (Config::kGroup > 0) await_arguments(args.group_stride);
#pragma unroll
      for (int v = 0; v < Layout::kVectors; ++v) {
        float g[Layout::kVec], u[Layout::kVec];
#pragma unroll
        for (int e = 0; e < Layout::kVec; ++e) g[e] = gate.at(v, e), u[e] = up.at(v, e);
        gated<Config::kActivation, Out>(y[v], g, u, args.limit);
      }
      if constexpr (Config::kWeights == 1) {
        const float weight = to_float(*args.weights.row(row));
        each_element<Layout>([&](int v, int e) {  // beyond the row zeros, whatever the weight
          y[v][e] = Layout::column(v) + e < columns - start ? y[v][e] * weight : 0.f;
        });
      } else if constexpr (Config::kWeights == 2) {
        RowTile<Layout, Weight> weights;
        weights.load(args.weights.row(row) + start, columns - start);
        each_element<Layout>([&](int v, int e) { y[v][e] *= weights.at(v, e); });
      }
    };
    const auto value = [&](int v, int e) { return y[v][e]; };

    QuantScale scale{};
    if constexpr (Config::kGroup == 0 && Config::kIsQuantised) {
      float amax = 0.f;
      for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
        compute(start);
        amax = larger(amax, lane_amax<Layout>(value));
        if constexpr (Config::kIsWhole) break;
      }
      scale = quant_scale<Out>(row_max<Layout>(amax, scratch));
      if (Layout::lane() == 0 && is_there) args.scale[row * args.scale_stride] = scale.scale;
    }
    for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
      if constexpr (Config::kGroup > 0 || !Config::kIsWhole || !Config::kIsQuantised) compute(start);
      if constexpr (!Config::kIsQuantised)
        store_row<Layout>(args.out.row(row) + start, columns - start, value);
      else if constexpr (Config::kGroup == 0)
        store_quantised<Layout>(args.out.row(row) + start, columns - start, scale.inverse, value);
      else
        store_groups<Layout, Config::kGroup>(
            args.out.row(row) + start,
            args.scale + row * args.scale_stride + start / Config::kGroup * args.group_stride, args.group_stride,
            columns - start, value);
      if constexpr (Config::kIsWhole) break;
    }
  }
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void act_and_mul_quant_kernel(
    AITER_LIKE_PRELOADED(typename Body::Args)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  Body::run(args);
}

template <class Config>
void launch_act_and_mul_quant(const ActAndMulQuantArgs<Config>& args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const dim3 grid(Layout::workgroups(args.rows));
  const auto kernel = is_aligned ? act_and_mul_quant_kernel<ActAndMulQuantBody<Config, true>>
                                 : act_and_mul_quant_kernel<ActAndMulQuantBody<Config, false>>;
  launch_named("act_and_mul_quant_kernel", kernel, grid, Layout::kThreads, stream, args);
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// RMSNorm times a gate: y = x / sqrt(mean(x²) + epsilon) · weight · silu(gate), row by row, in fp32; out is y, or
// (kIsQuant) y quantised with a scale per row. HIP (gfx9) and CUDA. gated_rms_norm.hip says what a Config holds.
//
//   1. load the row and its gate into registers
//   2. the sum of squares over the row's lanes
//   3. kIsQuant: largest magnitude of y over the row's lanes
//   4. scale, multiply with weight and gate, round, store
// A row longer than the registers' capacity (kIsWhole false) is read again for each step, mostly from cache.
//
// Tile: kLanes lanes take a row, kVectors · kVec elements each. LDS: 4 bytes per wave, 8 if kIsQuant.
// Bound: memory. A row moves hidden · (2 · sizeof(Element) + sizeof(Out)) bytes for 10 flop per element: 65536 heads of
// 128 in bf16 = 50 MB, 9.5 us at 5.3 TB/s.
#pragma once

#include "aiter_like/math.h"
#include "aiter_like/preload.h"
#include "aiter_like/quant.h"

namespace aiter_like {

template <class Config>
struct GatedRmsNormArgs {
  using Element = typename Config::Element;

  Matrix<typename Config::Out> out;
  Matrix<const Element> input, gate;
  const typename Config::Weight* weight;  // [hidden]
  float* scale;
  int64_t scale_stride;  // from row to row
  int64_t rows;
  int hidden;
  float epsilon;
  static constexpr Preload preload() {
    using A = GatedRmsNormArgs;
    return {offsetof(A, rows), offsetof(A, hidden), offsetof(A, input.data), offsetof(A, input.stride),
            offsetof(A, gate.data), offsetof(A, gate.stride), offsetof(A, weight)};
  }
};

/// One workgroup's work on its rows.
template <class Config, bool kIsAligned>
struct GatedRmsNormBody {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;
  using Out = typename Config::Out;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = GatedRmsNormArgs<Config>;

  static constexpr int kBytes = (2 + Config::kIsQuant) * sizeof(Element);  // bytes of registers: x, gate, part of y
  static constexpr int kMinGroups = Layout::min_groups(kBytes, sizeof(Weight));

  const Args& args;
  // Lanes of a row that is not there take part in the reductions with zeros.
  const int64_t row = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
  const int hidden = Layout::row() < args.rows ? args.hidden : 0;
  RowTile<Layout, Element> x, gate;
  RowTile<Layout, Weight> weight;
  RowTile<Layout, float> y;
  float inverse_rms;

  __device__ __forceinline__ explicit GatedRmsNormBody(const Args& args) : args(args) {}

  __device__ __forceinline__ void load(int start) {
    x.load(args.input.row(row) + start, hidden - start);
    gate.load(args.gate.row(row) + start, hidden - start);
  }
  __device__ __forceinline__ float gated(int v, int e) const {
    const float z = gate.at(v, e);
    return x.at(v, e) * inverse_rms * weight.at(v, e) * (z * sigmoid(z));
  }

  /// Steps 1 and 2.
  __device__ __forceinline__ void normalise(RowScratch<Layout>& scratch) {
    float squares = 0.f;
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      if constexpr (Config::kIsWhole)
        load(start);
      else
        x.load(args.input.row(row) + start, hidden - start);
      await_arguments(args.out.data, args.out.stride);
      if constexpr (Config::kIsQuant) await_arguments(args.scale, args.scale_stride);
      squares += lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
      if constexpr (Config::kIsWhole) break;
    }
    const float mean = row_sum<Layout>(squares, scratch) / static_cast<float>(args.hidden);
    x.drop_floats();
    inverse_rms = 1.f / square_root(mean + args.epsilon);
  }

  /// Stores the result, or keeps in `y` what is to be quantised.
  __device__ __forceinline__ void finish(int start) {
    each_vector<Layout>([&](int v) { weight.load(args.weight + start, hidden - start, v); }, [&](int v) {
      if constexpr (Config::kIsQuant) {
#pragma unroll
        for (int e = 0; e < Layout::kVec; ++e) y.set(v, e, gated(v, e));
      } else {
        store_row<Layout>(args.out.row(row) + start, hidden - start, v, [&](int w, int e) { return gated(w, e); });
      }
    });
  }

  /// Step 3, after which a row that is whole has its result in `y`.
  __device__ __forceinline__ QuantScale find_scale(RowScratch<Layout>& scratch) {
    float amax = 0.f;
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      if constexpr (!Config::kIsWhole) load(start);
      finish(start);
      amax = larger(amax, lane_amax<Layout>([&](int v, int e) { return y.at(v, e); }));
      if constexpr (Config::kIsWhole) break;
    }
    const QuantScale scale = quant_scale<Out>(row_max<Layout>(amax, scratch));
    if (Layout::lane() == 0 && hidden > 0) args.scale[row * args.scale_stride] = scale.scale;
    return scale;
  }

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ RowScratch<Layout> squares_scratch, amax_scratch;
    GatedRmsNormBody body(args);
    body.normalise(squares_scratch);
    QuantScale scale{};
    if constexpr (Config::kIsQuant) scale = body.find_scale(amax_scratch);
    for (int start = 0; start < body.hidden; start += Layout::kCapacity) {
      if constexpr (!Config::kIsWhole) body.load(start);
      if constexpr (!Config::kIsQuant || !Config::kIsWhole) body.finish(start);
      if constexpr (Config::kIsQuant)
        store_quantised<Layout>(args.out.row(body.row) + start, body.hidden - start, scale.inverse,
                                [&](int v, int e) { return body.y.at(v, e); });
      if constexpr (Config::kIsWhole) break;
    }
  }
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void gated_rms_norm_kernel(
    AITER_LIKE_PRELOADED(typename Body::Args)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  load_arguments_first();
  Body::run(args);
}

template <class Config>
void launch_gated_rms_norm(const GatedRmsNormArgs<Config>& args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const auto kernel = is_aligned ? gated_rms_norm_kernel<GatedRmsNormBody<Config, true>>
                                 : gated_rms_norm_kernel<GatedRmsNormBody<Config, false>>;
  launch_named("gated_rms_norm_kernel", kernel, Layout::workgroups(args.rows), Layout::kThreads, stream, args);
}

}  // namespace aiter_like

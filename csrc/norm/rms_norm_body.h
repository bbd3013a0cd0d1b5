// SPDX-License-Identifier: MIT
// RMSNorm: out = x / sqrt(mean(x²) + epsilon) · weight, row by row, in fp32. x is input, or input + residual_in, whose
// rounded sum becomes residual_out. HIP (gfx9) and CUDA. rms_norm.hip says what a Config holds.
//
//   1. each lane loads its 16-byte vectors of the row (and of the residual's, and adds them) into registers
//   2. the sum of squares over the row's lanes: within a wave, or through LDS
//   3. vector by vector: scale, multiply with the weight, round, store
// A row longer than the registers' capacity (kIsWhole false) is taken in pieces, which are read twice, the second time
// mostly from cache.
//
// Tile: kLanes lanes take a row, kVectors · kVec elements each. LDS: 4 bytes per wave.
// Bound: memory. A row moves 2 · hidden · sizeof(Element) bytes, 4 · with a residual, plus the weight, which stays in
// cache, for 4 flop per element: 1 flop/byte at 16 bit, far left of the ridge. 4096 × 4096 bf16 = 67 MB, 12.7 us at
// 5.3 TB/s.
#pragma once

#include "aiter_like/preload.h"
#include "aiter_like/rows/wider.h"

namespace aiter_like {

template <class Config>
struct RmsNormArgs {
  using Element = typename Config::Element;

  Matrix<Element> out, residual_out;
  Matrix<const Element> input, residual_in;
  const typename Config::Weight* weight;  // [hidden]
  int64_t rows;
  int hidden;
  float epsilon;
  static constexpr Preload preload() {
    using A = RmsNormArgs;
    if (Config::kHasResidual)
      return {offsetof(A, rows), offsetof(A, hidden), offsetof(A, input.data), offsetof(A, input.stride),
              offsetof(A, residual_in.data), offsetof(A, residual_in.stride), offsetof(A, weight)};
    return {offsetof(A, rows), offsetof(A, hidden), offsetof(A, input.data), offsetof(A, input.stride),
            offsetof(A, weight), offsetof(A, out.data), offsetof(A, out.stride)};
  }
};

/// One workgroup's work on its rows: device code that a kernel of another module may call too.
template <class Config, bool kIsAligned, int kWide = 1>
struct RmsNormBody {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;
  using Layout = WiderLayout<typename Config::template Layout<kIsAligned>, kWide>;
  using Args = RmsNormArgs<Config>;

  static constexpr int kBytes = Config::kHasResidual ? 4 : sizeof(Element);  // bytes of registers for an element of x
  // Weights that fit beside a lane's part of the row are loaded with it, not after the reduction: that saves a short
  // launch a wait for memory (64 rows of 8192 bf16 on an H200: 2.3 us, not 2.7).
  static constexpr bool kKeepsWeights =
      Config::kIsWhole && Layout::kVectors * Layout::kVec * (kBytes + sizeof(Weight)) <= 128;
  static constexpr int kMinGroups = kKeepsWeights ? Layout::min_groups(kBytes + sizeof(Weight))
                                                  : Layout::min_groups(kBytes, sizeof(Weight));

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ RowScratch<Layout> scratch;
    // Lanes of a row that is not there take part in the reduction with zeros.
    const int64_t row = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
    const int hidden = Layout::row() < args.rows ? args.hidden : 0;

    SumTile<Layout, Element, Config::kHasResidual> x;
    RowTile<Layout, Weight> weight;
    const auto load = [&](int start) {
      x.load(args.input.row(row) + start, hidden - start);
      if constexpr (Config::kHasResidual) x.add(args.residual_in.row(row) + start, hidden - start);
    };
    const auto sum = [&](int v, int e) { return x.at(v, e); };

    float squares = 0.f;
    for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
      load(start);
      if constexpr (kKeepsWeights) weight.load(args.weight, hidden);
      squares += lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
      if constexpr (Config::kIsWhole) break;
    }
    if constexpr (Config::kHasResidual)
      await_arguments(args.out.data, args.out.stride, args.residual_out.data, args.residual_out.stride);
    const float mean = row_sum<Layout>(squares, scratch) / static_cast<float>(args.hidden);
    x.drop_floats();
    const float inverse_rms = reciprocal_square_root(mean + args.epsilon);
    const auto normed = [&](int v, int e) {
      float y = x.at(v, e) * inverse_rms;
      if constexpr (Config::kIsModelSensitive) y = to_float(from_float<Element>(y));
      return y * (Config::kIsGemma ? weight.at(v, e) + 1.f : weight.at(v, e));
    };
    for (int start = 0; start < hidden; start += Layout::kCapacity) {
      if constexpr (!Config::kIsWhole) load(start);
      const auto load_weight = [&](int v) {
        if constexpr (!kKeepsWeights) weight.load(args.weight + start, hidden - start, v);
      };
      each_vector<Layout>(load_weight, [&](int v) {
        if constexpr (Config::kHasResidual)
          store_row<Layout>(args.residual_out.row(row) + start, hidden - start, v, sum);
        store_row<Layout>(args.out.row(row) + start, hidden - start, v, normed);
      });
      if constexpr (Config::kIsWhole) break;
    }
  }
};

/// The kernel is a template of its body, so that two configurations are two kernels.
template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void rms_norm_kernel(
    AITER_LIKE_PRELOADED(typename Body::Args)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  Body::run(args);
}

template <class Config>
void launch_rms_norm(const RmsNormArgs<Config>& args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  auto kernel = is_aligned ? rms_norm_kernel<RmsNormBody<Config, true>> : rms_norm_kernel<RmsNormBody<Config, false>>;
#if defined(__HIP__)
  if constexpr (Layout::kVec == 1) {
    const int even =
        even_elements(args.hidden, args.weight, args.input, args.out, args.residual_in, args.residual_out);
    if (even >= 2) kernel = rms_norm_kernel<RmsNormBody<Config, true, 2>>;
    if (even == 4 && Layout::kVectors % 4 == 0) kernel = rms_norm_kernel<RmsNormBody<Config, true, 4>>;
  }
#endif
  launch_named("rms_norm_kernel", kernel, Layout::workgroups(args.rows), Layout::kThreads, stream, args);
}

}  // namespace aiter_like

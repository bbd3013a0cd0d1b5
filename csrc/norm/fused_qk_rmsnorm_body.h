// SPDX-License-Identifier: MIT
// RMSNorm of two matrices in one launch, the queries' and the keys' rows: y = x / sqrt(mean(x²) + epsilon) · weight, in
// fp32, each side with its own row length, weight and epsilon. HIP (gfx9) and CUDA. fused_qk_rmsnorm.hip says what a
// Config holds; its kLanes · kVectors · kVec elements cover the longer rows.
//
//   1. the first workgroups take the rows of q, the others those of k: each loads its row into registers
//   2. the sum of squares over the row's lanes
//   3. scale, multiply with the weight, round, store
//
// Tile: kLanes lanes take a row, kVectors · kVec elements each. LDS: 4 bytes per wave.
// Bound: at decode sizes the time of a launch, which is why there is only one; at larger ones memory:
// 2 · sizeof(Element) bytes per element.
#pragma once

#include "aiter_like/preload.h"
#include "aiter_like/rows/rows.h"

namespace aiter_like {

template <class Config>
struct Side {
  using Element = typename Config::Element;

  Matrix<Element> out;
  Matrix<const Element> input;
  const typename Config::Weight* weight;
  int64_t rows;
  int hidden;
  float epsilon;
};

template <class Config>
struct QkRmsNormArgs {
  Side<Config> q, k;
  int64_t q_rows;  // rounded up to whole workgroups
#if defined(__HIP__)
  uint32_t rows[2];  // q's and k's, in one word to be preloaded
  static constexpr Preload preload() {
    using A = QkRmsNormArgs;
    return {offsetof(A, rows), offsetof(A, q.input.data), offsetof(A, q.input.stride), offsetof(A, q.hidden),
            offsetof(A, k.input.data), offsetof(A, k.input.stride), offsetof(A, k.hidden)};
  }
#endif
};

/// One workgroup's work on its rows.
template <class Config, bool kIsAligned>
struct QkRmsNormBody {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = QkRmsNormArgs<Config>;

  static constexpr int kMinGroups = Layout::min_groups(sizeof(Element), sizeof(Weight));

#if defined(__HIP__)
  /// A side of what was preloaded, and of the rest in memory: all that comes from there would be waited for at once.
  __device__ __forceinline__ static Side<Config> chosen(const Args& args, bool is_q) {
    const auto* rest = argument_in_memory<Side<Config>>(is_q ? offsetof(Args, q) : offsetof(Args, k));
    const auto pick = [&](auto q, auto k) { return is_q ? q : k; };
    return {{global(rest->out.data), rest->out.stride},
            {pick(args.q.input.data, args.k.input.data), pick(args.q.input.stride, args.k.input.stride)},
            global(rest->weight), pick(args.q.rows, args.k.rows), pick(args.q.hidden, args.k.hidden),
            pick(args.q.epsilon, args.k.epsilon)};
  }
#endif

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ RowScratch<Layout> scratch;
    const bool is_q = int64_t{workgroup_index().x} * Layout::kRows < args.q_rows;
#if defined(__HIP__)
    const Side<Config> side = chosen(args, is_q);
#else
    const Side<Config> side = is_q ? args.q : args.k;
#endif
    const int64_t index = Layout::row() - (is_q ? 0 : args.q_rows);
    // Lanes of a row that is not there take part in the reduction with zeros.
    const int64_t row = index < side.rows ? index : side.rows - 1;
    const int hidden = index < side.rows ? side.hidden : 0;

    RowTile<Layout, Element> x;
    x.load(side.input.row(row), hidden);
    await_arguments(side.weight, side.out.data, side.out.stride);
    const float squares = lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
    const float mean = row_sum<Layout>(squares, scratch) / static_cast<float>(side.hidden);
    x.drop_floats();
    const float inverse_rms = 1.f / square_root(mean + side.epsilon);
    RowTile<Layout, Weight> weight;
    each_vector<Layout>([&](int v) { weight.load(side.weight, hidden, v); }, [&](int v) {
      store_row<Layout>(side.out.row(row), hidden, v,
                        [&](int v, int e) { return x.at(v, e) * inverse_rms * weight.at(v, e); });
    });
  }
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void fused_qk_rmsnorm_kernel(
    AITER_LIKE_PRELOADED(typename Body::Args)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
#if defined(__HIP__)
  constexpr uint32_t kRows = Body::Layout::kRows;
  args.q.rows = args.rows[0];
  args.k.rows = args.rows[1];
  args.q_rows = (args.rows[0] + kRows - 1) / kRows * kRows;
#endif
  Body::run(args);
}

template <class Config>
void launch_fused_qk_rmsnorm(QkRmsNormArgs<Config> args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const uint32_t q_workgroups = Layout::workgroups(args.q.rows), k_workgroups = Layout::workgroups(args.k.rows);
  args.q_rows = int64_t{q_workgroups} * Layout::kRows;
#if defined(__HIP__)
  args.rows[0] = static_cast<uint32_t>(args.q.rows);  // below 2^24
  args.rows[1] = static_cast<uint32_t>(args.k.rows);
#endif
  const auto kernel = is_aligned ? fused_qk_rmsnorm_kernel<QkRmsNormBody<Config, true>>
                                 : fused_qk_rmsnorm_kernel<QkRmsNormBody<Config, false>>;
  launch_named("fused_qk_rmsnorm_kernel", kernel, q_workgroups + k_workgroups, Layout::kThreads, stream, args);
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Reductions of two numbers of a row at once: the waves that share the row meet at one barrier, not at two. Kernels
// need them for a row's mean and variance, or for its sum of squares and its largest magnitude.
#pragma once

#include "aiter_like/rows/rows.h"

namespace aiter_like {

struct Pair {
  float first, second;
};

/// LDS for one of the functions below, used once per launch.
template <class Layout>
struct PairScratch {
  Pair partial[Layout::kThreads / kWaveSize];
};

/// Combines the waves' pairs in their order, starting with zeros, in every lane: f(f(f({}, first), second), …).
template <class Layout, class F>
__device__ inline Pair across_row(Pair of_wave, PairScratch<Layout>& scratch, F f) {
  if constexpr (Layout::kLanes <= kWaveSize) return of_wave;
  if (lane_index() == 0) scratch.partial[wave_index()] = of_wave;
  workgroup_barrier();
  Pair total{};
#pragma unroll
  for (int wave = 0; wave < Layout::kThreads / kWaveSize; ++wave) total = f(total, scratch.partial[wave]);
  return total;
}

/// Half as many as the lanes of a wave that share a row.
template <class Layout>
constexpr int kHalfLanes = (Layout::kLanes < kWaveSize ? Layout::kLanes : kWaveSize) / 2;

/// Both sums over the lanes of a row, in each of them. Every lane of the workgroup takes part.
template <class Layout>
__device__ inline Pair row_sums(Pair x, PairScratch<Layout>& scratch) {
  if constexpr (Layout::kLanes > 1) x = {wave_sum<kHalfLanes<Layout>>(x.first), wave_sum<kHalfLanes<Layout>>(x.second)};
  return across_row<Layout>(x, scratch, [](Pair a, Pair b) { return Pair{a.first + b.first, a.second + b.second}; });
}

/// The sum of the first numbers and the maximum of the second, which are ≥ 0 (NaN if one is NaN), as row_sums has them.
template <class Layout>
__device__ inline Pair row_sum_and_max(Pair x, PairScratch<Layout>& scratch) {
  if constexpr (Layout::kLanes > 1) x = {wave_sum<kHalfLanes<Layout>>(x.first), wave_max<kHalfLanes<Layout>>(x.second)};
  return across_row<Layout>(
      x, scratch, [](Pair a, Pair b) { return Pair{a.first + b.first, larger(a.second, b.second)}; });
}

/// Whether `condition`, which is the same in the lanes of a row, holds for any row of the wave: all lanes of the wave
/// then take the same branch.
template <class Layout>
__device__ inline bool any_row(bool condition) {
  return Layout::kLanes > kWaveSize ? condition : wave_any(condition);
}

struct Moments {
  float mean, variance;
};

/// Mean and variance of a row of `size` elements, from the sums of a lane's elements and of their squares.
/// deviations(mean) gives a lane's sum of squared deviations from the mean. It is called where the difference of the
/// two sums would lose more than a binary digit: where mean² is above the variance, because of an offset or of equal
/// elements.
template <class Layout, class F>
__device__ inline Moments row_moments(Pair sums, float size, F deviations, PairScratch<Layout>& scratch,
                                      RowScratch<Layout>& deviations_scratch) {
  const Pair total = row_sums<Layout>(sums, scratch);
  const float mean = total.first / size;
  float variance = total.second / size - mean * mean;
  const bool is_lossy = !(mean * mean <= variance);  // true for NaN
  if (any_row<Layout>(is_lossy)) {
    const float exact = row_sum<Layout>(deviations(mean), deviations_scratch) / size;
    variance = is_lossy ? exact : variance;  // a row's result does not depend on its neighbours
  }
  return {mean, variance};
}

}  // namespace aiter_like

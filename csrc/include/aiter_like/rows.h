// SPDX-License-Identifier: MIT
// Rows of a matrix, each held in registers by a group of lanes: which elements a lane holds, accesses that stay inside
// the row, sums and maxima over the row. The kernels that work row by row (norms, quantisers) are written with it.
#pragma once

#include "aiter_like/dtype.h"
#include "aiter_like/reduce.h"

namespace aiter_like {

/// kLanes lanes (a power of two) hold a row, or one piece of kCapacity elements of it after the other: vector v of a
/// lane begins at column (v · kLanes + lane) · kVec. Up to a wave's lanes per row, several rows share a workgroup.
template <int kLanes_, int kVectors_, int kVec_>
struct RowLayout {
  static constexpr int kLanes = kLanes_, kVectors = kVectors_, kVec = kVec_;
  static constexpr int kThreads = kLanes > kWaveSize ? kLanes : 256;
  static constexpr int kRows = kThreads / kLanes;  // rows of a workgroup
  static constexpr int kCapacity = kLanes * kVectors * kVec;

  static_assert((kLanes & (kLanes - 1)) == 0 && kLanes <= 1024, "a power of two that fits a workgroup");

  __device__ static int lane() { return thread_index() % kLanes; }
  __device__ static int64_t row() {
    return int64_t{workgroup_index().x} * kRows + (kRows > 1 ? thread_index() / kLanes : 0);
  }
  __device__ static int column(int vector) { return (vector * kLanes + lane()) * kVec; }
};

/// LDS that one sum or maximum over a row needs; a kernel has one per reduction, so that none waits for the last.
template <class Layout>
struct RowScratch {
  float partial[Layout::kThreads / kWaveSize];
};

/// Sum over the lanes of a row, in each of them. Every lane of the workgroup takes part.
template <class Layout>
__device__ inline float row_sum(float x, RowScratch<Layout>& scratch) {
  if constexpr (Layout::kLanes == 1) return x;
  else if constexpr (Layout::kLanes <= kWaveSize) return wave_sum<Layout::kLanes / 2>(x);
  else return workgroup_sum<Layout::kThreads>(x, scratch.partial);
}

/// Maximum over the lanes of a row of values ≥ 0, in each of them; NaN if one of them is NaN.
template <class Layout>
__device__ inline float row_max(float x, RowScratch<Layout>& scratch) {
  if constexpr (Layout::kLanes == 1) return x;
  else if constexpr (Layout::kLanes <= kWaveSize) return wave_max<Layout::kLanes / 2>(x);
  else return workgroup_max<Layout::kThreads>(x, scratch.partial);
}

/// The elements that a lane holds, in fp32; zeros beyond the end of the row.
template <class Layout>
struct RowTile {
  float x[Layout::kVectors][Layout::kVec];

  /// Reads `columns` elements, of which a multiple of kVec is there.
  template <class T>
  __device__ void load(const T* row, int columns) {
    Vec<T, Layout::kVec> raw[Layout::kVectors] = {};
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v)
      if (Layout::column(v) < columns) raw[v] = load_vec<Layout::kVec>(row + Layout::column(v));
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v)
#pragma unroll
      for (int e = 0; e < Layout::kVec; ++e) x[v][e] = to_float(raw[v][e]);
  }

  template <class T>
  __device__ void store(T* row, int columns) const {
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v)
      if (Layout::column(v) < columns) store_vec<Layout::kVec>(row + Layout::column(v), vec_from_float<T>(x[v]));
  }

  /// f(element&) for each element of the lane.
  template <class F>
  __device__ void each(F f) {
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v)
#pragma unroll
      for (int e = 0; e < Layout::kVec; ++e) f(x[v][e]);
  }

  /// f(element&, other's element) for each element of the lane.
  template <class F>
  __device__ void each(const RowTile& other, F f) {
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v)
#pragma unroll
      for (int e = 0; e < Layout::kVec; ++e) f(x[v][e], other.x[v][e]);
  }
};

}  // namespace aiter_like

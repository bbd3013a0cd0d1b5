// SPDX-License-Identifier: MIT
// Rows of a matrix, each held in registers by a group of lanes: which elements a lane holds, accesses that stay inside
// the row, sums and maxima over the row. The kernels that work row by row (norms, quantisers) are written with it.
#pragma once

#include "aiter_like/dtype.h"
#include "aiter_like/reduce.h"

namespace aiter_like {

/// kLanes lanes (a power of two) hold a row, or one piece of kCapacity elements of it after the other: vector v of a
/// lane begins at column (v · kLanes + lane) · kVec. Up to a wave's lanes per row, several rows share a workgroup.
/// kIsAligned: each address is a multiple of the access's size, and so is the row's length; otherwise a lane takes the
/// same columns, one by one.
template <int kLanes_, int kVectors_, int kVec_, bool kIsAligned_ = true>
struct RowLayout {
  static constexpr int kLanes = kLanes_, kVectors = kVectors_, kVec = kVec_;
  static constexpr bool kIsAligned = kIsAligned_;
  static constexpr int kThreads = kLanes > kWaveSize ? kLanes : 256;
  static constexpr int kRows = kThreads / kLanes;  // rows of a workgroup
  static constexpr int kCapacity = kLanes * kVectors * kVec;

  /// Workgroups that a CUDA multiprocessor shall hold, for a kernel that keeps `tiles` tiles of 16-bit elements: as
  /// many as their registers allow, since a barrier idles a workgroup and others must keep the memory busy meanwhile.
  static constexpr int min_groups(int tiles) {
    const int elements = tiles * kVectors * kVec;
    const int threads = elements <= 16 ? 2048 : elements <= 32 ? 1536 : 1024;  // 32, 42 and 64 registers
    return threads < kThreads ? 1 : threads / kThreads;
  }

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

/// The elements of a row that a lane holds.
template <class Layout, class T>
struct RowTile {
  Packed<T, Layout::kVec> data[Layout::kVectors];

  /// Reads the first `columns` elements of a row, a multiple of kVec if aligned; zeros beyond.
  __device__ void load(const T* row, int columns) {
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v) {
      const int column = Layout::column(v);
      data[v] = {};
      if constexpr (Layout::kIsAligned) {
        if (column < columns) data[v].load(row + column);
      } else {
#pragma unroll
        for (int e = 0; e < Layout::kVec; ++e)
          if (column + e < columns) data[v].insert(e, row[column + e]);
      }
    }
  }

  __device__ float at(int vector, int element) const { return data[vector].at(element); }

  /// Makes the compiler convert again what is used from here on, instead of keeping the floats of earlier uses.
  __device__ void drop_floats() {
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v) data[v].drop_floats();
  }
};

/// f(vector, element) for each element of the lane.
template <class Layout, class F>
__device__ inline void each_element(F f) {
#pragma unroll
  for (int v = 0; v < Layout::kVectors; ++v)
#pragma unroll
    for (int e = 0; e < Layout::kVec; ++e) f(v, e);
}

/// Writes the values of a lane's vector, rounded to T, to a row of `columns` elements.
template <class Layout, class T>
__device__ inline void store_vector(T* row, int columns, int vector, const float (&values)[Layout::kVec]) {
  const int column = Layout::column(vector);
  if constexpr (Layout::kIsAligned) {
    if (column < columns) store_vec<Layout::kVec>(row + column, vec_from_float<T>(values));
  } else {
#pragma unroll
    for (int e = 0; e < Layout::kVec; ++e)
      if (column + e < columns) row[column + e] = from_float<T>(values[e]);
  }
}

/// Writes f(vector, element), rounded to T, to the first `columns` elements of a row.
template <class Layout, class T, class F>
__device__ inline void store_row(T* row, int columns, F f) {
#pragma unroll
  for (int v = 0; v < Layout::kVectors; ++v) {
    float y[Layout::kVec];
    if (Layout::column(v) >= columns) continue;
#pragma unroll
    for (int e = 0; e < Layout::kVec; ++e) y[e] = f(v, e);
    store_vector<Layout>(row, columns, v, y);
  }
}

/// Evenly spaced rows, as a kernel's argument.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;  // elements from row to row
  __device__ T* row(int64_t index) const { return data + index * stride; }
};

}  // namespace aiter_like

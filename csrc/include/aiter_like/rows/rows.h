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

  /// Workgroups that a CUDA multiprocessor is to hold: as many as their registers allow, since a workgroup idles at a
  /// barrier and others must keep the memory busy meanwhile. The kernel keeps `bytes` for each element of a lane, and
  /// `factor_bytes` for each element of two vectors at a time. nvcc 13 needs as many registers not to spill as the
  /// formula gives.
  static constexpr int min_groups(int bytes, int factor_bytes = 2) {
    const int words = bytes * kVectors * kVec / 4, factor_words = 2 * kVec * (factor_bytes - 2) / 4;
    const int registers = words <= 8 && factor_bytes <= 4 ? 32 : 22 + (words + factor_words) * 9 / 8;
    const int threads = 65536 / ((registers + 7) / 8 * 8);  // registers come in multiples of 8
    return threads < kThreads ? 1 : threads / kThreads;
  }

  static_assert((kLanes & (kLanes - 1)) == 0 && kLanes <= 1024, "a power of two that fits a workgroup");

  /// Workgroups that `rows` rows take.
  static uint32_t workgroups(int64_t rows) { return static_cast<uint32_t>((rows + kRows - 1) / kRows); }

  __device__ static int lane() { return thread_index() % kLanes; }
  __device__ static int64_t row() {
    return int64_t{workgroup_index().x} * kRows + (kRows > 1 ? thread_index() / kLanes : 0);
  }
  __device__ static int column(int vector) { return (vector * kLanes + lane()) * kVec; }
  /// Address of a vector's first element. A lane's vectors are a constant apart, which an access adds itself.
  template <class T>
  __device__ static T* place(T* row, int vector) {
    return row + static_cast<uint32_t>(lane() * kVec) + static_cast<int64_t>(vector) * (kLanes * kVec);
  }
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

/// f(vector, element) for each element of the lane.
template <class Layout, class F>
__device__ inline void each_element(F f) {
#pragma unroll
  for (int v = 0; v < Layout::kVectors; ++v)
#pragma unroll
    for (int e = 0; e < Layout::kVec; ++e) f(v, e);
}

/// Sum of f(vector, element) over the lane's elements: the vectors' sums do not wait for one another.
template <class Layout, class F>
__device__ inline float lane_sum(F f) {
  float total = 0.f;
#pragma unroll
  for (int v = 0; v < Layout::kVectors; ++v) {
    float of_vector = 0.f;
#pragma unroll
    for (int e = 0; e < Layout::kVec; ++e) of_vector += f(v, e);
    total += of_vector;
  }
  return total;
}

#if defined(__HIP__)
/// A lane that has no element reads the kernel's arguments: nobody writes these, while a row that another wave holds
/// may be written in place. The compiler knows that they lie in global memory, as rows do.
template <class T>
__device__ inline const T* address_of_no_element() {
  const auto arguments = (uintptr_t)__builtin_amdgcn_kernarg_segment_ptr();
  return (const T*)(__attribute__((address_space(1))) const T*)arguments;
}
#endif

/// The elements of a row that a lane holds.
template <class Layout, class T>
struct RowTile {
  Packed<T, Layout::kVec> data[Layout::kVectors];

  /// Reads the lane's vector `v` of the first `columns` elements of a row, a multiple of kVec if aligned; zeros beyond.
  /// There is a first vector to be read even where `columns` is 0.
  __device__ void load(const T* row, int columns, int v) {
    const int column = Layout::column(v);
    if constexpr (Layout::kIsAligned) {
#if defined(__HIP__)
      data[v].load_if(column < columns, Layout::place(row, v), address_of_no_element<T>());
#else
      data[v].load_if(column < columns, Layout::place(row, v), row);
#endif
    } else {
      data[v] = {};
#pragma unroll
      for (int e = 0; e < Layout::kVec; ++e)
        if (column + e < columns) data[v].insert(e, row[column + e]);
    }
  }
  /// All vectors of the lane.
  __device__ void load(const T* row, int columns) {
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v) load(row, columns, v);
  }

  /// Only in a tile of floats.
  __device__ void set(int vector, int element, float x) { data[vector].words[element] = float_bits(x); }
  __device__ float at(int vector, int element) const { return data[vector].at(element); }

  /// Makes the compiler convert again what is used from here on, instead of keeping the floats of earlier uses.
  __device__ void drop_floats() {
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v) data[v].drop_floats();
  }
};

/// The elements of a row that a lane holds, or (kIsSum) their sums with other rows': a sum is kept in fp32, in no more
/// registers than its terms, and is converted once.
template <class Layout, class T, bool kIsSum>
struct SumTile : RowTile<Layout, T> {};

template <class Layout, class T>
struct SumTile<Layout, T, true> : RowTile<Layout, float> {
  __device__ void load(const T* row, int columns) {
    RowTile<Layout, T> x;
    x.load(row, columns);
    each_element<Layout>([&](int v, int e) { this->set(v, e, x.at(v, e)); });
  }
  __device__ void add(const T* row, int columns) {
    RowTile<Layout, T> x;
    x.load(row, columns);
    each_element<Layout>([&](int v, int e) { this->set(v, e, this->at(v, e) + x.at(v, e)); });
  }
};

/// Calls f(vector) for each vector of the lane, and load(vector) before the previous vector's f. The compiler has to
/// assume that f stores what a later load reads, so it would not move a load up; and the factors of two vectors take
/// fewer registers than those of all.
template <class Layout, class L, class F>
__device__ inline void each_vector(L load, F f) {
  load(0);
#pragma unroll
  for (int v = 0; v < Layout::kVectors; ++v) {
    if (v + 1 < Layout::kVectors) load(v + 1);
    f(v);
  }
}

/// Writes the values of a lane's vector, rounded to T, to a row of `columns` elements.
template <class Layout, class T>
__device__ inline void store_vector(T* row, int columns, int vector, const float (&values)[Layout::kVec]) {
  const int column = Layout::column(vector);
  if constexpr (Layout::kIsAligned) {
    if (column < columns) store_vec<Layout::kVec>(Layout::place(row, vector), vec_from_float<T>(values));
  } else {
#pragma unroll
    for (int e = 0; e < Layout::kVec; ++e)
      if (column + e < columns) row[column + e] = from_float<T>(values[e]);
  }
}

/// Writes f(v, element), rounded to T, for the lane's vector `v` of the first `columns` elements of a row.
template <class Layout, class T, class F>
__device__ inline void store_row(T* row, int columns, int v, F f) {
  float y[Layout::kVec];
  if (Layout::column(v) >= columns) return;
#pragma unroll
  for (int e = 0; e < Layout::kVec; ++e) y[e] = f(v, e);
  store_vector<Layout>(row, columns, v, y);
}

/// Writes f(vector, element), rounded to T, to the first `columns` elements of a row.
template <class Layout, class T, class F>
__device__ inline void store_row(T* row, int columns, F f) {
#pragma unroll
  for (int v = 0; v < Layout::kVectors; ++v) store_row<Layout>(row, columns, v, f);
}

/// Evenly spaced rows, as a kernel's argument.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;  // elements from row to row
  __device__ T* row(int64_t index) const { return data + index * stride; }
};

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// A row that the workgroups of a cluster hold in their LDS, a slice each: it is read from memory once, however often it
// is walked. Only where kHasClusters is true.
#pragma once

#include "aiter_like/cluster.h"
#include "row_scan.h"

namespace aiter_like {

/// The slice of workgroup (slice, row); one that begins at the row's end is empty.
template <class T, int kThreads>
struct HeldSlice {
  RowSplit<T> split;
  T* vectors;  // in LDS

  /// `lds` has room for Slices::length elements.
  __device__ HeldSlice(const T* row, const Slices& slices, uint8_t* lds)
      : split(row, first_of(slices), last_of(slices)), vectors(reinterpret_cast<T*>(lds)) {}

  /// Begins to read. A work-item walks what it has read itself, after await_copies().
  __device__ void read() const {
    constexpr int kVec = RowSplit<T>::kVec;
    for (int v = thread_index(); v < split.vectors; v += kThreads)
      copy_to_lds(vectors + v * kVec, split.first + split.head + int64_t{v} * kVec);
  }

  /// Calls f(column, Vec<float, n>) for all elements, n being 1 or what 16 bytes hold; single elements are read again.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
    constexpr int kVec = RowSplit<T>::kVec;
    split.each_single([&](int column, float x) { f(column, Vec<float, 1>{{x}}); });
    for (int v = thread_index(); v < split.vectors; v += kThreads) {
      Packed<T, kVec> data;
      data.load(vectors + v * kVec);
      f(split.column(v), floats_of(data));
    }
  }
  /// Like each, with f(column, x) for single elements.
  template <class F>
  __device__ __forceinline__ void each_element(F f) const {
    each([&](int column, const auto& x) {
#pragma unroll
      for (int e = 0; e < static_cast<int>(sizeof(x) / sizeof(float)); ++e) f(column + e, x[e]);
    });
  }

 private:
  __device__ static int first_of(const Slices& slices) {
    return slices.begin() < slices.size ? slices.begin() : slices.size;
  }
  __device__ static int last_of(const Slices& slices) {
    return slices.size - first_of(slices) < slices.length ? slices.size : first_of(slices) + slices.length;
  }
};

}  // namespace aiter_like

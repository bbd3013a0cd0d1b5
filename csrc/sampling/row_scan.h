// SPDX-License-Identifier: MIT
// Rows of a vocabulary: reads of 16 bytes whatever the row's length and alignment, keys that are ordered like floats,
// the best element of a row, atomics on integers. Whatever kernels sum across workgroups they sum in integers, so that
// no result depends on how a row was cut. HIP (gfx9) and CUDA.
#pragma once

#include "aiter_like/atomics.h"
#include "aiter_like/dtype.h"
#include "aiter_like/ordered.h"
#include "aiter_like/reduce.h"

namespace aiter_like {

/// Evenly spaced rows.
template <class T>
struct ScanRows {
  T* data;
  int64_t stride;  // elements from row to row
  __device__ T* row(int64_t index) const { return data + index * stride; }
};

/// A number for each row, or one for all.
template <class T>
struct RowNumber {
  const void* data;
  bool is_64bit;
  T value;

  __device__ T at(int64_t row) const {
    if (!data) return value;
    if constexpr (__is_same(T, int64_t))
      return is_64bit ? static_cast<const int64_t*>(data)[row] : static_cast<const int32_t*>(data)[row];
    else
      return static_cast<const T*>(data)[row];
  }
};

/// How a matrix is shared out: workgroup (slice, row) takes the elements [begin, end) of its row.
struct Slices {
  int size;    // elements of a row
  int length;  // a slice's; the last one may be shorter

  __device__ int begin() const { return static_cast<int>(workgroup_index().x) * length; }
  __device__ int end() const { return size - begin() < length ? size : begin() + length; }
};

/// A part of a row as single elements up to the first address that is a multiple of 16, accesses of 16 bytes, and what
/// is left.
template <class T>
struct RowSplit {
  static constexpr int kVec = 16 / sizeof(T);
  const T* first;
  int begin, count, head, vectors, tail;  // head: single elements at first; tail: where those at the end begin

  __device__ RowSplit(const T* row, int begin, int end) : first(row + begin), begin(begin), count(end - begin) {
    head = static_cast<int>((16 - reinterpret_cast<uintptr_t>(first) % 16) % 16 / sizeof(T));
    head = head < count ? head : count;
    vectors = (count - head) / kVec;
    tail = head + vectors * kVec;
  }

  __device__ int column(int vector) const { return begin + head + vector * kVec; }
  /// Loads a vector if there is such a one, from a row that has at least one; else zeros.
  __device__ void load(Packed<T, kVec>& data, int vector) const {
    data.load_if(vector < vectors, first + head + int64_t{vector} * kVec, first + head);
  }
#if defined(__HIP__)
  /// Like load, but reads the lane's `own` where there is no such vector: no other lane writes that in place.
  __device__ void load(Packed<T, kVec>& data, int vector, int own) const {
    data.load_if(vector < vectors, first + head + int64_t{vector} * kVec, first + head + int64_t{own} * kVec);
  }
#endif
  /// Calls f(column, x) for the single elements.
  template <class F>
  __device__ void each_single(F f) const {
    const int thread = thread_index();
    if (thread < head) f(begin + thread, to_float(first[thread]));
    if (thread < count - tail) f(begin + tail + thread, to_float(first[tail + thread]));
  }
};

template <class T, int kVec>
__device__ inline Vec<float, kVec> floats_of(const Packed<T, kVec>& data) {
  Vec<float, kVec> x;
#pragma unroll
  for (int e = 0; e < kVec; ++e) x[e] = data.at(e);
  return x;
}

/// Calls f(column, Vec<float, n>) for all elements of row[begin, end), n being 1 or what 16 bytes hold, with kUnroll
/// accesses of a lane in flight.
template <int kThreads, int kUnroll = 4, class T, class F>
__device__ __forceinline__ void scan_row(const T* row, int begin, int end, F f) {
  const RowSplit<T> split(row, begin, end);
  split.each_single([&](int column, float x) { f(column, Vec<float, 1>{{x}}); });
  for (int start = thread_index(); start < split.vectors; start += kThreads * kUnroll) {
    Packed<T, RowSplit<T>::kVec> data[kUnroll];
#pragma unroll
#if defined(__HIP__)
    for (int u = 0; u < kUnroll; ++u) split.load(data[u], start + u * kThreads, start);
#else
    for (int u = 0; u < kUnroll; ++u) split.load(data[u], start + u * kThreads);
#endif
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (start + u * kThreads < split.vectors) f(split.column(start + u * kThreads), floats_of(data[u]));
  }
}

/// Like scan_row, with f(column, x) for single elements.
template <int kThreads, int kUnroll = 4, class T, class F>
__device__ __forceinline__ void scan_elements(const T* row, int begin, int end, F f) {
  scan_row<kThreads, kUnroll>(row, begin, end, [&](int column, const auto& x) {
#pragma unroll
    for (int e = 0; e < static_cast<int>(sizeof(x) / sizeof(float)); ++e) f(column + e, x[e]);
  });
}

/// An element of a row as one number: the larger the better, of equal keys the lower column.
__device__ inline uint64_t candidate(uint32_t key, uint32_t column) {
  return uint64_t{key} << 32 | static_cast<uint32_t>(~column);
}
__device__ inline uint32_t candidate_key(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
__device__ inline uint32_t candidate_column(uint64_t x) { return ~static_cast<uint32_t>(x); }

template <int kMask>
__device__ inline uint64_t lane_xor_pair(uint64_t x) {
  const float low = lane_xor<kMask>(bits_float(static_cast<uint32_t>(x)));
  const float high = lane_xor<kMask>(bits_float(static_cast<uint32_t>(x >> 32)));
  return uint64_t{float_bits(high)} << 32 | float_bits(low);
}

template <int kMask = kWaveSize / 2>
__device__ inline uint64_t wave_best(uint64_t x) {
  const uint64_t other = lane_xor_pair<kMask>(x);
  x = other > x ? other : x;
  if constexpr (kMask > 1) return wave_best<kMask / 2>(x);
  return x;
}

/// The largest number of the workgroup, in every work-item. `scratch` is free again after the next barrier.
template <int kThreads>
__device__ inline uint64_t workgroup_best(uint64_t x, uint64_t (&scratch)[kThreads / kWaveSize]) {
  x = wave_best(x);
  if (lane_index() == 0) scratch[wave_index()] = x;
  workgroup_barrier();
#pragma unroll
  for (int wave = 0; wave < kThreads / kWaveSize; ++wave) x = scratch[wave] > x ? scratch[wave] : x;
  return x;
}

/// The sum of `x` over the lanes of the wave before this one; `total` becomes that of all lanes.
template <int kMask = 1>
__device__ inline uint64_t wave_sum_before(uint64_t& total, uint64_t before = 0) {
  const uint64_t other = lane_xor_pair<kMask>(total);
  if (lane_index() & kMask) before += other;
  total += other;
  if constexpr (2 * kMask < kWaveSize) return wave_sum_before<2 * kMask>(total, before);
  return before;
}

/// The sum over the wave, in all lanes.
__device__ inline uint64_t wave_total(uint64_t x) {
  wave_sum_before(x);
  return x;
}

/// Like store_vec, where another path stores the same elements one by one: compilers would make that of both, with an
/// eighth of the bandwidth.
template <class T, int kCount>
__device__ inline void store_at_once(T* address, const Vec<T, kCount>& value) {
  constexpr int kWords = sizeof(T) * kCount / 4;
  if constexpr (kWords > 0 && kWords % 4 == 0) {
    check_aligned<Vec<T, kCount>>(address);
    const auto words = __builtin_bit_cast(Vec<uint32_t, kWords>, value);
#pragma unroll
    for (int w = 0; w < kWords; w += 4) {
#if defined(__HIP__)
      typedef uint32_t Words __attribute__((ext_vector_type(4)));
      reinterpret_cast<Words*>(address)[w / 4] = Words{words[w], words[w + 1], words[w + 2], words[w + 3]};
#else
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<uint32_t*>(address) + w),
                   "r"(words[w]), "r"(words[w + 1]), "r"(words[w + 2]), "r"(words[w + 3])
                   : "memory");
#endif
    }
  } else {
    store_vec(address, value);
  }
}

/// Writes consecutive elements, rounded to T, at once where `is_wide`: their address allows it.
template <class T, int kCount>
__device__ inline void store_elements(T* address, const float (&y)[kCount], bool is_wide) {
  if (kCount > 1 && is_wide) {
    store_at_once(address, vec_from_float<T>(y));
  } else {
#pragma unroll
    for (int e = 0; e < kCount; ++e) address[e] = from_float<T>(y[e]);
  }
}
/// Whether `address`, that of the first of kCount elements, allows it.
template <int kCount, class T>
__device__ inline bool is_wide_at(const T* address) {
  return reinterpret_cast<uintptr_t>(address) % alignof(Vec<T, kCount>) == 0;
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// A draw by inverse transform sampling: the first column at which the sum of masses, in the order of columns, exceeds a
// random share of their total. Masses are integers (threshold.h): the column does not depend on how a row was cut.
//
//   1. waves sum chunks of the row, kInFlight accesses of 16 bytes of each lane or, in long rows, more of them
//   2. a wave finds the chunk by a prefix sum, and walks it once more for the column
#pragma once

#include "aiter_like/lanes.h"
#include "draws.h"
#include "threshold.h"

namespace aiter_like {

constexpr int kMostChunks = 512;         // chunks of a row that a workgroup takes whole
constexpr int kMostSlicedChunks = 1024;  // … and of one that is cut into slices

/// Adds to a number in LDS, at once for all of the workgroup. It may be read after the next barrier.
__device__ inline void lds_add(uint64_t* address, uint64_t x) {
#if defined(__HIP__)
  __hip_atomic_fetch_add(address, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
#else
  uint32_t* const halves = reinterpret_cast<uint32_t*>(address);  // the hardware adds these; it has no sum of 64 bits
  const uint32_t low = static_cast<uint32_t>(x), before = lds_add(halves, low);
  const uint32_t high = static_cast<uint32_t>(x >> 32) + (before + low < before);
  if (high != 0) lds_add(halves + 1, high);
#endif
}

/// The mass of an element that is kept if it is at least `lowest`, a positive number.
__device__ inline uint64_t kept_mass_of(float x, float lowest) { return mass_of(x >= lowest ? x : 0.f); }

/// The same of several elements together.
template <int kCount>
__device__ inline uint64_t kept_mass_of(const Vec<float, kCount>& x, float lowest) {
  uint64_t mass = 0;
#pragma unroll
  for (int e = 0; e < kCount; ++e) mass += kept_mass_of(x[e], lowest);
  return mass;
}

/// Whether any element is at least `lowest`.
template <int kCount>
__device__ inline bool is_any_from(float lowest, const Vec<float, kCount>& x) {
  bool is_any = false;
#pragma unroll
  for (int e = 0; e < kCount; ++e) is_any |= x[e] >= lowest;
  return is_any;
}

/// A chunk, and what of the target the chunks before it leave.
struct ChunkPlace {
  int chunk;
  uint64_t rest;
};

/// The number of a lane.
__device__ inline uint64_t of_lane(uint64_t x, int from) {
  const uint32_t low = of_lane(static_cast<uint32_t>(x), from);
  return uint64_t{of_lane(static_cast<uint32_t>(x >> 32), from)} << 32 | low;
}

/// The first lane at which the sum of `own` over it and those before exceeds `wanted`, which is below the sum of all.
/// `wanted` becomes what is left of it there.
__device__ inline int lane_at(uint64_t own, uint64_t before, uint64_t& wanted) {
  const int lane = lowest_lane(lanes_with(before + own > wanted));
  wanted -= of_lane(before, lane);
  return lane;
}

/// The sums of chunks, a run of them in each lane of a wave.
struct ChunkSums {
  static constexpr int kInFlight = 4, kMultiple = kInFlight * kWaveSize;
  const uint64_t* run;
  int first, each;  // the lane's first chunk, how many chunks a lane has
  uint64_t own;

  /// `count`, a multiple of kMultiple, sums; they begin at a multiple of 16 bytes.
  __device__ __forceinline__ ChunkSums(const uint64_t* sums, int count) : each(count / kWaveSize), own(0) {
    first = lane_index() * each;
    run = sums + first;
#pragma unroll 1
    for (int chunk = 0; chunk < each; chunk += kInFlight) {
      const Vec<uint64_t, kInFlight> some = load_vec<kInFlight>(run + chunk);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) own += some[i];
    }
  }
  /// How many sums there must be for a number of chunks; those that are none are zeros.
  __host__ __device__ static constexpr int rounded(int chunks) {
    return (chunks + kMultiple - 1) / kMultiple * kMultiple;
  }
  __device__ bool are_zero() const { return !wave_any(own != 0); }

  /// The first chunk at which the sum of all up to it exceeds target(total), which is below the total.
  template <class Target>
  __device__ __forceinline__ ChunkPlace find(Target target) const {
    uint64_t total = own;
    const uint64_t before = wave_sum_before(total);
    uint64_t rest = target(total);
    const int lane = lane_at(own, before, rest);
    uint64_t left = rest;
    int place = first;
    bool is_past = false;
#pragma unroll 1
    for (int chunk = 0; chunk < each; chunk += kInFlight) {
      const Vec<uint64_t, kInFlight> some = load_vec<kInFlight>(run + chunk);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        is_past = is_past || left < some[i];
        if (is_past) continue;
        left -= some[i];
        ++place;
      }
    }
    return {of_lane(place, lane), of_lane(left, lane)};
  }
};

/// A part of a row in chunks.
template <class T>
struct Chunks {
  static constexpr int kVec = RowSplit<T>::kVec, kInFlight = 4, kLog2 = kWaveSize == 64 ? 8 : 7;
  static_assert(kInFlight * kWaveSize == 1 << kLog2, "vectors of a chunk whose shift is 0");
  RowSplit<T> split;
  const T* vectors;  // in memory, or where they are held
  int shift, count;

  __device__ Chunks(const RowSplit<T>& split, int shift)
      : split(split), vectors(split.first + split.head), shift(shift) {
    count = split.vectors > 0 ? ((split.vectors - 1) >> (kLog2 + shift)) + 1 : 1;
  }

  __device__ int chunk_of(int column) const {
    const int place = column - split.begin - split.head, chunk = place < 0 ? 0 : place / kVec >> (kLog2 + shift);
    return chunk < count ? chunk : count - 1;
  }

  /// Calls mass(column, Vec<float, n>) for the elements of a chunk, all lanes at once; a lane has zeros where there are
  /// no more. Returns the sum of the lane.
  template <class Mass>
  __device__ __forceinline__ uint64_t walk(int chunk, Mass mass) const {
    const int lane = lane_index(), end = (chunk + 1) << (kLog2 + shift);
    uint64_t own = 0;
    if (chunk == 0 && split.head > 0) own += mass(split.begin + lane, single(0, split.head));
#pragma unroll 1
    for (int start = chunk << (kLog2 + shift); start < end && start < split.vectors; start += 1 << kLog2) {
      Packed<T, kVec> data[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) load(data[u], start + u * kWaveSize + lane);
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) own += mass(split.column(start + u * kWaveSize + lane), floats_of(data[u]));
    }
    if (chunk == count - 1 && split.tail < split.count)
      own += mass(split.begin + split.tail + lane, single(split.tail, split.count));
    return own;
  }

  /// Calls put(chunk, sum) for each chunk, the sum being that of mass(column, Vec<float, n>). For a workgroup.
  template <int kThreads, class Mass, class Put>
  __device__ __forceinline__ void sum(Mass mass, Put put) const {
#pragma unroll 1
    for (int chunk = wave_index(); chunk < count; chunk += kThreads / kWaveSize) {
      const uint64_t total = wave_total(walk(chunk, mass));
      if (lane_index() == 0) put(chunk, total);
    }
  }

  /// The column of a chunk at which its sum of what is kept from `lowest` on exceeds `rest`, which is below it. For a
  /// wave, whose lanes have kInFlight accesses one after the other in the row.
  __device__ __forceinline__ int find(int chunk, float lowest, uint64_t rest) const {
    const int lane = lane_index(), end = (chunk + 1) << (kLog2 + shift);
    if (chunk == 0 && split.head > 0) {
      const int found = lane_of(kept_mass_of(single(0, split.head), lowest), rest);
      if (found >= 0) return split.begin + found;
    }
#pragma unroll 1
    for (int start = chunk << (kLog2 + shift); start < end && start < split.vectors; start += 1 << kLog2) {
      const int vector = start + lane * kInFlight;
      Packed<T, kVec> data[kInFlight];
      uint64_t masses[kInFlight], own = 0;
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) load(data[u], vector + u);
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) own += masses[u] = kept_mass_of(floats_of(data[u]), lowest);
      const int found = lane_of(own, rest);
      if (found < 0) continue;
      uint64_t left = rest;
      Packed<T, kVec> at = data[0];
      int column = split.column(vector);
      bool is_past = false;
#pragma unroll
      for (int u = 0; u + 1 < kInFlight; ++u) {
        is_past = is_past || left < masses[u];
        if (is_past) continue;
        left -= masses[u];
        at = data[u + 1];
        column += kVec;
      }
      const Vec<float, kVec> x = floats_of(at);
      uint64_t sum = 0;
#pragma unroll
      for (int e = 0; e + 1 < kVec; ++e) {
        sum += kept_mass_of(x[e], lowest);
        column += sum <= left;
      }
      return of_lane(column, found);
    }
    return split.begin + split.tail + lane_of(kept_mass_of(single(split.tail, split.count), lowest), rest);
  }

 private:
  __device__ void load(Packed<T, kVec>& data, int vector) const {
    data.load_if(vector < split.vectors, vectors + int64_t{vector} * kVec, vectors);
  }
  /// Element begin + lane of the part, as far as there are such below `end`.
  __device__ Vec<float, 1> single(int begin, int end) const {
    const int place = begin + lane_index();
    return {{place < end ? to_float(split.first[place]) : 0.f}};
  }
  /// The first lane at which the sum of `own` exceeds `rest`, which becomes what is left of it there; -1 where none
  /// does, and what is left after all.
  __device__ static int lane_of(uint64_t own, uint64_t& rest) {
    uint64_t total = own;
    const uint64_t before = wave_sum_before(total);
    if (lanes_with(before + own > rest) != 0) return lane_at(own, before, rest);
    rest -= total;
    return -1;
  }
};

}  // namespace aiter_like

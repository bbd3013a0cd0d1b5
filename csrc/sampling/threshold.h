// SPDX-License-Identifier: MIT
// Where a row of probabilities is cut: the smallest value t such that fewer than k elements are above it, and their
// sum is below p. The elements from t on are kept, all of those equal to t among them. A search by the bits of the
// floats, 11 + 10 + 10 of them: a histogram of counts and sums, its bins from the top, the lowest one that is allowed,
// and the next bits of the elements in it.
//
// Sums are integers in units of 2^-44: no order of additions changes them. Elements of a bin share their exponent.
// The first level keeps 32 - log2(columns) of the lower 20 bits of an element, so that 32 bits hold a bin's sum; an
// element's error, up to 2^-18 of it in rows of 2^18 columns, has no bias.
#pragma once

#include "row_scan.h"

namespace aiter_like {

constexpr int kLevels = 3, kBins = 2048;
constexpr uint32_t kNoCount = 0xFFFFFFFFu;
constexpr uint64_t kNoMass = ~uint64_t{0}, kMostMass = uint64_t{1} << 52;
constexpr float kMassUnits = 0x1p44f;

/// How many elements, and what sum of them, may be above the last one that is kept.
struct Limits {
  uint32_t count;
  uint64_t mass;

  __device__ bool is_none() const { return count == kNoCount && mass == kNoMass; }
  __device__ static uint64_t mass_of(float p) {
    if (p >= 1.f) return kNoMass;
    return p > 0x1p-40f ? static_cast<uint64_t>(p * kMassUnits) : 1;  // the largest is always kept; NaN counts as 0
  }
};

/// The kept elements as far as they are known: those whose key is at least `first`, which is exact if `is_done`; else
/// the cut is among the `count` elements whose bits from `shift` on are those of `first`.
struct Cut {
  uint32_t first, shift, count_above, count;
  uint64_t mass_above, mass;
  uint64_t is_done;  // 0 or 1, of 8 bytes: padding would reach memory undefined

  /// The cut that keeps all keys.
  __device__ static Cut start() { return {0, 31, 0, 0, 0, 0, false}; }
};

/// A probability as a key; what is no positive number counts as zero.
__device__ inline uint32_t probability_key(float x) { return x > 0.f ? float_bits(x) : 0; }

/// mantissa · 2^(exponent - 150) in units of 2^-44.
__device__ inline uint64_t mass_units(uint64_t mantissa, int exponent) {
  const int shift = exponent - 106;
  if (shift < 0) return shift <= -64 ? 0 : mantissa >> -shift;
  return shift >= 52 || mantissa >> (52 - shift) ? (mantissa ? kMostMass : 0) : mantissa << shift;
}
__device__ inline uint64_t mantissa_of(uint32_t key) {
  return (key & 0x7FFFFFu) | (key >> 23 ? 0x800000u : 0u);
}
__device__ inline int exponent_of(uint32_t key) { return key >> 23 ? static_cast<int>(key >> 23) : 1; }

/// The units that a number has, rounded down. Numbers below 0 and a NaN have none; those from 256 on kMostMass.
__device__ inline uint64_t mass_of(float x) {
#if defined(__HIP__)
  const float high = __builtin_amdgcn_fmed3f(x * 0x1p12f, 0.f, 0x1p20f);  // in units of 2^-12
  return uint64_t{static_cast<uint32_t>(high)} << 32 |
         static_cast<uint32_t>(__builtin_amdgcn_fractf(high) * 0x1p32f);
#else
  return static_cast<uint64_t>(__builtin_fminf(__builtin_fmaxf(x, 0.f), 0x1p8f) * kMassUnits);
#endif
}
__device__ inline uint64_t mass_of_key(uint32_t key) { return mass_of(bits_float(key)); }

/// One level of the search, 0 to 2: which bits of a key are the bin, and how many of the bits below are summed.
struct Level {
  int shift, bins, dropped;

  __device__ Level(int level, int columns)
      : shift(level == 0 ? 20 : level == 1 ? 10 : 0), bins(level == 0 ? kBins : kBins / 2), dropped(0) {
    if (level > 0) return;
    int log2 = 0;
    while (log2 < 31 && (int64_t{1} << log2) < columns) ++log2;
    dropped = log2 > 12 ? log2 - 12 : 0;
  }
  __device__ uint32_t bin(uint32_t key) const { return key >> shift & (bins - 1); }
  __device__ uint32_t low(uint32_t key) const { return (key & ((1u << shift) - 1)) >> dropped; }
  /// The sum of a bin's elements, whose lowest possible key is `first`.
  __device__ uint64_t mass(uint32_t first, uint32_t count, uint32_t low_sum) const {
    const uint64_t dropped_sum = dropped ? uint64_t{count} << dropped >> 1 : 0;
    return mass_units(count * mantissa_of(first) + (uint64_t{low_sum} << dropped) + dropped_sum, exponent_of(first));
  }
};

struct Histogram {
  uint32_t counts[kBins], lows[kBins];
};

template <int kThreads>
struct SearchScratch {
  uint64_t counts[kThreads / kWaveSize], masses[kThreads / kWaveSize];
  uint32_t winner;
  Cut cut;
};

template <int kThreads>
__device__ inline void clear(Histogram& histogram) {
  for (int i = thread_index(); i < kBins; i += kThreads) histogram.counts[i] = histogram.lows[i] = 0;
  workgroup_barrier();
}

/// Adds an element to a histogram in LDS, if the cut may be at it.
__device__ inline void count_key(Histogram& histogram, const Level& level, const Cut& cut, uint32_t key) {
  if (key == 0 || (key >> cut.shift) != (cut.first >> cut.shift)) return;
  const uint32_t bin = level.bin(key), low = level.low(key);
  lds_add(&histogram.counts[bin], 1);
  if (low != 0) lds_add(&histogram.lows[bin], low);
}

/// The cut by one more level, the same in every work-item; ends with a barrier. A row without elements to be kept gives
/// a cut that is done, with no mass.
template <int kThreads>
__device__ Cut next_cut(const Histogram& histogram, const Level& level, const Cut& cut, const Limits& limits,
                        SearchScratch<kThreads>& scratch) {
  constexpr int kWaves = kThreads / kWaveSize, kEach = kBins / kThreads;
  static_assert(kEach >= 1, "a work-item has whole bins");
  const int thread = thread_index(), each = level.bins / kThreads > 0 ? level.bins / kThreads : 1;
  const int top = level.bins - 1 - thread * each;  // the work-item's bins, from here downwards
  uint64_t counts = 0, masses = 0, mass[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    mass[i] = 0;
    if (i >= each || top - i < 0) continue;
    const uint32_t bin = static_cast<uint32_t>(top - i), count = histogram.counts[bin];
    mass[i] = level.mass(cut.first | bin << level.shift, count, histogram.lows[bin]);
    counts += count;
    masses += mass[i];
  }
  uint64_t wave_count = counts, wave_mass = masses;
  uint64_t count_above = cut.count_above + wave_sum_before(wave_count);
  uint64_t mass_above = cut.mass_above + wave_sum_before(wave_mass);
  if (lane_index() == 0) {
    scratch.counts[wave_index()] = wave_count;
    scratch.masses[wave_index()] = wave_mass;
  }
  if (thread == 0) scratch.winner = 0;
  workgroup_barrier();
#pragma unroll
  for (int wave = 0; wave < kWaves; ++wave) {
    if (wave >= wave_index()) continue;
    count_above += scratch.counts[wave];
    mass_above += scratch.masses[wave];
  }
  Cut found = Cut::start();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (i >= each || top - i < 0) continue;
    const uint32_t bin = static_cast<uint32_t>(top - i), count = histogram.counts[bin];
    if (count != 0 && count_above < limits.count && mass_above < limits.mass) {
      found.first = cut.first | bin << level.shift;
      found.shift = level.shift;
      found.count_above = static_cast<uint32_t>(count_above);
      found.mass_above = mass_above;
      found.count = count;
      found.mass = mass[i];
    }
    count_above += count;
    mass_above += mass[i];
  }
  found.is_done = level.shift == 0 || found.count == 1 ||
                  (uint64_t{found.count_above} + found.count <= limits.count &&
                   found.mass_above + found.mass <= limits.mass);
  if (found.count != 0) lds_max(&scratch.winner, static_cast<uint32_t>(thread) + 1);
  workgroup_barrier();
  const uint32_t winner = scratch.winner;
  if (winner == 0) found.is_done = true;
  if (winner == static_cast<uint32_t>(thread) + 1 || (winner == 0 && thread == 0)) scratch.cut = found;
  workgroup_barrier();
  return scratch.cut;
}

}  // namespace aiter_like

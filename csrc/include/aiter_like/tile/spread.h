// SPDX-License-Identifier: MIT
// Where in a row of matrix instructions other instructions stand. A matrix instruction leaves its wave time for three
// or seven others: one beside each costs nothing, and memory gets its accesses evenly.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like::tile {

/// `count` accesses at places [from, end), evenly and at most one at each: the first one is at `from`, the last one
/// before `end`.
struct Spread {
  int from, end, count;

  /// The access at place t, or -1.
  constexpr __host__ __device__ int at(int t) const {
    if (count == 0 || t < from || t >= end) return -1;
    const int i = ((t - from) * count + end - from - 1) / (end - from);
    return i < count && place(i) == t ? i : -1;
  }
  /// Where access i is.
  constexpr __host__ __device__ int place(int i) const { return from + i * (end - from) / count; }
  /// Whether there are as many places as accesses.
  constexpr __host__ __device__ bool fits() const { return 0 <= from && count <= end - from; }
};

}  // namespace aiter_like::tile

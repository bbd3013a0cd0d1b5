// SPDX-License-Identifier: MIT
// Where in a row of matrix instructions other instructions stand. A matrix instruction leaves its wave time for three
// or seven others: one beside each costs nothing, and memory gets its accesses evenly. Two ways:
//   Spread                   the kernel has each access at its place, with keep_order() around it
//   spread_between_products  the compiler chooses which instructions stand there, the kernel of which kinds
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
  /// The place of access i.
  constexpr __host__ __device__ int place(int i) const { return from + i * (end - from) / count; }
  /// Whether there are as many places as accesses.
  constexpr __host__ __device__ bool fits() const { return 0 <= from && count <= end - from; }
  /// Whether each access stands at or behind the same one of `earlier`.
  constexpr __host__ __device__ bool is_behind(const Spread& earlier) const {
    for (int i = 0; i < earlier.count; ++i)
      if (place(i) < earlier.place(i)) return false;
    return true;
  }
};

/// The pipe that an instruction occupies; the values are LLVM's, of amdgcn.sched.group.barrier.
enum class Pipe { valu = 0x2, scalar = 0x4, matrix = 0x8, global_read = 0x20, lds_read = 0x100, lds_write = 0x200 };

/// Orders what comes since the last keep_order(): PRODUCTS times a matrix instruction, then one of each of PIPES as
/// long as there are any.
template <int PRODUCTS, Pipe... PIPES>
__device__ inline void spread_between_products() {
#pragma unroll
  for (int i = 0; i < PRODUCTS; ++i) {
    __builtin_amdgcn_sched_group_barrier(static_cast<int>(Pipe::matrix), 1, 0);
    (__builtin_amdgcn_sched_group_barrier(static_cast<int>(PIPES), 1, 0), ...);
  }
}

}  // namespace aiter_like::tile

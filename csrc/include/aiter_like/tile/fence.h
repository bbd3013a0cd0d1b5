// SPDX-License-Identifier: MIT
// What orders memory accesses and instructions, one instruction each. Barriers for ordinary accesses are
// workgroup_barrier of gpu.h; what inline assembly moves (dma.h) the compiler does not see: it needs these.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like::tile {

/// Waits until at most kCount of this wave's vector memory accesses are in flight.
template <int kCount = 0>
__device__ inline void wait_vector_memory() {
  static_assert(0 <= kCount && kCount < 64, "vmcnt has 6 bits");
  asm volatile("s_waitcnt vmcnt(%0)" ::"n"(kCount) : "memory");
}

/// Waits until at most kCount of this wave's LDS accesses are in flight.
template <int kCount = 0>
__device__ inline void wait_lds() {
  static_assert(0 <= kCount && kCount < 16, "lgkmcnt has 4 bits");
  asm volatile("s_waitcnt lgkmcnt(%0)" ::"n"(kCount) : "memory");
}

/// All waves of the workgroup meet; waits for no access.
__device__ inline void meet() {
  asm volatile("" ::: "memory");
  __builtin_amdgcn_s_barrier();
  asm volatile("" ::: "memory");
}

/// The compiler moves no instruction across.
__device__ inline void keep_order() { __builtin_amdgcn_sched_barrier(0); }

/// Priority of this wave among those of its SIMD, 0 (default) to 3.
template <int kPriority>
__device__ inline void set_priority() {
  static_assert(0 <= kPriority && kPriority < 4, "a priority has 2 bits");
  __builtin_amdgcn_s_setprio(kPriority);
}

}  // namespace aiter_like::tile

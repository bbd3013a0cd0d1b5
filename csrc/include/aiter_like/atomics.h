// SPDX-License-Identifier: MIT
// Sums and maxima of integers in LDS and global memory, at once for all that add: their order does not matter.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like {

/// Adds to a word of LDS, at once for all of the workgroup; returns what was there.
__device__ inline uint32_t lds_add(uint32_t* address, uint32_t x) {
#if defined(__HIP__)
  return __hip_atomic_fetch_add(address, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
#else
  return atomicAdd(address, x);
#endif
}

/// Makes a word of LDS the maximum of itself and `x`, at once for all of the workgroup.
__device__ inline void lds_max(uint32_t* address, uint32_t x) {
#if defined(__HIP__)
  __hip_atomic_fetch_max(address, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
#else
  atomicMax(address, x);
#endif
}

/// Adds to a word of global memory, at once for all workgroups.
__device__ inline void global_add(uint32_t* address, uint32_t x) {
#if defined(__HIP__)
  __hip_atomic_fetch_add(address, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  atomicAdd(address, x);
#endif
}
__device__ inline void global_add(uint64_t* address, uint64_t x) {
#if defined(__HIP__)
  __hip_atomic_fetch_add(address, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(x));
#endif
}

}  // namespace aiter_like

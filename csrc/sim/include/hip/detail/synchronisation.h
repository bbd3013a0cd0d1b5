// SPDX-License-Identifier: MIT
// Barriers, fences, clocks, and copies in device code.
#pragma once
#include "hip/detail/integers.h"

AITER_LIKE_DEVICE void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
AITER_LIKE_DEVICE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
AITER_LIKE_DEVICE void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
AITER_LIKE_DEVICE void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

namespace hip_detail {

// Counts the work-items of the workgroup that have `condition`. A word of LDS is shared by the calls of a kernel.
__device__ inline unsigned count_in_block(bool condition) {
  __shared__ unsigned count;
  const unsigned rank = (__builtin_amdgcn_workitem_id_z() * __builtin_amdgcn_workgroup_size_y() +
                         __builtin_amdgcn_workitem_id_y()) * __builtin_amdgcn_workgroup_size_x() +
                        __builtin_amdgcn_workitem_id_x();
  if (rank == 0) count = 0;
  __syncthreads();
  if (condition) __hip_atomic_fetch_add(&count, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  __syncthreads();
  const unsigned found = count;
  __syncthreads();
  return found;
}

}  // namespace hip_detail

__device__ inline int __syncthreads_count(int condition) {
  return static_cast<int>(hip_detail::count_in_block(condition != 0));
}
__device__ inline int __syncthreads_or(int condition) { return hip_detail::count_in_block(condition != 0) != 0; }
__device__ inline int __syncthreads_and(int condition) { return hip_detail::count_in_block(condition == 0) == 0; }

// Cycles of the CU's clock; wall_clock64 counts at 100 MHz, the same on all CUs.
AITER_LIKE_DEVICE long long __clock64() { return static_cast<long long>(__builtin_readcyclecounter()); }
AITER_LIKE_DEVICE long long clock64() { return __clock64(); }
AITER_LIKE_DEVICE long long __clock() { return __clock64(); }
AITER_LIKE_DEVICE long long clock() { return __clock64(); }
AITER_LIKE_DEVICE long long wall_clock64() { return static_cast<long long>(__builtin_readsteadycounter()); }
AITER_LIKE_DEVICE void __nanosleep(unsigned) { __builtin_amdgcn_s_sleep(1); }
AITER_LIKE_DEVICE void __trap() { __builtin_trap(); }

template <class T>
AITER_LIKE_DEVICE T __ldg(const T* address) {
  return *address;
}

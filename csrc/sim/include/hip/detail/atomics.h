// SPDX-License-Identifier: MIT
// Atomics, relaxed: among the work-items of a device, and with _block and _system of a workgroup and of all devices.
// The second argument is converted to the type of the place, as an overload for each type would have it.
#pragma once
#include "hip/detail/vectors.h"

#define AITER_LIKE_ATOMIC_OF_SCOPE(name, builtin, scope)                               \
  template <class T>                                                                   \
  __device__ inline T name(T* place, hip_detail::same<T> value) {                      \
    return builtin(place, value, __ATOMIC_RELAXED, scope);                             \
  }                                                                                    \
  template <class T>                                                                   \
  __device__ inline T name(volatile T* place, hip_detail::same<T> value) {             \
    return builtin(const_cast<T*>(place), value, __ATOMIC_RELAXED, scope);             \
  }
#define AITER_LIKE_ATOMIC(name, builtin)                                                    \
  AITER_LIKE_ATOMIC_OF_SCOPE(name, builtin, __HIP_MEMORY_SCOPE_AGENT)                       \
  AITER_LIKE_ATOMIC_OF_SCOPE(name##_block, builtin, __HIP_MEMORY_SCOPE_WORKGROUP)           \
  AITER_LIKE_ATOMIC_OF_SCOPE(name##_system, builtin, __HIP_MEMORY_SCOPE_SYSTEM)
#define AITER_LIKE_ATOMIC_SUBTRACT(place, value, order, scope) __hip_atomic_fetch_add(place, -(value), order, scope)
AITER_LIKE_ATOMIC(atomicAdd, __hip_atomic_fetch_add)
AITER_LIKE_ATOMIC(atomicSub, AITER_LIKE_ATOMIC_SUBTRACT)
AITER_LIKE_ATOMIC(atomicMin, __hip_atomic_fetch_min)
AITER_LIKE_ATOMIC(atomicMax, __hip_atomic_fetch_max)
AITER_LIKE_ATOMIC(atomicAnd, __hip_atomic_fetch_and)
AITER_LIKE_ATOMIC(atomicOr, __hip_atomic_fetch_or)
AITER_LIKE_ATOMIC(atomicXor, __hip_atomic_fetch_xor)
AITER_LIKE_ATOMIC(atomicExch, __hip_atomic_exchange)
AITER_LIKE_ATOMIC_OF_SCOPE(safeAtomicAdd, __hip_atomic_fetch_add, __HIP_MEMORY_SCOPE_AGENT)
AITER_LIKE_ATOMIC_OF_SCOPE(safeAtomicMin, __hip_atomic_fetch_min, __HIP_MEMORY_SCOPE_AGENT)
AITER_LIKE_ATOMIC_OF_SCOPE(safeAtomicMax, __hip_atomic_fetch_max, __HIP_MEMORY_SCOPE_AGENT)
AITER_LIKE_ATOMIC_OF_SCOPE(unsafeAtomicAdd, __hip_atomic_fetch_add, __HIP_MEMORY_SCOPE_AGENT)
AITER_LIKE_ATOMIC_OF_SCOPE(unsafeAtomicMin, __hip_atomic_fetch_min, __HIP_MEMORY_SCOPE_AGENT)
AITER_LIKE_ATOMIC_OF_SCOPE(unsafeAtomicMax, __hip_atomic_fetch_max, __HIP_MEMORY_SCOPE_AGENT)
#undef AITER_LIKE_ATOMIC_SUBTRACT
#undef AITER_LIKE_ATOMIC
#undef AITER_LIKE_ATOMIC_OF_SCOPE

#define AITER_LIKE_ATOMIC_CAS(name, scope)                                                                      \
  template <class T>                                                                                            \
  __device__ inline T name(T* place, hip_detail::same<T> expected, hip_detail::same<T> value) {                 \
    __hip_atomic_compare_exchange_strong(place, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED, scope);   \
    return expected;                                                                                            \
  }
AITER_LIKE_ATOMIC_CAS(atomicCAS, __HIP_MEMORY_SCOPE_AGENT)
AITER_LIKE_ATOMIC_CAS(atomicCAS_block, __HIP_MEMORY_SCOPE_WORKGROUP)
AITER_LIKE_ATOMIC_CAS(atomicCAS_system, __HIP_MEMORY_SCOPE_SYSTEM)
#undef AITER_LIKE_ATOMIC_CAS

// Up to `last` and then 0; down to 0, and then, or from beyond `last`, to `last`.
__device__ inline unsigned atomicInc(unsigned* place, unsigned last) {
  return __builtin_amdgcn_atomic_inc32(place, last, __ATOMIC_RELAXED, "agent");
}
__device__ inline unsigned atomicDec(unsigned* place, unsigned last) {
  return __builtin_amdgcn_atomic_dec32(place, last, __ATOMIC_RELAXED, "agent");
}

// SPDX-License-Identifier: MIT
// The words that HIP adds to C++, and the grid's type.
#pragma once
#define HIP_INCLUDE_HIP_AMD_DETAIL_HOST_DEFINES_H  // rocThrust undefines the words where it does not see this
#if defined(__HIP__)
#include "hip/detail/traits.h"
#undef __host__
#undef __device__
#undef __global__
#undef __shared__
#undef __constant__
#undef __managed__
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((managed))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
// clang ignores the launch bounds of CUDA for AMD targets: without these attributes it plans for 1024 work-items. It
// takes negative numbers for huge ones, which are no arguments of the template.
namespace __hip_internal {
template <unsigned bound> struct launch_bound { static constexpr unsigned value = bound; };
}
#define __launch_bounds_of_1(threads) \
  __attribute__((amdgpu_flat_work_group_size(1, __hip_internal::launch_bound<(threads)>::value)))
#define __launch_bounds_of_2(threads, waves)                                                      \
  __attribute__((amdgpu_flat_work_group_size(1, __hip_internal::launch_bound<(threads)>::value),  \
                 amdgpu_waves_per_eu(__hip_internal::launch_bound<(waves)>::value)))
#define __launch_bounds_choose(one, two, chosen, ...) chosen
#define __launch_bounds__(...) \
  __launch_bounds_choose(__VA_ARGS__, __launch_bounds_of_2, __launch_bounds_of_1, )(__VA_ARGS__)
#else
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __forceinline__ inline
#endif
#define __grid_constant__
#if !defined(__align__)
#define __align__(bytes) __attribute__((aligned(bytes)))
#endif

#if defined(__HIPCC_RTC__)
using size_t = decltype(sizeof(0));
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long;
using uint64_t = unsigned long;
#else
#include <stddef.h>
#include <stdint.h>
#endif

// In C++11 a constexpr function is one statement, and a member is const.
#if defined(__cplusplus) && __cplusplus < 201402L
#define AITER_LIKE_CONSTEXPR_14 inline
#else
#define AITER_LIKE_CONSTEXPR_14 constexpr
#endif
#if defined(__HIP__)
#define AITER_LIKE_BOTH __host__ __device__
#else
#define AITER_LIKE_BOTH
#endif

typedef struct dim3 {
  uint32_t x, y, z;
#if defined(__cplusplus)
  constexpr AITER_LIKE_BOTH dim3(uint32_t x = 1, uint32_t y = 1, uint32_t z = 1) : x(x), y(y), z(z) {}
#endif
} dim3;

#if defined(__HIP__)
// `extern __shared__ T name[]` under its older name.
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];
#define HIP_DYNAMIC_SHARED_ATTRIBUTE
#define HIP_KERNEL_NAME(...) __VA_ARGS__
#define HIP_SYMBOL(symbol) symbol
#endif

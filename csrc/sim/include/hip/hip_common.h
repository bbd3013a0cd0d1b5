// SPDX-License-Identifier: MIT
// The platform, as programs ask for it.
#pragma once
#if defined(__HIP_PLATFORM_NVIDIA__) || defined(__HIP_PLATFORM_NVCC__)
#error "these headers are for AMD's platform: the program runs on the simulated MI300X"
#endif
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__ 1
#endif
#if defined(__HIP__)
#ifndef __HIPCC__
#define __HIPCC__ 1
#endif
#define __HIP_CLANG_ONLY__ 1
#if defined(__HIP_DEVICE_COMPILE__)  // programs ask for these features of the device
#define __HIP_ARCH_HAS_GLOBAL_INT32_ATOMICS__ 1
#define __HIP_ARCH_HAS_GLOBAL_FLOAT_ATOMIC_EXCH__ 1
#define __HIP_ARCH_HAS_SHARED_INT32_ATOMICS__ 1
#define __HIP_ARCH_HAS_SHARED_FLOAT_ATOMIC_EXCH__ 1
#define __HIP_ARCH_HAS_FLOAT_ATOMIC_ADD__ 1
#define __HIP_ARCH_HAS_GLOBAL_INT64_ATOMICS__ 1
#define __HIP_ARCH_HAS_SHARED_INT64_ATOMICS__ 1
#define __HIP_ARCH_HAS_DOUBLES__ 1
#define __HIP_ARCH_HAS_WARP_VOTE__ 1
#define __HIP_ARCH_HAS_WARP_BALLOT__ 1
#define __HIP_ARCH_HAS_WARP_SHUFFLE__ 1
#define __HIP_ARCH_HAS_WARP_FUNNEL_SHIFT__ 0
#define __HIP_ARCH_HAS_THREAD_FENCE_SYSTEM__ 1
#define __HIP_ARCH_HAS_SYNC_THREAD_EXT__ 0
#define __HIP_ARCH_HAS_SURFACE_FUNCS__ 0
#define __HIP_ARCH_HAS_3DGRID__ 1
#define __HIP_ARCH_HAS_DYNAMIC_PARALLEL__ 0
#endif
#endif
#if !defined(__HIP_DEVICE_COMPILE__)  // nothing of it is there on the host
#define __HIP_ARCH_HAS_GLOBAL_INT32_ATOMICS__ 0
#define __HIP_ARCH_HAS_GLOBAL_FLOAT_ATOMIC_EXCH__ 0
#define __HIP_ARCH_HAS_SHARED_INT32_ATOMICS__ 0
#define __HIP_ARCH_HAS_SHARED_FLOAT_ATOMIC_EXCH__ 0
#define __HIP_ARCH_HAS_FLOAT_ATOMIC_ADD__ 0
#define __HIP_ARCH_HAS_GLOBAL_INT64_ATOMICS__ 0
#define __HIP_ARCH_HAS_SHARED_INT64_ATOMICS__ 0
#define __HIP_ARCH_HAS_DOUBLES__ 0
#define __HIP_ARCH_HAS_WARP_VOTE__ 0
#define __HIP_ARCH_HAS_WARP_BALLOT__ 0
#define __HIP_ARCH_HAS_WARP_SHUFFLE__ 0
#define __HIP_ARCH_HAS_WARP_FUNNEL_SHIFT__ 0
#define __HIP_ARCH_HAS_THREAD_FENCE_SYSTEM__ 0
#define __HIP_ARCH_HAS_SYNC_THREAD_EXT__ 0
#define __HIP_ARCH_HAS_SURFACE_FUNCS__ 0
#define __HIP_ARCH_HAS_3DGRID__ 0
#define __HIP_ARCH_HAS_DYNAMIC_PARALLEL__ 0
#endif

// SPDX-License-Identifier: MIT
// Functions of the device library that programs call by their own names, and mixed dot products made of them. Who calls
// one needs the device library when the program is linked.
#pragma once
#include "hip/detail/vectors.h"

#define AITER_LIKE_PURE extern "C" __device__ __attribute__((const))
#define AITER_LIKE_TOGETHER extern "C" __device__ __attribute__((convergent))
AITER_LIKE_PURE unsigned __ockl_lane_u32();
AITER_LIKE_TOGETHER unsigned __ockl_activelane_u32();
AITER_LIKE_TOGETHER int __ockl_wfany_i32(int);
AITER_LIKE_TOGETHER int __ockl_wfall_i32(int);
AITER_LIKE_TOGETHER int __ockl_wgred_add_i32(int);
AITER_LIKE_TOGETHER int __ockl_wgred_and_i32(int);
AITER_LIKE_TOGETHER int __ockl_wgred_or_i32(int);
extern "C" __device__ unsigned long __ockl_steadyctr_u64();
AITER_LIKE_PURE int __ockl_mul24_i32(int, int);
AITER_LIKE_PURE unsigned __ockl_mul24_u32(unsigned, unsigned);
AITER_LIKE_PURE int __ockl_mul_hi_i32(int, int);
AITER_LIKE_PURE unsigned __ockl_mul_hi_u32(unsigned, unsigned);
AITER_LIKE_PURE unsigned __ockl_sadd_u32(unsigned, unsigned);
AITER_LIKE_PURE unsigned char __ockl_clz_u8(unsigned char);
AITER_LIKE_PURE unsigned short __ockl_clz_u16(unsigned short);
AITER_LIKE_PURE unsigned __ockl_clz_u32(unsigned);
AITER_LIKE_PURE unsigned long __ockl_clz_u64(unsigned long);

namespace hip_detail::dot {
using Short2 = short __attribute__((ext_vector_type(2)));
using Ushort2 = unsigned short __attribute__((ext_vector_type(2)));
using Char4 = signed char __attribute__((ext_vector_type(4)));
using Uchar4 = unsigned char __attribute__((ext_vector_type(4)));
}
AITER_LIKE_PURE int __ockl_sdot2(hip_detail::dot::Short2, hip_detail::dot::Short2, int, bool);
AITER_LIKE_PURE unsigned __ockl_udot2(hip_detail::dot::Ushort2, hip_detail::dot::Ushort2, unsigned, bool);
AITER_LIKE_PURE int __ockl_sdot4(hip_detail::dot::Char4, hip_detail::dot::Char4, int, bool);
AITER_LIKE_PURE unsigned __ockl_udot4(hip_detail::dot::Uchar4, hip_detail::dot::Uchar4, unsigned, bool);
AITER_LIKE_PURE int __ockl_sdot8(int, int, int, bool);
AITER_LIKE_PURE unsigned __ockl_udot8(unsigned, unsigned, unsigned, bool);
#undef AITER_LIKE_TOGETHER
#undef AITER_LIKE_PURE

// c + the sum of the products of the elements, clamped to the result's type when `saturate` is set; those of an int or
// unsigned are its eight fields of 4 bits.
__device__ inline int amd_mixed_dot(short2 a, short2 b, int c, bool saturate) {
  using hip_detail::dot::Short2;
  return __ockl_sdot2(Short2{a.x, a.y}, Short2{b.x, b.y}, c, saturate);
}
__device__ inline unsigned amd_mixed_dot(ushort2 a, ushort2 b, unsigned c, bool saturate) {
  using hip_detail::dot::Ushort2;
  return __ockl_udot2(Ushort2{a.x, a.y}, Ushort2{b.x, b.y}, c, saturate);
}
__device__ inline int amd_mixed_dot(char4 a, char4 b, int c, bool saturate) {
  using hip_detail::dot::Char4;
  return __ockl_sdot4(Char4{a.x, a.y, a.z, a.w}, Char4{b.x, b.y, b.z, b.w}, c, saturate);
}
__device__ inline unsigned amd_mixed_dot(uchar4 a, uchar4 b, unsigned c, bool saturate) {
  using hip_detail::dot::Uchar4;
  return __ockl_udot4(Uchar4{a.x, a.y, a.z, a.w}, Uchar4{b.x, b.y, b.z, b.w}, c, saturate);
}
__device__ inline int amd_mixed_dot(int a, int b, int c, bool saturate) { return __ockl_sdot8(a, b, c, saturate); }
__device__ inline unsigned amd_mixed_dot(unsigned a, unsigned b, unsigned c, bool saturate) {
  return __ockl_udot8(a, b, c, saturate);
}

// The older name of an addition whose former value nobody wants.
__device__ inline void atomicAddNoRet(float* place, float value) {
  __hip_atomic_fetch_add(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// The host has those of C; these are compiled to loops.
static inline __device__ void* memcpy(void* to, const void* from, size_t bytes) {
  return __builtin_memcpy(to, from, bytes);
}
static inline __device__ void* memmove(void* to, const void* from, size_t bytes) {
  return __builtin_memmove(to, from, bytes);
}
static inline __device__ void* memset(void* place, int value, size_t bytes) {
  return __builtin_memset(place, value, bytes);
}

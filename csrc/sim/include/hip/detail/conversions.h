// SPDX-License-Identifier: MIT
// Conversions to float and double in a chosen direction: down, up, towards zero; …_rn of integers.h is to nearest even.
#pragma once
#include "hip/detail/integers.h"

#define AITER_LIKE_DIRECTED(name, From, from, To, to)                                                     \
  extern "C" __device__ __attribute__((const)) To __ocml_cvtrtn_##to##_##from(From x);                     \
  extern "C" __device__ __attribute__((const)) To __ocml_cvtrtp_##to##_##from(From x);                     \
  extern "C" __device__ __attribute__((const)) To __ocml_cvtrtz_##to##_##from(From x);                     \
  AITER_LIKE_DEVICE To name##_rd(From x) { return __ocml_cvtrtn_##to##_##from(x); }                        \
  AITER_LIKE_DEVICE To name##_ru(From x) { return __ocml_cvtrtp_##to##_##from(x); }                        \
  AITER_LIKE_DEVICE To name##_rz(From x) { return __ocml_cvtrtz_##to##_##from(x); }
AITER_LIKE_DIRECTED(__int2float, int, s32, float, f32)
AITER_LIKE_DIRECTED(__uint2float, unsigned, u32, float, f32)
AITER_LIKE_DIRECTED(__ll2float, long long, s64, float, f32)
AITER_LIKE_DIRECTED(__ull2float, unsigned long long, u64, float, f32)
AITER_LIKE_DIRECTED(__ll2double, long long, s64, double, f64)
AITER_LIKE_DIRECTED(__ull2double, unsigned long long, u64, double, f64)
AITER_LIKE_DIRECTED(__double2float, double, f64, float, f32)
#undef AITER_LIKE_DIRECTED

// SPDX-License-Identifier: MIT
// bfloat16: the upper half of a float, rounded to nearest even; computed with in single precision. For host and device.
#pragma once
#include "hip/detail/short_floats.h"
#include "hip/detail/callers_lines_begin.h"

struct __hip_bfloat16_raw {
  unsigned short x;
};

struct __hip_bfloat16 {
  unsigned short data;

  __hip_bfloat16() = default;
  __host__ __device__ __hip_bfloat16(float x) : data(rounded(x)) {}
  __host__ __device__ __hip_bfloat16(double x) : data(rounded(static_cast<float>(x))) {}
  __host__ __device__ __hip_bfloat16(int x) : data(rounded(static_cast<float>(x))) {}
  __host__ __device__ __hip_bfloat16(unsigned x) : data(rounded(static_cast<float>(x))) {}
  constexpr __host__ __device__ __hip_bfloat16(__hip_bfloat16_raw x) : data(x.x) {}

  __host__ __device__ operator float() const {
    return __builtin_bit_cast(float, static_cast<unsigned>(data) << 16);
  }
  constexpr __host__ __device__ operator __hip_bfloat16_raw() const { return {data}; }

  // A NaN stays one: its payload's lower half is dropped, and the quiet bit is set.
  __host__ __device__ static unsigned short rounded(float x) {
    const unsigned bits = __builtin_bit_cast(unsigned, x);
    if (x != x) return static_cast<unsigned short>(bits >> 16 | 0x40);
    return static_cast<unsigned short>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
};
using __nv_bfloat16 = __hip_bfloat16;

#define AITER_LIKE_BF16_OPERATOR(op)                                                                     \
  AITER_LIKE_HD __hip_bfloat16 operator op(__hip_bfloat16 a, __hip_bfloat16 b) {                         \
    return __hip_bfloat16(static_cast<float>(a) op static_cast<float>(b));                               \
  }                                                                                                      \
  AITER_LIKE_HD __hip_bfloat16& operator op##=(__hip_bfloat16& a, __hip_bfloat16 b) { return a = a op b; }
AITER_LIKE_BF16_OPERATOR(+)
AITER_LIKE_BF16_OPERATOR(-)
AITER_LIKE_BF16_OPERATOR(*)
AITER_LIKE_BF16_OPERATOR(/)
AITER_LIKE_WITH_NUMBERS(__hip_bfloat16)
#undef AITER_LIKE_BF16_OPERATOR
AITER_LIKE_HD __hip_bfloat16 operator-(__hip_bfloat16 a) {
  return __hip_bfloat16_raw{static_cast<unsigned short>(a.data ^ 0x8000)};
}
#define AITER_LIKE_BF16_COMPARISON(op, name)                                     \
  AITER_LIKE_HD bool operator op(__hip_bfloat16 a, __hip_bfloat16 b) {           \
    return static_cast<float>(a) op static_cast<float>(b);                       \
  }                                                                              \
  AITER_LIKE_HD bool name(__hip_bfloat16 a, __hip_bfloat16 b) { return a op b; }
AITER_LIKE_BF16_COMPARISON(==, __heq)
AITER_LIKE_BF16_COMPARISON(!=, __hne)
AITER_LIKE_BF16_COMPARISON(<, __hlt)
AITER_LIKE_BF16_COMPARISON(<=, __hle)
AITER_LIKE_BF16_COMPARISON(>, __hgt)
AITER_LIKE_BF16_COMPARISON(>=, __hge)
#undef AITER_LIKE_BF16_COMPARISON

AITER_LIKE_HD __hip_bfloat16 __float2bfloat16(float x) { return x; }
AITER_LIKE_HD __hip_bfloat16 __float2bfloat16_rn(float x) { return x; }
AITER_LIKE_HD __hip_bfloat16 __double2bfloat16(double x) { return x; }
AITER_LIKE_HD float __bfloat162float(__hip_bfloat16 x) { return x; }
AITER_LIKE_HD unsigned short __bfloat16_as_ushort(__hip_bfloat16 x) { return x.data; }
AITER_LIKE_HD __hip_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __hip_bfloat16_raw{x}; }
AITER_LIKE_HD __hip_bfloat16 __hadd(__hip_bfloat16 a, __hip_bfloat16 b) { return a + b; }
AITER_LIKE_HD __hip_bfloat16 __hsub(__hip_bfloat16 a, __hip_bfloat16 b) { return a - b; }
AITER_LIKE_HD __hip_bfloat16 __hmul(__hip_bfloat16 a, __hip_bfloat16 b) { return a * b; }
AITER_LIKE_HD __hip_bfloat16 __hdiv(__hip_bfloat16 a, __hip_bfloat16 b) { return a / b; }
AITER_LIKE_HD __hip_bfloat16 __hneg(__hip_bfloat16 a) { return -a; }
AITER_LIKE_HD __hip_bfloat16 __habs(__hip_bfloat16 a) {
  return __hip_bfloat16_raw{static_cast<unsigned short>(a.data & 0x7FFF)};
}
AITER_LIKE_HD __hip_bfloat16 __hfma(__hip_bfloat16 a, __hip_bfloat16 b, __hip_bfloat16 c) {
  return __builtin_fmaf(a, b, c);
}
AITER_LIKE_HD bool __hisnan(__hip_bfloat16 a) { return (a.data & 0x7FFF) > 0x7F80; }
AITER_LIKE_HD __hip_bfloat16 __hmax(__hip_bfloat16 a, __hip_bfloat16 b) {
  return __hisnan(a) ? b : __hisnan(b) ? a : a < b ? b : a;
}
AITER_LIKE_HD __hip_bfloat16 __hmin(__hip_bfloat16 a, __hip_bfloat16 b) {
  return __hisnan(a) ? b : __hisnan(b) ? a : b < a ? b : a;
}

struct alignas(4) __hip_bfloat162 {
  __hip_bfloat16 x, y;
  __hip_bfloat162() = default;
  constexpr __host__ __device__ __hip_bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) : x(x), y(y) {}
};
using __nv_bfloat162 = __hip_bfloat162;

AITER_LIKE_HD __hip_bfloat162 make_bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) { return {x, y}; }
AITER_LIKE_HD __hip_bfloat162 __halves2bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) { return {x, y}; }
AITER_LIKE_HD __hip_bfloat162 __bfloat162bfloat162(__hip_bfloat16 x) { return {x, x}; }
AITER_LIKE_HD __hip_bfloat162 __float22bfloat162_rn(float2 x) { return {x.x, x.y}; }
AITER_LIKE_HD __hip_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
AITER_LIKE_HD float2 __bfloat1622float2(__hip_bfloat162 x) {
  return {static_cast<float>(x.x), static_cast<float>(x.y)};
}
AITER_LIKE_HD float __low2float(__hip_bfloat162 x) { return x.x; }
AITER_LIKE_HD float __high2float(__hip_bfloat162 x) { return x.y; }
#define AITER_LIKE_BF162(op, name)                                                                                \
  AITER_LIKE_HD __hip_bfloat162 operator op(__hip_bfloat162 a, __hip_bfloat162 b) { return {a.x op b.x, a.y op b.y}; } \
  AITER_LIKE_HD __hip_bfloat162 name(__hip_bfloat162 a, __hip_bfloat162 b) { return a op b; }
AITER_LIKE_BF162(+, __hadd2)
AITER_LIKE_BF162(-, __hsub2)
AITER_LIKE_BF162(*, __hmul2)
#undef AITER_LIKE_BF162
AITER_LIKE_HD __hip_bfloat162 __hfma2(__hip_bfloat162 a, __hip_bfloat162 b, __hip_bfloat162 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
#include "hip/detail/callers_lines_end.h"

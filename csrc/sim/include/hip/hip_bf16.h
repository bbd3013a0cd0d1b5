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
  __host__ __device__ __hip_bfloat16(long x) : data(rounded(static_cast<float>(x))) {}
  __host__ __device__ __hip_bfloat16(unsigned long x) : data(rounded(static_cast<float>(x))) {}
  __host__ __device__ __hip_bfloat16(long long x) : data(rounded(static_cast<float>(x))) {}
  __host__ __device__ __hip_bfloat16(unsigned long long x) : data(rounded(static_cast<float>(x))) {}
  constexpr __host__ __device__ __hip_bfloat16(__hip_bfloat16_raw x) : data(x.x) {}

  __host__ __device__ operator float() const {
    return __builtin_bit_cast(float, static_cast<unsigned>(data) << 16);
  }
  constexpr __host__ __device__ operator __hip_bfloat16_raw() const { return {data}; }

  enum truncate_t { truncate };
  __host__ __device__ __hip_bfloat16(float x, truncate_t)
      : data(static_cast<unsigned short>(__builtin_bit_cast(unsigned, x) >> 16)) {}
  __host__ __device__ static __hip_bfloat16 round_to_bfloat16(float x) { return x; }
  __host__ __device__ static __hip_bfloat16 round_to_bfloat16(float x, truncate_t) { return {x, truncate}; }

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
AITER_LIKE_HD __hip_bfloat16& operator++(__hip_bfloat16& a) { return a = __hip_bfloat16(static_cast<float>(a) + 1.f); }
AITER_LIKE_HD __hip_bfloat16& operator--(__hip_bfloat16& a) { return a = __hip_bfloat16(static_cast<float>(a) - 1.f); }
AITER_LIKE_HD __hip_bfloat16 operator++(__hip_bfloat16& a, int) {
  const __hip_bfloat16 before = a;
  ++a;
  return before;
}
AITER_LIKE_HD __hip_bfloat16 operator--(__hip_bfloat16& a, int) {
  const __hip_bfloat16 before = a;
  --a;
  return before;
}
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

struct __hip_bfloat162_raw {
  unsigned short x, y;
};

struct alignas(4) __hip_bfloat162 {
  __hip_bfloat16 x, y;
  __hip_bfloat162() = default;
  constexpr __host__ __device__ __hip_bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) : x(x), y(y) {}
  __host__ __device__ __hip_bfloat162(__hip_bfloat162_raw raw)
      : x(__hip_bfloat16_raw{raw.x}), y(__hip_bfloat16_raw{raw.y}) {}
  __host__ __device__ operator __hip_bfloat162_raw() const { return {x.data, y.data}; }
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

#define AITER_LIKE_BF16_MATH(name, name2, expression)                                                              \
  __device__ static inline __attribute__((unused)) __hip_bfloat16 name(__hip_bfloat16 a) { return expression; }    \
  __device__ static inline __attribute__((unused)) __hip_bfloat162 name2(__hip_bfloat162 a) {                      \
    return {name(a.x), name(a.y)};                                                                                 \
  }
AITER_LIKE_BF16_MATH(hexp, h2exp, expf(a))
AITER_LIKE_BF16_MATH(hexp2, h2exp2, exp2f(a))
AITER_LIKE_BF16_MATH(hexp10, h2exp10, exp10f(a))
AITER_LIKE_BF16_MATH(hlog, h2log, logf(a))
AITER_LIKE_BF16_MATH(hlog2, h2log2, log2f(a))
AITER_LIKE_BF16_MATH(hlog10, h2log10, log10f(a))
AITER_LIKE_BF16_MATH(hsin, h2sin, sinf(a))
AITER_LIKE_BF16_MATH(hcos, h2cos, cosf(a))
AITER_LIKE_BF16_MATH(hsqrt, h2sqrt, sqrtf(a))
AITER_LIKE_BF16_MATH(hrsqrt, h2rsqrt, rsqrtf(a))
AITER_LIKE_BF16_MATH(hrcp, h2rcp, 1.f / static_cast<float>(a))
AITER_LIKE_BF16_MATH(hfloor, h2floor, floorf(a))
AITER_LIKE_BF16_MATH(hceil, h2ceil, ceilf(a))
AITER_LIKE_BF16_MATH(htrunc, h2trunc, truncf(a))
AITER_LIKE_BF16_MATH(hrint, h2rint, rintf(a))
#undef AITER_LIKE_BF16_MATH

AITER_LIKE_HD short __bfloat16_as_short(__hip_bfloat16 x) { return static_cast<short>(x.data); }
AITER_LIKE_HD __hip_bfloat16 __short_as_bfloat16(short x) {
  return __ushort_as_bfloat16(static_cast<unsigned short>(x));
}
AITER_LIKE_HD int __hisinf(__hip_bfloat16 a) { return a.data == 0x7F80 ? 1 : a.data == 0xFF80 ? -1 : 0; }
AITER_LIKE_HD __hip_bfloat16 __low2bfloat16(__hip_bfloat162 a) { return a.x; }
AITER_LIKE_HD __hip_bfloat16 __high2bfloat16(__hip_bfloat162 a) { return a.y; }
AITER_LIKE_HD __hip_bfloat162 __low2bfloat162(__hip_bfloat162 a) { return {a.x, a.x}; }
AITER_LIKE_HD __hip_bfloat162 __high2bfloat162(__hip_bfloat162 a) { return {a.y, a.y}; }
AITER_LIKE_HD __hip_bfloat162 __lows2bfloat162(__hip_bfloat162 a, __hip_bfloat162 b) { return {a.x, b.x}; }
AITER_LIKE_HD __hip_bfloat162 __highs2bfloat162(__hip_bfloat162 a, __hip_bfloat162 b) { return {a.y, b.y}; }
AITER_LIKE_HD __hip_bfloat162 __h2div(__hip_bfloat162 a, __hip_bfloat162 b) { return {a.x / b.x, a.y / b.y}; }
AITER_LIKE_HD __hip_bfloat162 __hneg2(__hip_bfloat162 a) { return {-a.x, -a.y}; }
AITER_LIKE_HD __hip_bfloat162 __habs2(__hip_bfloat162 a) { return {__habs(a.x), __habs(a.y)}; }
AITER_LIKE_HD __hip_bfloat162 __hmax2(__hip_bfloat162 a, __hip_bfloat162 b) {
  return {__hmax(a.x, b.x), __hmax(a.y, b.y)};
}
AITER_LIKE_HD __hip_bfloat162 __hmin2(__hip_bfloat162 a, __hip_bfloat162 b) {
  return {__hmin(a.x, b.x), __hmin(a.y, b.y)};
}
AITER_LIKE_HD __hip_bfloat162 __hisnan2(__hip_bfloat162 a) {
  return {__hip_bfloat16(int(__hisnan(a.x))), __hip_bfloat16(int(__hisnan(a.y)))};
}

// 1 or 0 of each element, and whether it holds for both; …u holds where one of both is no number, too.
#define AITER_LIKE_BF162_COMPARISON(holds, each, both)                                      \
  AITER_LIKE_HD __hip_bfloat162 each(__hip_bfloat162 a, __hip_bfloat162 b) {                \
    return {__hip_bfloat16(int(holds(a.x, b.x))), __hip_bfloat16(int(holds(a.y, b.y)))};    \
  }                                                                                         \
  AITER_LIKE_HD bool both(__hip_bfloat162 a, __hip_bfloat162 b) { return holds(a.x, b.x) && holds(a.y, b.y); }
#define AITER_LIKE_BF16_UNORDERED(name, opposite)                                                               \
  AITER_LIKE_HD bool __h##name##u(__hip_bfloat16 a, __hip_bfloat16 b) { return !(opposite); }                   \
  AITER_LIKE_BF162_COMPARISON(__h##name, __h##name##2, __hb##name##2)                                           \
  AITER_LIKE_BF162_COMPARISON(__h##name##u, __h##name##u2, __hb##name##u2)
AITER_LIKE_BF16_UNORDERED(eq, a < b || a > b)
AITER_LIKE_BF16_UNORDERED(ne, a == b)
AITER_LIKE_BF16_UNORDERED(lt, a >= b)
AITER_LIKE_BF16_UNORDERED(le, a > b)
AITER_LIKE_BF16_UNORDERED(gt, a <= b)
AITER_LIKE_BF16_UNORDERED(ge, a < b)
#undef AITER_LIKE_BF16_UNORDERED
#undef AITER_LIKE_BF162_COMPARISON

#define HIPRT_INF_BF16 __ushort_as_bfloat16(0x7F80)
#define HIPRT_MAX_NORMAL_BF16 __ushort_as_bfloat16(0x7F7F)
#define HIPRT_MIN_DENORM_BF16 __ushort_as_bfloat16(0x0001)
#define HIPRT_NAN_BF16 __ushort_as_bfloat16(0x7FFF)
#define HIPRT_NEG_ZERO_BF16 __ushort_as_bfloat16(0x8000)
#define HIPRT_ONE_BF16 __ushort_as_bfloat16(0x3F80)
#define HIPRT_ZERO_BF16 __ushort_as_bfloat16(0x0000)

__device__ inline __hip_bfloat162 unsafeAtomicAdd(__hip_bfloat162* place, __hip_bfloat162 value) {
  using Native = short __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(__hip_bfloat162, __builtin_amdgcn_flat_atomic_fadd_v2bf16(
      reinterpret_cast<Native*>(place), __builtin_bit_cast(Native, value)));
}
#include "hip/detail/callers_lines_end.h"

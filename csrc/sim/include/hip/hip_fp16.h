// SPDX-License-Identifier: MIT
// Half precision: __half (detail/half.h), and pairs of it. Operations on pairs are those of each element.
#pragma once
#include "hip/detail/half.h"
#include "hip/detail/half_more.h"
#include "hip/detail/callers_lines_begin.h"

struct __half2_raw {
  unsigned short x, y;
};

struct alignas(4) __half2 {
  using Native = _Float16 __attribute__((ext_vector_type(2)));
  __half x, y;
  __half2() = default;
  constexpr __host__ __device__ __half2(Native both) : x(both.x), y(both.y) {}  // A number converts to both elements.
  constexpr __host__ __device__ __half2(__half x, __half y) : x(x), y(y) {}
  __host__ __device__ __half2(__half2_raw raw) : x(__half_raw{raw.x}), y(__half_raw{raw.y}) {}
  __host__ __device__ operator __half2_raw() const { return {__half_as_ushort(x), __half_as_ushort(y)}; }
  constexpr __host__ __device__ operator Native() const { return {x.data, y.data}; }
};
using half2 = __half2;

AITER_LIKE_HD __half2 make_half2(__half x, __half y) { return {x, y}; }
AITER_LIKE_HD __half2 __halves2half2(__half x, __half y) { return {x, y}; }
AITER_LIKE_HD __half2 __half2half2(__half x) { return {x, x}; }
AITER_LIKE_HD __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
AITER_LIKE_HD __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
AITER_LIKE_HD __half2 __float22half2_rn(float2 x) { return {__half(x.x), __half(x.y)}; }
AITER_LIKE_HD float2 __half22float2(__half2 x) { return {static_cast<float>(x.x), static_cast<float>(x.y)}; }
AITER_LIKE_HD float __low2float(__half2 x) { return x.x; }
AITER_LIKE_HD float __high2float(__half2 x) { return x.y; }
AITER_LIKE_HD __half __low2half(__half2 x) { return x.x; }
AITER_LIKE_HD __half __high2half(__half2 x) { return x.y; }
AITER_LIKE_HD __half2 __low2half2(__half2 x) { return {x.x, x.x}; }
AITER_LIKE_HD __half2 __high2half2(__half2 x) { return {x.y, x.y}; }
AITER_LIKE_HD __half2 __lowhigh2highlow(__half2 x) { return {x.y, x.x}; }
AITER_LIKE_HD __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
AITER_LIKE_HD __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }

#define AITER_LIKE_HALF2(op, name)                                                              \
  AITER_LIKE_HD __half2 operator op(__half2 a, __half2 b) { return {a.x op b.x, a.y op b.y}; }  \
  AITER_LIKE_HD __half2& operator op##=(__half2& a, __half2 b) { return a = a op b; }           \
  AITER_LIKE_HD __half2 name(__half2 a, __half2 b) { return a op b; }
AITER_LIKE_HALF2(+, __hadd2)
AITER_LIKE_HALF2(-, __hsub2)
AITER_LIKE_HALF2(*, __hmul2)
AITER_LIKE_HALF2(/, __h2div)
#undef AITER_LIKE_HALF2
AITER_LIKE_HD __half2 operator-(__half2 a) { return {-a.x, -a.y}; }
AITER_LIKE_HD __half2 __hneg2(__half2 a) { return -a; }
AITER_LIKE_HD __half2 __habs2(__half2 a) { return {__habs(a.x), __habs(a.y)}; }
AITER_LIKE_HD __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
AITER_LIKE_HD __half2 __hmax2(__half2 a, __half2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
AITER_LIKE_HD __half2 __hmin2(__half2 a, __half2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }

// 1 or 0 of each element, and whether it holds for both.
#define AITER_LIKE_HALF2_COMPARISON(op, each, both)                                                              \
  AITER_LIKE_HD __half2 each(__half2 a, __half2 b) { return {__half(int(a.x op b.x)), __half(int(a.y op b.y))}; } \
  AITER_LIKE_HD bool both(__half2 a, __half2 b) { return a.x op b.x && a.y op b.y; }
AITER_LIKE_HALF2_COMPARISON(==, __heq2, __hbeq2)
AITER_LIKE_HALF2_COMPARISON(!=, __hne2, __hbne2)
AITER_LIKE_HALF2_COMPARISON(<, __hlt2, __hblt2)
AITER_LIKE_HALF2_COMPARISON(<=, __hle2, __hble2)
AITER_LIKE_HALF2_COMPARISON(>, __hgt2, __hbgt2)
AITER_LIKE_HALF2_COMPARISON(>=, __hge2, __hbge2)
#undef AITER_LIKE_HALF2_COMPARISON
// The same, and true where one of both is no number.
#define AITER_LIKE_HALF2_UNORDERED(single, each, both)                                                       \
  AITER_LIKE_HD __half2 each(__half2 a, __half2 b) {                                                         \
    return {__half(int(single(a.x, b.x))), __half(int(single(a.y, b.y)))};                                   \
  }                                                                                                          \
  AITER_LIKE_HD bool both(__half2 a, __half2 b) { return single(a.x, b.x) && single(a.y, b.y); }
AITER_LIKE_HALF2_UNORDERED(__hequ, __hequ2, __hbequ2)
AITER_LIKE_HALF2_UNORDERED(__hneu, __hneu2, __hbneu2)
AITER_LIKE_HALF2_UNORDERED(__hltu, __hltu2, __hbltu2)
AITER_LIKE_HALF2_UNORDERED(__hleu, __hleu2, __hbleu2)
AITER_LIKE_HALF2_UNORDERED(__hgtu, __hgtu2, __hbgtu2)
AITER_LIKE_HALF2_UNORDERED(__hgeu, __hgeu2, __hbgeu2)
#undef AITER_LIKE_HALF2_UNORDERED
AITER_LIKE_HD __half2 __hisnan2(__half2 a) { return {__half(int(__hisnan(a.x))), __half(int(__hisnan(a.y)))}; }
AITER_LIKE_HD __half2 __hadd2_sat(__half2 a, __half2 b) { return {__hadd_sat(a.x, b.x), __hadd_sat(a.y, b.y)}; }
AITER_LIKE_HD __half2 __hsub2_sat(__half2 a, __half2 b) { return {__hsub_sat(a.x, b.x), __hsub_sat(a.y, b.y)}; }
AITER_LIKE_HD __half2 __hmul2_sat(__half2 a, __half2 b) { return {__hmul_sat(a.x, b.x), __hmul_sat(a.y, b.y)}; }
AITER_LIKE_HD __half2 __hfma2_sat(__half2 a, __half2 b, __half2 c) {
  return {__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y)};
}
AITER_LIKE_HD bool operator==(__half2 a, __half2 b) { return __hbeq2(a, b); }
AITER_LIKE_HD bool operator!=(__half2 a, __half2 b) { return !(a == b); }

#define AITER_LIKE_HALF2_MATH(name, single) \
  __device__ static inline __attribute__((unused)) __half2 name(__half2 a) { return {single(a.x), single(a.y)}; }
AITER_LIKE_HALF2_MATH(h2exp, hexp)
AITER_LIKE_HALF2_MATH(h2exp2, hexp2)
AITER_LIKE_HALF2_MATH(h2log, hlog)
AITER_LIKE_HALF2_MATH(h2log2, hlog2)
AITER_LIKE_HALF2_MATH(h2sin, hsin)
AITER_LIKE_HALF2_MATH(h2cos, hcos)
AITER_LIKE_HALF2_MATH(h2sqrt, hsqrt)
AITER_LIKE_HALF2_MATH(h2rsqrt, hrsqrt)
AITER_LIKE_HALF2_MATH(h2rcp, hrcp)
AITER_LIKE_HALF2_MATH(h2floor, hfloor)
AITER_LIKE_HALF2_MATH(h2ceil, hceil)
AITER_LIKE_HALF2_MATH(h2exp10, hexp10)
AITER_LIKE_HALF2_MATH(h2log10, hlog10)
AITER_LIKE_HALF2_MATH(h2rint, hrint)
AITER_LIKE_HALF2_MATH(h2trunc, htrunc)
#undef AITER_LIKE_HALF2_MATH

// Two lanes' worth of one 32-bit atomic; v_pk_add_f16 in memory.
__device__ inline __half2 unsafeAtomicAdd(__half2* place, __half2 value) {
  typedef _Float16 pair __attribute__((ext_vector_type(2)));
  const pair before = __builtin_amdgcn_global_atomic_fadd_v2f16(
      reinterpret_cast<__attribute__((address_space(1))) pair*>(reinterpret_cast<unsigned long long>(place)),
      pair{value.x.data, value.y.data});
  return {__half(before.x), __half(before.y)};
}
#include "hip/detail/callers_lines_end.h"

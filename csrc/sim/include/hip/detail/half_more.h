// SPDX-License-Identifier: MIT
// __half: conversions in a chosen direction, comparisons that hold where one of both is no number, and what saturates.
#pragma once
#include "hip/detail/half.h"
#include "hip/detail/callers_lines_begin.h"

namespace hip_detail {

// The neighbour of `near`, which is `x` rounded to nearest, where `near` lies on the wrong side of `x`.
AITER_LIKE_HD __half half_below(float x) {
  const __half near(x);
  if (!(static_cast<float>(near) > x)) return near;
  const unsigned short bits = __half_as_ushort(near);
  return __ushort_as_half(static_cast<unsigned short>(bits == 0 ? 0x8001 : bits & 0x8000 ? bits + 1 : bits - 1));
}
AITER_LIKE_HD __half half_above(float x) { return -half_below(-x); }

}  // namespace hip_detail

AITER_LIKE_HD __half __float2half_rd(float x) { return hip_detail::half_below(x); }
AITER_LIKE_HD __half __float2half_ru(float x) { return hip_detail::half_above(x); }
AITER_LIKE_HD __half __float2half_rz(float x) { return x < 0 ? __float2half_ru(x) : __float2half_rd(x); }

// An integer whose float is rounded lies beyond all halves, which go to 65504.
#define AITER_LIKE_INTEGER_TO_HALF(name, From)                                                        \
  AITER_LIKE_HD __half name##_rd(From x) { return __float2half_rd(static_cast<float>(x)); }           \
  AITER_LIKE_HD __half name##_ru(From x) { return __float2half_ru(static_cast<float>(x)); }           \
  AITER_LIKE_HD __half name##_rz(From x) { return __float2half_rz(static_cast<float>(x)); }
AITER_LIKE_INTEGER_TO_HALF(__int2half, int)
AITER_LIKE_INTEGER_TO_HALF(__uint2half, unsigned)
AITER_LIKE_INTEGER_TO_HALF(__short2half, short)
AITER_LIKE_INTEGER_TO_HALF(__ushort2half, unsigned short)
AITER_LIKE_INTEGER_TO_HALF(__ll2half, long long)
AITER_LIKE_INTEGER_TO_HALF(__ull2half, unsigned long long)
#undef AITER_LIKE_INTEGER_TO_HALF
AITER_LIKE_HD __half __ll2half_rn(long long x) { return __half(x); }
AITER_LIKE_HD __half __ull2half_rn(unsigned long long x) { return __half(x); }

#define AITER_LIKE_HALF_TO_INTEGER_DIRECTED(name, To)                                       \
  AITER_LIKE_HD To name##_rd(__half x) { return static_cast<To>(__builtin_floorf(x)); }     \
  AITER_LIKE_HD To name##_ru(__half x) { return static_cast<To>(__builtin_ceilf(x)); }      \
  AITER_LIKE_HD To name##_rz(__half x) { return static_cast<To>(static_cast<float>(x)); }
#define AITER_LIKE_HALF_TO_INTEGER(name, To)                                                \
  AITER_LIKE_HD To name##_rn(__half x) { return static_cast<To>(__builtin_rintf(x)); }      \
  AITER_LIKE_HALF_TO_INTEGER_DIRECTED(name, To)
AITER_LIKE_HALF_TO_INTEGER_DIRECTED(__half2uint, unsigned)
AITER_LIKE_HALF_TO_INTEGER(__half2short, short)
AITER_LIKE_HALF_TO_INTEGER(__half2ushort, unsigned short)
AITER_LIKE_HALF_TO_INTEGER(__half2ll, long long)
AITER_LIKE_HALF_TO_INTEGER(__half2ull, unsigned long long)
#undef AITER_LIKE_HALF_TO_INTEGER
#undef AITER_LIKE_HALF_TO_INTEGER_DIRECTED

AITER_LIKE_HD bool __hequ(__half a, __half b) { return !(a < b || a > b); }
AITER_LIKE_HD bool __hneu(__half a, __half b) { return !(a == b); }
AITER_LIKE_HD bool __hltu(__half a, __half b) { return !(a >= b); }
AITER_LIKE_HD bool __hleu(__half a, __half b) { return !(a > b); }
AITER_LIKE_HD bool __hgtu(__half a, __half b) { return !(a <= b); }
AITER_LIKE_HD bool __hgeu(__half a, __half b) { return !(a < b); }
AITER_LIKE_HD __half __hmax_nan(__half a, __half b) { return __hisnan(a) ? a : __hisnan(b) ? b : __hmax(a, b); }
AITER_LIKE_HD __half __hmin_nan(__half a, __half b) { return __hisnan(a) ? a : __hisnan(b) ? b : __hmin(a, b); }
AITER_LIKE_HD __half __hsub_sat(__half a, __half b) { return __hsat(a - b); }
AITER_LIKE_HD __half __hfma_sat(__half a, __half b, __half c) { return __hsat(__hfma(a, b, c)); }
#include "hip/detail/callers_lines_end.h"

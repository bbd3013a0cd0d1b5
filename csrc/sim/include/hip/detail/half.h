// SPDX-License-Identifier: MIT
// __half and __half2, for host and device: the machine's own half-precision type inside.
#pragma once
#include "hip/detail/short_floats.h"
#include "hip/detail/callers_lines_begin.h"

struct __half_raw {
  unsigned short x;
};

struct __half {
  using value_type = _Float16;
  _Float16 data;

  __half() = default;
  constexpr __host__ __device__ __half(_Float16 x) : data(x) {}
  constexpr __host__ __device__ __half(float x) : data(static_cast<_Float16>(x)) {}
  constexpr __host__ __device__ __half(double x) : data(static_cast<_Float16>(x)) {}
  constexpr __host__ __device__ __half(int x) : data(static_cast<_Float16>(x)) {}
  constexpr __host__ __device__ __half(unsigned x) : data(static_cast<_Float16>(x)) {}
  constexpr __host__ __device__ __half(long x) : data(static_cast<_Float16>(x)) {}
  constexpr __host__ __device__ __half(unsigned long x) : data(static_cast<_Float16>(x)) {}
  constexpr __host__ __device__ __half(long long x) : data(static_cast<_Float16>(x)) {}
  constexpr __host__ __device__ __half(unsigned long long x) : data(static_cast<_Float16>(x)) {}
  __host__ __device__ __half(__half_raw x) : data(__builtin_bit_cast(_Float16, x.x)) {}

  constexpr __host__ __device__ operator float() const { return static_cast<float>(data); }
  constexpr __host__ __device__ operator _Float16() const { return data; }
  __host__ __device__ operator __half_raw() const { return {__builtin_bit_cast(unsigned short, data)}; }
  constexpr explicit __host__ __device__ operator bool() const { return data != static_cast<_Float16>(0); }
  constexpr __host__ __device__ operator double() const { return static_cast<double>(data); }
  template <class T, class = typename hip_detail::If<__is_integral(T), T>::type>
  constexpr __host__ __device__ operator T() const { return static_cast<T>(data); }
};
using half = __half;

#define AITER_LIKE_HALF_OPERATOR(op)                                                                           \
  constexpr AITER_LIKE_HD __half operator op(__half a, __half b) {                                             \
    return __half(static_cast<_Float16>(a.data op b.data));                                                    \
  }                                                                                                            \
  AITER_LIKE_HD __half& operator op##=(__half& a, __half b) { return a = a op b; }
AITER_LIKE_HALF_OPERATOR(+)
AITER_LIKE_HALF_OPERATOR(-)
AITER_LIKE_HALF_OPERATOR(*)
AITER_LIKE_HALF_OPERATOR(/)
AITER_LIKE_WITH_NUMBERS(__half)
#undef AITER_LIKE_HALF_OPERATOR
AITER_LIKE_HD __half operator-(__half a) { return __half(static_cast<_Float16>(-a.data)); }
AITER_LIKE_HD __half operator+(__half a) { return a; }
AITER_LIKE_HD __half& operator++(__half& a) { return a += __half(1); }
AITER_LIKE_HD __half& operator--(__half& a) { return a -= __half(1); }
AITER_LIKE_HD __half operator++(__half& a, int) {
  const __half before = a;
  ++a;
  return before;
}
AITER_LIKE_HD __half operator--(__half& a, int) {
  const __half before = a;
  --a;
  return before;
}
#define AITER_LIKE_HALF_COMPARISON(op, name)                                                 \
  AITER_LIKE_HD bool operator op(__half a, __half b) { return a.data op b.data; }            \
  AITER_LIKE_HD bool name(__half a, __half b) { return a.data op b.data; }
AITER_LIKE_HALF_COMPARISON(==, __heq)
AITER_LIKE_HALF_COMPARISON(!=, __hne)
AITER_LIKE_HALF_COMPARISON(<, __hlt)
AITER_LIKE_HALF_COMPARISON(<=, __hle)
AITER_LIKE_HALF_COMPARISON(>, __hgt)
AITER_LIKE_HALF_COMPARISON(>=, __hge)
#undef AITER_LIKE_HALF_COMPARISON

// ---- conversions

AITER_LIKE_HD __half __float2half(float x) { return __half(x); }
AITER_LIKE_HD __half __float2half_rn(float x) { return __half(x); }
AITER_LIKE_HD __half __double2half(double x) { return __half(x); }
AITER_LIKE_HD float __half2float(__half x) { return x; }
AITER_LIKE_HD __half __int2half_rn(int x) { return __half(x); }
AITER_LIKE_HD __half __uint2half_rn(unsigned x) { return __half(x); }
AITER_LIKE_HD __half __short2half_rn(short x) { return __half(static_cast<int>(x)); }
AITER_LIKE_HD __half __ushort2half_rn(unsigned short x) { return __half(static_cast<unsigned>(x)); }
AITER_LIKE_HD int __half2int_rz(__half x) { return static_cast<int>(x.data); }
AITER_LIKE_HD int __half2int_rn(__half x) { return static_cast<int>(__builtin_rintf(x)); }
AITER_LIKE_HD int __half2int_rd(__half x) { return static_cast<int>(__builtin_floorf(x)); }
AITER_LIKE_HD int __half2int_ru(__half x) { return static_cast<int>(__builtin_ceilf(x)); }
AITER_LIKE_HD unsigned __half2uint_rn(__half x) { return static_cast<unsigned>(__builtin_rintf(x)); }
AITER_LIKE_HD short __half_as_short(__half x) { return __builtin_bit_cast(short, x.data); }
AITER_LIKE_HD unsigned short __half_as_ushort(__half x) { return __builtin_bit_cast(unsigned short, x.data); }
AITER_LIKE_HD __half __short_as_half(short x) { return __half(__builtin_bit_cast(_Float16, x)); }
AITER_LIKE_HD __half __ushort_as_half(unsigned short x) { return __half(__builtin_bit_cast(_Float16, x)); }

// ---- arithmetic by name; the _rn forms are the same, _sat clamps to 0 … 1

AITER_LIKE_HD __half __hadd(__half a, __half b) { return a + b; }
AITER_LIKE_HD __half __hsub(__half a, __half b) { return a - b; }
AITER_LIKE_HD __half __hmul(__half a, __half b) { return a * b; }
AITER_LIKE_HD __half __hdiv(__half a, __half b) { return a / b; }
AITER_LIKE_HD __half __hneg(__half a) { return -a; }
AITER_LIKE_HD __half __habs(__half a) { return __half(static_cast<_Float16>(__builtin_fabsf16(a.data))); }
AITER_LIKE_HD __half __hfma(__half a, __half b, __half c) {
  return __half(static_cast<_Float16>(__builtin_fmaf16(a.data, b.data, c.data)));
}
AITER_LIKE_HD bool __hisnan(__half a) { return a.data != a.data; }
AITER_LIKE_HD int __hisinf(__half a) {
  return __half_as_ushort(a) == 0x7C00 ? 1 : __half_as_ushort(a) == 0xFC00 ? -1 : 0;
}
AITER_LIKE_HD __half __hmax(__half a, __half b) {
  return __hisnan(a) ? b : __hisnan(b) ? a : a.data < b.data ? b : a;
}
AITER_LIKE_HD __half __hmin(__half a, __half b) {
  return __hisnan(a) ? b : __hisnan(b) ? a : b.data < a.data ? b : a;
}
AITER_LIKE_HD __half __hsat(__half a) { return __hmin(__hmax(a, __half(0)), __half(1)); }
AITER_LIKE_HD __half __hadd_sat(__half a, __half b) { return __hsat(a + b); }
AITER_LIKE_HD __half __hmul_sat(__half a, __half b) { return __hsat(a * b); }

// In single precision and rounded, which no half-precision result can tell from its own but in rare ties.
#define AITER_LIKE_HALF_MATH(name, expression)                               \
  __device__ static inline __attribute__((unused)) __half name(__half a) {   \
    return __half(static_cast<float>(expression));                           \
  }
AITER_LIKE_HALF_MATH(hexp, expf(a))
AITER_LIKE_HALF_MATH(hexp2, exp2f(a))
AITER_LIKE_HALF_MATH(hexp10, exp10f(a))
AITER_LIKE_HALF_MATH(hlog, logf(a))
AITER_LIKE_HALF_MATH(hlog2, log2f(a))
AITER_LIKE_HALF_MATH(hlog10, log10f(a))
AITER_LIKE_HALF_MATH(hsin, sinf(a))
AITER_LIKE_HALF_MATH(hcos, cosf(a))
AITER_LIKE_HALF_MATH(hsqrt, sqrtf(a))
AITER_LIKE_HALF_MATH(hrsqrt, rsqrtf(a))
AITER_LIKE_HALF_MATH(hrcp, 1.f / static_cast<float>(a))
AITER_LIKE_HALF_MATH(hfloor, floorf(a))
AITER_LIKE_HALF_MATH(hceil, ceilf(a))
AITER_LIKE_HALF_MATH(htrunc, truncf(a))
AITER_LIKE_HALF_MATH(hrint, rintf(a))
#undef AITER_LIKE_HALF_MATH

__device__ inline __half atomicAdd(__half* place, __half value) {
  return __half(__hip_atomic_fetch_add(&place->data, value.data, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT));
}
#include "hip/detail/callers_lines_end.h"

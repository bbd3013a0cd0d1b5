// SPDX-License-Identifier: MIT
// Bits and integers of device code, bits of floats, and conversions in a chosen direction.
#pragma once
#include "hip/detail/language.h"

#define AITER_LIKE_DEVICE __device__ static inline __attribute__((always_inline, unused))

AITER_LIKE_DEVICE int __popc(unsigned x) { return __builtin_popcount(x); }
AITER_LIKE_DEVICE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
AITER_LIKE_DEVICE int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
AITER_LIKE_DEVICE int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
AITER_LIKE_DEVICE int __ffs(unsigned x) { return x ? __builtin_ctz(x) + 1 : 0; }
AITER_LIKE_DEVICE int __ffs(int x) { return __ffs(static_cast<unsigned>(x)); }
AITER_LIKE_DEVICE int __ffsll(unsigned long long x) { return x ? __builtin_ctzll(x) + 1 : 0; }
AITER_LIKE_DEVICE int __ffsll(unsigned long x) { return __ffsll(static_cast<unsigned long long>(x)); }
AITER_LIKE_DEVICE int __ffsll(long long x) { return __ffsll(static_cast<unsigned long long>(x)); }
AITER_LIKE_DEVICE unsigned __brev(unsigned x) { return __builtin_bitreverse32(x); }
AITER_LIKE_DEVICE unsigned long long __brevll(unsigned long long x) { return __builtin_bitreverse64(x); }
// Bytes of {y, x} by the four selectors of the lower nibbles.
AITER_LIKE_DEVICE unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors) {
  const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(both >> (8 * (selectors >> 4 * i & 7)) & 0xFF) << 8 * i;
  }
  return result;
}
AITER_LIKE_DEVICE int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
AITER_LIKE_DEVICE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); }
AITER_LIKE_DEVICE int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
AITER_LIKE_DEVICE unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
AITER_LIKE_DEVICE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
AITER_LIKE_DEVICE long long __mul64hi(long long a, long long b) {
  return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
AITER_LIKE_DEVICE int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
AITER_LIKE_DEVICE int __rhadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1); }
AITER_LIKE_DEVICE unsigned __uhadd(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) + b) >> 1);
}
AITER_LIKE_DEVICE unsigned __urhadd(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) + b + 1) >> 1);
}
AITER_LIKE_DEVICE unsigned __sad(int a, int b, unsigned sum) {
  return (a > b ? static_cast<unsigned>(a) - static_cast<unsigned>(b)
                : static_cast<unsigned>(b) - static_cast<unsigned>(a)) + sum;
}
AITER_LIKE_DEVICE unsigned __usad(unsigned a, unsigned b, unsigned sum) { return (a > b ? a - b : b - a) + sum; }
// The upper, or lower, half of {high, low} after a shift; …c clamps the distance to 32 instead of taking it modulo 32.
AITER_LIKE_DEVICE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned distance) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) << (distance & 31) >> 32);
}
AITER_LIKE_DEVICE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned distance) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (distance & 31));
}
AITER_LIKE_DEVICE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned distance) {
  return distance >= 32 ? low : __funnelshift_l(low, high, distance);
}
AITER_LIKE_DEVICE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned distance) {
  return distance >= 32 ? high : __funnelshift_r(low, high, distance);
}
AITER_LIKE_DEVICE unsigned __bitextract_u32(unsigned x, unsigned offset, unsigned width) {
  return __builtin_amdgcn_ubfe(x, offset, width);
}
AITER_LIKE_DEVICE unsigned long long __bitextract_u64(unsigned long long x, unsigned offset, unsigned width) {
  offset &= 63, width &= 63;
  return width == 0 ? 0 : x << (64 - offset - width) >> (64 - width);
}
AITER_LIKE_DEVICE unsigned __bitinsert_u32(unsigned x, unsigned part, unsigned offset, unsigned width) {
  offset &= 31, width &= 31;
  const unsigned mask = (1u << width) - 1;
  return (x & ~(mask << offset)) | (part & mask) << offset;
}
AITER_LIKE_DEVICE unsigned long long __bitinsert_u64(unsigned long long x, unsigned long long part, unsigned offset,
                                                     unsigned width) {
  offset &= 63, width &= 63;
  const unsigned long long mask = (1ull << width) - 1;
  return (x & ~(mask << offset)) | (part & mask) << offset;
}

AITER_LIKE_DEVICE int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
AITER_LIKE_DEVICE unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
AITER_LIKE_DEVICE float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
AITER_LIKE_DEVICE float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
AITER_LIKE_DEVICE long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
AITER_LIKE_DEVICE double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
AITER_LIKE_DEVICE int __double2hiint(double x) {
  return static_cast<int>(static_cast<unsigned long long>(__double_as_longlong(x)) >> 32);
}
AITER_LIKE_DEVICE int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
AITER_LIKE_DEVICE double __hiloint2double(int high, int low) {
  const auto upper = static_cast<unsigned long long>(static_cast<unsigned>(high)) << 32;
  return __longlong_as_double(static_cast<long long>(upper | static_cast<unsigned>(low)));
}

// From a floating-point number to an integer: down, to nearest even, up, towards zero.
#define AITER_LIKE_TO_INTEGER(name, From, To, suffix)                                           \
  AITER_LIKE_DEVICE To name##_rd(From x) { return static_cast<To>(__builtin_floor##suffix(x)); } \
  AITER_LIKE_DEVICE To name##_rn(From x) { return static_cast<To>(__builtin_rint##suffix(x)); }  \
  AITER_LIKE_DEVICE To name##_ru(From x) { return static_cast<To>(__builtin_ceil##suffix(x)); }  \
  AITER_LIKE_DEVICE To name##_rz(From x) { return static_cast<To>(x); }
AITER_LIKE_TO_INTEGER(__float2int, float, int, f)
AITER_LIKE_TO_INTEGER(__float2uint, float, unsigned, f)
AITER_LIKE_TO_INTEGER(__float2ll, float, long long, f)
AITER_LIKE_TO_INTEGER(__float2ull, float, unsigned long long, f)
AITER_LIKE_TO_INTEGER(__double2int, double, int, )
AITER_LIKE_TO_INTEGER(__double2uint, double, unsigned, )
AITER_LIKE_TO_INTEGER(__double2ll, double, long long, )
AITER_LIKE_TO_INTEGER(__double2ull, double, unsigned long long, )
#undef AITER_LIKE_TO_INTEGER

// From an integer, and from double to float: to nearest even, as the hardware converts.
AITER_LIKE_DEVICE float __int2float_rn(int x) { return static_cast<float>(x); }
AITER_LIKE_DEVICE float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
AITER_LIKE_DEVICE float __ll2float_rn(long long x) { return static_cast<float>(x); }
AITER_LIKE_DEVICE float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
AITER_LIKE_DEVICE double __int2double_rn(int x) { return x; }
AITER_LIKE_DEVICE double __uint2double_rn(unsigned x) { return x; }
AITER_LIKE_DEVICE double __ll2double_rn(long long x) { return static_cast<double>(x); }
AITER_LIKE_DEVICE double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
AITER_LIKE_DEVICE float __double2float_rn(double x) { return static_cast<float>(x); }

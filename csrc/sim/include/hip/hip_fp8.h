// SPDX-License-Identifier: MIT
// Numbers of 8 bits, for host and device: e4m3 and e5m2 of gfx942 (fnuz: one NaN, no infinity, no negative zero) and
// those of OCP. To the nearest, ties to even; what is too large becomes the largest number, or with __HIP_NOSAT an
// infinity or NaN. An infinity becomes a NaN where there is none, as the hardware converts it.
#pragma once
#include "hip/hip_bf16.h"
#include "hip/hip_fp16.h"
#include "hip/detail/callers_lines_begin.h"

enum __hip_fp8_interpretation_t { __HIP_E4M3, __HIP_E5M2, __HIP_E4M3_FNUZ, __HIP_E5M2_FNUZ };
enum __hip_saturation_t { __HIP_NOSAT, __HIP_SATFINITE };
typedef unsigned char __hip_fp8_storage_t;
typedef unsigned short __hip_fp8x2_storage_t;
typedef unsigned __hip_fp8x4_storage_t;

#define HIP_FP8_TYPE_FNUZ 1
#define HIP_FP8_TYPE_OCP 0

namespace hip_detail {

struct Fp8Format {
  int mantissa_bits, bias;
  unsigned largest, infinity, nan;  // without the sign; infinity is nan where there is none
  bool fnuz;
};
AITER_LIKE_HD constexpr Fp8Format fp8_format(__hip_fp8_interpretation_t kind) {
  switch (kind) {
    case __HIP_E4M3: return {3, 7, 0x7E, 0x7F, 0x7F, false};
    case __HIP_E5M2: return {2, 15, 0x7B, 0x7C, 0x7F, false};
    case __HIP_E4M3_FNUZ: return {3, 8, 0x7F, 0x80, 0x80, true};
    default: return {2, 16, 0x7F, 0x80, 0x80, true};
  }
}

AITER_LIKE_HD __hip_fp8_storage_t fp8_of(double x, __hip_saturation_t saturation, __hip_fp8_interpretation_t kind) {
  const Fp8Format f = fp8_format(kind);
  const auto bits = __builtin_bit_cast(unsigned long long, x);
  const unsigned sign = f.fnuz ? 0 : static_cast<unsigned>(bits >> 63) << 7;
  const int exponent = static_cast<int>(bits >> 52 & 0x7FF) - 1023;
  unsigned long long mantissa = bits & 0xFFFFFFFFFFFFFull;
  if (exponent == 1024) {
    if (mantissa != 0 || f.infinity == f.nan) return static_cast<__hip_fp8_storage_t>(f.fnuz ? f.nan : sign | f.nan);
    return static_cast<__hip_fp8_storage_t>(sign | (saturation == __HIP_SATFINITE ? f.largest : f.infinity));
  }
  if (exponent == -1023) return static_cast<__hip_fp8_storage_t>(sign);  // a double below all of these
  mantissa |= 1ull << 52;
  // The bits that go: of a number below the smallest normal one, more.
  const int least = 1 - f.bias, below = exponent < least ? least - exponent : 0, dropped = 52 - f.mantissa_bits + below;
  if (dropped > 60) return static_cast<__hip_fp8_storage_t>(sign);
  const unsigned long long half = 1ull << (dropped - 1), rest = mantissa & ((1ull << dropped) - 1);
  unsigned long long kept = mantissa >> dropped;
  if (rest > half || (rest == half && kept & 1)) ++kept;
  // The leading one, where it is there, counts up the exponent's field.
  unsigned long long code = kept;
  if (!below) code += static_cast<unsigned long long>(exponent + f.bias - 1) << f.mantissa_bits;
  if (code > f.largest) {
    if (saturation == __HIP_SATFINITE) code = f.largest;
    else return static_cast<__hip_fp8_storage_t>(f.fnuz ? f.nan : sign | f.infinity);
  }
  if (f.fnuz) return static_cast<__hip_fp8_storage_t>(code == 0 ? 0 : code | (bits >> 63) << 7);
  return static_cast<__hip_fp8_storage_t>(sign | code);
}

AITER_LIKE_HD float of_fp8(__hip_fp8_storage_t x, __hip_fp8_interpretation_t kind) {
  const Fp8Format f = fp8_format(kind);
  const unsigned code = x & 0x7F, sign = static_cast<unsigned>(x >> 7) << 31;
  if (f.fnuz ? x == 0x80 : code > f.largest && code != (kind == __HIP_E5M2 ? f.infinity : 0)) {
    return __builtin_nanf("");
  }
  if (kind == __HIP_E5M2 && code == f.infinity) return __builtin_bit_cast(float, sign | 0x7F800000u);
  const unsigned exponent = code >> f.mantissa_bits, mantissa = code & ((1u << f.mantissa_bits) - 1);
  const float steps = static_cast<float>(exponent ? mantissa | 1u << f.mantissa_bits : mantissa);
  const int power = static_cast<int>(exponent ? exponent : 1) - f.bias - f.mantissa_bits;
  const float scale = __builtin_bit_cast(float, static_cast<unsigned>(power + 127) << 23);
  return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, steps * scale) | sign);
}

}  // namespace hip_detail

AITER_LIKE_HD __hip_fp8_storage_t __hip_cvt_float_to_fp8(float x, __hip_saturation_t saturation,
                                                         __hip_fp8_interpretation_t kind) {
  return hip_detail::fp8_of(x, saturation, kind);
}
AITER_LIKE_HD __hip_fp8_storage_t __hip_cvt_double_to_fp8(double x, __hip_saturation_t saturation,
                                                          __hip_fp8_interpretation_t kind) {
  return hip_detail::fp8_of(x, saturation, kind);
}
AITER_LIKE_HD __hip_fp8_storage_t __hip_cvt_halfraw_to_fp8(__half_raw x, __hip_saturation_t saturation,
                                                           __hip_fp8_interpretation_t kind) {
  return hip_detail::fp8_of(static_cast<float>(__half(x)), saturation, kind);
}
AITER_LIKE_HD __hip_fp8_storage_t __hip_cvt_bfloat16raw_to_fp8(__hip_bfloat16_raw x, __hip_saturation_t saturation,
                                                               __hip_fp8_interpretation_t kind) {
  return hip_detail::fp8_of(static_cast<float>(__hip_bfloat16(x)), saturation, kind);
}
AITER_LIKE_HD __half_raw __hip_cvt_fp8_to_halfraw(__hip_fp8_storage_t x, __hip_fp8_interpretation_t kind) {
  return __half(hip_detail::of_fp8(x, kind));
}

#define AITER_LIKE_FP8X2(name, Pair, first, second)                                                          \
  AITER_LIKE_HD __hip_fp8x2_storage_t name(Pair x, __hip_saturation_t saturation,                            \
                                           __hip_fp8_interpretation_t kind) {                                \
    return static_cast<__hip_fp8x2_storage_t>(hip_detail::fp8_of(first, saturation, kind) |                  \
                                              hip_detail::fp8_of(second, saturation, kind) << 8);            \
  }
AITER_LIKE_FP8X2(__hip_cvt_float2_to_fp8x2, float2, x.x, x.y)
AITER_LIKE_FP8X2(__hip_cvt_double2_to_fp8x2, double2, x.x, x.y)
AITER_LIKE_FP8X2(__hip_cvt_halfraw2_to_fp8x2, __half2_raw, static_cast<float>(__half(__half_raw{x.x})),
                 static_cast<float>(__half(__half_raw{x.y})))
AITER_LIKE_FP8X2(__hip_cvt_bfloat16raw2_to_fp8x2, __hip_bfloat162_raw,
                 static_cast<float>(__hip_bfloat16(__hip_bfloat16_raw{x.x})),
                 static_cast<float>(__hip_bfloat16(__hip_bfloat16_raw{x.y})))
#undef AITER_LIKE_FP8X2
AITER_LIKE_HD __half2_raw __hip_cvt_fp8x2_to_halfraw2(__hip_fp8x2_storage_t x, __hip_fp8_interpretation_t kind) {
  return {__hip_cvt_fp8_to_halfraw(static_cast<__hip_fp8_storage_t>(x & 0xFF), kind).x,
          __hip_cvt_fp8_to_halfraw(static_cast<__hip_fp8_storage_t>(x >> 8), kind).x};
}

#define AITER_LIKE_FP8(One, Two, Four, kind)                                                                    \
  struct One {                                                                                                  \
    __hip_fp8_storage_t __x;                                                                                    \
    static constexpr __hip_saturation_t __default_saturation = __HIP_SATFINITE;                                 \
    static constexpr __hip_fp8_interpretation_t __default_interpret = kind;                                     \
    One() = default;                                                                                            \
    __host__ __device__ One(float x) : __x(hip_detail::fp8_of(x, __HIP_SATFINITE, kind)) {}                     \
    __host__ __device__ One(double x) : __x(hip_detail::fp8_of(x, __HIP_SATFINITE, kind)) {}                    \
    __host__ __device__ One(__half x) : One(static_cast<float>(x)) {}                                           \
    __host__ __device__ One(__hip_bfloat16 x) : One(static_cast<float>(x)) {}                                   \
    template <class T, class = typename hip_detail::If<__is_integral(T), T>::type>                              \
    __host__ __device__ One(T x) : One(static_cast<double>(x)) {}                                               \
    __host__ __device__ operator float() const { return hip_detail::of_fp8(__x, kind); }                        \
    __host__ __device__ explicit operator double() const { return static_cast<float>(*this); }                  \
    __host__ __device__ explicit operator __half() const { return __half(static_cast<float>(*this)); }          \
    __host__ __device__ explicit operator __hip_bfloat16() const { return static_cast<float>(*this); }          \
    __host__ __device__ explicit operator bool() const { return static_cast<float>(*this) != 0; }               \
  };                                                                                                            \
  struct Two {                                                                                                  \
    __hip_fp8x2_storage_t __x;                                                                                  \
    static constexpr __hip_saturation_t __default_saturation = __HIP_SATFINITE;                                 \
    static constexpr __hip_fp8_interpretation_t __default_interpret = kind;                                     \
    Two() = default;                                                                                            \
    __host__ __device__ Two(float2 x) : __x(__hip_cvt_float2_to_fp8x2(x, __HIP_SATFINITE, kind)) {}             \
    __host__ __device__ Two(double2 x) : __x(__hip_cvt_double2_to_fp8x2(x, __HIP_SATFINITE, kind)) {}           \
    __host__ __device__ Two(__half2 x) : Two(__half22float2(x)) {}                                              \
    __host__ __device__ Two(__hip_bfloat162 x) : Two(__bfloat1622float2(x)) {}                                  \
    __host__ __device__ operator float2() const {                                                               \
      return {hip_detail::of_fp8(static_cast<__hip_fp8_storage_t>(__x & 0xFF), kind),                           \
              hip_detail::of_fp8(static_cast<__hip_fp8_storage_t>(__x >> 8), kind)};                            \
    }                                                                                                           \
    __host__ __device__ explicit operator __half2() const { return __float22half2_rn(float2(*this)); }          \
    __host__ __device__ explicit operator __hip_bfloat162() const {                                             \
      return __float22bfloat162_rn(float2(*this));                                                              \
    }                                                                                                           \
  };                                                                                                            \
  struct Four {                                                                                                 \
    __hip_fp8x4_storage_t __x;                                                                                  \
    static constexpr __hip_saturation_t __default_saturation = __HIP_SATFINITE;                                 \
    static constexpr __hip_fp8_interpretation_t __default_interpret = kind;                                     \
    Four() = default;                                                                                           \
    __host__ __device__ Four(float4 x)                                                                          \
        : __x(Two(float2{x.x, x.y}).__x | static_cast<unsigned>(Two(float2{x.z, x.w}).__x) << 16) {}            \
    __host__ __device__ Four(double4 x)                                                                         \
        : __x(Two(double2{x.x, x.y}).__x | static_cast<unsigned>(Two(double2{x.z, x.w}).__x) << 16) {}          \
    __host__ __device__ Four(__half2 low, __half2 high)                                                         \
        : __x(Two(low).__x | static_cast<unsigned>(Two(high).__x) << 16) {}                                     \
    __host__ __device__ Four(__hip_bfloat162 low, __hip_bfloat162 high)                                         \
        : __x(Two(low).__x | static_cast<unsigned>(Two(high).__x) << 16) {}                                     \
    __host__ __device__ operator float4() const {                                                               \
      float4 result;                                                                                            \
      result.x = hip_detail::of_fp8(static_cast<__hip_fp8_storage_t>(__x & 0xFF), kind);                        \
      result.y = hip_detail::of_fp8(static_cast<__hip_fp8_storage_t>(__x >> 8 & 0xFF), kind);                   \
      result.z = hip_detail::of_fp8(static_cast<__hip_fp8_storage_t>(__x >> 16 & 0xFF), kind);                  \
      result.w = hip_detail::of_fp8(static_cast<__hip_fp8_storage_t>(__x >> 24), kind);                         \
      return result;                                                                                            \
    }                                                                                                           \
  };
AITER_LIKE_FP8(__hip_fp8_e4m3, __hip_fp8x2_e4m3, __hip_fp8x4_e4m3, __HIP_E4M3)
AITER_LIKE_FP8(__hip_fp8_e5m2, __hip_fp8x2_e5m2, __hip_fp8x4_e5m2, __HIP_E5M2)
AITER_LIKE_FP8(__hip_fp8_e4m3_fnuz, __hip_fp8x2_e4m3_fnuz, __hip_fp8x4_e4m3_fnuz, __HIP_E4M3_FNUZ)
AITER_LIKE_FP8(__hip_fp8_e5m2_fnuz, __hip_fp8x2_e5m2_fnuz, __hip_fp8x4_e5m2_fnuz, __HIP_E5M2_FNUZ)
#undef AITER_LIKE_FP8
#include "hip/detail/callers_lines_end.h"

// SPDX-License-Identifier: MIT
// Element types and their conversions. bf16, f16 and fp8 are plain structs of bits: no vendor header, the same bits
// everywhere. fp8 is the target's e4m3: FNUZ on gfx942 (bias 8, largest value 240, NaN 0x80), OCP on NVIDIA (bias 7,
// largest value 448, NaN 0x7F): a tensor of the other kind is refused at the boundary (ffi.h).
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
struct fp8 {
  uint8_t bits;
};

/// Largest finite value of a type that quantisers write.
template <class T>
constexpr float kLargest = 0.f;
template <>
constexpr float kLargest<int8_t> = 127.f;  // symmetric: -128 is not used
#if defined(__HIP__)
template <>
constexpr float kLargest<fp8> = 240.f;
#else
template <>
constexpr float kLargest<fp8> = 448.f;
#endif

/// How a float becomes 16 bits: to nearest, ties to even | ties away from zero, or towards zero. The numbers are the
/// values of AITER's how_v3_bf16_cvt.
enum class Rounding : int { kNearestEven = 0, kNearestAway = 1, kTowardZero = 2 };

__device__ inline uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
__device__ inline float bits_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return bits_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ inline float to_float(f16 x) {
#if defined(__HIP__)
  return static_cast<float>(__builtin_bit_cast(_Float16, x));
#else
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
#endif
}

__device__ inline float to_float(int8_t x) { return static_cast<float>(x); }
__device__ inline float to_float(fp8 x) {
#if defined(__HIP__)
  return __builtin_amdgcn_cvt_f32_fp8(x.bits, 0);
#else
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(x.bits)));
  return to_float(f16{static_cast<uint16_t>(halves)});
#endif
}

/// Float bits whose upper half is the bf16 of `x`. A NaN whose payload carries out of the lower half is not kept:
/// callers that may meet one use from_float. NaNs of arithmetic or from a bf16 input have a zero lower half: kept.
template <Rounding kMode>
__device__ inline uint32_t round_to_upper_half(float x) {
  const uint32_t bits = float_bits(x);
  if constexpr (kMode == Rounding::kNearestEven) return bits + 0x7FFFu + ((bits >> 16) & 1u);
  if constexpr (kMode == Rounding::kNearestAway) return bits + 0x8000u;
  return bits;
}

template <class T, Rounding kMode = Rounding::kNearestEven>
struct FromFloat;

template <Rounding kMode>
struct FromFloat<float, kMode> {
  __device__ static float convert(float x) { return x; }
};

template <Rounding kMode>
struct FromFloat<bf16, kMode> {
  __device__ static bf16 convert(float x) {
#if !defined(__HIP__)
    if constexpr (kMode == Rounding::kNearestEven) {
      bf16 result;
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
      return result;
    }
#endif
    const uint32_t rounded = x != x ? 0x7FFF0000u : round_to_upper_half<kMode>(x);  // any NaN becomes 0x7FFF
    return {static_cast<uint16_t>(rounded >> 16)};
  }
};

template <>
struct FromFloat<f16, Rounding::kNearestEven> {
  __device__ static f16 convert(float x) {
#if defined(__HIP__)
    return __builtin_bit_cast(f16, static_cast<_Float16>(x));
#else
    f16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
#endif
  }
};

template <>
struct FromFloat<f16, Rounding::kTowardZero> {
  __device__ static f16 convert(float x) {
    f16 result;
#if defined(__HIP__)
    result = __builtin_bit_cast(f16, __builtin_amdgcn_cvt_pkrtz(x, 0.f)[0]);
#else
    asm("cvt.rz.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
#endif
    return result;
  }
};

/// Two fp8 values, the first in the low byte; beyond the largest value they saturate, NaN stays NaN.
__device__ inline uint16_t to_fp8_pair(float low, float high) {
#if defined(__HIP__)
  const auto clamped = [](float x) {  // the median would make a number of a NaN
    return x != x ? x : __builtin_amdgcn_fmed3f(x, -kLargest<fp8>, kLargest<fp8>);
  };
  return static_cast<uint16_t>(__builtin_amdgcn_cvt_pk_fp8_f32(clamped(low), clamped(high), 0, false));
#else
  uint16_t result;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(result) : "f"(high), "f"(low));
  return result;
#endif
}

template <>
struct FromFloat<fp8, Rounding::kNearestEven> {
  __device__ static fp8 convert(float x) { return {static_cast<uint8_t>(to_fp8_pair(x, 0.f))}; }
};

/// `x` to nearest even, for |x| < 2^22, as an integer in the last bits: those of its sum with 1.5 · 2^23. A conversion
/// instruction would take NVIDIA's GPUs as long as eight additions.
__device__ inline uint32_t whole_bits(float x) { return float_bits(x + 0x1.8p23f); }

/// To nearest even, saturated to ±127, NaN as 0, in the low byte.
__device__ inline uint32_t to_int8_byte(float x) {
  const float clamped = __builtin_fminf(__builtin_fmaxf(x, -kLargest<int8_t>), kLargest<int8_t>);
  return whole_bits(x == x ? clamped : 0.f);
}

template <>
struct FromFloat<int8_t, Rounding::kNearestEven> {
  __device__ static int8_t convert(float x) { return static_cast<int8_t>(to_int8_byte(x)); }
};

/// The low bytes of four words, the first in the lowest.
__device__ inline uint32_t low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#if defined(__HIP__)
  return __builtin_amdgcn_perm(__builtin_amdgcn_perm(d, c, 0x0C0C0400), __builtin_amdgcn_perm(b, a, 0x0C0C0400),
                               0x05040100);
#else
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
#endif
}

template <class T, Rounding kMode = Rounding::kNearestEven>
__device__ inline T from_float(float x) {
  return FromFloat<T, kMode>::convert(x);
}

/// Two 16-bit elements, the first in the low half.
template <class T>
__device__ inline uint32_t to_pair(float low, float high) {
#if defined(__HIP__)
  return from_float<T>(low).bits | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
#else
  uint32_t result;
  if constexpr (__is_same(T, bf16))
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
#endif
}

#if defined(__HIP__)
/// Like vec_from_float, for numbers only: no NaN. An element to bf16 takes 2.5 instructions, not 5; to fp8 1.5, not
/// 3.5.
template <class T, int kCount>
__device__ inline Vec<T, kCount> vec_of_numbers(const float (&x)[kCount]) {
  if constexpr (__is_same(T, bf16)) {
    constexpr uint32_t kUpperHalves = 0x07060302;
    const auto rounded = [&](int e) { return round_to_upper_half<Rounding::kNearestEven>(x[e]); };
    Vec<uint32_t, kCount / 2> words;
#pragma unroll
    for (int w = 0; w < kCount / 2; ++w)
      words[w] = __builtin_amdgcn_perm(rounded(2 * w + 1), rounded(2 * w), kUpperHalves);
    return __builtin_bit_cast(Vec<T, kCount>, words);
  } else {
    const auto clamped = [&](int e) { return __builtin_amdgcn_fmed3f(x[e], -kLargest<fp8>, kLargest<fp8>); };
    Vec<uint32_t, kCount / 4> words;
#pragma unroll
    for (int w = 0; w < kCount / 4; ++w) {
      const int low = __builtin_amdgcn_cvt_pk_fp8_f32(clamped(4 * w), clamped(4 * w + 1), 0, false);
      words[w] = __builtin_amdgcn_cvt_pk_fp8_f32(clamped(4 * w + 2), clamped(4 * w + 3), low, true);
    }
    return __builtin_bit_cast(Vec<T, kCount>, words);
  }
}
#endif

template <class T, int kCount>
__device__ inline Vec<T, kCount> vec_from_float(const float (&x)[kCount]) {
#if defined(__HIP__)
  if constexpr (kCount % 4 == 0 && (__is_same(T, bf16) || __is_same(T, fp8))) {
    bool has_nan = false;  // asked once for the wave: a branch costs it less than a choice for each element
#pragma unroll
    for (int e = 0; e < kCount; e += 2) has_nan |= __builtin_isunordered(x[e], x[e + 1]);
    if (__builtin_expect(!wave_any(has_nan), true)) return vec_of_numbers<T>(x);
  }
#endif
  Vec<T, kCount> result;
  if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {
    Vec<uint32_t, kCount / 2> words;
#pragma unroll
    for (int w = 0; w < kCount / 2; ++w) words[w] = to_pair<T>(x[2 * w], x[2 * w + 1]);
    result = __builtin_bit_cast(Vec<T, kCount>, words);
  } else if constexpr (kCount % 2 == 0 && __is_same(T, fp8)) {
    Vec<uint16_t, kCount / 2> pairs;
#pragma unroll
    for (int p = 0; p < kCount / 2; ++p) pairs[p] = to_fp8_pair(x[2 * p], x[2 * p + 1]);
    result = __builtin_bit_cast(Vec<T, kCount>, pairs);
  } else if constexpr (kCount % 4 == 0 && __is_same(T, int8_t)) {
    Vec<uint32_t, kCount / 4> words;
#pragma unroll
    for (int w = 0; w < kCount / 4; ++w)
      words[w] = low_bytes(to_int8_byte(x[4 * w]), to_int8_byte(x[4 * w + 1]), to_int8_byte(x[4 * w + 2]),
                           to_int8_byte(x[4 * w + 3]));
    result = __builtin_bit_cast(Vec<T, kCount>, words);
  } else {
#pragma unroll
    for (int e = 0; e < kCount; ++e) result[e] = from_float<T>(x[e]);
  }
  return result;
}

template <int kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using type = uint8_t;
};
template <>
struct WordOf<2> {
  using type = uint16_t;
};
template <>
struct WordOf<4> {
  using type = uint32_t;
};

/// kCount consecutive elements as they are in memory: 16-bit ones take half the registers of floats, and what a kernel
/// bound by memory can have in flight is bounded by its registers.
template <class T, int kCount>
struct Packed {
  static constexpr int kBytes = kCount * sizeof(T);
  using Word = typename WordOf<kBytes % 4 == 0 ? 4 : kBytes>::type;
  static constexpr int kPerWord = sizeof(Word) / sizeof(T), kWords = kCount / kPerWord;

  Vec<Word, kWords> words;

  /// From an address aligned to min(16, kBytes).
  __device__ void load(const T* address) { words = load_vec<kWords>(reinterpret_cast<const Word*>(address)); }

  /// Loads where `is_there`, else gives zeros; `readable` is an address of the same alignment that may be read.
  __device__ void load_if(bool is_there, const T* address, const T* readable) {
    words = load_vec_if<kWords>(is_there, reinterpret_cast<const Word*>(address),
                                reinterpret_cast<const Word*>(readable));
  }

  /// Puts in an element that was zero.
  __device__ void insert(int element, T x) {
    const Word bits = __builtin_bit_cast(typename WordOf<sizeof(T)>::type, x);
    words[element / kPerWord] |= bits << (8 * sizeof(T) * (element % kPerWord));
  }

  __device__ float at(int element) const {
    const Word word = words[element / kPerWord] >> (8 * sizeof(T) * (element % kPerWord));
    return to_float(__builtin_bit_cast(T, static_cast<typename WordOf<sizeof(T)>::type>(word)));
  }

  /// Makes the compiler convert again what is used from here on, instead of keeping the floats of earlier uses.
  __device__ void drop_floats() {
    if constexpr (sizeof(T) < 4 && sizeof(Word) == 4) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[w] = opaque(words[w]);
    }
  }
};

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Arithmetic that C++ leaves undefined or defines otherwise than the ISA. Everything here is total, branch-free where
// it matters (the lane loops vectorise it) and exact or within 1 ulp.
#pragma once
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "types.h"

namespace sim {

// ---- bits of floats

template <class T> struct FloatBits;
template <> struct FloatBits<f16> { using Word = u16; static constexpr int kMantissa = 10, kBias = 15; };
template <> struct FloatBits<float> { using Word = u32; static constexpr int kMantissa = 23, kBias = 127; };
template <> struct FloatBits<double> { using Word = u64; static constexpr int kMantissa = 52, kBias = 1023; };
template <class T> using WordOf = typename FloatBits<T>::Word;

template <class T> constexpr WordOf<T> kSign = static_cast<WordOf<T>>(WordOf<T>{1} << (8 * sizeof(T) - 1));
template <class T> constexpr WordOf<T> kQuiet = static_cast<WordOf<T>>(WordOf<T>{1} << (FloatBits<T>::kMantissa - 1));
template <class T> constexpr WordOf<T> kInfinity =
    static_cast<WordOf<T>>(WordOf<T>{2 * FloatBits<T>::kBias + 1} << FloatBits<T>::kMantissa);

template <class T> inline WordOf<T> word(T x) { return std::bit_cast<WordOf<T>>(x); }
template <class T> inline WordOf<T> magnitude(T x) { return static_cast<WordOf<T>>(word(x) & ~kSign<T>); }
template <class T> inline bool is_negative(T x) { return (word(x) & kSign<T>) != 0; }
template <class T> inline bool is_nan(T x) { return magnitude(x) > kInfinity<T>; }
template <class T> inline bool is_signaling(T x) { return is_nan(x) && !(word(x) & kQuiet<T>); }
template <class T> inline bool is_infinite(T x) { return magnitude(x) == kInfinity<T>; }
template <class T> inline bool is_finite(T x) { return magnitude(x) < kInfinity<T>; }
template <class T> inline bool is_denormal(T x) {
  return magnitude(x) != 0 && magnitude(x) < WordOf<T>{1} << FloatBits<T>::kMantissa;
}
// The biased exponent field.
template <class T> inline int exponent(T x) { return static_cast<int>(magnitude(x) >> FloatBits<T>::kMantissa); }
template <class T> inline T quiet(T x) { return std::bit_cast<T>(static_cast<WordOf<T>>(word(x) | kQuiet<T>)); }
template <class T> inline T with_sign(T x, bool negative) {
  return std::bit_cast<T>(static_cast<WordOf<T>>(magnitude(x) | (negative ? kSign<T> : 0)));
}
template <class T> inline T infinity() { return std::bit_cast<T>(kInfinity<T>); }

// ---- minimum and maximum, MODE.IEEE = 1: a signalling NaN comes out quiet, else the operand that is no NaN; -0 < +0

template <class T>
inline T minimum(T a, T b) {
  T r = a < b || (a == b && is_negative(a)) ? a : b;
  r = is_nan(b) ? a : r;
  r = is_nan(a) ? b : r;
  r = is_signaling(b) ? quiet(b) : r;
  return is_signaling(a) ? quiet(a) : r;
}

template <class T>
inline T maximum(T a, T b) {
  T r = a > b || (a == b && !is_negative(a)) ? a : b;
  r = is_nan(b) ? a : r;
  r = is_nan(a) ? b : r;
  r = is_signaling(b) ? quiet(b) : r;
  return is_signaling(a) ? quiet(a) : r;
}

template <class T>
inline T integer_median(T a, T b, T c) {
  const T low = a < b ? a : b, high = a < b ? b : a, inner = high < c ? high : c;
  return low > inner ? low : inner;
}

// The larger of the two that are not the maximum; 0 and -0 are equal when that is looked for. With a NaN it is the
// minimum of the three.
template <class T>
inline T median(T a, T b, T c) {
  const T high = maximum(maximum(a, b), c), low = minimum(minimum(a, b), c);
  const T ab = maximum(a, b), ac = maximum(a, c), bc = maximum(b, c);
  const T number = high == a ? bc : high == b ? ac : ab;
  return is_nan(a) || is_nan(b) || is_nan(c) ? low : number;
}

// ---- conversions

// Truncates and saturates; NaN gives 0.
template <class I, class F>
inline I to_integer(F x) {
  constexpr F kLow = static_cast<F>(std::numeric_limits<I>::min());
  constexpr F kEnd = static_cast<F>(std::numeric_limits<I>::max() / 2 + 1) * 2;      // one above the largest
  const I in_range = x > kLow && x < kEnd ? static_cast<I>(x) : 0;
  return x <= kLow ? std::numeric_limits<I>::min() : x >= kEnd ? std::numeric_limits<I>::max() : in_range;
}

// double → f16 with one rounding: to float towards odd, which keeps what the second rounding needs to know.
inline f16 round_to_half(double x) {
  const u64 bits = std::bit_cast<u64>(x);
  constexpr u64 kLost = (u64{1} << 29) - 1;
  const u64 odd = (bits & ~kLost) | (u64{(bits & kLost) != 0} << 29);
  return static_cast<f16>(static_cast<float>(std::bit_cast<double>(odd)));
}

inline f16 half_toward_zero(float x) {
  const f16 nearest = static_cast<f16>(x);
  const bool away = std::fabs(static_cast<float>(nearest)) > std::fabs(x);
  return std::bit_cast<f16>(static_cast<u16>(std::bit_cast<u16>(nearest) - (away ? 1 : 0)));
}

// [-1, 1] → [-32767, 32767], [0, 1] → [0, 65535], to nearest even; NaN gives 0 (to_integer).
inline float bounded(float x, float low) { return x < low ? low : x > 1.0f ? 1.0f : x; }
inline i16 to_snorm(float x) { return to_integer<i16>(std::rint(bounded(x, -1.0f) * 32767.0f)); }
inline u16 to_unorm(float x) { return to_integer<u16>(std::rint(bounded(x, 0.0f) * 65535.0f)); }

// ---- parts of a number

template <class T>
inline T fraction(T x) {
  const T f = x - std::floor(x);
  const T below_one = T(1) - std::numeric_limits<T>::epsilon() / 2;
  return f > below_one ? below_one : f;
}
inline f16 fraction(f16 x) {
  const float f = static_cast<float>(x) - std::floor(static_cast<float>(x));
  const f16 rounded = static_cast<f16>(f);
  return std::bit_cast<u16>(rounded) == 0x3c00 ? std::bit_cast<f16>(u16{0x3bff}) : rounded;
}

// x = mantissa * 2^exponent with mantissa in [0.5, 1); 0, infinity and NaN have exponent 0 and are their own mantissa.
// f64 denormals are scaled into the normal range first; no f32 or f16 is denormal as a double.
inline bool has_exponent(double x) { return magnitude(x) - 1 < kInfinity<double> - 1; }
inline int frexp_exponent(double x) {
  const bool denormal = is_denormal(x);
  const int e = exponent(denormal ? x * 0x1p54 : x) - 1022 - (denormal ? 54 : 0);
  return has_exponent(x) ? e : 0;
}
inline double frexp_mantissa(double x) {
  const u64 bits = word(is_denormal(x) ? x * 0x1p54 : x);
  const double m = std::bit_cast<double>((bits & 0x800fffffffffffffu) | u64{1022} << 52);
  const double special = is_nan(x) ? quiet(x) : x;
  return has_exponent(x) ? m : special;
}

// x * 2^e, one rounding.
inline float scale(float x, i32 e) {
  const i64 n = e < -400 ? -400 : e > 400 ? 400 : e;
  return static_cast<float>(static_cast<double>(x) * std::bit_cast<double>(static_cast<u64>(n + 1023) << 52));
}
inline f16 scale(f16 x, i16 e) {
  const i32 n = e < -60 ? -60 : e > 60 ? 60 : e;
  return static_cast<f16>(static_cast<float>(x) * std::bit_cast<float>(static_cast<u32>(n + 127) << 23));
}
inline double scale(double x, i32 e) { return std::ldexp(x, e < -5000 ? -5000 : e > 5000 ? 5000 : e); }

// Square root without errno, so that it vectorises.
template <class T>
inline T square_root(T x) { return __builtin_elementwise_sqrt(x); }

// ---- transcendental functions: in double, so that one rounding to float remains

// c0 + c1 x + c2 x^2 + ...
inline double polynomial(double, double last) { return last; }
template <class... C>
inline double polynomial(double x, double first, C... rest) {
  return __builtin_elementwise_fma(x, polynomial(x, rest...), first);
}

// 2^x for float and f16 arguments.
inline double exp2_double(double x) {
  const double bounded = x > -1000.0 ? (x < 1000.0 ? x : 1000.0) : -1000.0;
  constexpr double kRound = 0x1.8p52;                          // adding it leaves the nearest integer in the low bits
  const double shifted = bounded + kRound;
  const double f = (bounded - (shifted - kRound)) * 0x1.62e42fefa39efp-1;      // in [-ln2/2, ln2/2]
  const double p = polynomial(f, 1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040,
                              1.0 / 40320);                                    // error 0.35^9 / 9! = 2e-10
  const u64 power = (std::bit_cast<u64>(shifted) << 52) + (u64{1023} << 52);
  const double r = p * std::bit_cast<double>(power);
  return x != x ? x : r;
}

// log2 of a float or f16.
inline double log2_double(double x) {
  constexpr u64 kSqrtHalf = 0x3fe6a09e667f3bcdu;
  const u64 bits = std::bit_cast<u64>(x), offset = bits - kSqrtHalf;
  const u64 e = offset & 0xfff0000000000000u;                  // x = 2^e * m, m in [sqrt(1/2), sqrt(2))
  const double m = std::bit_cast<double>(bits - e);
  // The exponent as a double, without a 64-bit conversion: its 12 bits in the mantissa of 2^52 * 1.5.
  constexpr u64 kMagic = 0x4338000000000000u;
  const double n = std::bit_cast<double>(kMagic + (e >> 52)) - std::bit_cast<double>(kMagic);
  const double exponent = n >= 2048 ? n - 4096 : n;
  const double s = (m - 1) / (m + 1), q = s * s;
  const double series = polynomial(q, 1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13);
  const double r = exponent + s * series * 0x1.71547652b82fep+1;               // 2 / ln 2
  const double special = x == 0 ? -std::numeric_limits<double>::infinity()
                         : x > 0 ? x                           // +infinity
                                 : std::numeric_limits<double>::quiet_NaN();
  return x > 0 && x < std::numeric_limits<double>::infinity() ? r : special;
}

inline float flush(float x) { return is_denormal(x) ? with_sign(0.0f, is_negative(x)) : x; }

// Denormal arguments and results are flushed; compilers scale around it.
inline float exp2_flushed(float x) { return flush(static_cast<float>(exp2_double(x))); }
inline float log2_flushed(float x) { return static_cast<float>(log2_double(flush(x))); }

// sin and cos of x turns. Whole and quarter turns are split off exactly, so multiples of 1/4 give exact results.
inline double sin_turns(double x, int quarter_offset) {
  const double turns = x - std::rint(x);
  const double quarters = std::rint(turns * 4);
  const double angle = (turns - quarters / 4) * 6.283185307179586;             // in [-pi/4, pi/4]
  const int quadrant = (static_cast<int>(quarters) + quarter_offset) & 3;
  const double q = angle * angle;                                              // Taylor: error 0.79^15 / 15! = 2e-14
  const double sine = angle * polynomial(q, 1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800,
                                         1.0 / 6227020800);
  const double cosine = polynomial(q, 1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800,
                                   1.0 / 479001600, -1.0 / 87178291200);
  const double value = quadrant & 1 ? cosine : sine;
  return quadrant & 2 ? -value : value;
}
// Beyond 256 turns the hardware gives sin = 0 and cos = 1; infinity gives NaN.
inline double turns_or(double x, double beyond, int quarter_offset) {
  const bool inside = std::fabs(x) <= 256;
  const double outside = is_finite(x) ? beyond : std::numeric_limits<double>::quiet_NaN();
  const double value = sin_turns(inside ? x : 0, quarter_offset);
  return inside ? value : outside;
}
inline double hardware_sin(double x) {
  const double value = turns_or(x, 0, 0);
  return x == 0 ? x : value;
}
inline double hardware_cos(double x) { return turns_or(x, 1, 1); }

// ---- integers

inline i32 sign_extend(u32 x, int bits) { return static_cast<i32>(x << (32 - bits)) >> (32 - bits); }
inline i64 low24_signed(i64 x) { return sign_extend(static_cast<u32>(x), 24); }
inline i64 low24(i64 x) { return x & 0xffffff; }

inline u32 reverse_bits(u32 x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  x = (x >> 8 & 0x00ff00ffu) | (x & 0x00ff00ffu) << 8;
  return x >> 16 | x << 16;
}
inline u64 reverse_bits(u64 x) {
  return u64{reverse_bits(static_cast<u32>(x))} << 32 | reverse_bits(static_cast<u32>(x >> 32));
}

// Position of the first one from the top or the bottom, -1 when there is none.
template <class U> inline i32 find_high(U x) { return x ? std::countl_zero(x) : -1; }
template <class U> inline i32 find_low(U x) { return x ? std::countr_zero(x) : -1; }
// Leading bits equal to the sign, -1 for 0 and -1.
template <class U> inline i32 find_sign(U x) {
  return find_high(static_cast<std::make_signed_t<U>>(x) < 0 ? static_cast<U>(~x) : x);
}

inline u32 bit_field(u32 x, u32 offset, u32 width) {
  const u32 shifted = x >> (offset & 31);
  return shifted & ((1u << (width & 31)) - 1);
}
inline i32 signed_bit_field(u32 x, u32 offset, u32 width) {
  offset &= 31, width &= 31;
  const i32 shifted = static_cast<i32>(x) >> offset;
  const u32 spare = width && offset + width < 32 ? 32 - width : 0;
  const i32 field = static_cast<i32>(static_cast<u32>(shifted) << spare) >> spare;
  return width ? field : 0;
}

}  // namespace sim

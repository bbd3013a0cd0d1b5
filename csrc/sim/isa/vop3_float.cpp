// SPDX-License-Identifier: MIT
// VOP3 on floats: fused multiply-add, min/max/med of three, f64 arithmetic, the division helpers, packing conversions.
#include "isa/float8.h"
#include "isa/valu.h"

namespace sim {
namespace {

f16 half(float x) { return static_cast<f16>(x); }
float wide(f16 x) { return static_cast<float>(x); }

f16 fma_half(f16 a, f16 b, f16 c) {
  return round_to_half(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
}
f16 mad_half(f16 a, f16 b, f16 c) { return half(wide(half(wide(a) * wide(b))) + wide(c)); }

u32 pack(u16 low, u16 high) { return low | u32{high} << 16; }

// Zero times anything is zero.
float multiply_legacy(float a, float b) { return a == 0 || b == 0 ? 0.0f : a * b; }

// ---- division. v_div_scale brings numerator and denominator into a range where v_rcp and the FMA chain neither
// overflow nor lose bits, v_div_fmas undoes it where the flag is set, v_div_fixup puts the special cases right.

template <class T>
struct Division {
  static constexpr int kStep = 64, kSpread = 96, kTiny = 23, kUnderflow = 150;
};
template <>
struct Division<double> {
  static constexpr int kStep = 128, kSpread = 768, kTiny = 53, kUnderflow = 1075;
};

// x: the value to scale, one of denominator and numerator.
template <class T>
WithBit<T> div_scale(T x, T denominator, T numerator) {
  constexpr int kStep = Division<T>::kStep;
  if (numerator == 0 || denominator == 0) return {std::numeric_limits<T>::quiet_NaN(), false};
  const bool for_denominator = word(x) == word(denominator);
  if (exponent(numerator) - exponent(denominator) >= Division<T>::kSpread) {
    return {for_denominator ? scale(x, kStep) : x, true};      // the quotient is near the largest number
  }
  if (is_denormal(denominator)) return {scale(x, kStep), false};
  const bool small_reciprocal = is_denormal(T(1) / denominator), small_quotient = is_denormal(numerator / denominator);
  if (small_reciprocal && small_quotient) return {for_denominator ? scale(x, -kStep) : x, true};
  if (small_reciprocal) return {scale(x, -kStep), false};
  if (small_quotient) return {word(x) == word(numerator) ? scale(x, kStep) : x, true};
  if (exponent(numerator) <= Division<T>::kTiny) return {scale(x, kStep), false};
  return {x, false};
}

// (a * b + c) * 2^e with one rounding, also of a denormal result: the sum is kept as nearest + tail, and the tail
// decides what looks like a tie to the nearest sum alone.
template <class T>
T fma_scaled(T a, T b, T c, int e) {
  const T product = a * b, product_tail = __builtin_elementwise_fma(a, b, -product);
  const T sum = product + c, part = sum - product;
  const T tail = (product - (sum - part)) + (c - part) + product_tail;
  const T r = scale(sum, e);
  if (exponent(r) > 1 || !is_finite(tail)) return scale(__builtin_elementwise_fma(a, b, c), e);
  const T lost = sum - scale(r, -e), half_unit = scale(std::numeric_limits<T>::denorm_min(), -e) / 2;
  const bool tie_broken = std::fabs(lost) == half_unit && tail != 0 && is_negative(tail) == is_negative(lost);
  return tie_broken ? r + with_sign(std::numeric_limits<T>::denorm_min(), is_negative(lost)) : r;
}

// A scaled quotient above 1 comes from a scaled denominator, one below 1 from a scaled numerator.
template <class T>
T div_fmas(T a, T b, T c, bool scaled) {
  if (!scaled) return __builtin_elementwise_fma(a, b, c);
  return fma_scaled(a, b, c, exponent(c) > FloatBits<T>::kBias ? Division<T>::kStep : -Division<T>::kStep);
}

template <class T>
T div_fixup(T quotient, T denominator, T numerator) {
  const bool negative = is_negative(denominator) != is_negative(numerator);
  if (is_nan(numerator)) return quiet(numerator);
  if (is_nan(denominator)) return quiet(denominator);
  const bool zero_by_zero = denominator == 0 && numerator == 0;
  if (zero_by_zero || (is_infinite(denominator) && is_infinite(numerator))) {
    return with_sign(quiet(infinity<T>()), true);
  }
  if (denominator == 0 || is_infinite(numerator)) return with_sign(infinity<T>(), negative);
  if (is_infinite(denominator) || numerator == 0) return with_sign(T(0), negative);
  if constexpr (sizeof(T) > 2) {
    if (exponent(numerator) - exponent(denominator) < -Division<T>::kUnderflow) return with_sign(T(0), negative);
  }
  // A quotient that overflows on the way ends as infinity - infinity.
  return with_sign(is_nan(quotient) ? infinity<T>() : quotient, negative);
}

// ---- cube maps: the face is named by the axis of largest magnitude, z before y before x, and its sign

struct Face {
  int axis;                                    // 0 x, 1 y, 2 z
  bool negative;
};
Face cube_face(float x, float y, float z) {
  const float ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z);
  const int axis = az >= ax && az >= ay ? 2 : ay >= ax ? 1 : 0;
  const float along = axis == 2 ? z : axis == 1 ? y : x;
  return {axis, along < 0};
}
float cube_id(float x, float y, float z) {
  const Face face = cube_face(x, y, z);
  return static_cast<float>(2 * face.axis + face.negative);
}
float cube_s(float x, float y, float z) {
  const Face face = cube_face(x, y, z);
  const float s = face.axis == 0 ? -z : x;
  return face.axis != 1 && face.negative ? -s : s;
}
float cube_t(float x, float y, float z) {
  const Face face = cube_face(x, y, z);
  const float t = face.axis == 1 ? z : -y;
  return face.axis == 1 && face.negative ? -t : t;
}
float cube_major(float x, float y, float z) {
  const Face face = cube_face(x, y, z);
  return 2 * (face.axis == 2 ? z : face.axis == 1 ? y : x);
}

// ---- argument reduction of sin and cos

// The first 1201 bits of 2/pi after the binary point, from the top.
constexpr u32 kTwoOverPi[38] = {
    0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561,
    0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e, 0xe88235f5, 0x2ebb4484,
    0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b, 0x1ff897ff, 0xde05980f,
    0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d, 0x7527bac7, 0xebe5f17b,
    0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08, 0x56033046, 0xfc7b0000,
};

u64 two_over_pi_bits(u32 first) {              // 53 of them
  u64 bits = 0;
  for (u32 at = first; at < first + 53; ++at) {
    const u32 bit = at < 1201 ? kTwoOverPi[at / 32] >> (31 - at % 32) & 1 : 0;
    bits = bits << 1 | bit;
  }
  return bits;
}

// Segment `segment` of 53 bits of 2/pi for an argument as large as x; arguments from 2^945 on get it 2^128 larger.
double trig_preop(double x, u32 segment) {
  const int e = exponent(x);
  const u32 shift = 53 * (segment & 31) + static_cast<u32>(e > 1077 ? e - 1077 : 0);
  const int scale = -53 - static_cast<int>(shift) + (e >= 1968 ? 128 : 0);
  return std::ldexp(static_cast<double>(two_over_pi_bits(shift)), scale);
}

// The byte nearest to x, to even; NaN gives 0.
u32 insert_byte(float x, u32 at, u32 old) {
  const u32 byte = to_integer<u32>(std::rint(x > 255.0f ? 255.0f : x)), shift = 8 * (at & 3);
  return (old & ~(0xffu << shift)) | byte << shift;
}

// ---- 8-bit floats: the half or byte of the destination that op_sel names is written, the rest stays

void refuse_other_modifiers(const Inst& i) {
  if (i.mod.clamp || i.mod.omod || i.mod.op_sel & 3) {
    throw Fault("clamp, omod and source op_sel on a conversion to 8-bit floats are not implemented");
  }
}

void read_floats(const Wave& w, const Operand& o, Lanes<float>& out) {
  read_lanes(w, o, out);
  for (int lane = 0; lane < kLanes; ++lane) {
    const float x = o.abs ? std::fabs(out[lane]) : out[lane];
    out[lane] = o.neg ? -x : x;
  }
}

// Puts results as wide as `field` at `shift` of the destination's active lanes.
void insert_field(Wave& w, const Inst& i, Lanes<u32>& values, u32 field, int shift) {
  u32* row = w.v[i.dst[0].reg];
  for (int lane = 0; lane < kLanes; ++lane) {
    values[lane] = (row[lane] & ~(field << shift)) | values[lane] << shift;
  }
  write_row(row, values.at, w.exec());
}

template <class F8>
void convert_pair(Wave& w, const Inst& i) {
  refuse_other_modifiers(i);
  const bool saturate = w.mode.fp16_ovfl();
  Lanes<float> low, high;
  Lanes<u32> values;
  read_floats(w, i.src[0], low);
  read_floats(w, i.src[1], high);
  for (int lane = 0; lane < kLanes; ++lane) {
    values[lane] = F8::encode(low[lane], saturate) | u32{F8::encode(high[lane], saturate)} << 8;
  }
  insert_field(w, i, values, 0xffff, i.mod.op_sel >> 2 & 1 ? 16 : 0);
}

// Assumes that the hardware adds the highest bits of the second source.
template <class F8>
void convert_stochastic(Wave& w, const Inst& i) {
  refuse_other_modifiers(i);
  const bool saturate = w.mode.fp16_ovfl();
  Lanes<float> x;
  Lanes<u32> random, values;
  read_floats(w, i.src[0], x);
  read_lanes(w, i.src[1], random);
  for (int lane = 0; lane < kLanes; ++lane) values[lane] = F8::encode(x[lane], saturate, random[lane]);
  insert_field(w, i, values, 0xff, 8 * (i.mod.op_sel >> 2 & 3));
}

constexpr Spec float8_spec(Handler handler, Type second) {
  Spec s;
  s.cls = Class::valu;
  s.num_dst = 1;
  s.dst = {Type::b32};
  s.src = {Type::f32, second};
  s.flags = kReadsDst;
  s.plain = s.full = handler;
  return s;
}

const Op kOps[] = {
    {"v_fma_f32", valu([](float a, float b, float c) { return __builtin_elementwise_fma(a, b, c); })},
    {"v_mul_legacy_f32", valu([](float a, float b) { return multiply_legacy(a, b); })},
    {"v_min3_f32", valu([](float a, float b, float c) { return minimum(minimum(a, b), c); })},
    {"v_max3_f32", valu([](float a, float b, float c) { return maximum(maximum(a, b), c); })},
    {"v_med3_f32", valu([](float a, float b, float c) { return median(a, b, c); })},
    {"v_ldexp_f32", valu([](float a, i32 e) { return scale(a, e); })},

    {"v_fma_f64", valu([](double a, double b, double c) { return __builtin_elementwise_fma(a, b, c); })},
    {"v_add_f64", valu([](double a, double b) { return a + b; })},
    {"v_mul_f64", valu([](double a, double b) { return a * b; })},
    {"v_min_f64", valu([](double a, double b) { return minimum(a, b); })},
    {"v_max_f64", valu([](double a, double b) { return maximum(a, b); })},
    {"v_ldexp_f64", valu([](double a, i32 e) { return scale(a, e); })},

    {"v_fma_f16", keep_high([](f16 a, f16 b, f16 c) { return fma_half(a, b, c); })},
    {"v_mad_f16", keep_high([](f16 a, f16 b, f16 c) { return mad_half(a, b, c); })},
    {"v_fma_legacy_f16", valu([](f16 a, f16 b, f16 c) { return fma_half(a, b, c); })},
    {"v_mad_legacy_f16", valu([](f16 a, f16 b, f16 c) { return mad_half(a, b, c); })},
    {"v_min3_f16", valu([](f16 a, f16 b, f16 c) { return minimum(minimum(a, b), c); })},
    {"v_max3_f16", valu([](f16 a, f16 b, f16 c) { return maximum(maximum(a, b), c); })},
    {"v_med3_f16", valu([](f16 a, f16 b, f16 c) { return median(a, b, c); })},

    {"v_div_scale_f32", valu([](float x, float d, float n) { return div_scale(x, d, n); })},
    {"v_div_scale_f64", valu([](double x, double d, double n) { return div_scale(x, d, n); })},
    {"v_div_fmas_f32", with_vcc([](float a, float b, float c, bool scaled) { return div_fmas(a, b, c, scaled); })},
    {"v_div_fmas_f64", with_vcc([](double a, double b, double c, bool scaled) { return div_fmas(a, b, c, scaled); })},
    {"v_div_fixup_f32", valu([](float q, float d, float n) { return div_fixup(q, d, n); })},
    {"v_div_fixup_f64", valu([](double q, double d, double n) { return div_fixup(q, d, n); })},
    {"v_div_fixup_f16", keep_high([](f16 q, f16 d, f16 n) { return div_fixup(q, d, n); })},
    {"v_div_fixup_legacy_f16", valu([](f16 q, f16 d, f16 n) { return div_fixup(q, d, n); })},

    {"v_cubeid_f32", valu([](float x, float y, float z) { return cube_id(x, y, z); })},
    {"v_cubesc_f32", valu([](float x, float y, float z) { return cube_s(x, y, z); })},
    {"v_cubetc_f32", valu([](float x, float y, float z) { return cube_t(x, y, z); })},
    {"v_cubema_f32", valu([](float x, float y, float z) { return cube_major(x, y, z); })},
    {"v_trig_preop_f64", trans([](double x, u32 segment) { return trig_preop(x, segment); })},
    {"v_cvt_pk_u8_f32", valu([](float x, u32 at, u32 old) { return insert_byte(x, at, old); })},
    {"v_cvt_pkaccum_u8_f32", accumulate([](float x, u32 at, u32 old) { return insert_byte(x, at, old); })},
    {"v_cvt_pkrtz_f16_f32", valu([](float a, float b) {
       return pack(word(half_toward_zero(a)), word(half_toward_zero(b)));
     })},
    {"v_cvt_pknorm_i16_f32", valu([](float a, float b) {
       return pack(static_cast<u16>(to_snorm(a)), static_cast<u16>(to_snorm(b)));
     })},
    {"v_cvt_pknorm_u16_f32", valu([](float a, float b) { return pack(to_unorm(a), to_unorm(b)); })},
    {"v_cvt_pknorm_i16_f16", valu([](f16 a, f16 b) {
       return pack(static_cast<u16>(to_snorm(wide(a))), static_cast<u16>(to_snorm(wide(b))));
     })},
    {"v_cvt_pknorm_u16_f16", valu([](f16 a, f16 b) { return pack(to_unorm(wide(a)), to_unorm(wide(b))); })},
    {"v_pack_b32_f16", valu([](f16 a, f16 b) { return pack(word(a), word(b)); })},

    {"v_cvt_pk_fp8_f32", float8_spec(convert_pair<Fp8>, Type::f32)},
    {"v_cvt_pk_bf8_f32", float8_spec(convert_pair<Bf8>, Type::f32)},
    {"v_cvt_sr_fp8_f32", float8_spec(convert_stochastic<Fp8>, Type::b32)},
    {"v_cvt_sr_bf8_f32", float8_spec(convert_stochastic<Bf8>, Type::b32)},
};

}  // namespace

std::span<const Op> vop3_float_ops() { return kOps; }

}  // namespace sim

// SPDX-License-Identifier: MIT
// VOP1: one source. Moves, conversions, rounding, transcendental functions.
#include "isa/float8.h"
#include "isa/valu.h"

namespace sim {
namespace {

// Through 64 signed bits, unseen by the compiler: it converts 32 unsigned ones by a difference, which is -0 for 0 where
// rounding goes down.
template <class F>
F from_unsigned(u32 x) {
  i64 wide = x;
  asm("" : "+r"(wide));
  return static_cast<F>(wide);
}

f16 half(float x) { return static_cast<f16>(x); }
f16 half_from_double(double x) { return round_to_half(x); }

// Lane of the first active thread; lane 0 when there is none.
void read_first_lane(Wave& w, const Inst& i) {
  const Operand& source = i.src[0];
  const u64 exec = w.exec();
  const int lane = exec ? std::countr_zero(exec) : 0;
  const u32 x = source.kind == Kind::vgpr ? w.v[source.reg][lane] : static_cast<u32>(scalar_source(w, source));
  write_scalar(w, i.dst[0], x);
}

void swap_rows(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  u32 *a = w.v[i.dst[0].reg], *b = w.v[i.dst[1].reg];
  for (int lane = 0; lane < kLanes; ++lane) {
    if (active(exec, lane)) std::swap(a[lane], b[lane]);
  }
}

void nothing(Wave&, const Inst&) {}

constexpr Spec read_first_lane_spec() {
  Spec s;
  s.cls = Class::valu;
  s.num_dst = 1;
  s.dst = {Type::b32};
  s.src = {Type::b32};
  s.flags = kReadsExec;
  s.plain = read_first_lane;
  return s;
}

constexpr Spec swap_spec() {
  Spec s;
  s.cls = Class::valu;
  s.num_dst = 2;
  s.dst = {Type::b32, Type::b32};
  s.flags = kReadsDst;
  s.plain = swap_rows;
  return s;
}

constexpr Spec no_operation() {
  Spec s;
  s.cls = Class::valu;
  s.plain = nothing;
  return s;
}

// Two 8-bit floats of the low half → two f32 in a register pair.
template <class F8>
u64 decode_pair(u32 x) {
  const u64 low = word(F8::decode(static_cast<u8>(x))), high = word(F8::decode(static_cast<u8>(x >> 8)));
  return high << 32 | low;
}

// A copy of known size; the lane loop would become a call of memmove.
void move_row(Wave& w, const Inst& i) {
  Lanes<u32> spare;
  write_row(w.v[i.dst[0].reg], source_row(w, i.src[0], spare), w.exec());
}

constexpr Spec move_spec() {
  Spec s = valu([](u32 a) { return a; });
  s.plain = move_row;
  return s;
}

const Op kOps[] = {
    {"v_nop", no_operation()},
    {"v_clrexcp", no_operation()},
    {"v_mov_b32", move_spec()},
    {"v_mov_b64", valu([](u64 a) { return a; })},
    {"v_swap_b32", swap_spec()},
    {"v_readfirstlane_b32", read_first_lane_spec()},

    {"v_not_b32", valu([](u32 a) { return ~a; })},
    {"v_bfrev_b32", valu([](u32 a) { return reverse_bits(a); })},
    {"v_ffbh_u32", valu([](u32 a) { return find_high(a); })},
    {"v_ffbl_b32", valu([](u32 a) { return find_low(a); })},
    {"v_ffbh_i32", valu([](u32 a) { return find_sign(a); })},
    {"v_sat_pk_u8_i16", valu([](u32 a) {
       const i32 low = static_cast<i16>(a), high = static_cast<i32>(a) >> 16;
       return static_cast<u16>(std::clamp(low, 0, 255) | std::clamp(high, 0, 255) << 8);
     })},

    {"v_cvt_f32_i32", valu([](i32 a) { return static_cast<float>(a); })},
    {"v_cvt_f32_u32", valu([](u32 a) { return from_unsigned<float>(a); })},
    {"v_cvt_f64_i32", valu([](i32 a) { return static_cast<double>(a); })},
    {"v_cvt_f64_u32", valu([](u32 a) { return from_unsigned<double>(a); })},
    {"v_cvt_f64_f32", valu([](float a) { return static_cast<double>(a); })},
    {"v_cvt_f32_f64", valu([](double a) { return static_cast<float>(a); })},
    {"v_cvt_f32_f16", valu([](f16 a) { return static_cast<float>(a); })},
    {"v_cvt_f16_f32", valu([](float a) { return half(a); })},
    {"v_cvt_f16_u16", valu([](u16 a) { return half(static_cast<float>(a)); })},
    {"v_cvt_f16_i16", valu([](i16 a) { return half(static_cast<float>(a)); })},
    {"v_cvt_u16_f16", valu([](f16 a) { return to_integer<u16>(static_cast<float>(a)); })},
    {"v_cvt_i16_f16", valu([](f16 a) { return to_integer<i16>(static_cast<float>(a)); })},
    {"v_cvt_u32_f32", valu([](float a) { return to_integer<u32>(a); })},
    {"v_cvt_i32_f32", valu([](float a) { return to_integer<i32>(a); })},
    {"v_cvt_u32_f64", valu([](double a) { return to_integer<u32>(a); })},
    {"v_cvt_i32_f64", valu([](double a) { return to_integer<i32>(a); })},
    {"v_cvt_rpi_i32_f32", valu([](float a) { return to_integer<i32>(std::floor(static_cast<double>(a) + 0.5)); })},
    {"v_cvt_flr_i32_f32", valu([](float a) { return to_integer<i32>(std::floor(a)); })},
    {"v_cvt_off_f32_i4", valu([](u32 a) { return static_cast<float>(sign_extend(a, 4)) / 16.0f; })},
    {"v_cvt_f32_ubyte0", valu([](u32 a) { return static_cast<float>(a & 0xff); })},
    {"v_cvt_f32_ubyte1", valu([](u32 a) { return static_cast<float>(a >> 8 & 0xff); })},
    {"v_cvt_f32_ubyte2", valu([](u32 a) { return static_cast<float>(a >> 16 & 0xff); })},
    {"v_cvt_f32_ubyte3", valu([](u32 a) { return static_cast<float>(a >> 24); })},
    {"v_cvt_norm_i16_f16", valu([](f16 a) { return to_snorm(static_cast<float>(a)); })},
    {"v_cvt_norm_u16_f16", valu([](f16 a) { return to_unorm(static_cast<float>(a)); })},
    {"v_cvt_f32_fp8", valu([](u32 a) { return Fp8::decode(static_cast<u8>(a)); })},
    {"v_cvt_f32_bf8", valu([](u32 a) { return Bf8::decode(static_cast<u8>(a)); })},
    {"v_cvt_pk_f32_fp8", valu([](u32 a) { return decode_pair<Fp8>(a); })},
    {"v_cvt_pk_f32_bf8", valu([](u32 a) { return decode_pair<Bf8>(a); })},

    {"v_trunc_f32", valu([](float a) { return std::trunc(a); })},
    {"v_ceil_f32", valu([](float a) { return std::ceil(a); })},
    {"v_floor_f32", valu([](float a) { return std::floor(a); })},
    {"v_rndne_f32", valu([](float a) { return __builtin_elementwise_roundeven(a); })},
    {"v_fract_f32", valu([](float a) { return fraction(a); })},
    {"v_frexp_exp_i32_f32", valu([](float a) { return frexp_exponent(a); })},
    {"v_frexp_mant_f32", valu([](float a) { return static_cast<float>(frexp_mantissa(a)); })},
    {"v_trunc_f64", valu([](double a) { return std::trunc(a); })},
    {"v_ceil_f64", valu([](double a) { return std::ceil(a); })},
    {"v_floor_f64", valu([](double a) { return std::floor(a); })},
    {"v_rndne_f64", valu([](double a) { return __builtin_elementwise_roundeven(a); })},
    {"v_fract_f64", valu([](double a) { return fraction(a); })},
    {"v_frexp_exp_i32_f64", valu([](double a) { return frexp_exponent(a); })},
    {"v_frexp_mant_f64", valu([](double a) { return frexp_mantissa(a); })},
    {"v_trunc_f16", valu([](f16 a) { return half(std::trunc(static_cast<float>(a))); })},
    {"v_ceil_f16", valu([](f16 a) { return half(std::ceil(static_cast<float>(a))); })},
    {"v_floor_f16", valu([](f16 a) { return half(std::floor(static_cast<float>(a))); })},
    {"v_rndne_f16", valu([](f16 a) { return half(__builtin_elementwise_roundeven(static_cast<float>(a))); })},
    {"v_fract_f16", valu([](f16 a) { return fraction(a); })},
    {"v_frexp_exp_i16_f16", valu([](f16 a) { return static_cast<i16>(frexp_exponent(static_cast<double>(a))); })},
    {"v_frexp_mant_f16", valu([](f16 a) { return half(static_cast<float>(frexp_mantissa(static_cast<double>(a)))); })},

    {"v_exp_f32", trans([](float a) { return exp2_flushed(a); })},
    {"v_log_f32", trans([](float a) { return log2_flushed(a); })},
    {"v_exp_legacy_f32", trans([](float a) { return exp2_flushed(a); })},
    {"v_log_legacy_f32", trans([](float a) { return log2_flushed(a); })},
    {"v_rcp_f32", trans([](float a) { return 1.0f / a; })},
    {"v_rcp_iflag_f32", trans([](float a) { return 1.0f / a; })},
    {"v_rsq_f32", trans([](float a) { return static_cast<float>(1.0 / square_root(static_cast<double>(a))); })},
    {"v_sqrt_f32", trans([](float a) { return square_root(a); })},
    {"v_sin_f32", trans([](float a) { return static_cast<float>(hardware_sin(a)); })},
    {"v_cos_f32", trans([](float a) { return static_cast<float>(hardware_cos(a)); })},
    {"v_rcp_f64", trans([](double a) { return 1.0 / a; })},
    {"v_rsq_f64", trans([](double a) { return 1.0 / square_root(a); })},
    {"v_sqrt_f64", trans([](double a) { return square_root(a); })},
    {"v_exp_f16", trans([](f16 a) { return half_from_double(exp2_double(static_cast<double>(a))); })},
    {"v_log_f16", trans([](f16 a) { return half_from_double(log2_double(static_cast<double>(a))); })},
    {"v_rcp_f16", trans([](f16 a) { return half(1.0f / static_cast<float>(a)); })},
    {"v_rsq_f16", trans([](f16 a) { return half_from_double(1.0 / square_root(static_cast<double>(a))); })},
    {"v_sqrt_f16", trans([](f16 a) { return half(square_root(static_cast<float>(a))); })},
    {"v_sin_f16", trans([](f16 a) { return half_from_double(hardware_sin(static_cast<double>(a))); })},
    {"v_cos_f16", trans([](f16 a) { return half_from_double(hardware_cos(static_cast<double>(a))); })},
};

}  // namespace

std::span<const Op> vop1_ops() { return kOps; }

}  // namespace sim

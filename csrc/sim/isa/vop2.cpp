// SPDX-License-Identifier: MIT
// VOP2: two sources. The e64 forms with modifiers use the same rows.
#include "isa/math.h"
#include "isa/valu.h"

namespace sim {
namespace {

f16 half(float x) { return static_cast<f16>(x); }
float wide(f16 x) { return static_cast<float>(x); }

// a * b + c rounded once: the product of two f16 is exact in double, and so is every sum that is not far from c.
f16 fma_half(f16 a, f16 b, f16 c) {
  return round_to_half(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
}
// v_mac_f16 and v_mad*_f16 round the product first.
f16 mad_half(f16 a, f16 b, f16 c) { return half(wide(half(wide(a) * wide(b))) + wide(c)); }

f16 half_at(u32 x, int index) { return std::bit_cast<f16>(static_cast<u16>(x >> 16 * index)); }
u32 pair_of(f16 low, f16 high) { return word(low) | u32{word(high)} << 16; }

// Sum of the products of `kBits`-wide signed fields, on top of c.
template <int kBits>
u32 dot_signed(u32 a, u32 b, u32 c) {
  for (int at = 0; at < 32; at += kBits) {
    c += static_cast<u32>(sign_extend(a >> at, kBits) * sign_extend(b >> at, kBits));
  }
  return c;
}

WithBit<u32> add_carry(u32 a, u32 b, bool carry) {
  const u64 sum = u64{a} + b + carry;
  return {static_cast<u32>(sum), (sum >> 32) != 0};
}
WithBit<u32> subtract_borrow(u32 a, u32 b, bool borrow) { return {a - b - borrow, u64{a} < u64{b} + borrow}; }

const Op kOps[] = {
    {"v_cndmask_b32", valu([](u32 a, u32 b, bool c) { return c ? b : a; })},

    {"v_add_f32", valu([](float a, float b) { return a + b; })},
    {"v_sub_f32", valu([](float a, float b) { return a - b; })},
    {"v_subrev_f32", valu([](float a, float b) { return b - a; })},
    {"v_mul_f32", valu([](float a, float b) { return a * b; })},
    {"v_min_f32", valu([](float a, float b) { return minimum(a, b); })},
    {"v_max_f32", valu([](float a, float b) { return maximum(a, b); })},
    {"v_fmac_f32", accumulate([](float a, float b, float d) { return __builtin_elementwise_fma(a, b, d); })},
    {"v_fmac_f64", accumulate([](double a, double b, double d) { return __builtin_elementwise_fma(a, b, d); })},
    {"v_fmamk_f32", valu([](float a, float k, float b) { return __builtin_elementwise_fma(a, k, b); })},
    {"v_fmaak_f32", valu([](float a, float b, float k) { return __builtin_elementwise_fma(a, b, k); })},

    {"v_add_f16", valu([](f16 a, f16 b) { return half(wide(a) + wide(b)); })},
    {"v_sub_f16", valu([](f16 a, f16 b) { return half(wide(a) - wide(b)); })},
    {"v_subrev_f16", valu([](f16 a, f16 b) { return half(wide(b) - wide(a)); })},
    {"v_mul_f16", valu([](f16 a, f16 b) { return half(wide(a) * wide(b)); })},
    {"v_min_f16", valu([](f16 a, f16 b) { return minimum(a, b); })},
    {"v_max_f16", valu([](f16 a, f16 b) { return maximum(a, b); })},
    {"v_mac_f16", accumulate([](f16 a, f16 b, f16 d) { return mad_half(a, b, d); })},
    {"v_madmk_f16", valu([](f16 a, f16 k, f16 b) { return mad_half(a, k, b); })},
    {"v_madak_f16", valu([](f16 a, f16 b, f16 k) { return mad_half(a, b, k); })},
    {"v_ldexp_f16", valu([](f16 a, i16 e) { return scale(a, e); })},
    {"v_pk_fmac_f16", refuse_fp16_ovfl<accumulate([](u32 a, u32 b, u32 d) {
       return pair_of(fma_half(half_at(a, 0), half_at(b, 0), half_at(d, 0)),
                      fma_half(half_at(a, 1), half_at(b, 1), half_at(d, 1)));
     })>()},

    {"v_add_u32", saturating<u32, u32, u32>([](i64 a, i64 b) { return a + b; })},
    {"v_sub_u32", saturating<u32, u32, u32>([](i64 a, i64 b) { return a - b; })},
    {"v_subrev_u32", saturating<u32, u32, u32>([](i64 a, i64 b) { return b - a; })},
    {"v_add_co_u32", valu([](u32 a, u32 b) { return add_carry(a, b, false); })},
    {"v_sub_co_u32", valu([](u32 a, u32 b) { return subtract_borrow(a, b, false); })},
    {"v_subrev_co_u32", valu([](u32 a, u32 b) { return subtract_borrow(b, a, false); })},
    {"v_addc_co_u32", valu([](u32 a, u32 b, bool c) { return add_carry(a, b, c); })},
    {"v_subb_co_u32", valu([](u32 a, u32 b, bool c) { return subtract_borrow(a, b, c); })},
    {"v_subbrev_co_u32", valu([](u32 a, u32 b, bool c) { return subtract_borrow(b, a, c); })},
    {"v_mul_i32_i24", valu([](u32 a, u32 b) { return static_cast<u32>(low24_signed(a) * low24_signed(b)); })},
    {"v_mul_hi_i32_i24", valu([](u32 a, u32 b) { return static_cast<u32>(low24_signed(a) * low24_signed(b) >> 32); })},
    {"v_mul_u32_u24", valu([](u32 a, u32 b) { return static_cast<u32>(low24(a) * low24(b)); })},
    {"v_mul_hi_u32_u24", valu([](u32 a, u32 b) { return static_cast<u32>(low24(a) * low24(b) >> 32); })},
    {"v_min_i32", valu([](i32 a, i32 b) { return a < b ? a : b; })},
    {"v_max_i32", valu([](i32 a, i32 b) { return a > b ? a : b; })},
    {"v_min_u32", valu([](u32 a, u32 b) { return a < b ? a : b; })},
    {"v_max_u32", valu([](u32 a, u32 b) { return a > b ? a : b; })},
    {"v_lshrrev_b32", valu([](u32 n, u32 x) { return x >> (n & 31); })},
    {"v_ashrrev_i32", valu([](u32 n, i32 x) { return x >> (n & 31); })},
    {"v_lshlrev_b32", valu([](u32 n, u32 x) { return x << (n & 31); })},
    {"v_and_b32", valu([](u32 a, u32 b) { return a & b; })},
    {"v_or_b32", valu([](u32 a, u32 b) { return a | b; })},
    {"v_xor_b32", valu([](u32 a, u32 b) { return a ^ b; })},
    {"v_xnor_b32", valu([](u32 a, u32 b) { return ~(a ^ b); })},

    {"v_add_u16", saturating<u16, u16, u16>([](i64 a, i64 b) { return a + b; })},
    {"v_sub_u16", saturating<u16, u16, u16>([](i64 a, i64 b) { return a - b; })},
    {"v_subrev_u16", saturating<u16, u16, u16>([](i64 a, i64 b) { return b - a; })},
    {"v_mul_lo_u16", saturating<u16, u16, u16>([](i64 a, i64 b) { return a * b; })},
    {"v_lshlrev_b16", valu([](u16 n, u16 x) { return static_cast<u16>(x << (n & 15)); })},
    {"v_lshrrev_b16", valu([](u16 n, u16 x) { return static_cast<u16>(x >> (n & 15)); })},
    {"v_ashrrev_i16", valu([](u16 n, i16 x) { return static_cast<i16>(x >> (n & 15)); })},
    {"v_min_u16", valu([](u16 a, u16 b) { return a < b ? a : b; })},
    {"v_max_u16", valu([](u16 a, u16 b) { return a > b ? a : b; })},
    {"v_min_i16", valu([](i16 a, i16 b) { return a < b ? a : b; })},
    {"v_max_i16", valu([](i16 a, i16 b) { return a > b ? a : b; })},

    {"v_dot2c_f32_f16", accumulate([](u32 a, u32 b, float d) {
       const float low = __builtin_elementwise_fma(wide(half_at(a, 0)), wide(half_at(b, 0)), d);
       return __builtin_elementwise_fma(wide(half_at(a, 1)), wide(half_at(b, 1)), low);
     })},
    {"v_dot2c_i32_i16", accumulate([](u32 a, u32 b, u32 d) { return dot_signed<16>(a, b, d); })},
    {"v_dot4c_i32_i8", accumulate([](u32 a, u32 b, u32 d) { return dot_signed<8>(a, b, d); })},
    {"v_dot8c_i32_i4", accumulate([](u32 a, u32 b, u32 d) { return dot_signed<4>(a, b, d); })},
};

}  // namespace

std::span<const Op> vop2_ops() { return kOps; }

}  // namespace sim

// SPDX-License-Identifier: MIT
// Scalar operations: SOP1, SOP2, SOPC, SOPK. A lambda's last parameter of type bool is SCC; a result Scc<T> also sets
// it, a result bool is a comparison that only sets it. Branches and the rest of SOPP are in sopp.cpp.
#include "isa/math.h"
#include "isa/salu.h"

namespace sim {
namespace {

template <class T>
Scc<T> with_carry(T a, T b, bool carry) {
  const u64 sum = u64{a} + b + carry;
  return {static_cast<T>(sum), (sum >> 32) != 0};
}
// SCC of the signed forms is overflow.
Scc<u32> add_signed(u32 a, u32 b) {
  const u32 sum = a + b;
  return {sum, ((a ^ sum) & (b ^ sum)) >> 31 != 0};
}
Scc<u32> subtract_signed(u32 a, u32 b) {
  const u32 difference = a - b;
  return {difference, ((a ^ b) & (a ^ difference)) >> 31 != 0};
}
template <int kShift>
Scc<u32> shift_add(u32 a, u32 b) {
  const u64 sum = (u64{a} << kShift) + b;
  return {static_cast<u32>(sum), (sum >> 32) != 0};
}

// Offset in bits [4:0] ([5:0] for 64 bits) and width in [22:16] of the second operand.
u64 field_64(u64 x, u32 control) {
  const u32 offset = control & 63, width = control >> 16 & 127;
  return width >= 64 ? x >> offset : x >> offset & ((u64{1} << width) - 1);
}
u64 signed_field_64(u64 x, u32 control) {
  const u32 offset = control & 63, width = control >> 16 & 127;
  const i64 shifted = static_cast<i64>(x) >> offset;
  if (width == 0) return 0;
  if (offset + width >= 64) return static_cast<u64>(shifted);
  return static_cast<u64>(static_cast<i64>(static_cast<u64>(shifted) << (64 - width)) >> (64 - width));
}
u32 field_32(u32 x, u32 control) {
  const u32 width = control >> 16 & 127, shifted = x >> (control & 31);
  return width >= 32 ? shifted : shifted & ((1u << width) - 1);
}
u32 signed_field_32(u32 x, u32 control) {
  const u32 offset = control & 31, width = control >> 16 & 127;
  const i32 shifted = static_cast<i32>(x) >> offset;
  if (width == 0) return 0;
  if (offset + width >= 32) return static_cast<u32>(shifted);
  return static_cast<u32>(sign_extend(static_cast<u32>(shifted), static_cast<int>(width)));
}

// Each bit set when any bit of its quad is.
u64 whole_quads(u64 x) {
  const u64 any = (x | x >> 1 | x >> 2 | x >> 3) & 0x1111111111111111u;
  return any * 15;
}
// One bit per quad, packed.
u64 quad_mask(u64 x) {
  u64 r = 0;
  for (int quad = 0; quad < 16; ++quad) r |= u64{(x >> 4 * quad & 15) != 0} << quad;
  return r;
}
u64 replicate_bits(u32 x) {
  u64 r = 0;
  for (int bit = 0; bit < 32; ++bit) r |= (x >> bit & 1 ? u64{3} : 0) << 2 * bit;
  return r;
}

// EXEC := f(source, EXEC), destination := old EXEC, SCC := new EXEC is not 0.
template <class F>
void save_exec(Wave& w, const Inst& i) {
  const u64 source = scalar_source(w, i.src[0]), exec = w.exec();
  const u64 next = F{}(source, exec);
  write_scalar(w, i.dst[0], exec);
  w.set_pair(kExec, next);
  w.scc = next != 0;
}
// EXEC and the destination := f(source, EXEC).
template <class F>
void write_exec(Wave& w, const Inst& i) {
  const u64 next = F{}(scalar_source(w, i.src[0]), w.exec());
  write_scalar(w, i.dst[0], next);
  w.set_pair(kExec, next);
  w.scc = next != 0;
}
template <class F>
constexpr Spec saveexec(F) {
  return scalar_spec(save_exec<F>, {Type::b64}, {Type::b64}, kReadsExec | kWritesExec | kWritesScc);
}
template <class F>
constexpr Spec wrexec(F) {
  return scalar_spec(write_exec<F>, {Type::b64}, {Type::b64}, kReadsExec | kWritesExec | kWritesScc);
}

// The SGPR that M0 is an offset to.
u16 indexed(const Wave& w, const Operand& o) {
  const u32 reg = o.reg + w.s[kM0];
  if (o.kind != Kind::sgpr || reg + o.dwords > 102) throw Fault("movrel reaches outside the scalar registers");
  return static_cast<u16>(reg);
}
void move_from_relative(Wave& w, const Inst& i) {
  Operand source = i.src[0];
  source.reg = indexed(w, source);
  write_scalar(w, i.dst[0], scalar_source(w, source));
}
void move_to_relative(Wave& w, const Inst& i) {
  Operand destination = i.dst[0];
  destination.reg = indexed(w, destination);
  write_scalar(w, destination, scalar_source(w, i.src[0]));
}
constexpr Spec relative(Handler handler, Type type) { return scalar_spec(handler, {type}, {type}, kReadsM0); }

const Op kOps[] = {
    // ---- SOP2
    {"s_add_u32", salu([](u32 a, u32 b) { return with_carry(a, b, false); })},
    {"s_sub_u32", salu([](u32 a, u32 b) { return Scc<u32>{a - b, a < b}; })},
    {"s_add_i32", salu([](u32 a, u32 b) { return add_signed(a, b); })},
    {"s_sub_i32", salu([](u32 a, u32 b) { return subtract_signed(a, b); })},
    {"s_addc_u32", salu([](u32 a, u32 b, bool scc) { return with_carry(a, b, scc); })},
    {"s_subb_u32", salu([](u32 a, u32 b, bool scc) { return Scc<u32>{a - b - scc, u64{a} < u64{b} + scc}; })},
    {"s_min_i32", salu([](i32 a, i32 b) { return Scc<i32>{a < b ? a : b, a < b}; })},
    {"s_min_u32", salu([](u32 a, u32 b) { return Scc<u32>{a < b ? a : b, a < b}; })},
    {"s_max_i32", salu([](i32 a, i32 b) { return Scc<i32>{a > b ? a : b, a > b}; })},
    {"s_max_u32", salu([](u32 a, u32 b) { return Scc<u32>{a > b ? a : b, a > b}; })},
    {"s_cselect_b32", salu([](u32 a, u32 b, bool scc) { return scc ? a : b; })},
    {"s_cselect_b64", salu([](u64 a, u64 b, bool scc) { return scc ? a : b; })},
    {"s_and_b32", salu([](u32 a, u32 b) { return nonzero(a & b); })},
    {"s_and_b64", salu([](u64 a, u64 b) { return nonzero(a & b); })},
    {"s_or_b32", salu([](u32 a, u32 b) { return nonzero(a | b); })},
    {"s_or_b64", salu([](u64 a, u64 b) { return nonzero(a | b); })},
    {"s_xor_b32", salu([](u32 a, u32 b) { return nonzero(a ^ b); })},
    {"s_xor_b64", salu([](u64 a, u64 b) { return nonzero(a ^ b); })},
    {"s_andn2_b32", salu([](u32 a, u32 b) { return nonzero(a & ~b); })},
    {"s_andn2_b64", salu([](u64 a, u64 b) { return nonzero(a & ~b); })},
    {"s_orn2_b32", salu([](u32 a, u32 b) { return nonzero(a | ~b); })},
    {"s_orn2_b64", salu([](u64 a, u64 b) { return nonzero(a | ~b); })},
    {"s_nand_b32", salu([](u32 a, u32 b) { return nonzero(~(a & b)); })},
    {"s_nand_b64", salu([](u64 a, u64 b) { return nonzero(~(a & b)); })},
    {"s_nor_b32", salu([](u32 a, u32 b) { return nonzero(~(a | b)); })},
    {"s_nor_b64", salu([](u64 a, u64 b) { return nonzero(~(a | b)); })},
    {"s_xnor_b32", salu([](u32 a, u32 b) { return nonzero(~(a ^ b)); })},
    {"s_xnor_b64", salu([](u64 a, u64 b) { return nonzero(~(a ^ b)); })},
    {"s_lshl_b32", salu([](u32 x, u32 n) { return nonzero(x << (n & 31)); })},
    {"s_lshl_b64", salu([](u64 x, u32 n) { return nonzero(x << (n & 63)); })},
    {"s_lshr_b32", salu([](u32 x, u32 n) { return nonzero(x >> (n & 31)); })},
    {"s_lshr_b64", salu([](u64 x, u32 n) { return nonzero(x >> (n & 63)); })},
    {"s_ashr_i32", salu([](i32 x, u32 n) { return nonzero(x >> (n & 31)); })},
    {"s_ashr_i64", salu([](i64 x, u32 n) { return nonzero(x >> (n & 63)); })},
    {"s_bfm_b32", salu([](u32 width, u32 offset) { return ((1u << (width & 31)) - 1) << (offset & 31); })},
    {"s_bfm_b64", salu([](u32 width, u32 offset) { return ((u64{1} << (width & 63)) - 1) << (offset & 63); })},
    {"s_mul_i32", salu([](u32 a, u32 b) { return a * b; })},
    {"s_mul_hi_u32", salu([](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); })},
    {"s_mul_hi_i32", salu([](i32 a, i32 b) { return static_cast<u32>(i64{a} * b >> 32); })},
    {"s_bfe_u32", salu([](u32 x, u32 control) { return nonzero(field_32(x, control)); })},
    {"s_bfe_i32", salu([](u32 x, u32 control) { return nonzero(signed_field_32(x, control)); })},
    {"s_bfe_u64", salu([](u64 x, u32 control) { return nonzero(field_64(x, control)); })},
    {"s_bfe_i64", salu([](u64 x, u32 control) { return nonzero(signed_field_64(x, control)); })},
    {"s_absdiff_i32", salu([](u32 a, u32 b) {
       const u32 difference = a - b;
       return nonzero(static_cast<i32>(difference) < 0 ? 0u - difference : difference);
     })},
    {"s_lshl1_add_u32", salu([](u32 a, u32 b) { return shift_add<1>(a, b); })},
    {"s_lshl2_add_u32", salu([](u32 a, u32 b) { return shift_add<2>(a, b); })},
    {"s_lshl3_add_u32", salu([](u32 a, u32 b) { return shift_add<3>(a, b); })},
    {"s_lshl4_add_u32", salu([](u32 a, u32 b) { return shift_add<4>(a, b); })},
    {"s_pack_ll_b32_b16", salu([](u32 a, u32 b) { return (a & 0xffff) | b << 16; })},
    {"s_pack_lh_b32_b16", salu([](u32 a, u32 b) { return (a & 0xffff) | (b & 0xffff0000u); })},
    {"s_pack_hh_b32_b16", salu([](u32 a, u32 b) { return a >> 16 | (b & 0xffff0000u); })},

    // ---- SOP1
    {"s_mov_b32", salu([](u32 a) { return a; })},
    {"s_mov_b64", salu([](u64 a) { return a; })},
    {"s_cmov_b32", update([](u32 old, u32 a, bool scc) { return scc ? a : old; })},
    {"s_cmov_b64", update([](u64 old, u64 a, bool scc) { return scc ? a : old; })},
    {"s_not_b32", salu([](u32 a) { return nonzero(~a); })},
    {"s_not_b64", salu([](u64 a) { return nonzero(~a); })},
    {"s_wqm_b32", salu([](u32 a) { return nonzero(static_cast<u32>(whole_quads(a))); })},
    {"s_wqm_b64", salu([](u64 a) { return nonzero(whole_quads(a)); })},
    {"s_quadmask_b32", salu([](u32 a) { return nonzero(static_cast<u32>(quad_mask(a))); })},
    {"s_quadmask_b64", salu([](u64 a) { return nonzero(quad_mask(a)); })},
    {"s_brev_b32", salu([](u32 a) { return reverse_bits(a); })},
    {"s_brev_b64", salu([](u64 a) { return reverse_bits(a); })},
    {"s_bcnt0_i32_b32", salu([](u32 a) { return nonzero(static_cast<u32>(std::popcount(~a))); })},
    {"s_bcnt0_i32_b64", salu([](u64 a) { return nonzero(static_cast<u32>(std::popcount(~a))); })},
    {"s_bcnt1_i32_b32", salu([](u32 a) { return nonzero(static_cast<u32>(std::popcount(a))); })},
    {"s_bcnt1_i32_b64", salu([](u64 a) { return nonzero(static_cast<u32>(std::popcount(a))); })},
    {"s_ff0_i32_b32", salu([](u32 a) { return find_low(~a); })},
    {"s_ff0_i32_b64", salu([](u64 a) { return find_low(~a); })},
    {"s_ff1_i32_b32", salu([](u32 a) { return find_low(a); })},
    {"s_ff1_i32_b64", salu([](u64 a) { return find_low(a); })},
    {"s_flbit_i32_b32", salu([](u32 a) { return find_high(a); })},
    {"s_flbit_i32_b64", salu([](u64 a) { return find_high(a); })},
    {"s_flbit_i32", salu([](u32 a) { return find_sign(a); })},
    {"s_flbit_i32_i64", salu([](u64 a) { return find_sign(a); })},
    {"s_sext_i32_i8", salu([](u32 a) { return sign_extend(a, 8); })},
    {"s_sext_i32_i16", salu([](u32 a) { return sign_extend(a, 16); })},
    {"s_bitset0_b32", update([](u32 old, u32 n) { return old & ~(1u << (n & 31)); })},
    {"s_bitset0_b64", update([](u64 old, u32 n) { return old & ~(u64{1} << (n & 63)); })},
    {"s_bitset1_b32", update([](u32 old, u32 n) { return old | 1u << (n & 31); })},
    {"s_bitset1_b64", update([](u64 old, u32 n) { return old | u64{1} << (n & 63); })},
    {"s_abs_i32", salu([](u32 a) { return nonzero(static_cast<i32>(a) < 0 ? 0u - a : a); })},
    {"s_bitreplicate_b64_b32", salu([](u32 a) { return replicate_bits(a); })},
    {"s_movrels_b32", relative(move_from_relative, Type::b32)},
    {"s_movrels_b64", relative(move_from_relative, Type::b64)},
    {"s_movreld_b32", relative(move_to_relative, Type::b32)},
    {"s_movreld_b64", relative(move_to_relative, Type::b64)},
    {"s_and_saveexec_b64", saveexec([](u64 s, u64 exec) { return s & exec; })},
    {"s_or_saveexec_b64", saveexec([](u64 s, u64 exec) { return s | exec; })},
    {"s_xor_saveexec_b64", saveexec([](u64 s, u64 exec) { return s ^ exec; })},
    {"s_andn2_saveexec_b64", saveexec([](u64 s, u64 exec) { return s & ~exec; })},
    {"s_orn2_saveexec_b64", saveexec([](u64 s, u64 exec) { return s | ~exec; })},
    {"s_nand_saveexec_b64", saveexec([](u64 s, u64 exec) { return ~(s & exec); })},
    {"s_nor_saveexec_b64", saveexec([](u64 s, u64 exec) { return ~(s | exec); })},
    {"s_xnor_saveexec_b64", saveexec([](u64 s, u64 exec) { return ~(s ^ exec); })},
    {"s_andn1_saveexec_b64", saveexec([](u64 s, u64 exec) { return ~s & exec; })},
    {"s_orn1_saveexec_b64", saveexec([](u64 s, u64 exec) { return ~s | exec; })},
    {"s_andn1_wrexec_b64", wrexec([](u64 s, u64 exec) { return ~s & exec; })},
    {"s_andn2_wrexec_b64", wrexec([](u64 s, u64 exec) { return s & ~exec; })},

    // ---- SOPC
    {"s_cmp_eq_i32", salu([](i32 a, i32 b) { return a == b; })},
    {"s_cmp_lg_i32", salu([](i32 a, i32 b) { return a != b; })},
    {"s_cmp_gt_i32", salu([](i32 a, i32 b) { return a > b; })},
    {"s_cmp_ge_i32", salu([](i32 a, i32 b) { return a >= b; })},
    {"s_cmp_lt_i32", salu([](i32 a, i32 b) { return a < b; })},
    {"s_cmp_le_i32", salu([](i32 a, i32 b) { return a <= b; })},
    {"s_cmp_eq_u32", salu([](u32 a, u32 b) { return a == b; })},
    {"s_cmp_lg_u32", salu([](u32 a, u32 b) { return a != b; })},
    {"s_cmp_gt_u32", salu([](u32 a, u32 b) { return a > b; })},
    {"s_cmp_ge_u32", salu([](u32 a, u32 b) { return a >= b; })},
    {"s_cmp_lt_u32", salu([](u32 a, u32 b) { return a < b; })},
    {"s_cmp_le_u32", salu([](u32 a, u32 b) { return a <= b; })},
    {"s_cmp_eq_u64", salu([](u64 a, u64 b) { return a == b; })},
    {"s_cmp_lg_u64", salu([](u64 a, u64 b) { return a != b; })},
    {"s_bitcmp0_b32", salu([](u32 a, u32 n) { return !(a >> (n & 31) & 1); })},
    {"s_bitcmp1_b32", salu([](u32 a, u32 n) { return (a >> (n & 31) & 1) != 0; })},
    {"s_bitcmp0_b64", salu([](u64 a, u32 n) { return !(a >> (n & 63) & 1); })},
    {"s_bitcmp1_b64", salu([](u64 a, u32 n) { return (a >> (n & 63) & 1) != 0; })},

    // ---- SOPK: the immediate is the last printed operand
    {"s_movk_i32", salu([](i16 k) { return static_cast<i32>(k); })},
    {"s_cmovk_i32", update([](i32 old, i16 k, bool scc) { return scc ? static_cast<i32>(k) : old; })},
    {"s_addk_i32", update([](u32 old, i16 k) { return add_signed(old, static_cast<u32>(k)); })},
    {"s_mulk_i32", update([](u32 old, i16 k) { return old * static_cast<u32>(k); })},
    {"s_cmpk_eq_i32", salu([](i32 a, i16 k) { return a == k; })},
    {"s_cmpk_lg_i32", salu([](i32 a, i16 k) { return a != k; })},
    {"s_cmpk_gt_i32", salu([](i32 a, i16 k) { return a > k; })},
    {"s_cmpk_ge_i32", salu([](i32 a, i16 k) { return a >= k; })},
    {"s_cmpk_lt_i32", salu([](i32 a, i16 k) { return a < k; })},
    {"s_cmpk_le_i32", salu([](i32 a, i16 k) { return a <= k; })},
    {"s_cmpk_eq_u32", salu([](u32 a, u16 k) { return a == k; })},
    {"s_cmpk_lg_u32", salu([](u32 a, u16 k) { return a != k; })},
    {"s_cmpk_gt_u32", salu([](u32 a, u16 k) { return a > k; })},
    {"s_cmpk_ge_u32", salu([](u32 a, u16 k) { return a >= k; })},
    {"s_cmpk_lt_u32", salu([](u32 a, u16 k) { return a < k; })},
    {"s_cmpk_le_u32", salu([](u32 a, u16 k) { return a <= k; })},
};

}  // namespace

std::span<const Op> sop_ops() { return kOps; }

}  // namespace sim

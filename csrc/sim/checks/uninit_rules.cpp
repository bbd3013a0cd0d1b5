// SPDX-License-Identifier: MIT
// How undefined bits pass through an instruction. Bitwise operations, shifts, selects, lane moves and MFMA have exact
// rules; everything else makes a lane's result undefined when a bit that it uses is. Runs only for undefined sources.
#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "checks/state.h"
#include "isa/dpp.h"
#include "isa/lanes.h"
#include "isa/mfma.h"

namespace sim {
namespace {

// One lane of one operand: its bits and which of them are undefined.
struct Value { u64 bits, undefined; };

// Undefined result bits of an operation on up to three operands.
using BitsRule = u64 (*)(const Value* s);

u64 rule_and(Value a, Value b) { return (a.undefined & (b.bits | b.undefined)) | (b.undefined & a.bits); }
Value inverse(Value a) { return {~a.bits, a.undefined}; }
u64 rule_or(Value a, Value b) { return rule_and(inverse(a), inverse(b)); }

// A shift by an undefined count has no defined bits; otherwise the undefined bits move along.
template <class Shift>
u64 shifted(Value x, Value count, Shift shift) { return count.undefined ? ~u64{0} : shift(x.undefined, count.bits); }
u64 left32(u64 x, u64 n) { return static_cast<u32>(x) << (n & 31); }
u64 right32(u64 x, u64 n) { return static_cast<u32>(x) >> (n & 31); }
u64 arith32(u64 x, u64 n) { return static_cast<u32>(static_cast<i32>(x) >> (n & 31)); }
u64 left64(u64 x, u64 n) { return x << (n & 63); }
u64 right64(u64 x, u64 n) { return x >> (n & 63); }
u64 arith64(u64 x, u64 n) { return static_cast<u64>(static_cast<i64>(x) >> (n & 63)); }

u64 bit_field(u64 undefined, u64 offset, u64 width, bool sign) {
  if (width == 0) return 0;
  const u64 field = undefined >> offset & ((u64{1} << width) - 1);
  return sign && field >> (width - 1) & 1 ? field | ~u64{0} << width : field;
}

u64 rule_perm(const Value* s) {
  if (s[2].undefined) return ~u64{0};
  const u64 bytes = s[0].undefined << 32 | static_cast<u32>(s[1].undefined);
  u64 out = 0;
  for (int k = 0; k < 4; ++k) {
    const u32 select = s[2].bits >> 8 * k & 0xff;
    if (select < 8) out |= (bytes >> 8 * select & 0xff) << 8 * k;
    else if (select < 12) out |= u64{(bytes >> (16 * (select - 8) + 15) & 1) ? 0xffu : 0u} << 8 * k;   // sign of a half
  }
  return out;
}

constexpr BitsRule copy = [](const Value* s) { return s[0].undefined; };
constexpr BitsRule bit_and = [](const Value* s) { return rule_and(s[0], s[1]); };
constexpr BitsRule bit_or = [](const Value* s) { return rule_or(s[0], s[1]); };
constexpr BitsRule bit_xor = [](const Value* s) { return s[0].undefined | s[1].undefined; };
constexpr BitsRule andn2 = [](const Value* s) { return rule_and(s[0], inverse(s[1])); };
constexpr BitsRule orn2 = [](const Value* s) { return rule_or(s[0], inverse(s[1])); };
constexpr BitsRule andn1 = [](const Value* s) { return rule_and(inverse(s[0]), s[1]); };
constexpr BitsRule orn1 = [](const Value* s) { return rule_or(inverse(s[0]), s[1]); };

const std::unordered_map<std::string_view, BitsRule>& bits_rules() {
  static const std::unordered_map<std::string_view, BitsRule> rules = {
      {"v_mov_b32", copy}, {"v_mov_b64", copy}, {"v_not_b32", copy}, {"v_accvgpr_read_b32", copy},
      {"v_accvgpr_write_b32", copy}, {"v_accvgpr_mov_b32", copy}, {"s_mov_b32", copy}, {"s_mov_b64", copy},
      {"s_not_b32", copy}, {"s_not_b64", copy},
      {"v_and_b32", bit_and}, {"s_and_b32", bit_and}, {"s_and_b64", bit_and}, {"s_and_saveexec_b64", bit_and},
      {"s_nand_b32", bit_and}, {"s_nand_b64", bit_and}, {"s_nand_saveexec_b64", bit_and},
      {"v_or_b32", bit_or}, {"s_or_b32", bit_or}, {"s_or_b64", bit_or}, {"s_or_saveexec_b64", bit_or},
      {"s_nor_b32", bit_or}, {"s_nor_b64", bit_or}, {"s_nor_saveexec_b64", bit_or},
      {"v_xor_b32", bit_xor}, {"v_xnor_b32", bit_xor}, {"s_xor_b32", bit_xor}, {"s_xor_b64", bit_xor},
      {"s_xnor_b32", bit_xor}, {"s_xnor_b64", bit_xor}, {"s_xor_saveexec_b64", bit_xor},
      {"s_xnor_saveexec_b64", bit_xor},
      {"s_andn2_b32", andn2}, {"s_andn2_b64", andn2}, {"s_andn2_saveexec_b64", andn2}, {"s_andn2_wrexec_b64", andn2},
      {"s_orn2_b32", orn2}, {"s_orn2_b64", orn2}, {"s_orn2_saveexec_b64", orn2},
      {"s_andn1_saveexec_b64", andn1}, {"s_andn1_wrexec_b64", andn1}, {"s_orn1_saveexec_b64", orn1},
      {"v_or3_b32", [](const Value* s) { return rule_or({s[0].bits | s[1].bits, rule_or(s[0], s[1])}, s[2]); }},
      {"v_and_or_b32", [](const Value* s) { return rule_or({s[0].bits & s[1].bits, rule_and(s[0], s[1])}, s[2]); }},
      {"v_lshl_or_b32", [](const Value* s) {
         return rule_or({left32(s[0].bits, s[1].bits), shifted(s[0], s[1], left32)}, s[2]);
       }},
      {"v_lshlrev_b32", [](const Value* s) { return shifted(s[1], s[0], left32); }},
      {"v_lshrrev_b32", [](const Value* s) { return shifted(s[1], s[0], right32); }},
      {"v_ashrrev_i32", [](const Value* s) { return shifted(s[1], s[0], arith32); }},
      {"v_lshlrev_b64", [](const Value* s) { return shifted(s[1], s[0], left64); }},
      {"v_lshrrev_b64", [](const Value* s) { return shifted(s[1], s[0], right64); }},
      {"v_ashrrev_i64", [](const Value* s) { return shifted(s[1], s[0], arith64); }},
      {"s_lshl_b32", [](const Value* s) { return shifted(s[0], s[1], left32); }},
      {"s_lshr_b32", [](const Value* s) { return shifted(s[0], s[1], right32); }},
      {"s_ashr_i32", [](const Value* s) { return shifted(s[0], s[1], arith32); }},
      {"s_lshl_b64", [](const Value* s) { return shifted(s[0], s[1], left64); }},
      {"s_lshr_b64", [](const Value* s) { return shifted(s[0], s[1], right64); }},
      {"s_ashr_i64", [](const Value* s) { return shifted(s[0], s[1], arith64); }},
      {"v_bfe_u32", [](const Value* s) {
         if (s[1].undefined | s[2].undefined) return ~u64{0};
         return bit_field(s[0].undefined, s[1].bits & 31, s[2].bits & 31, false);
       }},
      {"v_bfe_i32", [](const Value* s) {
         if (s[1].undefined | s[2].undefined) return ~u64{0};
         return bit_field(s[0].undefined, s[1].bits & 31, s[2].bits & 31, true);
       }},
      {"v_bfi_b32", [](const Value* s) {
         return rule_or({s[0].bits & s[1].bits, rule_and(s[0], s[1])},
                        {~s[0].bits & s[2].bits, rule_and(inverse(s[0]), s[2])});
       }},
      {"v_perm_b32", rule_perm},
      {"v_alignbit_b32", [](const Value* s) {
         if (s[2].undefined) return ~u64{0};
         return (s[0].undefined << 32 | static_cast<u32>(s[1].undefined)) >> (s[2].bits & 31);
       }},
      {"v_alignbyte_b32", [](const Value* s) {
         if (s[2].undefined) return ~u64{0};
         return (s[0].undefined << 32 | static_cast<u32>(s[1].undefined)) >> 8 * (s[2].bits & 3);
       }},
  };
  return rules;
}

// An instruction being propagated.
struct Step {
  Wave& w;
  const Inst& i;
  u64 exec;
  const Origin& origin;
  const Spec& spec = i.op->spec;
  std::string_view name = i.op->name;
  Undefined& u = w.checks->undefined;
  const DppRow* dpp = i.mod.dpp == DppCtrl::none ? nullptr : &dpp_row(i.mod.dpp, i.mod.dpp_arg);
};

bool is_16_bit(Type t) { return t == Type::b16 || t == Type::f16; }

// Operand k as `lane` reads it: DPP, SDWA and op_sel are applied, bits that the operation ignores count as defined.
Value source(const Step& s, int k, int lane) {
  const Operand& o = s.i.src[k];
  Value v{};
  if (o.kind == Kind::vgpr) {
    if (s.dpp && k == 0) {
      const int from = s.dpp->source[lane];
      if (!(s.dpp->valid >> lane & 1) || !(s.exec >> from & 1)) return {0, 0};
      lane = from;
    }
    for (u32 d = 0; d < std::min<u32>(o.dwords, 2); ++d) {
      v.bits |= u64{s.w.v[o.reg + d][lane]} << 32 * d;
      v.undefined |= u64{undefined_bits(s.u, static_cast<u16>(o.reg + d), lane)} << 32 * d;
    }
  } else if (o.kind == Kind::sgpr) {
    v.bits = scalar_source(s.w, o);
    v.undefined = s.u.scalar[o.reg];
    if (o.dwords > 1) v.undefined |= u64{s.u.scalar[o.reg + 1]} << 32;
  } else if (o.kind == Kind::literal) {
    v.bits = o.value;
  }
  u32 shift = 0, width = 64;
  if (s.i.mod.sdwa && o.sel != 6) {
    shift = o.sel < 4 ? 8 * o.sel : 16 * (o.sel - 4);
    width = o.sel < 4 ? 8 : 16;
  } else if (is_16_bit(s.spec.src[k])) {
    shift = o.kind == Kind::vgpr && s.i.mod.op_sel >> k & 1 ? 16 : 0;
    width = 16;
  } else if (s.name.starts_with("v_fma_mix") && s.i.mod.op_sel_hi >> k & 1) {
    shift = s.i.mod.op_sel >> k & 1 ? 16 : 0;
    width = 16;
  } else if (s.name.find("u24") != s.name.npos || s.name.find("i24") != s.name.npos) {
    width = k < 2 ? 24 : 64;
  } else if (s.name.starts_with("v_cvt_f32_ubyte")) {
    shift = 8 * (s.name.back() - '0');
    width = 8;
  }
  v.bits >>= shift;
  v.undefined >>= shift;
  if (width < 64) v.undefined &= (u64{1} << width) - 1;
  return v;
}

// Lane masks: implicit VCC, and the last operand of selects and of additions with carry.
bool is_lane_mask(const Step& s, int k) {
  return k == 2 && s.i.src[k].kind == Kind::sgpr &&
         (s.name.starts_with("v_cndmask") || s.name.starts_with("v_addc") || s.name.starts_with("v_subb"));
}

struct Mask { u64 bits = 0, undefined = 0; bool present = false; };

Mask lane_mask(const Step& s) {
  u16 pair = kVcc;
  if (s.i.num_src > 2 && is_lane_mask(s, 2)) pair = s.i.src[2].reg;
  else if (!(s.spec.flags & kReadsVcc)) return {};
  return {s.w.pair(pair), u64{s.u.scalar[pair + 1]} << 32 | s.u.scalar[pair], true};
}

u64 written_lanes(const Step& s) { return s.dpp ? dpp_lanes(s.i.mod, *s.dpp, s.exec) : s.exec; }

void set_scalar(const Step& s, u16 reg, u32 bits) {
  s.u.scalar[reg] = bits;
  if (bits) s.u.scalar_origin[reg] = s.origin;
}

void set_scc(const Step& s, bool undefined) {
  if (!(s.spec.flags & kWritesScc)) return;
  s.u.scc = undefined;
  if (undefined) s.u.scc_origin = s.origin;
}

// Writes `undefined` bits into the rows of a vector destination, as the destination's form places them.
void set_result(const Step& s, int lane, u64 undefined) {
  const Operand& o = s.i.dst[0];
  const bool accumulates = s.name.find("mac") != s.name.npos || s.name.find("dot") != s.name.npos;
  u32 mask = ~0u, shift = 0;
  if (s.i.mod.sdwa && s.i.mod.dst_sel != 6) {
    shift = s.i.mod.dst_sel < 4 ? 8 * s.i.mod.dst_sel : 16 * (s.i.mod.dst_sel - 4);
    mask = (s.i.mod.dst_sel < 4 ? 0xffu : 0xffffu) << shift;
  } else if (s.spec.flags & kReadsDst && !accumulates) {
    const bool high = s.name.starts_with("v_fma_mixhi") || s.i.mod.op_sel & 8 ||
                      (s.name.starts_with("v_cvt_pk_") && s.i.mod.op_sel & 4);
    shift = high ? 16 : 0;
    mask = 0xffffu << shift;
  } else if (is_16_bit(s.spec.dst[0])) {
    mask = 0xffff;
  }
  const bool keeps = s.i.mod.sdwa ? s.i.mod.dst_unused == 2 : (s.spec.flags & kReadsDst) && !accumulates;
  for (u32 d = 0; d < o.dwords; ++d) {
    const u16 row = static_cast<u16>(o.reg + d);
    u32 bits = static_cast<u32>(undefined >> 32 * (d & 1)) << shift & mask;
    if (keeps) bits |= undefined_bits(s.u, row, lane) & ~mask;
    set_undefined(s.u, row, lane, bits, s.origin);
  }
}

u64 all_if(bool undefined) { return undefined ? ~u64{0} : 0; }

// Any undefined bit that the lane uses makes its whole result undefined; scalar results are lane masks. A 64-bit
// multiply-add keeps the result's bits below it: compilers take its low half with an upper half never written.
void any_rule(const Step& s) {
  const Mask mask = lane_mask(s);
  const bool vector = s.i.dst[0].kind == Kind::vgpr;
  const bool accumulates = s.spec.flags & kReadsDst && (s.name.find("mac") != s.name.npos ||
                                                        s.name.find("dot") != s.name.npos);
  const u64 lanes = written_lanes(s);
  const bool low_bits_hold = s.name == "v_mad_u64_u32" || s.name == "v_mad_i64_i32";
  u64 undefined = mask.undefined & lanes, result[kLanes] = {};
  for (u64 left = lanes; left; left &= left - 1) {
    const int lane = first_lane(left);
    u64 bits = 0;
    for (int k = 0; k < s.i.num_src; ++k) {
      if (!is_lane_mask(s, k)) bits |= source(s, k, lane).undefined;
    }
    if (accumulates) bits |= undefined_bits(s.u, s.i.dst[0].reg, lane);
    if (bits) undefined |= u64{1} << lane;
    result[lane] = low_bits_hold && bits ? ~u64{0} << std::countr_zero(bits) : all_if(undefined >> lane & 1);
  }
  if (vector) {
    for (u64 left = lanes; left; left &= left - 1) {
      const int lane = first_lane(left);
      set_result(s, lane, result[lane]);
    }
  }
  for (const RegRange& r : s.i.writes()) {
    if (r.file != RegRange::scalar) continue;
    set_scalar(s, r.first, static_cast<u32>(undefined));
    if (r.count > 1) set_scalar(s, static_cast<u16>(r.first + 1), static_cast<u32>(undefined >> 32));
  }
}

void bits_rule(const Step& s, BitsRule rule) {
  for (u64 left = written_lanes(s); left; left &= left - 1) {
    const int lane = first_lane(left);
    Value in[3] = {};
    for (int k = 0; k < std::min<int>(s.i.num_src, 3); ++k) in[k] = source(s, k, lane);
    set_result(s, lane, rule(in));
  }
}

void select_rule(const Step& s) {
  const Mask mask = lane_mask(s);
  for (u64 left = written_lanes(s); left; left &= left - 1) {
    const int lane = first_lane(left);
    const bool known = !(mask.undefined >> lane & 1);
    set_result(s, lane, known ? source(s, mask.bits >> lane & 1, lane).undefined : ~u64{0});
  }
}

// Each half (or dword) of a packed result takes the halves that op_sel and op_sel_hi name.
void packed_rule(const Step& s) {
  const bool dwords = s.spec.dst[0] == Type::pkf32;
  const u32 high = s.i.mod.has_op_sel_hi ? s.i.mod.op_sel_hi : ~0u;
  const u32 width = dwords ? 32 : 16;
  const u64 ones = (u64{1} << width) - 1;
  const int parts = s.name == "v_pk_mov_b32" ? 1 : s.i.num_src;    // its halves come from one source each
  for (u64 left = written_lanes(s); left; left &= left - 1) {
    const int lane = first_lane(left);
    u64 out = 0;
    for (int part = 0; part < 2; ++part) {
      for (int k = 0; k < parts; ++k) {
        const int from = parts == 1 ? part : k;
        const u32 selects = parts == 1 ? s.i.mod.op_sel : part ? high : s.i.mod.op_sel;
        const u64 undefined = source(s, from, lane).undefined >> (selects >> from & 1 ? width : 0) & ones;
        if (parts == 1) out |= undefined << width * part;
        else if (undefined) out |= ones << width * part;
      }
    }
    set_result(s, lane, out);
  }
}

// Row i of A makes row i of D undefined, column j of B column j; C its own element. A sparse operation adds to D, and
// its src2 says which elements A's row has; all elements of B's column count as used. Layouts: as in isa/mfma.cpp.
void matrix_rule(const Step& s) {
  const size_t x = s.name.find('x');
  const size_t start = s.name.rfind('_', x) + 1;
  const int size = std::atoi(std::string(s.name.substr(start, x - start)).c_str());
  const size_t mark = s.name.find("b_", s.name.find('x', x + 1));
  int blocks = 1;
  if (mark != s.name.npos && s.name[mark - 1] != 'i' && std::isdigit(s.name[mark - 1]))
    blocks = std::atoi(std::string(s.name.substr(s.name.rfind('_', mark) + 1)).c_str());
  const bool wide = s.name.starts_with("v_mfma_f64"), sparse = s.name.starts_with("v_smfmac");
  const Modifiers& m = s.i.mod;                // on f64 blgp negates, on sparse forms cbsz and abid choose index bits
  const auto lanes_of = [&](const Operand& o) {
    u64 lanes = 0;
    for (u32 d = 0; d < o.dwords && o.kind == Kind::vgpr; ++d) lanes |= s.u.lanes[o.reg + d];
    return lanes;
  };
  u64 bad[2] = {lanes_of(s.i.src[0]), lanes_of(s.i.src[1])};       // lanes of A and of B with an undefined bit
  if (sparse) bad[0] |= lanes_of(s.i.src[2]);
  if (m.blgp && !wide) {
    const u64 before = std::exchange(bad[1], 0);
    for (int lane = 0; lane < kLanes; ++lane) bad[1] |= (before >> blgp_source(m.blgp, lane) & 1) << lane;
  }
  const auto any_k = [&](u64 lanes, int index, int block) {
    for (int lane = index; lane < kLanes; lane += size) {
      if (lanes >> lane & 1 && lane / size % blocks == block) return true;
    }
    return false;
  };
  const Operand &d = s.i.dst[0], &c = sparse ? d : s.i.src[2];
  const int per_block = std::max(d.dwords / (size == 4 ? 1 : blocks), 1);
  for (int r = 0; r < d.dwords; ++r) {
    const int e = r % per_block;
    for (int lane = 0; lane < kLanes; ++lane) {
      const int block = size == 4 ? lane / 4 % blocks : r / per_block;
      const int a_block = sparse ? 0 : block_of_a(block, m.cbsz, m.abid);
      const int row = size == 4 && wide ? lane / 16 : size == 4 ? e : wide ? 4 * (e / 2) + lane / 16
                    : size == 16 ? 4 * (lane / 16) + e : 8 * (e / 4) + 4 * (lane / 32) + e % 4;
      bool undefined = c.kind == Kind::vgpr && s.u.lanes[c.reg + r] >> lane & 1;
      undefined |= (bad[0] && any_k(bad[0], row, a_block)) || (bad[1] && any_k(bad[1], lane % size, block));
      set_undefined(s.u, static_cast<u16>(d.reg + r), lane, undefined ? ~0u : 0, s.origin);
    }
  }
}

void vector_rule(const Step& s) {
  if (s.name == "v_readfirstlane_b32" || s.name == "v_readlane_b32") {
    const bool first = s.name == "v_readfirstlane_b32";
    const u64 exec = s.w.exec();
    const Value select = first ? Value{exec ? static_cast<u64>(first_lane(exec)) : 0, 0} : source(s, 1, 0);
    const u32 bits = undefined_bits(s.u, s.i.src[0].reg, select.bits % kLanes);
    set_scalar(s, s.i.dst[0].reg, select.undefined ? ~0u : s.i.src[0].kind == Kind::vgpr ? bits : 0);
  } else if (s.name == "v_writelane_b32") {
    const Value value = source(s, 0, 0), select = source(s, 1, 0);
    set_undefined(s.u, s.i.dst[0].reg, select.bits % kLanes, static_cast<u32>(value.undefined), s.origin);
  } else if (s.spec.cls == Class::mfma && s.spec.flags & kIgnoresExec) {
    matrix_rule(s);
  } else if (s.name.starts_with("v_cndmask")) {
    select_rule(s);
  } else if (const auto rule = bits_rules().find(s.name); rule != bits_rules().end()) {
    bits_rule(s, rule->second);
  } else if (s.name.starts_with("v_pk_")) {
    packed_rule(s);
  } else {
    any_rule(s);
  }
}

void scalar_rule(const Step& s) {
  Value in[3] = {};
  bool any = s.spec.flags & kReadsScc && s.u.scc;
  for (int k = 0; k < std::min<int>(s.i.num_src, 3); ++k) {
    in[k] = source(s, k, 0);
    any |= in[k].undefined != 0;
  }
  const bool exec_form = s.name.find("saveexec") != s.name.npos || s.name.find("wrexec") != s.name.npos;
  if (exec_form) in[1] = {s.w.exec(), 0};
  const Operand& d = s.i.dst[0];
  u64 undefined = all_if(any);
  bool scc = any;
  if (const auto rule = bits_rules().find(s.name); rule != bits_rules().end()) {
    undefined = rule->second(in);
  } else if (s.name.starts_with("s_cselect") && !s.u.scc) {
    undefined = in[s.w.scc ? 0 : 1].undefined;
  } else if (s.name.starts_with("s_cmov") && !s.u.scc && !s.w.scc) {
    return;
  } else if (s.name.starts_with("s_bitcmp") && !in[1].undefined) {
    scc = in[0].undefined >> (in[1].bits & 63) & 1;
  }
  // SCC = "result is not zero" is defined when some defined bit of the result is set. Only `and` and `or` tell cheaply.
  if (s.name.starts_with("s_and_b")) scc = undefined && !(in[0].bits & in[1].bits & ~undefined);
  if (s.name.starts_with("s_or_b")) scc = undefined && !((in[0].bits | in[1].bits) & ~undefined);
  if (d.dwords < 2) undefined &= 0xffffffff;
  const auto set_pair = [&](u16 reg, u64 bits, u32 count) {
    set_scalar(s, reg, static_cast<u32>(bits));
    if (count > 1) set_scalar(s, static_cast<u16>(reg + 1), static_cast<u32>(bits >> 32));
  };
  if (exec_form) {
    set_pair(kExec, undefined, 2);
    if (d.kind == Kind::sgpr) set_pair(d.reg, s.name.find("wrexec") != s.name.npos ? undefined : 0, 2);
  } else {
    for (const RegRange& r : s.i.writes()) {
      if (r.file == RegRange::scalar) set_pair(r.first, undefined, r.count);
    }
  }
  set_scc(s, scc);
}

}  // namespace

void uninit_propagate(Wave& w, const Inst& i, u64 exec, const Origin& origin) {
  const Origin from = origin;                  // a copy: the caller's may lie in a row that is about to change
  const Step s{w, i, exec, from};
  if (i.op->spec.cls == Class::salu || i.op->spec.cls == Class::other) scalar_rule(s);
  else vector_rule(s);
}

}  // namespace sim

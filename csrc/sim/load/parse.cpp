// SPDX-License-Identifier: MIT
// One line of disassembly → Inst. The operands' types come from the operation's row; every word that is not understood
// makes the instruction an error. Branch targets, wait counts and 16-bit immediates are taken from the encoding.
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#include "load/decode.h"

namespace sim {
namespace {

using Text = std::string_view;

[[noreturn]] void refuse(const char* what, Text token) {
  throw Fault(std::string(what) + " '" + std::string(token) + "' is not supported");
}

bool take_prefix(Text& text, Text prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_suffix(Text& text, Text suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

// Decimal or 0x, with an optional sign.
i64 integer(Text token) {
  Text digits = token;
  const bool minus = take_prefix(digits, "-");
  const int base = take_prefix(digits, "0x") ? 16 : 10;
  u64 x = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), x, base);
  if (error != std::errc() || end != digits.end() || digits.empty()) refuse("operand", token);
  return minus ? -static_cast<i64>(x) : static_cast<i64>(x);
}

u32 small(Text token, u32 limit) {
  const i64 x = integer(token);
  if (x < 0 || x > limit) refuse("value", token);
  return static_cast<u32>(x);
}

// ---- operands

struct Name {
  Text text;
  u16 reg;
  u8 dwords;
};

constexpr Name kNamed[] = {
    {"vcc", 106, 2},          {"vcc_lo", 106, 1},          {"vcc_hi", 107, 1},          {"exec", 126, 2},
    {"exec_lo", 126, 1},      {"exec_hi", 127, 1},         {"m0", 124, 1},              {"flat_scratch", 102, 2},
    {"flat_scratch_lo", 102, 1}, {"flat_scratch_hi", 103, 1}, {"xnack_mask", 104, 2},   {"xnack_mask_lo", 104, 1},
    {"xnack_mask_hi", 105, 1},
};

constexpr Name kSpecial[] = {
    {"src_shared_base", 235, 2},  {"src_shared_limit", 236, 2}, {"src_private_base", 237, 2},
    {"src_private_limit", 238, 2}, {"src_vccz", 251, 1},        {"src_execz", 252, 1},
    {"src_scc", 253, 1},           {"vccz", 251, 1},            {"execz", 252, 1},           {"scc", 253, 1},
};

// v7, a[0:3], s[4:5], ttmp2. False when the token is no register.
bool parse_register(Text token, Operand& o) {
  u16 first = 0, count = 0;
  Kind kind = Kind::vgpr;
  Text rest = token;
  if (take_prefix(rest, "ttmp")) { kind = Kind::sgpr; first = 108; count = 16; }
  else if (take_prefix(rest, "v")) { first = 0; count = 256; }
  else if (take_prefix(rest, "a")) { first = kFirstAgpr; count = 256; }
  else if (take_prefix(rest, "s")) { kind = Kind::sgpr; first = 0; count = 102; }
  else return false;
  u32 low = 0, high = 0;
  if (take_prefix(rest, "[")) {
    const size_t colon = rest.find(':');
    if (colon == Text::npos || !take_suffix(rest, "]")) return false;
    low = small(rest.substr(0, colon), count - 1);
    high = small(rest.substr(colon + 1), count - 1);
  } else {
    if (rest.empty() || rest[0] < '0' || rest[0] > '9') return false;
    low = high = small(rest, count - 1);
  }
  if (high < low || high - low >= 32) refuse("register", token);
  o.kind = kind;
  o.reg = static_cast<u16>(first + low);
  o.dwords = static_cast<u8>(high - low + 1);
  return true;
}

// Bits of a floating-point inline constant in the operand's type. Packed integers have those of an f32, of which op_sel
// takes a half (LLVM: getInlineEncodingV2I16).
u64 float_bits(Text token, Type type) {
  double x = 0;
  const auto [end, error] = std::from_chars(token.begin(), token.end(), x);
  if (error != std::errc() || end != token.end()) refuse("operand", token);
  // LLVM prints 1/(2*pi) shortened; the hardware's constant has the type's full precision.
  const bool inv_2pi = std::fabs(std::fabs(x) - 0.15915494309189532) < 1e-6;
  switch (type) {
    case Type::f64: case Type::b64:
      return inv_2pi ? 0x3fc45f306dc9c882u : std::bit_cast<u64>(x);
    case Type::f16: case Type::b16: case Type::pkf16:
      return inv_2pi ? 0x3118u : std::bit_cast<u16>(static_cast<f16>(x));
    default:
      return inv_2pi ? 0x3e22f983u : std::bit_cast<u32>(static_cast<float>(x));
  }
}

// Bits of an integer token. A 32-bit literal (hex) is zero-extended in a 64-bit integer operand and is the high half of
// an f64; inline integers (decimal) are sign-extended.
u64 integer_bits(Text token, Type type, bool literal) {
  const u64 x = static_cast<u64>(integer(token));
  switch (type) {
    case Type::f64: return literal ? x << 32 : x;
    case Type::b64: return x;
    case Type::b16: case Type::f16: return x & 0xffff;
    default: return x & 0xffffffff;                // packed types: the 32-bit source, high half included
  }
}

void parse_constant(Text token, Type type, Operand& o) {
  o.kind = Kind::literal;
  o.dwords = type == Type::b64 || type == Type::f64 || type == Type::pkf32 ? 2 : 1;
  if (take_prefix(token, "lit(")) {
    if (!take_suffix(token, ")")) refuse("operand", token);
    o.value = integer_bits(token, type, true);
  } else if (token.find("0x") != Text::npos) {
    o.value = integer_bits(token, type, token[0] != '-');
  } else if (token.find('.') != Text::npos) {
    o.value = float_bits(token, type);
  } else {
    o.value = integer_bits(token, type, false);
  }
}

Operand parse_operand(Text token, Type type, const Inst& inst) {
  Operand o;
  const Text whole = token;
  if (token.starts_with("neg(")) {
    o.neg = true;
    take_prefix(token, "neg(");
    if (!take_suffix(token, ")")) refuse("operand", whole);
  } else if (token.size() > 1 && token[0] == '-' && (token[1] < '0' || token[1] > '9')) {
    o.neg = true;
    token.remove_prefix(1);
  }
  if (take_prefix(token, "|")) {
    o.abs = true;
    if (!take_suffix(token, "|")) refuse("operand", whole);
  } else if (take_prefix(token, "abs(")) {
    o.abs = true;
    if (!take_suffix(token, ")")) refuse("operand", whole);
  } else if (take_prefix(token, "sext(")) {
    o.sext = true;
    if (!take_suffix(token, ")")) refuse("operand", whole);
  }
  if (token == "off") return o;
  if (parse_register(token, o)) return o;
  for (const Name& name : kNamed) {
    if (token == name.text) {
      o.kind = Kind::sgpr;
      o.reg = name.reg;
      o.dwords = name.dwords;
      return o;
    }
  }
  for (const Name& name : kSpecial) {
    if (token == name.text) {
      o.kind = Kind::special;
      o.reg = name.reg;
      o.dwords = name.dwords;
      return o;
    }
  }
  for (Text macro : {"hwreg(", "sendmsg(", "gpr_idx("}) {
    if (token.starts_with(macro)) {                // the encoded field, whatever the names are
      o.kind = Kind::literal;
      o.value = static_cast<u16>(inst.imm);
      return o;
    }
  }
  if (token.empty() || !(token[0] == '-' || token[0] == 'l' || (token[0] >= '0' && token[0] <= '9'))) {
    refuse("operand", whole);
  }
  parse_constant(token, type, o);
  return o;
}

// ---- modifiers

// [0,1,1] → bits, first element lowest.
u8 bit_list(Text value) {
  u8 bits = 0;
  int at = 0;
  if (value.size() < 3 || value.front() != '[' || value.back() != ']') refuse("modifier value", value);
  for (char c : value.substr(1, value.size() - 2)) {
    if (c == ',') continue;
    if ((c != '0' && c != '1') || at >= 8) refuse("modifier value", value);
    bits |= static_cast<u8>((c - '0') << at++);
  }
  return bits;
}

u8 quad_perm(Text value) {
  if (value.size() != 9) refuse("quad_perm", value);     // [a,b,c,d]
  u8 packed = 0;
  for (int i = 0; i < 4; ++i) packed |= static_cast<u8>(small(value.substr(1 + 2 * i, 1), 3) << 2 * i);
  return packed;
}

u8 sdwa_select(Text value) {
  constexpr Text kNames[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD"};
  for (u8 i = 0; i < 7; ++i) {
    if (value == kNames[i]) return i;
  }
  refuse("SDWA select", value);
}

u8 sdwa_unused(Text value) {
  constexpr Text kNames[] = {"UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"};
  for (u8 i = 0; i < 3; ++i) {
    if (value == kNames[i]) return i;
  }
  refuse("SDWA dst_unused", value);
}

bool parse_dpp(Text key, Text value, Modifiers& m) {
  constexpr std::pair<Text, DppCtrl> kControls[] = {
      {"row_shl", DppCtrl::row_shl}, {"row_shr", DppCtrl::row_shr}, {"row_ror", DppCtrl::row_ror},
      {"wave_shl", DppCtrl::wave_shl}, {"wave_rol", DppCtrl::wave_rol}, {"wave_shr", DppCtrl::wave_shr},
      {"wave_ror", DppCtrl::wave_ror}, {"row_mirror", DppCtrl::row_mirror},
      {"row_half_mirror", DppCtrl::row_half_mirror}, {"row_newbcast", DppCtrl::row_newbcast}};
  if (key == "quad_perm") {
    m.dpp = DppCtrl::quad_perm;
    m.dpp_arg = quad_perm(value);
    return true;
  }
  if (key == "row_bcast") {
    if (value != "15" && value != "31") refuse("row_bcast", value);
    m.dpp = value == "15" ? DppCtrl::row_bcast15 : DppCtrl::row_bcast31;
    return true;
  }
  for (const auto& [name, control] : kControls) {
    if (key == name) {
      m.dpp = control;
      if (!value.empty()) m.dpp_arg = static_cast<u8>(small(value, 15));
      return true;
    }
  }
  if (key == "row_mask") m.row_mask = static_cast<u8>(small(value, 15));
  else if (key == "bank_mask") m.bank_mask = static_cast<u8>(small(value, 15));
  else if (key == "bound_ctrl") m.bound_ctrl = true;     // printed only when the bit is set, as :0 or :1 by version
  else return false;
  return true;
}

bool parse_sdwa(Text key, Text value, Inst& inst) {
  if (key == "dst_sel") inst.mod.dst_sel = sdwa_select(value);
  else if (key == "dst_unused") inst.mod.dst_unused = sdwa_unused(value);
  else if (key == "src0_sel") inst.src[0].sel = sdwa_select(value);
  else if (key == "src1_sel") inst.src[1].sel = sdwa_select(value);
  else return false;
  return true;
}

bool parse_flag(Text word, Modifiers& m) {
  if (word == "clamp") m.clamp = true;
  else if (word == "sc0" || word == "glc") m.sc0 = true;
  else if (word == "sc1" || word == "scc") m.sc1 = true;
  else if (word == "nt" || word == "slc") m.nt = true;
  else if (word == "lds") m.lds = true;
  else if (word == "gds") m.gds = true;
  else if (word == "idxen") m.idxen = true;
  else if (word == "offen") m.offen = true;
  else return false;
  return true;
}

// `bytes` gives ds_swizzle's offset, whose text is a macro.
void parse_modifier(Text word, const u8* bytes, Inst& inst) {
  Modifiers& m = inst.mod;
  if (parse_flag(word, m)) return;
  const size_t colon = word.find(':');
  const Text key = word.substr(0, colon), value = colon == Text::npos ? Text() : word.substr(colon + 1);
  if (parse_dpp(key, value, m) || parse_sdwa(key, value, inst)) return;
  if (key == "offset") {
    if (value.starts_with("swizzle(")) m.offset = bytes[0] | bytes[1] << 8;
    else m.offset = static_cast<i32>(integer(value));
  } else if (key == "offset0") m.offset = static_cast<i32>(small(value, 255));
  else if (key == "offset1") m.offset1 = small(value, 255);
  else if (key == "op_sel") m.op_sel = bit_list(value);
  else if (key == "op_sel_hi") { m.op_sel_hi = bit_list(value); m.has_op_sel_hi = true; }
  else if (key == "neg_lo") m.neg_lo = bit_list(value);
  else if (key == "neg_hi") m.neg_hi = bit_list(value);
  else if (key == "neg") m.blgp = bit_list(value);
  else if (key == "format") m.format = static_cast<u8>(bytes[2] >> 3 | (bytes[3] & 3) << 5);
  else if (key == "cbsz") m.cbsz = static_cast<u8>(small(value, 7));
  else if (key == "abid") m.abid = static_cast<u8>(small(value, 15));
  else if (key == "blgp") m.blgp = static_cast<u8>(small(value, 7));
  else if (word == "mul:2") m.omod = 1;
  else if (word == "mul:4") m.omod = 2;
  else if (word == "div:2") m.omod = 3;
  else refuse("modifier", word);
}

bool has_value_modifiers(const Inst& inst) {
  const Modifiers& m = inst.mod;
  if (m.clamp || m.omod || m.op_sel || m.has_op_sel_hi || m.neg_lo || m.neg_hi || m.sdwa || m.cbsz || m.abid ||
      m.blgp || m.dpp != DppCtrl::none) {
    return true;
  }
  for (const Operand& o : inst.src) {
    if (o.neg || o.abs || o.sext) return true;
  }
  return false;
}

// ---- one line

struct Line {
  std::array<Text, 8> operands;
  size_t num_operands = 0;
  std::array<Text, 16> modifiers;
  size_t num_modifiers = 0;
};

// Commas and spaces inside brackets do not separate. Modifiers follow the last operand after a space.
Line split(Text rest) {
  Line line;
  bool in_modifiers = false;
  while (true) {
    while (!rest.empty() && rest[0] == ' ') rest.remove_prefix(1);
    if (rest.empty()) return line;
    size_t end = 0;
    for (int depth = 0; end < rest.size(); ++end) {
      const char c = rest[end];
      if (c == '(' || c == '[') ++depth;
      if (c == ')' || c == ']') --depth;
      if (depth == 0 && (c == ' ' || c == ',')) break;
    }
    const Text token = rest.substr(0, end);
    rest.remove_prefix(end);
    Modifiers scratch;
    if (line.num_operands == 0 && parse_flag(token, scratch)) in_modifiers = true;    // "buffer_inv sc1"
    if (!in_modifiers) {
      if (line.num_operands == line.operands.size()) refuse("operand", token);
      line.operands[line.num_operands++] = token;
    } else {
      if (line.num_modifiers == line.modifiers.size()) refuse("modifier", token);
      line.modifiers[line.num_modifiers++] = token;
    }
    if (!rest.empty() && rest[0] == ',') rest.remove_prefix(1);
    else in_modifiers = true;
  }
}

Text base_name(Text mnemonic, Inst& inst) {
  if (take_suffix(mnemonic, "_e32")) return mnemonic;
  if (take_suffix(mnemonic, "_e64")) inst.e64 = true;
  else if (take_suffix(mnemonic, "_sdwa")) inst.mod.sdwa = true;
  else take_suffix(mnemonic, "_dpp");
  return mnemonic;
}

// SOPP and SOPK carry a 16-bit immediate; branches are relative to the next instruction.
void take_immediate(const u8* bytes, Inst& inst) {
  u32 word = 0;
  std::memcpy(&word, bytes, 4);
  if (word >> 28 != 0xb) return;
  inst.imm = static_cast<i16>(word & 0xffff);
  inst.target = static_cast<i64>(inst.pc) + 4 + 4 * static_cast<i64>(inst.imm);
}

void take_wait_counts(Inst& inst) {
  const u32 bits = static_cast<u16>(inst.imm);
  inst.vmcnt = static_cast<u8>((bits & 15) | (bits >> 14) << 4);
  inst.expcnt = bits >> 4 & 7;
  inst.lgkmcnt = bits >> 8 & 15;
}

// How many leading printed operands are destinations: FLAT and GLOBAL atomics print one only with sc0, loads into LDS
// none.
int num_destinations(const Inst& inst) {
  const Spec& spec = inst.op->spec;
  const bool flat = spec.cls == Class::flat || spec.cls == Class::global;
  if (flat && spec.flags & kAtomic && !inst.mod.sc0) return 0;
  if (inst.mod.lds && spec.flags & kLoad) return 0;
  return spec.num_dst;
}

bool is_arithmetic(Class cls) {
  return cls == Class::valu || cls == Class::trans || cls == Class::mfma || cls == Class::salu;
}

void parse_operands(const Line& line, Inst& inst) {
  const Spec& spec = inst.op->spec;
  const size_t num_dst = static_cast<size_t>(num_destinations(inst));
  if (line.num_operands < num_dst) throw Fault("fewer operands than the operation has destinations");
  const size_t num_src = line.num_operands - num_dst;
  if (num_src > inst.src.size()) throw Fault("more operands than an instruction can have");
  size_t typed = spec.src.size();
  while (typed > 0 && spec.src[typed - 1] == Type::none) --typed;
  if (is_arithmetic(spec.cls) && num_src > typed) throw Fault("more operands than the operation's row declares");
  for (size_t i = 0; i < num_dst; ++i) inst.dst[i] = parse_operand(line.operands[i], spec.dst[i], inst);
  for (size_t i = 0; i < num_src; ++i) {
    const Type type = spec.src[i] == Type::none ? Type::b32 : spec.src[i];
    inst.src[i] = parse_operand(line.operands[num_dst + i], type, inst);
  }
  inst.num_src = static_cast<u8>(num_src);
  // A buffer or scalar atomic that returns has its data register as destination too.
  const bool in_place = spec.cls == Class::mubuf || spec.cls == Class::smem;
  if (in_place && spec.flags & kAtomic && inst.mod.sc0) inst.dst[0] = inst.src[0];
}

// ---- register sets

struct RegList {
  Inst& inst;
  u8& count;
  void add(RegRange::File file, u16 first, u8 dwords) {
    const size_t at = inst.num_reads + inst.num_writes;
    if (at == inst.regs.size()) throw Fault("more registers than an instruction can name");
    inst.regs[at] = {file, dwords, first};
    ++count;
  }
  void add(const Operand& o) {
    if (o.kind == Kind::vgpr) add(RegRange::vector, o.reg, o.dwords);
    if (o.kind == Kind::sgpr) add(RegRange::scalar, o.reg, o.dwords);
  }
};

}  // namespace

void collect_registers(Inst& inst) {
  inst.num_reads = inst.num_writes = 0;
  const u32 flags = inst.op->spec.flags;
  RegList reads{inst, inst.num_reads};
  for (const Operand& o : inst.src) reads.add(o);
  const bool keeps_low_half = inst.mod.op_sel >> inst.num_src & 1;      // op_sel's bit for the destination
  if (flags & kReadsDst || inst.mod.dst_unused == 2 || keeps_low_half) {
    for (const Operand& o : inst.dst) reads.add(o);
  }
  if (flags & kReadsVcc) reads.add(RegRange::scalar, kVcc, 2);
  if (flags & kReadsExec) reads.add(RegRange::scalar, kExec, 2);
  if (flags & kReadsM0 || inst.mod.lds) reads.add(RegRange::scalar, kM0, 1);
  RegList writes{inst, inst.num_writes};
  for (const Operand& o : inst.dst) writes.add(o);
  if (flags & kWritesVcc) writes.add(RegRange::scalar, kVcc, 2);
  if (flags & kWritesExec) writes.add(RegRange::scalar, kExec, 2);
}

namespace {

void choose_handler(Inst& inst) {
  const Spec& spec = inst.op->spec;
  const bool modified = has_value_modifiers(inst);
  inst.run = modified ? spec.full : spec.plain;
  if (!inst.run) {
    throw Fault(modified ? "this operation does not take these modifiers" : "this operation has no handler");
  }
  inst.run_observed = !modified && spec.plain_observed ? spec.plain_observed : inst.run;
}

void parse_line(Text text, const u8* bytes, Inst& inst) {
  const size_t space = text.find(' ');
  const Text mnemonic = text.substr(0, space);
  inst.op = find_op(base_name(mnemonic, inst));
  if (!inst.op) throw Fault("instruction '" + std::string(mnemonic) + "' is not implemented");
  take_immediate(bytes, inst);
  if (inst.op->spec.cls == Class::wait) {
    take_wait_counts(inst);
  } else if (space != Text::npos) {
    const Line line = split(text.substr(space));
    for (size_t i = 0; i < line.num_modifiers; ++i) parse_modifier(line.modifiers[i], bytes, inst);
    const auto sel0 = inst.src[0].sel, sel1 = inst.src[1].sel;
    parse_operands(line, inst);
    inst.src[0].sel = sel0;
    inst.src[1].sel = sel1;
  }
  collect_registers(inst);
  choose_handler(inst);
}

}  // namespace

void parse_inst(std::string_view text, const u8* bytes, Inst& inst) {
  while (!text.empty() && (text[0] == '\t' || text[0] == ' ')) text.remove_prefix(1);
  inst.text = text;
  for (char& c : inst.text) {
    if (c == '\t') c = ' ';
  }
  try {
    parse_line(inst.text, bytes, inst);
  } catch (const Fault& fault) {
    set_error(inst, fault.what());
  }
}

}  // namespace sim

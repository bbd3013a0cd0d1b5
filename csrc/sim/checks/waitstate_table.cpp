// SPDX-License-Identifier: MIT
// The wait states of gfx942, one row per category. Source: LLVM's hazard recogniser, asked pair by pair
// (tests/sim/test_waitstate_llvm.py repeats that), and the CDNA3 ISA document, section 4.5. They differ on wide buffer
// stores at an offset in an SGPR: 0 in the document and in LLVM before 23; 1 since then, as a GPU stored later values.
#include "checks/waitstate.h"

#include <algorithm>

#include "isa/mfma_shape.h"
#include "load/loader.h"

namespace sim {
namespace {

constexpr u32 kAnyMfma = kRoleXdl | kRoleMfma32 | kRoleMfma64Large | kRoleMfma64Small;
constexpr u32 kNotXdl = kRoleMfma32 | kRoleMfma64Large | kRoleMfma64Small;
constexpr u32 kMemory = kRoleVmem | kRoleDs;

// Assembly that AMD ships for gfx942 (AITER's hsa/gfx942) omits these, and its results are right.
constexpr const char* kManual = "LLVM's hazard recogniser and the CDNA3 ISA document, section 4.5";

const WaitRow kRows[] = {
    {"XDL result to VALU", kRoleXdl, kRoleValu, Part::writes, Part::reads, 3, 1, kManual},
    {"XDL result overwritten by VALU", kRoleXdl, kRoleValu, Part::writes, Part::blind_writes, 3, 1},
    {"XDL result to memory", kRoleXdl, kMemory, Part::writes, Part::touches, 3, 1},
    {"XDL result to MFMA A or B", kRoleXdl, kAnyMfma, Part::writes, Part::src_ab, 3, 1},
    {"two-pass MFMA result to the same C", kRoleTwoPass, kAnyMfma, Part::writes, Part::same_c, 2, 0},
    {"XDL result to an overlapping C", kRoleXdl, kAnyMfma, Part::writes, Part::other_c, 1, 1},
    {"XDL C overwritten", kRoleXdl, kRoleValu | kMemory, Part::src_c, Part::writes, -1, 1},
    {"f32 MFMA result to VALU or memory", kRoleMfma32, kRoleValu | kMemory, Part::writes, Part::touches, 2, 1},
    {"f32 MFMA result to MFMA A or B", kRoleMfma32, kAnyMfma, Part::writes, Part::src_ab, 2, 1},
    {"f32 MFMA result to an overlapping C", kRoleMfma32, kNotXdl, Part::writes, Part::other_c, 0, 1},
    {"f64 16x16 result to memory", kRoleMfma64Large, kMemory, Part::writes, Part::reads, 18, 0},
    {"f64 16x16 result to VALU", kRoleMfma64Large, kRoleValu, Part::writes, Part::touches, 11, 0},
    {"f64 16x16 result overwritten by a load", kRoleMfma64Large, kMemory, Part::writes, Part::writes, 11, 0},
    {"f64 16x16 result to MFMA A or B", kRoleMfma64Large, kAnyMfma, Part::writes, Part::src_ab, 11, 0},
    {"f64 16x16 result to an overlapping C", kRoleMfma64Large, kNotXdl, Part::writes, Part::other_c, 9, 0},
    {"f64 4x4 result to memory", kRoleMfma64Small, kMemory, Part::writes, Part::reads, 9, 0},
    {"f64 4x4 result to VALU", kRoleMfma64Small, kRoleValu, Part::writes, Part::touches, 6, 0},
    {"f64 4x4 result overwritten by a load", kRoleMfma64Small, kMemory, Part::writes, Part::writes, 6, 0},
    {"f64 4x4 result to MFMA A or B", kRoleMfma64Small, kAnyMfma, Part::writes, Part::src_ab, 6, 0},
    {"f64 4x4 result to the same C", kRoleMfma64Small, kRoleMfma64Small, Part::writes, Part::same_c, 4, 0},
    {"f64 4x4 result to an overlapping C", kRoleMfma64Small, kNotXdl, Part::writes, Part::other_c, 4, 0},
    {"f64 MFMA to v_fma_f64", kRoleMfma64Large | kRoleMfma64Small, kRoleFma64, Part::none, Part::none, 2, 0},
    {"VALU result to MFMA", kRoleNotDot, kAnyMfma, Part::writes, Part::reads, 2, 0},
    {"VALU writes EXEC, MFMA", kRoleWritesSgpr, kAnyMfma, Part::exec, Part::none, 4, 0},
    {"VALU result to DPP", kRoleValu, kRoleDpp, Part::writes, Part::reads, 2, 0, kManual},
    {"VALU writes EXEC, DPP", kRoleWritesSgpr, kRoleDpp, Part::exec, Part::none, 5, 0},
    {"VALU writes SGPR to vector memory", kRoleWritesSgpr, kRoleVmem, Part::scalar_writes, Part::scalar_reads, 5, 0},
    {"VALU writes SGPR to VALU", kRoleWritesSgpr, kRoleReadsSgpr, Part::scalar_writes, Part::no_mask, 2, 0, kManual},
    {"VALU writes mask to VALU", kRoleWritesSgpr, kRoleReadsSgpr, Part::scalar_writes, Part::mask, 2, 0, kManual},
    {"VALU writes SGPR to lane select", kRoleWritesSgpr, kRoleLaneSelect, Part::scalar_writes, Part::lane, 4, 0},
    {"VALU writes VCC to v_div_fmas", kRoleWritesSgpr, kRoleDivFmas, Part::scalar_writes, Part::vcc, 4, 0},
    {"VALU writes EXEC, lane access", kRoleWritesSgpr, kRoleReadLane | kRoleWriteLane, Part::exec, Part::none, 4, 0},
    {"VALU result to v_readlane", kRoleValu, kRoleReadLane, Part::writes, Part::reads, 1, 0},
    {"transcendental result to VALU", kRoleTrans, kRolePlain, Part::writes, Part::reads, 1, 0},
    {"partial result to VALU", kRolePartial, kRoleValu, Part::writes, Part::reads, 1, 0},
    {"wide store's data overwritten", kRoleWideStore, kRoleValu | kAnyMfma, Part::store_data, Part::writes, 2, 0},
    {"data of a wide store at an SGPR offset overwritten", kRoleWideStoreAtSgpr, kRoleValu | kAnyMfma,
     Part::store_data, Part::writes, 1, 0},
    {"dot product to another operation", kRoleDot, kRoleValu | kMemory, Part::writes, Part::dot_other, 3, 0},
    {"dot product to its own A or B", kRoleDot, kRoleDot, Part::writes, Part::dot_ab, 3, 0},
    {"SALU writes M0 to its user", kRoleWritesM0, kRoleUsesM0, Part::m0, Part::none, 1, 0},
    {"SALU writes M0 to LDS-DMA", kRoleWritesM0, kRoleLdsDma, Part::m0, Part::none, 1, 0, kManual},
    {"s_setreg to the same register", kRoleSetReg, kRoleGetReg, Part::hwreg, Part::none, 2, 0},
};

u32 mfma_roles(std::string_view name, u8 passes) {
  const u32 two = passes == 2 ? kRoleTwoPass : 0;
  if (name.ends_with("_f64")) return passes == 4 ? kRoleMfma64Small : kRoleMfma64Large;
  return two | (name.ends_with("_f32") ? kRoleMfma32 : kRoleXdl);
}

bool has_scalar(std::span<const RegRange> ranges) {
  for (const RegRange& r : ranges) {
    if (r.file == RegRange::scalar) return true;
  }
  return false;
}

u32 valu_roles(const Inst& i) {
  const std::string_view name = i.op->name;
  const bool dot = name.starts_with("v_dot");
  u32 roles = kRoleValu | (i.op->spec.cls == Class::trans ? kRoleTrans : kRolePlain) | (dot ? kRoleDot : kRoleNotDot);
  if ((i.mod.sdwa && i.mod.dst_sel != 6) || i.mod.op_sel >> i.num_src) roles |= kRolePartial;
  if (name == "v_fma_f64" || name == "v_fmac_f64") roles |= kRoleFma64;
  if (name.starts_with("v_div_fmas")) roles |= kRoleDivFmas;
  if (name == "v_readlane_b32" || name == "v_writelane_b32") roles |= kRoleLaneSelect;
  if (name == "v_readlane_b32" || name == "v_readfirstlane_b32") roles |= kRoleReadLane;
  if (name == "v_writelane_b32") roles |= kRoleWriteLane;
  if (i.mod.dpp != DppCtrl::none) roles |= kRoleDpp;
  return roles;
}

// The store's data: FLAT, GLOBAL and SCRATCH print it second, MUBUF first.
const Operand& store_data(const Inst& i) { return i.src[i.op->spec.cls == Class::mubuf ? 0 : 1]; }

u32 memory_roles(const Inst& i) {
  if (!is_vector_memory(i.op->spec.cls)) return kRoleDs | (i.op->name.ends_with("_addtid_b32") ? kRoleUsesM0 : 0);
  u32 roles = kRoleVmem | (is_lds_dma(i) ? kRoleLdsDma : 0);
  const bool stores = i.op->spec.flags & (kStore | kAtomic);
  const bool at_sgpr = i.op->spec.cls == Class::mubuf && i.src[3].kind == Kind::sgpr;
  const bool wide = stores && store_data(i).kind == Kind::vgpr && store_data(i).dwords > 2;
  if (wide) roles |= at_sgpr ? kRoleWideStoreAtSgpr : kRoleWideStore;
  return roles;
}

u32 scalar_roles(const Inst& i) {
  const std::string_view name = i.op->name;
  u32 roles = 0;
  for (const RegRange& r : i.writes()) {
    if (r.file == RegRange::scalar && r.first <= kM0 && r.first + r.count > kM0) roles |= kRoleWritesM0;
  }
  if (name.starts_with("s_setreg")) roles |= kRoleSetReg | kRoleGetReg;
  if (name.starts_with("s_getreg")) roles |= kRoleGetReg;
  if (name.starts_with("s_sendmsg") || name.starts_with("s_movrel") || name == "s_ttracedata") roles |= kRoleUsesM0;
  return roles;
}

IssueFacts facts_of(const Inst& i) {
  IssueFacts f;
  if (!i.op) return f;
  if (i.op->name == "s_nop") f.states = static_cast<u8>((i.imm & 15) + 1);
  switch (i.op->spec.cls) {
    case Class::mfma:
      f.passes = passes_of(i.op->name);
      f.roles = mfma_roles(i.op->name, f.passes);
      break;
    case Class::valu:
    case Class::trans: f.roles = valu_roles(i); break;
    case Class::ds:
    case Class::global:
    case Class::scratch:
    case Class::mubuf:
    case Class::flat: f.roles = memory_roles(i); break;
    default: f.roles = scalar_roles(i);
  }
  if (f.roles & (kRoleValu | kAnyMfma)) {
    if (has_scalar(i.writes())) f.roles |= kRoleWritesSgpr;
    if (has_scalar(i.reads())) f.roles |= kRoleReadsSgpr;
  }
  static_assert(std::size(kRows) <= 64);
  for (size_t k = 0; k < std::size(kRows); ++k) {
    f.earlier |= u64{(f.roles & kRows[k].from) != 0} << k;
    f.later |= u64{(f.roles & kRows[k].to) != 0} << k;
  }
  return f;
}

RegRange overlap(const RegRange& a, const RegRange& b) {
  const u32 first = std::max(a.first, b.first);
  const u32 end = std::min<u32>(a.first + a.count, b.first + b.count);
  if (a.file != b.file || first >= end) return {a.file, 0, 0};
  return {a.file, static_cast<u8>(end - first), static_cast<u16>(first)};
}

RegRange range_of(const Operand& o) {
  if (o.kind == Kind::vgpr) return {RegRange::vector, o.dwords, o.reg};
  if (o.kind == Kind::sgpr) return {RegRange::scalar, o.dwords, o.reg};
  return {RegRange::vector, 0, 0};
}

// v_smfmac accumulates into its destination, and its third source is an index.
bool accumulates(const Inst& i) { return i.op->spec.flags & kReadsDst; }
RegRange src_c(const Inst& i) { return range_of(accumulates(i) ? i.dst[0] : i.src[2]); }

// The mask of v_cndmask, or the carry of v_addc and v_subb: LLVM prints it in every encoding.
RegRange mask_of(const Inst& i) {
  const std::string_view name = i.op->name;
  const bool has = name.starts_with("v_cndmask") || name.starts_with("v_addc") || name.starts_with("v_subb");
  return has ? range_of(i.src[2]) : RegRange{RegRange::scalar, 0, 0};
}

// Registers of a part; `other` is the earlier instruction when the part depends on it.
struct Parts {
  std::array<RegRange, 10> list;
  size_t count = 0;
  void add(const RegRange& r) {
    if (r.count) list[count++] = r;
  }
  void add(std::span<const RegRange> ranges, RegRange::File file) {
    for (const RegRange& r : ranges) {
      if (r.file == file) add(r);
    }
  }
};

Parts parts_of(const Inst& i, Part part, const Inst& earlier) {
  Parts p;
  const RegRange result = range_of(earlier.dst[0]), c = src_c(i);
  const bool same = c.first == result.first && c.count == result.count && c.file == result.file;
  switch (part) {
    case Part::none: break;
    case Part::writes: p.add(i.writes(), RegRange::vector); break;
    case Part::reads: p.add(i.reads(), RegRange::vector); break;
    case Part::touches: p.add(i.registers(), RegRange::vector); break;
    case Part::blind_writes:
      for (const RegRange& w : i.writes()) {
        bool read = false;
        for (const RegRange& r : i.reads()) read |= overlap(w, r).count != 0;
        if (w.file == RegRange::vector && !read) p.add(w);
      }
      break;
    case Part::src_ab:
      p.add(range_of(i.src[0])), p.add(range_of(i.src[1]));
      if (accumulates(i)) p.add(range_of(i.src[2]));
      break;
    case Part::src_c: p.add(c); break;
    case Part::same_c: if (same) p.add(c); break;
    case Part::other_c: if (!same) p.add(c); break;
    case Part::store_data: p.add(range_of(store_data(i))); break;
    case Part::scalar_writes: p.add(i.writes(), RegRange::scalar); break;
    case Part::scalar_reads: p.add(i.reads(), RegRange::scalar); break;
    case Part::mask: p.add(mask_of(i)); break;
    case Part::no_mask: {
      const RegRange mask = mask_of(i);
      for (const RegRange& r : i.reads()) {
        if (r.file == RegRange::scalar && !(mask.count && r.first == mask.first && r.count == mask.count)) p.add(r);
      }
      break;
    }
    case Part::lane: p.add(range_of(i.src[1])); break;
    case Part::vcc: p.add({RegRange::scalar, 2, kVcc}); break;
    case Part::dot_ab:
      if (i.op == earlier.op) p.add(range_of(i.src[0])), p.add(range_of(i.src[1]));
      break;
    case Part::dot_other:
      if (i.op != earlier.op) p.add(i.registers(), RegRange::vector);
      break;
    case Part::exec:
    case Part::m0:
    case Part::hwreg: break;                   // decided by meeting()
  }
  return p;
}

bool writes_scalar(const Inst& i, u16 reg) {
  for (const RegRange& r : i.writes()) {
    if (r.file == RegRange::scalar && r.first <= reg + 1 && r.first + r.count > reg) return true;
  }
  return false;
}

}  // namespace

std::span<const WaitRow> wait_rows() { return kRows; }

void fill(IssueTable& table, const Code& code) {
  table.facts.reserve(code.insts.size());
  for (const Inst& i : code.insts) table.facts.push_back(facts_of(i));
  table.clean = std::make_unique<std::array<std::atomic<u64>, IssueTable::kHistories>[]>(code.insts.size());
}

RegRange meeting(const WaitRow& row, const Inst& earlier, const Inst& later) {
  constexpr RegRange kNo{RegRange::vector, 0, 0};
  switch (row.earlier) {
    case Part::none: return range_of(earlier.dst[0]);
    case Part::m0: return {RegRange::scalar, 1, kM0};
    case Part::exec: return writes_scalar(earlier, kExec) ? RegRange{RegRange::scalar, 2, kExec} : kNo;
    case Part::hwreg:                          // the register's number is in the immediate
      return (earlier.imm & 63) == (later.imm & 63) ? RegRange{RegRange::scalar, 0xff, 0} : kNo;
    default: break;
  }
  const Parts a = parts_of(earlier, row.earlier, earlier), b = parts_of(later, row.later, earlier);
  for (size_t x = 0; x < a.count; ++x) {
    for (size_t y = 0; y < b.count; ++y) {
      const RegRange both = overlap(a.list[x], b.list[y]);
      if (both.count) return both;
    }
  }
  return kNo;
}

}  // namespace sim

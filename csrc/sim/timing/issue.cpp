// SPDX-License-Identifier: MIT
#include "timing/issue.h"

#include "isa/mfma_shape.h"

namespace sim::timing {
namespace {

bool is_wide_multiply(std::string_view name) {
  return name.starts_with("v_mul_lo_u32") || name.starts_with("v_mul_hi_") || name.starts_with("v_mad_u64_u32") ||
         name.starts_with("v_mad_i64_i32");
}

void set_memory(const Inst& i, IssueFacts& f) {
  const Spec& spec = i.op->spec;
  f.stores = spec.flags & kStore;
  f.atomic = spec.flags & kAtomic;
  f.to_lds = is_lds_dma(i);
  const std::string_view name = i.op->name;
  const bool is_float = name.ends_with("_f32") || name.ends_with("f16") || name.ends_with("_f64");
  const bool is_memory = spec.cls != Class::ds && spec.cls != Class::smem;
  f.meets = is_memory && (f.atomic ? !is_float : i.mod.sc1);
  f.has_effects = f.stores || f.atomic || f.to_lds;
  f.is_shared = i.mod.sc1;
  f.passes_l1 = i.mod.sc1 || i.mod.nt;
  f.writes_back = i.op->name == "buffer_wbl2";
  f.forgets = i.op->name == "buffer_inv";
  f.on_lgkm = spec.cls == Class::ds || spec.cls == Class::smem || spec.cls == Class::flat;
}

void set_matrix(const Inst& i, const Parameters& p, IssueFacts& f) {
  const u32 passes = passes_of(i.op->name);
  f.unit = Unit::mfma;
  f.port_clk = static_cast<u16>(p.valu_clk);
  f.pipe_clk = static_cast<u16>(passes * p.pass_clk);
  f.result_clk = static_cast<u16>((passes + p.mfma_result_passes + 1) * p.pass_clk);
  f.has_effects = true;
  f.blocks_valu = i.op->name.ends_with("_f32") || i.op->name.ends_with("_f64");
}

IssueFacts facts_of(const Inst& i, const Parameters& p) {
  IssueFacts f;
  if (!i.op) return f;
  const std::string_view name = i.op->name;
  f.wave_clk = static_cast<u16>(p.issue_clk);
  f.port_clk = static_cast<u16>(p.issue_clk);
  switch (i.op->spec.cls) {
    case Class::valu:
      f.unit = Unit::valu;
      f.port_clk = static_cast<u16>(is_wide_multiply(name) ? p.wide_multiply_clk : p.valu_clk);
      f.packed = name.starts_with("v_pk_") && name.ends_with("_f32");
      break;
    case Class::trans:
      f.unit = Unit::valu;
      f.port_clk = static_cast<u16>(p.trans_clk);
      break;
    case Class::mfma: set_matrix(i, p, f); break;
    case Class::ds: f.unit = Unit::lds; break;
    case Class::global:
    case Class::flat:
    case Class::scratch:
    case Class::mubuf: f.unit = Unit::vmem; break;
    case Class::smem: f.unit = Unit::smem; break;
    case Class::salu: f.unit = Unit::salu; break;
    case Class::branch: f.unit = Unit::branch; break;
    case Class::wait:
      f.unit = Unit::wait;
      f.vmcnt = i.vmcnt, f.lgkmcnt = i.lgkmcnt;
      break;
    case Class::barrier:
      f.unit = Unit::barrier;
      f.has_effects = true;
      break;
    case Class::end: f.unit = Unit::end; break;
    case Class::other:
      f.wave_clk = static_cast<u16>(p.internal_clk);
      if (name == "s_nop") f.wave_clk = static_cast<u16>(((i.imm & 15) + 1) * p.issue_clk);
      if (name == "s_sleep") f.wave_clk = static_cast<u16>(((i.imm & 127) + 1) * 64);
      if (name == "s_setprio") f.priority = static_cast<u8>(i.imm & 3);
  }
  if (f.unit == Unit::vmem || f.unit == Unit::lds || f.unit == Unit::smem) set_memory(i, f);
  if (i.size == 8 && i.pc % 8 != 0) f.wave_clk = static_cast<u16>(f.wave_clk + p.straddle_clk);
  if (f.unit == Unit::mfma) f.result = {i.dst[0].reg, i.dst[0].dwords};
  int n = 0;
  for (int k = 0; k < 3; ++k) {
    const Operand& o = i.src[static_cast<size_t>(k)];
    if (o.kind == Kind::vgpr) f.sources[n++] = {o.reg, o.dwords};
  }
  // A destination that is written while a matrix operation still writes it waits as a reader does.
  if (f.unit != Unit::mfma && i.dst[0].kind == Kind::vgpr) f.sources[n++] = {i.dst[0].reg, i.dst[0].dwords};
  return f;
}

}  // namespace

std::vector<IssueFacts> issue_facts(const Code& code, const Parameters& parameters) {
  std::vector<IssueFacts> facts;
  facts.reserve(code.insts.size());
  for (const Inst& i : code.insts) facts.push_back(facts_of(i, parameters));
  return facts;
}

}  // namespace sim::timing

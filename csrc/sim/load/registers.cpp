// SPDX-License-Identifier: MIT
// The hardware has one file of vector registers: a0 is the register after the first ACCUM_OFFSET v registers. Compilers
// keep to the v registers before it, so decoded code has accumulation registers in rows of their own, wherever that is:
// functions are called by kernels with different offsets. Hand-written kernels use v registers beyond it, by which they
// reach accumulation registers too; the operands of such a kernel are moved to where they are on the hardware.
#include "load/registers.h"

#include <algorithm>
#include <span>

#include "load/decode.h"

namespace sim {
namespace {

std::span<Inst> instructions(Code& code, const Kernel& kernel) {
  const auto first = code.insts.begin() + code.inst_at[(kernel.entry - code.text_begin) / 4];
  return {first, std::find_if(first, code.insts.end(), [](const Inst& i) { return i.is_guard(); })};
}

bool is_accumulator(const RegRange& r) { return r.file == RegRange::vector && r.first >= kFirstAgpr; }

// A v register that is allocated and lies among the accumulation registers.
bool reaches_beyond(const Kernel& kernel, std::span<const Inst> code) {
  const u32 offset = kernel.accum_offset, rows = kernel.rows();
  return std::any_of(code.begin(), code.end(), [&](const Inst& i) {
    const auto all = i.registers();
    return std::any_of(all.begin(), all.end(), [&](const RegRange& r) {
      const u32 end = r.first + r.count;
      return r.file == RegRange::vector && !is_accumulator(r) && end > offset && end <= rows;
    });
  });
}

void move(Operand& o, u32 accum_offset) {
  if (o.kind == Kind::vgpr && o.reg >= kFirstAgpr) o.reg = static_cast<u16>(o.reg - kFirstAgpr + accum_offset);
}

// A function that is no kernel and has accumulation registers: where they are depends on the kernel that calls it.
bool has_callee(const Code& code) {
  bool is_kernel = false, starts = true;
  for (const Inst& i : code.insts) {
    const auto begins_here = [&](const Kernel& k) { return k.entry == i.pc; };
    if (starts) is_kernel = std::any_of(code.kernels.begin(), code.kernels.end(), begins_here);
    const auto all = i.registers();
    if (!is_kernel && std::any_of(all.begin(), all.end(), is_accumulator)) return true;
    starts = i.is_guard();
  }
  return false;
}

void make_one_file(const Code& code, Kernel& kernel, std::span<Inst> insts) {
  for (const Kernel& other : code.kernels) {
    if (&other == &kernel || other.entry != kernel.entry) continue;
    throw Fault("kernels " + kernel.name + " and " + other.name + " are one function, which uses v registers beyond "
                "ACCUM_OFFSET: not supported");
  }
  kernel.one_file = true;
  const bool calls = has_callee(code);
  for (Inst& i : insts) {
    if (!i.op) continue;
    if (calls && (i.op->name == "s_swappc_b64" || i.op->name == "s_call_b64")) {
      set_error(i, "a kernel that uses v registers beyond ACCUM_OFFSET calls functions with accumulation registers: "
                   "where these are in the function is not known");
      continue;
    }
    for (Operand& o : i.dst) move(o, kernel.accum_offset);
    for (Operand& o : i.src) move(o, kernel.accum_offset);
    collect_registers(i);
  }
}

void check(const Kernel& kernel, Inst& inst, const RegRange& r) {
  const auto refuse = [&](const char* kind, u32 number) {
    set_error(inst, kind + std::to_string(number) + " is beyond the registers that kernel " + kernel.name +
                        " allocates");
  };
  const u32 end = r.first + r.count;
  if (r.file == RegRange::scalar) {
    if (end > kernel.scalars() && r.first < kVcc - 4) refuse("s", end - 1);
  } else if (kernel.one_file) {
    if (end > kernel.rows()) refuse("v", end - 1);
  } else if (is_accumulator(r)) {
    if (end - kFirstAgpr > kernel.accum_rows()) refuse("a", end - kFirstAgpr - 1);
  } else if (end > kernel.arch_rows()) {
    refuse("v", end - 1);
  }
}

}  // namespace

void place_registers(Code& code, Kernel& kernel) {
  const std::span<Inst> insts = instructions(code, kernel);
  if (reaches_beyond(kernel, insts)) make_one_file(code, kernel, insts);
  for (Inst& i : insts) {
    const auto all = i.registers();
    for (const RegRange& r : all) check(kernel, i, r);
  }
}

}  // namespace sim

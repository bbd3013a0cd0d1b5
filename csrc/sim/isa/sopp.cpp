// SPDX-License-Identifier: MIT
// Control: branches, the program counter, waits, barriers, the end of a wave; hardware registers.
#include <bit>

#include "isa/salu.h"
#include "run/hostcall.h"
#include "run/placement.h"

namespace sim {
namespace {

void nothing(Wave&, const Inst&) {}
void end_program(Wave& w, const Inst&) { w.stop = Stop::ended; }
void barrier(Wave& w, const Inst&) { w.stop = Stop::barrier; }
void yield(Wave& w, const Inst&) { w.stop = Stop::yield; }
void sleep(Wave& w, const Inst& i) {
  w.waited += 64 * (static_cast<u32>(i.imm) & 127);
  w.stop = Stop::yield;
}

// Lanes as text: "lane 3", "lanes 0-4, 7".
std::string lanes_text(u64 lanes) {
  std::string text;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    const int first = lane;
    while (lane + 1 < kLanes && lanes >> (lane + 1) & 1) ++lane;
    text += (text.empty() ? "" : ", ") + std::to_string(first) + (lane > first ? "-" + std::to_string(lane) : "");
  }
  return (std::popcount(lanes) == 1 ? "lane " : "lanes ") + text;
}

// An assert says what it is about just before, on stderr.
void trap(Wave& w, const Inst&) {
  std::string why = " (abort, assert or unreachable code)";
  if (w.host && !w.host->error.empty()) {
    const std::string_view said = w.host->error;
    why = ": " + std::string(said.substr(0, said.find('\n')));
  }
  throw Fault("the kernel stopped itself in " + lanes_text(w.exec()) + why);
}
void halt(Wave&, const Inst& i) {
  if (i.imm & 1) throw Fault("s_sethalt stops the wave for a debugger");
}

void send_message(Wave& w, const Inst& i) {
  constexpr u32 kInterrupt = 1;
  if ((static_cast<u32>(i.imm) & 15) == kInterrupt && w.host) return w.group->launch->host->serve(w);
  throw Fault("of messages to the host only the interrupt of a hostcall is modelled, in kernels whose metadata have "
              "hidden_hostcall_buffer");
}

template <class F>
void branch_if(Wave& w, const Inst& i) {
  if (F{}(w)) w.jump(i.target);
}
void set_pc(Wave& w, const Inst& i) { w.jump(static_cast<i64>(scalar_source(w, i.src[0]))); }
u64 next_pc(const Inst& i) { return i.pc + i.size; }
void get_pc(Wave& w, const Inst& i) { write_scalar(w, i.dst[0], next_pc(i)); }
void swap_pc(Wave& w, const Inst& i) {
  const u64 target = scalar_source(w, i.src[0]);
  write_scalar(w, i.dst[0], next_pc(i));
  w.jump(static_cast<i64>(target));
}
void call(Wave& w, const Inst& i) {
  write_scalar(w, i.dst[0], next_pc(i));
  w.jump(i.target);
}

// ---- hardware registers: id in bits [5:0] of the immediate, offset [10:6], width - 1 [15:11]

enum HwReg { kMode = 1, kHwId = 4, kXccId = 20 };

u32 hardware_id(const Wave& w) {
  const Placement p = placement(w);
  return (p.slot & 15) | p.simd << 4 | (p.cu & 15) << 8 | (p.cu >> 4) << 13;
}

u32 read_hw_reg(const Wave& w, int id) {
  switch (id) {
    case kMode: return w.mode.bits;
    case kHwId: return hardware_id(w);
    case kXccId: return placement(w).xcd;
    default: throw Fault("hardware register " + std::to_string(id) + " is not modelled");
  }
}

u32 field_mask(u32 control) {
  const u32 width = (control >> 11 & 31) + 1;
  return width == 32 ? ~0u : (1u << width) - 1;
}

void get_register(Wave& w, const Inst& i) {
  const u32 control = static_cast<u16>(i.imm);
  write_scalar(w, i.dst[0], read_hw_reg(w, control & 63) >> (control >> 6 & 31) & field_mask(control));
}

// The run loop has a variant for an unusual mode, chosen anew when the wave pauses.
void set_mode(Wave& w, u32 bits) {
  const bool before = w.mode.unusual();
  w.mode.bits = bits;
  if (w.mode.unusual() != before) w.stop = Stop::yield;
}

void set_register(Wave& w, const Inst& i) {
  const u32 control = static_cast<u16>(i.imm), offset = control >> 6 & 31, mask = field_mask(control) << offset;
  if ((control & 63) != kMode) throw Fault("s_setreg on a hardware register other than MODE is not modelled");
  const u32 value = static_cast<u32>(scalar_source(w, i.src[1])) << offset;
  const u32 bits = (w.mode.bits & ~mask) | (value & mask);
  set_mode(w, bits);
}

void set_skip(Wave& w, const Inst& i) {
  const u64 bit = scalar_source(w, i.src[0]) >> (scalar_source(w, i.src[1]) & 31) & 1;
  set_mode(w, bit ? w.mode.bits | Mode::kSkip : w.mode.bits & ~Mode::kSkip);
}

// ---- VGPR indexing (isa/mode.cpp): M0 holds the index in [7:0] and which operands it is for in [15:12]

void set_index_bits(Wave& w, u32 mask, u32 value) { w.s[kM0] = (w.s[kM0] & ~mask) | (value & mask); }

void indexing_on(Wave& w, const Inst& i) {               // the operands' field is where SOPC has its second source
  const u32 index = static_cast<u32>(scalar_source(w, i.src[0])), operands = static_cast<u32>(i.imm) >> 8;
  set_index_bits(w, 0xf0ff, operands << 12 | (index & 0xff));
  set_mode(w, w.mode.bits | Mode::kIndexing);
}
void indexing_off(Wave& w, const Inst&) { set_mode(w, w.mode.bits & ~Mode::kIndexing); }
void indexed_operands(Wave& w, const Inst& i) { set_index_bits(w, 0xf000, static_cast<u32>(i.imm) << 12); }
void register_index(Wave& w, const Inst& i) {
  set_index_bits(w, 0xff, static_cast<u32>(scalar_source(w, i.src[0])));
}

constexpr Spec control(Class cls, Handler handler, u32 flags = 0) {
  Spec s;
  s.cls = cls;
  s.flags = flags;
  s.plain = handler;
  return s;
}
template <class F>
constexpr Spec branch(F, u32 flags = 0) { return control(Class::branch, branch_if<F>, flags); }

constexpr Spec jump(Handler handler, Type dst, Type src) {
  Spec s = scalar_spec(handler, {dst}, {src}, 0);
  s.cls = Class::branch;
  return s;
}

const Op kOps[] = {
    {"s_nop", control(Class::other, nothing)},
    {"s_waitcnt", control(Class::wait, nothing)},
    {"s_barrier", control(Class::barrier, barrier)},
    {"s_endpgm", control(Class::end, end_program)},
    {"s_sleep", control(Class::other, sleep)},
    {"s_setprio", control(Class::other, nothing)},
    {"s_wakeup", control(Class::other, nothing)},
    {"s_icache_inv", control(Class::other, nothing)},
    {"s_ttracedata", control(Class::other, nothing)},
    {"s_incperflevel", control(Class::other, nothing)},
    {"s_decperflevel", control(Class::other, nothing)},
    {"s_sethalt", control(Class::other, halt)},
    {"s_trap", control(Class::other, trap)},
    {"s_sendmsg", scalar_spec(send_message, {}, {Type::b32}, kReadsM0)},
    {"s_sendmsghalt", scalar_spec(send_message, {}, {Type::b32}, kReadsM0)},

    {"s_branch", branch([](const Wave&) { return true; })},
    {"s_cbranch_scc0", branch([](const Wave& w) { return !w.scc; }, kReadsScc)},
    {"s_cbranch_scc1", branch([](const Wave& w) { return w.scc; }, kReadsScc)},
    {"s_cbranch_vccz", branch([](const Wave& w) { return w.vcc() == 0; }, kReadsVcc)},
    {"s_cbranch_vccnz", branch([](const Wave& w) { return w.vcc() != 0; }, kReadsVcc)},
    {"s_cbranch_execz", branch([](const Wave& w) { return w.exec() == 0; }, kReadsExec)},
    {"s_cbranch_execnz", branch([](const Wave& w) { return w.exec() != 0; }, kReadsExec)},
    // Their conditions are set by a debugger's trap handler only.
    {"s_cbranch_cdbgsys", branch([](const Wave&) { return false; })},
    {"s_cbranch_cdbguser", branch([](const Wave&) { return false; })},
    {"s_cbranch_cdbgsys_or_user", branch([](const Wave&) { return false; })},
    {"s_cbranch_cdbgsys_and_user", branch([](const Wave&) { return false; })},
    {"s_getpc_b64", scalar_spec(get_pc, {Type::b64}, {}, 0)},
    {"s_setpc_b64", jump(set_pc, Type::none, Type::b64)},
    {"s_swappc_b64", jump(swap_pc, Type::b64, Type::b64)},
    {"s_call_b64", jump(call, Type::b64, Type::b32)},

    {"s_set_gpr_idx_on", scalar_spec(indexing_on, {}, {Type::b32, Type::b32}, 0)},
    {"s_set_gpr_idx_off", scalar_spec(indexing_off, {}, {}, 0)},
    {"s_set_gpr_idx_mode", scalar_spec(indexed_operands, {}, {Type::b32}, kReadsM0)},
    {"s_set_gpr_idx_idx", scalar_spec(register_index, {}, {Type::b32}, kReadsM0)},
    {"s_getreg_b32", scalar_spec(get_register, {Type::b32}, {Type::b32}, 0)},
    {"s_setvskip", scalar_spec(set_skip, {}, {Type::b32, Type::b32}, 0)},
    {"s_setreg_b32", scalar_spec(set_register, {}, {Type::b32, Type::b32}, 0)},
    {"s_setreg_imm32_b32", scalar_spec(set_register, {}, {Type::b32, Type::b32}, 0)},
};

}  // namespace

std::span<const Op> sopp_ops() { return kOps; }

}  // namespace sim

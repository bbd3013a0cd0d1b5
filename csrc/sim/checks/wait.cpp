// SPDX-License-Identifier: MIT
// Wait counters: which operations are in flight, and which registers are used before their data has arrived. vmcnt
// retires in issue order, and so do LDS operations among themselves: lgkmcnt(N) leaves the latest N of them at most.
// Of a scalar load or a FLAT access to LDS, only lgkmcnt(0) proves anything.
#include <bit>

#include "checks/state.h"

namespace sim {
namespace {

constexpr u32 kVmMax = 63, kLgkmMax = 15;      // an issue beyond these stalls until the oldest is done

u64 field(const u64* words, const RegRange& r) {
  const u32 shift = r.first % 64, word = r.first / 64;
  u64 bits = words[word] >> shift;
  if (shift + r.count > 64) bits |= words[word + 1] << (64 - shift);
  return bits & ((u64{1} << r.count) - 1);
}

bool out_of_order(const Pending& op) {
  return op.inst->op->spec.cls == Class::smem || op.inst->op->spec.cls == Class::flat;
}

template <class F>
void for_dsts(const Pending& op, F f) {
  for (u32 k = 0; k < op.num_dsts; ++k) {
    const RegRange& r = op.inst->writes()[k];
    for (u32 reg = r.first; reg < u32{r.first} + r.count; ++reg) f(r.file, reg);
  }
}

void mark(WaitState& s, u8 slot) {
  for_dsts(s.ops[slot], [&](RegRange::File file, u32 reg) {
    (file == RegRange::vector ? s.vector_owner : s.scalar_owner)[reg] = slot;
    (file == RegRange::vector ? s.vector : s.scalar)[reg / 64] |= u64{1} << reg % 64;
  });
  s.num_pending += s.ops[slot].num_dsts != 0;
}

// The operation's registers have arrived. A register that a later operation writes too stays in flight.
void unmark(WaitState& s, u8 slot) {
  Pending& op = s.ops[slot];
  s.num_pending -= op.num_dsts != 0;
  for_dsts(op, [&](RegRange::File file, u32 reg) {
    if ((file == RegRange::vector ? s.vector_owner : s.scalar_owner)[reg] != slot) return;
    (file == RegRange::vector ? s.vector : s.scalar)[reg / 64] &= ~(u64{1} << reg % 64);
  });
  op.num_dsts = 0;
}

void retire(Wave& w, u8 slot) {
  WaitState& s = w.checks->wait;
  Pending& op = s.ops[slot];
  if (op.on_vm || op.on_lgkm) return;
  unmark(s, slot);
  LdsShadow& lds = w.group->checks->lds_shadow;
  for (u32 stamp = op.first_record; stamp < op.end_record; ++stamp) {
    if (lds.known(stamp)) lds.record(stamp).retired = true;
  }
}

void pop_vm(Wave& w, u32 leave) {
  WaitState& s = w.checks->wait;
  while (s.vm.size() > leave) {
    const u8 slot = s.vm.pop();
    s.ops[slot].on_vm = false;
    retire(w, slot);
  }
}

bool lgkm_in_order(const WaitState& s) {
  for (u32 k = 0; k < s.lgkm.size(); ++k) {
    if (out_of_order(s.ops[s.lgkm.at(k)])) return false;
  }
  return true;
}

u32 count_lds(const WaitState& s) {
  u32 n = 0;
  for (u32 k = 0; k < s.lgkm.size(); ++k) n += !out_of_order(s.ops[s.lgkm.at(k)]);
  return n;
}

void retire_lgkm(Wave& w, u8 slot) {
  w.checks->wait.ops[slot].on_lgkm = false;
  retire(w, slot);
}

void pop_lgkm(Wave& w, u32 leave) {
  WaitState& s = w.checks->wait;
  if (!leave || lgkm_in_order(s)) {
    while (s.lgkm.size() > leave) retire_lgkm(w, s.lgkm.pop());
    return;
  }
  // LDS operations return in order among themselves: no more than `leave` of them, the latest, are still in flight.
  const u32 lds = count_lds(s);
  u32 done = lds > leave ? lds - leave : 0;
  Counter rest;
  while (s.lgkm.size()) {
    const u8 slot = s.lgkm.pop();
    if (done && !out_of_order(s.ops[slot])) {
      --done;
      retire_lgkm(w, slot);
    } else {
      rest.push(slot);
    }
  }
  s.lgkm = rest;
}

u32 issued_after(const Counter& c, u8 slot) {
  for (u32 k = 0; k < c.size(); ++k) {
    if (c.at(k) == slot) return c.size() - 1 - k;
  }
  return 0;
}

// The lgkmcnt that a wait for this operation needs.
u32 lgkm_fix(const WaitState& s, u8 slot) {
  if (out_of_order(s.ops[slot])) return 0;
  u32 after = 0;
  for (u32 k = s.lgkm.size(); k-- && s.lgkm.at(k) != slot;) after += !out_of_order(s.ops[s.lgkm.at(k)]);
  return after;
}

std::string fix_for(const WaitState& s, u8 slot) {
  const Pending& op = s.ops[slot];
  std::string fix = "fix: s_waitcnt";
  if (op.on_vm) fix += " vmcnt(" + std::to_string(issued_after(s.vm, slot)) + ")";
  if (op.on_lgkm) fix += " lgkmcnt(" + std::to_string(lgkm_fix(s, slot)) + ")";
  return fix;
}

// Loads of one counter return in order, so overwriting a load in flight by another of its kind is safe.
bool ordered_writes(const Inst& earlier, const Inst& later) {
  const Class a = earlier.op->spec.cls, b = later.op->spec.cls;
  return (is_vector_memory(a) && is_vector_memory(b)) || (a == Class::ds && b == Class::ds);
}

void check_registers(Wave& w, const Inst& i, std::span<const RegRange> ranges, bool writes) {
  WaitState& s = w.checks->wait;
  for (const RegRange& r : ranges) {
    const bool vector = r.file == RegRange::vector;
    const u64 hit = field(vector ? s.vector : s.scalar, r);
    if (!hit) continue;
    const u32 index = std::countr_zero(hit);
    const u8 slot = (vector ? s.vector_owner : s.scalar_owner)[r.first + index];
    const Pending& op = s.ops[slot];
    if (writes && ordered_writes(*op.inst, i)) continue;
    LaunchChecks& checks = launch_checks(w);
    if (checks.on(kCheckWait) && checks.first("wait", i)) {
      add_report(w, i, "wait", w.exec(), 0,
                 (writes ? "overwrites " : "reads ") + name_of(w, r, index) + ", which " + place_of(w, *op.inst) +
                     " (issued " + std::to_string(w.checks->executed - op.issued) +
                     " instructions ago) is still loading; " + fix_for(s, slot),
                 op.inst);
    }
    unmark(s, slot);
  }
}

u8 num_vector_writes(const Inst& i) {
  u8 n = 0;
  for (const RegRange& r : i.writes()) n += r.file == RegRange::vector;
  return n;
}

}  // namespace

void wait_begin(WaveChecks& c) { c.wait = WaitState{}; }

void wait_before(Wave& w, const Inst& i) {
  WaitState& s = w.checks->wait;
  if (s.num_pending) {
    check_registers(w, i, i.reads(), false);
    check_registers(w, i, i.writes(), true);
  }
  if (i.op->spec.cls == Class::wait) {
    pop_vm(w, i.vmcnt < kVmMax ? i.vmcnt : ~0u);
    pop_lgkm(w, i.lgkmcnt < kLgkmMax ? i.lgkmcnt : ~0u);
  }
}

void wait_after(Wave& w, const Inst& i) {
  const Spec& spec = i.op->spec;
  WaveChecks& c = *w.checks;
  bool vm = false, lgkm = false;
  switch (spec.cls) {
    case Class::ds: lgkm = true; break;
    case Class::smem: lgkm = i.num_writes != 0; break;
    case Class::global:
    case Class::scratch: vm = true; break;
    case Class::mubuf: vm = i.op->name != "buffer_inv"; break;   // buffer_wbl2 counts, the invalidate does not
    case Class::flat:                          // compilers wait only for the spaces that they cannot exclude
      lgkm = c.flat_spaces & 2;
      vm = !lgkm || c.flat_spaces & 1;
      break;
    default: return;
  }
  c.flat_spaces = 0;
  if (!vm && !lgkm) return;
  WaitState& s = c.wait;
  while (s.ops[s.next % 128].on_vm || s.ops[s.next % 128].on_lgkm) ++s.next;  // a load can outlast many LDS accesses
  const u8 slot = s.next++ % 128;
  Pending& op = s.ops[slot];
  const LdsShadow& lds = w.group->checks->lds_shadow;
  const bool arrives = spec.cls == Class::smem || w.exec() != 0;
  const u8 num_dsts = !arrives ? 0 : spec.cls == Class::smem ? i.num_writes : num_vector_writes(i);
  op = {&i, c.executed, c.first_record, lds.next(), num_dsts, vm, lgkm};
  mark(s, slot);
  if (vm) {
    s.vm.push(slot);
    pop_vm(w, kVmMax);
  }
  if (lgkm) {
    s.lgkm.push(slot);
    if (s.lgkm.size() > kLgkmMax && lgkm_in_order(s)) pop_lgkm(w, kLgkmMax);
    else if (s.lgkm.size() > 4 * kLgkmMax) pop_lgkm(w, 0);       // because this queue has an end
  }
}

std::string wait_for_record(const Wave& w, u32 stamp) {
  const WaitState& s = w.checks->wait;
  for (const Counter* c : {&s.vm, &s.lgkm}) {
    for (u32 k = 0; k < c->size(); ++k) {
      const Pending& op = s.ops[c->at(k)];
      if (stamp >= op.first_record && stamp < op.end_record) return fix_for(s, c->at(k));
    }
  }
  return "fix: wait before the barrier";
}

}  // namespace sim

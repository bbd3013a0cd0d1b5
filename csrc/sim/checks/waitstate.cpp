// SPDX-License-Identifier: MIT
// Wait states: two instructions of a wave that are too close together. Every instruction counts one wait state, s_nop N
// counts N + 1. The recent producers of a wave are kept with the wait-state number at which they issued.
#include "checks/waitstate.h"

#include "checks/state.h"

namespace sim {
namespace {

constexpr u32 kAnyMfma = kRoleXdl | kRoleMfma32 | kRoleMfma64Large | kRoleMfma64Small;
constexpr u64 kLongest = 19, kLongestOther = 5;        // the largest distances of the table, after MFMA and else

u64 states_of(const Inst& i) { return i.op->name == "s_nop" ? static_cast<u64>(i.imm & 15) + 1 : 1; }

std::string nops(u64 states) {
  std::string text;
  for (; states; states -= std::min<u64>(states, 8)) {
    text += (text.empty() ? "s_nop " : ", s_nop ") + std::to_string(std::min<u64>(states, 8) - 1);
  }
  return text;
}

// A later MFMA that writes the register has taken the place of `record`'s result.
bool replaced(const WaitStates& s, const Issued* record, const RegRange& reg) {
  for (u32 k = s.next; k-- > 0 && s.next - k <= kNumIssued;) {
    const Issued& r = s.recent[k % kNumIssued];
    if (&r == record) return false;
    if (!(r.roles & kAnyMfma)) continue;
    const Operand& d = r.inst->dst[0];
    if (d.reg < reg.first + reg.count && reg.first < d.reg + d.dwords) return true;
  }
  return false;
}

struct Hit {
  const WaitRow* row = nullptr;
  const Issued* earlier = nullptr;
  RegRange reg{};
  u64 missing = 0, between = 0, needed = 0;
};

void visit(const WaitStates& s, const Issued& e, const Inst& i, const IssueFacts& f, Hit& worst) {
  const u64 between = s.clock - e.clock - 1;
  for (const WaitRow& row : wait_rows()) {
    if (!(e.roles & row.from) || !(f.roles & row.to)) continue;
    const i64 needed = row.states + row.per_pass * static_cast<i64>(e.passes);
    const i64 missing = needed - static_cast<i64>(between);
    if (missing <= static_cast<i64>(worst.missing)) continue;
    const RegRange reg = meeting(row, *e.inst, i);
    if (!reg.count) continue;
    const bool result = (e.roles & kAnyMfma) && row.earlier == Part::writes;
    if (result && replaced(s, &e, reg)) continue;
    worst = {&row, &e, reg, static_cast<u64>(missing), between, static_cast<u64>(needed)};
  }
}

void report(Wave& w, const Inst& i, const Hit& hit) {
  if (!launch_checks(w).first("waitstate", i)) return;
  const bool named = hit.row->earlier != Part::none && hit.reg.count != 0xff;
  add_report(w, i, "waitstate", w.exec(), 0,
             std::string(hit.row->name) + (named ? " (" + name_of(hit.reg) + ")" : "") + ": " +
                 std::to_string(hit.between) + " wait states after " + place_of(w, *hit.earlier->inst) + ", " +
                 std::to_string(hit.needed) + " are needed; fix: " + nops(hit.missing) + " before it",
             hit.earlier->inst);
}

}  // namespace

void waitstate_begin(WaveChecks& c) { c.wait_states = WaitStates{}; }

void waitstate_before(Wave& w, const Inst& i) {
  WaitStates& s = w.checks->wait_states;
  const IssueFacts& f = launch_checks(w).facts[i.index];
  if (f.from) {
    const u64 window = s.clock < s.mfma_until ? kLongest : kLongestOther;
    Hit worst;
    for (u32 k = s.next; k-- > 0 && s.next - k <= kNumIssued;) {
      const Issued& e = s.recent[k % kNumIssued];
      if (s.clock - e.clock > window) break;
      if (e.roles & f.from) visit(s, e, i, f, worst);
    }
    if (worst.row) report(w, i, worst);
  }
  if (f.roles) {
    s.recent[s.next++ % kNumIssued] = {&i, s.clock, f.roles, f.passes};
    if (f.roles & kAnyMfma) s.mfma_until = s.clock + kLongest + 1;
  }
  s.clock += states_of(i);
}

}  // namespace sim

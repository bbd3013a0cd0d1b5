// SPDX-License-Identifier: MIT
// Wait states: two instructions of a wave that are too close together. Every instruction counts one wait state, s_nop N
// counts N + 1. The checker hashes a wave's latest instructions, and looks at them
// only when the hash is new for the last one.
#include "checks/waitstate.h"

#include <bit>
#include <utility>

#include "checks/state.h"

namespace sim {
namespace {

constexpr u32 kAnyMfma = kRoleXdl | kRoleMfma32 | kRoleMfma64Large | kRoleMfma64Small;
constexpr u64 kLongest = 19;                   // the largest distance of the table
constexpr u64 kHashed = kLongest + 1;          // instructions: those of that distance, and the one that issues

// The hash is a polynomial in kBase, odd so that no bit is lost, of the hashed instructions' terms.
constexpr u64 kBase = 0x9e3779b97f4a7c15, kTerm = 0xd6e8feb86659fd93;
constexpr u64 power(u64 base, u64 n) { return n ? base * power(base, n - 1) : 1; }
constexpr u64 kOldest = power(kBase, kHashed);

constexpr u64 kSlots = std::size(decltype(WaitStates::recent){});

std::string nops(u64 states) {
  std::string text;
  for (; states; states -= std::min<u64>(states, 8)) {
    text += (text.empty() ? "s_nop " : ", s_nop ") + std::to_string(std::min<u64>(states, 8) - 1);
  }
  return text;
}

// The hashed instructions before the one that issues now, the latest first, while `f` returns true.
template <class F>
void for_earlier(const WaitStates& s, F f) {
  for (u64 k = 2; k <= kHashed && k <= s.next; ++k) {
    if (!f(*s.recent[(s.next - k) % kSlots].inst)) return;
  }
}

// An MFMA after `earlier` writes the register and has taken the place of its result.
bool replaced(const IssueTable& table, const WaitStates& s, const Inst& earlier, const RegRange& reg) {
  bool found = false;
  for_earlier(s, [&](const Inst& i) {
    if (&i == &earlier) return false;
    const Operand& d = i.dst[0];
    found = table.facts[i.index].roles & kAnyMfma && d.reg < reg.first + reg.count && reg.first < d.reg + d.dwords;
    return !found;
  });
  return found;
}

struct Hit {
  const WaitRow* row = nullptr;
  const Inst* earlier = nullptr;
  RegRange reg{};
  i64 missing = 0, between = 0, needed = 0;
};

// The row that `i` misses by most, of those that the hardware needs if there is one.
Hit find_worst(const IssueTable& table, const WaitStates& s, const Inst& i) {
  const IssueFacts& f = table.facts[i.index];
  i64 between = 0;
  Hit worst;
  for_earlier(s, [&](const Inst& earlier) {
    const IssueFacts& e = table.facts[earlier.index];
    for (u64 rows = e.earlier & f.later; rows; rows &= rows - 1) {
      const WaitRow& row = wait_rows()[std::countr_zero(rows)];
      const i64 needed = row.states + row.per_pass * static_cast<i64>(e.passes), missing = needed - between;
      const bool needed_here = !row.demanded_by, needed_there = worst.row && !worst.row->demanded_by;
      if (missing <= 0 || std::pair(needed_here, missing) <= std::pair(needed_there, worst.missing)) continue;
      const RegRange reg = meeting(row, earlier, i);
      const bool result = e.roles & kAnyMfma && row.earlier == Part::writes;
      if (!reg.count || (result && replaced(table, s, earlier, reg))) continue;
      worst = {&row, &earlier, reg, missing, between, needed};
    }
    between += e.states;
    return between < static_cast<i64>(kLongest);
  });
  return worst;
}

void report(Wave& w, const Inst& i, const Hit& hit) {
  const bool note = hit.row->demanded_by && launch_checks(w).notes();
  if (!launch_checks(w).first("waitstate", i, note)) return;
  const std::string whose = hit.row->demanded_by ? std::string(" by ") + hit.row->demanded_by : "";
  const bool named = hit.row->earlier != Part::none && hit.reg.count != 0xff;
  add_report(w, i, "waitstate", w.exec(), 0,
             std::string(hit.row->name) + (named ? " (" + name_of(w, hit.reg) + ")" : "") + ": " +
                 std::to_string(hit.between) + " wait states after " + place_of(w, *hit.earlier) + ", " +
                 std::to_string(hit.needed) + " are needed" + whose + "; fix: " + nops(hit.missing) + " before it",
             hit.earlier, note);
}

}  // namespace

void waitstate_begin(WaveChecks& c) { c.wait_states = WaitStates{}; }

void waitstate_before(Wave& w, const Inst& i) {
  WaitStates& s = w.checks->wait_states;
  const u64 term = (u64{i.index} + 1) * kTerm;
  s.hash = s.hash * kBase + term - s.recent[(s.next - kHashed) % kSlots].term * kOldest;
  s.recent[s.next++ % kSlots] = {&i, term};
  // VGPR indexing changes registers, which the hash knows nothing of.
  if (w.mode.bits & Mode::kIndexing) s.hash_from = s.next + kHashed;
  const bool hashed = s.next >= s.hash_from;
  const IssueTable& table = *launch_checks(w).issue;
  std::atomic<u64>& clean = table.clean[i.index][s.hash >> 62];
  if (hashed && clean.load(std::memory_order_relaxed) == s.hash) return;
  const Hit worst = find_worst(table, s, i);
  if (worst.row) report(w, i, worst);
  else if (hashed) clean.store(s.hash, std::memory_order_relaxed);
}

}  // namespace sim

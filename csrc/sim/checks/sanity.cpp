// SPDX-License-Identifier: MIT
// Sanity: what the hardware executes without a complaint and no author means.
//
// Alignment. ROCm runs gfx942 in unaligned mode: plain global, scratch and LDS accesses of any width may start at any
// byte (LLVM: FeatureUnalignedDSAccess, FeatureUnalignedBufferAccess, "+unaligned-access-mode" on amdhsa). Three kinds
// need alignment all the same: an atomic to its own size, scalar memory to a dword (the hardware drops the low bits),
// and the LDS side of an LDS-DMA to a dword.
//
// Barriers. s_barrier counts waves: it opens when all waves that have not ended wait at any s_barrier. Waves may wait
// at different ones as long as each passes the same number (the two halves of a workgroup may run shifted by one), and
// a wave may end that has used neither LDS nor a barrier. The checker reports waves that pass fewer barriers than
// others.
#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>
#include <map>

#include "checks/state.h"

namespace sim {
namespace {

void report(Wave& w, const Inst& i, u64 lanes, u64 address, const std::string& what, const Inst* other = nullptr,
            bool note = false) {
  if (launch_checks(w).first("sanity", i, note)) add_report(w, i, "sanity", lanes, address, what, other, note);
}

std::string waves_text(u64 mask) {
  std::string text = mask & (mask - 1) ? "waves " : "wave ";
  for (bool more = false; mask; mask &= mask - 1, more = true) {
    text += (more ? ", " : "") + std::to_string(first_lane(mask));
  }
  return text;
}

void check_exec(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (i.op->spec.cls == Class::mfma) {
    report(w, i, ~exec, 0, "runs with EXEC " + hex(exec) + ", which it ignores: inactive lanes take part, and their "
                           "registers are overwritten; fix: s_mov_b64 exec, -1 before it");
  } else if (exec == 0 && i.op->name == "v_readfirstlane_b32") {
    report(w, i, 0, 0, "reads lane 0 because no lane is active; fix: branch over it when EXEC is 0");
  }
}

void check_dma(Wave& w, const Inst& i) {
  const u32 base = w.s[kM0] + static_cast<u32>(i.mod.offset);
  if (!(base & 3) || !w.exec()) return;
  report(w, i, w.exec(), base, "writes dwords to LDS from byte " + std::to_string(base) + " = m0 + offset, which is no "
                               "multiple of 4; fix: align it");
}

// Lanes whose address is not a multiple of the access's size.
template <class A>
u64 misaligned(const A* address, u64 lanes, u32 bytes) {
  u64 bad = 0;
  for (int lane = 0; lane < kLanes; ++lane) bad |= u64{(address[lane] & (bytes - 1)) != 0} << lane;
  return bad & lanes;
}

void report_misaligned(Wave& w, const Inst& i, u64 lanes, u64 address, u32 bytes, const char* where) {
  report(w, i, lanes, address, "is an atomic of " + std::to_string(bytes) + " bytes at " + where + hex(address) +
                               " in lane " + std::to_string(first_lane(lanes)) + ", which is not a multiple of " +
                               std::to_string(bytes) + "; fix: align it");
}

// Units of memory that the lanes of one store have met so far.
struct Met {
  static constexpr u32 kSlots = 4096;          // 64 lanes write at most 1,024 bytes
  u64 unit[kSlots];
  u32 stamp[kSlots] = {};
  u8 lane[kSlots];
  u32 now = 0;

  // The lane that has met this unit last, which becomes `mine`; `mine` when no lane has met it.
  int meet(u64 u, int mine) {
    u32 slot = static_cast<u32>(u * 0x9e3779b97f4a7c15 >> 52);
    while (stamp[slot] == now && unit[slot] != u) slot = (slot + 1) % kSlots;
    const int other = stamp[slot] == now ? lane[slot] : mine;
    stamp[slot] = now;
    unit[slot] = u;
    lane[slot] = static_cast<u8>(mine);
    return other;
  }
};

Met& met() {
  thread_local Met instance;
  if (++instance.now == 0) instance = Met{}, instance.now = 1;
  return instance;
}

bool ascending(const u64* address, u32 bytes) {
  u32 bad = 0;
  for (int lane = 1; lane < kLanes; ++lane) bad |= address[lane] < address[lane - 1] + bytes;
  return !bad;
}

// Whether dwords are equal, or fp32 numbers that some roundings keep apart: a sum that lanes have reached on two ways.
bool rounded_alike(const u8* a, const u8* b, u32 bytes) {
  if (bytes % 4) return false;
  for (u32 at = 0; at < bytes; at += 4) {
    float x, y;
    std::memcpy(&x, a + at, 4);
    std::memcpy(&y, b + at, 4);
    if (std::memcmp(&x, &y, 4) == 0) continue;
    if (!(std::abs(x - y) <= 0x1p-20f * std::max(std::abs(x), std::abs(y)))) return false;
  }
  return true;
}

}  // namespace

Clash lanes_clash(const Wave& w, const u64* address, u64 lanes, const Touch& touch) {
  if (ascending(address, touch.bytes)) return {};
  u64 low = 0;
  for (u64 left = lanes; left; left &= left - 1) low |= address[first_lane(left)];
  const bool whole = !(touch.bytes & (touch.bytes - 1)) && !(low & (touch.bytes - 1u));
  const u32 unit = whole ? touch.bytes : touch.bytes % 4 == 0 && !(low & 3) ? 4 : 1;
  Met& seen = met();
  Clash found;                                 // A clash of roundings waits here: one of other values goes before it.
  for (u64 left = lanes; left; left &= left - 1) {
    const int lane = first_lane(left);
    for (u64 at = address[lane]; at < address[lane] + touch.bytes; at += unit) {
      const int other = seen.meet(at / unit, lane);
      if (other == lane) continue;
      const Stored mine = stored_by(w, touch, lane), theirs = stored_by(w, touch, other);
      const u8* here = reinterpret_cast<const u8*>(mine.dword) + (at - address[lane]);
      const u8* there = reinterpret_cast<const u8*>(theirs.dword) + (at - address[other]);
      if (!std::memcmp(here, there, unit)) continue;
      const bool rounded = rounded_alike(here, there, unit);
      if (rounded && found.lanes) continue;
      found = {u64{1} << lane | u64{1} << other,
               "lanes " + std::to_string(other) + " and " + std::to_string(lane) + " of it store " +
                   (rounded ? "fp32 numbers that differ by a rounding" : "different values") + " to one place: which " +
                   "of them stays is not defined; fix: let one lane store, or use an atomic",
               rounded};
      if (!rounded) return found;
    }
  }
  return found;
}

void sanity_begin(Workgroup& g) {
  g.checks->split = {};
  for (Wave& w : g.waves) {
    w.checks->barriers = 0;
    w.checks->used_lds = false;
  }
}

void sanity_before(Wave& w, const Inst& i) {
  if (i.op->spec.flags & (kIgnoresExec | kReadsExec) && w.exec() != kAllLanes) check_exec(w, i);
  if (is_lds_dma(i)) check_dma(w, i);
}

namespace {

constexpr u32 kLdsBytes = 65536;

// Offsets of an LDS store relative to its first lane's that are known to be disjoint: stores in a loop repeat them.
struct Pattern {
  u64 lanes = 0;
  u32 bytes = 0;
  alignas(64) u32 delta[kLanes] = {};
};

bool disjoint(const u32* offset, u64 lanes, u32 bytes) {
  std::bitset<kLdsBytes> taken;
  for (u64 left = lanes; left; left &= left - 1) {
    const u32 first = offset[first_lane(left)];
    for (u32 at = first; at < first + bytes; ++at) {
      if (at >= kLdsBytes || taken[at]) return false;
      taken[at] = true;
    }
  }
  return true;
}

bool known_disjoint(const Inst& i, const u32* offset, u64 lanes, u32 bytes) {
  thread_local std::array<Pattern, 256> known;
  Pattern& slot = known[reinterpret_cast<uintptr_t>(&i) / sizeof(Inst) % known.size()];
  const u32 base = lanes ? offset[first_lane(lanes)] : 0;
  u32 differs = slot.lanes != lanes || slot.bytes != bytes;
  if (lanes == kAllLanes) {  // the usual case, a loop without branches
    for (int lane = 0; lane < kLanes; ++lane) differs |= slot.delta[lane] ^ (offset[lane] - base);
  } else {
    for (u64 left = lanes; left; left &= left - 1) {
      differs |= slot.delta[first_lane(left)] ^ (offset[first_lane(left)] - base);
    }
  }
  if (!differs) return true;
  if (!disjoint(offset, lanes, bytes)) return false;
  slot.lanes = lanes;
  slot.bytes = bytes;
  for (u64 left = lanes; left; left &= left - 1) slot.delta[first_lane(left)] = offset[first_lane(left)] - base;
  return true;
}

}  // namespace

u64 sanity_memory(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch) {
  if (touch.access != Access::atomic) return lanes;
  const u64 bad = misaligned(address, lanes, touch.bytes);
  if (bad) report_misaligned(w, i, bad, address[first_lane(bad)], touch.bytes, "address ");
  return lanes & ~bad;
}

void sanity_lds(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) {
  w.checks->used_lds = true;
  if (touch.access == Access::atomic) {
    const u64 bad = misaligned(offset, lanes, touch.bytes);
    if (bad) report_misaligned(w, i, bad, offset[first_lane(bad)], touch.bytes, "LDS byte ");
  } else if (touch.access == Access::store && touch.data != kNoRow) {
    if (known_disjoint(i, offset, lanes, touch.bytes)) return;
    u64 address[kLanes];
    std::copy_n(offset, kLanes, address);
    const Clash clash = lanes_clash(w, address, lanes, touch);
    if (!clash.lanes) return;
    report(w, i, clash.lanes, address[first_lane(clash.lanes)], clash.text, nullptr,
           clash.rounded && launch_checks(w).notes());
  }
}

void sanity_barrier(Workgroup& g) {
  std::map<const Inst*, u64> at;
  u64 ended = 0;
  for (Wave& w : g.waves) {
    WaveChecks& c = *w.checks;
    if (w.stop == Stop::barrier) {
      at[w.ip - 1] |= u64{1} << w.id;
      ++c.barriers;
    } else if (c.barriers || c.used_lds) {
      ended |= u64{1} << w.id;
    }
  }
  BarrierSplit& split = g.checks->split;
  if (split.inst || (at.size() == 1 && !ended)) return;
  split = {at.begin()->first, at.size() > 1 ? at.rbegin()->first : nullptr, first_lane(at.begin()->second), ""};
  for (const auto& [inst, waves] : at) {
    split.text += (split.text.empty() ? "" : ", ") + waves_text(waves) + " at " + place_of(g.waves[split.wave], *inst);
  }
  if (ended) split.text += ", " + waves_text(ended) + " had ended";
}

void sanity_end(Workgroup& g) {
  const BarrierSplit& split = g.checks->split;
  if (!split.inst) return;
  std::map<u32, u64> passed;                   // barriers → waves
  for (const Wave& w : g.waves) {
    if (w.stop != Stop::ended) return;         // the launch was stopped
    if (w.checks->barriers || w.checks->used_lds) passed[w.checks->barriers] |= u64{1} << w.id;
  }
  if (passed.size() < 2) return;
  std::string counts;
  for (const auto& [count, waves] : passed) {
    counts += (counts.empty() ? "" : ", ") + waves_text(waves) + " passed " + std::to_string(count);
  }
  report(g.waves[split.wave], *split.inst, 0, 0,
         "opened while not every wave of the workgroup was at it: " + split.text + "; barriers in all: " + counts +
             "; fix: every wave comes to every s_barrier, or ends before it uses LDS",
         split.other);
}

void Checkers::unrounded_address(Wave& w, const Inst& i, u64 address) {
  if (!(address & 3) || !launch_.on(kCheckSanity)) return;
  report(w, i, 1, address, "has the address " + hex(address) + ", of which the hardware drops the two low bits; fix: "
                           "align it to a dword, or use a vector load");
}

}  // namespace sim

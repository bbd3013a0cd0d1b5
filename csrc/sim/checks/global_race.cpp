// SPDX-License-Identifier: MIT
// Conflicts in global memory between workgroups of one launch, and between waves of one workgroup. Runs on one thread,
// in the order of execution; another order (fuzz=SEED) may show other conflicts.
//
// Two accesses conflict when one is a plain write and nothing orders them. A write of the value that is there already
// is no conflict. Atomics, and loads and stores with sc1 (agent scope), do not conflict among themselves. They order
// workgroups by their address: what a workgroup did before it wrote there comes before what another workgroup does
// after it has read from there. Each workgroup has one vector clock for this order, so what one of its waves releases
// or acquires counts for all of them.
//
// Order is not enough for plain data, because each XCD has its own L2 (LLVM AMDGPU usage, memory model of gfx942): the
// writer needs buffer_wbl2 sc1 before its atomic, the reader buffer_inv sc1 after its own. This checker does not look
// at the waits around them.
#include <algorithm>
#include <unordered_map>

#include "checks/state.h"
#include "run/device_heap.h"
#include "run/hostcall.h"

namespace sim {
namespace {

// Workgroup → the last of its epochs that is known.
class Clock {
 public:
  u32 at(u32 group) const {
    const auto it = std::lower_bound(entries_.begin(), entries_.end(), std::pair{group, 0u});
    return it != entries_.end() && it->first == group ? it->second : 0;
  }
  void raise(u32 group, u32 epoch) {
    const auto it = std::lower_bound(entries_.begin(), entries_.end(), std::pair{group, 0u});
    if (it == entries_.end() || it->first != group) entries_.insert(it, {group, epoch});
    else it->second = std::max(it->second, epoch);
  }
  void join(const Clock& other) {
    for (const auto& [group, epoch] : other.entries_) raise(group, epoch);
  }

 private:
  std::vector<std::pair<u32, u32>> entries_;   // sorted by group
};

struct Knowledge {
  Clock ordered;                               // epochs that came before
  Clock visible;                               // … and whose writes were written back
};

struct Side {                                  // accesses of one wave by one instruction in one epoch
  const Inst* inst = nullptr;
  u32 group = 0, epoch = 0, barriers = 0;
  int wave = 0;
  bool atomic = false;
};

struct Cell {
  u32 writer = 0;                              // the last; a place in RaceShadow::sides, 0 = none
  u32 readers[2] = {};                         // the last of each of two workgroups
  bool equal = false;                          // several have written the same value
};

constexpr u64 kPage = 4096;

struct Page {
  u32 unit = 4;                                // bytes per cell: dwords until something smaller is accessed
  std::vector<Cell> cells = std::vector<Cell>(kPage / 4);

  void split() {
    std::vector<Cell> bytes(kPage);
    for (u64 k = 0; k < kPage; ++k) bytes[k] = cells[k / 4];
    cells = std::move(bytes);
    unit = 1;
  }
};

}  // namespace

struct RaceShadow {
  std::unordered_map<u64, Page> pages;         // key: address / kPage
  std::unordered_map<u64, Knowledge> released; // key: the atomic's address
  std::vector<Side> sides = std::vector<Side>(1);
};

struct RaceGroup {
  u32 id = 0, epoch = 1, barriers = 0;
  u32 written_back = 0;                        // the last epoch whose writes have reached memory
  Knowledge known;
  Clock acquired;                              // visible after the next invalidate
  std::unordered_map<u64, u32> sides;          // instruction and wave → its last side
};

namespace {

// One access while its lanes are visited.
struct Visit {
  Wave& w;
  const Inst& inst;
  const Touch& touch;
  RaceShadow& shadow;
  RaceGroup& group;
  bool atomic, reads, writes;
  u32 own;                                     // its side
};

u32 side_of(RaceShadow& s, RaceGroup& g, const Wave& w, const Inst& i, bool atomic) {
  u32& known = g.sides[u64{i.index} << 8 | static_cast<u64>(w.id)];
  const Side& last = s.sides[known];
  if (!known || last.epoch != g.epoch || last.barriers != g.barriers) {
    known = static_cast<u32>(s.sides.size());
    s.sides.push_back({&i, g.id, g.epoch, g.barriers, w.id, atomic});
  }
  return known;
}

const char* verb(bool atomic, bool writes) { return atomic ? "updates" : writes ? "writes" : "reads"; }

std::string who(const Wave& w, const Side& s, u32 own_group) {
  std::string text = "wave " + std::to_string(s.wave);
  if (s.group != own_group) {
    const u32* grid = w.group->launch->grid;
    text = "workgroup (" + std::to_string(s.group % grid[0]) + "," + std::to_string(s.group / grid[0] % grid[1]) + "," +
           std::to_string(s.group / grid[0] / grid[1]) + ") " + text;
  }
  return text;
}

void report(const Visit& v, int lane, u64 address, const Side& other, bool other_writes, const char* why) {
  LaunchChecks& checks = launch_checks(v.w);
  if (!checks.first("global_race", v.inst)) return;
  add_report(v.w, v.inst, "global_race", u64{1} << lane, address,
             std::string(verb(v.atomic, v.writes)) + " address " + hex(address) + " = " + describe(checks, address) +
                 " in lane " + std::to_string(lane) + ", which " + who(v.w, other, v.group.id) + " " +
                 verb(other.atomic, other_writes) + " at " + place_of(v.w, *other.inst) + ", " + why,
             other.inst);
}

constexpr const char* kUnordered = "and nothing orders the two; fix: an atomic on a common address between them, or a "
                                   "second launch";
constexpr const char* kNoBarrier = "with no s_barrier between; fix: s_waitcnt vmcnt(0) and s_barrier between the two";
constexpr const char* kNotWritten = "before its release by an atomic, but without a write-back of its L2, which other "
                                    "XCDs do not see; fix: buffer_wbl2 sc1 and s_waitcnt vmcnt(0) before that atomic";
constexpr const char* kNotInvalidated = "and an atomic orders the two, but caches may still hold the old value; fix: "
                                        "buffer_inv sc1 after the atomic that acquires";

// Why this access and an earlier one conflict; null when they do not.
const char* conflict(const Visit& v, const Side& other, bool other_writes) {
  const RaceGroup& g = v.group;
  if (other.atomic && v.atomic) return nullptr;
  if (other.group == g.id) {
    const bool apart = other.wave == v.w.id || other.barriers != g.barriers || other.epoch != g.epoch;
    return apart ? nullptr : kNoBarrier;
  }
  if (g.known.ordered.at(other.group) < other.epoch) return kUnordered;
  if (!other_writes || other.atomic || v.atomic || g.known.visible.at(other.group) >= other.epoch) return nullptr;
  if (g.acquired.at(other.group) < other.epoch) return kNotWritten;
  return v.reads ? kNotInvalidated : nullptr;
}

// The bytes that the lane is about to store are there already.
bool stores_same(const Visit& v, int lane, u64 address) {
  if (v.touch.access != Access::store || v.touch.data == kNoRow) return false;
  const Stored value = stored_by(v.w, v.touch, lane);
  return std::memcmp(reinterpret_cast<const void*>(address), &value, v.touch.bytes) == 0;
}

void visit_cell(const Visit& v, int lane, u64 start, u64 at, Cell& c) {
  const auto against = [&](u32 side, bool wrote) {
    if (!side || side == v.own) return false;
    const Side& other = v.shadow.sides[side];
    const char* why = conflict(v, other, wrote);
    if (!why) return false;
    if (wrote && !v.writes && c.equal) return false;
    if (v.writes && stores_same(v, lane, start)) return true;
    report(v, lane, at, other, wrote, why);
    return false;
  };
  const bool same = against(c.writer, true);
  if (v.writes) {
    for (u32 reader : c.readers) against(reader, false);
    c.writer = v.own;
    c.equal = same;
    return;
  }
  if (v.shadow.sides[c.readers[0]].group != v.group.id) c.readers[1] = c.readers[0];
  c.readers[0] = v.own;
}

void visit_lane(const Visit& v, int lane, u64 start) {
  const bool dwords = start % 4 == 0 && v.touch.bytes % 4 == 0;
  for (u64 at = start; at < start + v.touch.bytes;) {
    Page& page = v.shadow.pages[at / kPage];
    if (!dwords && page.unit != 1) page.split();
    for (u64 end = std::min(start + v.touch.bytes, (at / kPage + 1) * kPage); at < end; at += page.unit) {
      visit_cell(v, lane, start, at, page.cells[at % kPage / page.unit]);
    }
  }
}

void acquire(const Visit& v, u64 address) {
  const auto it = v.shadow.released.find(address);
  if (it == v.shadow.released.end()) return;
  v.group.known.ordered.join(it->second.ordered);
  v.group.acquired.join(it->second.visible);
}

void release(const Visit& v, u64 address) {
  RaceGroup& g = v.group;
  Knowledge& k = v.shadow.released[address];
  k.ordered.join(g.known.ordered);
  k.ordered.raise(g.id, g.epoch);
  k.visible.join(g.known.visible);
  k.visible.raise(g.id, g.written_back);
}

}  // namespace

void race_begin(LaunchChecks& c) { c.race = std::make_shared<RaceShadow>(); }

void race_begin(Workgroup& g) {
  g.checks->race = std::make_shared<RaceGroup>();
  g.checks->race->id = g.number();
}

void race_before(Wave& w, const Inst& i) {
  if (i.op->spec.cls != Class::mubuf || !i.mod.sc1) return;
  RaceGroup& g = *w.group->checks->race;
  if (i.op->name == "buffer_wbl2") g.written_back = g.epoch++;
  if (i.op->name == "buffer_inv") g.known.visible.join(g.acquired);
}

void race_barrier(Workgroup& g) { ++g.checks->race->barriers; }

// Places of the next workgroup's buffers are those of one that has ended. The heap of malloc is the device library's,
// which hands its lists from workgroup to workgroup in its own way.
u64 without_host(const Wave& w, const u64* address, u64 lanes) {
  const HostCalls* host = w.group->launch->host;
  const DeviceHeap& heap = device_heap();
  for (u64 left = lanes; left; left &= left - 1) {
    const int lane = first_lane(left);
    if ((host && host->holds(address[lane])) || heap.holds(address[lane])) lanes &= ~(u64{1} << lane);
  }
  return lanes;
}

void race_access(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch) {
  lanes = without_host(w, address, lanes);
  if (!lanes) return;
  RaceShadow& shadow = *launch_checks(w).race;
  RaceGroup& group = *w.group->checks->race;
  const bool updates = touch.access == Access::atomic, writes = touch.access != Access::load;
  const bool atomic = updates || i.mod.sc1;
  if (writes && !atomic && touch.data != kNoRow) {
    const Clash clash = lanes_clash(w, address, lanes, touch);
    const bool note = clash.rounded && launch_checks(w).notes();
    if (clash.lanes && launch_checks(w).first("global_race", i, note)) {
      add_report(w, i, "global_race", clash.lanes, address[first_lane(clash.lanes)], clash.text, nullptr, note);
    }
  }
  const bool acquires = touch.access == Access::load || (updates && touch.result != kNoRow);
  const Visit v{w, i, touch, shadow, group, atomic, touch.access == Access::load, writes,
                side_of(shadow, group, w, i, atomic)};
  for (u64 left = lanes; atomic && acquires && left; left &= left - 1) acquire(v, address[first_lane(left)]);
  for (u64 left = lanes; left; left &= left - 1) visit_lane(v, first_lane(left), address[first_lane(left)]);
  if (!atomic || !writes) return;
  for (u64 left = lanes; left; left &= left - 1) release(v, address[first_lane(left)]);
  ++group.epoch;
}

}  // namespace sim

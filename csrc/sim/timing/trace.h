// SPDX-License-Identifier: MIT
// What the waves of some workgroups executed, and where in memory: what the cycle model replays.
#pragma once
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "load/loader.h"
#include "run/observer.h"
#include "timing/issue.h"

namespace sim::timing {

inline constexpr u32 kHasGlobal = 1u << 31, kHasLds = 1u << 30, kTaken = 1u << 29, kWaits = 1u << 28, kTells = 1u << 27;
inline constexpr u32 kIndexBits = kTells - 1;

// One access of global memory: a Header, and as many lines.
struct GlobalHeader {
  u16 lines;
  u16 address_clk;                             // cycles of the address unit
  u16 dwords;                                  // asked for, of all lanes
  u16 collisions;                              // an atomic's lanes at one address
};

struct WaveTrace {
  std::vector<u32> code;                       // Inst::index, and kHasGlobal …
  // For each instruction with kHasGlobal: a GlobalHeader's bits, then lines: address / 128 << 2 | which halves. With
  // kWaits: how many places of a meeting it has read << 32 | clk of a loop that polls, then seen() for each. With
  // kTells: how many it has written, then seen() for each. With kHasLds: cycles of the banks | bytes << 32.
  std::vector<u64> payload;
};

// A place where workgroups meet, and how many writes of it have been seen, or which one this is. Bit 0: an atomic that
// returns what was there.
inline u64 seen(u32 place, u32 writes, bool returns = false) {
  return u64{place} << 32 | u64{writes} << 1 | static_cast<u64>(returns);
}

struct WorkgroupTrace {
  u64 number = 0;
  std::vector<WaveTrace> waves;
};

// Moves host addresses to where memory would be on the device: tensors of the host begin at any multiple of 64 bytes,
// allocations of a GPU at pages.
class Relocation {
 public:
  explicit Relocation(const Launch& launch);   // places the memory that is known now
  u64 operator()(u64 address);
  // The addresses of these lanes.
  void operator()(const u64* address, u64 lanes, u64* placed);

 private:
  struct Piece {
    u64 base, end, to;
  };
  std::vector<Piece> pieces_;                  // sorted by address
  size_t last_ = 0;
};

// Dwords through which workgroups meet: stores with sc1 and atomics of integers write them, loads with sc1 and atomics
// read them.
class Meetings {
 public:
  struct Place {
    u32 number = 0, writes = 0;
    u64 writer = ~u64{0};                      // workgroup << 8 | wave of the latest
  };
  const Place* find(u64 address) const;
  // Counts a write. Where one who knows all others, since it wrote last, begins anew, the others' writes end there.
  const Place& write(u64 address, u64 writer, bool is_store);
  // Place → the writes after which a part of its history ends, in their order: the last one of each part is who finds
  // all others there.
  std::vector<std::vector<u32>> ends() const;

 private:
  std::unordered_map<u64, Place> places_;
  std::vector<std::vector<u32>> ends_;
};

// Records the workgroups of one launch that it is asked to. With `meets` all of them have to be, and the recording
// notes which writes of others each has seen.
class Recorder {
 public:
  Recorder(const Launch& launch, const std::vector<IssueFacts>& facts, bool meets)
      : place_(launch), facts_(facts), meets_(meets) {}

  std::unique_ptr<Observer> record(Workgroup& group);
  // The recorded workgroups by their number, with addresses that do not depend on the process; the recorder is empty
  // after it.
  std::vector<WorkgroupTrace> take();
  // Forgets the workgroups that are not of XCD 0 of so many.
  void leave_first_xcd(u32 xcds);
  // Totals of the workgroups that have ended.
  u64 instructions() const { return instructions_; }
  u64 bytes() const { return bytes_; }
  u64 groups() const { return groups_; }
  std::vector<std::vector<u32>> ends() const { return meetings_.ends(); }

 private:
  friend class WorkgroupRecorder;
  void add(WorkgroupTrace trace);

  Relocation place_;
  const std::vector<IssueFacts>& facts_;
  const bool meets_;
  Meetings meetings_;
  std::mutex mutex_;
  u64 instructions_ = 0, groups_ = 0, bytes_ = 0;
  std::vector<WorkgroupTrace> done_;
};

}  // namespace sim::timing

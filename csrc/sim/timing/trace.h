// SPDX-License-Identifier: MIT
// What the waves of some workgroups executed, and where in memory: what the cycle model replays.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "load/loader.h"
#include "run/observer.h"

namespace sim::timing {

inline constexpr u32 kHasGlobal = 1u << 31, kHasLds = 1u << 30, kTaken = 1u << 29, kIndexBits = kTaken - 1;

// One access of global memory: a Header, and as many lines.
struct GlobalHeader {
  u16 lines;
  u16 address_clk;                             // cycles of the address unit
  u16 dwords;                                  // asked for, of all lanes
  u16 collisions;                              // an atomic's lanes at one address
};

struct WaveTrace {
  std::vector<u32> code;                       // Inst::index, and kHasGlobal …
  // For each instruction with kHasGlobal: a GlobalHeader's bits, then lines: address / 128 << 2 | which halves. For
  // each with kHasLds: cycles of the banks | bytes << 32.
  std::vector<u64> payload;
};

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

// Records the workgroups of one launch that it is asked to.
class Recorder {
 public:
  explicit Recorder(const Launch& launch) : place_(launch) {}

  std::unique_ptr<Observer> record(Workgroup& group);
  // The recorded workgroups by their number, with addresses that do not depend on the process; the recorder is empty
  // after it.
  std::vector<WorkgroupTrace> take();
  // Totals of the workgroups that have ended.
  u64 instructions() const { return instructions_; }
  u64 groups() const { return groups_; }

 private:
  friend class WorkgroupRecorder;
  void add(WorkgroupTrace trace);

  Relocation place_;
  std::mutex mutex_;
  u64 instructions_ = 0, groups_ = 0;
  std::vector<WorkgroupTrace> done_;
};

}  // namespace sim::timing

// SPDX-License-Identifier: MIT
// Observers watch a launch: the checkers, the counters, a trace, a cycle model. The run loop and the memory handlers
// call what is declared here and know nothing else about observers. A workgroup that nobody watches runs code without
// these calls.
#pragma once
#include <memory>

#include "types.h"

namespace sim {

struct Inst;
struct Launch;
struct Wave;
struct Workgroup;

enum class Access : u8 { load, store, atomic };
enum class Half : u8 { none, low, high };

inline constexpr u16 kNoRow = 0xffff;

// One memory access, lane by lane. Data goes from memory to the `result` rows and from the `data` rows to memory.
struct Touch {
  Access access = Access::load;
  u8 bytes = 4;
  u16 data = kNoRow;                           // first register row that is stored or combined
  u16 result = kNoRow;                         // first register row that is loaded or returned
  Half half = Half::none;                      // d16 forms: the half of the row
  bool dma = false;                            // the LDS side of an LDS-DMA: complete at vmcnt, not at lgkmcnt
  const u32* values = nullptr;                 // … and what it stores, which is in no register: a dword per lane
};

// Watches one workgroup from its first instruction on. The simulator destroys it when the workgroup has ended or its
// launch was stopped. All calls come from the thread that runs the workgroup. Waves take turns of some instructions, so
// the order of calls for different waves says little about time. The Inst may be a copy that lives no longer than the
// call (VGPR indexing); its `pc` names the instruction.
//
// The calls of an instruction are before(), one for each access that it makes, and after(); an instruction that fails
// has no after().
class Observer {
 public:
  virtual ~Observer() = default;

  // The instruction is about to run: registers and EXEC are as it finds them, and w.ip is one past it.
  virtual void before(Wave&, const Inst&) {}
  // The instruction has run: w.stop says whether the wave has ended, waits at a barrier, or pauses.
  virtual void after(Wave&, const Inst&) {}
  // Every wave that has not ended waits at an s_barrier, which opens now.
  virtual void barrier() {}
  // The wave cannot go on, and its launch is stopped: w.ip is one past the instruction that failed.
  virtual void failed(Wave&, const char* /*why*/) {}

  // Accesses of `lanes`, at address[lane] of memory or at byte offset[lane] of the workgroup's LDS or the lane's
  // scratch; `lanes` may be none. The result is the lanes that may go on: the others load zeros, their stores are lost.
  virtual u64 global(Wave&, const Inst&, const u64* /*address*/, u64 lanes, const Touch&) { return lanes; }
  virtual u64 lds(Wave&, const Inst&, const u32* /*offset*/, u64 lanes, const Touch&) { return lanes; }
  virtual u64 scratch(Wave&, const Inst&, const u32* /*offset*/, u64 lanes, const Touch&) { return lanes; }
  // One scalar access. When the result is false, it is left out and a load gives zeros.
  virtual bool scalar(Wave&, const Inst&, u64 /*address*/, u32 /*bytes*/) { return true; }

  // The byte address of a scalar access before the hardware drops its two low bits.
  virtual void unrounded_address(Wave&, const Inst&, u64 /*address*/) {}
  // Lanes of a buffer access that are out of the descriptor's range: their results are zeros.
  virtual void out_of_range(Wave&, const Touch&, u64 /*lanes*/) {}
  // Lanes of a buffer access that are out of range only because soffset counts, which one published rule denies.
  virtual void disputed_range(Wave&, const Inst&, u64 /*lanes*/) {}
  // Lanes exchanged by ds_bpermute and the like: from[lane] = the lane whose value arrives, -1 = a zero.
  virtual void shuffle(Wave&, u16 /*result*/, u16 /*data*/, const i8* /*from*/, u64 /*exec*/) {}
};

// Watches one launch, from before its first workgroup until after its last.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;

  // Called for every workgroup when its registers are set, by several threads at once. A workgroup for which the result
  // is null is not watched, and runs as fast as in a launch without observers.
  virtual std::unique_ptr<Observer> begin(Workgroup& group) = 0;
  // True for a workgroup, by its place in the grid, that does not run at all: a sample is enough, and memory after the
  // launch is not what the kernel would leave. Asked once for each, in the order in which they would start.
  virtual bool skips(u64 /*number*/) { return false; }
  // True when all instructions of the launch must come from one thread, in the order of their execution.
  virtual bool needs_one_thread() const { return false; }
};

// Makes the observer of one launch, which the caller owns; null = nobody wants to watch this launch.
using MakeObserver = LaunchObserver* (*)(const Launch&);

}  // namespace sim

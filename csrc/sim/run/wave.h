// SPDX-License-Identifier: MIT
// State of a wave, its workgroup and its launch. Handlers get a Wave and reach everything else from it.
#pragma once
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "inst.h"
#include "run/observer.h"

namespace sim {

struct Code;            // load/loader.h: one loaded code object
struct Kernel;          // load/loader.h: descriptor and metadata of one kernel
struct Workgroup;
struct WaveChecks;      // checks/state.h: what the checkers know about a wave; null without checkers
struct WorkgroupChecks;
struct HostChannel;     // run/hostcall.h: what a wave shares with the host; null when its kernel asks nothing of it
class HostCalls;

enum class Stop : u8 { running, barrier, yield, ended };

// MODE register fields that handlers read. Bits as in the ISA document; initialised from rsrc1.
struct Mode {
  u32 bits = 0xF0 | 1 << 8 | 1 << 9;           // denormals kept, DX10_CLAMP, IEEE
  bool keep_denorm32() const { return (bits >> 4 & 3) == 3; }
  bool dx10_clamp() const { return bits >> 8 & 1; }
  bool ieee() const { return bits >> 9 & 1; }
  bool fp16_ovfl() const { return bits >> 23 & 1; }
  static constexpr u32 kKeepOutputs32 = 1u << 5;         // f32 results keep denormals
  static constexpr u32 kIndexing = 1u << 27;             // VGPR indexing
  static constexpr u32 kSkip = 1u << 28;                 // vector instructions do not issue
  static constexpr u32 kKeepOutputs64 = 1u << 7;         // f64 and f16 results keep denormals
  // Instructions need isa/mode.h: another rounding, flushed denormals, indexed registers, skipped instructions.
  bool unusual() const { return (bits & 0xff) != 0xf0 || bits & (kIndexing | kSkip); }
};

struct alignas(64) Wave {
  u32 (*v)[kLanes] = nullptr;                  // [kNumRows][kLanes], pages touched on first use
  u32 s[kNumScalars] = {};                     // scalar file; vcc, m0 and exec live in it (inst.h)
  bool scc = false;
  Stop stop = Stop::running;
  Mode mode;
  const Inst* ip = nullptr;                    // the next instruction; a handler that jumps assigns it
  Workgroup* group = nullptr;
  int id = 0;                                  // wave index in the workgroup
  u64 executed = 0;                            // instructions
  u64 waited = 0;                              // cycles that its clock counts beside them
  u8* scratch = nullptr;                       // [lane][private_bytes]
  WaveChecks* checks = nullptr;
  HostChannel* host = nullptr;

  u64 pair(u16 reg) const { u64 x; std::memcpy(&x, &s[reg], 8); return x; }
  void set_pair(u16 reg, u64 x) { std::memcpy(&s[reg], &x, 8); }
  u64 exec() const { return pair(kExec); }
  u64 vcc() const { return pair(kVcc); }
  void jump(i64 pc);                           // load/loader.cpp: sets ip; Fault when pc is no instruction
};

struct Launch {
  const Code* code = nullptr;
  const Kernel* kernel = nullptr;
  u32 grid[3] = {1, 1, 1};                     // workgroups
  u32 block[3] = {1, 1, 1};
  u32 lds_bytes = 0;                           // static + dynamic, rounded to 512
  u32 private_bytes = 0;                       // scratch of a lane
  u8* kernarg = nullptr;
  u8* packet = nullptr;                        // 64-byte AQL packet
  u64 instruction_limit = 0;                   // per wave, 0 = none
  LaunchObserver* observer = nullptr;          // null = nobody watches
  HostCalls* host = nullptr;                   // null = the kernel asks nothing of the host
};

struct Workgroup {
  const Launch* launch = nullptr;
  u32 id[3] = {0, 0, 0};
  u8* lds = nullptr;                           // launch->lds_bytes
  std::vector<Wave> waves;
  u64* hits = nullptr;                         // executions per Inst::index, of this worker
  std::unique_ptr<Observer> observer;          // null = nobody watches
  WorkgroupChecks* checks = nullptr;
  u32 host_place = 0;                          // the first of its channels, while it is resident (run/hostcall.h)

  // Its place in the grid, counted along x, then y, then z.
  u32 number() const { return id[0] + launch->grid[0] * (id[1] + launch->grid[1] * id[2]); }
};

// The observer of the wave's workgroup, for handlers that run only when there is one.
inline Observer& observer(const Wave& w) { return *w.group->observer; }

}  // namespace sim

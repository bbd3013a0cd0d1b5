// SPDX-License-Identifier: MIT
// Replays the traces of workgroups on the compute units of one XCD, clock by clock where something happens.
#pragma once
#include <array>
#include <vector>

#include "timing/caches.h"
#include "timing/issue.h"
#include "timing/trace.h"

namespace sim::timing {

// Why a wave did not issue its next instruction earlier. `none`: nothing but its own last one kept it.
enum class Stall : u8 {
  none, result, valu, mfma, port, memory_queue, lds_queue, vmcnt, lgkmcnt, barrier, fetch, meeting
};
inline constexpr int kNumStalls = 12;
const char* stall_name(Stall stall);

// Memory operations of one instruction that another one, a wait, has retired.
struct Retired {
  u32 inst;                                    // the memory operations'
  u64 times = 0;
  double exposed = 0;                          // clk that the wait waited while they were on their way
};

// Times of one instruction of the code.
struct InstTime {
  u64 issued = 0;
  double busy = 0;                             // its wave's: from its issue until the next instruction may follow
  double latency = 0;                          // memory: from issue to completion
  double exposed = 0;                          // … and how much of that waits of its wave waited for it
  std::array<double, kNumStalls> stall{};      // before it
  double covered = 0;                          // clk of these in which its SIMD's vector or matrix unit was busy
  Traffic traffic;
  std::vector<Retired> retired;                // if it is a wait
};

struct GroupTime {
  double begin, end;
};

// An instruction of a wave of the first CU, for a timeline.
struct Event {
  u32 wave, inst;
  Stall why;                                   // the last reason of its waiting
  double waited, at, until;                    // since when it was the wave's next; its issue; when the next may follow
  double unit_from, unit_until;                // when its unit worked for it
  double done;                                 // memory: when it has answered, else 0
};

// A wave of the first CU.
struct WaveLife {
  u32 wave, simd, slot;                        // slot: its place among the resident waves of the SIMD
  u64 workgroup;
  double begin, end;
};

struct EngineResult {
  double clk = 0;                              // until the last workgroup has ended
  std::vector<GroupTime> groups;               // in the order of the traces
  std::vector<InstTime> insts;                 // index: Inst::index
  double valu_busy = 0, mfma_busy = 0;         // clk of all SIMDs together
  double lds_busy = 0, address_busy = 0;       // clk of all CUs together
  double l2_busy = 0, beyond_busy = 0;         // clk: of a channel; of the path beyond the L2
  u64 issued = 0;
  u64 met = 0, unmet = 0;                      // waits for other workgroups, and those that nothing ended
  Traffic traffic;
  std::vector<Event> timeline;
  std::vector<WaveLife> waves;                 // in the order of their begin; with a timeline only
};

struct EngineShape {
  u32 cus;                                     // of each XCD that take part
  u32 xcds, active;                            // XCDs that are modelled; that run workgroups, for which these stand
  u32 groups_per_cu;
  u32 timeline_events = 0;                     // to record, from the middle of what the first CU does
  // Recorder::ends(), where loads wait for what they saw of other workgroups; with all XCDs only.
  const std::vector<std::vector<u32>>* meetings = nullptr;
};

EngineResult replay(const Parameters& parameters, const EngineShape& shape, const Code& code,
                    const std::vector<IssueFacts>& facts, const std::vector<WorkgroupTrace>& groups);

}  // namespace sim::timing

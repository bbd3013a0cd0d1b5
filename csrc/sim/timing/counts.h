// SPDX-License-Identifier: MIT
// Exact counts of a launch per instruction, an observer. docs: csrc/sim/MODEL.md, "Counters".
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "load/loader.h"
#include "run/occupancy.h"
#include "run/observer.h"
#include "timing/access_shape.h"

namespace sim::timing {

// Counts of one instruction of the code, over all its executions in a launch.
struct InstCounts {
  u64 executed = 0;                            // executions, by a wave each
  u64 active_lanes = 0;                        // vector instructions: the sum over executions
  u64 global_bytes = 0, segments64 = 0, segments128 = 0;       // global, buffer and scalar memory; LDS-DMA's source
  u64 lds_bytes = 0, lds_clk = 0, lds_conflict_clk = 0;
  u64 scratch_bytes = 0;
  u64 atomic_lanes = 0, atomic_collisions = 0;

  void add(const InstCounts& other);
};

// A launch that has ended.
struct LaunchCounts {
  std::string kernel;
  u32 grid[3], block[3], lds_bytes = 0;
  u32 vgprs = 0, agprs = 0, sgprs = 0, private_bytes = 0, vgpr_spills = 0, sgpr_spills = 0;
  Occupancy occupancy{};
  u64 workgroups = 0, waves = 0;               // that were counted
  u64 code = 0;                                // a hash of all instructions of the code object
  struct Line {
    u64 pc;                                    // relative to the kernel's entry
    std::string text, source, caller;
    Class cls;
    bool straddles;                            // 8 bytes across a multiple of 8 bytes: the fetch takes a cycle more
    u8 vmcnt, lgkmcnt;                         // s_waitcnt waits for these; 63 and 15 are no waits
    u64 flops, passes;                         // matrix operations: of one wave
    std::string_view type;                     // A's and B's
    InstCounts counts;
    BankUse banks;
  };
  std::vector<Line> lines;                     // instructions that were executed, in address order
};

// Selects the workgroups of a launch that are counted.
struct CountSettings {
  u32 sample = 0;                              // so many, spread over the grid; 0: all
  bool leaves_out = false;                     // the others do not run: memory is not what the launch leaves
};

// Counting is on for launches between begin() and end(). Who begins while it is on gets the settings that it has.
void begin_counting(const CountSettings& settings);
void end_counting();
// The launches that have ended and nobody has taken, oldest first.
std::vector<LaunchCounts> take_counts();

}  // namespace sim::timing

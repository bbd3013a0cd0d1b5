// SPDX-License-Identifier: MIT
// Settings of the simulator, set by sim.py through hip/control.cpp before a launch.
#pragma once
#include "types.h"

namespace sim {

enum Check : u32 { kCheckWait = 1, kCheckLdsRace = 2, kCheckUninit = 4, kCheckBounds = 8, kCheckWaitState = 16 };

struct Settings {
  u32 checks = 0;                              // bits of Check
  u32 threads = 0;                             // 0 = one per core
  u64 seed = 0;                                // order of waves; 0 = program order
  bool dry = false;                            // launches return without executing (host-overhead benchmarks)
  u64 instruction_limit = 2'000'000'000;       // per wave; a wave beyond it stops the launch with a report
};

Settings& settings();

}  // namespace sim

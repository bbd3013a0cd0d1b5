// SPDX-License-Identifier: MIT
// Settings of the simulator: what AITER_LIKE_SIM says, until sim.py sets them through hip/control.cpp.
#pragma once
#include <string>

#include "types.h"

namespace sim {

enum Check : u32 {
  kCheckWait = 1, kCheckLdsRace = 2, kCheckUninit = 4, kCheckBounds = 8, kCheckWaitState = 16, kCheckSanity = 32,
  kCheckGlobalRace = 64, kCheckStrict = 128     // strict: notes are errors too
};
inline constexpr u32 kDefaultChecks = kCheckGlobalRace - 1;      // global races only when named: slow, one thread
inline constexpr u32 kAllChecks = kDefaultChecks | kCheckGlobalRace | kCheckStrict;

struct Settings {
  u32 checks = 0;                              // bits of Check
  u32 threads = 0;                             // 0 = one per core
  u64 seed = 0;                                // order of waves; 0 = program order
  bool dry = false;                            // launches return without executing (host-overhead benchmarks)
  bool defer = false;                          // streams execute at synchronisation points (hip/defer.h)
  u64 instruction_limit = 2'000'000'000;       // per wave; a wave beyond it stops the launch with a report
  bool prints_reports = true;                  // to stderr, and the launch has failed; Python asks for them instead
  std::string error;                           // AITER_LIKE_SIM does not parse: every launch is refused with this
};

Settings& settings();
u32 initial_devices();                         // the number in AITER_LIKE_SIM

}  // namespace sim

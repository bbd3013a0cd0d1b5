// SPDX-License-Identifier: MIT
// Running the waves of one workgroup in turns, and seeing when they only wait for other workgroups.
#pragma once
#include <atomic>

#include "run/slot.h"

namespace sim {

enum class Turn : u8 {
  ended,                                       // all waves have
  preempted,                                   // they had their share
  waiting,                                     // every wave that could run sleeps or spins
  stuck,                                       // … and none can go on unless somebody else writes memory
};

// Runs the workgroup until it ends or gives way. Its waves go on side by side, a few instructions each; every `quantum`
// instructions the loop looks whether they only wait. Under fuzzing their order and their turns are random.
Turn run_waves(Slot& slot, u64 quantum, const std::atomic<bool>& failed);

}  // namespace sim

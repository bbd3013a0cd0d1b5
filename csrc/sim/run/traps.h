// SPDX-License-Identifier: MIT
// Host signals raised by simulated memory accesses become Faults; all others go to whoever handled them before.
#pragma once
#include <csetjmp>

#include "types.h"

namespace sim {

struct Trap {
  sigjmp_buf resume;
  int signal = 0;
  u64 address = 0;                             // 0: unknown (the address was not canonical)
};

extern thread_local Trap* active_trap;         // set only while this thread executes simulated instructions

// Puts our handlers in place, again if somebody replaced them since. Called once per launch.
void install_traps();

std::string describe(const Trap& trap);

// Runs body(); throws Fault when it raised SIGSEGV, SIGBUS or SIGFPE. body must own nothing that needs destruction at
// the instructions that can raise.
template <class Body>
void with_traps(Body&& body) {
  struct Guard {
    Guard(Trap* trap) { active_trap = trap; }
    ~Guard() { active_trap = nullptr; }
  };
  Trap trap;
  Guard guard(&trap);
  if (sigsetjmp(trap.resume, 0) == 0) {
    body();
    return;
  }
  throw Fault(describe(trap));
}

}  // namespace sim

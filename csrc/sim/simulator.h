// SPDX-License-Identifier: MIT
// Declares what the libraries that observe launches call in the simulator's own, which is loaded before them
// (csrc/sim/hip/control.cpp).
#pragma once
#include <cstdlib>
#include <string>

#include "load/loader.h"
#include "run/observer.h"

extern "C" {
void aiter_like_sim_observe(sim::MakeObserver make, int on);
char* aiter_like_sim_source_of(const sim::Code* code, sim::u64 pc);
char* aiter_like_sim_caller_of(const sim::Code* code, sim::u64 pc);
}

namespace sim {

// Copies a text of the simulator's own and frees it; null is "".
inline std::string taken(char* text) {
  std::string copy = text ? text : "";
  std::free(text);
  return copy;
}

}  // namespace sim

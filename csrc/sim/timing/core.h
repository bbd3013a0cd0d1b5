// SPDX-License-Identifier: MIT
// What this library calls in the simulator's own, which is loaded before it (csrc/sim/hip/control.cpp).
#pragma once
#include <cstdlib>
#include <string>

#include "load/loader.h"
#include "run/observer.h"

extern "C" {
void aiter_like_sim_observe(sim::MakeObserver make, int on);
char* aiter_like_sim_source_of(const sim::Code* code, sim::u64 pc);
char* aiter_like_sim_caller_of(const sim::Code* code, sim::u64 pc);
sim::u64 aiter_like_sim_ranges(sim::u64* out, sim::u64 room);
}

namespace sim::timing {

inline std::string taken(char* text) {
  std::string result = text ? text : "";
  std::free(text);
  return result;
}

// Code::source_of and Code::caller_of.
inline std::string source_of(const Code& code, u64 pc) { return taken(aiter_like_sim_source_of(&code, pc)); }
inline std::string caller_of(const Code& code, u64 pc) { return taken(aiter_like_sim_caller_of(&code, pc)); }

}  // namespace sim::timing

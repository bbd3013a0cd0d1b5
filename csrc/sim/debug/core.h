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
int aiter_like_sim_begins_statement(const sim::Code* code, sim::u64 pc);
const void* aiter_like_sim_debug_section(const sim::Code* code, const char* name, sim::u64* bytes);
sim::u64 aiter_like_sim_report_count();
char* aiter_like_sim_newest_report();
}

namespace sim::debug {

inline std::string taken(char* text) {
  const std::string copy = text ? text : "";
  std::free(text);
  return copy;
}

}  // namespace sim::debug

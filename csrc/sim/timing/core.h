// SPDX-License-Identifier: MIT
// Declares what the timing library alone calls in the simulator's own.
#pragma once
#include "simulator.h"

extern "C" {
sim::u64 aiter_like_sim_ranges(sim::u64* out, sim::u64 room);
}

namespace sim::timing {

// Code::source_of and Code::caller_of.
inline std::string source_of(const Code& code, u64 pc) { return taken(aiter_like_sim_source_of(&code, pc)); }
inline std::string caller_of(const Code& code, u64 pc) { return taken(aiter_like_sim_caller_of(&code, pc)); }

}  // namespace sim::timing

// SPDX-License-Identifier: MIT
// Declares what the debugger's library alone calls in the simulator's own.
#pragma once
#include "simulator.h"

extern "C" {
int aiter_like_sim_begins_statement(const sim::Code* code, sim::u64 pc);
const void* aiter_like_sim_debug_section(const sim::Code* code, const char* name, sim::u64* bytes);
sim::u64 aiter_like_sim_report_count();
char* aiter_like_sim_newest_report();
}

// SPDX-License-Identifier: MIT
// The checkers as seen by run.cpp and the memory handlers. Shadow state lives here and in checks/*.cpp; the fast
// build never calls it. A function that returns lanes returns those that may go on: the rest are reported and skipped.
#pragma once
#include <memory>

#include "memory.h"
#include "report.h"
#include "settings.h"
#include "wave.h"

namespace sim {

enum class Access : u8 { load, store, atomic };

struct LaunchChecks;
std::shared_ptr<LaunchChecks> make_launch_checks(const Launch& launch, u32 checks);
void begin_workgroup(Workgroup& group);        // allocates the shadow of LDS and of each wave
void end_workgroup(Workgroup& group);

void check_before(Wave& w, const Inst& i);     // registers read and written: wait counters, definedness
void check_after(Wave& w, const Inst& i);      // enqueues what the instruction left in flight
void check_barrier(Workgroup& group);          // every wave has arrived: a new LDS epoch

// Per-lane accesses of `bytes` bytes at address[lane]. Loads: definedness of the destination rows follows memory's.
u64 check_global(Wave& w, const Inst& i, const u64* address, u64 lanes, u32 bytes, Access access);
u64 check_lds(Wave& w, const Inst& i, const u32* address, u64 lanes, u32 bytes, Access access);
u64 check_scratch(Wave& w, const Inst& i, const u32* offset, u64 lanes, u32 bytes, Access access);
// One scalar access (s_load); false = reported, load zeros.
bool check_scalar(Wave& w, const Inst& i, u64 address, u32 bytes);

}  // namespace sim

// SPDX-License-Identifier: MIT
// The checkers as seen by run.cpp and the memory handlers. Shadow state lives here and in checks/*.cpp; the fast
// build never calls it. A function that returns lanes returns those that may go on: the rest are reported and skipped.
#pragma once
#include <memory>

#include "report.h"
#include "run/memory.h"
#include "run/wave.h"
#include "settings.h"

namespace sim {

enum class Access : u8 { load, store, atomic };
enum class Half : u8 { none, low, high };

inline constexpr u16 kNoRow = 0xffff;

// What one memory access does per lane. Definedness follows the data: memory → `result` rows, `data` rows → memory.
struct Touch {
  Access access = Access::load;
  u8 bytes = 4;
  u16 data = kNoRow;                           // first register row that is stored or combined
  u16 result = kNoRow;                         // first register row that is loaded or returned
  Half half = Half::none;                      // d16 forms: the half of the row
  bool dma = false;                            // the LDS side of an LDS-DMA: complete at vmcnt, not at lgkmcnt
};

struct LaunchChecks;
std::shared_ptr<LaunchChecks> make_launch_checks(const Launch& launch, u32 checks);
void begin_workgroup(Workgroup& group);        // allocates the shadow of LDS and of each wave
void end_workgroup(Workgroup& group);

void check_before(Wave& w, const Inst& i);     // registers read and written: wait counters, definedness
void check_after(Wave& w, const Inst& i);      // enqueues what the instruction left in flight
void check_barrier(Workgroup& group);          // every wave that has not ended waits: a new LDS epoch

// Per-lane accesses at address[lane] (global) or at byte offsets of the workgroup's LDS or the lane's scratch.
u64 check_global(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch);
u64 check_lds(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch);
u64 check_scratch(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch);
// One scalar access (s_load); false = reported, load zeros.
bool check_scalar(Wave& w, const Inst& i, u64 address, u32 bytes);
// The byte address of a scalar access before the hardware drops its two low bits.
void check_dropped_bits(Wave& w, const Inst& i, u64 address);
// Lanes exchanged by ds_bpermute and the like: from[lane] = the lane whose value arrives, -1 = a defined zero.
void check_shuffle(Wave& w, u16 result, u16 data, const i8* from, u64 exec);
// Lanes of a buffer access that are out of its range: their results are zeros, which are defined.
void check_zeros(Wave& w, const Touch& touch, u64 lanes);
// Lanes of a buffer access for which the two published range rules disagree (isa/mubuf.cpp).
void check_range_rules(Wave& w, const Inst& i, u64 lanes);

}  // namespace sim

// SPDX-License-Identifier: MIT
// What the cycle model needs to know of an instruction, made once per code object.
#pragma once
#include <vector>

#include "load/loader.h"
#include "timing/parameters.h"

namespace sim::timing {

// The units that take one instruction of a SIMD at a time. `internal` ones are executed where they wait to be issued.
enum class Unit : u8 { valu, mfma, salu, smem, vmem, lds, branch, internal, wait, barrier, end };
inline constexpr int kNumUnits = 11;

struct IssueFacts {
  Unit unit = Unit::internal;
  bool packed = false;                         // packed f32, which does not run beside a matrix operation
  bool blocks_valu = false;                    // f32 and f64 matrix operations
  bool stores = false, atomic = false, to_lds = false;
  bool passes_l1 = false, is_shared = false;   // sc1 or nt; sc1
  bool writes_back = false, forgets = false;   // buffer_wbl2, buffer_inv
  bool meets = false;                          // reads or writes what others may write: sc1, atomics of integers
  bool has_effects = false;                    // beyond registers: a loop that holds it does not only poll
  bool on_lgkm = false;                        // memory: counts on lgkmcnt
  u8 vmcnt = 63, lgkmcnt = 15;                 // s_waitcnt's
  u8 priority = 0xff;                          // s_setprio's
  u16 port_clk = 4;                            // that the unit takes no other instruction of the SIMD
  u16 pipe_clk = 0;                            // matrix pipe
  u16 wave_clk = 4;                            // until the wave can issue its next instruction
  u16 result_clk = 0;                          // matrix operations: until another instruction can read the result
  // Vector registers: the result of a matrix operation; what an instruction must not touch before one has written it.
  struct Range { u16 first = 0; u8 count = 0; } result, sources[4];
};

std::vector<IssueFacts> issue_facts(const Code& code, const Parameters& parameters);

}  // namespace sim::timing

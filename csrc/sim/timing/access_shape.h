// SPDX-License-Identifier: MIT
// What the addresses of one instruction mean for the memory system: conflicts between LDS banks, segments of global
// memory, lanes that meet at one address.
#pragma once
#include "types.h"

namespace sim::timing {

struct LdsShape {
  u32 clk = 0;                                 // that the banks are busy
  u32 conflict_clk = 0;                        // … of those, because lanes of a phase meet at a bank
};

// Offsets in bytes, of `bytes` each. Reads and writes of 16 bytes have different phases.
LdsShape lds_shape(const u32* offset, u64 lanes, u32 bytes, bool load);

struct SegmentShape {
  u32 asked = 0;                               // bytes, of all lanes
  u32 segments64 = 0, segments128 = 0;         // distinct aligned pieces of memory that the bytes lie in
};

// `lines`, if given, gets the segments of 128 bytes (address / 128) in the order of the lanes that touch them first: at
// most 128, their number is segments128.
SegmentShape segment_shape(const u64* address, u64 lanes, u32 bytes, u64* lines = nullptr);

// Lanes that come to an address after another lane of the same instruction.
u32 collisions(const u64* address, u64 lanes);

}  // namespace sim::timing

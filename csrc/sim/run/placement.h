// SPDX-License-Identifier: MIT
// Where the hardware would run a wave: the kernel reads it from hardware registers, and observers may assume it.
#pragma once
#include "run/wave.h"

namespace sim {

struct Placement {
  u32 xcd, cu, simd, slot;                     // cu: of its XCD; slot: of the waves of one workgroup on its SIMD
};

// A plausible place: workgroups go to the 8 XCDs in turn, there to the 38 CUs in turn, waves to the 4 SIMDs in turn.
inline Placement placement(const Wave& w) {
  constexpr u32 kXcds = 8, kCus = 38, kSimds = 4;
  const u32 group = w.group->number(), wave = static_cast<u32>(w.id);
  return {group % kXcds, group / kXcds % kCus, wave % kSimds, wave / kSimds};
}

}  // namespace sim

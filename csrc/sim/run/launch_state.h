// SPDX-License-Identifier: MIT
// What the hardware's dispatcher sets up: the kernel argument segment, the dispatch packet, and each wave's registers.
#pragma once
#include <array>
#include <vector>

#include "run/run.h"

namespace sim {

// The memory of one launch that the kernel can see. Must stay alive and in place while the launch runs.
struct LaunchState {
  Launch launch;
  std::vector<u8> kernarg_storage;
  alignas(64) std::array<u8, 64> packet{};

  explicit LaunchState(const LaunchRequest& request);
  LaunchState(const LaunchState&) = delete;
};

inline constexpr u32 kPoison = 0xCDCDCDCD;

// Registers at the kernel's first instruction. w.v, w.group and w.id are set; undefined registers get `poison`.
void init_wave(Wave& w, u32 poison);

}  // namespace sim

// SPDX-License-Identifier: MIT
// What the hardware's dispatcher sets up: the kernel argument segment, the dispatch packet, and each wave's registers.
#pragma once
#include <array>
#include <vector>

#include "run/hostcall.h"
#include "run/run.h"

namespace sim {

// The memory of one launch that the kernel can see. Must stay alive and in place while the launch runs.
struct LaunchState {
  Launch launch;
  std::vector<u8> kernarg_storage;
  alignas(64) std::array<u8, 64> packet{};
  std::unique_ptr<HostCalls> host;             // null: the kernel asks nothing of the host

  explicit LaunchState(const LaunchRequest& request);
  LaunchState(const LaunchState&) = delete;
  // Opens what the kernel needs of the host, if anything, for so many resident workgroups.
  void open_host(u64 resident_workgroups);
};

inline constexpr u32 kPoison = 0xCDCDCDCD;
inline constexpr u64 kGuardBytes = 64;         // poison after the argument segment

// Registers at the kernel's first instruction. w.v, w.group and w.id are set; undefined registers get `poison`.
void init_wave(Wave& w, u32 poison);

}  // namespace sim

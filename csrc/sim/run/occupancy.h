// SPDX-License-Identifier: MIT
// How many workgroups of a kernel a compute unit holds, and which of its resources is used up first.
#pragma once
#include "load/loader.h"

namespace sim {

// Workgroups that one CU holds by each resource alone; `groups` is the least of them.
struct Occupancy {
  u32 by_registers, by_scalars, by_lds, by_waves, by_groups;
  u32 waves_per_group, groups;
  const char* limiter;                         // "vector registers", "scalar registers", "LDS", "waves", "workgroups"

  u32 waves_per_simd() const { return (groups * waves_per_group + 3) / 4; }
};

Occupancy occupancy(const Kernel& kernel, u64 block, u64 lds_bytes);

}  // namespace sim

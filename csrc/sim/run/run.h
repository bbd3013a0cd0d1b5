// SPDX-License-Identifier: MIT
// Running a kernel: what hip/ calls.
#pragma once
#include "load/loader.h"

namespace sim {

struct LaunchRequest {
  const Code* code = nullptr;
  const Kernel* kernel = nullptr;
  u32 grid[3] = {1, 1, 1};                     // workgroups
  u32 block[3] = {1, 1, 1};
  u64 dynamic_lds_bytes = 0;
  u64 stack_bytes = 0;                         // A lane of a kernel with a dynamic stack has at least so many.
  const u8* kernarg = nullptr;                 // explicit arguments at their offsets; may be longer than needed
  u64 kernarg_bytes = 0;
  bool cooperative = false;                    // every workgroup resident at once, or refused
};

// Executes the whole grid before it returns. Throws Fault, a Refusal where it does not start, and leaves a report.
void run_kernel(const LaunchRequest& request);
// Throws what run_kernel does for a launch that cannot start: for those that start later.
void check_launch(const LaunchRequest& request);

}  // namespace sim

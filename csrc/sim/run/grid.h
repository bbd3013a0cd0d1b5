// SPDX-License-Identifier: MIT
// One grid, executed by several workers.
#pragma once
#include "run/wave.h"

namespace sim {

// Runs every workgroup to its end, on up to `threads` threads. Throws Fault when the launch fails, and leaves a report.
void run_grid(const Launch& launch, u64 seed, u64 resident_limit, u32 threads);

}  // namespace sim

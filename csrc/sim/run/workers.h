// SPDX-License-Identifier: MIT
// The persistent threads that help a launch's own thread. They sleep between launches.
#pragma once
#include <functional>

#include "types.h"

namespace sim {

// Calls body() on the calling thread and on up to `threads` - 1 others at once, and returns when all have returned.
// body must not throw. When the threads serve another launch, only the caller runs it.
void run_on_workers(u32 threads, const std::function<void()>& body);

// settings().threads, or the cores that this process may use.
u32 num_threads();

}  // namespace sim

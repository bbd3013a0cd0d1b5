// SPDX-License-Identifier: MIT
// Allocations, for the files that make or free them besides hipMalloc and hipFree: memory.cpp keeps them.
#pragma once
#include "hip/hip.h"

namespace sim::hip {

using Lease = std::shared_ptr<void>;             // ends with an allocation: a pool's count of it

// Captures are not asked: a graph's own memory, and a pool's.
Error allocate_device(void** out, size_t bytes, const char* call, Lease lease = nullptr);
Error release_device(void* pointer);
// An allocation of a graph, unless the program has freed it; its name tells it from a later one there.
void release_quietly(void* pointer, const std::string& name);
void free_memory_of(int device);

}  // namespace sim::hip

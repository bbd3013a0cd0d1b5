// SPDX-License-Identifier: MIT
// What module.cpp tells of a module that a program has loaded. Both throw Fault of a null handle.
#pragma once
#include <vector>

#include "hip/hip.h"

namespace sim::hip {

std::vector<std::string> kernel_names(void* module);
const Code& module_code(void* module);

}  // namespace sim::hip

// SPDX-License-Identifier: MIT
// Whether a kernel's instructions stay within the registers that its descriptor allocates, and where its accumulation
// registers lie.
#pragma once
#include "load/loader.h"

namespace sim {

// Using a register that the descriptor does not allocate becomes an error of the instruction. Call it once for each
// kernel of a code object that is decoded.
void place_registers(Code& code, Kernel& kernel);

}  // namespace sim

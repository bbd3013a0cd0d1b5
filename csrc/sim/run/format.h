// SPDX-License-Identifier: MIT
// printf on the host for a format and arguments that come from a kernel.
#pragma once
#include <span>
#include <string>

#include "types.h"

namespace sim {

// The text of a message in ROCm's layout: the format, a C string padded to 8 bytes; then the arguments, 8 bytes for
// each number and pointer, strings as the format. Conversions are those of C but for %n, which prints nothing, and wide
// characters and strings, which are narrow here. What the format does not say in C's grammar, and conversions without
// an argument, stay in the text as they are. Throws Fault for a width or precision beyond 65536.
std::string format_message(std::span<const u64> cells);

}  // namespace sim

// SPDX-License-Identifier: MIT
// Flushing of f16 denormals, which the host has no mode for. isa/mode.cpp calls this around an instruction.
#pragma once
#include "run/wave.h"

namespace sim {

// Flushes the f16 operands that MODE says: rows in place, kept for flush_half_result; scalars as constants in `copy`.
// Returns the instruction to run, `i` or `copy`.
const Inst& flush_half_sources(Wave& w, const Inst& i, Inst& copy);

// Flushes an f16 result where MODE says and gives the source rows their denormals back.
void flush_half_result(Wave& w, const Inst& i);

}  // namespace sim

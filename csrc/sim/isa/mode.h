// SPDX-License-Identifier: MIT
// How instructions run while MODE is not as compiled code leaves it: VGPR indexing, flushed denormals, rounding other
// than to nearest even, vector instructions that are skipped. Only the run loop's slow variant calls this.
#pragma once
#include "run/wave.h"

namespace sim {

// The instruction that runs in place of `i`: with VGPR indexing a copy with other registers, which lives for some tens
// of further calls. Sets the host's float mode to what it needs.
const Inst& enter_mode(Wave& w, const Inst& i);

// Ends what enter_mode began; `i` is what that returned.
void leave_mode(Wave& w, const Inst& i);

// Whether MODE keeps the instruction from being issued: it counts on no wait counter either.
bool is_skipped(const Wave& w, const Inst& i);

}  // namespace sim

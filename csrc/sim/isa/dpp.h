// SPDX-License-Identifier: MIT
// Data-parallel primitives: which lane each lane reads, and which lanes are written. A row is 16 lanes, a bank 4.
#pragma once
#include "run/wave.h"

namespace sim {

// source[lane]: the lane that `lane` reads; `valid` has a bit where that lane exists.
struct DppRow {
  u8 source[kLanes];
  u64 valid;
  bool within_rows;                            // no lane reads another row
};

// The pattern of a control and its argument; computed once for each pair.
const DppRow& dpp_row(DppCtrl control, u8 argument);

// out[lane] = in[source], or 0 when the source is out of range or inactive in `exec`.
void permute(const u32* in, u32* out, const DppRow& row, u64 exec);

// The lanes that are written: enabled by row_mask and bank_mask and, unless bound_ctrl makes an invalid source zero,
// with a source that is in range and active.
u64 dpp_lanes(const Modifiers& mod, const DppRow& row, u64 exec);

}  // namespace sim

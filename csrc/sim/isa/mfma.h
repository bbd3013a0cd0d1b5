// SPDX-License-Identifier: MIT
// Lane selection of matrix operands, for mfma.cpp and the rule of definedness.
#pragma once

namespace sim {

// B lane groups (BLGP): which lane's registers each lane uses.
inline int blgp_source(int blgp, int lane) {
  switch (blgp) {
    case 1: return lane % 32;
    case 2: return lane % 32 + 32;
    case 3: return (lane + 16) % 64;
    case 4: case 5: case 6: case 7: return lane % 16 + 16 * (blgp - 4);
    default: return lane;
  }
}

// CBSZ: 2^cbsz neighbouring blocks share block ABID of A.
inline int block_of_a(int block, int cbsz, int abid) { return (block >> cbsz << cbsz) + abid; }

}  // namespace sim

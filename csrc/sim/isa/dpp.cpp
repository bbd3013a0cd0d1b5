// SPDX-License-Identifier: MIT
// DPP lane patterns, tabulated.
#include "dpp.h"

#include <vector>

namespace sim {
namespace {

// The lane that `lane` reads, -1 when out of range.
int source_lane(DppCtrl control, int argument, int lane) {
  const int row = lane & ~15, at = lane & 15;
  switch (control) {
    case DppCtrl::quad_perm: return (lane & ~3) | (argument >> 2 * (lane & 3) & 3);
    case DppCtrl::row_shl: return at + argument < 16 ? lane + argument : -1;
    case DppCtrl::row_shr: return at >= argument ? lane - argument : -1;
    case DppCtrl::row_ror: return row | ((at - argument) & 15);
    case DppCtrl::wave_shl: return lane < 63 ? lane + 1 : -1;
    case DppCtrl::wave_rol: return (lane + 1) & 63;
    case DppCtrl::wave_shr: return lane - 1;
    case DppCtrl::wave_ror: return (lane - 1) & 63;
    case DppCtrl::row_mirror: return row | (15 - at);
    case DppCtrl::row_half_mirror: return (lane & ~7) | (7 - (lane & 7));
    case DppCtrl::row_bcast15: return row - 1;                     // row 0 has no previous row
    case DppCtrl::row_bcast31: return lane >= 32 ? 31 : -1;
    case DppCtrl::row_newbcast: return row | (argument & 15);
    case DppCtrl::none: break;
  }
  return lane;
}

constexpr int kControls = static_cast<int>(DppCtrl::row_newbcast) + 1;

std::vector<DppRow> all_rows() {
  std::vector<DppRow> rows(kControls * 256);
  for (int control = 0; control < kControls; ++control) {
    for (int argument = 0; argument < 256; ++argument) {
      DppRow& row = rows[control * 256 + argument];
      row.valid = 0;
      for (int lane = 0; lane < kLanes; ++lane) {
        const int source = source_lane(static_cast<DppCtrl>(control), argument, lane);
        row.source[lane] = source < 0 ? 0 : static_cast<u8>(source);
        if (source >= 0) row.valid |= u64{1} << lane;
      }
    }
  }
  return rows;
}

// The lanes whose source exists and is active.
u64 readable(const DppRow& row, u64 exec) {
  u64 lanes = 0;
  for (int lane = 0; lane < kLanes; ++lane) lanes |= (exec >> row.source[lane] & 1) << lane;
  return lanes & row.valid;
}

}  // namespace

const DppRow& dpp_row(DppCtrl control, u8 argument) {
  static const std::vector<DppRow> rows = all_rows();
  return rows[static_cast<size_t>(control) * 256 + argument];
}

void permute(const u32* in, u32* out, const DppRow& row, u64 exec) {
  u32 copy[kLanes];                                    // `in` may be `out`
  std::memcpy(copy, in, sizeof copy);
  const u64 lanes = exec == kAllLanes ? row.valid : readable(row, exec);
  for (int lane = 0; lane < kLanes; ++lane) out[lane] = lanes >> lane & 1 ? copy[row.source[lane]] : 0;
}

u64 dpp_lanes(const Modifiers& mod, const DppRow& row, u64 exec) {
  u64 enabled = 0;
  for (int bank = 0; bank < 16; ++bank) {
    if (mod.row_mask >> (bank / 4) & 1 && mod.bank_mask >> (bank % 4) & 1) enabled |= u64{15} << 4 * bank;
  }
  if (!mod.bound_ctrl) enabled &= exec == kAllLanes ? row.valid : readable(row, exec);
  return enabled & exec;
}

}  // namespace sim

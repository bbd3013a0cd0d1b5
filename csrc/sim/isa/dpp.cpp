// SPDX-License-Identifier: MIT
// DPP lane patterns, tabulated.
#include "isa/dpp.h"

#include <immintrin.h>

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
      row.within_rows = true;
      for (int lane = 0; lane < kLanes; ++lane) {
        const int source = source_lane(static_cast<DppCtrl>(control), argument, lane);
        row.source[lane] = source < 0 ? 0 : static_cast<u8>(source);
        if (source >= 0) row.valid |= u64{1} << lane;
        row.within_rows &= source < 0 || source / 16 == lane / 16;
      }
    }
  }
  return rows;
}

// The lanes whose source exists and is active.
u64 readable(const DppRow& row, u64 exec) {
  if (exec == kAllLanes) return row.valid;
  u64 lanes = 0;
  for (int lane = 0; lane < kLanes; ++lane) lanes |= (exec >> row.source[lane] & 1) << lane;
  return lanes & row.valid;
}

// Bits of 4 rows, and of 4 banks in each row, as lanes.
struct MaskLanes {
  u64 rows[16] = {}, banks[16] = {};
  constexpr MaskLanes() {
    for (int mask = 0; mask < 16; ++mask) {
      for (int lane = 0; lane < kLanes; ++lane) {
        rows[mask] |= u64{mask >> lane / 16 & 1u} << lane;
        banks[mask] |= u64{mask >> lane / 4 % 4 & 1u} << lane;
      }
    }
  }
};
constexpr MaskLanes kMaskLanes;

// out[lane] = in[source[lane]] for 16 lanes, 0 outside `lanes`; sources count modulo 16.
void permute_row(const u32* in, u32* out, const u8* source, u32 lanes) {
#ifdef __AVX512F__
  const __m512i index = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  const __mmask16 mask = static_cast<__mmask16>(lanes);
  _mm512_storeu_si512(out, _mm512_maskz_permutexvar_epi32(mask, index, _mm512_loadu_si512(in)));
#else
  u32 copy[16];                                        // `in` may be `out`
  std::memcpy(copy, in, sizeof copy);
  for (int lane = 0; lane < 16; ++lane) out[lane] = lanes >> lane & 1 ? copy[source[lane] & 15] : 0;
#endif
}

}  // namespace

const DppRow& dpp_row(DppCtrl control, u8 argument) {
  static const std::vector<DppRow> rows = all_rows();
  return rows[static_cast<size_t>(control) * 256 + argument];
}

void permute(const u32* in, u32* out, const DppRow& row, u64 exec) {
  const u64 lanes = readable(row, exec);
  if (row.within_rows) {
    for (int lane = 0; lane < kLanes; lane += 16) {
      permute_row(in + lane, out + lane, row.source + lane, static_cast<u32>(lanes >> lane));
    }
    return;
  }
  u32 copy[kLanes];                                    // `in` may be `out`
  std::memcpy(copy, in, sizeof copy);
  for (int lane = 0; lane < kLanes; ++lane) out[lane] = lanes >> lane & 1 ? copy[row.source[lane]] : 0;
}

u64 dpp_lanes(const Modifiers& mod, const DppRow& row, u64 exec) {
  const u64 enabled = kMaskLanes.rows[mod.row_mask & 15] & kMaskLanes.banks[mod.bank_mask & 15] & exec;
  return mod.bound_ctrl ? enabled : enabled & readable(row, exec);
}

}  // namespace sim

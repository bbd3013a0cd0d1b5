// SPDX-License-Identifier: MIT
// LDS has 32 banks of 4 bytes: bank = (byte / 4) mod 32. A wave's access takes several phases; lanes of one phase
// conflict when they touch different dwords of one bank, and the phase takes as many cycles as the busiest bank has
// dwords. Phases of ds_read_b128: AMD's CK-Tile documentation on bank conflicts; of the other widths: consecutive
// lanes, so many that they read or write 128 bytes, which no public source states. Public measurements of strides
// (MI300X: 1 to 32 dwords between lanes, one cycle per dword of the busiest bank) agree with it for 4 bytes.
#include "timing/access_shape.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

namespace sim::timing {
namespace {

// A small set of addresses: at most 128, two of each lane.
class Set {
 public:
  // True when it was not there.
  bool add(u64 value) {
    for (u64 at = (value * 0x9e3779b97f4a7c15) >> 55;; ++at) {         // 512 places
      u64& place = places_[at & 511];
      if (place == value + 1) return false;
      if (place) continue;
      place = value + 1;
      return true;
    }
  }

 private:
  std::array<u64, 512> places_{};
};

// The lane that is the n-th of all phases together.
constexpr auto kReadB128 = [] {
  std::array<u8, 64> order{};
  constexpr int kFirst[] = {0, 20, 4, 16, 8, 28, 12, 24};
  for (int n = 0; n < 64; ++n) order[n] = static_cast<u8>(n / 32 * 32 + kFirst[n % 32 / 4] + n % 4);
  return order;
}();

u32 lanes_per_phase(u32 bytes) { return bytes <= 4 ? 32 : bytes <= 8 ? 16 : 8; }

}  // namespace

LdsShape lds_shape(const u32* offset, u64 lanes, u32 bytes, bool load, BankUse* use) {
  const u32 per_phase = lanes_per_phase(bytes);
  const bool ordered = load && per_phase == 8;
  LdsShape shape;
  for (u32 first = 0; first < 64; first += per_phase) {
    // Distinct dwords of each bank; a phase has at most 8 lanes of 5 dwords, 16 of 3 or 32 of 2.
    u32 dwords[kBanks][64];
    u8 count[kBanks] = {};
    u32 busiest = 0;
    for (u32 n = first; n < first + per_phase; ++n) {
      const u32 lane = ordered ? kReadB128[n] : n;
      if (!(lanes >> lane & 1)) continue;
      for (u32 dword = offset[lane] / kBankBytes; dword * kBankBytes < offset[lane] + bytes; ++dword) {
        const u32 bank = dword % kBanks;
        u32* const seen = dwords[bank];
        if (std::find(seen, seen + count[bank], dword) != seen + count[bank]) continue;
        seen[count[bank]++] = dword;
        busiest = std::max<u32>(busiest, count[bank]);
      }
    }
    shape.clk += busiest;
    if (busiest) shape.conflict_clk += busiest - 1;
    for (u32 bank = 0; use && bank < kBanks; ++bank) {
      use->clk[bank] += count[bank];
      if (count[bank]) use->extra_clk[bank] += count[bank] - 1u;
    }
  }
  return shape;
}

u32 lds_phase(u32 lane, u32 bytes, bool load) {
  const u32 per_phase = lanes_per_phase(bytes);
  if (!load || per_phase != 8) return lane / per_phase;
  return static_cast<u32>(std::find(kReadB128.begin(), kReadB128.end(), lane) - kReadB128.begin()) / per_phase;
}

SegmentShape segment_shape(const u64* address, u64 lanes, u32 bytes) {
  SegmentShape shape;
  shape.asked = static_cast<u32>(std::popcount(lanes)) * bytes;
  Set known64, known128;
  u64 last = ~u64{0};                          // neighbours mostly share a segment
  for (u64 left = lanes; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    for (u64 segment = address[lane] / 64; segment * 64 < address[lane] + bytes; ++segment) {
      if (segment == last) continue;
      last = segment;
      if (!known64.add(segment)) continue;
      ++shape.segments64;
      shape.segments128 += known128.add(segment / 2);
    }
  }
  return shape;
}

// In a cycle the unit takes lanes that together have 64 bytes, if these lie in one line; else a cycle per distinct
// line. So rows of 4 lanes of 16 bytes are as fast as 64 in a row, and the same lanes 16 apart, as matrix operands lie,
// are not (public measurements of access shapes: 4.0, 1.8 and 1.1 TB/s).
LineShape line_shape(const u64* address, u64 lanes, u32 bytes, u64* lines) {
  LineShape shape;
  const int group = kAddressBytes / (bytes >= 16 ? 16 : bytes >= 8 ? 8 : 4);
  for (int first = 0; first < 64; first += group) {
    u64 seen[2 * 16];                          // lines of these lanes, which may lie in two each
    u32 count = 0;
    for (int lane = first; lane < first + group; ++lane) {
      if (!(lanes >> lane & 1)) continue;
      for (u64 segment = address[lane] / 64; segment * 64 < address[lane] + bytes; ++segment) {
        const u64 line = segment / 2, half = u64{1} << segment % 2;
        if (std::find(seen, seen + count, line) == seen + count) seen[count++] = line;
        // Neighbours touch the lines that were touched last.
        u32 at = shape.lines;
        while (at > 0 && lines[at - 1] >> 2 != line) --at;
        if (at) lines[at - 1] |= half;
        else lines[shape.lines++] = line << 2 | half;
      }
    }
    shape.address_clk += count;
  }
  return shape;
}

u32 collisions(const u64* address, u64 lanes) {
  Set known;
  u32 found = 0;
  for (u64 left = lanes; left; left &= left - 1) found += !known.add(address[std::countr_zero(left)]);
  return found;
}

}  // namespace sim::timing

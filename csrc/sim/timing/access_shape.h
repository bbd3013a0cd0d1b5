// SPDX-License-Identifier: MIT
// What the addresses of one instruction mean for the memory system: conflicts between LDS banks, segments of global
// memory, lanes that meet at one address.
#pragma once
#include <array>

#include "types.h"

namespace sim::timing {

inline constexpr u32 kBanks = 32, kBankBytes = 4;
inline constexpr int kAddressBytes = 64;       // bytes of neighbouring lanes that the address unit takes in a cycle

struct LdsShape {
  u32 clk = 0;                                 // the banks are busy for so many cycles
  u32 conflict_clk = 0;                        // so many of these are lost because lanes of a phase meet at a bank
};

// The load that accesses put on each bank.
struct BankUse {
  std::array<u64, kBanks> clk{};               // a dword each
  std::array<u64, kBanks> extra_clk{};         // … after the first of a phase
};

// Offsets in bytes, of `bytes` each. Reads and writes of 16 bytes have different phases. Adds to `use` if there is one.
LdsShape lds_shape(const u32* offset, u64 lanes, u32 bytes, bool load, BankUse* use = nullptr);

// Lanes with the same number go to the banks together; the numbers are the phases' order.
u32 lds_phase(u32 lane, u32 bytes, bool load);

struct SegmentShape {
  u32 asked = 0;                               // bytes, of all lanes
  u32 segments64 = 0, segments128 = 0;         // distinct aligned pieces of memory that the bytes lie in
};

SegmentShape segment_shape(const u64* address, u64 lanes, u32 bytes);

struct LineShape {
  u32 lines = 0;                               // distinct pieces of 128 bytes
  u32 address_clk = 0;                         // the unit that takes 64 bytes of neighbouring lanes a cycle needs these
};

// `lines` gets address / 128 << 2 | which halves of 64 bytes, in the order of the lanes that touch them first: at most
// 128.
LineShape line_shape(const u64* address, u64 lanes, u32 bytes, u64* lines);

// Lanes that come to an address after another lane of the same instruction.
u32 collisions(const u64* address, u64 lanes);

}  // namespace sim::timing

// SPDX-License-Identifier: MIT
// Which pairs of instructions need wait states between them, as data. waitstate.cpp applies the table at run time.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "inst.h"

namespace sim {

struct Code;

// The roles of an instruction in the rows below; it has several.
enum Role : u32 {
  kRoleXdl = 1 << 0,            // every MFMA except f32 and f64
  kRoleMfma32 = 1 << 1,
  kRoleMfma64Large = 1 << 2,    // f64 16x16x4
  kRoleMfma64Small = 1 << 3,    // f64 4x4x4
  kRoleTwoPass = 1 << 4,        // MFMA of two passes
  kRoleValu = 1 << 5,           // vector arithmetic without MFMA
  kRoleTrans = 1 << 6,
  kRolePlain = 1 << 7,          // kRoleValu without kRoleTrans
  kRolePartial = 1 << 8,        // writes a part of its destination: SDWA, op_sel
  kRoleDot = 1 << 9,
  kRoleNotDot = 1 << 10,        // kRoleValu without kRoleDot
  kRoleFma64 = 1 << 11,
  kRoleWritesSgpr = 1 << 12,    // vector arithmetic that writes SGPRs, VCC or EXEC
  kRoleReadsSgpr = 1 << 13,     // vector arithmetic that reads SGPRs or VCC
  kRoleDivFmas = 1 << 14,
  kRoleLaneSelect = 1 << 15,    // v_readlane, v_writelane with the lane in an SGPR
  kRoleReadLane = 1 << 16,      // v_readlane, v_readfirstlane
  kRoleWriteLane = 1 << 17,
  kRoleDpp = 1 << 18,
  kRoleVmem = 1 << 19,          // global, flat, scratch, buffer
  kRoleDs = 1 << 20,
  kRoleWideStore = 1 << 21,     // vector memory store of more than 64 bits per lane
  kRoleWritesM0 = 1 << 22,      // scalar write of M0
  kRoleUsesM0 = 1 << 23,        // ds_*_addtid, s_sendmsg, s_movrel
  kRoleSetReg = 1 << 24,
  kRoleGetReg = 1 << 25,        // s_getreg, s_setreg
  kRoleWideStoreAtSgpr = 1 << 26,   // a wide buffer store with its offset in an SGPR; it is no kRoleWideStore
  kRoleLdsDma = 1 << 27,        // uses M0 too
};

// Registers of an instruction that a row compares.
enum class Part : u8 {
  none,                         // the two instructions alone matter
  writes, reads, touches,       // vector registers
  src_ab, src_c, same_c, other_c,     // MFMA sources; same_c is just the earlier result, other_c overlaps it otherwise
  blind_writes,                 // registers that it writes and does not read
  store_data,
  scalar_writes, scalar_reads, mask, no_mask,    // mask: of v_cndmask, a carry; no_mask: other scalar reads
  lane, vcc, exec, m0, hwreg,
  dot_ab, dot_other,            // A and B of the same v_dot* / anything of another operation
};

struct WaitRow {
  const char* name;
  u32 from, to;                 // roles of the earlier and of the later instruction: any of these
  Part earlier, later;          // registers that must overlap
  i8 states, per_pass;          // wait states needed between them: states + per_pass * passes of the earlier one
  const char* demanded_by = nullptr;    // the only ones who need them: shipped kernels omit them and work
};

std::span<const WaitRow> wait_rows();

// The rows that concern an instruction.
struct IssueFacts {
  u32 roles = 0;
  u8 passes = 0;                // MFMA
  u8 states = 1;                // wait states that it counts
  u64 earlier = 0, later = 0;   // rows (bit = index in wait_rows()) that take it as the earlier, as the later one
};

// Facts about a code object's instructions, by Inst::index. Whether an instruction comes too early depends only on the
// ones issued just before it, so `clean` keeps for each instruction the hashes of histories after which it does not.
struct IssueTable {
  static constexpr int kHistories = 4;         // an instruction after a join is reached in several ways
  std::vector<IssueFacts> facts;
  std::unique_ptr<std::array<std::atomic<u64>, kHistories>[]> clean;
};

void fill(IssueTable& table, const Code& code);

// Whether the parts meet: the register, or an empty range.
RegRange meeting(const WaitRow& row, const Inst& earlier, const Inst& later);

}  // namespace sim

// SPDX-License-Identifier: MIT
// What decode.cpp (LLVM, tables) and parse.cpp (text) share.
#pragma once
#include <string_view>

#include "inst.h"

namespace sim {

struct NamedTable {
  const char* file;                            // of isa/, without .cpp
  std::span<const Op> (*ops)();
};
std::span<const NamedTable> tables();

// The row of a mnemonic without its encoding suffix, or null. Throws Fault when two tables define one name.
const Op* find_op(std::string_view name);

// Fills `inst` from one line of disassembly and its bytes; inst.pc and inst.size are set. What it does not understand
// becomes inst.error and a handler that throws it.
void parse_inst(std::string_view text, const u8* bytes, Inst& inst);

// Sets inst.regs from the operands and the row's flags.
void collect_registers(Inst& inst);

// Makes `inst` a Fault when executed.
void set_error(Inst& inst, std::string why);

}  // namespace sim

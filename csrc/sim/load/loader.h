// SPDX-License-Identifier: MIT
// A code object in memory: image, kernels, decoded instructions. loader.cpp makes it; run/, checks/ and hip/ read it.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checks/waitstate.h"
#include "load/debug_line.h"
#include "run/wave.h"

namespace sim {

struct HiddenArg {
  u32 offset, size;
  std::string kind;                            // "hidden_block_count_x", …
};

struct Arg { u32 offset, size; };              // an explicit argument

struct Kernel {
  std::string name, symbol;                    // name as launched; symbol of the descriptor ("<name>.kd")
  u64 entry = 0;                               // address of the first instruction
  u32 kernarg_bytes = 0, lds_bytes = 0, private_bytes = 0, max_block = 1024;
  u32 vgprs = 0, agprs = 0, sgprs = 0, vgpr_spills = 0, sgpr_spills = 0;
  u32 accum_offset = 0;                        // first AGPR's position in the unified file
  u32 rsrc1 = 0, rsrc2 = 0, rsrc3 = 0;
  u16 properties = 0;
  u16 preload_dwords = 0, preload_offset = 0;  // kernarg preload
  bool one_file = false;                       // a0 is row accum_offset, not kFirstAgpr (load/registers.cpp)
  // Vector registers that the descriptor allocates, and their rows in the wave's file: from 0 on, from kFirstAgpr on.
  u32 rows() const { return ((rsrc1 & 0x3f) + 1) * 8; }
  u32 arch_rows() const { return one_file ? rows() : std::min({rows(), accum_offset, u32{256}}); }
  u32 accum_rows() const { return one_file ? 0 : std::min(rows() - arch_rows(), u32{256}); }

  // Whether it calls what its compiler does not know, which takes scratch beyond private_bytes.
  bool has_dynamic_stack() const { return properties & 1 << 11; }
  // SGPRs that the descriptor allocates, in sixteens; VCC and what follows it is there in any case.
  u32 scalars() const { return ((rsrc1 >> 6 & 15) / 2 + 1) * 16; }

  std::vector<Arg> args;
  std::vector<HiddenArg> hidden;
};

struct Variable { std::string name; u64 address, bytes; };

struct Code {
  std::string name;                            // for messages
  std::vector<Kernel> kernels;
  std::vector<Variable> variables;
  std::vector<Inst> insts;                     // every function's instructions, in address order
  u64 text_begin = 0, text_end = 0;
  std::vector<u32> inst_at;                    // (pc - text_begin) / 4 → index into insts, ~0u = none
  std::vector<Class> classes;                  // per instruction, for counters
  std::map<u64, std::string> formats;          // hash → format, for printf into a buffer
  bool has_opencl_formats = false;

  mutable std::once_flag issue_once;           // the first launch whose wait states are checked fills `issue`
  mutable IssueTable issue;

  mutable DebugSections debug;                         // until the first line_table
  mutable std::once_flag lines_once;
  mutable LineTable lines;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code();
  const Kernel* find(std::string_view kernel) const;
  const Inst* at(u64 pc) const;                // null when pc is no instruction
  // Whether `is` holds for an instruction of a kernel, or of a function that lies between it and the next kernel.
  template <class F>
  bool any_of(const Kernel& kernel, const F& is) const {
    u64 end = text_end;
    for (const Kernel& other : kernels) {
      if (other.entry > kernel.entry) end = std::min(end, other.entry);
    }
    return std::any_of(insts.begin(), insts.end(),
                       [&](const Inst& i) { return i.pc >= kernel.entry && i.pc < end && is(i); });
  }
  std::string source_of(u64 pc) const;         // "file:line", "" when the file has no line for it
  std::string caller_of(u64 pc) const;         // … and the call of the inlined function that it belongs to, "" for none
  const LineTable& line_table() const;         // addresses count from the beginning of the image
  u8* image = nullptr;                         // mapped PT_LOADs
  u64 image_bytes = 0;
};

// Loads an offload bundle (also a fat binary's image) or a bare ELF. `bytes` = 0 means unknown: the
// image's own headers then give its extent. Throws Fault with a clear reason.
std::unique_ptr<Code> load_code(const void* image, u64 bytes, std::string name);

// decode.cpp: fills one Inst per instruction of [begin, end); text it does not understand gives Inst::error.
void decode_range(const u8* bytes, u64 begin, u64 end, std::vector<Inst>& out);

}  // namespace sim

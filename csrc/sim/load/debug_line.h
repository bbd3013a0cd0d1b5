// SPDX-License-Identifier: MIT
// Source lines of a code object, from its DWARF line tables. Read when a report needs one, never before.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "types.h"

namespace sim {

// Copies of the sections, because the file may be gone by the first report.
struct DebugSections {
  std::vector<u8> line, line_str, str;         // .debug_line, .debug_line_str, .debug_str
};

class LineTable {
 public:
  LineTable() = default;
  // This never fails: a unit that is damaged, or of an unknown version, gives the lines before the damage. The table
  // leaves out code below `text_begin`, because the linker moves what it drops to address 0.
  LineTable(DebugSections sections, u64 text_begin);
  LineTable(LineTable&&) = default;
  LineTable& operator=(LineTable&&) = default;

  // "file:line" of the code at an address, as in the file; "" when nothing is known.
  std::string at(u64 address) const;

 private:
  friend class UnitReader;
  struct File { std::string_view base, folder, name; };   // of `sections_`; relative ones start at the one before
  struct Row { u64 address; u32 file, line; };
  struct Sequence { u64 begin, end; size_t first, count; };   // code without gaps: its rows, addresses ascending

  DebugSections sections_;
  std::vector<File> files_;
  std::vector<Row> rows_;
  std::vector<Sequence> sequences_;            // sorted by begin
};

}  // namespace sim

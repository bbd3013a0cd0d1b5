// SPDX-License-Identifier: MIT
// Source lines of a code object, from its DWARF line tables. Read when a report needs one, never before.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "types.h"

namespace sim {

// Copies of the .debug_ sections by name, because the file may be gone by the first report. The line tables are in
// .debug_line, .debug_line_str and .debug_str; a debugger asks for the others, too.
struct DebugSections {
  std::map<std::string, std::vector<u8>, std::less<>> by_name;

  const std::vector<u8>& of(std::string_view name) const {
    static const std::vector<u8> none;
    const auto found = by_name.find(name);
    return found == by_name.end() ? none : found->second;
  }
};

struct CallSite { u64 begin, end, file; u32 line; };     // the code of an inlined function, and where it is called

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
  // Returns the line at which the function that is not inlined calls what the address belongs to, "" for its own code.
  std::string called_at(u64 address) const;
  // Whether a statement begins at the address: a good place for a breakpoint.
  bool begins_statement(u64 address) const;
  const DebugSections& sections() const { return sections_; }

 private:
  friend class UnitReader;
  // Views into `sections_`; relative ones start at the one before
  struct File { std::string_view base, folder, name; };
  struct Row { u64 address; u32 file, line; bool is_statement; };
  struct Sequence { u64 begin, end; size_t first, count; };   // code without gaps: its rows, addresses ascending

  // The row that the address belongs to, null when there is none.
  const Row* find(u64 address) const;
  // "file:line" of a place in `files_`, "" for none.
  std::string text(u64 file, u32 line) const;

  DebugSections sections_;
  std::vector<File> files_;
  std::vector<Row> rows_;
  std::vector<Sequence> sequences_;            // sorted by begin
  std::map<u64, u32> files_of_;                // offset of a unit in .debug_line → its first one of `files_`
  std::vector<CallSite> calls_;                // sorted by begin; inlined functions within others are left out
};

}  // namespace sim

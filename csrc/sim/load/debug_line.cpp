// SPDX-License-Identifier: MIT
// The line number program of DWARF 2 to 5 (section 6.2 of each). Every read goes through Bytes, which throws at a
// section's end.
#include "load/debug_line.h"

#include <algorithm>
#include <utility>

#include "load/call_sites.h"
#include "load/cursor.h"

namespace sim {
namespace {

constexpr u32 kNoFile = ~0u;

enum Form : u64 {
  kFormBlock2 = 0x03, kFormBlock4 = 0x04, kFormData2 = 0x05, kFormData4 = 0x06, kFormData8 = 0x07, kFormString = 0x08,
  kFormBlock = 0x09, kFormBlock1 = 0x0a, kFormData1 = 0x0b, kFormStrp = 0x0e, kFormUdata = 0x0f, kFormData16 = 0x1e,
  kFormLineStrp = 0x1f,
};
enum Content : u64 { kPath = 1, kDirectoryIndex = 2 };

}  // namespace

// One unit: its header, then the program, whose rows go into the table.
class UnitReader {
 public:
  UnitReader(LineTable& table, Bytes unit, u64 at, bool is_64, u64 text_begin)
      : table_(table), in_(unit), at_(at), is_64_(is_64), text_begin_(text_begin) {}

  void read() {
    version_ = in_.take<u16>();
    if (version_ < 2 || version_ > 5) throw Fault("line table of an unknown version");
    if (version_ == 5) in_.take<u16>();        // sizes of an address and of a segment selector
    Cursor header(in_.take(offset()));
    min_size_ = header.take<u8>();
    if (version_ >= 4) header.take<u8>();      // operations per instruction, of VLIW machines
    begins_statements_ = header.take<u8>() != 0;
    line_base_ = header.take<i8>();
    line_range_ = header.take<u8>();
    opcode_base_ = header.take<u8>();
    if (line_range_ == 0 || opcode_base_ == 0) throw Fault("line table with an impossible header");
    const Bytes lengths = header.take(opcode_base_ - 1u);
    num_operands_.assign(lengths.data, lengths.data + lengths.size);
    is_statement_ = begins_statements_;
    first_file_ = static_cast<u32>(table_.files_.size());
    table_.files_of_[at_] = first_file_;
    if (version_ == 5) read_names(header);
    else read_old_names(header);
    run();
  }

 private:
  u64 offset() { return offset(in_); }
  u64 offset(Cursor& c) const { return is_64_ ? c.take<u64>() : c.take<u32>(); }

  void read_names(Cursor& header) {
    using Entry = std::pair<std::string_view, u64>;
    const std::vector<Entry> folders = entries(header);
    const auto folder = [&](u64 i) { return i < folders.size() ? folders[i].first : std::string_view(); };
    for (const auto& [name, index] : entries(header)) {
      table_.files_.push_back({folder(0), index ? folder(index) : std::string_view(), name});
    }
  }

  // A list of version 5 describes its own fields: (path, folder) of each entry.
  std::vector<std::pair<std::string_view, u64>> entries(Cursor& header) const {
    std::vector<std::pair<u64, u64>> fields(header.take<u8>());   // content, form
    for (auto& [content, form] : fields) {
      content = header.unsigned_leb();
      form = header.unsigned_leb();
    }
    std::vector<std::pair<std::string_view, u64>> list;
    const u64 count = header.unsigned_leb();
    if (fields.empty() && count) throw Fault("line table with an impossible list");
    for (u64 i = 0; i < count; ++i) {          // a field takes a byte or more: a wrong count meets the section's end
      auto& [path, folder] = list.emplace_back();
      for (const auto& [content, form] : fields) {
        std::string_view text;
        const u64 number = field(header, form, text);
        if (content == kPath) path = text;
        if (content == kDirectoryIndex) folder = number;
      }
    }
    return list;
  }

  std::string_view string_of(std::string_view section, u64 at) const {
    return view(table_.sections_.of(section)).string_at(at, "line table");
  }

  u64 field(Cursor& c, u64 form, std::string_view& text) const {
    switch (form) {
      case kFormString: text = c.string(); return 0;
      case kFormLineStrp: text = string_of(".debug_line_str", offset(c)); return 0;
      case kFormStrp: text = string_of(".debug_str", offset(c)); return 0;
      case kFormUdata: return c.unsigned_leb();
      case kFormData1: return c.take<u8>();
      case kFormData2: return c.take<u16>();
      case kFormData4: return c.take<u32>();
      case kFormData8: return c.take<u64>();
      case kFormData16: c.take(16); return 0;
      case kFormBlock: c.take(c.unsigned_leb()); return 0;
      case kFormBlock1: c.take(c.take<u8>()); return 0;
      case kFormBlock2: c.take(c.take<u16>()); return 0;
      case kFormBlock4: c.take(c.take<u32>()); return 0;
      default: throw Fault("line table with an unknown form");
    }
  }

  // Before version 5: names end with an empty one. Folder 0 is the compiler's and unnamed; file 0 is none.
  void read_old_names(Cursor& header) {
    std::vector<std::string_view> folders{{}};
    for (std::string_view name; !(name = header.string()).empty();) folders.push_back(name);
    table_.files_.emplace_back();
    for (std::string_view name; !(name = header.string()).empty();) {
      const u64 index = header.unsigned_leb();
      header.unsigned_leb();                   // time
      header.unsigned_leb();                   // size
      table_.files_.push_back({{}, index < folders.size() ? folders[index] : std::string_view(), name});
    }
  }

  void run() {
    while (!in_.done()) {
      const u8 opcode = in_.take<u8>();
      if (opcode >= opcode_base_) {
        const u32 both = opcode - opcode_base_;
        advance(both / line_range_);
        line_ += line_base_ + static_cast<i32>(both % line_range_);
        add_row();
      } else if (opcode == 0) {
        extended();
      } else {
        standard(opcode);
      }
    }
  }

  void standard(u8 opcode) {
    switch (opcode) {
      case 1: add_row(); break;
      case 2: advance(in_.unsigned_leb()); break;
      case 3: line_ += static_cast<u32>(in_.signed_leb()); break;
      case 4: file_ = in_.unsigned_leb(); break;
      case 6: is_statement_ = !is_statement_; break;
      case 8: advance((255u - opcode_base_) / line_range_); break;
      case 9: address_ += in_.take<u16>(); break;
      default:                                 // columns, marks, and what later versions may add
        for (u8 i = 0; i < num_operands_[opcode - 1]; ++i) in_.unsigned_leb();
    }
  }

  void extended() {
    Cursor operation(in_.take(in_.unsigned_leb()));
    const u8 opcode = operation.take<u8>();
    if (opcode == 1) end_sequence();
    if (opcode == 2) address_ = operation.take<u64>();
  }

  void advance(u64 operations) { address_ += operations * min_size_; }

  void add_row() {
    const u64 index = file_ < table_.files_.size() ? first_file_ + file_ : kNoFile;
    const bool known = index < table_.files_.size();
    table_.rows_.push_back({address_, known ? static_cast<u32>(index) : kNoFile, line_, is_statement_});
  }

  void end_sequence() {
    const size_t count = table_.rows_.size() - first_row_;
    if (count) {
      const u64 begin = table_.rows_[first_row_].address;
      if (begin >= text_begin_ && begin < address_) table_.sequences_.push_back({begin, address_, first_row_, count});
    }
    first_row_ = table_.rows_.size();
    address_ = 0;
    file_ = 1;
    line_ = 1;
    is_statement_ = begins_statements_;
  }

  LineTable& table_;
  Cursor in_;
  const u64 at_;                               // Other sections name the unit by this offset.
  const bool is_64_;
  const u64 text_begin_;
  u16 version_ = 0;
  u8 min_size_ = 1, line_range_ = 1, opcode_base_ = 1;
  i8 line_base_ = 0;
  std::vector<u8> num_operands_;               // operands of each standard opcode
  u32 first_file_ = 0;
  size_t first_row_ = table_.rows_.size();
  u64 address_ = 0, file_ = 1;                 // the registers of the line number machine
  u32 line_ = 1;
  bool begins_statements_ = true, is_statement_ = true;
};

LineTable::LineTable(DebugSections sections, u64 text_begin) : sections_(std::move(sections)) {
  for_each_unit(view(sections_.of(".debug_line")), [&](u64 at, Bytes unit, bool is_64) {
    UnitReader(*this, unit, at, is_64, text_begin).read();
  });
  std::stable_sort(sequences_.begin(), sequences_.end(),
                   [](const Sequence& a, const Sequence& b) { return a.begin < b.begin; });
  calls_ = call_sites(sections_, files_of_, text_begin);
}

const LineTable::Row* LineTable::find(u64 address) const {
  const auto after = std::upper_bound(sequences_.begin(), sequences_.end(), address,
                                      [](u64 a, const Sequence& s) { return a < s.begin; });
  if (after == sequences_.begin() || address >= after[-1].end) return nullptr;
  const auto first = rows_.begin() + static_cast<i64>(after[-1].first);
  const auto past = std::upper_bound(first, first + static_cast<i64>(after[-1].count), address,
                                     [](u64 a, const Row& r) { return a < r.address; });
  return past == first ? nullptr : &past[-1];
}

bool LineTable::begins_statement(u64 address) const {
  for (const Row* row = find(address); row && row->address == address; --row) {
    if (row->is_statement) return true;
    if (row == rows_.data()) break;
  }
  return false;
}

std::string LineTable::text(u64 index, u32 line) const {
  if (line == 0 || index >= files_.size() || files_[index].name.empty()) return "";   // the compiler's own code
  const File& file = files_[index];
  std::string path(file.name);
  for (const std::string_view folder : {file.folder, file.base}) {
    if (!path.starts_with('/') && !folder.empty() && folder != ".") path = std::string(folder) + "/" + path;
  }
  return path + ":" + std::to_string(line);
}

std::string LineTable::at(u64 address) const {
  const Row* row = find(address);
  return row ? text(row->file, row->line) : "";
}

std::string LineTable::called_at(u64 address) const {
  const auto after = std::upper_bound(calls_.begin(), calls_.end(), address,
                                      [](u64 a, const CallSite& c) { return a < c.begin; });
  if (after == calls_.begin() || address >= after[-1].end) return "";
  return text(after[-1].file, after[-1].line);
}

}  // namespace sim

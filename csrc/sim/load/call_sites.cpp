// SPDX-License-Identifier: MIT
// The entries of .debug_info, DWARF 2 to 5 (section 7.5 of each), as far as inlined calls need them.
#include "load/call_sites.h"

#include <algorithm>
#include <map>
#include <optional>

#include "load/cursor.h"

namespace sim {
namespace {

enum Tag : u64 { kInlinedSubroutine = 0x1d };
enum Attribute : u64 {
  kStmtList = 0x10, kLowPc = 0x11, kHighPc = 0x12, kRanges = 0x55, kCallFile = 0x58, kCallLine = 0x59,
  kAddrBase = 0x73, kRnglistsBase = 0x74,
};
enum Form : u64 {
  kAddr = 0x01, kIndirect = 0x16, kAddrx = 0x1b, kImplicitConst = 0x21, kRnglistx = 0x23, kAddrx1 = 0x29,
  kAddrx4 = 0x2c,
};
enum RangeKind : u8 {
  kEnd, kBaseAddressx, kStartxEndx, kStartxLength, kOffsetPair, kBaseAddress, kStartEnd, kStartLength,
};

struct Abbreviation {
  struct Field { u64 attribute, form; i64 constant; };
  u64 tag;
  bool has_children;
  std::vector<Field> fields;
};

struct Value { u64 form = 0, number = 0; };

class UnitCalls {
 public:
  UnitCalls(const DebugSections& sections, const std::map<u64, u32>& files_of, u64 text_begin,
            std::vector<CallSite>& found)
      : sections_(sections), files_of_(files_of), text_begin_(text_begin), found_(found) {}

  void read(Bytes unit, bool is_64) {
    Cursor in(unit);
    is_64_ = is_64;
    version_ = in.take<u16>();
    if (version_ < 2 || version_ > 5) return;
    const u8 kind = version_ == 5 ? in.take<u8>() : 1;
    if (kind != 1 && kind != 3) return;          // whole and partial units: types have no code
    if (version_ == 5 && in.take<u8>() != 8) return;
    read_abbreviations(offset(in));
    if (version_ < 5 && in.take<u8>() != 8) return;
    address_base_ = ranges_base_ = is_64 ? 16 : 8;        // Units that name no base mean the end of the header.
    entries(in);
  }

 private:
  using Values = std::map<u64, Value>;           // attribute → value

  u64 offset(Cursor& in) const { return is_64_ ? in.take<u64>() : in.take<u32>(); }

  void read_abbreviations(u64 at) {
    Cursor in(view(sections_.of(".debug_abbrev")));
    in.take(at);
    while (const u64 code = in.unsigned_leb()) {
      Abbreviation one{in.unsigned_leb(), in.take<u8>() != 0, {}};
      for (;;) {
        const u64 attribute = in.unsigned_leb(), form = in.unsigned_leb();
        const i64 constant = form == kImplicitConst ? in.signed_leb() : 0;
        if (!attribute && !form) break;
        one.fields.push_back({attribute, form, constant});
      }
      abbreviations_[code] = std::move(one);
    }
  }

  // The tree's entries in order. An inlined function within an inlined one belongs to the outer one's call.
  void entries(Cursor& in) {
    u64 depth = 0, inlined_at = 0;               // depth of the inlined function that this is within, 0: of none
    bool is_unit = true;
    do {
      const u64 code = in.unsigned_leb();
      if (!code) {
        if (depth) --depth;
        if (inlined_at > depth) inlined_at = 0;
        continue;
      }
      const auto known = abbreviations_.find(code);
      if (known == abbreviations_.end()) throw Fault("debug information with an unknown abbreviation");
      const Abbreviation& one = known->second;
      const bool is_outermost = one.tag == kInlinedSubroutine && !inlined_at;
      Values values;
      read_values(in, one, is_unit || is_outermost ? &values : nullptr);
      if (is_unit) begin_unit(values);
      is_unit = false;
      if (is_outermost) add(values);
      depth += one.has_children;
      if (is_outermost && one.has_children) inlined_at = depth;
    } while (!in.done());
  }

  // Passes an entry's attributes; `values` null: nobody asks for them.
  void read_values(Cursor& in, const Abbreviation& one, Values* values) const {
    for (const auto& [attribute, form, constant] : one.fields) {
      Value v{form, static_cast<u64>(constant)};
      if (form == kIndirect) v.form = in.unsigned_leb();
      if (v.form != kImplicitConst) v.number = read_form(in, v.form);
      if (values) (*values)[attribute] = v;
    }
  }

  u64 read_form(Cursor& in, u64 form) const {
    switch (form) {
      case 0x01: case 0x07: case 0x14: case 0x20: case 0x24: return in.take<u64>();
      case 0x03: in.take(in.take<u16>()); return 0;                           // blocks
      case 0x04: in.take(in.take<u32>()); return 0;
      case 0x09: case 0x18: in.take(in.unsigned_leb()); return 0;
      case 0x0a: in.take(in.take<u8>()); return 0;
      case 0x05: case 0x12: case 0x26: case 0x2a: return in.take<u16>();
      case 0x06: case 0x13: case 0x1c: case 0x28: case 0x2c: return in.take<u32>();
      case 0x08: in.string(); return 0;
      case 0x0b: case 0x0c: case 0x11: case 0x25: case 0x29: return in.take<u8>();
      case 0x0d: return static_cast<u64>(in.signed_leb());
      case 0x0e: case 0x17: case 0x1d: case 0x1f: return offset(in);
      case 0x0f: case 0x15: case 0x1a: case 0x1b: case 0x22: case 0x23: return in.unsigned_leb();
      case 0x10: return version_ == 2 ? in.take<u64>() : offset(in);
      case 0x19: return 1;
      case 0x1e: in.take(16); return 0;
      case 0x27: case 0x2b: {
        const u64 low = in.take<u16>();
        return low | u64{in.take<u8>()} << 16;
      }
      default: throw Fault("debug information with an unknown form");
    }
  }

  void begin_unit(Values& values) {
    const auto set = [&](u64 attribute, u64& to) {
      const auto found = values.find(attribute);
      if (found != values.end()) to = found->second.number;
    };
    set(kAddrBase, address_base_);
    set(kRnglistsBase, ranges_base_);
    if (values.contains(kLowPc)) base_ = address(values[kLowPc]);
    const auto files = values.contains(kStmtList) ? files_of_.find(values[kStmtList].number) : files_of_.end();
    if (files != files_of_.end()) first_file_ = files->second;
  }

  u64 indexed(u64 index) const {
    if (index >= kMaxImage) throw Fault("debug information with an impossible address");
    return view(sections_.of(".debug_addr")).read<u64>(address_base_ + 8 * index, "debug information");
  }

  static bool is_indexed(const Value& v) { return v.form == kAddrx || (v.form >= kAddrx1 && v.form <= kAddrx4); }
  u64 address(const Value& v) const { return is_indexed(v) ? indexed(v.number) : v.number; }

  void add(Values& values) {
    if (!first_file_ || !values.contains(kCallLine)) return;
    const u64 file = *first_file_ + values[kCallFile].number;
    const u32 line = static_cast<u32>(values[kCallLine].number);
    const auto put = [&](u64 begin, u64 end) {
      if (begin >= text_begin_ && begin < end) found_.push_back({begin, end, file, line});
    };
    if (values.contains(kRanges)) {
      if (version_ == 5) ranges(values[kRanges], put);
      else old_ranges(values[kRanges].number, put);
    } else if (values.contains(kLowPc) && values.contains(kHighPc)) {
      const u64 begin = address(values[kLowPc]);
      const Value high = values[kHighPc];
      put(begin, high.form == kAddr || is_indexed(high) ? address(high) : begin + high.number);
    }
  }

  // Damaged entries could name one list again and again.
  void count() {
    if (++num_ranges_ > kMostRanges) throw Fault("debug information with too many ranges");
  }

  template <class Put>
  void ranges(const Value& where, Put put) {
    const Bytes section = view(sections_.of(".debug_rnglists"));
    u64 at = where.number;
    if (where.form == kRnglistx) {
      if (at >= kMaxImage) throw Fault("debug information with an impossible list");
      const u64 entry = ranges_base_ + (is_64_ ? 8 : 4) * at;
      at = ranges_base_ + (is_64_ ? section.read<u64>(entry, "ranges") : section.read<u32>(entry, "ranges"));
    }
    Cursor in(section);
    in.take(at);
    u64 base = base_;
    for (;; count()) {
      const u8 kind = in.take<u8>();
      if (kind == kEnd) return;
      if (kind > kStartLength) throw Fault("debug information with an unknown range");
      const bool is_short = kind <= kOffsetPair;
      u64 first = is_short ? in.unsigned_leb() : in.take<u64>();
      if (kind == kBaseAddressx || kind == kStartxEndx || kind == kStartxLength) first = indexed(first);
      if (kind == kBaseAddressx || kind == kBaseAddress) {
        base = first;
        continue;
      }
      u64 second = kind == kStartEnd ? in.take<u64>() : in.unsigned_leb();
      if (kind == kStartxEndx) second = indexed(second);
      if (kind == kStartxLength || kind == kStartLength) second += first;
      if (kind == kOffsetPair) put(base + first, base + second);
      else put(first, second);
    }
  }

  template <class Put>
  void old_ranges(u64 at, Put put) {
    Cursor in(view(sections_.of(".debug_ranges")));
    in.take(at);
    for (u64 base = base_;; count()) {
      const u64 first = in.take<u64>(), second = in.take<u64>();
      if (!first && !second) return;
      if (first == ~u64{0}) base = second;
      else put(base + first, base + second);
    }
  }

  static constexpr size_t kMostRanges = 1 << 20;

  const DebugSections& sections_;
  const std::map<u64, u32>& files_of_;
  const u64 text_begin_;
  std::vector<CallSite>& found_;
  std::map<u64, Abbreviation> abbreviations_;
  size_t num_ranges_ = 0;
  bool is_64_ = false;
  u16 version_ = 0;
  u64 base_ = 0, address_base_ = 0, ranges_base_ = 0;
  std::optional<u32> first_file_;
};

}  // namespace

std::vector<CallSite> call_sites(const DebugSections& sections, const std::map<u64, u32>& files_of, u64 text_begin) {
  std::vector<CallSite> found;
  for_each_unit(view(sections.of(".debug_info")), [&](u64, Bytes unit, bool is_64) {
    UnitCalls(sections, files_of, text_begin, found).read(unit, is_64);
  });
  std::stable_sort(found.begin(), found.end(), [](const CallSite& a, const CallSite& b) { return a.begin < b.begin; });
  return found;
}

}  // namespace sim

// SPDX-License-Identifier: MIT
// A place in a section of debug information. Every read is checked: it throws at the section's end.
#pragma once
#include "load/container.h"

namespace sim {

inline Bytes view(const std::vector<u8>& section) { return {section.data(), section.size()}; }

class Cursor {
 public:
  explicit Cursor(Bytes bytes) : bytes_(bytes) {}
  bool done() const { return at_ >= bytes_.size; }
  u64 at() const { return at_; }
  template <class T>
  T take() {
    const T x = bytes_.read<T>(at_, "debug information");
    at_ += sizeof x;
    return x;
  }
  Bytes take(u64 size) {
    const Bytes part = bytes_.slice(at_, size, "debug information");
    at_ += size;
    return part;
  }
  std::string_view string() {
    const std::string_view text = bytes_.string_at(at_, "debug information");
    at_ += text.size() + 1;
    return text;
  }
  u64 unsigned_leb() {
    u64 x = 0;
    for (u32 shift = 0;; shift += 7) {
      const u8 byte = take<u8>();
      if (shift < 64) x |= u64{byte & 0x7fu} << shift;
      if (!(byte & 0x80)) return x;
    }
  }
  i64 signed_leb() {
    u64 x = 0;
    for (u32 shift = 0;; shift += 7) {
      const u8 byte = take<u8>();
      if (shift < 64) x |= u64{byte & 0x7fu} << shift;
      if (byte & 0x80) continue;
      if (byte & 0x40 && shift + 7 < 64) x |= ~u64{0} << (shift + 7);
      return static_cast<i64>(x);
    }
  }

 private:
  Bytes bytes_;
  u64 at_ = 0;
};

// Calls `read` with the offset, the contents and the kind (64-bit or not) of each unit of a section. A damaged unit is
// left where the damage is, as the next one may be whole. A section that ends inside a unit ends the walk.
template <class Read>
void for_each_unit(Bytes section, Read read) {
  try {
    for (Cursor in(section); !in.done();) {
      const u64 at = in.at();
      u64 size = in.take<u32>();
      const bool is_64 = size == 0xffffffff;
      if (is_64) size = in.take<u64>();
      const Bytes unit = in.take(size);
      try {
        read(at, unit, is_64);
      } catch (const Fault&) {
      }
    }
  } catch (const Fault&) {
  }
}

}  // namespace sim

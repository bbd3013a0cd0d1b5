// SPDX-License-Identifier: MIT
// What code objects come wrapped in: offload bundles, plain or compressed. Input is read through Bytes, which checks.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "types.h"

namespace sim {

inline constexpr u64 kMaxImage = u64{1} << 32;

// A checked view of the input.
struct Bytes {
  const u8* data;
  u64 size;

  Bytes slice(u64 offset, u64 bytes, const char* what) const {
    if (offset > size || bytes > size - offset) throw Fault(std::string("code object is truncated: ") + what);
    return {data + offset, bytes};
  }
  template <class T>
  T read(u64 offset, const char* what) const {
    T x;
    std::memcpy(&x, slice(offset, sizeof x, what).data, sizeof x);
    return x;
  }
  std::string_view text() const { return {reinterpret_cast<const char*>(data), size}; }
  std::string_view string_at(u64 offset, const char* what) const {
    const std::string_view rest = slice(offset, size - std::min(offset, size), what).text();
    const size_t end = rest.find('\0');
    if (end == std::string_view::npos) throw Fault(std::string("code object is truncated: ") + what);
    return rest.substr(0, end);
  }
};

// The gfx942 ELF file in `input`. input.size 0 = unknown: the headers say where it ends. A compressed bundle is
// unpacked into `unpacked`, which must outlive the result.
Bytes find_elf(Bytes input, std::vector<u8>& unpacked);

}  // namespace sim

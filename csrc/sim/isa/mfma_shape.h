// SPDX-License-Identifier: MIT
// What the name of a matrix operation says: v_mfma_f32_32x32x4_2b_f16.
#pragma once
#include <charconv>
#include <string_view>

#include "types.h"

namespace sim {

// Passes of 4 cycles (CDNA3 ISA, section 7.2; the same as LLVM's latencies).
inline u8 passes_of(std::string_view name) {
  const bool f32 = name.ends_with("_f32"), f64 = name.ends_with("_f64");
  if (name.find("_4x4x") != name.npos) return f64 ? 4 : 2;
  const bool slow = f32 || f64 || name.find("_4b_") != name.npos || name.find("_2b_") != name.npos;
  return (slow ? 8 : 4) * (name.find("_32x32x") != name.npos ? 2 : 1);
}

struct MfmaShape {
  u32 m = 0, n = 0, k = 0, blocks = 1;
  std::string_view type;                       // A's and B's: "f16", "fp8_bf8", …
  // Multiplications and additions of one wave's operation. Those of v_smfmac are counted as if A were dense.
  u64 flops() const { return u64{2} * m * n * k * blocks; }
};

inline MfmaShape mfma_shape(std::string_view name) {
  MfmaShape shape;
  const auto number = [&](u32& value) {
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
    name.remove_prefix(static_cast<size_t>(end - name.data()));
    return error == std::errc();
  };
  size_t at = name.find('_', name.find('_') + 1);              // after v_mfma_f32
  at = name.find('_', at + 1);
  if (at == name.npos) return shape;
  name.remove_prefix(at + 1);
  for (u32* value : {&shape.m, &shape.n, &shape.k}) {
    if (!number(*value)) return {};
    if (!name.empty()) name.remove_prefix(1);                  // an x, or the _ after the last
  }
  const size_t blocks = name.find("b_");
  if (blocks != name.npos && blocks <= 2 && name[0] >= '0' && name[0] <= '9') {
    number(shape.blocks);
    name.remove_prefix(2);
  }
  shape.type = name;
  return shape;
}

}  // namespace sim

// SPDX-License-Identifier: MIT
// The 8-bit floats of gfx942 (FNUZ): e4m3 has bias 8 and largest value 240, e5m2 bias 16 and 57,344. 0x80 is the only
// NaN; there is no infinity and no -0. Sources: CDNA3 ISA document; torch.float8_e4m3fnuz and float8_e5m2fnuz.
#pragma once
#include <cmath>

#include "math.h"

namespace sim {

template <int kExponentBits>
struct Float8 {
  static constexpr int kMantissa = 7 - kExponentBits, kBias = 1 << (kExponentBits - 1);
  static constexpr u8 kNan = 0x80;

  static float decode(u8 code) {
    if (code == kNan) return std::numeric_limits<float>::quiet_NaN();
    const int e = code >> kMantissa & ((1 << kExponentBits) - 1), m = code & ((1 << kMantissa) - 1);
    const int significand = e ? m | 1 << kMantissa : m;
    const float x = std::ldexp(static_cast<float>(significand), (e ? e : 1) - kBias - kMantissa);
    return code & 0x80 ? -x : x;
  }

  // `below` is added under the last kept bit before truncation, in units of 2^-32 of that bit; nearest-even when null.
  static u8 encode(float x, bool saturate, const u32* below = nullptr) {
    if (!is_finite(x)) return kNan;
    const double scaled = std::fabs(static_cast<double>(x));
    int e = scaled == 0 ? 1 - kBias : std::ilogb(scaled);
    e = e < 1 - kBias ? 1 - kBias : e;
    const double units = std::ldexp(scaled, kMantissa - e);    // in [0, 2^(kMantissa + 1))
    double kept = below ? std::floor(units + std::ldexp(static_cast<double>(*below), -32)) : std::rint(units);
    // A carry into the next binade shows as 2^(kMantissa + 1) units, which is that binade's code as well.
    const int code = kept == 0 ? 0 : static_cast<int>(kept) + ((e + kBias - 1) << kMantissa);
    if (code > 0x7f) return saturate ? static_cast<u8>(is_negative(x) ? 0xff : 0x7f) : kNan;
    return static_cast<u8>(code == 0 ? 0 : code | (is_negative(x) ? 0x80 : 0));
  }
};

using Fp8 = Float8<4>;
using Bf8 = Float8<5>;

}  // namespace sim

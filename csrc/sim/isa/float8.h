// SPDX-License-Identifier: MIT
// The 8-bit floats of gfx942 (FNUZ): e4m3 has bias 8 and largest value 240, e5m2 bias 16 and 57,344. 0x80 is the only
// NaN; there is no infinity and no -0. Sources: CDNA3 ISA document; torch.float8_e4m3fnuz and float8_e5m2fnuz.
#pragma once
#include "isa/math.h"

namespace sim {

template <int kExponentBits>
struct Float8 {
  static constexpr int kMantissa = 7 - kExponentBits, kBias = 1 << (kExponentBits - 1);
  static constexpr int kDropped = 23 - kMantissa;                  // mantissa bits of a float beyond the format's
  static constexpr u8 kNan = 0x80;

  // The code's exponent and mantissa, put in a float's place, are the number times a power of two: the biases differ.
  static float decode(u8 code) {
    const float scaled = std::bit_cast<float>(u32{code & 0x7fu} << kDropped);
    const float x = scaled * std::bit_cast<float>(static_cast<u32>(127 + 127 - kBias) << 23);
    return code == kNan ? std::numeric_limits<float>::quiet_NaN() : with_sign(x, code & 0x80);
  }

  // To nearest even.
  static u8 encode(float x, bool saturate) {
    const u32 bits = magnitude(x);
    const u32 normal = (bits + ((1u << (kDropped - 1)) - 1) + (bits >> kDropped & 1)) >> kDropped;
    const float units = std::rint(std::bit_cast<float>(bits) * kUnitsPerOne);
    return finish(x, normal, units, saturate);
  }

  // Stochastic: `random` as a fraction of the last kept bit is added before truncation.
  static u8 encode(float x, bool saturate, u32 random) {
    const u32 bits = magnitude(x);
    const u32 normal = (bits + (random >> (32 - kDropped))) >> kDropped;
    const double units = static_cast<double>(std::bit_cast<float>(bits) * kUnitsPerOne) + random * 0x1p-32;
    return finish(x, normal, static_cast<float>(std::floor(units)), saturate);
  }

 private:
  static constexpr float kUnitsPerOne = static_cast<float>(1u << (kBias - 1 + kMantissa));  // denormal steps
  static constexpr u32 kSmallestNormal = static_cast<u32>(128 - kBias) << 23;

  // `normal` is exponent and mantissa with a float's bias, `units` the number in units of the smallest denormal. A
  // carry into the next binade or into the first normal number gives the right code by itself.
  static u8 finish(float x, u32 normal, float units, bool saturate) {
    const bool denormal = magnitude(x) < kSmallestNormal;
    const u32 small = static_cast<u32>(denormal ? units : 0.0f);
    const u32 code = denormal ? small : normal - (static_cast<u32>(127 - kBias) << kMantissa);
    const u32 sign = is_negative(x) ? 0x80 : 0;
    const u32 large = saturate ? 0x7f | sign : kNan;
    const u32 in_range = code == 0 ? 0 : code > 0x7f ? large : code | sign;
    return static_cast<u8>(is_finite(x) ? in_range : kNan);
  }
};

using Fp8 = Float8<4>;
using Bf8 = Float8<5>;

}  // namespace sim

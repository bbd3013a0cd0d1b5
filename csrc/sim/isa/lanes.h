// SPDX-License-Identifier: MIT
// Reading operands as 64 lanes and writing 64 lanes under EXEC: what every vector handler is made of.
#pragma once
#include <bit>

#include "run/wave.h"

namespace sim {

// One operand's worth of lanes. T is u32/i32/float/u16/f16/u64/double …
template <class T>
struct alignas(64) Lanes {
  T at[kLanes];
  T& operator[](int lane) { return at[lane]; }
  const T& operator[](int lane) const { return at[lane]; }
};

inline u64 scalar_source(const Wave& w, const Operand& o) {
  switch (o.kind) {
    case Kind::sgpr: {
      u64 x = w.s[o.reg];
      if (o.dwords > 1) x |= u64{w.s[o.reg + 1]} << 32;
      return x;
    }
    case Kind::literal: return o.value;
    case Kind::special:
      switch (o.reg) {
        case 235: return u64{1} << 48;                       // src_shared_base: the aperture of LDS
        case 236: return (u64{1} << 48) | 0xffffffffu;
        case 237: return u64{2} << 48;                       // src_private_base: the aperture of scratch
        case 238: return (u64{2} << 48) | 0xffffffffu;
        case 251: return w.vcc() == 0;
        case 252: return w.exec() == 0;
        case 253: return w.scc;
      }
      [[fallthrough]];
    default: throw Fault("operand cannot be read as a scalar");
  }
}

// Out of line, as every handler would have a copy of it.
[[gnu::noinline]] inline const u32* scalar_row(const Wave& w, const Operand& o, Lanes<u32>& spare) {
  const u32 x = static_cast<u32>(scalar_source(w, o));
  for (int lane = 0; lane < kLanes; ++lane) spare[lane] = x;
  return spare.at;
}

// The 32-bit lanes of a source: the register row itself, or `spare` filled with a scalar. No modifiers.
inline const u32* source_row(const Wave& w, const Operand& o, Lanes<u32>& spare) {
  return o.kind == Kind::vgpr ? w.v[o.reg] : scalar_row(w, o, spare);
}

// Copies a source into `out` as T: 4-byte types take one row, 8-byte types two, 2-byte types the low half.
template <class T>
inline void read_lanes(const Wave& w, const Operand& o, Lanes<T>& out) {
  if constexpr (sizeof(T) == 8) {
    if (o.kind == Kind::vgpr) {
      const u32 *lo = w.v[o.reg], *hi = w.v[o.reg + 1];
      for (int lane = 0; lane < kLanes; ++lane) out[lane] = std::bit_cast<T>(u64{hi[lane]} << 32 | lo[lane]);
    } else {
      const T x = std::bit_cast<T>(scalar_source(w, o));
      for (int lane = 0; lane < kLanes; ++lane) out[lane] = x;
    }
  } else {
    Lanes<u32> spare;
    const u32* row = source_row(w, o, spare);
    if constexpr (sizeof(T) == 4) {
      std::memcpy(out.at, row, sizeof out.at);
    } else {
      for (int lane = 0; lane < kLanes; ++lane) out[lane] = std::bit_cast<T>(static_cast<u16>(row[lane]));
    }
  }
}

inline bool active(u64 mask, int lane) { return mask >> lane & 1; }

// Writes a row where `mask` has a bit.
inline void write_row(u32* row, const u32* values, u64 mask) {
  if (mask == kAllLanes) {
    std::memcpy(row, values, kLanes * sizeof(u32));
  } else {
    for (int lane = 0; lane < kLanes; ++lane) row[lane] = active(mask, lane) ? values[lane] : row[lane];
  }
}

// Out of line, where inlining would put a copy of the loop into hundreds of handlers.
[[gnu::noinline]] inline void merge_row(u32* row, const u32* values, u64 mask) { write_row(row, values, mask); }

// Writes a vector destination under `mask`; 2-byte types zero the high half (the usual gfx9 rule).
template <class T>
inline void write_lanes(Wave& w, const Operand& o, const Lanes<T>& in, u64 mask) {
  Lanes<u32> bits;
  if constexpr (sizeof(T) == 8) {
    for (int lane = 0; lane < kLanes; ++lane) bits[lane] = static_cast<u32>(std::bit_cast<u64>(in[lane]));
    write_row(w.v[o.reg], bits.at, mask);
    for (int lane = 0; lane < kLanes; ++lane) bits[lane] = static_cast<u32>(std::bit_cast<u64>(in[lane]) >> 32);
    write_row(w.v[o.reg + 1], bits.at, mask);
  } else {
    for (int lane = 0; lane < kLanes; ++lane) {
      if constexpr (sizeof(T) == 4) bits[lane] = std::bit_cast<u32>(in[lane]);
      else bits[lane] = std::bit_cast<u16>(in[lane]);
    }
    write_row(w.v[o.reg], bits.at, mask);
  }
}

inline void write_scalar(Wave& w, const Operand& o, u64 x) {
  w.s[o.reg] = static_cast<u32>(x);
  if (o.dwords > 1) w.s[o.reg + 1] = static_cast<u32>(x >> 32);
}

// MODE.FP16_OVFL: an f16 result that overflowed becomes the largest number of its sign, whatever the rounding; a true
// infinity stays one.
inline u32 limit_half(u32 bits, bool is_true) { return (bits & 0x7fff) == 0x7c00 && !is_true ? bits - 1 : bits; }

}  // namespace sim

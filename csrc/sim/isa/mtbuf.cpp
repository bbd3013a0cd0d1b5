// SPDX-License-Identifier: MIT
// Typed buffers: loads and stores that convert between numbers in registers and a format of packed components, which
// tbuffer_* name and buffer_*_format_* take from the descriptor. CDNA3 ISA document, tables of data and number formats;
// component X is in the lowest bits. What the document leaves open is a Fault: stores of scaled formats or of integers
// out of range, and of fewer components than the format has.
#include <algorithm>
#include <cmath>

#include "isa/buffer.h"
#include "isa/math.h"

namespace sim {
namespace {

enum Number : u8 { kUnorm, kSnorm, kUscaled, kSscaled, kUint, kSint, kReserved, kFloat };

struct Layout {
  u8 count = 0;
  u8 bits[4] = {};
  constexpr int bytes() const { return (bits[0] + bits[1] + bits[2] + bits[3]) / 8; }
};

constexpr Layout kLayouts[16] = {
    {}, {1, {8}}, {1, {16}}, {2, {8, 8}}, {1, {32}}, {2, {16, 16}}, {3, {11, 11, 10}}, {3, {10, 11, 11}},
    {4, {2, 10, 10, 10}}, {4, {10, 10, 10, 2}}, {4, {8, 8, 8, 8}}, {2, {32, 32}}, {4, {16, 16, 16, 16}},
    {3, {32, 32, 32}}, {4, {32, 32, 32, 32}}, {},
};

struct Format {
  Layout layout;
  Number number;
  u8 select[4] = {4, 5, 6, 7};                 // per register: 0 zero, 1 one, 4-7 component X-W
};

Format checked_format(u32 data, u32 number) {
  const Layout& layout = kLayouts[data];
  const bool wide = layout.bits[0] == 32;
  const bool has_float = wide || layout.bits[0] == 16 || data == 6 || data == 7;
  const bool valid = layout.count && number != kReserved && (number == kFloat ? has_float : !wide || number >= kUint);
  if (!valid) throw Fault("data format " + std::to_string(data) + " has no number format " + std::to_string(number));
  return {layout, static_cast<Number>(number)};
}

Format descriptor_format(const Wave& w, const Operand& o) {
  const u32 word = w.s[o.reg + 3];
  Format f = checked_format(word >> 15 & 15, word >> 12 & 7);
  for (int c = 0; c < 4; ++c) {
    f.select[c] = static_cast<u8>(word >> 3 * c & 7);
    if (f.select[c] == 2 || f.select[c] == 3) throw Fault("the descriptor's DST_SEL has a reserved value");
  }
  return f;
}

bool is_integer(Number n) { return n == kUint || n == kSint; }
i32 extended(u32 raw, int bits) { return static_cast<i32>(raw << (32 - bits)) >> (32 - bits); }
double largest(int bits, bool is_signed) { return static_cast<double>((u64{1} << (bits - is_signed)) - 1); }

// A component's bits → what a 32-bit register holds.
u32 decoded(u32 raw, int bits, Number n) {
  const double u = raw, s = extended(raw, bits);
  switch (n) {
    case kUnorm: return word(static_cast<float>(u / largest(bits, false)));
    case kSnorm: return word(static_cast<float>(std::max(s / largest(bits, true), -1.0)));
    case kUscaled: return word(static_cast<float>(u));
    case kSscaled: return word(static_cast<float>(s));
    case kSint: return static_cast<u32>(extended(raw, bits));
    case kFloat:
      if (bits == 32) return raw;
      // 11 and 10 bits: f16 without its sign and last mantissa bits.
      return word(static_cast<float>(std::bit_cast<f16>(static_cast<u16>(bits == 16 ? raw : raw << (15 - bits)))));
    default: return raw;
  }
}

u32 normalized(float x, int bits, bool is_signed) {
  const float bounded = x != x ? 0.0f : std::clamp(x, is_signed ? -1.0f : 0.0f, 1.0f);
  return static_cast<u32>(static_cast<i64>(std::rint(bounded * largest(bits, is_signed))));
}

// A register → a component's bits.
u32 encoded(u32 x, int bits, Number n) {
  const u32 mask = bits == 32 ? ~0u : (1u << bits) - 1;
  switch (n) {
    case kUnorm: return normalized(std::bit_cast<float>(x), bits, false);
    case kSnorm: return normalized(std::bit_cast<float>(x), bits, true) & mask;
    case kUint:
      if (x > mask) throw Fault("a formatted store of an unsigned integer that its component cannot hold");
      return x;
    case kSint:
      if (extended(x & mask, bits) != static_cast<i32>(x)) {
        throw Fault("a formatted store of a signed integer that its component cannot hold");
      }
      return x & mask;
    case kFloat:
      if (bits == 32) return x;
      if (bits == 16) return word(static_cast<f16>(std::bit_cast<float>(x)));
      [[fallthrough]];
    default: throw Fault("stores of scaled formats and of 10- and 11-bit floats are not defined");
  }
}

u32 to_16_bits(u32 x, Number n) { return is_integer(n) ? x & 0xffff : word(static_cast<f16>(std::bit_cast<float>(x))); }
u32 from_16_bits(u16 x, Number n) {
  if (n == kSint) return static_cast<u32>(static_cast<i16>(x));
  return n == kUint ? x : word(static_cast<float>(std::bit_cast<f16>(x)));
}

// The data that an instruction moves: components, in 32-bit registers or packed as 16 bits; `high`: d16_hi_x's one.
struct Shape {
  int count;
  bool half = false, high = false;
  constexpr int rows() const { return half ? (count + 1) / 2 : count; }
};

template <bool kFromDescriptor>
Format format_of(const Wave& w, const Inst& i, const Operand& resource, Shape shape) {
  Format f = kFromDescriptor ? descriptor_format(w, resource) : checked_format(i.mod.format & 15, i.mod.format >> 4);
  if (shape.half && f.layout.bits[0] == 32) throw Fault("d16 with 32-bit components is not defined");
  return f;
}

using Texel = std::array<u32, 4>;

Texel decode_texel(u64 at, const Format& f) {
  u64 words[2] = {};
  std::memcpy(words, reinterpret_cast<const void*>(at), f.layout.bytes());
  Texel texel{0, 0, 0, is_integer(f.number) ? 1u : word(1.0f)};      // components that the format lacks
  for (int c = 0, bit = 0; c < f.layout.count; bit += f.layout.bits[c++]) {
    const u32 raw = static_cast<u32>(words[bit / 64] >> bit % 64);
    const int bits = f.layout.bits[c];
    texel[c] = decoded(bits == 32 ? raw : raw & ((1u << bits) - 1), bits, f.number);
  }
  return texel;
}

void put_half(u32& x, bool high, u32 bits) { x = high ? (x & 0xffff) | bits << 16 : (x & 0xffff0000u) | bits; }

template <Shape shape, bool kFromDescriptor, bool observed>
void load(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  if (i.mod.lds) throw Fault("a formatted load has no LDS form");
  const Format f = format_of<kFromDescriptor>(w, i, i.src[1], shape);
  BufferPlaces p;
  resolve<observed>(w, i, 0, exec, {.access = Access::load, .bytes = static_cast<u8>(f.layout.bytes())}, p, true);
  const u16 row = i.dst[0].reg;
  // The shadow of converted bytes has no place in the registers, so the results count as defined.
  if constexpr (observed) {
    observer(w).out_of_range(w, {.access = Access::load, .bytes = 4 * shape.rows(), .result = row}, exec);
  }
  for_lanes(exec, [&](int lane) {
    const Texel texel = active(p.lanes, lane) ? decode_texel(p.at[lane], f) : Texel{};     // out of range: zeros
    for (int c = 0; c < shape.count; ++c) {
      const u8 select = f.select[c];
      const u32 one = is_integer(f.number) ? 1 : word(1.0f);
      const u32 x = select >= 4 ? texel[select - 4] : select ? one : 0;
      if (shape.half) put_half(w.v[row + c / 2][lane], shape.high || c % 2, to_16_bits(x, f.number));
      else w.v[row + c][lane] = x;
    }
  });
}

template <Shape shape, bool kFromDescriptor, bool observed>
void store(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  const Format f = format_of<kFromDescriptor>(w, i, i.src[2], shape);
  if (f.layout.count > shape.count) throw Fault("a formatted store of fewer components than the format has");
  for (int c = 0; c < f.layout.count; ++c) {
    if (f.select[c] != 4 + c) throw Fault("formatted stores through a DST_SEL other than X, Y, Z, W are not defined");
  }
  const u16 row = i.src[0].reg;
  BufferPlaces p;
  const Touch touch{.access = Access::store, .bytes = static_cast<u8>(f.layout.bytes()), .data = row};
  resolve<observed>(w, i, 1, exec, touch, p,
                   true);
  for_lanes(p.lanes, [&](int lane) {
    u64 words[2] = {};
    for (int c = 0, bit = 0; c < f.layout.count; bit += f.layout.bits[c++]) {
      const u32 x = w.v[row + (shape.half ? c / 2 : c)][lane];
      const u32 full = shape.half ? from_16_bits(static_cast<u16>(shape.high || c % 2 ? x >> 16 : x), f.number) : x;
      words[bit / 64] |= u64{encoded(full, f.layout.bits[c], f.number)} << bit % 64;
    }
    std::memcpy(reinterpret_cast<void*>(p.at[lane]), words, f.layout.bytes());
  });
}

template <Shape shape, bool kFromDescriptor>
Spec read() {
  return {.cls = Class::mubuf, .num_dst = 1, .flags = kLoad | (shape.half ? kReadsDst : 0),
          .plain = load<shape, kFromDescriptor, false>, .plain_observed = load<shape, kFromDescriptor, true>};
}
template <Shape shape, bool kFromDescriptor>
Spec write() {
  return {.cls = Class::mubuf, .flags = kStore, .plain = store<shape, kFromDescriptor, false>,
          .plain_observed = store<shape, kFromDescriptor, true>};
}

constexpr Shape kX{1}, kXy{2}, kXyz{3}, kXyzw{4};
constexpr Shape kHalfX{1, true}, kHalfXy{2, true}, kHalfXyz{3, true}, kHalfXyzw{4, true}, kHighX{1, true, true};

const Op kOps[] = {
    {"tbuffer_load_format_x", read<kX, false>()}, {"tbuffer_load_format_xy", read<kXy, false>()},
    {"tbuffer_load_format_xyz", read<kXyz, false>()}, {"tbuffer_load_format_xyzw", read<kXyzw, false>()},
    {"tbuffer_load_format_d16_x", read<kHalfX, false>()}, {"tbuffer_load_format_d16_xy", read<kHalfXy, false>()},
    {"tbuffer_load_format_d16_xyz", read<kHalfXyz, false>()},
    {"tbuffer_load_format_d16_xyzw", read<kHalfXyzw, false>()},
    {"tbuffer_store_format_x", write<kX, false>()}, {"tbuffer_store_format_xy", write<kXy, false>()},
    {"tbuffer_store_format_xyz", write<kXyz, false>()}, {"tbuffer_store_format_xyzw", write<kXyzw, false>()},
    {"tbuffer_store_format_d16_x", write<kHalfX, false>()}, {"tbuffer_store_format_d16_xy", write<kHalfXy, false>()},
    {"tbuffer_store_format_d16_xyz", write<kHalfXyz, false>()},
    {"tbuffer_store_format_d16_xyzw", write<kHalfXyzw, false>()},

    {"buffer_load_format_x", read<kX, true>()}, {"buffer_load_format_xy", read<kXy, true>()},
    {"buffer_load_format_xyz", read<kXyz, true>()}, {"buffer_load_format_xyzw", read<kXyzw, true>()},
    {"buffer_load_format_d16_x", read<kHalfX, true>()}, {"buffer_load_format_d16_xy", read<kHalfXy, true>()},
    {"buffer_load_format_d16_xyz", read<kHalfXyz, true>()}, {"buffer_load_format_d16_xyzw", read<kHalfXyzw, true>()},
    {"buffer_load_format_d16_hi_x", read<kHighX, true>()},
    {"buffer_store_format_x", write<kX, true>()}, {"buffer_store_format_xy", write<kXy, true>()},
    {"buffer_store_format_xyz", write<kXyz, true>()}, {"buffer_store_format_xyzw", write<kXyzw, true>()},
    {"buffer_store_format_d16_x", write<kHalfX, true>()}, {"buffer_store_format_d16_xy", write<kHalfXy, true>()},
    {"buffer_store_format_d16_xyz", write<kHalfXyz, true>()},
    {"buffer_store_format_d16_xyzw", write<kHalfXyzw, true>()},
    {"buffer_store_format_d16_hi_x", write<kHighX, true>()},
};

}  // namespace

std::span<const Op> mtbuf_ops() { return kOps; }

}  // namespace sim

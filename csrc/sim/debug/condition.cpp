// SPDX-License-Identifier: MIT
// Conditions of breakpoints: comparisons of registers with numbers, lane by lane.
#include <bit>
#include <cstring>

#include "debug/debugger.h"

namespace sim::debug {
namespace {

bool holds(Term::Compare compare, auto a, auto b) {
  switch (compare) {
    case Term::Compare::eq: return a == b;
    case Term::Compare::ne: return a != b;
    case Term::Compare::lt: return a < b;
    case Term::Compare::le: return a <= b;
    case Term::Compare::gt: return a > b;
    default: return a >= b;
  }
}

template <class T>
T as(u64 bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

bool holds(const Term& t, u64 bits) {
  switch (t.type) {
    case Term::Type::f32: return holds(t.compare, static_cast<double>(as<float>(bits)), t.number);
    case Term::Type::f64: return holds(t.compare, as<double>(bits), t.number);
    case Term::Type::f16: return holds(t.compare, static_cast<double>(as<f16>(bits)), t.number);
    case Term::Type::bf16: return holds(t.compare, static_cast<double>(as<float>(bits << 16)), t.number);
    case Term::Type::u64: return holds(t.compare, bits, static_cast<u64>(t.integer));
    case Term::Type::i64: return holds(t.compare, static_cast<i64>(bits), t.integer);
    case Term::Type::i32: return holds(t.compare, i64{as<i32>(bits)}, t.integer);
    case Term::Type::i16: return holds(t.compare, i64{as<i16>(bits)}, t.integer);
    case Term::Type::i8: return holds(t.compare, i64{as<i8>(bits)}, t.integer);
    case Term::Type::u16: return holds(t.compare, i64{as<u16>(bits)}, t.integer);
    case Term::Type::u8: return holds(t.compare, i64{as<u8>(bits)}, t.integer);
    default: return holds(t.compare, i64{as<u32>(bits)}, t.integer);
  }
}

u64 bits_of(const Wave& w, const Term& t, int lane) {
  const bool is_wide = t.type == Term::Type::u64 || t.type == Term::Type::i64 || t.type == Term::Type::f64;
  const auto word = [&](u32 n) -> u64 {
    switch (t.source) {
      case Term::Source::vector: return w.v[t.first + n][lane];
      case Term::Source::scalar: return w.s[t.first + n];
      case Term::Source::workgroup: return n ? 0 : w.group->id[t.first];
      case Term::Source::wave: return n ? 0 : static_cast<u32>(w.id);
      default: return n ? 0 : static_cast<u32>(lane);
    }
  };
  return is_wide ? word(0) | word(1) << 32 : word(0);
}

}  // namespace

u64 lanes_where(const Wave& w, const std::vector<Term>& terms) {
  u64 found = w.exec();
  for (const Term& t : terms) {
    if (t.lane >= 0) {                         // that lane alone decides, for all
      if (!holds(t, bits_of(w, t, t.lane))) return 0;
      continue;
    }
    for (u64 left = found; left; left &= left - 1) {
      const int lane = std::countr_zero(left);
      if (!holds(t, bits_of(w, t, lane))) found &= ~(u64{1} << lane);
    }
  }
  return found;
}

}  // namespace sim::debug

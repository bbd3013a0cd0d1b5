// SPDX-License-Identifier: MIT
// What memory atomics compute, on the bits of the old value, and the loop over lanes that applies them.
#pragma once
#include <cmath>

#include "isa/access.h"
#include "isa/op_table.h"

namespace sim {

// New memory value from (old, data, extra); extra is the compare value, or the second data operand of DS forms.
template <class T>
using Combine = T (*)(T old, T data, T extra);

namespace combine {

template <class T> T add(T old, T data, T) { return old + data; }
template <class T> T sub(T old, T data, T) { return old - data; }
template <class T> T rsub(T old, T data, T) { return data - old; }
template <class T> T inc(T old, T data, T) { return old >= data ? 0 : old + 1; }
template <class T> T dec(T old, T data, T) { return old == 0 || old > data ? data : old - 1; }
template <class T> T umin(T old, T data, T) { return old < data ? old : data; }
template <class T> T umax(T old, T data, T) { return old > data ? old : data; }
template <class T> T smin(T old, T data, T) {
  using S = std::make_signed_t<T>;
  return static_cast<S>(old) < static_cast<S>(data) ? old : data;
}
template <class T> T smax(T old, T data, T) {
  using S = std::make_signed_t<T>;
  return static_cast<S>(old) > static_cast<S>(data) ? old : data;
}
template <class T> T bit_and(T old, T data, T) { return old & data; }
template <class T> T bit_or(T old, T data, T) { return old | data; }
template <class T> T bit_xor(T old, T data, T) { return old ^ data; }
template <class T> T swap(T, T data, T) { return data; }
template <class T> T mskor(T old, T data, T extra) { return (old & ~data) | extra; }
template <class T> T wrap(T old, T data, T extra) { return old >= data ? old - data : old + extra; }
// Memory atomics: data is new, extra is compared. DS forms have the operands the other way round.
template <class T> T cmpswap(T old, T data, T extra) { return old == extra ? data : old; }
template <class T> T ds_cmpst(T old, T data, T extra) { return old == data ? extra : old; }

template <class F> using BitsOf = std::conditional_t<sizeof(F) == 8, u64, u32>;
template <class F, class T> F as(T bits) { return std::bit_cast<F>(bits); }

template <class F, class T = BitsOf<F>> T fadd(T old, T data, T) { return as<T>(as<F>(old) + as<F>(data)); }
template <class F, class T = BitsOf<F>> T fmin(T old, T data, T) { return as<T>(std::fmin(as<F>(old), as<F>(data))); }
template <class F, class T = BitsOf<F>> T fmax(T old, T data, T) { return as<T>(std::fmax(as<F>(old), as<F>(data))); }
template <class F, class T = BitsOf<F>> T ds_fcmpst(T old, T data, T extra) {
  return as<F>(old) == as<F>(data) ? extra : old;
}

inline u32 flush_denormal(u32 bits) { return (bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits; }
// The L2's f32 adder flushes denormals; LDS keeps them (MODE default).
inline u32 l2_fadd(u32 old, u32 data, u32) {
  return flush_denormal(fadd<float>(flush_denormal(old), flush_denormal(data), 0u));
}

inline u16 round_bf16(float x) {
  const u32 bits = as<u32>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<u16>(bits >> 16 | 0x40);   // quiet NaN
  return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline u32 pk_add_f16(u32 old, u32 data, u32) {
  const auto half = [](u32 a, u32 b) { return u32{as<u16>(as<f16>(u16(a)) + as<f16>(u16(b)))}; };
  return half(old, data) | half(old >> 16, data >> 16) << 16;
}
inline u32 pk_add_bf16(u32 old, u32 data, u32) {
  return round_bf16(as<float>(old << 16) + as<float>(data << 16)) |
         u32{round_bf16(as<float>(old & 0xffff0000) + as<float>(data & 0xffff0000))} << 16;
}

// The integer atomics of device memory, of 32 and of 64 bits.
inline constexpr std::string_view kNames[] = {"swap", "cmpswap", "add", "sub", "smin", "smax", "umin",
                                              "umax", "and", "or", "xor", "inc", "dec"};
template <class T>
inline constexpr Combine<T> kOf[] = {swap<T>, cmpswap<T>, add<T>, sub<T>, smin<T>, smax<T>, umin<T>,
                                     umax<T>, bit_and<T>, bit_or<T>, bit_xor<T>, inc<T>, dec<T>};

// Calls add.operator()<f, compares>(name) for each of them.
template <class Add>
void for_each_integer(Add add) {
  for_each_index<std::size(kNames)>([&]<size_t k>() {
    constexpr bool compares = kNames[k] == "cmpswap";
    add.template operator()<kOf<u32>[k], compares>(std::string(kNames[k]));
    add.template operator()<kOf<u64>[k], compares>(std::string(kNames[k]) + "_x2");
  });
}

}  // namespace combine

// Registers of one atomic: data and extra rows are read, result rows (nullptr: none) get the old value.
struct AtomicRows { const u32 (*data)[kLanes]; const u32 (*extra)[kLanes]; Rows result; };

inline constexpr u32 kZeroRows[2][kLanes] = {};

template <class T>
inline T item_of(const u32 (*rows)[kLanes], int lane) {
  if constexpr (sizeof(T) == 8) return u64{rows[1][lane]} << 32 | rows[0][lane];
  else return rows[0][lane];
}

template <class T> T item_type(Combine<T>);
template <auto f> using ItemOf = decltype(item_type(f));       // T of a Combine<T>

// Applies `f` lane by lane in lane order. `between_groups`: other threads may touch the bytes, so it is a host atomic.
template <auto f, bool between_groups>
[[gnu::noinline]] void atomic_lanes(const Places& p, const AtomicRows& r, u64 exec) {
  using T = ItemOf<f>;
  const auto given = r.data ? r.data : kZeroRows, more = r.extra ? r.extra : kZeroRows;
  alignas(64) u32 unused[2][kLanes];
  const Rows result = r.result ? r.result : unused;
  for_lanes(exec, [&](int lane) {
    T old = 0;
    if (active(p.lanes, lane)) {
      const T data = item_of<T>(given, lane), extra = item_of<T>(more, lane);
      T* at = reinterpret_cast<T*>(p.at[lane]);
      if (between_groups) {
        old = __atomic_load_n(at, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(at, &old, f(old, data, extra), true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {}
      } else {
        std::memcpy(&old, at, sizeof old);
        const T next = f(old, data, extra);
        std::memcpy(at, &next, sizeof next);
      }
    }
    result[0][lane] = static_cast<u32>(old);
    if constexpr (sizeof(T) == 8) result[1][lane] = static_cast<u32>(old >> 32);
  });
}

}  // namespace sim

// SPDX-License-Identifier: MIT
// Scalar memory: loads, stores and atomics of whole dwords, by address or through a descriptor with its bounds; cache
// controls, clocks.
#include "isa/atomics.h"

namespace sim {
namespace {

// The offset operand (SGPR or immediate) plus the immediate of the form with both.
i64 offset_of(const Wave& w, const Inst& i) {
  i64 offset = i.mod.offset;
  const Operand& o = i.src[1];
  if (o.kind == Kind::literal) offset += static_cast<i32>(o.value);       // 21 bits signed, extended by the decoder
  else if (o.kind != Kind::none) offset += static_cast<u32>(scalar_source(w, o));
  return offset;
}

// The hardware ignores the two low bits of the sum.
template <bool kObserved>
u64 address_of(Wave& w, const Inst& i) {
  const u64 sum = scalar_source(w, i.src[0]) + static_cast<u64>(offset_of(w, i));
  if (kObserved) observer(w).unrounded_address(w, i, sum);
  return sum & ~u64{3};
}

template <bool kObserved, int kDwords>
void load(Wave& w, const Inst& i) {
  const u64 address = address_of<kObserved>(w, i);
  if (kObserved && !observer(w).scalar(w, i, address, 4 * kDwords)) {
    std::memset(&w.s[i.dst[0].reg], 0, 4 * kDwords);
    return;
  }
  std::memcpy(&w.s[i.dst[0].reg], reinterpret_cast<const void*>(address), 4 * kDwords);
}

// Stores and atomics print their data first: s_store_dword s4, s[2:3], 0x10.
Inst without_data(const Inst& i) {
  Inst shifted;
  shifted.src = {i.src[1], i.src[2]};
  shifted.mod.offset = i.mod.offset;
  shifted.pc = i.pc;                           // for reports
  shifted.text = i.text;
  return shifted;
}

template <bool kObserved, int kDwords>
void store(Wave& w, const Inst& i) {
  const u64 address = address_of<kObserved>(w, without_data(i));
  if (kObserved && !observer(w).scalar(w, i, address, 4 * kDwords)) return;
  std::memcpy(reinterpret_cast<void*>(address), &w.s[i.src[0].reg], 4 * kDwords);
}

// Dwords at `offset` of what a descriptor names; its size is num_records in bytes, or in records of `stride` bytes.
struct ScalarBuffer {
  u64 base, bytes, offset;
  ScalarBuffer(Wave& w, const Inst& i, bool observed) {   // i: the descriptor is src[0]
    const u32* descriptor = &w.s[i.src[0].reg];
    const u64 stride = descriptor[1] >> 16 & 0x3fff;
    base = u64{descriptor[1] & 0xffff} << 32 | descriptor[0];
    bytes = stride ? stride * descriptor[2] : descriptor[2];
    offset = static_cast<u64>(offset_of(w, i));
    if (observed) {
      observer(w).unrounded_address(w, i, (base & ~u64{3}) + offset);
      observer(w).unrounded_address(w, i, base);
    }
    base &= ~u64{3};
    offset &= ~u64{3};
  }
  bool holds(u64 begin, u64 size) const { return begin + size <= bytes && begin + size >= size; }
};

// Dwords out of bounds read 0.
template <bool kObserved, int kDwords>
void buffer_load(Wave& w, const Inst& i) {
  const ScalarBuffer buffer(w, i, kObserved);
  u32 data[kDwords];
  for (int at = 0; at < kDwords; ++at) {
    const u64 begin = buffer.offset + 4 * static_cast<u64>(at);
    data[at] = 0;
    if (!buffer.holds(begin, 4)) continue;
    if (kObserved && !observer(w).scalar(w, i, buffer.base + begin, 4)) continue;
    std::memcpy(&data[at], reinterpret_cast<const void*>(buffer.base + begin), 4);
  }
  std::memcpy(&w.s[i.dst[0].reg], data, sizeof data);
}

// Dwords out of bounds are dropped.
template <bool kObserved, int kDwords>
void buffer_store(Wave& w, const Inst& i) {
  const ScalarBuffer buffer(w, without_data(i), kObserved);
  for (int at = 0; at < kDwords; ++at) {
    const u64 begin = buffer.offset + 4 * static_cast<u64>(at);
    if (!buffer.holds(begin, 4)) continue;
    if (kObserved && !observer(w).scalar(w, i, buffer.base + begin, 4)) continue;
    std::memcpy(reinterpret_cast<void*>(buffer.base + begin), &w.s[i.src[0].reg + at], 4);
  }
}

// Data, then (cmpswap) the compare value; with glc the data registers get the old value. Out of bounds nothing is
// changed and the old value is 0.
template <class T>
void atomic(Wave& w, const Inst& i, Combine<T> f, bool in_buffer, bool observed) {
  u64 address = 0;
  bool inside = true;
  if (in_buffer) {
    const ScalarBuffer buffer(w, without_data(i), observed);
    inside = buffer.holds(buffer.offset, sizeof(T));
    address = buffer.base + buffer.offset;
  } else {
    const Inst plain = without_data(i);
    address = observed ? address_of<true>(w, plain) : address_of<false>(w, plain);
  }
  T data[2] = {}, old = 0;
  const bool two = i.src[0].dwords > sizeof(T) / 4;
  std::memcpy(data, &w.s[i.src[0].reg], two ? 2 * sizeof(T) : sizeof(T));
  if (observed && inside) inside = observer(w).scalar(w, i, address, sizeof(T));
  if (inside) {
    T* const at = reinterpret_cast<T*>(address);
    old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(at, &old, f(old, data[0], data[1]), true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED)) {}
  }
  if (i.mod.sc0) std::memcpy(&w.s[i.src[0].reg], &old, sizeof old);
}

void nothing(Wave&, const Inst&) {}

// Clocks count the instructions of the wave, 4 cycles each, its s_sleep, and what a reading takes, so that runs repeat;
// s_memrealtime ticks at 100 MHz while the core runs at 2,100 MHz. A loop that waits for a time turns as seldom as on
// hardware. The run loop updates the count when a wave pauses, so a reading makes the wave pause: the next reading is
// larger by the instructions that this one left out.
constexpr u64 kReadingCycles = 128;
u64 cycles(Wave& w) {
  w.stop = Stop::yield;
  return 4 * w.executed + std::exchange(w.waited, w.waited + kReadingCycles);
}
void core_clock(Wave& w, const Inst& i) { write_scalar(w, i.dst[0], cycles(w)); }
void real_time_clock(Wave& w, const Inst& i) { write_scalar(w, i.dst[0], cycles(w) / 21); }

constexpr Spec smem(u8 num_dst, u32 flags, Handler plain, Handler observed) {
  Spec s;
  s.cls = Class::smem;
  s.num_dst = num_dst;
  s.dst = {num_dst ? Type::b32 : Type::none};
  s.flags = flags;
  s.plain = plain;
  s.plain_observed = observed;
  return s;
}
template <int kDwords>
constexpr Spec loads() { return smem(1, kLoad, load<false, kDwords>, load<true, kDwords>); }
template <int kDwords>
constexpr Spec stores() { return smem(0, kStore, store<false, kDwords>, store<true, kDwords>); }
template <int kDwords>
constexpr Spec buffer_loads() { return smem(1, kLoad, buffer_load<false, kDwords>, buffer_load<true, kDwords>); }
template <int kDwords>
constexpr Spec buffer_stores() { return smem(0, kStore, buffer_store<false, kDwords>, buffer_store<true, kDwords>); }
template <auto f, bool kInBuffer>
constexpr Spec update() {
  return smem(0, kAtomic, [](Wave& w, const Inst& i) { atomic(w, i, f, kInBuffer, false); },
              [](Wave& w, const Inst& i) { atomic(w, i, f, kInBuffer, true); });
}

OpTable make_rows() {
  OpTable rows;
  for_each_index<5>([&]<size_t k>() {
    const std::string dwords = k ? "dwordx" + std::to_string(1 << k) : "dword";
    rows.add("s_load_" + dwords, loads<1 << k>());
    rows.add("s_buffer_load_" + dwords, buffer_loads<1 << k>());
    if constexpr (k < 3) {
      rows.add("s_store_" + dwords, stores<1 << k>());
      rows.add("s_buffer_store_" + dwords, buffer_stores<1 << k>());
    }
  });
  combine::for_each_integer([&]<auto f, bool>(const std::string& name) {
    rows.add("s_atomic_" + name, update<f, false>());
    rows.add("s_buffer_atomic_" + name, update<f, true>());
  });
  rows.add("s_memtime", smem(1, kLoad, core_clock, nullptr));
  rows.add("s_memrealtime", smem(1, kLoad, real_time_clock, nullptr));
  for (const char* name : {"s_dcache_inv", "s_dcache_inv_vol", "s_dcache_wb", "s_dcache_wb_vol", "s_atc_probe",
                           "s_atc_probe_buffer"}) {
    rows.add(name, smem(0, 0, nothing, nullptr));
  }
  return rows;
}

}  // namespace

std::span<const Op> smem_ops() {
  static const OpTable rows = make_rows();
  return rows;
}

}  // namespace sim

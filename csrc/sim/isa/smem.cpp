// SPDX-License-Identifier: MIT
// Scalar memory: loads and stores of whole dwords, buffer loads under a descriptor's bounds, cache controls, clocks.
#include "checks/checks.h"
#include "lanes.h"

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
u64 address_of(const Wave& w, const Inst& i) {
  return (scalar_source(w, i.src[0]) + static_cast<u64>(offset_of(w, i))) & ~u64{3};
}

template <bool kChecked, int kDwords>
void load(Wave& w, const Inst& i) {
  const u64 address = address_of(w, i);
  if (kChecked && !check_scalar(w, i, address, 4 * kDwords)) {
    std::memset(&w.s[i.dst[0].reg], 0, 4 * kDwords);
    return;
  }
  std::memcpy(&w.s[i.dst[0].reg], reinterpret_cast<const void*>(address), 4 * kDwords);
}

// Printed data first: s_store_dword s4, s[2:3], 0x10.
template <bool kChecked, int kDwords>
void store(Wave& w, const Inst& i) {
  Inst shifted;
  shifted.src = {i.src[1], i.src[2]};
  shifted.mod.offset = i.mod.offset;
  const u64 address = address_of(w, shifted);
  if (kChecked && !check_scalar(w, i, address, 4 * kDwords)) return;
  std::memcpy(reinterpret_cast<void*>(address), &w.s[i.src[0].reg], 4 * kDwords);
}

// Dwords beyond num_records (bytes, or records of `stride` bytes) read 0.
template <bool kChecked, int kDwords>
void buffer_load(Wave& w, const Inst& i) {
  const u32* descriptor = &w.s[i.src[0].reg];
  const u64 base = (u64{descriptor[1] & 0xffff} << 32 | descriptor[0]) & ~u64{3};
  const u64 stride = descriptor[1] >> 16 & 0x3fff;
  const u64 bytes = stride ? stride * descriptor[2] : descriptor[2];
  const u64 offset = static_cast<u64>(offset_of(w, i)) & ~u64{3};
  u32 data[kDwords];
  for (int at = 0; at < kDwords; ++at) {
    const u64 begin = offset + 4 * static_cast<u64>(at);
    data[at] = 0;
    if (begin + 4 > bytes || begin + 4 < 4) continue;
    if (kChecked && !check_scalar(w, i, base + begin, 4)) continue;
    std::memcpy(&data[at], reinterpret_cast<const void*>(base + begin), 4);
  }
  std::memcpy(&w.s[i.dst[0].reg], data, sizeof data);
}

void nothing(Wave&, const Inst&) {}

// Clocks count the instructions of the wave, 4 cycles each, so that runs repeat; s_memrealtime ticks at 100 MHz while
// the core runs at 2,100 MHz. The count is brought up to date when a wave pauses, so a reading makes it pause: the next
// one is larger by what this one left out.
u64 cycles(Wave& w) {
  w.stop = Stop::yield;
  return 4 * w.executed;
}
void core_clock(Wave& w, const Inst& i) { write_scalar(w, i.dst[0], cycles(w)); }
void real_time_clock(Wave& w, const Inst& i) { write_scalar(w, i.dst[0], cycles(w) / 21); }

constexpr Spec smem(u8 num_dst, u32 flags, Handler plain, Handler checked) {
  Spec s;
  s.cls = Class::smem;
  s.num_dst = num_dst;
  s.dst = {num_dst ? Type::b32 : Type::none};
  s.flags = flags;
  s.plain = plain;
  s.plain_checked = checked;
  return s;
}
template <int kDwords>
constexpr Spec loads() { return smem(1, kLoad, load<false, kDwords>, load<true, kDwords>); }
template <int kDwords>
constexpr Spec stores() { return smem(0, kStore, store<false, kDwords>, store<true, kDwords>); }
template <int kDwords>
constexpr Spec buffer_loads() { return smem(1, kLoad, buffer_load<false, kDwords>, buffer_load<true, kDwords>); }
constexpr Spec cache() { return smem(0, 0, nothing, nullptr); }

const Op kOps[] = {
    {"s_load_dword", loads<1>()},
    {"s_load_dwordx2", loads<2>()},
    {"s_load_dwordx4", loads<4>()},
    {"s_load_dwordx8", loads<8>()},
    {"s_load_dwordx16", loads<16>()},
    {"s_buffer_load_dword", buffer_loads<1>()},
    {"s_buffer_load_dwordx2", buffer_loads<2>()},
    {"s_buffer_load_dwordx4", buffer_loads<4>()},
    {"s_buffer_load_dwordx8", buffer_loads<8>()},
    {"s_buffer_load_dwordx16", buffer_loads<16>()},
    {"s_store_dword", stores<1>()},
    {"s_store_dwordx2", stores<2>()},
    {"s_store_dwordx4", stores<4>()},
    {"s_memtime", smem(1, kLoad, core_clock, nullptr)},
    {"s_memrealtime", smem(1, kLoad, real_time_clock, nullptr)},
    {"s_dcache_inv", cache()},
    {"s_dcache_inv_vol", cache()},
    {"s_dcache_wb", cache()},
    {"s_dcache_wb_vol", cache()},
};

}  // namespace

std::span<const Op> smem_ops() { return kOps; }

}  // namespace sim

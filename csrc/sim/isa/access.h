// SPDX-License-Identifier: MIT
// Moving lanes between registers and host memory. DS, FLAT and MUBUF resolve their addresses to host pointers
// (Places) and share everything below: gathers, scatters, sub-dword forms and atomics.
#pragma once
#include <bit>

#include "isa/lanes.h"

namespace sim {

using Rows = u32 (*)[kLanes];

// The address of each lane's bytes. Lanes that are active but not in `lanes` load zero and drop their stores.
struct Places {
  alignas(64) u64 at[kLanes];
  u64 lanes = 0;
};

// How a lane's bytes in memory and in registers correspond.
struct Form {
  u8 bytes;
  bool sign = false;                           // narrow loads: sign-extend
  Half half = Half::none;                      // d16: the half of the register that is loaded or stored
  constexpr int rows() const { return (bytes + 3) / 4; }
};

inline constexpr Form kU8{1}, kI8{1, true}, kU16{2}, kI16{2, true};
inline constexpr Form kU8Low{1, false, Half::low}, kI8Low{1, true, Half::low}, k16Low{2, false, Half::low};
inline constexpr Form kU8High{1, false, Half::high}, kI8High{1, true, Half::high}, k16High{2, false, Half::high};
inline constexpr Form kB32{4}, kB64{8}, kB96{12}, kB128{16};

// The loads and stores that FLAT, GLOBAL, SCRATCH and MUBUF have, and the loads to LDS of GLOBAL and SCRATCH.
struct NamedForm { const char* name; Form form; };
inline constexpr NamedForm kLoads[] = {
    {"load_ubyte", kU8}, {"load_sbyte", kI8}, {"load_ushort", kU16}, {"load_sshort", kI16},
    {"load_ubyte_d16", kU8Low}, {"load_ubyte_d16_hi", kU8High}, {"load_sbyte_d16", kI8Low},
    {"load_sbyte_d16_hi", kI8High}, {"load_short_d16", k16Low}, {"load_short_d16_hi", k16High},
    {"load_dword", kB32}, {"load_dwordx2", kB64}, {"load_dwordx3", kB96}, {"load_dwordx4", kB128},
};
inline constexpr NamedForm kStores[] = {
    {"store_byte", kU8}, {"store_byte_d16_hi", kU8High}, {"store_short", kU16}, {"store_short_d16_hi", k16High},
    {"store_dword", kB32}, {"store_dwordx2", kB64}, {"store_dwordx3", kB96}, {"store_dwordx4", kB128},
};
inline constexpr NamedForm kLoadsToLds[] = {
    {"load_lds_ubyte", kU8}, {"load_lds_sbyte", kI8}, {"load_lds_ushort", kU16}, {"load_lds_sshort", kI16},
    {"load_lds_dword", kB32},
};

template <class F>
inline void for_lanes(u64 mask, F f) {
  for (; mask; mask &= mask - 1) f(std::countr_zero(mask));
}

// True when lane i's item follows lane i-1's, so that the wave moves one block.
inline bool consecutive(const Places& p, u64 bytes) {
  u64 differs = 0;
  for (int lane = 0; lane < kLanes; ++lane) differs |= p.at[lane] ^ (p.at[0] + bytes * lane);
  return differs == 0;
}

using Dword [[gnu::may_alias, gnu::aligned(1)]] = u32;

template <int N>
inline void rows_from_items(Rows out, const Dword* __restrict items) {
  u32* __restrict rows = out[0];
  for (int lane = 0; lane < kLanes; ++lane)
    for (int k = 0; k < N; ++k) rows[k * kLanes + lane] = items[lane * N + k];
}

template <int N>
inline void items_from_rows(Dword* __restrict items, Rows in) {
  const u32* __restrict rows = in[0];
  for (int lane = 0; lane < kLanes; ++lane)
    for (int k = 0; k < N; ++k) items[lane * N + k] = rows[k * kLanes + lane];
}

// Whole dwords, N per lane.
template <int N>
inline void load_dwords(const Places& p, Rows out, u64 exec) {
  if (p.lanes == kAllLanes && consecutive(p, 4 * N)) {
    rows_from_items<N>(out, reinterpret_cast<const Dword*>(p.at[0]));
    return;
  }
  alignas(64) u32 items[kLanes * N];
  if (p.lanes == kAllLanes) {
    for (int lane = 0; lane < kLanes; ++lane)
      std::memcpy(&items[lane * N], reinterpret_cast<const void*>(p.at[lane]), 4 * N);
    rows_from_items<N>(out, items);
    return;
  }
  std::memset(items, 0, sizeof items);
  for_lanes(p.lanes, [&](int lane) {
    std::memcpy(&items[lane * N], reinterpret_cast<const void*>(p.at[lane]), 4 * N);
  });
  alignas(64) u32 rows[N][kLanes];
  rows_from_items<N>(rows, items);
  for (int k = 0; k < N; ++k) write_row(out[k], rows[k], exec);
}

template <int N>
inline void store_dwords(const Places& p, Rows in) {
  if (p.lanes == kAllLanes && consecutive(p, 4 * N)) {
    items_from_rows<N>(reinterpret_cast<Dword*>(p.at[0]), in);
    return;
  }
  alignas(64) u32 items[kLanes * N];
  items_from_rows<N>(items, in);
  if (p.lanes == kAllLanes) {
    for (int lane = 0; lane < kLanes; ++lane) std::memcpy(reinterpret_cast<void*>(p.at[lane]), &items[lane * N], 4 * N);
  } else {
    for_lanes(p.lanes, [&](int lane) { std::memcpy(reinterpret_cast<void*>(p.at[lane]), &items[lane * N], 4 * N); });
  }
}

// One narrow value as the register sees it before a d16 merge.
template <Form form>
inline u32 load_narrow(u64 at) {
  u16 bits = 0;
  std::memcpy(&bits, reinterpret_cast<const void*>(at), form.bytes);
  if constexpr (!form.sign) return bits;
  else return form.bytes == 1 ? static_cast<u32>(static_cast<i8>(bits)) : static_cast<u32>(static_cast<i16>(bits));
}

inline u32 merge_half(u32 old, u32 value, Half half) {
  if (half == Half::low) return (old & 0xffff0000u) | (value & 0xffff);
  if (half == Half::high) return (old & 0xffff) | value << 16;
  return value;
}

// Loads `form` into the register rows at `out`, for the lanes of `exec`.
template <Form form>
inline void load_form_here(const Places& p, Rows out, u64 exec) {
  if constexpr (form.bytes >= 4) {
    load_dwords<form.rows()>(p, out, exec);
  } else {
    u32* row = out[0];
    for_lanes(exec & p.lanes, [&](int lane) {
      row[lane] = merge_half(row[lane], load_narrow<form>(p.at[lane]), form.half);
    });
    for_lanes(exec & ~p.lanes, [&](int lane) { row[lane] = merge_half(row[lane], 0, form.half); });
  }
}

template <Form form>
inline void store_form_here(const Places& p, Rows in) {
  if constexpr (form.bytes >= 4) {
    store_dwords<form.rows()>(p, in);
  } else {
    for_lanes(p.lanes, [&](int lane) {
      const u32 bits = form.half == Half::high ? in[0][lane] >> 16 : in[0][lane];
      std::memcpy(reinterpret_cast<void*>(p.at[lane]), &bits, form.bytes);
    });
  }
}

// Out of line, as what follows: else every handler would have a copy of its own, and be compiled so. The most frequent
// ones have.
template <Form form>
[[gnu::noinline]] void load_form(const Places& p, Rows out, u64 exec) { load_form_here<form>(p, out, exec); }

template <Form form>
[[gnu::noinline]] void store_form(const Places& p, Rows in) { store_form_here<form>(p, in); }

inline Touch touch_load(Form form, u16 row) {
  return {.access = Access::load, .bytes = form.bytes, .result = row, .half = form.half};
}

inline Touch touch_store(Form form, u16 row) {
  return {.access = Access::store, .bytes = form.bytes, .data = row, .half = form.half};
}

// Clears the lanes whose bytes do not lie in [0, size). `offset` counts from the start of that space.
inline u64 lanes_within(const u32* offset, u64 lanes, u32 bytes, u32 size) {
  if (size < bytes) return 0;
  u32 largest = 0;
  for (int lane = 0; lane < kLanes; ++lane) largest = offset[lane] > largest ? offset[lane] : largest;
  if (largest <= size - bytes) return lanes;
  u64 inside = 0;
  for (int lane = 0; lane < kLanes; ++lane) inside |= u64{offset[lane] <= size - bytes} << lane;
  return lanes & inside;
}

// LDS byte offsets → places. Out of the allocation: not in p.lanes (reads 0, writes drop).
template <bool observed>
[[gnu::noinline]] void lds_places(Wave& w, const Inst& i, const u32* offset, u64 exec, const Touch& touch, Places& p) {
  p.lanes = observed ? observer(w).lds(w, i, offset, exec, touch) : exec;
  p.lanes = lanes_within(offset, p.lanes, touch.bytes, w.group->launch->lds_bytes);
  const u64 base = reinterpret_cast<u64>(w.group->lds);
  for (int lane = 0; lane < kLanes; ++lane) p.at[lane] = base + offset[lane];
}

// Writes a dword per lane at M0-style `base` + 4 * lane of LDS: the destination side of LDS-DMA. Inactive lanes keep
// their slot; lanes that the memory side refused write 0.
template <Form form, bool observed>
[[gnu::noinline]] void load_to_lds(Wave& w, const Inst& i, const Places& from, u32 base, u64 exec) {
  alignas(64) u32 values[1][kLanes] = {}, offset[kLanes];
  load_form<form>(from, values, exec);
  for (u32 lane = 0; lane < kLanes; ++lane) offset[lane] = base + 4 * lane;
  Places to;
  const Touch touch{.access = Access::store, .bytes = 4, .dma = true, .values = values[0]};
  lds_places<observed>(w, i, offset, exec, touch, to);
  store_dwords<1>(to, values);
}

}  // namespace sim

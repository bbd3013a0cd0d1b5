// SPDX-License-Identifier: MIT
// MUBUF: buffer loads, stores and atomics through a four-dword descriptor, with range checks (buffer.h), and LDS-DMA.
#include "isa/atomics.h"
#include "isa/buffer.h"

namespace sim {
namespace {

template <Form form, bool observed>
void load(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  BufferPlaces p;
  if (i.mod.lds) {
    if constexpr (form.bytes <= 4 && form.half == Half::none) {
      resolve<observed>(w, i, 0, exec, {.access = Access::load, .bytes = form.bytes}, p);
      load_to_lds<form, observed>(w, i, p, (w.s[kM0] & 0xffff) + i.mod.offset, exec);
      return;
    }
    throw Fault("this buffer load has no LDS form");
  }
  const u16 row = i.dst[0].reg;
  if constexpr (observed) resolve<true>(w, i, 0, exec, touch_load(form, row), p);
  else resolve_here<false>(w, i, 0, exec, touch_load(form, row), p);
  if constexpr (observed) load_form<form>(p, w.v + row, exec);
  else load_form_here<form>(p, w.v + row, exec);
  for_lanes(p.partial, [&](int lane) {
    for (int k = 0; k < p.dwords[lane]; ++k)
      std::memcpy(&w.v[row + k][lane], reinterpret_cast<const void*>(p.at[lane] + 4 * k), 4);
  });
}

template <Form form, bool observed>
void store(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  const u16 row = i.src[0].reg;
  BufferPlaces p;
  if constexpr (observed) resolve<true>(w, i, 1, exec, touch_store(form, row), p);
  else resolve_here<false>(w, i, 1, exec, touch_store(form, row), p);
  if constexpr (observed) store_form<form>(p, w.v + row);
  else store_form_here<form>(p, w.v + row);
  for_lanes(p.partial, [&](int lane) {
    for (int k = 0; k < p.dwords[lane]; ++k)
      std::memcpy(reinterpret_cast<void*>(p.at[lane] + 4 * k), &w.v[row + k][lane], 4);
  });
}

// The data registers are also the destination when sc0 asks for the old value.
template <auto f, bool compares, bool observed>
void atomic(Wave& w, const Inst& i) {
  using T = ItemOf<f>;
  const u64 exec = w.exec();
  if (!exec) return;
  const u16 data = i.src[0].reg;
  const Touch touch{.access = Access::atomic, .bytes = sizeof(T), .data = data, .result = i.mod.sc0 ? data : kNoRow};
  BufferPlaces p;
  resolve<observed>(w, i, 1, exec, touch, p);
  atomic_lanes<f, true>(p, {w.v + data, compares ? w.v + data + sizeof(T) / 4 : nullptr,
                            i.mod.sc0 ? w.v + data : nullptr}, exec);
}

// Caches do not exist here: write-back and invalidate have nothing to do.
void nothing(Wave&, const Inst&) {}

constexpr Spec row(u8 num_dst, u32 flags, Handler plain, Handler observed) {
  return {.cls = Class::mubuf, .num_dst = num_dst, .flags = flags, .plain = plain, .plain_observed = observed};
}

template <Form form>
constexpr Spec read() {
  const u32 merges = form.half == Half::none ? 0 : kReadsDst;
  return row(1, kLoad | merges, load<form, false>, load<form, true>);
}
template <Form form>
constexpr Spec write() { return row(0, kStore, store<form, false>, store<form, true>); }
template <auto f, bool compares = false>
constexpr Spec update() {
  return row(0, kAtomic, atomic<f, compares, false>, atomic<f, compares, true>);
}

using namespace combine;

const Op kOps[] = {
    {"buffer_load_ubyte", read<kU8>()}, {"buffer_load_sbyte", read<kI8>()},
    {"buffer_load_ushort", read<kU16>()}, {"buffer_load_sshort", read<kI16>()},
    {"buffer_load_ubyte_d16", read<kU8Low>()}, {"buffer_load_ubyte_d16_hi", read<kU8High>()},
    {"buffer_load_sbyte_d16", read<kI8Low>()}, {"buffer_load_sbyte_d16_hi", read<kI8High>()},
    {"buffer_load_short_d16", read<k16Low>()}, {"buffer_load_short_d16_hi", read<k16High>()},
    {"buffer_load_dword", read<kB32>()}, {"buffer_load_dwordx2", read<kB64>()},
    {"buffer_load_dwordx3", read<kB96>()}, {"buffer_load_dwordx4", read<kB128>()},
    {"buffer_store_byte", write<kU8>()}, {"buffer_store_byte_d16_hi", write<kU8High>()},
    {"buffer_store_short", write<kU16>()}, {"buffer_store_short_d16_hi", write<k16High>()},
    {"buffer_store_dword", write<kB32>()}, {"buffer_store_dwordx2", write<kB64>()},
    {"buffer_store_dwordx3", write<kB96>()}, {"buffer_store_dwordx4", write<kB128>()},

    {"buffer_atomic_swap", update<swap<u32>>()}, {"buffer_atomic_swap_x2", update<swap<u64>>()},
    {"buffer_atomic_cmpswap", update<cmpswap<u32>, true>()}, {"buffer_atomic_cmpswap_x2", update<cmpswap<u64>, true>()},
    {"buffer_atomic_add", update<add<u32>>()}, {"buffer_atomic_add_x2", update<add<u64>>()},
    {"buffer_atomic_sub", update<sub<u32>>()}, {"buffer_atomic_sub_x2", update<sub<u64>>()},
    {"buffer_atomic_smin", update<smin<u32>>()}, {"buffer_atomic_smin_x2", update<smin<u64>>()},
    {"buffer_atomic_smax", update<smax<u32>>()}, {"buffer_atomic_smax_x2", update<smax<u64>>()},
    {"buffer_atomic_umin", update<umin<u32>>()}, {"buffer_atomic_umin_x2", update<umin<u64>>()},
    {"buffer_atomic_umax", update<umax<u32>>()}, {"buffer_atomic_umax_x2", update<umax<u64>>()},
    {"buffer_atomic_and", update<bit_and<u32>>()}, {"buffer_atomic_and_x2", update<bit_and<u64>>()},
    {"buffer_atomic_or", update<bit_or<u32>>()}, {"buffer_atomic_or_x2", update<bit_or<u64>>()},
    {"buffer_atomic_xor", update<bit_xor<u32>>()}, {"buffer_atomic_xor_x2", update<bit_xor<u64>>()},
    {"buffer_atomic_inc", update<inc<u32>>()}, {"buffer_atomic_inc_x2", update<inc<u64>>()},
    {"buffer_atomic_dec", update<dec<u32>>()}, {"buffer_atomic_dec_x2", update<dec<u64>>()},
    {"buffer_atomic_add_f32", update<l2_fadd>()}, {"buffer_atomic_add_f64", update<fadd<double>>()},
    {"buffer_atomic_min_f64", update<fmin<double>>()}, {"buffer_atomic_max_f64", update<fmax<double>>()},
    {"buffer_atomic_pk_add_f16", update<pk_add_f16>()},

    {"buffer_wbl2", row(0, 0, nothing, nothing)}, {"buffer_inv", row(0, 0, nothing, nothing)},
};

}  // namespace

std::span<const Op> mubuf_ops() { return kOps; }

}  // namespace sim

// SPDX-License-Identifier: MIT
// GLOBAL, FLAT and SCRATCH: device memory, the LDS and scratch apertures, private memory. Cache bits have no effect.
#include "isa/atomics.h"
#include "load/loader.h"

namespace sim {
namespace {

constexpr u32 kSharedAperture = 1 << 16, kPrivateAperture = 2 << 16;   // high dwords (as in isa/lanes.h)

// v[2] + offset, or s[2] + u32 v + offset. `saddr` is absent on FLAT.
void global_addresses(const Wave& w, const Inst& i, const Operand& vaddr, const Operand& saddr, u64 (&at)[kLanes]) {
  const i64 offset = i.mod.offset;
  const u32* low = w.v[vaddr.reg];
  if (saddr.kind == Kind::none) {
    const u32* high = w.v[vaddr.reg + 1];
    for (int lane = 0; lane < kLanes; ++lane) at[lane] = (u64{high[lane]} << 32 | low[lane]) + offset;
  } else {
    const u64 base = scalar_source(w, saddr) + offset;
    for (int lane = 0; lane < kLanes; ++lane) at[lane] = base + low[lane];
  }
}

template <bool observed>
void scratch_places(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch, Places& p) {
  const u32 size = w.group->launch->private_bytes;
  p.lanes = observed ? observer(w).scratch(w, i, offset, lanes, touch) : lanes;
  if (lanes_within(offset, p.lanes, touch.bytes, size) != p.lanes) {  // a neighbour's, or nobody's
    const bool grows = w.group->launch->kernel->has_dynamic_stack();
    throw Fault("scratch beyond the lane's " + std::to_string(size) + " bytes" +
                (grows ? ", as hipDeviceSetLimit(hipLimitStackSize) sets them for kernels with such calls" : ""));
  }
  const u64 base = reinterpret_cast<u64>(w.scratch);
  for (u64 lane = 0; lane < kLanes; ++lane) p.at[lane] = base + lane * size + offset[lane];
}

struct Global {
  static constexpr Class kClass = Class::global;
  // `saddr` is the operand after the address (loads) or after the data (stores, atomics).
  static constexpr bool kIsFrequent = true;
  template <bool observed>
  static void resolve(Wave& w, const Inst& i, int saddr, u64 exec, const Touch& touch, Places& p) {
    global_addresses(w, i, i.src[0], i.src[saddr], p.at);
    p.lanes = observed ? observer(w).global(w, i, p.at, exec, touch) : exec;
  }
};

struct Scratch {
  static constexpr Class kClass = Class::scratch;
  static constexpr bool kIsFrequent = false;
  template <bool observed>
  [[gnu::noinline]] static void resolve(Wave& w, const Inst& i, int saddr, u64 exec, const Touch& touch, Places& p) {
    u32 base = i.mod.offset;
    if (i.src[saddr].kind != Kind::none) base += static_cast<u32>(scalar_source(w, i.src[saddr]));
    Lanes<u32> offset;
    for (int lane = 0; lane < kLanes; ++lane)
      offset[lane] = base + (i.src[0].kind == Kind::vgpr ? w.v[i.src[0].reg][lane] : 0);
    scratch_places<observed>(w, i, offset.at, exec, touch, p);
  }
};

struct Flat {
  static constexpr Class kClass = Class::flat;
  static constexpr bool kIsFrequent = false;
  template <bool observed>
  [[gnu::noinline]] static void resolve(Wave& w, const Inst& i, int, u64 exec, const Touch& touch, Places& p) {
    global_addresses(w, i, i.src[0], Operand{}, p.at);
    u64 shared = 0, scratch = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      shared |= u64{p.at[lane] >> 32 == kSharedAperture} << lane;
      scratch |= u64{p.at[lane] >> 32 == kPrivateAperture} << lane;
    }
    shared &= exec, scratch &= exec;
    p.lanes = exec & ~shared & ~scratch;
    if (observed && p.lanes) p.lanes = observer(w).global(w, i, p.at, p.lanes, touch);
    if (!(shared | scratch)) return;
    Lanes<u32> offset;
    for (int lane = 0; lane < kLanes; ++lane) offset[lane] = static_cast<u32>(p.at[lane]);
    const auto merge = [&](const Places& q, u64 lanes) {
      for_lanes(lanes, [&](int lane) { p.at[lane] = q.at[lane]; });
      p.lanes |= q.lanes;
    };
    Places q;
    if (shared) lds_places<observed>(w, i, offset.at, shared, touch, q), merge(q, shared);
    if (scratch) scratch_places<observed>(w, i, offset.at, scratch, touch, q), merge(q, scratch);
  }
};

template <class Space, Form form, bool observed>
void load(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  Places p;
  Space::template resolve<observed>(w, i, 1, exec, touch_load(form, i.dst[0].reg), p);
  if constexpr (Space::kIsFrequent && !observed) load_form_here<form>(p, w.v + i.dst[0].reg, exec);
  else load_form<form>(p, w.v + i.dst[0].reg, exec);
}

template <class Space, Form form, bool observed>
void store(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  Places p;
  Space::template resolve<observed>(w, i, 2, exec, touch_store(form, i.src[1].reg), p);
  if constexpr (Space::kIsFrequent && !observed) store_form_here<form>(p, w.v + i.src[1].reg);
  else store_form<form>(p, w.v + i.src[1].reg);
}

// Data registers: the operand, then (cmpswap) the compare value.
template <class Space, auto f, bool compares, bool observed>
void atomic(Wave& w, const Inst& i) {
  using T = ItemOf<f>;
  const u64 exec = w.exec();
  if (!exec) return;
  const u16 data = i.src[1].reg;
  const bool returns = i.dst[0].kind == Kind::vgpr;
  const Touch touch{.access = Access::atomic, .bytes = sizeof(T), .data = data,
                    .result = returns ? i.dst[0].reg : kNoRow};
  Places p;
  Space::template resolve<observed>(w, i, 2, exec, touch, p);
  atomic_lanes<f, true>(p, {w.v + data, compares ? w.v + data + sizeof(T) / 4 : nullptr,
                            returns ? w.v + i.dst[0].reg : nullptr}, exec);
}

// Memory and LDS address both get the instruction's offset.
template <class Space, Form form, bool observed>
void load_lds(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  Places p;
  Space::template resolve<observed>(w, i, 1, exec, {.access = Access::load, .bytes = form.bytes}, p);
  load_to_lds<form, observed>(w, i, p, (w.s[kM0] & 0x3fffc) + i.mod.offset, exec);
}

template <class Space>
constexpr Spec row(u8 num_dst, u32 flags, Handler plain, Handler observed) {
  return {.cls = Space::kClass, .num_dst = num_dst, .flags = flags, .plain = plain, .plain_observed = observed};
}

template <class Space, Form form>
constexpr Spec read() {
  const u32 merges = form.half == Half::none ? 0 : kReadsDst;
  return row<Space>(1, kLoad | merges, load<Space, form, false>, load<Space, form, true>);
}
template <class Space, Form form>
constexpr Spec write() { return row<Space>(0, kStore, store<Space, form, false>, store<Space, form, true>); }
template <class Space, auto f, bool compares = false>
constexpr Spec update() {
  return row<Space>(1, kAtomic, atomic<Space, f, compares, false>, atomic<Space, f, compares, true>);
}
template <class Space, Form form>
constexpr Spec dma() {
  return row<Space>(0, kLoad | kReadsM0, load_lds<Space, form, false>, load_lds<Space, form, true>);
}

using namespace combine;

const Op kOps[] = {
    {"global_load_ubyte", read<Global, kU8>()}, {"global_load_sbyte", read<Global, kI8>()},
    {"global_load_ushort", read<Global, kU16>()}, {"global_load_sshort", read<Global, kI16>()},
    {"global_load_ubyte_d16", read<Global, kU8Low>()}, {"global_load_ubyte_d16_hi", read<Global, kU8High>()},
    {"global_load_sbyte_d16", read<Global, kI8Low>()}, {"global_load_sbyte_d16_hi", read<Global, kI8High>()},
    {"global_load_short_d16", read<Global, k16Low>()}, {"global_load_short_d16_hi", read<Global, k16High>()},
    {"global_load_dword", read<Global, kB32>()}, {"global_load_dwordx2", read<Global, kB64>()},
    {"global_load_dwordx3", read<Global, kB96>()}, {"global_load_dwordx4", read<Global, kB128>()},
    {"global_store_byte", write<Global, kU8>()}, {"global_store_byte_d16_hi", write<Global, kU8High>()},
    {"global_store_short", write<Global, kU16>()}, {"global_store_short_d16_hi", write<Global, k16High>()},
    {"global_store_dword", write<Global, kB32>()}, {"global_store_dwordx2", write<Global, kB64>()},
    {"global_store_dwordx3", write<Global, kB96>()}, {"global_store_dwordx4", write<Global, kB128>()},
    {"global_load_lds_ubyte", dma<Global, kU8>()}, {"global_load_lds_sbyte", dma<Global, kI8>()},
    {"global_load_lds_ushort", dma<Global, kU16>()}, {"global_load_lds_sshort", dma<Global, kI16>()},
    {"global_load_lds_dword", dma<Global, kB32>()},

    {"global_atomic_swap", update<Global, swap<u32>>()}, {"global_atomic_swap_x2", update<Global, swap<u64>>()},
    {"global_atomic_cmpswap", update<Global, cmpswap<u32>, true>()},
    {"global_atomic_cmpswap_x2", update<Global, cmpswap<u64>, true>()},
    {"global_atomic_add", update<Global, add<u32>>()}, {"global_atomic_add_x2", update<Global, add<u64>>()},
    {"global_atomic_sub", update<Global, sub<u32>>()}, {"global_atomic_sub_x2", update<Global, sub<u64>>()},
    {"global_atomic_smin", update<Global, smin<u32>>()}, {"global_atomic_smin_x2", update<Global, smin<u64>>()},
    {"global_atomic_smax", update<Global, smax<u32>>()}, {"global_atomic_smax_x2", update<Global, smax<u64>>()},
    {"global_atomic_umin", update<Global, umin<u32>>()}, {"global_atomic_umin_x2", update<Global, umin<u64>>()},
    {"global_atomic_umax", update<Global, umax<u32>>()}, {"global_atomic_umax_x2", update<Global, umax<u64>>()},
    {"global_atomic_and", update<Global, bit_and<u32>>()}, {"global_atomic_and_x2", update<Global, bit_and<u64>>()},
    {"global_atomic_or", update<Global, bit_or<u32>>()}, {"global_atomic_or_x2", update<Global, bit_or<u64>>()},
    {"global_atomic_xor", update<Global, bit_xor<u32>>()}, {"global_atomic_xor_x2", update<Global, bit_xor<u64>>()},
    {"global_atomic_inc", update<Global, inc<u32>>()}, {"global_atomic_inc_x2", update<Global, inc<u64>>()},
    {"global_atomic_dec", update<Global, dec<u32>>()}, {"global_atomic_dec_x2", update<Global, dec<u64>>()},
    {"global_atomic_add_f32", update<Global, l2_fadd>()}, {"global_atomic_add_f64", update<Global, fadd<double>>()},
    {"global_atomic_min_f64", update<Global, fmin<double>>()},
    {"global_atomic_max_f64", update<Global, fmax<double>>()},
    {"global_atomic_pk_add_f16", update<Global, pk_add_f16>()},
    {"global_atomic_pk_add_bf16", update<Global, pk_add_bf16>()},

    {"flat_load_ubyte", read<Flat, kU8>()}, {"flat_load_sbyte", read<Flat, kI8>()},
    {"flat_load_ushort", read<Flat, kU16>()}, {"flat_load_sshort", read<Flat, kI16>()},
    {"flat_load_ubyte_d16", read<Flat, kU8Low>()}, {"flat_load_ubyte_d16_hi", read<Flat, kU8High>()},
    {"flat_load_sbyte_d16", read<Flat, kI8Low>()}, {"flat_load_sbyte_d16_hi", read<Flat, kI8High>()},
    {"flat_load_short_d16", read<Flat, k16Low>()}, {"flat_load_short_d16_hi", read<Flat, k16High>()},
    {"flat_load_dword", read<Flat, kB32>()}, {"flat_load_dwordx2", read<Flat, kB64>()},
    {"flat_load_dwordx3", read<Flat, kB96>()}, {"flat_load_dwordx4", read<Flat, kB128>()},
    {"flat_store_byte", write<Flat, kU8>()}, {"flat_store_byte_d16_hi", write<Flat, kU8High>()},
    {"flat_store_short", write<Flat, kU16>()}, {"flat_store_short_d16_hi", write<Flat, k16High>()},
    {"flat_store_dword", write<Flat, kB32>()}, {"flat_store_dwordx2", write<Flat, kB64>()},
    {"flat_store_dwordx3", write<Flat, kB96>()}, {"flat_store_dwordx4", write<Flat, kB128>()},

    {"flat_atomic_swap", update<Flat, swap<u32>>()}, {"flat_atomic_swap_x2", update<Flat, swap<u64>>()},
    {"flat_atomic_cmpswap", update<Flat, cmpswap<u32>, true>()},
    {"flat_atomic_cmpswap_x2", update<Flat, cmpswap<u64>, true>()},
    {"flat_atomic_add", update<Flat, add<u32>>()}, {"flat_atomic_add_x2", update<Flat, add<u64>>()},
    {"flat_atomic_sub", update<Flat, sub<u32>>()}, {"flat_atomic_sub_x2", update<Flat, sub<u64>>()},
    {"flat_atomic_smin", update<Flat, smin<u32>>()}, {"flat_atomic_smin_x2", update<Flat, smin<u64>>()},
    {"flat_atomic_smax", update<Flat, smax<u32>>()}, {"flat_atomic_smax_x2", update<Flat, smax<u64>>()},
    {"flat_atomic_umin", update<Flat, umin<u32>>()}, {"flat_atomic_umin_x2", update<Flat, umin<u64>>()},
    {"flat_atomic_umax", update<Flat, umax<u32>>()}, {"flat_atomic_umax_x2", update<Flat, umax<u64>>()},
    {"flat_atomic_and", update<Flat, bit_and<u32>>()}, {"flat_atomic_and_x2", update<Flat, bit_and<u64>>()},
    {"flat_atomic_or", update<Flat, bit_or<u32>>()}, {"flat_atomic_or_x2", update<Flat, bit_or<u64>>()},
    {"flat_atomic_xor", update<Flat, bit_xor<u32>>()}, {"flat_atomic_xor_x2", update<Flat, bit_xor<u64>>()},
    {"flat_atomic_inc", update<Flat, inc<u32>>()}, {"flat_atomic_inc_x2", update<Flat, inc<u64>>()},
    {"flat_atomic_dec", update<Flat, dec<u32>>()}, {"flat_atomic_dec_x2", update<Flat, dec<u64>>()},
    {"flat_atomic_add_f32", update<Flat, l2_fadd>()}, {"flat_atomic_add_f64", update<Flat, fadd<double>>()},
    {"flat_atomic_min_f64", update<Flat, fmin<double>>()}, {"flat_atomic_max_f64", update<Flat, fmax<double>>()},
    {"flat_atomic_pk_add_f16", update<Flat, pk_add_f16>()}, {"flat_atomic_pk_add_bf16", update<Flat, pk_add_bf16>()},

    {"scratch_load_ubyte", read<Scratch, kU8>()}, {"scratch_load_sbyte", read<Scratch, kI8>()},
    {"scratch_load_ushort", read<Scratch, kU16>()}, {"scratch_load_sshort", read<Scratch, kI16>()},
    {"scratch_load_ubyte_d16", read<Scratch, kU8Low>()}, {"scratch_load_ubyte_d16_hi", read<Scratch, kU8High>()},
    {"scratch_load_sbyte_d16", read<Scratch, kI8Low>()}, {"scratch_load_sbyte_d16_hi", read<Scratch, kI8High>()},
    {"scratch_load_short_d16", read<Scratch, k16Low>()}, {"scratch_load_short_d16_hi", read<Scratch, k16High>()},
    {"scratch_load_dword", read<Scratch, kB32>()}, {"scratch_load_dwordx2", read<Scratch, kB64>()},
    {"scratch_load_dwordx3", read<Scratch, kB96>()}, {"scratch_load_dwordx4", read<Scratch, kB128>()},
    {"scratch_store_byte", write<Scratch, kU8>()}, {"scratch_store_byte_d16_hi", write<Scratch, kU8High>()},
    {"scratch_store_short", write<Scratch, kU16>()}, {"scratch_store_short_d16_hi", write<Scratch, k16High>()},
    {"scratch_store_dword", write<Scratch, kB32>()}, {"scratch_store_dwordx2", write<Scratch, kB64>()},
    {"scratch_store_dwordx3", write<Scratch, kB96>()}, {"scratch_store_dwordx4", write<Scratch, kB128>()},
    {"scratch_load_lds_ubyte", dma<Scratch, kU8>()}, {"scratch_load_lds_sbyte", dma<Scratch, kI8>()},
    {"scratch_load_lds_ushort", dma<Scratch, kU16>()}, {"scratch_load_lds_sshort", dma<Scratch, kI16>()},
    {"scratch_load_lds_dword", dma<Scratch, kB32>()},
};

}  // namespace

std::span<const Op> flat_ops() { return kOps; }

}  // namespace sim

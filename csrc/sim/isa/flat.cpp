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

template <class Space>
void add_accesses(OpTable& rows, const std::string& space) {
  for_each_index<std::size(kLoads)>([&]<size_t k>() {
    rows.add(space + kLoads[k].name, read<Space, kLoads[k].form>());
  });
  for_each_index<std::size(kStores)>([&]<size_t k>() {
    rows.add(space + kStores[k].name, write<Space, kStores[k].form>());
  });
}

template <class Space>
void add_loads_to_lds(OpTable& rows, const std::string& space) {
  for_each_index<std::size(kLoadsToLds)>([&]<size_t k>() {
    rows.add(space + kLoadsToLds[k].name, dma<Space, kLoadsToLds[k].form>());
  });
}

template <class Space>
void add_atomics(OpTable& rows, const std::string& space) {
  for_each_integer([&]<auto f, bool compares>(const std::string& name) {
    rows.add(space + "atomic_" + name, update<Space, f, compares>());
  });
  rows.add(space + "atomic_add_f32", update<Space, l2_fadd>());
  rows.add(space + "atomic_add_f64", update<Space, fadd<double>>());
  rows.add(space + "atomic_min_f64", update<Space, fmin<double>>());
  rows.add(space + "atomic_max_f64", update<Space, fmax<double>>());
  rows.add(space + "atomic_pk_add_f16", update<Space, pk_add_f16>());
  rows.add(space + "atomic_pk_add_bf16", update<Space, pk_add_bf16>());
}

OpTable make_rows() {
  OpTable rows;
  add_accesses<Global>(rows, "global_");
  add_loads_to_lds<Global>(rows, "global_");
  add_atomics<Global>(rows, "global_");
  add_accesses<Flat>(rows, "flat_");
  add_atomics<Flat>(rows, "flat_");
  add_accesses<Scratch>(rows, "scratch_");
  add_loads_to_lds<Scratch>(rows, "scratch_");
  return rows;
}

}  // namespace

std::span<const Op> flat_ops() {
  static const OpTable rows = make_rows();
  return rows;
}

}  // namespace sim

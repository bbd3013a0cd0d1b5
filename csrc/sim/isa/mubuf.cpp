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

OpTable make_rows() {
  OpTable rows;
  for_each_index<std::size(kLoads)>([&]<size_t k>() {
    rows.add(std::string("buffer_") + kLoads[k].name, read<kLoads[k].form>());
  });
  for_each_index<std::size(kStores)>([&]<size_t k>() {
    rows.add(std::string("buffer_") + kStores[k].name, write<kStores[k].form>());
  });
  for_each_integer([&]<auto f, bool compares>(const std::string& name) {
    rows.add("buffer_atomic_" + name, update<f, compares>());
  });
  rows.add("buffer_atomic_add_f32", update<l2_fadd>());
  rows.add("buffer_atomic_add_f64", update<fadd<double>>());
  rows.add("buffer_atomic_min_f64", update<fmin<double>>());
  rows.add("buffer_atomic_max_f64", update<fmax<double>>());
  rows.add("buffer_atomic_pk_add_f16", update<pk_add_f16>());
  rows.add("buffer_wbl2", row(0, 0, nothing, nothing));
  rows.add("buffer_inv", row(0, 0, nothing, nothing));
  return rows;
}

}  // namespace

std::span<const Op> mubuf_ops() {
  static const OpTable rows = make_rows();
  return rows;
}

}  // namespace sim

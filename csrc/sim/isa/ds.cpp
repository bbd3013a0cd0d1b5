// SPDX-License-Identifier: MIT
// DS: loads, stores and atomics of the workgroup's LDS, and lane exchanges through the LDS crossbar.
#include "isa/atomics.h"

namespace sim {
namespace {

using Offsets = Lanes<u32>;

// The 32-bit sum wraps, as on hardware.
[[gnu::noinline]] void ds_offsets(const Wave& w, const Operand& address, u32 offset, Offsets& out) {
  Lanes<u32> spare;
  const u32* row = source_row(w, address, spare);
  for (int lane = 0; lane < kLanes; ++lane) out[lane] = row[lane] + offset;
}

void addtid_offsets(const Wave& w, u32 offset, Offsets& out) {
  for (u32 lane = 0; lane < kLanes; ++lane) out[lane] = (w.s[kM0] & 0xffff) + offset + 4 * lane;
}

template <Form form, bool observed, bool addtid>
void load(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  Offsets at;
  if constexpr (addtid) addtid_offsets(w, i.mod.offset, at);
  else ds_offsets(w, i.src[0], i.mod.offset, at);
  Places p;
  lds_places<observed>(w, i, at.at, exec, touch_load(form, i.dst[0].reg), p);
  load_form<form>(p, w.v + i.dst[0].reg, exec);
}

template <Form form, bool observed, bool addtid>
void store(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  const Operand& data = i.src[addtid ? 0 : 1];
  Offsets at;
  if constexpr (addtid) addtid_offsets(w, i.mod.offset, at);
  else ds_offsets(w, i.src[0], i.mod.offset, at);
  Places p;
  lds_places<observed>(w, i, at.at, exec, touch_store(form, data.reg), p);
  store_form<form>(p, w.v + data.reg);
}

// Two items; offsets count elements, or 64 elements (st64). Both addresses are read before the first write.
template <Form form, u32 stride, bool observed>
void load2(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  const u16 row = i.dst[0].reg, second = row + form.rows();
  Offsets at0, at1;
  ds_offsets(w, i.src[0], i.mod.offset * stride, at0);
  ds_offsets(w, i.src[0], i.mod.offset1 * stride, at1);
  Places p;
  lds_places<observed>(w, i, at0.at, exec, touch_load(form, row), p);
  load_form<form>(p, w.v + row, exec);
  lds_places<observed>(w, i, at1.at, exec, touch_load(form, second), p);
  load_form<form>(p, w.v + second, exec);
}

template <Form form, u32 stride, bool observed>
void store2(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  Offsets at;
  Places p;
  for (int k = 0; k < 2; ++k) {
    const u16 row = i.src[1 + k].reg;
    ds_offsets(w, i.src[0], (k ? i.mod.offset1 : i.mod.offset) * stride, at);
    lds_places<observed>(w, i, at.at, exec, touch_store(form, row), p);
    store_form<form>(p, w.v + row);
  }
}

template <auto f, bool observed>
void atomic(Wave& w, const Inst& i) {
  using T = ItemOf<f>;
  const u64 exec = w.exec();
  if (!exec) return;
  const bool returns = i.dst[0].kind == Kind::vgpr, two = i.num_src > 2;
  Offsets at;
  ds_offsets(w, i.src[0], i.mod.offset, at);
  const Touch touch{.access = Access::atomic, .bytes = sizeof(T), .data = i.src[1].reg,
                    .result = returns ? i.dst[0].reg : kNoRow};
  Places p;
  lds_places<observed>(w, i, at.at, exec, touch, p);
  atomic_lanes<f, false>(p, {w.v + i.src[1].reg, two ? w.v + i.src[2].reg : nullptr,
                             returns ? w.v + i.dst[0].reg : nullptr}, exec);
}

// Two exchanges, each with its own offset; the old values are the halves of the destination.
template <class T, u32 stride, bool observed>
void exchange2(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  constexpr int kRows = sizeof(T) / 4;
  alignas(64) u32 old[2 * kRows][kLanes];
  for (int k = 0; k < 2; ++k) {
    Offsets at;
    Places p;
    ds_offsets(w, i.src[0], (k ? i.mod.offset1 : i.mod.offset) * stride, at);
    const u16 data = i.src[1 + k].reg;
    const Touch touch{.access = Access::atomic, .bytes = sizeof(T), .data = data,
                      .result = static_cast<u16>(i.dst[0].reg + k * kRows)};
    lds_places<observed>(w, i, at.at, exec, touch, p);
    atomic_lanes<combine::swap<T>, false>(p, {w.v + data, nullptr, old + k * kRows}, exec);
  }
  for (int row = 0; row < 2 * kRows; ++row) write_row(w.v[i.dst[0].reg + row], old[row], exec);
}

// ds_append / ds_consume: the counter at M0 + offset moves by the number of active lanes; all get the old value.
template <int sign, bool observed>
void count_lanes(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  if (!exec) return;
  const u64 first = exec & -exec;
  Offsets at;
  for (int lane = 0; lane < kLanes; ++lane) at[lane] = (w.s[kM0] & 0xffff) + i.mod.offset;
  const Touch touch{.access = Access::atomic, .bytes = 4, .result = i.dst[0].reg};
  Places p;
  lds_places<observed>(w, i, at.at, first, touch, p);
  u32 old = 0;
  for_lanes(p.lanes, [&](int lane) {
    std::memcpy(&old, reinterpret_cast<const void*>(p.at[lane]), 4);
    const u32 next = old + sign * std::popcount(exec);
    std::memcpy(reinterpret_cast<void*>(p.at[lane]), &next, 4);
  });
  for_lanes(exec, [&](int lane) { w.v[i.dst[0].reg][lane] = old; });
}

// Writes data[from[lane]] to each active lane; -1 gives 0.
template <bool observed>
void shuffle(Wave& w, const Operand& dst, const Operand& data, const i8 (&from)[kLanes], u64 exec) {
  if constexpr (observed) observer(w).shuffle(w, dst.reg, data.reg, from, exec);
  Lanes<u32> out;
  for (int lane = 0; lane < kLanes; ++lane) out[lane] = from[lane] < 0 ? 0 : w.v[data.reg][from[lane]];
  write_row(w.v[dst.reg], out.at, exec);
}

// Push: lane sends its data to lane address / 4; of several senders the highest wins, lanes without one get 0.
template <bool observed>
void permute(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  i8 from[kLanes];
  std::memset(from, -1, sizeof from);
  for_lanes(exec, [&](int lane) { from[(w.v[i.src[0].reg][lane] + i.mod.offset) / 4 % kLanes] = i8(lane); });
  shuffle<observed>(w, i.dst[0], i.src[1], from, exec);
}

// Pull: lane reads from lane address / 4; an inactive source gives 0.
template <bool observed>
void bpermute(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  i8 from[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int source = (w.v[i.src[0].reg][lane] + i.mod.offset) / 4 % kLanes;
    from[lane] = active(exec, source) ? i8(source) : i8{-1};
  }
  shuffle<observed>(w, i.dst[0], i.src[1], from, exec);
}

// Bit 15: a permutation of each four lanes; else and/or/xor masks on the lane number within each 32 lanes.
int swizzle_source(int lane, u32 pattern) {
  if (pattern & 0x8000) return (lane & ~3) | (pattern >> 2 * (lane & 3) & 3);
  const u32 and_mask = pattern & 31, or_mask = pattern >> 5 & 31, xor_mask = pattern >> 10 & 31;
  return (lane & 32) | ((((lane & 31) & and_mask) | or_mask) ^ xor_mask);
}

template <bool observed>
void swizzle(Wave& w, const Inst& i) {
  const u64 exec = w.exec();
  i8 from[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int source = swizzle_source(lane, i.mod.offset);
    from[lane] = active(exec, source) ? i8(source) : i8{-1};
  }
  shuffle<observed>(w, i.dst[0], i.src[0], from, exec);
}

void nothing(Wave&, const Inst&) {}

constexpr Spec row(u8 num_dst, u32 flags, Handler plain, Handler observed) {
  return {.cls = Class::ds, .num_dst = num_dst, .flags = flags, .plain = plain, .plain_observed = observed};
}

template <Form form>
constexpr Spec read() {
  const u32 merges = form.half == Half::none ? 0 : kReadsDst;
  return row(1, kLoad | merges, load<form, false, false>, load<form, true, false>);
}
template <Form form>
constexpr Spec write() { return row(0, kStore, store<form, false, false>, store<form, true, false>); }
template <Form form, u32 stride>
constexpr Spec read2() { return row(1, kLoad, load2<form, stride, false>, load2<form, stride, true>); }
template <Form form, u32 stride>
constexpr Spec write2() { return row(0, kStore, store2<form, stride, false>, store2<form, stride, true>); }

template <auto f>
constexpr Spec atomic_row(u8 num_dst) {
  return row(num_dst, kAtomic, atomic<f, false>, atomic<f, true>);
}
template <class T, u32 stride>
constexpr Spec exchange_two() { return row(1, kAtomic, exchange2<T, stride, false>, exchange2<T, stride, true>); }
template <auto f> constexpr Spec update() { return atomic_row<f>(0); }
template <auto f> constexpr Spec exchange() { return atomic_row<f>(1); }

using namespace combine;

const Op kOps[] = {
    {"ds_read_u8", read<kU8>()}, {"ds_read_i8", read<kI8>()},
    {"ds_read_u16", read<kU16>()}, {"ds_read_i16", read<kI16>()},
    {"ds_read_u8_d16", read<kU8Low>()}, {"ds_read_u8_d16_hi", read<kU8High>()},
    {"ds_read_i8_d16", read<kI8Low>()}, {"ds_read_i8_d16_hi", read<kI8High>()},
    {"ds_read_u16_d16", read<k16Low>()}, {"ds_read_u16_d16_hi", read<k16High>()},
    {"ds_read_b32", read<kB32>()}, {"ds_read_b64", read<kB64>()},
    {"ds_read_b96", read<kB96>()}, {"ds_read_b128", read<kB128>()},
    {"ds_read2_b32", read2<kB32, 4>()}, {"ds_read2st64_b32", read2<kB32, 256>()},
    {"ds_read2_b64", read2<kB64, 8>()}, {"ds_read2st64_b64", read2<kB64, 512>()},
    {"ds_read_addtid_b32", row(1, kLoad | kReadsM0, load<kB32, false, true>, load<kB32, true, true>)},

    {"ds_write_b8", write<kU8>()}, {"ds_write_b16", write<kU16>()},
    {"ds_write_b8_d16_hi", write<kU8High>()}, {"ds_write_b16_d16_hi", write<k16High>()},
    {"ds_write_b32", write<kB32>()}, {"ds_write_b64", write<kB64>()},
    {"ds_write_b96", write<kB96>()}, {"ds_write_b128", write<kB128>()},
    {"ds_write2_b32", write2<kB32, 4>()}, {"ds_write2st64_b32", write2<kB32, 256>()},
    {"ds_write2_b64", write2<kB64, 8>()}, {"ds_write2st64_b64", write2<kB64, 512>()},
    {"ds_write_addtid_b32", row(0, kStore | kReadsM0, store<kB32, false, true>, store<kB32, true, true>)},
    {"ds_wrap_rtn_b32", exchange<wrap<u32>>()},
    {"ds_wrxchg_rtn_b32", exchange<swap<u32>>()}, {"ds_wrxchg_rtn_b64", exchange<swap<u64>>()},
    {"ds_wrxchg2_rtn_b32", exchange_two<u32, 4>()}, {"ds_wrxchg2st64_rtn_b32", exchange_two<u32, 256>()},
    {"ds_wrxchg2_rtn_b64", exchange_two<u64, 8>()}, {"ds_wrxchg2st64_rtn_b64", exchange_two<u64, 512>()},

    {"ds_append", row(1, kAtomic | kReadsM0, count_lanes<1, false>, count_lanes<1, true>)},
    {"ds_consume", row(1, kAtomic | kReadsM0, count_lanes<-1, false>, count_lanes<-1, true>)},
    {"ds_permute_b32", row(1, 0, permute<false>, permute<true>)},
    {"ds_bpermute_b32", row(1, 0, bpermute<false>, bpermute<true>)},
    {"ds_swizzle_b32", row(1, 0, swizzle<false>, swizzle<true>)},
    {"ds_nop", row(0, 0, nothing, nothing)},
};

// An atomic, and as …_rtn_… the one that returns what was there.
template <auto f>
void add_atomic(OpTable& rows, const std::string& verb, const std::string& type) {
  rows.add("ds_" + verb + "_" + type, update<f>());
  rows.add("ds_" + verb + "_rtn_" + type, exchange<f>());
}

template <class T>
void add_integers(OpTable& rows, const std::string& bits) {
  add_atomic<add<T>>(rows, "add", "u" + bits);
  add_atomic<sub<T>>(rows, "sub", "u" + bits);
  add_atomic<rsub<T>>(rows, "rsub", "u" + bits);
  add_atomic<inc<T>>(rows, "inc", "u" + bits);
  add_atomic<dec<T>>(rows, "dec", "u" + bits);
  add_atomic<smin<T>>(rows, "min", "i" + bits);
  add_atomic<smax<T>>(rows, "max", "i" + bits);
  add_atomic<umin<T>>(rows, "min", "u" + bits);
  add_atomic<umax<T>>(rows, "max", "u" + bits);
  add_atomic<bit_and<T>>(rows, "and", "b" + bits);
  add_atomic<bit_or<T>>(rows, "or", "b" + bits);
  add_atomic<bit_xor<T>>(rows, "xor", "b" + bits);
  add_atomic<mskor<T>>(rows, "mskor", "b" + bits);
  add_atomic<ds_cmpst<T>>(rows, "cmpst", "b" + bits);
}

template <class F>
void add_floats(OpTable& rows, const std::string& type) {
  add_atomic<fadd<F>>(rows, "add", type);
  add_atomic<fmin<F>>(rows, "min", type);
  add_atomic<fmax<F>>(rows, "max", type);
  add_atomic<ds_fcmpst<F>>(rows, "cmpst", type);
}

OpTable make_rows() {
  OpTable rows;
  for (const auto& [name, spec] : kOps) rows.add(std::string(name), spec);
  add_integers<u32>(rows, "32");
  add_integers<u64>(rows, "64");
  add_floats<float>(rows, "f32");
  add_floats<double>(rows, "f64");
  add_atomic<pk_add_f16>(rows, "pk_add", "f16");
  add_atomic<pk_add_bf16>(rows, "pk_add", "bf16");
  return rows;
}

}  // namespace

std::span<const Op> ds_ops() {
  static const OpTable rows = make_rows();
  return rows;
}

}  // namespace sim

// SPDX-License-Identifier: MIT
#include "isa/half_flush.h"

#include "isa/dpp.h"
#include "isa/lanes.h"
#include "isa/math.h"

namespace sim {
namespace {

constexpr u32 kLow = 0xffff, kHigh = 0xffff0000u;

struct Saved {
  u16 row = 0;
  Lanes<u32> lanes;
};
thread_local Saved saved[3];
thread_local int num_saved = 0;

u32 flush_half(u32 x, u32 halves) {
  const u32 low = x & 0x7c00 ? x & kLow : x & 0x8000, high = x & 0x7c000000u ? x & kHigh : x & 0x80000000u;
  return (halves & kLow ? low : x & kLow) | (halves & kHigh ? high : x & kHigh);
}

bool is_packed(const Inst& i) { return i.op->name.starts_with("v_pk_"); }

u32 selected_word(u8 select) {
  if (select < 4) throw Fault("MODE: flushing an f16 denormal that SDWA takes from a byte is not modelled");
  return select == 5 ? kHigh : kLow;
}

// The halves of source k that hold f16, as bits; 0: it is of another type.
u32 source_halves(const Inst& i, int k) {
  if (is_packed(i)) return kLow | kHigh;
  if (i.op->spec.src[k] != Type::f16 || i.op->name.find("_class_") != std::string_view::npos) return 0;
  if (i.mod.sdwa) return selected_word(i.src[k].sel);
  return i.mod.op_sel >> k & 1 ? kHigh : kLow;
}

u32 result_halves(const Inst& i) {
  if (is_packed(i)) return kLow | kHigh;
  if (i.op->spec.dst[0] != Type::f16) return 0;
  if (i.mod.sdwa) return selected_word(i.mod.dst_sel);
  return i.mod.op_sel >> i.num_src & 1 ? kHigh : kLow;
}

u64 written_lanes(const Wave& w, const Inst& i) {
  return i.mod.dpp == DppCtrl::none ? w.exec() : dpp_lanes(i.mod, dpp_row(i.mod.dpp, i.mod.dpp_arg), w.exec());
}

void flush_row(u32* row, u32 halves, u64 lanes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (active(lanes, lane)) row[lane] = flush_half(row[lane], halves);
  }
}

void flush_source(Wave& w, Operand& o, u32 halves) {
  if (o.kind != Kind::vgpr) {
    if (o.kind != Kind::sgpr && o.kind != Kind::literal) return;
    o.value = flush_half(static_cast<u32>(scalar_source(w, o)), halves);
    o.kind = Kind::literal;
    return;
  }
  for (int at = 0; at < num_saved; ++at) {
    if (saved[at].row == o.reg) return flush_row(w.v[o.reg], halves, kAllLanes);
  }
  Saved& place = saved[num_saved++];
  place.row = o.reg;
  std::memcpy(place.lanes.at, w.v[o.reg], sizeof place.lanes.at);
  flush_row(w.v[o.reg], halves, kAllLanes);
}

}  // namespace

const Inst& flush_half_sources(Wave& w, const Inst& i, Inst& copy) {
  num_saved = 0;
  const std::string_view name = i.op->name;
  for (std::string_view part : {"_dot2", "_pack_", "pkrtz", "pknorm", "_mix"}) {
    if (name.find(part) != name.npos) throw Fault("MODE: flushing f16 denormals in this instruction is not modelled");
  }
  if (name.starts_with("v_div_") || (w.mode.bits >> 6 & 1)) return i;
  const bool accumulates = i.op->spec.flags & kReadsDst && i.num_src == 2;
  if (accumulates) flush_row(w.v[i.dst[0].reg], result_halves(i), written_lanes(w, i));
  copy = i;
  for (int k = 0; k < i.num_src; ++k) {
    if (const u32 halves = source_halves(i, k)) flush_source(w, copy.src[k], halves);
  }
  return copy;
}

void flush_half_result(Wave& w, const Inst& i) {
  const bool vector = i.dst[0].kind == Kind::vgpr;
  const u64 lanes = vector ? written_lanes(w, i) : 0;
  for (int at = 0; at < num_saved; ++at) {
    const Saved& place = saved[at];
    write_row(w.v[place.row], place.lanes.at, vector && place.row == i.dst[0].reg ? ~lanes : kAllLanes);
  }
  num_saved = 0;
  const bool keeps = w.mode.bits & Mode::kKeepOutputs64 || i.op->name.starts_with("v_div_");
  if (vector && !keeps) flush_row(w.v[i.dst[0].reg], result_halves(i), lanes);
}

}  // namespace sim

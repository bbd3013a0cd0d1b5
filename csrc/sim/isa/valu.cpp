// SPDX-License-Identifier: MIT
// Vector operations with modifiers: DPP, SDWA, op_sel, neg/abs/sext on the sources; clamp, dst_sel and op_sel on the
// result. One generic body for all rows; what a row computes comes in as Form::body.
#include "isa/valu.h"

#include "isa/dpp.h"

namespace sim {
namespace {

bool is_float(Lane lane) { return lane == Lane::f16 || lane == Lane::f32 || lane == Lane::f64; }
bool is_half(Lane lane) { return lane == Lane::b16 || lane == Lane::f16; }
bool is_wide(Lane lane) { return lane == Lane::b64 || lane == Lane::f64; }

struct Rows {
  Lanes<u32> lo, hi;
};

// SDWA: the selected byte or word, zero- or sign-extended to 32 bits.
u32 select(u32 x, u8 sel, bool sext) {
  if (sel == 6) return x;
  const int bits = sel < 4 ? 8 : 16, shift = sel < 4 ? 8 * sel : 16 * (sel - 4);
  const u32 field = x >> shift & ((1u << bits) - 1);
  return sext ? static_cast<u32>(static_cast<i32>(field << (32 - bits)) >> (32 - bits)) : field;
}

// neg and abs act on the sign of the value as selected.
u32 sign_bit(Lane lane, u8 sel) {
  if (sel < 4) return 0x80;
  if (sel < 6 || is_half(lane)) return 0x8000;
  return 0x80000000u;
}

// On packed halves (v_pk_fmac_f16, v_dot2c_f32_f16) the ISA does not say which signs change.
void apply_sign(const Inst& i, const Operand& o, Lane lane, Rows& rows) {
  if (!is_float(lane) && i.op->name != "v_cndmask_b32") throw Fault("neg and abs on packed operands are not defined");
  const u32 sign = sign_bit(lane, o.sel);
  Lanes<u32>& high = is_wide(lane) ? rows.hi : rows.lo;
  for (int at = 0; at < kLanes; ++at) {
    if (o.abs) high[at] &= ~sign;
    if (o.neg) high[at] ^= sign;
  }
}

// Copies source `k` into `rows` with every modifier applied; `permutation` is null except for src0 of a DPP.
Source full_source(const Wave& w, const Inst& i, const Operand& o, Lane lane, size_t k, const DppRow* permutation,
                   Rows& rows) {
  if (lane == Lane::mask) return {nullptr, nullptr, scalar_source(w, o)};
  const Source raw = is_wide(lane) ? plain_source<u64>(w, o, rows.lo, rows.hi)
                                   : plain_source<u32>(w, o, rows.lo, rows.hi);
  const bool high_half = i.mod.op_sel >> k & 1;
  if (high_half && !is_half(lane)) throw Fault("op_sel selects the high half of a source that is no 16-bit one");
  if (!permutation && !i.mod.sdwa && !high_half && !o.neg && !o.abs) return raw;
  if (permutation) {
    permute(raw.lo, rows.lo.at, *permutation, w.exec());
    if (is_wide(lane)) permute(raw.hi, rows.hi.at, *permutation, w.exec());
  } else if (raw.lo != rows.lo.at) {
    std::memcpy(rows.lo.at, raw.lo, sizeof rows.lo.at);
    if (is_wide(lane)) std::memcpy(rows.hi.at, raw.hi, sizeof rows.hi.at);
  }
  if (i.mod.sdwa) {
    for (int at = 0; at < kLanes; ++at) rows.lo[at] = select(rows.lo[at], o.sel, o.sext);
  } else if (high_half) {
    for (int at = 0; at < kLanes; ++at) rows.lo[at] >>= 16;
  }
  if (o.neg || o.abs) apply_sign(i, o, lane, rows);
  return {rows.lo.at, rows.hi.at, 0};
}

bool takes_omod(const Wave& w, const Form& form) {
  const u32 kept = form.dst == Lane::f32 ? Mode::kKeepOutputs32 : Mode::kKeepOutputs64;
  return is_float(form.dst) && !w.mode.ieee() && !(w.mode.bits & kept);
}

void scale_rows(u8 omod, Lane lane, Rows& rows) {
  const float factor = omod == 1 ? 2.0f : omod == 2 ? 4.0f : 0.5f;
  for (int at = 0; at < kLanes; ++at) {
    if (lane == Lane::f32) {
      rows.lo[at] = std::bit_cast<u32>(std::bit_cast<float>(rows.lo[at]) * factor);
    } else if (lane == Lane::f16) {
      const float x = static_cast<float>(std::bit_cast<f16>(static_cast<u16>(rows.lo[at])));
      rows.lo[at] = std::bit_cast<u16>(static_cast<f16>(x * factor));
    } else {
      const double x = std::bit_cast<double>(u64{rows.hi[at]} << 32 | rows.lo[at]) * static_cast<double>(factor);
      const u64 bits = std::bit_cast<u64>(x);
      rows.lo[at] = static_cast<u32>(bits);
      rows.hi[at] = static_cast<u32>(bits >> 32);
    }
  }
}

// To [0, 1]; NaN becomes 0 when MODE.DX10_CLAMP is set, else it stays.
template <class T>
T clamp_unit(T x, bool nan_to_zero) {
  if (x != x) return nan_to_zero ? T(0) : x;
  return x > T(0) ? (x < T(1) ? x : T(1)) : T(0);
}

void clamp_rows(Lane lane, bool nan_to_zero, Rows& rows) {
  for (int at = 0; at < kLanes; ++at) {
    if (lane == Lane::f32) {
      rows.lo[at] = std::bit_cast<u32>(clamp_unit(std::bit_cast<float>(rows.lo[at]), nan_to_zero));
    } else if (lane == Lane::f16) {
      const float x = static_cast<float>(std::bit_cast<f16>(static_cast<u16>(rows.lo[at])));
      rows.lo[at] = std::bit_cast<u16>(static_cast<f16>(clamp_unit(x, nan_to_zero)));
    } else {
      const u64 x = u64{rows.hi[at]} << 32 | rows.lo[at];
      const u64 clamped = std::bit_cast<u64>(clamp_unit(std::bit_cast<double>(x), nan_to_zero));
      rows.lo[at] = static_cast<u32>(clamped);
      rows.hi[at] = static_cast<u32>(clamped >> 32);
    }
  }
}

// MODE.FP16_OVFL on f16 results. An infinity does not come from an overflow when a source is infinite, or when the
// operation has a pole at a source that is zero.
void limit_halves(const Inst& i, const Form& form, const Source* in, Rows& rows) {
  constexpr std::string_view kPoles[] = {"v_rcp_f16", "v_rsq_f16", "v_log_f16", "v_div_fixup_f16",
                                         "v_div_fixup_legacy_f16"};
  const bool has_pole = std::ranges::find(kPoles, i.op->name) != std::end(kPoles);
  for (int at = 0; at < kLanes; ++at) {
    bool is_true = false;
    for (size_t k = 0; k < form.num_src; ++k) {
      if (form.src[k] != Lane::f16 && form.src[k] != Lane::f32) continue;
      const bool is_f16 = form.src[k] == Lane::f16;
      const u32 magnitude = in[k].lo[at] & (is_f16 ? 0x7fff : 0x7fffffff);
      is_true |= magnitude == (is_f16 ? 0x7c00 : 0x7f800000) || (has_pole && magnitude == 0);
    }
    rows.lo[at] = limit_half(rows.lo[at], is_true);
  }
}

// SDWA destination: the result's low bits go to the selected field, the rest is zero, its sign, or kept.
u32 place(u32 value, u32 old, const Modifiers& mod) {
  if (mod.dst_sel == 6) return value;
  const int bits = mod.dst_sel < 4 ? 8 : 16, shift = mod.dst_sel < 4 ? 8 * mod.dst_sel : 16 * (mod.dst_sel - 4);
  const u32 field = (1u << bits) - 1, moved = (value & field) << shift;
  if (mod.dst_unused == 0) return moved;
  if (mod.dst_unused == 2) return moved | (old & ~(field << shift));
  const bool negative = value >> (bits - 1) & 1;
  const u32 above = ~((field << shift) | ((1u << shift) - 1));
  return moved | (negative ? above : 0);
}

void place_rows(const Wave& w, const Inst& i, const Form& form, size_t num_printed, Rows& rows) {
  const u32* old = w.v[i.dst[0].reg];
  const bool high = i.mod.op_sel >> num_printed & 1;
  if (high && !is_half(form.dst)) throw Fault("op_sel selects the high half of a destination that is no 16-bit one");
  if (!i.mod.sdwa && !high && !form.keep_high) return;
  for (int at = 0; at < kLanes; ++at) {
    if (i.mod.sdwa) rows.lo[at] = place(rows.lo[at], old[at], i.mod);
    else if (high) rows.lo[at] = rows.lo[at] << 16 | (old[at] & 0xffff);
    else if (form.keep_high) rows.lo[at] |= old[at] & 0xffff0000u;
  }
}

}  // namespace

void run_full(Wave& w, const Inst& i, const Form& form) {
  const Modifiers& mod = i.mod;
  const bool scaled = mod.omod && takes_omod(w, form);
  if (mod.omod && !scaled) {
    throw Fault("output modifier (mul:2, mul:4, div:2): the hardware ignores it while MODE.IEEE is set or output "
                "denormals are kept; on other types than f16, f32 and f64 it is not defined");
  }
  const DppRow* permutation = mod.dpp == DppCtrl::none ? nullptr : &dpp_row(mod.dpp, mod.dpp_arg);
  const size_t num_printed = form.num_src - (form.last == Last::operand ? 0 : 1);
  Rows in_rows[4], rows;
  Source in[4];
  for (size_t k = 0; k < form.num_src; ++k) {
    if (k < num_printed) {
      in[k] = full_source(w, i, i.src[k], form.src[k], k, k == 0 ? permutation : nullptr, in_rows[k]);
    } else if (form.last == Last::vcc) {
      in[k].mask = w.vcc();
    } else {
      in[k] = {w.v[i.dst[0].reg], is_wide(form.dst) ? w.v[i.dst[0].reg + 1] : nullptr, 0};
    }
  }
  const u64 lanes = permutation ? dpp_lanes(mod, *permutation, w.exec()) : w.exec();

  Body body = form.body;
  if (mod.clamp && !is_float(form.dst)) body = form.saturating;
  if (!body) throw Fault("clamp on this operation is not implemented");
  Result out{rows.lo.at, rows.hi.at, 0};
  body(in, out);
  if (form.dst == Lane::mask) {
    write_scalar(w, i.dst[0], out.mask & lanes);
    if (form.writes_exec) w.set_pair(kExec, out.mask & lanes);
    return;
  }
  if (scaled) scale_rows(mod.omod, form.dst, rows);
  if (form.dst == Lane::f16 && w.mode.fp16_ovfl()) limit_halves(i, form, in, rows);
  if (mod.clamp && is_float(form.dst)) clamp_rows(form.dst, w.mode.dx10_clamp(), rows);
  if (!is_wide(form.dst)) place_rows(w, i, form, num_printed, rows);
  write_row(w.v[i.dst[0].reg], rows.lo.at, lanes);
  if (is_wide(form.dst)) write_row(w.v[i.dst[0].reg + 1], rows.hi.at, lanes);
  if (form.has_bit) write_scalar(w, i.dst[1], out.mask & lanes);
}

}  // namespace sim

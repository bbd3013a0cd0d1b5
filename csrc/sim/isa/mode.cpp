// SPDX-License-Identifier: MIT
// VGPR indexing, rounding and flushed denormals. The host does rounding and denormals (MXCSR), which are set for each
// instruction by the types in its name, because f32 has fields of its own in MODE. The host's conversions to f16 obey
// its rounding but not its denormal mode: f16 operands and results are flushed here (half_flush.cpp).
#include "isa/mode.h"

#include <xmmintrin.h>

#include <algorithm>

#include "isa/dpp.h"
#include "isa/half_flush.h"
#include "isa/math.h"
#include "load/decode.h"
#include "load/loader.h"

namespace sim {
namespace {

constexpr u32 kMxcsr = 0x1f80, kFlushInputs = 1 << 6, kFlushOutputs = 1 << 15;     // DAZ and FTZ on the default
constexpr u32 kRounding = 3 << 13, kControl = kFlushInputs | kFlushOutputs | kRounding;

// ---- VGPR indexing: M0[7:0] is added to the registers that M0[15:12] names (src0, src1, src2, dst)

void shift_register(const Wave& w, Operand& o) {
  if (o.kind != Kind::vgpr) return;
  const Kernel& k = *w.group->launch->kernel;
  const bool accumulator = o.reg >= kFirstAgpr;
  const u32 first = o.reg + (w.s[kM0] & 0xff), end = accumulator ? kFirstAgpr + k.accum_rows() : k.arch_rows();
  if (first + o.dwords > end) throw Fault("VGPR indexing reaches past the kernel's registers");
  o.reg = static_cast<u16>(first);
}

Inst& next_copy() {
  constexpr size_t kCopies = 64;
  thread_local std::array<Inst, kCopies> copies;
  thread_local size_t next = 0;
  return copies[next++ % kCopies];
}

const Inst& indexed(const Wave& w, const Inst& i) {
  const u32 which = w.s[kM0] >> 12 & 15;
  if (!(w.mode.bits & Mode::kIndexing) || !i.op || !which || !is_vector_alu(i.op->spec.cls)) return i;
  // v_writelane has one vector operand, its destination; AITER's topksoftmax kernels index it.
  const bool ignores_exec = i.op->spec.flags & kIgnoresExec && i.op->name != "v_writelane_b32";
  const bool lane_access = ignores_exec || i.op->name == "v_readfirstlane_b32";
  if (lane_access || i.mod.sdwa || i.mod.dpp != DppCtrl::none) {
    throw Fault("VGPR indexing of this instruction (matrix, lane access, SDWA or DPP) is not modelled");
  }
  Inst& copy = next_copy();
  copy = i;
  for (int k = 0; k < 3; ++k) {
    if (which >> k & 1) shift_register(w, copy.src[k]);
  }
  if (which >> 3 & 1) shift_register(w, copy.dst[0]);
  collect_registers(copy);
  return copy;
}

// ---- denormals

bool names(const Inst& i, std::string_view part) { return i.op->name.find(part) != std::string_view::npos; }

bool contains(const Inst& i, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) { return names(i, part); });
}

// The first type in the name is the result's, the last the sources' (v_cvt_f64_f32).
std::string_view result_type(const Inst& i) {
  const std::string_view name = i.op->name;
  const size_t first = std::min({name.find("_f16"), name.find("_f32"), name.find("_f64")});
  return first == name.npos ? std::string_view() : name.substr(first + 1, 3);
}
std::string_view source_type(const Inst& i) { return i.op->name.substr(i.op->name.size() - 3); }

// MODE's two bits for a type (keep those of inputs, of outputs); other types have none.
u32 kept(const Wave& w, std::string_view type) {
  return type == "f32" ? w.mode.bits >> 4 & 3 : type == "f64" || type == "f16" ? w.mode.bits >> 6 & 3 : 3;
}

u32 denormals(const Wave& w, const Inst& i) {
  const u32 keep32 = w.mode.bits >> 4 & 3, keep64 = w.mode.bits >> 6 & 3;
  if ((keep32 & keep64) == 3) return 0;
  if (names(i, "v_div_")) return 0;                      // these look at exponents and keep denormals
  // Mixed f16 and f32 compute in f32: LLVM selects them for an f32 FMA in each mode of f32. An f16 is a normal f32.
  const bool mixed = names(i, "_mix");
  if (mixed && keep64 != 3) throw Fault("MODE: flushing f16 denormals in this instruction is not modelled");
  const u32 outputs = mixed ? keep32 : kept(w, result_type(i)), inputs = mixed ? keep32 : kept(w, source_type(i));
  return (inputs & 1 ? 0 : kFlushInputs) | (outputs & 2 ? 0 : kFlushOutputs);
}

// Integer results truncate or name their rounding; transcendental functions are approximations to an ulp or so in any
// mode. The field for f64 is that of f16 too, and of v_cvt_f32_f64 (LLVM's lowering of llvm.fptrunc.round).
u32 rounding(const Wave& w, const Inst& i) {
  if (!(w.mode.bits & 15) || i.op->spec.cls != Class::valu) return 0;
  const std::string_view type = i.op->name == "v_cvt_f32_f64" ? "f64" : result_type(i);
  const u32 mode = type.empty() ? 0 : type == "f32" ? w.mode.bits & 3 : w.mode.bits >> 2 & 3;
  if (contains(i, {"v_cvt_i", "v_cvt_u", "v_cvt_rpi", "v_cvt_flr", "v_div_scale", "v_div_fixup"})) return 0;
  if (mode && contains(i, {"v_div_fmas", "_dot2", "_mixlo", "_mixhi", "norm", "_pk_u8", "pkaccum", "fp8", "bf8"})) {
    throw Fault("MODE: what a rounding other than to nearest even does to this instruction is not known");
  }
  constexpr u32 kHost[] = {0, 2, 1, 3};                  // nearest, up, down, to zero
  return kHost[mode] << 13;
}

bool flushes_half(const Wave& w, const Inst& i) {
  return kept(w, "f16") != 3 && i.op && (i.op->spec.cls == Class::valu || i.op->spec.cls == Class::trans) &&
         names(i, "f16");
}

u32 float_mode(const Wave& w, const Inst& i) {
  if (!i.op || !(w.mode.bits & 0xf || (w.mode.bits & 0xf0) != 0xf0)) return kMxcsr;
  const Class cls = i.op->spec.cls;
  const bool vector = is_vector_alu(cls) && cls != Class::mfma;      // matrix operations ignore MODE
  if (!vector && i.op->spec.cls != Class::ds) return kMxcsr;
  return kMxcsr | denormals(w, i) | rounding(w, i);
}

// The host's minimum, maximum and median return an operand as it is, so this flushes the operand or the result.
void flush_selected(Wave& w, const Inst& i) {
  const bool selects = names(i, "v_min") || names(i, "v_max") || names(i, "v_med3");
  const bool wide = names(i, "f64");
  if (!selects || !(wide || names(i, "f32"))) return;
  const u64 lanes = i.mod.dpp == DppCtrl::none ? w.exec()
                                               : dpp_lanes(i.mod, dpp_row(i.mod.dpp, i.mod.dpp_arg), w.exec());
  u32* const low = w.v[i.dst[0].reg];
  u32* const high = w.v[i.dst[0].reg + wide];
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    const bool denormal = wide ? is_denormal(std::bit_cast<double>(u64{high[lane]} << 32 | low[lane]))
                               : is_denormal(std::bit_cast<float>(low[lane]));
    if (!denormal) continue;
    if (wide) low[lane] = 0;
    high[lane] &= 0x80000000u;
  }
}

}  // namespace

bool is_skipped(const Wave& w, const Inst& i) {
  return w.mode.bits & Mode::kSkip && i.op && is_vector(i.op->spec.cls);
}

const Inst& enter_mode(Wave& w, const Inst& i) {
  const Inst& chosen = indexed(w, i);
  const u32 wanted = float_mode(w, chosen);
  const Inst& run = flushes_half(w, chosen) ? flush_half_sources(w, chosen, next_copy()) : chosen;
  if (wanted != kMxcsr) _mm_setcsr(wanted);
  return run;
}

void leave_mode(Wave& w, const Inst& i) {
  const u32 now = _mm_getcsr();
  if (now & kControl) _mm_setcsr(kMxcsr);
  if (now & (kFlushInputs | kFlushOutputs) && i.op->spec.cls == Class::valu) flush_selected(w, i);
  if (flushes_half(w, i)) flush_half_result(w, i);
}

}  // namespace sim

// SPDX-License-Identifier: MIT
// VOP3P: two halves per register (pk_*_f16, _i16, _u16), two registers per operand (pk_*_f32, pk_mov_b32), mixed
// precision (fma_mix*) and dot products. The lambdas see elements; op_sel and the neg lists only choose which ones.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "isa/lanes.h"
#include "isa/math.h"

namespace sim {
namespace {

// ---- operations whose sources are rows of 32 bits. Row 3 is the destination's old value.

using Rows = std::array<const u32*, 4>;
using Body = void (*)(const Rows& in, u32* out);

enum class Halves : u8 {
  none,                // no source is made of halves
  two,                 // sources 0 and 1
  all,
};

struct Form {
  u8 num_src = 0;
  Halves halves = Halves::all;
  bool is_float = false;       // neg_lo and neg_hi flip signs
  bool f32_result = false;     // else two f16, where is_float
  Body body = nullptr;
  Body saturating = nullptr;   // with clamp, for integers
};

constexpr u32 low(u32 x) { return x & 0xffff; }
constexpr u32 high(u32 x) { return x >> 16; }

template <class T>
T clamp01(T x, bool nan_to_zero) {
  if (x != x) return nan_to_zero ? T(0) : x;
  return x < T(0) ? T(0) : x > T(1) ? T(1) : x;
}

void clamp_row(u32* row, const Form& form, bool nan_to_zero) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const u32 x = row[lane];
    if (form.f32_result) {
      row[lane] = std::bit_cast<u32>(clamp01(std::bit_cast<float>(x), nan_to_zero));
    } else {
      const auto half = [&](u32 bits) {
        return u32{std::bit_cast<u16>(clamp01(std::bit_cast<f16>(static_cast<u16>(bits)), nan_to_zero))};
      };
      row[lane] = half(low(x)) | half(high(x)) << 16;
    }
  }
}

bool bit_of(u8 list, int at) { return list >> at & 1; }

// Source `at` with its halves chosen and negated.
const u32* select_halves(const u32* row, const Modifiers& m, int at, bool is_float, Lanes<u32>& out) {
  const int lo_shift = bit_of(m.op_sel, at) ? 16 : 0;
  const int hi_shift = !m.has_op_sel_hi || bit_of(m.op_sel_hi, at) ? 16 : 0;
  if (!is_float && (bit_of(m.neg_lo, at) || bit_of(m.neg_hi, at))) throw Fault("an integer operand takes no neg");
  const u32 flip = (bit_of(m.neg_lo, at) ? 0x8000u : 0) | (bit_of(m.neg_hi, at) ? 0x80000000u : 0);
  for (int lane = 0; lane < kLanes; ++lane) {
    out[lane] = (low(row[lane] >> lo_shift) | low(row[lane] >> hi_shift) << 16) ^ flip;
  }
  return out.at;
}

void refuse_omod(const Modifiers& m) {
  if (m.omod || m.sdwa || m.dpp != DppCtrl::none) throw Fault("VOP3P takes no omod, SDWA or DPP");
}

// MODE.FP16_OVFL: the infinite halves whose sources are finite.
void limit_row(const Rows& in, int num_src, Lanes<u32>& result) {
  const auto is_infinite = [](u32 bits) { return (bits & 0x7fff) == 0x7c00; };
  for (int lane = 0; lane < kLanes; ++lane) {
    bool lo = false, hi = false;
    for (int at = 0; at < num_src; ++at) {
      lo |= is_infinite(in[at][lane]);
      hi |= is_infinite(in[at][lane] >> 16);
    }
    result[lane] = limit_half(low(result[lane]), lo) | limit_half(high(result[lane]), hi) << 16;
  }
}

void run_full(Wave& w, const Inst& i, const Form& form) {
  const Modifiers& m = i.mod;
  refuse_omod(m);
  Lanes<u32> spare[3], chosen[3], result;
  Rows in{nullptr, nullptr, nullptr, w.v[i.dst[0].reg]};
  for (int at = 0; at < form.num_src; ++at) {
    const Operand& o = i.src[at];
    if (o.neg || o.abs) throw Fault("this packed operation takes neg only as neg_lo and neg_hi");
    in[at] = source_row(w, o, spare[at]);
    const bool halves = form.halves == Halves::all || (form.halves == Halves::two && at < 2);
    if (halves) in[at] = select_halves(in[at], m, at, form.is_float, chosen[at]);
    else if (bit_of(m.neg_lo | m.neg_hi | m.op_sel, at)) throw Fault("this operand takes no op_sel or neg");
  }
  const bool saturate = m.clamp && !form.is_float;
  if (saturate && !form.saturating) throw Fault("this operation takes no clamp");
  (saturate ? form.saturating : form.body)(in, result.at);
  if (form.is_float && !form.f32_result && w.mode.fp16_ovfl()) limit_row(in, form.num_src, result);
  if (m.clamp && form.is_float) clamp_row(result.at, form, w.mode.dx10_clamp());
  write_row(w.v[i.dst[0].reg], result.at, w.exec());
}

template <const Form& kForm>
void run_plain(Wave& w, const Inst& i) {
  if constexpr (kForm.is_float && !kForm.f32_result) {
    if (w.mode.fp16_ovfl()) [[unlikely]] return run_full(w, i, kForm);
  }
  Lanes<u32> spare[3], result;
  u32* const row = w.v[i.dst[0].reg];
  Rows in{nullptr, nullptr, nullptr, row};
  for (int at = 0; at < kForm.num_src; ++at) in[at] = source_row(w, i.src[at], spare[at]);
  const u64 exec = w.exec();
  if (exec == kAllLanes) {
    kForm.body(in, row);
  } else {
    kForm.body(in, result.at);
    write_row(row, result.at, exec);
  }
}

template <const Form& kForm>
constexpr Spec rows_spec(Type halves, Type rest) {
  Spec spec;
  spec.cls = Class::valu;
  spec.num_dst = 1;
  spec.dst = {rest};
  for (int at = 0; at < kForm.num_src; ++at) {
    spec.src[at] = kForm.halves == Halves::all || (kForm.halves == Halves::two && at < 2) ? halves : rest;
  }
  spec.plain = run_plain<kForm>;
  spec.full = [](Wave& w, const Inst& i) { run_full(w, i, kForm); };
  return spec;
}

// ---- two halves per register

// Calls F on N elements of type E and stores what it returns as E. Lanes are independent, so `out` may be a source.
template <class F, class E, int N>
struct HalfLoop {
  static E half(u32 x) { return std::bit_cast<E>(static_cast<u16>(x)); }
  static u32 bits(auto x) { return std::bit_cast<u16>(static_cast<E>(x)); }
  static void run(const Rows& rows, u32* out) {
    const Rows in = rows;
#pragma clang loop vectorize(assume_safety)
    for (int lane = 0; lane < kLanes; ++lane) {
      const u32 a = in[0][lane], b = in[1][lane];
      if constexpr (N == 2) {
        out[lane] = bits(F{}(half(a), half(b))) | bits(F{}(half(a >> 16), half(b >> 16))) << 16;
      } else {
        const u32 c = in[2][lane];
        out[lane] = bits(F{}(half(a), half(b), half(c))) | bits(F{}(half(a >> 16), half(b >> 16), half(c >> 16))) << 16;
      }
    }
  }
};

// F on u32 copies wraps; on i64 copies it is exact, then brought into E's range.
template <class F>
struct Wrapped {
  u32 operator()(auto... x) const { return F{}(static_cast<u32>(x)...); }
};
template <class F, class E>
struct Saturated {
  E operator()(auto... x) const {
    return static_cast<E>(std::clamp<i64>(F{}(static_cast<i64>(x)...), std::numeric_limits<E>::min(),
                                          std::numeric_limits<E>::max()));
  }
};

template <class F, class E, int N, bool kArithmetic>
struct PackedForm {
  static constexpr Form make() {
    Form form;
    form.num_src = N;
    form.is_float = std::is_same_v<E, f16>;
    if constexpr (kArithmetic) {
      form.body = HalfLoop<Wrapped<F>, E, N>::run;
      form.saturating = HalfLoop<Saturated<F, E>, E, N>::run;
    } else {
      form.body = HalfLoop<F, E, N>::run;
    }
    return form;
  }
  static constexpr Form kForm = make();
};

template <class E, int N, bool kArithmetic = false, class F>
constexpr Spec packed(F) {
  constexpr Type type = std::is_same_v<E, f16> ? Type::pkf16 : Type::pk16;
  return rows_spec<PackedForm<F, E, N, kArithmetic>::kForm>(type, type);
}

// Integer arithmetic, which takes clamp.
template <class E, int N, class F>
constexpr Spec packed_arithmetic(F f) { return packed<E, N, true>(f); }

// ---- dot products

enum class Dot : u8 { f16x2, i16x2, u16x2, i8x4, u8x4, i4x8, u4x8 };

// Element e of a register, sign- or zero-extended.
template <Dot D>
i64 dot_element(u32 x, int e) {
  constexpr int kBits = D == Dot::i16x2 || D == Dot::u16x2 ? 16 : D == Dot::i8x4 || D == Dot::u8x4 ? 8 : 4;
  constexpr bool kSigned = D == Dot::i16x2 || D == Dot::i8x4 || D == Dot::i4x8;
  const u32 top = x << (32 - kBits * (e + 1));
  return kSigned ? i64{static_cast<i32>(top) >> (32 - kBits)} : i64{top >> (32 - kBits)};
}

template <Dot D, bool kSaturate>
void dot_integers(const Rows& in, u32* out) {
  constexpr int kCount = D == Dot::i16x2 || D == Dot::u16x2 ? 2 : D == Dot::i8x4 || D == Dot::u8x4 ? 4 : 8;
  constexpr bool kSigned = D == Dot::i16x2 || D == Dot::i8x4 || D == Dot::i4x8;
  for (int lane = 0; lane < kLanes; ++lane) {
    i64 sum = kSigned ? i64{static_cast<i32>(in[2][lane])} : i64{in[2][lane]};
    for (int e = 0; e < kCount; ++e) sum += dot_element<D>(in[0][lane], e) * dot_element<D>(in[1][lane], e);
    if constexpr (kSaturate && kSigned) sum = std::clamp<i64>(sum, INT32_MIN, INT32_MAX);
    if constexpr (kSaturate && !kSigned) sum = std::min<i64>(sum, UINT32_MAX);
    out[lane] = static_cast<u32>(sum);
  }
}

// Products of two f16 are exact in f32; the sum starts at the third source.
void dot_floats(const Rows& in, u32* out) {
  const auto half = [](u32 x) { return static_cast<float>(std::bit_cast<f16>(static_cast<u16>(x))); };
  for (int lane = 0; lane < kLanes; ++lane) {
    const u32 a = in[0][lane], b = in[1][lane];
    float sum = std::bit_cast<float>(in[2][lane]);
    sum += half(a) * half(b);
    sum += half(a >> 16) * half(b >> 16);
    out[lane] = std::bit_cast<u32>(sum);
  }
}

template <Dot D>
struct DotForm {
  static constexpr Form make() {
    Form form;
    form.num_src = 3;
    form.halves = D == Dot::f16x2 || D == Dot::i16x2 || D == Dot::u16x2 ? Halves::two : Halves::none;
    form.is_float = form.f32_result = D == Dot::f16x2;
    if constexpr (D == Dot::f16x2) {
      form.body = dot_floats;
    } else {
      form.body = dot_integers<D, false>;
      form.saturating = dot_integers<D, true>;
    }
    return form;
  }
  static constexpr Form kForm = make();
};

template <Dot D>
constexpr Spec dot() {
  if constexpr (D == Dot::f16x2) return rows_spec<DotForm<D>::kForm>(Type::pkf16, Type::f32);
  else return rows_spec<DotForm<D>::kForm>(Type::pk16, Type::b32);
}

// ---- two f32 per operand

struct Pair {
  const u32* lo;
  const u32* hi;
};

// An inline constant fills the low register only; compilers select it for both (op_sel_hi 0).
Pair pair_source(const Wave& w, const Operand& o, bool lo_is_high, bool hi_is_high, Lanes<u32>& lo, Lanes<u32>& hi) {
  if (o.neg || o.abs) throw Fault("this packed operation takes neg only as neg_lo and neg_hi");
  if (o.kind == Kind::vgpr) return {w.v[o.reg + lo_is_high], w.v[o.reg + hi_is_high]};
  const u64 x = scalar_source(w, o);
  if (o.kind == Kind::literal && (lo_is_high || hi_is_high) && x != 0) {
    throw Fault("a constant has no high half: its op_sel and op_sel_hi must be 0");
  }
  for (int lane = 0; lane < kLanes; ++lane) lo[lane] = static_cast<u32>(lo_is_high ? x >> 32 : x);
  for (int lane = 0; lane < kLanes; ++lane) hi[lane] = static_cast<u32>(hi_is_high ? x >> 32 : x);
  return {lo.at, hi.at};
}

template <class F, int N>
struct PairLoop {
  static float number(u32 x) { return std::bit_cast<float>(x); }

  static void run(const std::array<Pair, N>& in, u32* lo, u32* hi) {
    const std::array<Pair, N> p = in;
#pragma clang loop vectorize(assume_safety)
    for (int lane = 0; lane < kLanes; ++lane) {
      float x, y;
      if constexpr (N == 2) {
        x = F{}(number(p[0].lo[lane]), number(p[1].lo[lane]));
        y = F{}(number(p[0].hi[lane]), number(p[1].hi[lane]));
      } else {
        x = F{}(number(p[0].lo[lane]), number(p[1].lo[lane]), number(p[2].lo[lane]));
        y = F{}(number(p[0].hi[lane]), number(p[1].hi[lane]), number(p[2].hi[lane]));
      }
      lo[lane] = std::bit_cast<u32>(x);
      hi[lane] = std::bit_cast<u32>(y);
    }
  }

  // With EXEC full and equal or disjoint register pairs a lane's result may replace its source at once.
  static void plain(Wave& w, const Inst& i) {
    Lanes<u32> spare[N][2];
    std::array<Pair, N> in;
    for (int at = 0; at < N; ++at) in[at] = pair_source(w, i.src[at], false, true, spare[at][0], spare[at][1]);
    const u16 reg = i.dst[0].reg;
    const u64 exec = w.exec();
    if (exec == kAllLanes) {
      run(in, w.v[reg], w.v[reg + 1]);
    } else {
      Lanes<u32> lo, hi;
      run(in, lo.at, hi.at);
      write_row(w.v[reg], lo.at, exec);
      write_row(w.v[reg + 1], hi.at, exec);
    }
  }

  static void full(Wave& w, const Inst& i) {
    const Modifiers& m = i.mod;
    refuse_omod(m);
    Lanes<u32> spare[N][2], negated[N][2], lo, hi;
    std::array<Pair, N> in;
    for (int at = 0; at < N; ++at) {
      const bool hi_is_high = !m.has_op_sel_hi || bit_of(m.op_sel_hi, at);
      in[at] = pair_source(w, i.src[at], bit_of(m.op_sel, at), hi_is_high, spare[at][0], spare[at][1]);
      if (bit_of(m.neg_lo, at)) in[at].lo = negate(in[at].lo, negated[at][0]);
      if (bit_of(m.neg_hi, at)) in[at].hi = negate(in[at].hi, negated[at][1]);
    }
    run(in, lo.at, hi.at);
    if (m.clamp) {
      const Form f32{.f32_result = true};
      clamp_row(lo.at, f32, w.mode.dx10_clamp());
      clamp_row(hi.at, f32, w.mode.dx10_clamp());
    }
    write_row(w.v[i.dst[0].reg], lo.at, w.exec());
    write_row(w.v[i.dst[0].reg + 1], hi.at, w.exec());
  }

  static const u32* negate(const u32* row, Lanes<u32>& out) {
    for (int lane = 0; lane < kLanes; ++lane) out[lane] = row[lane] ^ 0x80000000u;
    return out.at;
  }
};

constexpr Spec pair_spec(int num_src, Handler plain, Handler full) {
  Spec spec;
  spec.cls = Class::valu;
  spec.num_dst = 1;
  spec.dst = {Type::pkf32};
  for (int at = 0; at < num_src; ++at) spec.src[at] = Type::pkf32;
  spec.plain = plain;
  spec.full = full;
  return spec;
}

template <int N, class F>
constexpr Spec pairs(F) { return pair_spec(N, PairLoop<F, N>::plain, PairLoop<F, N>::full); }

// Low result: source 0's register op_sel[0]; high result: source 1's register op_sel[1]. op_sel_hi has no meaning.
void pk_mov(Wave& w, const Inst& i) {
  refuse_omod(i.mod);
  if (i.mod.clamp || i.mod.neg_lo || i.mod.neg_hi) throw Fault("v_pk_mov_b32 takes no clamp or neg");
  Lanes<u32> spare[4];
  const bool first = bit_of(i.mod.op_sel, 0), second = bit_of(i.mod.op_sel, 1);
  Lanes<u32> lo, hi;
  std::memcpy(lo.at, pair_source(w, i.src[0], first, first, spare[0], spare[1]).lo, sizeof lo.at);
  std::memcpy(hi.at, pair_source(w, i.src[1], second, second, spare[2], spare[3]).lo, sizeof hi.at);
  write_row(w.v[i.dst[0].reg], lo.at, w.exec());
  write_row(w.v[i.dst[0].reg + 1], hi.at, w.exec());
}

// ---- mixed precision: each source is an f32, or with op_sel_hi the half of a register that op_sel names

enum class Mix : u8 { f32, lo, hi };

// An inline constant as an f16 source has its f16 value in the low half (LLVM's pull request 183487 says so of the
// hardware); decoded as an f32 source, it is a small integer or a float.
u32 half_constant(u32 value) {
  const bool is_integer = value <= 64 || value >= 0xfffffff0;
  return is_integer ? value & 0xffff : std::bit_cast<u16>(static_cast<f16>(std::bit_cast<float>(value)));
}

void mix_source(const Wave& w, const Inst& i, int at, Lanes<float>& out) {
  const Operand& o = i.src[at];
  Lanes<u32> spare;
  const u32* row = source_row(w, o, spare);
  if (bit_of(i.mod.op_sel_hi, at)) {
    const bool is_constant = o.kind == Kind::literal;
    const int shift = bit_of(i.mod.op_sel, at) ? 16 : 0;
    if (is_constant && shift && o.value != 0) throw Fault("the high half of a constant as a source of fma_mix");
    for (int lane = 0; lane < kLanes; ++lane) {
      const u32 bits = is_constant ? half_constant(row[lane]) : row[lane] >> shift;
      out[lane] = static_cast<float>(std::bit_cast<f16>(static_cast<u16>(bits)));
    }
  } else {
    std::memcpy(out.at, row, sizeof out.at);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (o.abs) out[lane] = std::fabs(out[lane]);
    if (o.neg) out[lane] = -out[lane];
  }
}

template <Mix M>
void fma_mix(Wave& w, const Inst& i) {
  refuse_omod(i.mod);
  Lanes<float> a, b, c;
  mix_source(w, i, 0, a);
  mix_source(w, i, 1, b);
  mix_source(w, i, 2, c);
  Lanes<u32> out;
  const u32* old = w.v[i.dst[0].reg];
  for (int lane = 0; lane < kLanes; ++lane) {
    float x = std::fma(a[lane], b[lane], c[lane]);
    if (i.mod.clamp) x = clamp01(x, w.mode.dx10_clamp());
    const bool is_true = std::isinf(a[lane]) || std::isinf(b[lane]) || std::isinf(c[lane]);
    u32 half = std::bit_cast<u16>(static_cast<f16>(x));
    if (w.mode.fp16_ovfl()) half = limit_half(half, is_true);
    if constexpr (M == Mix::f32) out[lane] = std::bit_cast<u32>(x);
    else if constexpr (M == Mix::lo) out[lane] = (old[lane] & 0xffff0000u) | half;
    else out[lane] = low(old[lane]) | half << 16;
  }
  write_row(w.v[i.dst[0].reg], out.at, w.exec());
}

template <Mix M>
constexpr Spec mix() {
  Spec spec;
  spec.cls = Class::valu;
  spec.num_dst = 1;
  spec.dst = {Type::f32};
  spec.src = {Type::f32, Type::f32, Type::f32};
  if constexpr (M != Mix::f32) spec.flags = kReadsDst;
  spec.plain = spec.full = fma_mix<M>;
  return spec;
}

// ---- rows

const Op kOps[] = {
    {"v_pk_add_f16", packed<f16, 2>([](f16 a, f16 b) { return a + b; })},
    {"v_pk_mul_f16", packed<f16, 2>([](f16 a, f16 b) { return a * b; })},
    {"v_pk_fma_f16", packed<f16, 3>([](f16 a, f16 b, f16 c) {
       return round_to_half(double{a} * double{b} + double{c});    // exact product; see round_to_half
     })},
    {"v_pk_min_f16", packed<f16, 2>([](f16 a, f16 b) { return minimum(a, b); })},
    {"v_pk_max_f16", packed<f16, 2>([](f16 a, f16 b) { return maximum(a, b); })},
    {"v_pk_add_u16", packed_arithmetic<u16, 2>([](auto a, auto b) { return a + b; })},
    {"v_pk_add_i16", packed_arithmetic<i16, 2>([](auto a, auto b) { return a + b; })},
    {"v_pk_sub_u16", packed_arithmetic<u16, 2>([](auto a, auto b) { return a - b; })},
    {"v_pk_sub_i16", packed_arithmetic<i16, 2>([](auto a, auto b) { return a - b; })},
    {"v_pk_mad_u16", packed_arithmetic<u16, 3>([](auto a, auto b, auto c) { return a * b + c; })},
    {"v_pk_mad_i16", packed_arithmetic<i16, 3>([](auto a, auto b, auto c) { return a * b + c; })},
    {"v_pk_mul_lo_u16", packed<u16, 2>([](u16 a, u16 b) { return u32{a} * b; })},
    {"v_pk_lshlrev_b16", packed<u16, 2>([](u16 a, u16 b) { return b << (a & 15); })},
    {"v_pk_lshrrev_b16", packed<u16, 2>([](u16 a, u16 b) { return b >> (a & 15); })},
    {"v_pk_ashrrev_i16", packed<i16, 2>([](i16 a, i16 b) { return b >> (a & 15); })},
    {"v_pk_min_u16", packed<u16, 2>([](u16 a, u16 b) { return std::min(a, b); })},
    {"v_pk_max_u16", packed<u16, 2>([](u16 a, u16 b) { return std::max(a, b); })},
    {"v_pk_min_i16", packed<i16, 2>([](i16 a, i16 b) { return std::min(a, b); })},
    {"v_pk_max_i16", packed<i16, 2>([](i16 a, i16 b) { return std::max(a, b); })},
    {"v_pk_add_f32", pairs<2>([](float a, float b) { return a + b; })},
    {"v_pk_mul_f32", pairs<2>([](float a, float b) { return a * b; })},
    {"v_pk_fma_f32", pairs<3>([](float a, float b, float c) { return std::fma(a, b, c); })},
    {"v_pk_mov_b32", pair_spec(2, pk_mov, pk_mov)},
    {"v_fma_mix_f32", mix<Mix::f32>()},
    {"v_fma_mixlo_f16", mix<Mix::lo>()},
    {"v_fma_mixhi_f16", mix<Mix::hi>()},
    {"v_dot2_f32_f16", dot<Dot::f16x2>()},
    {"v_dot2_i32_i16", dot<Dot::i16x2>()},
    {"v_dot2_u32_u16", dot<Dot::u16x2>()},
    {"v_dot4_i32_i8", dot<Dot::i8x4>()},
    {"v_dot4_u32_u8", dot<Dot::u8x4>()},
    {"v_dot8_i32_i4", dot<Dot::i4x8>()},
    {"v_dot8_u32_u4", dot<Dot::u4x8>()},
};

}  // namespace

std::span<const Op> vop3p_ops() { return kOps; }

}  // namespace sim

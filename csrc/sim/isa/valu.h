// SPDX-License-Identifier: MIT
// From a lambda about one lane to the two handlers of a vector instruction. The lambda's parameter types say what the
// sources hold, its result type what is written:
//   {"v_add_f32", valu([](float a, float b) { return a + b; })}
// u16/i16/f16 use the low half of a register, 8-byte types a pair, bool is a lane's bit of an SGPR pair.
#pragma once
#include <algorithm>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "isa/lanes.h"

// Loops that call libm stay scalar, which needs no warning.
#pragma clang diagnostic ignored "-Wpass-failed"

namespace sim {

// A result and one bit per lane for the SGPR pair that is the second destination: carry out, v_div_scale's flag.
template <class T>
struct WithBit {
  T value;
  bool bit;
};

// One operand as the lane loops see it: rows of 32 bits (`hi` for 8-byte types) or the bits of a mask.
struct Source {
  const u32* lo = nullptr;
  const u32* hi = nullptr;
  u64 mask = 0;
};
struct Result {
  u32* lo = nullptr;
  u32* hi = nullptr;
  u64 mask = 0;
};
using Body = void (*)(const Source* in, Result& out);

enum class Lane : u8 { none, mask, b16, b32, b64, f16, f32, f64 };

// The meaning of the lambda's last parameter, when it is no printed operand.
enum class Last : u8 { operand, old_dst, vcc };

// All that the handler for modifiers (valu.cpp) needs to know; one constant per row.
struct Form {
  u8 num_src = 0;                      // parameters of the lambda
  Last last = Last::operand;
  bool keep_high = false;              // 16-bit result, the other half of the destination stays
  bool writes_exec = false;            // v_cmpx
  bool has_bit = false;                // second destination: SGPR pair
  std::array<Lane, 4> src{};
  Lane dst = Lane::none;
  Body body = nullptr;
  Body saturating = nullptr;           // with clamp, for integers
};

void run_full(Wave& w, const Inst& i, const Form& form);

template <class T>
constexpr Lane lane_type() {
  if constexpr (std::is_same_v<T, bool>) return Lane::mask;
  else if constexpr (std::is_same_v<T, f16>) return Lane::f16;
  else if constexpr (std::is_same_v<T, float>) return Lane::f32;
  else if constexpr (std::is_same_v<T, double>) return Lane::f64;
  else return sizeof(T) == 8 ? Lane::b64 : sizeof(T) == 4 ? Lane::b32 : Lane::b16;
}

constexpr Type operand_type(Lane lane) {
  switch (lane) {
    case Lane::b16: return Type::b16;
    case Lane::b32: return Type::b32;
    case Lane::f16: return Type::f16;
    case Lane::f32: return Type::f32;
    case Lane::f64: return Type::f64;
    case Lane::mask: case Lane::b64: return Type::b64;
    default: return Type::none;
  }
}

template <class T>
struct Written {
  using type = T;
  static constexpr bool has_bit = false;
};
template <class T>
struct Written<WithBit<T>> {
  using type = T;
  static constexpr bool has_bit = true;
};

// Lanes of 0 or ~0 → bits.
[[gnu::noinline]] inline u64 pack_bits(const Lanes<u32>& lanes) {
  u64 mask = 0;
#if defined(__AVX__)
  for (int at = 0; at < kLanes; at += 8) {
    mask |= u64(_mm256_movemask_ps(_mm256_load_ps(reinterpret_cast<const float*>(lanes.at + at)))) << at;
  }
#else
  for (int lane = 0; lane < kLanes; ++lane) mask |= u64{lanes[lane] & 1} << lane;
#endif
  return mask;
}

template <class T>
inline T lane_of(const Source& source, int lane) {
  if constexpr (std::is_same_v<T, bool>) return source.mask >> lane & 1;
  else if constexpr (sizeof(T) == 8) return std::bit_cast<T>(u64{source.hi[lane]} << 32 | source.lo[lane]);
  else if constexpr (sizeof(T) == 4) return std::bit_cast<T>(source.lo[lane]);
  else return std::bit_cast<T>(static_cast<u16>(source.lo[lane]));
}

// The loop over 64 lanes: F on parameters of types A, result R. Destination rows may be source rows: a lane is read
// before it is written and no other lane is touched, which is what assume_safety states.
template <class F, class R, class... A>
struct LaneLoop {
  static void run(const Source* in, Result& out) { run(in, out, std::index_sequence_for<A...>{}); }
  [[gnu::noinline]] static void body(const Source* in, Result& out) { run(in, out); }

  template <size_t... I>
  static void run(const Source* in, Result& out, std::index_sequence<I...>) {
    using T = typename Written<R>::type;
    const Source source[sizeof...(A)] = {in[I]...};
    u32* const lo = out.lo;
    [[maybe_unused]] u32* const hi = out.hi;
    [[maybe_unused]] Lanes<u32> bits;
#pragma clang loop vectorize(assume_safety)
    for (int lane = 0; lane < kLanes; ++lane) {
      const R result = F{}(lane_of<A>(source[I], lane)...);
      if constexpr (std::is_same_v<R, bool>) {
        bits[lane] = result ? ~0u : 0u;
      } else {
        T value;
        if constexpr (Written<R>::has_bit) { value = result.value; bits[lane] = result.bit ? ~0u : 0u; }
        else value = result;
        if constexpr (sizeof(T) == 8) {
          const u64 both = std::bit_cast<u64>(value);
          lo[lane] = static_cast<u32>(both);
          hi[lane] = static_cast<u32>(both >> 32);
        } else if constexpr (sizeof(T) == 4) {
          lo[lane] = std::bit_cast<u32>(value);
        } else {
          lo[lane] = std::bit_cast<u16>(value);
        }
      }
    }
    if constexpr (std::is_same_v<R, bool> || Written<R>::has_bit) out.mask = pack_bits(bits);
  }
};

// A scalar's copies. Out of line: inlined it would be most of the code of every handler.
template <bool kTwoRows>
[[gnu::noinline]] Source scalar_rows(const Wave& w, const Operand& o, Lanes<u32>& lo, Lanes<u32>& hi) {
  const u64 x = scalar_source(w, o);
  for (int lane = 0; lane < kLanes; ++lane) lo[lane] = static_cast<u32>(x);
  if constexpr (kTwoRows) {
    for (int lane = 0; lane < kLanes; ++lane) hi[lane] = static_cast<u32>(x >> 32);
  }
  return {lo.at, hi.at, 0};
}

[[gnu::noinline]] inline u64 mask_source(const Wave& w, const Operand& o) { return scalar_source(w, o); }

// A source without modifiers; `lo` and `hi` hold a scalar's copies.
template <class T>
inline Source plain_source(const Wave& w, const Operand& o, Lanes<u32>& lo, Lanes<u32>& hi) {
  if constexpr (std::is_same_v<T, bool>) return {nullptr, nullptr, mask_source(w, o)};
  if (o.kind == Kind::vgpr) return {w.v[o.reg], sizeof(T) == 8 ? w.v[o.reg + 1] : nullptr, 0};
  return scalar_rows<sizeof(T) == 8>(w, o, lo, hi);
}

// The handlers of one operation. F is the lambda, S its saturating form or void.
template <class F, class S, Last kLast, bool kKeepHigh, bool kWritesExecToo, class R, class... A>
struct Valu {
  static constexpr size_t kParams = sizeof...(A);
  using T = typename Written<R>::type;

  // Whether `plain` has the loop inlined, or calls the one that `full` calls: what is less frequent, or takes long
  // anyway, is not worth the time that a second copy takes to compile.
  static constexpr bool kIsLong = sizeof(T) == 8 || ((sizeof(A) == 8) || ...);
  static constexpr bool kIsRareCompare = std::is_same_v<R, bool> && (kWritesExecToo || ((sizeof(A) == 2) || ...));
  static constexpr bool kHasOwnLoop = !kIsLong && !kIsRareCompare;

  static constexpr Form make_form() {
    Form form;
    form.num_src = kParams;
    form.last = kLast;
    form.keep_high = kKeepHigh;
    form.writes_exec = kWritesExecToo;
    form.has_bit = Written<R>::has_bit;
    size_t at = 0;
    ((form.src[at++] = lane_type<A>()), ...);
    form.dst = lane_type<T>();
    form.body = &LaneLoop<F, R, A...>::body;
    if constexpr (!std::is_void_v<S>) form.saturating = &LaneLoop<S, R, A...>::body;
    return form;
  }
  static constexpr Form kForm = make_form();

  template <size_t I>
  static Source fetch(const Wave& w, const Inst& i, Lanes<u32>& lo, Lanes<u32>& hi) {
    using P = std::tuple_element_t<I, std::tuple<A...>>;
    if constexpr (I + 1 == kParams && kLast == Last::vcc) return {nullptr, nullptr, w.vcc()};
    else if constexpr (I + 1 == kParams && kLast == Last::old_dst) return plain_source<P>(w, i.dst[0], lo, hi);
    else return plain_source<P>(w, i.src[I], lo, hi);
  }

  template <size_t... I>
  static void compute(const Wave& w, const Inst& i, Result& out, std::index_sequence<I...>) {
    Lanes<u32> lo[kParams], hi[kParams];
    const Source in[kParams] = {fetch<I>(w, i, lo[I], hi[I])...};
    if constexpr (kHasOwnLoop) LaneLoop<F, R, A...>::run(in, out);
    else kForm.body(in, out);
  }

  static void plain(Wave& w, const Inst& i) {
    const u64 exec = w.exec();
    constexpr auto kEach = std::make_index_sequence<kParams>{};
    if constexpr (std::is_same_v<R, bool>) {
      Result out;
      compute(w, i, out, kEach);
      write_scalar(w, i.dst[0], out.mask & exec);
      if constexpr (kWritesExecToo) w.set_pair(kExec, out.mask & exec);
    } else {
      if constexpr (std::is_same_v<T, f16>) {
        if (w.mode.fp16_ovfl()) [[unlikely]] return full(w, i);
      }
      // One loop for all lanes and for some: the code of a second one costs more to compile than a branch to run.
      u32* const row = w.v[i.dst[0].reg];
      const bool is_direct = exec == kAllLanes && !kKeepHigh;
      Lanes<u32> lo, hi;
      Result out{is_direct ? row : lo.at, is_direct && sizeof(T) == 8 ? w.v[i.dst[0].reg + 1] : hi.at, 0};
      compute(w, i, out, kEach);
      if (!is_direct) {
        if constexpr (kKeepHigh) {
          for (int lane = 0; lane < kLanes; ++lane) lo[lane] |= row[lane] & 0xffff0000u;
        }
        merge_row(row, lo.at, exec);
        if constexpr (sizeof(T) == 8) merge_row(w.v[i.dst[0].reg + 1], hi.at, exec);
      }
      if constexpr (Written<R>::has_bit) write_scalar(w, i.dst[1], out.mask & exec);
    }
  }

  static void full(Wave& w, const Inst& i) { run_full(w, i, kForm); }

  static constexpr Spec spec(Class cls) {
    Spec s;
    s.cls = cls;
    s.num_dst = Written<R>::has_bit ? 2 : 1;
    s.dst = {operand_type(kForm.dst), Written<R>::has_bit ? Type::b64 : Type::none};
    const size_t printed = kParams - (kLast == Last::operand ? 0 : 1);
    for (size_t at = 0; at < printed; ++at) s.src[at] = operand_type(kForm.src[at]);
    if (kLast == Last::old_dst || kKeepHigh) s.flags |= kReadsDst;
    if (kLast == Last::vcc) s.flags |= kReadsVcc;
    if (kWritesExecToo) s.flags |= kWritesExec;
    s.plain = plain;
    s.full = full;
    return s;
  }
};

// Result and parameter types of a lambda.
template <class F>
struct Signature : Signature<decltype(&F::operator())> {};
template <class C, class R, class... A>
struct Signature<R (C::*)(A...) const> {
  template <class F, Last kLast, bool kKeepHigh>
  using Handlers = Valu<F, void, kLast, kKeepHigh, false, R, A...>;
};

template <class F, Last kLast = Last::operand, bool kKeepHigh = false>
constexpr Spec make_valu(Class cls) {
  return Signature<F>::template Handlers<F, kLast, kKeepHigh>::spec(cls);
}

template <class F>
constexpr Spec valu(F) { return make_valu<F>(Class::valu); }

// Quarter-rate operations.
template <class F>
constexpr Spec trans(F) { return make_valu<F>(Class::trans); }

// The lambda's last parameter is the destination's old value.
template <class F>
constexpr Spec accumulate(F) { return make_valu<F, Last::old_dst>(Class::valu); }

// The lambda's last parameter is the lane's bit of VCC, which the text does not name.
template <class F>
constexpr Spec with_vcc(F) { return make_valu<F, Last::vcc>(Class::valu); }

// A 16-bit result that keeps the destination's other half.
template <class F>
constexpr Spec keep_high(F) { return make_valu<F, Last::operand, true>(Class::valu); }

// An operation on halves whose row does not say so: it stops where MODE.FP16_OVFL would limit its result.
template <Spec kSpec>
constexpr Spec refuse_fp16_ovfl() {
  Spec s = kSpec;
  s.plain = [](Wave& w, const Inst& i) {
    if (w.mode.fp16_ovfl()) throw Fault("MODE.FP16_OVFL is set: limiting this operation's halves is not implemented");
    kSpec.plain(w, i);
  };
  s.full = [](Wave& w, const Inst& i) {
    if (w.mode.fp16_ovfl()) throw Fault("MODE.FP16_OVFL is set: limiting this operation's halves is not implemented");
    kSpec.full(w, i);
  };
  return s;
}

// The exact integer, cut to R; with clamp, brought into R's range.
template <class F, class R>
struct Wrapped {
  R operator()(auto... x) const { return static_cast<R>(F{}(static_cast<i64>(x)...)); }
};
template <class F, class R>
struct Saturated {
  R operator()(auto... x) const {
    constexpr i64 kLow = std::numeric_limits<R>::min(), kHigh = std::numeric_limits<R>::max();
    return static_cast<R>(std::clamp(F{}(static_cast<i64>(x)...), kLow, kHigh));
  }
};

// Integer operation that takes clamp. F computes the exact result from i64 copies of parameters of types A.
template <class R, class... A, class F>
constexpr Spec saturating(F) {
  return Valu<Wrapped<F, R>, Saturated<F, R>, Last::operand, false, false, R, A...>::spec(Class::valu);
}
template <class R, class... A, class F>
constexpr Spec saturating_keep_high(F) {
  return Valu<Wrapped<F, R>, Saturated<F, R>, Last::operand, true, false, R, A...>::spec(Class::valu);
}

}  // namespace sim

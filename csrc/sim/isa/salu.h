// SPDX-License-Identifier: MIT
// From a lambda to the handler of a scalar instruction; its parameter and result types say what is read and written.
#pragma once
#include <tuple>
#include <type_traits>
#include <utility>

#include "isa/lanes.h"

namespace sim {

// A result that also sets SCC.
template <class T>
struct Scc {
  T value;
  bool scc;
};

// The usual rule of logic, shifts and counts: SCC = result is not 0.
template <class T>
constexpr Scc<T> nonzero(T x) { return {x, x != 0}; }

constexpr Spec scalar_spec(Handler handler, std::array<Type, 2> dst, std::array<Type, 5> src, u32 flags) {
  Spec s;
  s.cls = Class::salu;
  s.num_dst = dst[0] == Type::none ? 0 : dst[1] == Type::none ? 1 : 2;
  s.dst = dst;
  s.src = src;
  s.flags = flags;
  s.plain = handler;
  return s;
}

template <class T>
constexpr Type scalar_type() { return sizeof(T) == 8 ? Type::b64 : sizeof(T) == 4 ? Type::b32 : Type::b16; }

// kOld: the first parameter is the destination's old value, not a printed operand.
template <class F, bool kOld, class R, class... A>
struct Salu {
  using Params = std::tuple<A...>;
  static constexpr size_t kParams = sizeof...(A);
  template <size_t I>
  using Param = std::tuple_element_t<I, Params>;
  static constexpr bool kReadsFlag = std::is_same_v<Param<kParams - 1>, bool>;
  static constexpr bool kCompares = std::is_same_v<R, bool>;
  static constexpr bool kSetsFlag = kCompares || requires(R r) { r.scc; };
  static constexpr size_t kFirst = kOld ? 1 : 0, kEnd = kParams - (kReadsFlag ? 1 : 0);

  template <size_t I>
  static Param<I> argument(const Wave& w, const Inst& i) {
    if constexpr (I >= kEnd) return w.scc;
    else return static_cast<Param<I>>(scalar_source(w, I < kFirst ? i.dst[0] : i.src[I - kFirst]));
  }

  template <size_t... I>
  static void run(Wave& w, const Inst& i, std::index_sequence<I...>) {
    const R r = F{}(argument<I>(w, i)...);
    if constexpr (kCompares) {
      w.scc = r;
    } else if constexpr (kSetsFlag) {
      write_scalar(w, i.dst[0], static_cast<u64>(r.value));
      w.scc = r.scc;
    } else {
      write_scalar(w, i.dst[0], static_cast<u64>(r));
    }
  }
  static void handler(Wave& w, const Inst& i) { run(w, i, std::make_index_sequence<kParams>{}); }

  template <size_t... I>
  static constexpr Spec spec(std::index_sequence<I...>) {
    Type dst = Type::none;
    if constexpr (kSetsFlag && !kCompares) dst = scalar_type<decltype(R::value)>();
    else if constexpr (!kCompares) dst = scalar_type<R>();
    const u32 flags = (kSetsFlag ? kWritesScc : 0) | (kReadsFlag ? kReadsScc : 0) | (kOld ? kReadsDst : 0);
    return scalar_spec(handler, {dst}, {scalar_type<Param<I + kFirst>>()...}, flags);
  }
  static constexpr Spec spec() { return spec(std::make_index_sequence<kEnd - kFirst>{}); }
};

template <class F>
struct ScalarSignature : ScalarSignature<decltype(&F::operator())> {};
template <class C, class R, class... A>
struct ScalarSignature<R (C::*)(A...) const> {
  template <class F, bool kOld>
  using Handlers = Salu<F, kOld, R, A...>;
};

template <class F>
constexpr Spec salu(F) { return ScalarSignature<F>::template Handlers<F, false>::spec(); }

// The lambda's first parameter is the destination's old value.
template <class F>
constexpr Spec update(F) { return ScalarSignature<F>::template Handlers<F, true>::spec(); }

}  // namespace sim

// SPDX-License-Identifier: MIT
// What HIP's headers know of types: libraries take it where there is no standard library, in programs of hipRTC.
#pragma once

namespace __hip_internal {

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long long;
using uint64_t = unsigned long long;

template <class T, T kValue>
struct integral_constant {
  using value_type = T;
  using type = integral_constant;
  static constexpr T value = kValue;
  constexpr operator T() const { return kValue; }
  constexpr T operator()() const { return kValue; }
};
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;

template <bool kHolds, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool kFirst, class First, class Second>
struct conditional {
  using type = First;
};
template <class First, class Second>
struct conditional<false, First, Second> {
  using type = Second;
};

#define AITER_LIKE_TRAIT(name, builtin) \
  template <class T>                    \
  struct name : integral_constant<bool, builtin> {};
AITER_LIKE_TRAIT(is_integral, __is_integral(T))
AITER_LIKE_TRAIT(is_floating_point, __is_floating_point(T))
AITER_LIKE_TRAIT(is_arithmetic, __is_arithmetic(T))
AITER_LIKE_TRAIT(is_signed, __is_signed(T))
AITER_LIKE_TRAIT(is_standard_layout, __is_standard_layout(T))
AITER_LIKE_TRAIT(is_trivial, __is_trivially_copyable(T) && __is_trivially_constructible(T))
#undef AITER_LIKE_TRAIT
template <class First, class Second>
struct is_same : integral_constant<bool, __is_same(First, Second)> {};

}  // namespace __hip_internal

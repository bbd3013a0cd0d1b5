// SPDX-License-Identifier: MIT
// Vector types: char1 to double4, their operators by element, and make_…. Sizes and alignments are those of HIP: two
// and four elements are aligned to their size, three to one element.
#pragma once
#include "hip/detail/language.h"

#if defined(__cplusplus)
template <class T, unsigned kCount>
struct HIP_vector_type;

namespace hip_detail {

// There where every `Given` can be converted to T, also where that narrows: braces take what a cast would.
template <class T, class... Given>
using convertible = decltype((static_cast<T>(*static_cast<const Given*>(nullptr)), ...));

}  // namespace hip_detail

template <class T>
struct alignas(sizeof(T)) HIP_vector_type<T, 1> {
  using value_type = T;
  T x;
  HIP_vector_type() = default;
  explicit constexpr AITER_LIKE_BOTH HIP_vector_type(T x) : x(x) {}
  template <class Given, class = hip_detail::convertible<T, Given>>
  explicit constexpr AITER_LIKE_BOTH HIP_vector_type(Given x) : x(static_cast<T>(x)) {}
};

template <class T>
struct alignas(2 * sizeof(T)) HIP_vector_type<T, 2> {
  using value_type = T;
  T x, y;
  HIP_vector_type() = default;
  explicit constexpr AITER_LIKE_BOTH HIP_vector_type(T all) : x(all), y(all) {}
  constexpr AITER_LIKE_BOTH HIP_vector_type(T x, T y) : x(x), y(y) {}
  template <class Given, class = hip_detail::convertible<T, Given>>
  explicit constexpr AITER_LIKE_BOTH HIP_vector_type(Given all) : HIP_vector_type(static_cast<T>(all)) {}
  template <class OfX, class OfY, class = hip_detail::convertible<T, OfX, OfY>>
  constexpr AITER_LIKE_BOTH HIP_vector_type(OfX x, OfY y)
      : x(static_cast<T>(x)), y(static_cast<T>(y)) {}
};

template <class T>
struct HIP_vector_type<T, 3> {
  using value_type = T;
  T x, y, z;
  HIP_vector_type() = default;
  explicit constexpr AITER_LIKE_BOTH HIP_vector_type(T all) : x(all), y(all), z(all) {}
  constexpr AITER_LIKE_BOTH HIP_vector_type(T x, T y, T z) : x(x), y(y), z(z) {}
  template <class Given, class = hip_detail::convertible<T, Given>>
  explicit constexpr AITER_LIKE_BOTH HIP_vector_type(Given all) : HIP_vector_type(static_cast<T>(all)) {}
  template <class OfX, class OfY, class OfZ, class = hip_detail::convertible<T, OfX, OfY, OfZ>>
  constexpr AITER_LIKE_BOTH HIP_vector_type(OfX x, OfY y, OfZ z)
      : x(static_cast<T>(x)), y(static_cast<T>(y)), z(static_cast<T>(z)) {}
};

template <class T>
struct alignas(4 * sizeof(T)) HIP_vector_type<T, 4> {
  using value_type = T;
  T x, y, z, w;
  HIP_vector_type() = default;
  explicit constexpr AITER_LIKE_BOTH HIP_vector_type(T all) : x(all), y(all), z(all), w(all) {}
  constexpr AITER_LIKE_BOTH HIP_vector_type(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
  template <class Given, class = hip_detail::convertible<T, Given>>
  explicit constexpr AITER_LIKE_BOTH HIP_vector_type(Given all) : HIP_vector_type(static_cast<T>(all)) {}
  template <class OfX, class OfY, class OfZ, class OfW, class = hip_detail::convertible<T, OfX, OfY, OfZ, OfW>>
  constexpr AITER_LIKE_BOTH HIP_vector_type(OfX x, OfY y, OfZ z, OfW w)
      : x(static_cast<T>(x)), y(static_cast<T>(y)), z(static_cast<T>(z)), w(static_cast<T>(w)) {}
};

namespace hip_detail {

template <class T>
struct Same {
  using type = T;
};
template <class T>
using same = typename Same<T>::type;  // an argument of this type is converted, and takes no part in deduction

}  // namespace hip_detail

#define AITER_LIKE_VECTOR_OPERATOR(op)                                                                                 \
  template <class T, unsigned kCount>                                                                                  \
  constexpr AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator op(const HIP_vector_type<T, kCount>& a,                \
                                                              const HIP_vector_type<T, kCount>& b) {                   \
    HIP_vector_type<T, kCount> result{};                                                                               \
    result.x = static_cast<T>(a.x op b.x);                                                                             \
    if constexpr (kCount > 1) result.y = static_cast<T>(a.y op b.y);                                                   \
    if constexpr (kCount > 2) result.z = static_cast<T>(a.z op b.z);                                                   \
    if constexpr (kCount > 3) result.w = static_cast<T>(a.w op b.w);                                                   \
    return result;                                                                                                     \
  }                                                                                                                    \
  template <class T, unsigned kCount>                                                                                  \
  constexpr AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator op(const HIP_vector_type<T, kCount>& a,                \
                                                              hip_detail::same<T> b) {                                 \
    return a op HIP_vector_type<T, kCount>(b);                                                                         \
  }                                                                                                                    \
  template <class T, unsigned kCount>                                                                                  \
  constexpr AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator op(hip_detail::same<T> a,                              \
                                                              const HIP_vector_type<T, kCount>& b) {                   \
    return HIP_vector_type<T, kCount>(a) op b;                                                                         \
  }                                                                                                                    \
  template <class T, unsigned kCount, class Other>                                                                     \
  constexpr AITER_LIKE_BOTH HIP_vector_type<T, kCount>& operator op##=(HIP_vector_type<T, kCount>& a,                  \
                                                                       const Other& b) {                               \
    return a = a op b;                                                                                                 \
  }
AITER_LIKE_VECTOR_OPERATOR(+)
AITER_LIKE_VECTOR_OPERATOR(-)
AITER_LIKE_VECTOR_OPERATOR(*)
AITER_LIKE_VECTOR_OPERATOR(/)
AITER_LIKE_VECTOR_OPERATOR(%)
AITER_LIKE_VECTOR_OPERATOR(&)
AITER_LIKE_VECTOR_OPERATOR(|)
AITER_LIKE_VECTOR_OPERATOR(^)
AITER_LIKE_VECTOR_OPERATOR(<<)
AITER_LIKE_VECTOR_OPERATOR(>>)
#undef AITER_LIKE_VECTOR_OPERATOR

template <class T, unsigned kCount>
constexpr AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator-(const HIP_vector_type<T, kCount>& a) {
  return HIP_vector_type<T, kCount>(T(0)) - a;
}
template <class T, unsigned kCount>
constexpr AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator~(const HIP_vector_type<T, kCount>& a) {
  return a ^ HIP_vector_type<T, kCount>(static_cast<T>(~T(0)));
}
template <class T, unsigned kCount>
constexpr AITER_LIKE_BOTH HIP_vector_type<T, kCount>& operator++(HIP_vector_type<T, kCount>& a) {
  return a += T(1);
}
template <class T, unsigned kCount>
constexpr AITER_LIKE_BOTH HIP_vector_type<T, kCount>& operator--(HIP_vector_type<T, kCount>& a) {
  return a -= T(1);
}
template <class T, unsigned kCount>
constexpr AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator++(HIP_vector_type<T, kCount>& a, int) {
  const HIP_vector_type<T, kCount> before = a;
  ++a;
  return before;
}
template <class T, unsigned kCount>
constexpr AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator--(HIP_vector_type<T, kCount>& a, int) {
  const HIP_vector_type<T, kCount> before = a;
  --a;
  return before;
}
template <class T, unsigned kCount>
constexpr AITER_LIKE_BOTH bool operator==(const HIP_vector_type<T, kCount>& a, const HIP_vector_type<T, kCount>& b) {
  bool equal = a.x == b.x;
  if constexpr (kCount > 1) equal = equal && a.y == b.y;
  if constexpr (kCount > 2) equal = equal && a.z == b.z;
  if constexpr (kCount > 3) equal = equal && a.w == b.w;
  return equal;
}
template <class T, unsigned kCount>
constexpr AITER_LIKE_BOTH bool operator!=(const HIP_vector_type<T, kCount>& a, const HIP_vector_type<T, kCount>& b) {
  return !(a == b);
}
#define AITER_LIKE_VECTOR_COMPARISON(op)                                                                               \
  template <class T, unsigned kCount>                                                                                  \
  constexpr AITER_LIKE_BOTH bool operator op(const HIP_vector_type<T, kCount>& a, hip_detail::same<T> b) {             \
    return a op HIP_vector_type<T, kCount>(b);                                                                         \
  }                                                                                                                    \
  template <class T, unsigned kCount>                                                                                  \
  constexpr AITER_LIKE_BOTH bool operator op(hip_detail::same<T> a, const HIP_vector_type<T, kCount>& b) {             \
    return HIP_vector_type<T, kCount>(a) op b;                                                                         \
  }
AITER_LIKE_VECTOR_COMPARISON(==)
AITER_LIKE_VECTOR_COMPARISON(!=)
#undef AITER_LIKE_VECTOR_COMPARISON

#define AITER_LIKE_VECTORS(T, name)                                                                                    \
  using name##1 = HIP_vector_type<T, 1>;                                                                               \
  using name##2 = HIP_vector_type<T, 2>;                                                                               \
  using name##3 = HIP_vector_type<T, 3>;                                                                               \
  using name##4 = HIP_vector_type<T, 4>;                                                                               \
  constexpr AITER_LIKE_BOTH name##1 make_##name##1(T x) { return name##1(x); }                                         \
  constexpr AITER_LIKE_BOTH name##2 make_##name##2(T x, T y) { return {x, y}; }                                        \
  constexpr AITER_LIKE_BOTH name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                \
  constexpr AITER_LIKE_BOTH name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
AITER_LIKE_VECTORS(char, char)
AITER_LIKE_VECTORS(unsigned char, uchar)
AITER_LIKE_VECTORS(short, short)
AITER_LIKE_VECTORS(unsigned short, ushort)
AITER_LIKE_VECTORS(int, int)
AITER_LIKE_VECTORS(unsigned, uint)
AITER_LIKE_VECTORS(long, long)
AITER_LIKE_VECTORS(unsigned long, ulong)
AITER_LIKE_VECTORS(long long, longlong)
AITER_LIKE_VECTORS(unsigned long long, ulonglong)
AITER_LIKE_VECTORS(float, float)
AITER_LIKE_VECTORS(double, double)
#undef AITER_LIKE_VECTORS
#endif

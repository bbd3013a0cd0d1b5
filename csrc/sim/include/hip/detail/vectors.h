// SPDX-License-Identifier: MIT
// Vector types: char1 to double4, their operators by element, and make_…. Sizes and alignments are those of HIP: two
// and four elements are aligned to their size, three to one element.
#pragma once
#include "hip/detail/language.h"

#if defined(__cplusplus)
namespace hip_detail {

template <class T>
struct Same {
  using type = T;
};
template <class T>
using same = typename Same<T>::type;  // an argument of this type is converted, and takes no part in deduction

// There where every `Given` can be converted to T, also where that narrows: braces take what a cast would.
template <class T, class... Given>
using convertible = decltype((static_cast<T>(*static_cast<const Given*>(nullptr)), ...));

template <bool kHolds, class T>
struct If {};
template <class T>
struct If<true, T> {
  using type = T;
};
template <bool kHolds>
using when = typename If<kHolds, int>::type;  // the type of a template's parameter that is there only where this holds

// All elements as one value: a vector of clang's where it has one of this type and size.
#if defined(__clang__)
template <class T, unsigned kCount>
constexpr bool kHasVector = __is_arithmetic(T) && !__is_same(T, bool) && kCount != 3;
#else
template <class T, unsigned kCount>
constexpr bool kHasVector = false;
#endif
template <class T, unsigned kCount, bool kOfClang = kHasVector<T, kCount>>
struct AllElements {
  struct type {
    T d[kCount];
    AITER_LIKE_CONSTEXPR_14 AITER_LIKE_BOTH T& operator[](unsigned at) { return d[at]; }
    constexpr AITER_LIKE_BOTH const T& operator[](unsigned at) const { return d[at]; }
  };
};
#if defined(__clang__)
template <class T, unsigned kCount>
struct AllElements<T, kCount, true> {
  typedef T type __attribute__((ext_vector_type(kCount)));
};
#endif

// Whether the elements have names: libraries specialise HIP_vector_base for more elements, which have none.
template <class Base>
constexpr AITER_LIKE_BOTH auto has_names(int) -> decltype(static_cast<Base*>(nullptr)->x, true) {
  return true;
}
template <class Base>
constexpr AITER_LIKE_BOTH bool has_names(long) {
  return false;
}

}  // namespace hip_detail

// The elements, as names and as `data`. Libraries (rocWMMA) specialise it for types and counts of their own.
template <class T, unsigned kCount>
struct HIP_vector_base;

template <class T>
struct HIP_vector_base<T, 1> {
  using Native_vec_ = typename hip_detail::AllElements<T, 1>::type;
  using value_type = T;
  union {
    struct alignas(sizeof(T)) {
      T x;
    };
    Native_vec_ data;
  };
  HIP_vector_base() = default;
  constexpr AITER_LIKE_BOTH explicit HIP_vector_base(T x) : x(x) {}
};

template <class T>
struct HIP_vector_base<T, 2> {
  using Native_vec_ = typename hip_detail::AllElements<T, 2>::type;
  using value_type = T;
  union {
    struct alignas(2 * sizeof(T)) {
      T x, y;
    };
    Native_vec_ data;
  };
  HIP_vector_base() = default;
  constexpr AITER_LIKE_BOTH explicit HIP_vector_base(T all) : x(all), y(all) {}
  constexpr AITER_LIKE_BOTH HIP_vector_base(T x, T y) : x(x), y(y) {}
};

template <class T>
struct HIP_vector_base<T, 3> {
  using Native_vec_ = typename hip_detail::AllElements<T, 3>::type;
  using value_type = T;
  union {
    struct {
      T x, y, z;
    };
    Native_vec_ data;
  };
  HIP_vector_base() = default;
  constexpr AITER_LIKE_BOTH explicit HIP_vector_base(T all) : x(all), y(all), z(all) {}
  constexpr AITER_LIKE_BOTH HIP_vector_base(T x, T y, T z) : x(x), y(y), z(z) {}
};

template <class T>
struct HIP_vector_base<T, 4> {
  using Native_vec_ = typename hip_detail::AllElements<T, 4>::type;
  using value_type = T;
  union {
    struct alignas(4 * sizeof(T)) {
      T x, y, z, w;
    };
    Native_vec_ data;
  };
  HIP_vector_base() = default;
  constexpr AITER_LIKE_BOTH explicit HIP_vector_base(T all) : x(all), y(all), z(all), w(all) {}
  constexpr AITER_LIKE_BOTH HIP_vector_base(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
};

#define AITER_LIKE_VECTOR_ASSIGNMENT(op)                                                                               \
  AITER_LIKE_CONSTEXPR_14 AITER_LIKE_BOTH HIP_vector_type& operator op##=(const HIP_vector_type& b) noexcept {         \
    if constexpr (hip_detail::has_names<Base>(0)) {                                                                    \
      this->x = static_cast<T>(this->x op b.x);                                                                        \
      if constexpr (kCount > 1) this->y = static_cast<T>(this->y op b.y);                                              \
      if constexpr (kCount > 2) this->z = static_cast<T>(this->z op b.z);                                              \
      if constexpr (kCount > 3) this->w = static_cast<T>(this->w op b.w);                                              \
    } else {                                                                                                           \
      data op##= b.data;                                                                                               \
    }                                                                                                                  \
    return *this;                                                                                                      \
  }                                                                                                                    \
  template <class Given, class = hip_detail::convertible<T, Given>>                                                    \
  AITER_LIKE_CONSTEXPR_14 AITER_LIKE_BOTH HIP_vector_type& operator op##=(Given b) noexcept {                          \
    return *this op##= HIP_vector_type(static_cast<T>(b));                                                             \
  }

template <class T, unsigned kCount>
struct HIP_vector_type : HIP_vector_base<T, kCount> {
  using Base = HIP_vector_base<T, kCount>;
  using typename Base::Native_vec_;
  using Base::data;
  HIP_vector_type() = default;
  template <class Given, class = hip_detail::convertible<T, Given>>
  explicit constexpr AITER_LIKE_BOTH HIP_vector_type(Given all) noexcept : Base(static_cast<T>(all)) {}
  template <class... Given, hip_detail::when<(kCount > 1 && sizeof...(Given) == kCount)> = 0,
            class = hip_detail::convertible<T, Given...>>
  constexpr AITER_LIKE_BOTH HIP_vector_type(Given... each) noexcept : Base(static_cast<T>(each)...) {}

  AITER_LIKE_VECTOR_ASSIGNMENT(+)
  AITER_LIKE_VECTOR_ASSIGNMENT(-)
  AITER_LIKE_VECTOR_ASSIGNMENT(*)
  AITER_LIKE_VECTOR_ASSIGNMENT(/)
  AITER_LIKE_VECTOR_ASSIGNMENT(%)
  AITER_LIKE_VECTOR_ASSIGNMENT(&)
  AITER_LIKE_VECTOR_ASSIGNMENT(|)
  AITER_LIKE_VECTOR_ASSIGNMENT(^)
  AITER_LIKE_VECTOR_ASSIGNMENT(<<)
  AITER_LIKE_VECTOR_ASSIGNMENT(>>)
  // Not constexpr: libraries specialise them for elements that cannot be made of a whole number.
  AITER_LIKE_BOTH HIP_vector_type& operator++() noexcept { return *this += HIP_vector_type(T(1)); }
  AITER_LIKE_BOTH HIP_vector_type& operator--() noexcept { return *this -= HIP_vector_type(T(1)); }
  AITER_LIKE_BOTH HIP_vector_type operator++(int) noexcept {
    const HIP_vector_type before = *this;
    ++*this;
    return before;
  }
  AITER_LIKE_BOTH HIP_vector_type operator--(int) noexcept {
    const HIP_vector_type before = *this;
    --*this;
    return before;
  }
};
#undef AITER_LIKE_VECTOR_ASSIGNMENT

#define AITER_LIKE_VECTOR_OPERATOR(op)                                                                                 \
  template <class T, unsigned kCount>                                                                                  \
  AITER_LIKE_CONSTEXPR_14 AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator op(const HIP_vector_type<T, kCount>& a,  \
                                                              const HIP_vector_type<T, kCount>& b) noexcept {          \
    HIP_vector_type<T, kCount> result = a;                                                                             \
    return result op##= b;                                                                                             \
  }                                                                                                                    \
  template <class T, unsigned kCount>                                                                                  \
  AITER_LIKE_CONSTEXPR_14 AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator op(const HIP_vector_type<T, kCount>& a,  \
                                                              hip_detail::same<T> b) noexcept {                        \
    return a op HIP_vector_type<T, kCount>(b);                                                                         \
  }                                                                                                                    \
  template <class T, unsigned kCount>                                                                                  \
  AITER_LIKE_CONSTEXPR_14 AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator op(hip_detail::same<T> a,                \
                                                              const HIP_vector_type<T, kCount>& b) noexcept {          \
    return HIP_vector_type<T, kCount>(a) op b;                                                                         \
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
AITER_LIKE_CONSTEXPR_14 AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator-(
    const HIP_vector_type<T, kCount>& a) noexcept {
  return HIP_vector_type<T, kCount>(T(0)) - a;
}
template <class T, unsigned kCount>
AITER_LIKE_CONSTEXPR_14 AITER_LIKE_BOTH HIP_vector_type<T, kCount> operator~(
    const HIP_vector_type<T, kCount>& a) noexcept {
  return a ^ HIP_vector_type<T, kCount>(static_cast<T>(~T(0)));
}
template <class T, unsigned kCount>
AITER_LIKE_CONSTEXPR_14 AITER_LIKE_BOTH bool operator==(const HIP_vector_type<T, kCount>& a,
                                                        const HIP_vector_type<T, kCount>& b) noexcept {
  bool equal = true;
  if constexpr (hip_detail::has_names<HIP_vector_base<T, kCount>>(0)) {
    equal = a.x == b.x;
    if constexpr (kCount > 1) equal = equal && a.y == b.y;
    if constexpr (kCount > 2) equal = equal && a.z == b.z;
    if constexpr (kCount > 3) equal = equal && a.w == b.w;
  } else {
    for (unsigned i = 0; i < kCount; i++) equal = equal && a.data[i] == b.data[i];
  }
  return equal;
}
template <class T, unsigned kCount>
constexpr AITER_LIKE_BOTH bool operator!=(const HIP_vector_type<T, kCount>& a,
                                          const HIP_vector_type<T, kCount>& b) noexcept {
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

// SPDX-License-Identifier: MIT
// What the types of 16 bits share.
#pragma once
#include "hip/hip_runtime.h"
#include "hip/detail/callers_lines_begin.h"

#define AITER_LIKE_HD __host__ __device__ static inline __attribute__((always_inline, unused))

// A number of 16 bits with one of another type: in single precision. Else both conversions would be as good.
#define AITER_LIKE_WITH_NUMBER(Short, Result, op)                                                           \
  template <class T>                                                                                        \
  AITER_LIKE_HD auto operator op(Short a, T b) -> typename hip_detail::If<__is_arithmetic(T), Result>::type { \
    return static_cast<float>(a) op static_cast<float>(b);                                                  \
  }                                                                                                         \
  template <class T>                                                                                        \
  AITER_LIKE_HD auto operator op(T a, Short b) -> typename hip_detail::If<__is_arithmetic(T), Result>::type { \
    return static_cast<float>(a) op static_cast<float>(b);                                                  \
  }
// A number of another type stays of its type.
#define AITER_LIKE_INTO_NUMBER(Short, op)                                                               \
  template <class T>                                                                                    \
  AITER_LIKE_HD auto operator op##=(T& a, Short b) -> typename hip_detail::If<__is_arithmetic(T), T&>::type { \
    return a = static_cast<T>(a op static_cast<float>(b));                                              \
  }
#define AITER_LIKE_WITH_NUMBERS(Short)           \
  AITER_LIKE_INTO_NUMBER(Short, +)               \
  AITER_LIKE_INTO_NUMBER(Short, -)               \
  AITER_LIKE_INTO_NUMBER(Short, *)               \
  AITER_LIKE_INTO_NUMBER(Short, /)               \
  AITER_LIKE_WITH_NUMBER(Short, float, +)        \
  AITER_LIKE_WITH_NUMBER(Short, float, -)        \
  AITER_LIKE_WITH_NUMBER(Short, float, *)        \
  AITER_LIKE_WITH_NUMBER(Short, float, /)        \
  AITER_LIKE_WITH_NUMBER(Short, bool, ==)        \
  AITER_LIKE_WITH_NUMBER(Short, bool, !=)        \
  AITER_LIKE_WITH_NUMBER(Short, bool, <)         \
  AITER_LIKE_WITH_NUMBER(Short, bool, <=)        \
  AITER_LIKE_WITH_NUMBER(Short, bool, >)         \
  AITER_LIKE_WITH_NUMBER(Short, bool, >=)
#include "hip/detail/callers_lines_end.h"

// SPDX-License-Identifier: MIT
// What may happen to a score q · k before the softmax, as functors that a kernel is composed of. A functor that is
// switched off is the identity and costs nothing. The first functor multiplies scores by log2 e, and so do the others
// what they add: the softmax works in base 2.
#pragma once

#include <type_traits>

#include "aiter_like/math.h"

namespace aiter_like {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

/// cap · tanh(scale · x / cap), or scale · x.
template <bool IS_ON>
struct Softcap {
  float inner, outer;
  __device__ Softcap(float scale, float cap)
      : inner(IS_ON ? scale / cap : scale * kLog2E), outer(cap * kLog2E) {}
  __device__ float operator()(float x) const { return IS_ON ? outer * fast_tanh(inner * x) : inner * x; }
};

constexpr float kSteepBias = 0x1p126f;  // From there on a score grows half as fast as the bias.
constexpr float kMostSlope = 0x1p90f;   // No product with a distance is infinite.

/// x + bias · log2 e. No finite bias makes it infinite, which would hide a key for good: a row whose keys all have the
/// bias torch.finfo(dtype).min, the usual mask, becomes their mean, as in torch. The half of the bias is added, and the
/// rest up to ±kSteepBias: beyond, scores that differ are so far from one another that p is 1 or 0 however steep the
/// map is, and log_sum_exp undoes it.
__device__ inline float plus_bias(float x, float bias) {
  const float near = __builtin_fmaxf(__builtin_fminf(bias, kSteepBias), -kSteepBias);
  return __builtin_fmaf(near, kLog2E - 0.5f, __builtin_fmaf(bias, 0.5f, x));
}

/// The natural log-sum-exp, from the maximum in base 2 and the sum, which is not 0. HAS_BIAS: undoes plus_bias.
template <bool HAS_BIAS>
__device__ inline float log_sum_exp(float maximum, float total) {
  const float size = __builtin_fabsf(maximum);
  if (HAS_BIAS && size > kSteepBias * kLog2E) {
    const float far = __builtin_fminf(2.f * (size - kSteepBias * (kLog2E - 0.5f)), 3.40282347e38f);
    return __builtin_copysignf(far, maximum);
  }
  return (maximum + fast_log2(total)) * kLn2;
}

/// An ALiBi slope in base 2, up to ±kMostSlope: times the distance 0 an infinite one would be NaN.
__device__ inline float alibi_slope(float slope) {
  const float limited = __builtin_fmaxf(__builtin_fminf(slope, kMostSlope), -kMostSlope);
  return (slope == slope ? limited : slope) * kLog2E;
}

/// Adds element (row, column) of a matrix, in which rows count from the wave's first one. Indices beyond the matrix are
/// moved to its edge; the scores there are not used. Row stride and columns are at most 2^24.
template <class T>
struct Bias {
  const T* data;  // The same in all lanes: with an offset of 32 bits no lane needs an address of its own.
  uint32_t row_stride;
  int rows, columns;

  __device__ Bias(const T* data, int64_t offset, int64_t row_stride, int first_row, int rows, int columns)
      : data(data + offset + first_row * row_stride), row_stride(static_cast<uint32_t>(row_stride)),
        rows(rows - first_row), columns(columns) {}

  /// The bias of one row's elements, by their distance from `first_column`.
  struct Row {
    const T* data;
    uint32_t row_offset;
    int first_column, last_column;
    __device__ float operator()(float x, int i) const {
      const uint32_t column = first_column + i < last_column ? first_column + i : last_column;
      const uint32_t bytes = (row_offset + column) * static_cast<uint32_t>(sizeof(T));
      const float bias = to_float(*reinterpret_cast<const T*>(reinterpret_cast<const char*>(data) + bytes));
      return std::is_same_v<T, f16> ? __builtin_fmaf(bias, kLog2E, x) : plus_bias(x, bias);
    }
  };
  __device__ Row at(int row, int first_column) const {
    return {data, (row < rows ? row : rows - 1) * row_stride, first_column, columns - 1};
  }
};
template <>
struct Bias<void> {
  struct Row {
    __device__ float operator()(float x, int) const { return x; }
  };
  __device__ Bias(const void*, int64_t, int64_t, int, int, int) {}
  __device__ Row at(int, int) const { return {}; }
};

/// Subtracts slope · |row + delta − column|.
template <bool IS_ON>
struct Alibi {
  float slope;  // from alibi_slope
  int delta;

  /// The slope of one row's elements, by their distance from `first_column`, as floats: exact up to 2^24.
  struct Row {
    float slope, distance;
    __device__ float operator()(float x, int i) const {
      return IS_ON ? __builtin_fmaf(-slope, __builtin_fabsf(distance - static_cast<float>(i)), x) : x;
    }
  };
  __device__ Row at(int row, int first_column) const {
    return {slope, static_cast<float>(row + delta - first_column)};
  }
};

}  // namespace aiter_like

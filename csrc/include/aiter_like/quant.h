// SPDX-License-Identifier: MIT
// Dynamic quantisation of rows held as tiles (rows/rows.h), to fp8 or int8: a scale per row (token), or per group of
// consecutive columns. The rule is the same in ops/common/quant_rule.py and in ops/common/triton/quant_rule.py:
//   scale = max(amax, 2^-110) / largest, q = round(x · (1 / scale)), saturated; value = q · scale
// A row of zeros gives zeros and a finite scale above 0; a NaN makes the scale NaN, and with it every fp8 element NaN,
// every int8 element 0; an infinity makes the scale infinite: its fp8 element NaN, all else 0.
#pragma once

#include "aiter_like/rows/rows.h"

namespace aiter_like {

constexpr float kSmallestAmax = 0x1p-110f;  // keeps 1 / scale finite

struct QuantScale {
  float scale, inverse;
};

/// Scale of elements of type Q for the largest magnitude `amax`, which may be NaN.
template <class Q>
__device__ inline QuantScale quant_scale(float amax) {
  const float scale = (amax < kSmallestAmax ? kSmallestAmax : amax) / kLargest<Q>;
  return {scale, 1.f / scale};
}

/// Largest magnitude of f(vector, element) over the lane's elements of one vector; NaN if one is NaN.
template <class Layout, class F>
__device__ inline float vector_amax(int vector, F f) {
  float amax = 0.f;
#pragma unroll
  for (int e = 0; e < Layout::kVec; ++e) amax = larger(amax, __builtin_fabsf(f(vector, e)));
  return amax;
}

/// Largest magnitude of f(vector, element) over the lane's elements; row_max makes the row's of those of its lanes.
template <class Layout, class F>
__device__ inline float lane_amax(F f) {
  float amax = 0.f;
#pragma unroll
  for (int v = 0; v < Layout::kVectors; ++v) amax = larger(amax, vector_amax<Layout>(v, f));
  return amax;
}

/// Writes f(vector, element) · inverse, rounded to Q and saturated, to the first `columns` elements of a row.
template <class Layout, class Q, class F>
__device__ inline void store_quantised(Q* row, int columns, float inverse, F f) {
  store_row<Layout>(row, columns, [&](int v, int e) { return f(v, e) * inverse; });
}

/// Like store_quantised, with a scale found for these very elements or for more of them, so that no int8 result is
/// beyond the largest. Where a NaN or an infinity is among the elements, the scale is not finite and all become 0.
template <class Layout, class Q, class F>
__device__ inline void store_by_own_scale(Q* row, int columns, QuantScale scale, F f) {
  if constexpr (__is_same(Q, int8_t) && Layout::kIsAligned && Layout::kVec % 4 == 0) {
    const uint32_t mask = scale.scale < __builtin_huge_valf() ? ~0u : 0u;
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v) {
      if (Layout::column(v) >= columns) continue;
      Vec<uint32_t, Layout::kVec / 4> words;
#pragma unroll
      for (int w = 0; w < Layout::kVec / 4; ++w) {
        const auto byte = [&](int e) { return whole_bits(f(v, 4 * w + e) * scale.inverse); };
        words[w] = low_bytes(byte(0), byte(1), byte(2), byte(3)) & mask;
      }
      store_vec<Layout::kVec>(Layout::place(row, v), __builtin_bit_cast(Vec<Q, Layout::kVec>, words));
    }
  } else {
    store_quantised<Layout>(row, columns, scale.inverse, f);
  }
}

/// Whether a group of kGroup columns lies within the lanes that one vector access of a row takes.
template <class Layout, int kGroup>
constexpr bool kHasGroups = kGroup % Layout::kVec == 0 && Layout::kLanes >= kGroup / Layout::kVec &&
                            kGroup / Layout::kVec <= kWaveSize;

/// Like store_quantised, with a scale for each kGroup columns: that of group g goes to scales[g · scale_stride]. Every
/// lane of the wave takes part; `columns` is a multiple of kGroup.
template <class Layout, int kGroup, class Q, class F>
__device__ inline void store_groups(Q* row, float* scales, int64_t scale_stride, int columns, F f) {
  static_assert(kHasGroups<Layout, kGroup>, "a group's lanes must be neighbours in a wave");
  constexpr int kGroupLanes = kGroup / Layout::kVec;
#pragma unroll
  for (int v = 0; v < Layout::kVectors; ++v) {
    float amax = vector_amax<Layout>(v, f);
    if constexpr (kGroupLanes > 1) amax = wave_max<kGroupLanes / 2>(amax);
    if (Layout::column(v) >= columns) continue;
    const QuantScale scale = quant_scale<Q>(amax);
    float y[Layout::kVec];
#pragma unroll
    for (int e = 0; e < Layout::kVec; ++e) y[e] = f(v, e) * scale.inverse;
    store_vector<Layout>(row, columns, v, y);
    if (Layout::lane() % kGroupLanes == 0) scales[Layout::column(v) / kGroup * scale_stride] = scale.scale;
  }
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Softmax over the rows of score tiles [keys, queries] that come one after the other, in base 2: a running maximum and
// sum per column, kept in registers.
//
// A masked score is kMasked: it never raises the maximum, which starts above it, and its exponential is exactly 0. So a
// column of masked scores needs no special case; its sum is 0. A NaN score does not raise the maximum either; it makes
// the sum NaN. Scores are masked before they are scaled: a scale that is not known to be positive goes through
// positive_scale first.
#pragma once

#include "aiter_like/math.h"
#include "aiter_like/tile/map.h"
#include "aiter_like/tile/reduce.h"

namespace aiter_like::tile {

constexpr float kLowest = -3.40282347e38f;      // start of the maximum, after scaling
constexpr float kMasked = -__builtin_inff();    // before scaling by a positive number, and after it
constexpr float kLeastScale = 1.17549435e-38f;  // the least normal number: times it all but huge scores are about 0

/// Elements of an operand with the other sign. fp8 has no −0, whose bits are its NaN.
template <class T>
__device__ inline uint32_t negated(uint32_t word) {
  if constexpr (sizeof(T) == 2) return word ^ 0x80008000u;
  return word ^ ((word & 0x7F7F7F7Fu) + 0x7F7F7F7Fu & 0x80808080u);
}

/// The factor of scores in place of `scale`, a positive number: the queries take over a sign, or become
/// NaN as the scale is. 0 is as good as kLeastScale.
template <class QUERIES, int COUNT>
__device__ inline float positive_scale(float scale, QUERIES (&queries)[COUNT]) {
  using T = typename QUERIES::Element;
  constexpr uint32_t kNan = sizeof(T) == 2 ? 0x7FFF7FFFu : 0x80808080u;
  if (__builtin_expect(scale >= kLeastScale, true)) return scale;
  if (!(scale >= 0.f)) {
    for (auto& slice : queries) {
#pragma unroll
      for (int s = 0; s < QUERIES::kStrips; ++s) {
#pragma unroll
        for (int p = 0; p < QUERIES::kPieces; ++p) {
          Fragment& piece = slice.pieces[s][p];
          piece = scale < 0.f ? Fragment{negated<T>(piece[0]), negated<T>(piece[1])} : Fragment{kNan, kNan};
        }
      }
    }
  }
  return __builtin_fmaxf(__builtin_fabsf(scale), kLeastScale);
}

/// BITS: exponentials are up to 2^BITS, for narrow types that they are rounded to.
template <class SCORES, int BITS = 0>
struct OnlineSoftmax {
  using Layout = typename SCORES::Layout;
  typename SCORES::PerColumn maximum;  // maximum of scale · score; the same in all groups
  typename SCORES::PerColumn sum;      // sum of what this lane has exponentiated
  bool is_far = false;                 // whether a maximum of the wave is beyond ±kFar
  static constexpr float kFar = BITS ? 0x1p23f : 0x1p27f;  // it is rounded by up to 0.5 and 8 there
  static_assert(!SCORES::kOwnsRows, "each lane has columns: queries");

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int s = 0; s < SCORES::kStrips; ++s) maximum[s] = kLowest, sum[s] = 0.f;
  }

  /// Raises the maximum to that of `scores` and calls rescale(strip, factor) where it rose: what was accumulated so far
  /// is to be multiplied. Most tiles raise nothing; one vote of the wave then is all that this costs.
  template <class F>
  __device__ void raise(const SCORES& scores, float scale, F rescale) {
#pragma unroll
    for (int s = 0; s < SCORES::kStrips; ++s) {
      float highest = reduce_strip(scores, s, Maximum{}) * scale;
      if (!wave_any(highest > maximum[s])) continue;
      highest = __builtin_fmaxf(maximum[s], across_groups<Layout>(highest, Maximum{}));
      const float factor = fast_exp2(maximum[s] - highest);
      maximum[s] = highest;
      is_far |= wave_any(__builtin_fabsf(highest) >= kFar && highest != kLowest);
      sum[s] *= factor;
      rescale(s, factor);
    }
  }

  /// scores = 2^(scale · score − maximum + BITS), and adds them to the sum, unrounded.
  ///
  /// The fma of the highest score leaves what the rounding of the maximum took: 128 and more from 2^31 on, where 2^128
  /// is infinite. So far from 0 the scores are rounded as the maximum was, and the maximum subtracted, in two steps.
  __device__ void exponentiate(SCORES& scores, float scale) {
    if (__builtin_expect(is_far, false)) {
#pragma clang fp contract(off)
#pragma unroll
      for (int s = 0; s < SCORES::kStrips; ++s) {
#pragma unroll
        for (int e = 0; e < SCORES::kPerStrip; ++e) {
          const float scaled = scores.get(s, e) * scale;
          scores.set(s, e, scaled - maximum[s]);
        }
      }
      scale = 1.f;
    }
#pragma unroll
    for (int s = 0; s < SCORES::kStrips; ++s) {
      const float origin = (is_far ? 0.f : maximum[s]) - BITS;
#pragma unroll
      for (int e = 0; e < SCORES::kPerStrip; ++e) {
        const float p = fast_exp2(__builtin_fmaf(scores.get(s, e), scale, -origin));
        sum[s] += p;
        scores.set(s, e, p);
      }
    }
  }

  /// Sum over all lanes of the column.
  __device__ float total(int strip) const { return across_groups<Layout>(sum[strip], Sum{}); }
};

}  // namespace aiter_like::tile

// SPDX-License-Identifier: MIT
// The softmax phase of flash_attn_fwd for one wave: P = exp2(S · scale - m), l += P, P rounded to 16 bits.
//
// A maximum m is raised once a score exceeds it by kSlack, in base 2; until then P may be up to 2^kSlack, which costs a
// floating-point number nothing. A wave that raised m for each new maximum would do so in every second block of 64 keys
// among 16,384 of random scores.
#pragma once

#include <utility>

#include "aiter_like/math.h"
#include "flash_attn_order.h"
#include "flash_attn_phases.h"

namespace aiter_like::flash_attn {

// m begins with kMinimum, and a masked key has the raw score kMaskedScore. With a scale of at least 1e-8 a masked score
// stays below kMinimum after scaling, so it never raises m, and exp2 makes it 0 exactly: a fully masked row needs no
// special case.
constexpr float kMinimum = -1e30f;
constexpr float kMaskedScore = -3e38f;
constexpr float kFar = 0x1p27f;  // a maximum in base 2: its rounding is up to 8
constexpr float kSlack = 8.f;    // P of f16 stays below 2^(8 + 4): the rounding of a maximum that is not far is 4

/// `x`, out of reach of the compiler's vectoriser, which would add up two row tiles at once by packed instructions.
__device__ inline float keep_scalar(float x) {
  asm("" : "+v"(x));
  return x;
}

/// `x`, which the compiler must have here: it would move what leads to it behind the next branch.
__device__ inline uint32_t keep_here(uint32_t x) {
  asm volatile("" : "+v"(x));
  return x;
}

/// The score of element i of row tile t in this lane: of key 4 kGroups · (i / 4) + 4 group + i % 4 of the block.
template <class Shape>
__device__ inline float score_of(const WaveState<Shape>& wave, int t, int i) {
  return wave.scores[t][i / (4 * Shape::kParts)][i % (4 * Shape::kParts)];
}
template <class Shape>
__device__ inline void set_score(WaveState<Shape>& wave, int t, int i, float score) {
  wave.scores[t][i / (4 * Shape::kParts)][i % (4 * Shape::kParts)] = score;
}

/// The larger one of two scores; of one that is NaN, the other. fmaxf takes two instructions more where the compiler
/// cannot know that no operand is a signalling NaN, as it does not of matrix instructions.
__device__ inline float larger_score(float a, float b) { return __builtin_amdgcn_fmed3f(a, b, __builtin_inff()); }

/// The largest score of a row tile in this lane, scaled.
template <class Shape>
__device__ inline float lane_maximum(const WaveState<Shape>& wave, int t, float scale) {
  float largest = larger_score(score_of(wave, t, 0), score_of(wave, t, 1));
#pragma unroll
  for (int i = 2; i < 4 * Shape::kFragments; ++i) largest = __builtin_fmaxf(largest, score_of(wave, t, i));
  return largest * scale;
}

/// The value of `x` in lane (own lane XOR 32).
__device__ inline float other_half(float x) {
  return __builtin_bit_cast(
      float, __builtin_amdgcn_ds_bpermute((fresh_lane() ^ 32) * 4, __builtin_bit_cast(int, x)));
}

/// Raises the running maximum of row tile t. The caller multiplies the output that has been accumulated under the old
/// maximum by the result.
template <class Shape>
__device__ float raise_maximum(RowState<Shape>& state, int t, float highest) {
  if constexpr (Shape::kWidth == 16) highest = __builtin_fmaxf(highest, lane_xor<16>(highest));
  highest = __builtin_fmaxf(highest, other_half(highest));
  const float maximum = __builtin_fmaxf(state.maximum[t], highest);
  const float rescale = fast_exp2(state.maximum[t] - maximum);
  state.maximum[t] = maximum;
  state.sum[t] *= rescale;
  return rescale;
}

/// Whether a maximum is so large that its rounding shows in the exponent; kMinimum is that of a row without keys.
template <class Shape>
__device__ bool is_far(const RowState<Shape>& state, int t) {
  return wave_any(__builtin_fabsf(state.maximum[t]) >= kFar && state.maximum[t] != kMinimum);
}

/// The factor by which exponentiate multiplies the scores of row tile t: `scale`; or 1, and they are scaled now. The
/// fma of the highest score leaves what the rounding of the maximum took: 128 and more from 2^31 on, where 2^128 is
/// infinite.
template <class Shape>
__device__ float scaled_if_far(WaveState<Shape>& wave, int t, float scale) {
  if (__builtin_expect(!wave.rows.is_far, true)) return scale;
#pragma unroll
  for (int i = 0; i < 4 * Shape::kFragments; ++i)
    set_score(wave, t, i, keep_scalar(score_of(wave, t, i) * scale));  // not in an fma
  return 1.f;
}

template <class Shape>
__device__ void rescale_out(RowState<Shape>& state, int t, float rescale) {
#pragma unroll
  for (int g = 0; g < Shape::kDimGroups; ++g) {
    state.out[t][g][0] *= rescale;
    state.out[t][g][1] *= rescale;
  }
}

/// Two floats become 16-bit elements of one dword in two steps: what each takes by itself, and the pair.
template <class T, Rounding kMode>
struct Rounder {
  static constexpr int kOperations = kMode == Rounding::kNearestEven ? 2 : kMode == Rounding::kNearestAway ? 1 : 0;
  /// Ties away from zero: the constant comes from a scalar register, which makes the instruction 4 bytes long, not 8.
  __device__ static uint32_t round(float x, uint32_t half) {
    return kMode == Rounding::kNearestAway ? float_bits(x) + half : round_to_upper_half<kMode>(x);
  }
  __device__ static uint32_t join(uint32_t low, uint32_t high) { return pack_upper(low, high); }
};
template <>
struct Rounder<f16, Rounding::kNearestEven> {
  static constexpr int kOperations = 1;
  __device__ static uint32_t round(float x, uint32_t) { return from_float<f16>(x).bits; }
  __device__ static uint32_t join(uint32_t low, uint32_t high) { return pack_lower(low, high); }
};
template <>
struct Rounder<f16, Rounding::kTowardZero> {
  static constexpr int kOperations = 0;
  __device__ static uint32_t round(float x, uint32_t) { return float_bits(x); }
  __device__ static uint32_t join(uint32_t low, uint32_t high) {
    return Pack<f16, Rounding::kTowardZero>::pack(bits_float(low), bits_float(high));
  }
};

/// The scores of the row tiles [kFirst, kEnd) on their way to P.
template <int kFirst, int kEnd, class Shape>
struct Exponentials {
  using Rounds = Rounder<typename Shape::Element, Shape::kRounding>;
  static constexpr int kOfTile = 4 * Shape::kFragments, kScores = (kEnd - kFirst) * kOfTile;
  static constexpr SoftmaxOrder<kScores, Rounds::kOperations> kOrder{};

  WaveState<Shape>& wave;
  float scale;
  float x[kScores];
  uint32_t rounded[kScores];

  /// Item n of the order.
  template <int n>
  __device__ void work() {
    constexpr int i = kOrder.items[n].index, t = kFirst + i / kOfTile, of_tile = i % kOfTile;
    constexpr SoftmaxWork kWork = kOrder.items[n].work;
    if constexpr (kWork == SoftmaxWork::scale)
      x[i] = __builtin_fmaf(score_of(wave, t, of_tile), scale, -wave.rows.maximum[t]);
    if constexpr (kWork == SoftmaxWork::exponential) x[i] = fast_exp2(x[i]);
    if constexpr (kWork == SoftmaxWork::add) wave.rows.sum[t] = keep_scalar(wave.rows.sum[t] + x[i]);
    if constexpr (kWork == SoftmaxWork::round) rounded[i] = Rounds::round(x[i], wave.half);
    if constexpr (kWork == SoftmaxWork::join)
      wave.p[t][of_tile / 4][of_tile % 4 / 2] = keep_here(Rounds::join(rounded[i], rounded[i + 1]));
    if constexpr (kWork == SoftmaxWork::fence) tile::keep_order();
  }
  template <int... n>
  __device__ void work_all(std::integer_sequence<int, n...>) {
    (work<n>(), ...);
  }
};

/// p = exp2(score · scale - maximum) of the row tiles [kFirst, kEnd), in the order of SoftmaxOrder. The sum takes p
/// unrounded, the second product rounded and packed.
template <int kFirst, int kEnd, class Shape>
__device__ void exponentiate(WaveState<Shape>& wave, float scale) {
  using Scores = Exponentials<kFirst, kEnd, Shape>;
  tile::keep_order();
  Scores scores{wave, scale, {}, {}};
  scores.work_all(std::make_integer_sequence<int, Scores::kOrder.count>());
  tile::keep_order();
}

/// P of a block from its scores. Where no score exceeds its row's running maximum by kSlack, nothing is rescaled.
/// between() is called before the last row tile's exponentials.
template <class Shape, class BETWEEN>
__device__ void softmax(WaveState<Shape>& wave, float scale, const BETWEEN& between) {
  constexpr int kRowTiles = Shape::kRowTiles;
  float highest[kRowTiles];
  bool is_higher[kRowTiles], is_any_higher = false;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) highest[t] = lane_maximum(wave, t, scale);
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    is_higher[t] = wave_any(highest[t] > wave.rows.maximum[t] + kSlack);
    is_any_higher |= is_higher[t];
  }
  if (__builtin_expect(is_any_higher, false)) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      if (is_higher[t]) rescale_out(wave.rows, t, raise_maximum(wave.rows, t, highest[t]));
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) wave.rows.is_far |= is_far(wave.rows, t);
  }
  float factor = scale;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) factor = scaled_if_far(wave, t, scale);
  exponentiate<0, kRowTiles - 1>(wave, factor);
  between();
  exponentiate<kRowTiles - 1, kRowTiles>(wave, factor);
}

/// From here on `x` holds anything. Otherwise a fragment that a branch leaves out would stay what it was, in registers
/// of its own.
__device__ inline void forget(Fragment& x) { asm volatile("" : "=v"(x)); }

/// softmax at the edge of a mask. sees(t) says whether row tile t sees any key, and hide(t) hides the scores of the
/// keys that it does not see. Every tile is rescaled: a rescaling in a branch would have the output in registers twice.
template <int t = 0, class Shape, class SEES, class HIDE>
__device__ void seen_softmax(WaveState<Shape>& wave, float scale, const SEES& sees, const HIDE& hide) {
  float rescale = 1.f;
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f) forget(wave.p[t][f]);
  if (sees(t)) {
    hide(t);
    rescale = raise_maximum(wave.rows, t, lane_maximum(wave, t, scale));
    wave.rows.is_far |= is_far(wave.rows, t);
    exponentiate<t, t + 1>(wave, scaled_if_far(wave, t, scale));
  }
  rescale_out(wave.rows, t, rescale);
  if constexpr (t + 1 < Shape::kRowTiles)
    seen_softmax<t + 1>(wave, scale, sees, hide);
  else
    tile::keep_order();
}

}  // namespace aiter_like::flash_attn

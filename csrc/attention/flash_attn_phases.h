// SPDX-License-Identifier: MIT
// The two phases of flash_attn_fwd's loop, for one wave.
//   M: matrix_steps   O^T += V[n-1]^T P, then S^T = K[n] Q^T      192 | 128 MFMA at kHeadDim 128 | 64
//   S: softmax        P = exp2(S · scale - m), l += P
// The fragments of both products are one stream of 2 kSteps steps, V's before K's. Each fragment is requested from LDS
// ahead of its use, the first kFetched of them before M begins. The steps go key tile by key tile, because the
// registers of P become free in this order and scores need them.
#pragma once

#include "aiter_like/math.h"
#include "aiter_like/tile/ping_pong.h"
#include "aiter_like/tile/spread.h"
#include "flash_attn_layout.h"

namespace aiter_like::flash_attn {

constexpr int kFetched = 4;  // fragments that the softmax phase requests: V's first ones
// Steps (2 kRowTiles MFMA each: 96 | 128 clk) from a fragment's request to its use.
constexpr int kAhead = 3;

// m begins with kMinimum, and a masked key has the raw score kMaskedScore. With a scale of at least 1e-8 a masked score
// stays below kMinimum after scaling, so it never raises m, and exp2 makes it 0 exactly: a fully masked row needs no
// special case.
constexpr float kMinimum = -1e30f;
constexpr float kMaskedScore = -3e38f;
constexpr float kFar = 0x1p27f;  // of a maximum in base 2: its rounding is up to 8

/// `x`, out of reach of the compiler's vectoriser, which would add up two row tiles at once by packed instructions.
__device__ inline float keep_scalar(float x) {
  asm("" : "+v"(x));
  return x;
}

/// What a wave keeps over the blocks.
template <class Shape>
struct RowState {
  Fragment q[Shape::kRowTiles][Shape::kDimGroups][2];
  Accumulator out[Shape::kRowTiles][Shape::kDimGroups][2];
  float maximum[Shape::kRowTiles];  // of the scaled scores in base 2; the four lanes of a row have the same
  float sum[Shape::kRowTiles];      // of this lane's probabilities
  bool is_far;                      // whether a maximum of the wave is far from 0 (scaled_if_far)
};

/// Where this lane reads step 0 of K and of V: byte offsets into LDS, buffer included.
template <class Shape>
struct ReadOffsets {
  int keys, values;

  __device__ static ReadOffsets first_block() {
    return {KeyTile<Shape>::lane_offset(), Shape::kValueTiles + ValueTile<Shape>::lane_offset()};
  }
  __device__ void flip_keys() { keys ^= Shape::kTileBytes; }
  __device__ void flip_values() { values ^= Shape::kTileBytes; }
};

/// What a wave has in registers.
template <class Shape>
struct WaveState {
  RowState<Shape> rows;
  Accumulator scores[Shape::kRowTiles][kKeyTiles];
  Fragment p[Shape::kRowTiles][kKeyTiles];
  Chunk stream[kFetched];  // fragments on their way; the one of step s is in slot s % kFetched
  ReadOffsets<Shape> offsets;
  const char* lds;

  /// Begins to read the fragment of `step`: one of V for steps below kSteps, else one of K.
  __device__ void request(int step) {
    stream[step % kFetched] = step < Shape::kSteps
                                  ? ValueTile<Shape>::read(lds, offsets.values, step)
                                  : KeyTile<Shape>::read(lds, offsets.keys, step - Shape::kSteps);
  }
  /// Requests the first kFetched fragments of a stream that begins with step `first`.
  __device__ void request_first(int first) {
#pragma unroll
    for (int step = first; step < first + kFetched; ++step) request(step);
  }
  __device__ StepOperands operands(int step) const {
    const Chunk& chunk = stream[step % kFetched];
    return step < Shape::kSteps ? ValueTile<Shape>::operands(chunk) : KeyTile<Shape>::operands(chunk);
  }
};

/// A step's product with row tile t, by one of the two fragments of `a`: by the low half or the even columns for
/// which = 0, by the high half or the odd columns for which = 1.
template <class Shape>
__device__ inline void multiply(WaveState<Shape>& wave, StepOperands a, int step, int t, int which) {
  const int kk = step % Shape::kSteps / Shape::kDimGroups, g = step % Shape::kDimGroups;
  const Fragment fragment = which == 0 ? a.first : a.second;
  if (step < Shape::kSteps) {
    Accumulator& out = wave.rows.out[t][g][which];
    out = mfma_16x16x16<typename Shape::Element>(fragment, wave.p[t][kk], out);
  } else {
    Accumulator& score = wave.scores[t][kk];
    score = mfma_16x16x16<typename Shape::Element>(fragment, wave.rows.q[t][g][which], score);
  }
}

/// Steps kFirst … kEnd - 1 of the stream, whose first kFetched fragments are on their way.
template <int kFirst, int kEnd, class Shape>
__device__ void matrix_steps(WaveState<Shape>& wave) {
  const tile::Priority priority;
  StepOperands now = wave.operands(kFirst);
#pragma unroll
  for (int step = kFirst; step < kEnd; ++step) {
    tile::keep_order();  // Without it the compiler mixes steps, for which there are not enough registers.
    StepOperands next = now;
    if (step + 1 < kEnd) next = wave.operands(step + 1);
    const int ahead = step + kAhead;
    if (kFirst + kFetched <= ahead && ahead < kEnd) wave.request(ahead);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
#pragma unroll
      for (int t = 0; t < Shape::kRowTiles; ++t) {
        if (step >= Shape::kSteps && step % Shape::kDimGroups + which == 0)
          wave.scores[t][step % Shape::kSteps / Shape::kDimGroups] = {};
        multiply(wave, now, step, t, which);
      }
    }
    tile::spread_between_products<2 * Shape::kRowTiles, tile::Pipe::valu, tile::Pipe::lds_read>();
    now = next;
  }
}

/// Zeros that are in registers from here on. As an operand of products that a branch may leave out, a constant would
/// take these registers too, and beside those of the result.
__device__ inline void begin_scores(Accumulator& scores) {
  scores = {};
  asm volatile("" : "+v"(scores));
}

/// matrix_steps at the edge of a mask. sees(step, t) says whether row tile t sees any of the step's keys; where it does
/// not, one branch leaves the tile out of all steps of a key tile. The operands of all these steps have come by then,
/// and the next ones are requested.
template <int kFirst, int kEnd, class Shape, class SEES>
__device__ void seen_matrix_steps(WaveState<Shape>& wave, const SEES& sees) {
  constexpr int kDimGroups = Shape::kDimGroups, kSteps = Shape::kSteps;
  const tile::Priority priority;
#pragma unroll
  for (int first = kFirst; first < kEnd; first += kDimGroups) {
    StepOperands operands[kDimGroups];
#pragma unroll
    for (int i = 0; i < kDimGroups; ++i) operands[i] = wave.operands(first + i);
#pragma unroll
    for (int i = 0; i < kDimGroups; ++i)
      if (first + kFetched + i < kEnd) wave.request(first + kFetched + i);
    tile::keep_order();
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
      if (first >= kSteps) begin_scores(wave.scores[t][first % kSteps / kDimGroups]);
      if (!sees(first, t)) continue;
#pragma unroll
      for (int i = 0; i < kDimGroups; ++i) {
        multiply(wave, operands[i], first + i, t, 0);
        multiply(wave, operands[i], first + i, t, 1);
      }
    }
    tile::keep_order();
  }
}

/// The largest score of a row tile in this lane, scaled.
__device__ inline float lane_maximum(const Accumulator (&scores)[kKeyTiles], float scale) {
  float largest = scores[0][0];
#pragma unroll
  for (int kk = 0; kk < kKeyTiles; ++kk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = __builtin_fmaxf(largest, scores[kk][i]);
  }
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
  highest = __builtin_fmaxf(highest, lane_xor<16>(highest));
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

/// What exponentiate multiplies the scores of row tile t with: `scale`; or 1, and they are scaled now. For the fma of
/// the highest score leaves what the rounding of the maximum took: 128 and more from 2^31 on, where 2^128 is infinite.
template <class Shape>
__device__ float scaled_if_far(WaveState<Shape>& wave, int t, float scale) {
  if (__builtin_expect(!wave.rows.is_far, true)) return scale;
#pragma unroll
  for (int kk = 0; kk < kKeyTiles; ++kk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) wave.scores[t][kk][i] = keep_scalar(wave.scores[t][kk][i] * scale);  // not in an fma
  }
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

/// p = exp2(score · scale - maximum) of row tile t. The sum takes p unrounded, the second product rounded and packed.
template <class Shape>
__device__ void exponentiate(WaveState<Shape>& wave, int t, float scale) {
  using Packer = Pack<typename Shape::Element, Shape::kRounding>;
  float& sum = wave.rows.sum[t];
  tile::keep_order();  // Without it the exponentials of all row tiles are in registers at once.
#pragma unroll
  for (int kk = 0; kk < kKeyTiles; ++kk) {
    Accumulator e;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      e[i] = fast_exp2(__builtin_fmaf(wave.scores[t][kk][i], scale, -wave.rows.maximum[t]));
      sum += e[i];
    }
    wave.p[t][kk] = Fragment{Packer::pack(e[0], e[1]), Packer::pack(e[2], e[3])};
  }
  sum = keep_scalar(sum);
}

/// P of a block from its scores. Where no score exceeds its row's running maximum, nothing is rescaled.
template <class Shape>
__device__ void softmax(WaveState<Shape>& wave, float scale) {
  constexpr int kRowTiles = Shape::kRowTiles;
  float highest[kRowTiles];
  bool is_higher[kRowTiles], is_any_higher = false;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) highest[t] = lane_maximum(wave.scores[t], scale);
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    is_higher[t] = wave_any(highest[t] > wave.rows.maximum[t]);
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
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) exponentiate(wave, t, factor);
  tile::keep_order();
}

/// From here on `x` holds anything. Otherwise a fragment that a branch leaves out would stay what it was, in registers
/// of its own.
__device__ inline void forget(Fragment& x) { asm volatile("" : "=v"(x)); }

/// softmax at the edge of a mask. sees(t) says whether row tile t sees any key, and hide(t) hides the scores of the
/// keys that it does not see. Every tile is rescaled: a rescaling in a branch would have the output in registers twice.
template <class Shape, class SEES, class HIDE>
__device__ void seen_softmax(WaveState<Shape>& wave, float scale, const SEES& sees, const HIDE& hide) {
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
    float rescale = 1.f;
#pragma unroll
    for (int kk = 0; kk < kKeyTiles; ++kk) forget(wave.p[t][kk]);
    if (sees(t)) {
      hide(t);
      rescale = raise_maximum(wave.rows, t, lane_maximum(wave.scores[t], scale));
      wave.rows.is_far |= is_far(wave.rows, t);
      exponentiate(wave, t, scaled_if_far(wave, t, scale));
    }
    rescale_out(wave.rows, t, rescale);
  }
  tile::keep_order();
}

}  // namespace aiter_like::flash_attn

// SPDX-License-Identifier: MIT
// The two phases of flash_attn_fwd.hip's loop, for one wave.
//   M: matrix_steps   O^T += V[n-1]^T P, then S^T = K[n] Q^T      192 | 128 MFMA at HEAD_DIM 128 | 64
//   S: softmax        P = exp2(S · scale - m), l += P
// The fragments of both products are one stream of 2 kSteps steps, requested from LDS ahead of their use: those of V
// first, kFetched of them before M begins.
#pragma once

#include "aiter_like/math.h"
#include "aiter_like/tile/fence.h"
#include "flash_attn_layout.h"

namespace aiter_like {
namespace {

constexpr Rounding kRounding = static_cast<Rounding>(ROUNDING);

constexpr int kFetched = kKeyTiles;  // fragments that the softmax phase requests, the first of V
// Steps (2 kRowTiles MFMA each: 96 | 128 clk) from a fragment's request to its use. A third one of K does not fit the
// registers, where S grows beside O and Q.
constexpr int kValuesAhead = 3, kKeysAhead = 2;

// Start value of m, and the raw score of a masked key. With a scale of at least 1e-8 a masked score stays below
// kMinimum after scaling, so it never raises m, and exp2 makes it 0 exactly: a fully masked row needs no special case.
constexpr float kMinimum = -1e30f;
constexpr float kMaskedScore = -3e38f;

/// `x`, out of reach of the compiler's vectoriser, which would add up two row tiles at once by packed instructions.
__device__ inline float keep_scalar(float x) {
  asm("" : "+v"(x));
  return x;
}

/// What a wave keeps over the blocks.
struct RowState {
  Fragment q[kRowTiles][kDimGroups][2];
  Accumulator out[kRowTiles][kDimGroups][2];
  float maximum[kRowTiles];  // of the scaled scores in base 2; equal in the four lanes of a row
  float sum[kRowTiles];      // this lane's part
};

using Scores = Accumulator[kRowTiles][kKeyTiles];
using Probabilities = Fragment[kRowTiles][kKeyTiles];
using FragmentStream = Chunk[kFetched];  // fragments on their way: step s in slot s % kFetched

/// Where this lane reads step 0 of K and of V: byte offsets into LDS, buffer included.
struct ReadOffsets {
  int keys, values;

  __device__ static ReadOffsets first_block() {
    return {KeyTile::lane_offset(), kValueTiles + ValueTile::lane_offset()};
  }
  __device__ void flip_keys() { keys ^= kTileBytes; }
  __device__ void flip_values() { values ^= kTileBytes; }
};

/// Begins to read fragment `step`: one of V for steps below kSteps, then one of K.
__device__ void request_step(FragmentStream& stream, const char* lds, const ReadOffsets& offsets, int step) {
  stream[step % kFetched] = step < kSteps ? ValueTile::read(lds, offsets.values, step)
                                          : KeyTile::read(lds, offsets.keys, step - kSteps);
}

__device__ StepOperands operands_of(const FragmentStream& stream, int step) {
  const Chunk& chunk = stream[step % kFetched];
  return step < kSteps ? ValueTile::operands(chunk) : KeyTile::operands(chunk);
}

__device__ void multiply_step(RowState& state, Scores& scores, const Probabilities& p, StepOperands a, int step) {
  const int kk = step % kKeyTiles;
  if (step < kSteps) {
    const int g = step / kKeyTiles;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      state.out[t][g][0] = mfma_16x16x16<Element>(a.first, p[t][kk], state.out[t][g][0]);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      state.out[t][g][1] = mfma_16x16x16<Element>(a.second, p[t][kk], state.out[t][g][1]);
  } else {
    const int j = step / kKeyTiles - kDimGroups;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      scores[t][kk] = mfma_16x16x16<Element>(a.first, state.q[t][j][0], j == 0 ? Accumulator{} : scores[t][kk]);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      scores[t][kk] = mfma_16x16x16<Element>(a.second, state.q[t][j][1], scores[t][kk]);
  }
}

/// Steps kFirst … kEnd - 1 of the stream, whose first kFetched fragments are on their way.
template <int kFirst, int kEnd>
__device__ void matrix_steps(RowState& state, Scores& scores, const Probabilities& p, FragmentStream& stream,
                             const char* lds, const ReadOffsets& offsets) {
  tile::keep_order();
  tile::set_priority<1>();
  StepOperands now = operands_of(stream, kFirst);
#pragma unroll
  for (int step = kFirst; step < kEnd; ++step) {
    tile::keep_order();  // step by step: the compiler's own order needs more registers than there are
    StepOperands next = now;
    if (step + 1 < kEnd) next = operands_of(stream, step + 1);
    const int value = step + kValuesAhead, key = step + kKeysAhead;
    if (kFirst + kFetched <= value && value < kEnd && value < kSteps) request_step(stream, lds, offsets, value);
    if (kFirst + kFetched <= key && key < kEnd && key >= kSteps) request_step(stream, lds, offsets, key);
    multiply_step(state, scores, p, now, step);
    now = next;
  }
  tile::keep_order();
  tile::set_priority<0>();
}

/// The first kFetched of a stream that begins with step kFirst.
template <int kFirst>
__device__ void request_first(FragmentStream& stream, const char* lds, const ReadOffsets& offsets) {
#pragma unroll
  for (int step = kFirst; step < kFirst + kFetched; ++step) request_step(stream, lds, offsets, step);
}

/// The largest score of each row tile in this lane, scaled.
__device__ void lane_maxima(const Scores& scores, float scale, float (&highest)[kRowTiles]) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    float largest = scores[t][0][0];
#pragma unroll
    for (int kk = 0; kk < kKeyTiles; ++kk) {
#pragma unroll
      for (int i = 0; i < 4; ++i) largest = __builtin_fmaxf(largest, scores[t][kk][i]);
    }
    highest[t] = largest * scale;
  }
}

/// The value of `x` in lane (own lane XOR 32).
__device__ float other_half(float x) {
  return __builtin_bit_cast(
      float, __builtin_amdgcn_ds_bpermute((fresh_lane() ^ 32) * 4, __builtin_bit_cast(int, x)));
}

/// Raises the running maximum of row tile t and rescales what was accumulated under the old one.
__device__ void raise_maximum(RowState& state, int t, float highest) {
  highest = __builtin_fmaxf(highest, lane_xor<16>(highest));
  highest = __builtin_fmaxf(highest, other_half(highest));
  const float maximum = __builtin_fmaxf(state.maximum[t], highest);
  const float rescale = fast_exp2(state.maximum[t] - maximum);
  state.maximum[t] = maximum;
  state.sum[t] *= rescale;
#pragma unroll
  for (int g = 0; g < kDimGroups; ++g) {
    state.out[t][g][0] *= rescale;
    state.out[t][g][1] *= rescale;
  }
}

/// p = exp2(score · scale - maximum): added to the sum unrounded, then rounded and packed for the second product.
__device__ void exponentiate(RowState& state, const Scores& scores, float scale, Probabilities& p) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    tile::keep_order();  // tile by tile, or the exponentials of all tiles are in registers at once
#pragma unroll
    for (int kk = 0; kk < kKeyTiles; ++kk) {
      Accumulator e;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        e[i] = fast_exp2(__builtin_fmaf(scores[t][kk][i], scale, -state.maximum[t]));
        state.sum[t] += e[i];
      }
      p[t][kk] = Fragment{Pack<Element, kRounding>::pack(e[0], e[1]), Pack<Element, kRounding>::pack(e[2], e[3])};
    }
    state.sum[t] = keep_scalar(state.sum[t]);
  }
}

/// P of a block from its scores. Where no score exceeds its row's running maximum, nothing is rescaled.
__device__ void softmax(RowState& state, const Scores& scores, float scale, Probabilities& p) {
  float highest[kRowTiles];
  lane_maxima(scores, scale, highest);
  bool is_higher[kRowTiles], is_any_higher = false;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    is_higher[t] = wave_any(highest[t] > state.maximum[t]);
    is_any_higher |= is_higher[t];
  }
  if (__builtin_expect(is_any_higher, false)) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      if (is_higher[t]) raise_maximum(state, t, highest[t]);
  }
  exponentiate(state, scores, scale, p);
  tile::keep_order();
}

}  // namespace
}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// The two phases of flash_attn_fwd.hip's loop, for one wave.
//   M: matrix_steps   O^T += V[n-1]^T P, then S^T = K[n] Q^T      192 | 128 MFMA at HEAD_DIM 128 | 64
//   S: softmax        P = exp2(S · scale - m), l += P
// The fragments of both products are one stream of 2 kSteps steps, those of V first, requested from LDS ahead of their
// use, kFetched of them before M begins. Key tile after key tile: scores need registers as P's become free.
#pragma once

#include "aiter_like/math.h"
#include "aiter_like/tile/fence.h"
#include "flash_attn_layout.h"

namespace aiter_like {
namespace {

constexpr Rounding kRounding = static_cast<Rounding>(ROUNDING);

constexpr int kFetched = 4;  // fragments that the softmax phase requests, the first of V
// Steps (2 kRowTiles MFMA each: 96 | 128 clk) from a fragment's request to its use.
constexpr int kAhead = 3;

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

/// What a wave has in registers.
struct WaveState {
  RowState rows;
  Scores scores;
  Probabilities p;
  FragmentStream stream;
  ReadOffsets offsets;
  const char* lds;

  /// Begins to read fragment `step`: one of V for steps below kSteps, then one of K.
  __device__ void request(int step) {
    stream[step % kFetched] = step < kSteps ? ValueTile::read(lds, offsets.values, step)
                                            : KeyTile::read(lds, offsets.keys, step - kSteps);
  }
  /// The first kFetched of a stream that begins with step `first`.
  __device__ void request_first(int first) {
#pragma unroll
    for (int step = first; step < first + kFetched; ++step) request(step);
  }
  __device__ StepOperands operands(int step) const {
    const Chunk& chunk = stream[step % kFetched];
    return step < kSteps ? ValueTile::operands(chunk) : KeyTile::operands(chunk);
  }
};

/// A step's product with row tile t: by the half, or even columns, of the fragment for which = 0, the other for 1.
__device__ inline void multiply(WaveState& wave, StepOperands a, int step, int t, int which) {
  const int kk = step % kSteps / kDimGroups, g = step % kDimGroups;
  const Fragment fragment = which == 0 ? a.first : a.second;
  if (step < kSteps) {
    Accumulator& out = wave.rows.out[t][g][which];
    out = mfma_16x16x16<Element>(fragment, wave.p[t][kk], out);
  } else {
    Accumulator& score = wave.scores[t][kk];
    score = mfma_16x16x16<Element>(fragment, wave.rows.q[t][g][which], score);
  }
}

/// Orders a step: at most one instruction of another kind of each pipe between two MFMA, which leave room for three.
__device__ inline void spread_between_mfma() {
  constexpr int kMfma = 0x8, kValu = 0x2, kLdsRead = 0x100;  // what a group of instructions is made of
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    __builtin_amdgcn_sched_group_barrier(kMfma, 1, 0);
    __builtin_amdgcn_sched_group_barrier(kValu, 1, 0);
    __builtin_amdgcn_sched_group_barrier(kLdsRead, 1, 0);
  }
}

/// Steps kFirst … kEnd - 1 of the stream, whose first kFetched fragments are on their way.
template <int kFirst, int kEnd>
__device__ void matrix_steps(WaveState& wave) {
  tile::keep_order();
  tile::set_priority<1>();
  StepOperands now = wave.operands(kFirst);
#pragma unroll
  for (int step = kFirst; step < kEnd; ++step) {
    tile::keep_order();  // step by step: the compiler's own order needs more registers than there are
    StepOperands next = now;
    if (step + 1 < kEnd) next = wave.operands(step + 1);
    const int ahead = step + kAhead;
    if (kFirst + kFetched <= ahead && ahead < kEnd) wave.request(ahead);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        if (step >= kSteps && step % kDimGroups + which == 0) wave.scores[t][step % kSteps / kDimGroups] = {};
        multiply(wave, now, step, t, which);
      }
    }
    spread_between_mfma();
    now = next;
  }
  tile::keep_order();
  tile::set_priority<0>();
}

/// Zeros, in registers from here on: as an operand of a product that a branch may leave out they would be there anyway,
/// and beside the result.
__device__ inline void begin_scores(Accumulator& scores) {
  scores = {};
  asm volatile("" : "+v"(scores));
}

/// The same at the edge of a mask: sees(step, t) says whether row tile t sees any of the step's keys; if not, it is
/// left out, by one branch for the steps of a key tile. Their operands are all there then, the next ones requested.
template <int kFirst, int kEnd, class SEES>
__device__ void seen_matrix_steps(WaveState& wave, const SEES& sees) {
  tile::keep_order();
  tile::set_priority<1>();
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
    for (int t = 0; t < kRowTiles; ++t) {
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
  tile::set_priority<0>();
}

/// The largest score of a row tile in this lane, scaled.
__device__ float lane_maximum(const Accumulator (&scores)[kKeyTiles], float scale) {
  float largest = scores[0][0];
#pragma unroll
  for (int kk = 0; kk < kKeyTiles; ++kk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = __builtin_fmaxf(largest, scores[kk][i]);
  }
  return largest * scale;
}

/// The value of `x` in lane (own lane XOR 32).
__device__ float other_half(float x) {
  return __builtin_bit_cast(
      float, __builtin_amdgcn_ds_bpermute((fresh_lane() ^ 32) * 4, __builtin_bit_cast(int, x)));
}

/// Raises the running maximum of row tile t; what was accumulated under the old one is to be multiplied by the result.
__device__ float raise_maximum(RowState& state, int t, float highest) {
  highest = __builtin_fmaxf(highest, lane_xor<16>(highest));
  highest = __builtin_fmaxf(highest, other_half(highest));
  const float maximum = __builtin_fmaxf(state.maximum[t], highest);
  const float rescale = fast_exp2(state.maximum[t] - maximum);
  state.maximum[t] = maximum;
  state.sum[t] *= rescale;
  return rescale;
}

__device__ void rescale_out(RowState& state, int t, float rescale) {
#pragma unroll
  for (int g = 0; g < kDimGroups; ++g) {
    state.out[t][g][0] *= rescale;
    state.out[t][g][1] *= rescale;
  }
}

/// p = exp2(score · scale - maximum) of row tile t: added to the sum unrounded, then rounded and packed for the second
/// product.
__device__ void exponentiate(WaveState& wave, int t, float scale) {
  float& sum = wave.rows.sum[t];
  tile::keep_order();  // tile by tile, or the exponentials of all tiles are in registers at once
#pragma unroll
  for (int kk = 0; kk < kKeyTiles; ++kk) {
    Accumulator e;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      e[i] = fast_exp2(__builtin_fmaf(wave.scores[t][kk][i], scale, -wave.rows.maximum[t]));
      sum += e[i];
    }
    wave.p[t][kk] = Fragment{Pack<Element, kRounding>::pack(e[0], e[1]), Pack<Element, kRounding>::pack(e[2], e[3])};
  }
  sum = keep_scalar(sum);
}

/// P of a block from its scores. Where no score exceeds its row's running maximum, nothing is rescaled.
__device__ void softmax(WaveState& wave, float scale) {
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
  }
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) exponentiate(wave, t, scale);
  tile::keep_order();
}

/// From here on `x` holds anything: else what is not computed would stay what it was, in registers of its own.
__device__ inline void forget(Fragment& x) { asm volatile("" : "=v"(x)); }

/// The same at the edge of a mask, where sees(t) says whether row tile t sees any key, and hide(t) hides the scores of
/// those that it does not see. Here each tile is rescaled: out in a branch would be in registers twice.
template <class SEES, class HIDE>
__device__ void seen_softmax(WaveState& wave, float scale, const SEES& sees, const HIDE& hide) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    float rescale = 1.f;
#pragma unroll
    for (int kk = 0; kk < kKeyTiles; ++kk) forget(wave.p[t][kk]);
    if (sees(t)) {
      hide(t);
      rescale = raise_maximum(wave.rows, t, lane_maximum(wave.scores[t], scale));
      exponentiate(wave, t, scale);
    }
    rescale_out(wave.rows, t, rescale);
  }
  tile::keep_order();
}

}  // namespace
}  // namespace aiter_like

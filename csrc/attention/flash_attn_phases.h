// SPDX-License-Identifier: MIT
// The two phases of flash_attn_fwd's loop, for one wave.
//   M: matrix_steps   O^T += V[n-1]^T P, then S^T = K[n] Q^T      192 MFMA 16x16x16 | 64 32x32x8 at kHeadDim 128 | 64
//   S: softmax        P = exp2(S · scale - m), l += P             flash_attn_softmax.h
// The fragments of both products are one stream of 2 kSteps steps, V's before K's. Each fragment is requested from LDS
// ahead of its use, the first kFetched of them before M begins. The steps go key tile by key tile, because the
// registers of P become free in this order and scores need them.
#pragma once

#include "aiter_like/tile/ping_pong.h"
#include "aiter_like/tile/spread.h"
#include "flash_attn_layout.h"

namespace aiter_like::flash_attn {

constexpr int kFetched = 6;  // fragments that the softmax phase requests: V's first ones
// Steps (2 kRowTiles MFMA each: 96 | 128 clk) from a fragment's request to its use.
constexpr int kAhead = 5;

/// Registers that a wave keeps over the blocks.
template <class Shape>
struct RowState {
  Fragment q[Shape::kRowTiles][Shape::kChunks][2];
  typename Shape::Accumulators out[Shape::kRowTiles][Shape::kDimGroups][2];
  float maximum[Shape::kRowTiles];  // maximum of the scaled scores in base 2; all lanes of a row have the same
  float sum[Shape::kRowTiles];      // sum of this lane's probabilities
  bool is_far;                      // whether a maximum of the wave is far from 0 (scaled_if_far)
};

/// Byte offsets into LDS at which this lane reads step 0 of K and of V, buffer included.
template <class Shape>
struct ReadOffsets {
  int keys, values;

  __device__ static ReadOffsets first_block() {
    return {Blocks<Shape>::key_offset(lane_index()), Blocks<Shape>::value_offset(lane_index())};
  }
  __device__ void flip_keys() { keys ^= Blocks<Shape>::kOtherBuffer; }
  __device__ void flip_values() { values ^= Blocks<Shape>::kOtherBuffer; }
};

/// The registers of a wave.
template <class Shape>
struct WaveState {
  RowState<Shape> rows;
  typename Shape::Accumulators scores[Shape::kRowTiles][Shape::kKeyTiles];
  Fragment p[Shape::kRowTiles][Shape::kFragments];
  Chunk stream[kFetched];  // fragments on their way; the one of step s is in slot s % kFetched
  ReadOffsets<Shape> offsets;
  char* lds;
  uint32_t half;  // 0x8000, in a register

  /// Begins to read the fragment of `step`: one of V for steps below kSteps, else one of K.
  __device__ void request(int step) {
    stream[step % kFetched] =
        step < Shape::kSteps
            ? *reinterpret_cast<const Chunk*>(lds + offsets.values + step * Blocks<Shape>::kStepBytes)
            : Blocks<Shape>::read_keys(lds, offsets.keys, step - Shape::kSteps);
  }
  /// Requests the first kFetched fragments of a stream that begins with step `first`.
  __device__ void request_first(int first) {
#pragma unroll
    for (int step = first; step < first + kFetched; ++step) request(step);
  }
  __device__ StepOperands operands(int step) const {
    const Chunk& chunk = stream[step % kFetched];
    return {chunk.lo, chunk.hi};
  }
};

/// A step's product with row tile t, by one of the two fragments of `a`: by the low half or the even columns for
/// which = 0, by the high half or the odd columns for which = 1.
template <class Shape>
__device__ inline void multiply(WaveState<Shape>& wave, StepOperands a, int step, int t, int which) {
  using Product = Mfma<typename Shape::Element, Shape::kWidth>;
  const Fragment fragment = which == 0 ? a.first : a.second;
  if (step < Shape::kSteps) {
    auto& out = wave.rows.out[t][step % Shape::kDimGroups][which];
    out = Product::multiply(fragment, wave.p[t][step / Shape::kDimGroups], out);
  } else {
    auto& score = wave.scores[t][step % Shape::kSteps / Shape::kChunks];
    score = Product::multiply(fragment, wave.rows.q[t][step % Shape::kChunks][which], score);
  }
}

/// Steps kFirst … kEnd - 1 of the stream, whose first kFetched fragments are on their way. What scalars() does stands
/// between the second step's products, where it costs no time.
template <int kFirst, int kEnd, class Shape, class SCALARS>
__device__ void matrix_steps(WaveState<Shape>& wave, const SCALARS& scalars) {
  const tile::Priority priority;
  StepOperands now = wave.operands(kFirst);
#pragma unroll
  for (int step = kFirst; step < kEnd; ++step) {
    tile::keep_order();  // Without it the compiler mixes steps, for which there are not enough registers.
    StepOperands next = now;
    if (step + 1 < kEnd) next = wave.operands(step + 1);
    const int ahead = step + kAhead;
    if (kFirst + kFetched <= ahead && ahead < kEnd) wave.request(ahead);
    if (step == kFirst + 1) scalars();
#pragma unroll
    for (int which = 0; which < 2; ++which) {
#pragma unroll
      for (int t = 0; t < Shape::kRowTiles; ++t) {
        if (step >= Shape::kSteps && step % Shape::kChunks + which == 0)
          wave.scores[t][step % Shape::kSteps / Shape::kChunks] = {};
        multiply(wave, now, step, t, which);
      }
    }
    tile::spread_between_products<2 * Shape::kRowTiles, tile::Pipe::scalar, tile::Pipe::scalar, tile::Pipe::valu,
                                  tile::Pipe::lds_read>();
    now = next;
  }
}

/// Zeros that are in registers from here on. A constant as operand of products that a branch may leave out would take
/// these registers too, and beside those of the result.
template <class ACCUMULATORS>
__device__ inline void begin_scores(ACCUMULATORS& scores) {
  scores = {};
  asm volatile("" : "+v"(scores));
}

/// matrix_steps at the edge of a mask. sees(step, t) says whether row tile t sees any of the step's keys; where it does
/// not, one branch leaves the tile out of all steps of a key tile. The operands of all these steps have come by then,
/// and the next ones are requested.
template <int kFirst, int kEnd, class Shape, class SEES>
__device__ void seen_matrix_steps(WaveState<Shape>& wave, const SEES& sees) {
  constexpr int kTileSteps = Shape::kTileSteps, kSteps = Shape::kSteps;
  const tile::Priority priority;
#pragma unroll
  for (int first = kFirst; first < kEnd; first += kTileSteps) {
    StepOperands operands[kTileSteps];
#pragma unroll
    for (int i = 0; i < kTileSteps; ++i) operands[i] = wave.operands(first + i);
#pragma unroll
    for (int i = 0; i < kTileSteps; ++i)
      if (first + kFetched + i < kEnd) wave.request(first + kFetched + i);
    tile::keep_order();
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
      if (first >= kSteps) begin_scores(wave.scores[t][first % kSteps / kTileSteps]);
      if (!sees(first, t)) continue;
#pragma unroll
      for (int i = 0; i < kTileSteps; ++i) {
        multiply(wave, operands[i], first + i, t, 0);
        multiply(wave, operands[i], first + i, t, 1);
      }
    }
    tile::keep_order();
  }
}

}  // namespace aiter_like::flash_attn

// SPDX-License-Identifier: MIT
// Between memory and a wave's registers in flash_attn_fwd: q comes in; out and LSE go out, or the partial result of a
// split query block, whose parts are merged here.
#pragma once

#include <type_traits>

#include "flash_attn_softmax.h"
#include "flash_attn_task.h"
#include "flash_attn_visibility.h"

namespace aiter_like::flash_attn {

/// 8 elements of out, rounded. Any NaN becomes the one NaN of from_float.
template <class Shape>
__device__ inline Chunk round_row(const float (&values)[8]) {
  using Element = typename Shape::Element;
  constexpr Rounding kRounding = Shape::kRounding;
  Chunk rounded;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float low = values[2 * w], high = values[2 * w + 1];
    if constexpr (std::is_same_v<Element, f16>)
      rounded[w] = Pack<Element, kRounding>::pack(low, high);
    else
      rounded[w] =
          from_float<Element, kRounding>(low).bits | uint32_t{from_float<Element, kRounding>(high).bits} << 16;
  }
  return rounded;
}

/// A row that sees no key has the sum 0 and becomes zeros.
__device__ inline float inverse_sum(float sum) { return sum == 0.f ? 0.f : 1.f / sum; }

__device__ inline float natural_lse(float maximum, float sum) {
  constexpr float kLn2 = 0.693147180559945f;
  return sum == 0.f ? -__builtin_inff() : (maximum + fast_log2(sum)) * kLn2;
}

/// Loads q of the block's rows and begins with nothing summed. Rows past the end repeat the last one.
template <class Shape>
__device__ void load_rows(RowState<Shape>& state, const FlashAttnArgs& args, const Task<Shape>& task) {
  state.is_far = false;
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
    const int row = task.row + tile_row<Shape>(t, column_of<Shape>(lane_index()));
    const char* source =
        task.row_of(args.q, args, row < task.rows ? row : task.rows - 1) + 16 * group_of<Shape>(lane_index());
    state.maximum[t] = kMinimum;
    state.sum[t] = 0.f;
#pragma unroll
    for (int j = 0; j < Shape::kChunks; ++j) {
      const Chunk chunk = *reinterpret_cast<const Chunk*>(source + 16 * Shape::kGroups * j);
      state.q[t][j][0] = chunk.lo;
      state.q[t][j][1] = chunk.hi;
    }
#pragma unroll
    for (int g = 0; g < Shape::kDimGroups; ++g) state.out[t][g][0] = state.out[t][g][1] = {};
  }
}

/// Makes each row's sum that over its lanes.
template <class Shape>
__device__ void sum_rows(RowState<Shape>& state) {
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
    if constexpr (Shape::kWidth == 16) state.sum[t] += lane_xor<16>(state.sum[t]);
    state.sum[t] += lane_xor<32>(state.sum[t]);
  }
}

/// Elements 8 kGroups · chunk + 8 group + 0…7 of a row of row tile t.
template <class Shape>
__device__ void out_chunk(const RowState<Shape>& state, int t, int chunk, float (&values)[8]) {
  const int g = chunk / Shape::kParts, part = chunk % Shape::kParts;
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = state.out[t][g][i % 2][4 * part + i / 2];
}

template <class Shape>
__device__ void store_rows(const RowState<Shape>& state, const FlashAttnArgs& args, const Task<Shape>& task) {
  const int lane = fresh_lane();
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
    const int row = task.row + tile_row<Shape>(t, column_of<Shape>(lane));
    if (row >= task.rows) continue;
    char* out = task.row_of(args.out, args, row) + 16 * group_of<Shape>(lane);
    const float inverse = inverse_sum(state.sum[t]);
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      float values[8];
      out_chunk(state, t, chunk, values);
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] *= inverse;
      *reinterpret_cast<Chunk*>(out + 16 * Shape::kGroups * chunk) = round_row<Shape>(values);
    }
    if (args.lse != nullptr && group_of<Shape>(lane) == 0)
      task.lse_of(args, row) = natural_lse(state.maximum[t], state.sum[t]);
  }
}

/// The result of a part of the keys, in fp32: out [kBlockM, kHeadDim], not divided by the sum, and the maxima and sums
/// of the kBlockM rows.
template <class Shape>
struct PartialResult {
  static constexpr int kFloats = Shape::kBlockM * (Shape::kHeadDim + 2);

  float *out, *maximum, *sum;

  __device__ PartialResult(float* partials, int tail, int parts, int part)
      : out(partials + (static_cast<int64_t>(tail) * parts + part) * kFloats),
        maximum(out + Shape::kBlockM * Shape::kHeadDim),
        sum(maximum + Shape::kBlockM) {}
};

template <class Shape>
__device__ void store_partial(const RowState<Shape>& state, const FlashAttnArgs& args, const Task<Shape>& task) {
  const PartialResult<Shape> partial(args.partials, task.tail, task.parts, task.part);
  const int lane = fresh_lane();
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
    const int row = tile_row<Shape>(t, column_of<Shape>(lane));
    if (Shape::kSkipsTiles && task.row + tile_row<Shape>(t, 0) >= task.rows) continue;  // nobody merges them
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      Vec<float, 8> values;
      out_chunk(state, t, chunk, values.data);
      store_vec(partial.out + row * Shape::kHeadDim + 8 * (Shape::kGroups * chunk + group_of<Shape>(lane)), values);
    }
    if (group_of<Shape>(lane) == 0) {
      partial.maximum[row] = state.maximum[t];
      partial.sum[row] = state.sum[t];
    }
  }
}

/// Merges 8 elements, from `byte` on, of one row of a split query block from its parts, in their order.
template <class Shape>
__device__ inline void merge_row(const FlashAttnArgs& args, Task<Shape> task, int row, int byte) {
  using Partial = PartialResult<Shape>;
  float maximum = kMinimum;
  for (int part = 0; part < task.parts; ++part)
    maximum = __builtin_fmaxf(maximum, Partial(args.partials, task.tail, task.parts, part).maximum[row]);
  float values[8] = {}, sum = 0.f;
  for (int part = 0; part < task.parts; ++part) {
    const Partial partial(args.partials, task.tail, task.parts, part);
    const float weight = fast_exp2(partial.maximum[row] - maximum);
    sum += weight * partial.sum[row];
    const Vec<float, 8> out = load_vec<8>(partial.out + row * Shape::kHeadDim + byte / 2);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] += weight * out.data[i];
  }
  const float inverse = inverse_sum(sum);
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] *= inverse;
  *reinterpret_cast<Chunk*>(task.row_of(args.out, args, task.row + row) + byte) = round_row<Shape>(values);
  if (args.lse != nullptr && byte == 0) task.lse_of(args, task.row + row) = natural_lse(maximum, sum);
}

}  // namespace aiter_like::flash_attn

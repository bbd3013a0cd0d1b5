// SPDX-License-Identifier: MIT
// What goes before flash_attn_bwd's products and behind them, a workgroup for a block of rows of one head.
//   prepare   -delta and -LSE of each row, the block's part of the sink's gradient, its turn, and the zeros of atomics
//   finish    dQ in 16 bits from the block's sums
// Bound: memory.
#pragma once

#include "aiter_like/lanes.h"
#include "aiter_like/reduce.h"
#include "flash_attn_bwd_turns.h"
#include "flash_attn_bwd_scores.h"

namespace aiter_like::attn_bwd {

constexpr float kFarLse = 4096.f;  // up to there the rounding of a LSE changes P by less than half a unit of f16
constexpr float kInfinity = __builtin_inff();

/// One row's LSE to base 2, as highest + rest.
struct RowLse {
  float highest, rest;
};

/// A block of rows of a head.
template <class Shape>
struct RowsTask {
  static constexpr int kM = Shape::kBlockM, kLanes = kThreads / kM;  // lanes of a row
  using Element = typename Shape::Element;
  using Map = ScoreMap<typename Shape::Scores>;

  const Args& args;
  Sequence<Shape> sequence;
  int head, block;

  __device__ RowsTask(const Args& args, WorkgroupIndex workgroup)
      : args(args), sequence(Sequence<Shape>::of(args, static_cast<int>(workgroup.z))),
        head(static_cast<int>(workgroup.y)), block(static_cast<int>(workgroup.x)) {}

  __device__ bool is_there() const { return block < sequence.blocks.row_blocks(); }
  __device__ int64_t scratch_block() const { return sequence.block_of(args, head, block); }

  __device__ void prepare(float* lds) const {
    const int lane = thread_index() % kLanes, row = block * kM + thread_index() / kLanes;
    const auto& blocks = sequence.blocks;
    const bool is_row = row < blocks.rows, has_keys = is_row && blocks.highest(row) >= 0;
    const int64_t index = sequence.view_batch * args.lse_batch + head * args.lse_head + sequence.first_row + row;
    const float lse = is_row ? args.lse[index] : -kInfinity;
    float delta = 0.f;
    if (has_keys)
      for (int column = 8 * lane; column < args.dim_v; column += 8 * kLanes) delta += product(row, column);
#pragma unroll
    for (int other = 1; other < kLanes; other *= 2) delta += from_other(delta, other);
    if (is_row && args.dlse != nullptr) delta -= args.dlse[index];
    const bool sees = lse != -kInfinity;
    delta = sees ? usual_nan(delta) : 0.f;
    RowLse value{lse * kLog2E, 0.f};
    if constexpr (kMayBeFar) add_far(value, lse, row);
    if (lane == 0) {
      store_value(RowValue::minus_lse, row, sees ? -usual_nan(value.highest) : -kInfinity);
      store_value(RowValue::minus_delta, row, -delta);
      if constexpr (kMayBeFar) store_value(RowValue::minus_rest, row, -value.rest);
    }
    const int64_t all_blocks = int64_t{args.row_blocks} * args.heads;
    for (int chain = thread_index(); chain < args.plan.chains; chain += kThreads)
      args.turns[chain * all_blocks + scratch_block()] = 0;
    if (Shape::kIsAtomic) clear_sums();
    if (args.dsink == nullptr) return;
    const float score = kMayBeFar ? plus_bias(0.f, args.sink[head]) : args.sink[head] * kLog2E;
    const float weight = fast_exp2(score - value.highest - value.rest);
    store_sink_partial(lane == 0 && sees ? -weight * delta : 0.f, lds);
  }

  /// dQ of the block, its rows' columns 16 bytes at a time; zeros where no key is seen.
  __device__ void finish() const {
    const float* const sums = args.dq_sums + scratch_block() * Shape::kDqFloats;
    const int64_t chain_floats = int64_t{args.row_blocks} * args.heads * Shape::kDqFloats;
    for (int unit = thread_index(); unit < Shape::kDqFloats / 8; unit += kThreads) {
      const int rt = unit / kWaveSize % Shape::kRowTiles, g = unit / kWaveSize / Shape::kRowTiles;
      const int row = block * kM + 16 * rt + lane_index() % 16, column = 32 * g + lane_index() / 16 * 8;
      if (row >= sequence.blocks.rows || column >= args.dim) continue;
      Accumulator total[2] = {};
      for (int chain = 0; chain < args.plan.chains; ++chain) {
        if (!sequence.blocks.has_turns(block, chain, args.plan.chains)) continue;
#pragma unroll
        for (int e = 0; e < 2; ++e)
          total[e] += *reinterpret_cast<const Accumulator*>(sums + chain * chain_floats +
                                                            Shape::dq_place(2 * g + e, rt));
      }
      float values[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = total[i % 2][i / 2] * args.softmax_scale;
      store_vec<8>(reinterpret_cast<Element*>(sequence.row_of(args.dq, head, row)) + column,
                   vec_from_float<Element, 8>(values));
    }
  }

 private:
  static constexpr bool kMayBeFar = !kIsPlain<typename Shape::Scores>;

  __device__ void store_value(RowValue which, int row, float value) const {
    const int64_t place = scratch_block() * kRowValueCount<Shape> + static_cast<int>(which);
    args.row_values[place * kM + row - block * kM] = value;
  }
  __device__ static float usual_nan(float x) { return x == x ? x : __builtin_nanf(""); }

  __device__ static float from_other(float x, int lanes) {
    return bits_float(from_lane(float_bits(x), lane_index() ^ lanes));
  }

  /// Σ dout · out of eight columns.
  __device__ float product(int row, int column) const {
    const auto at = [&](const FlashAttnTensor& tensor) {
      return load_vec<8>(reinterpret_cast<const Element*>(sequence.row_of(tensor, head, row)) + column);
    };
    const Vec<Element, 8> out = at(args.out), dout = at(args.dout);
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __builtin_fmaf(to_float(out[i]), to_float(dout[i]), sum);
    return sum;
  }

  __device__ void clear_sums() const {
    float* const sums = args.dq_sums + scratch_block() * Shape::kDqFloats;
    for (int at = 4 * thread_index(); at < Shape::kDqFloats; at += 4 * kThreads)
      *reinterpret_cast<Accumulator*>(sums + at) = Accumulator{};
  }

  /// The maximum and log2 Σ p of a row whose LSE is so far from 0 that fp32 rounds off what P needs of it, anew.
  __device__ void add_far(RowLse& value, float lse, int row) const {
    const float size = __builtin_fabsf(lse);
    if (!(size > kFarLse && size <= 1e38f)) return;
    const int lane = thread_index() % kLanes, kv_head = head / args.group;
    const auto& blocks = sequence.blocks;
    const Map map = Map::of(args, sequence.batch, head, sequence.first_row, blocks);
    const auto* q = reinterpret_cast<const Element*>(sequence.row_of(args.q, head, row));
    float highest = -kInfinity, total = 0.f;
    const auto take = [&](float score) {
      const float maximum = __builtin_fmaxf(highest, score);
      total = total * fast_exp2(highest - maximum) + fast_exp2(score - maximum);
      highest = maximum;
    };
    for (int key = lane; key <= blocks.highest(row); key += kLanes) {
      if (key < blocks.lowest(row) && key >= blocks.sink) continue;
      const auto* k = reinterpret_cast<const Element*>(sequence.key_of(args.k, kv_head, key));
      float sum = 0.f;
      for (int d = 0; d < args.dim; ++d) sum = __builtin_fmaf(to_float(q[d]), to_float(k[d]), sum);
      take(map.score(sum, row, key).value);
    }
#pragma unroll
    for (int other = 1; other < kLanes; other *= 2) {
      const float maximum = from_other(highest, other), sum = from_other(total, other);
      if (sum == 0.f) continue;
      const float larger = __builtin_fmaxf(highest, maximum);
      total = total * fast_exp2(highest - larger) + sum * fast_exp2(maximum - larger);
      highest = larger;
    }
    if (args.sink != nullptr) take(plus_bias(0.f, args.sink[head]));
    value = {highest, fast_log2(total)};
  }

  __device__ void store_sink_partial(float part, float* lds) const {
    lds[thread_index()] = part;
    workgroup_barrier();
    if (thread_index() != 0) return;
    float sum = 0.f;
    for (int i = 0; i < kThreads; i += kLanes) sum += lds[i];
    args.sink_partials[scratch_block()] = sum;
  }
};

template <class Config>
__device__ void prepare_body(const Args& args, WorkgroupIndex workgroup, float* lds) {
  const RowsTask<Shape<Config>> task(args, workgroup);
  if (task.is_there()) task.prepare(lds);
}

template <class Config>
__device__ void finish_body(const Args& args, WorkgroupIndex workgroup) {
  const RowsTask<Shape<Config>> task(args, workgroup);
  if (task.is_there()) task.finish();
}

/// Zeros for rows of dQ, or keys of dK and dV, that no packed sequence has; a work-item looks for a row's, and a wave
/// clears it.
template <class Config>
__device__ void strays_body(const Args& args, int workgroup, bool is_rows) {
  using Shape = attn_bwd::Shape<Config>;
  using Element = typename Shape::Element;
  const int row = workgroup * kThreads + thread_index(), count = is_rows ? args.rows : args.keys;
  bool is_stray = row < count;
  for (int batch = 0; batch < args.batch; ++batch) {
    const Sequence<Shape> sequence = Sequence<Shape>::of(args, batch);
    const int first = is_rows ? sequence.first_row : sequence.first_key;
    const int own = is_rows ? sequence.blocks.rows : sequence.blocks.keys;
    is_stray &= row < first || row >= first + own;
  }
  const auto clear = [&](const FlashAttnTensor& tensor, int of_row, int heads, int columns) {
    char* const data = static_cast<char*>(const_cast<void*>(tensor.data)) + of_row * tensor.row;
    for (int head = 0; head < heads; ++head)
      for (int column = 8 * lane_index(); column < columns; column += 8 * kWaveSize)
        store_vec<8>(reinterpret_cast<Element*>(data + head * tensor.head) + column, Vec<Element, 8>{});
  };
  const int wave_row = workgroup * kThreads + wave_index() * kWaveSize;
  for (uint64_t strays = lanes_with(is_stray); strays != 0; strays &= strays - 1) {
    const int of_row = wave_row + lowest_lane(strays);
    if (is_rows) {
      clear(args.dq, of_row, args.heads, args.dim);
    } else {
      clear(args.dk, of_row, args.kv_heads, args.dim);
      clear(args.dv, of_row, args.kv_heads, args.dim_v);
    }
  }
}

/// The sink's gradient of one head, from the parts of its blocks in one order; a wave for each head.
template <class Config>
__device__ void sink_body(const Args& args, int head) {
  float sum = 0.f;
  for (int batch = 0; batch < args.batch; ++batch) {
    const Sequence<Shape<Config>> sequence = Sequence<Shape<Config>>::of(args, batch);
    for (int block = lane_index(); block < sequence.blocks.row_blocks(); block += kWaveSize)
      sum += args.sink_partials[sequence.block_of(args, head, block)];
  }
  sum = wave_sum(sum);
  if (lane_index() == 0) args.dsink[head] = sum;
}

}  // namespace aiter_like::attn_bwd

// SPDX-License-Identifier: MIT
// The sum of the parts of paged_attention, a kernel of its own behind the one that reads: a counter by which the last
// part of a sequence would know itself has to be zero beforehand, which memory that callers hand in is not, and zeroing
// it is a launch as well.
#pragma once

#include "paged_attention_body.h"

namespace aiter_like::paged {

/// f over all lanes of the wave, in each of them.
template <class F>
__device__ float wave_reduce(float x, F f) {
  x = f(x, lane_xor<1>(x));
  x = f(x, lane_xor<2>(x));
  x = f(x, lane_xor<4>(x));
  x = f(x, lane_xor<8>(x));
  x = f(x, lane_xor<16>(x));
  return f(x, lane_xor<32>(x));
}

/// LDS of a workgroup whose waves share the parts of one row.
template <class Config>
struct MergeLds {
  float values[kWaves][Config::kHeadDimV];
};

/// Reads a wave's share of the parts of one row of one head: every `waves`th part, of which a lane has some columns.
template <class Config>
struct PartReader {
  using S = Shape<Config>;
  static constexpr int kPerLane = (S::kHeadDimV + kWaveSize - 1) / kWaveSize, kAtOnce = kPerLane <= 2 ? 8 : 4;
  using Loaded = float[kAtOnce][kPerLane];

  const typename S::Args& args;
  const int64_t first;  // the first part's row of results; each next one's is `rows` further
  const int parts, rows, waves;

  /// Loads kAtOnce parts from `part` on; beyond the end the last one.
  __device__ __forceinline__ void load(Loaded& loaded, int part) const {
    const int lane = lane_index();
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = part + j * waves < parts ? part + j * waves : parts - 1;
      const float* from = args.parts + (first + at * int64_t{rows}) * S::width(args);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int column = lane + i * kWaveSize;
        loaded[j][i] = from[column < S::width(args) ? column : 0];
      }
    }
    keep_order();
  }
  /// A part's sum of weights, and its largest score.
  __device__ __forceinline__ const float* state(int part) const {
    return args.parts + args.sums + 2 * (first + (part < parts ? part : parts - 1) * int64_t{rows});
  }
};

/// Adds up the waves' values; the first wave has the sums, and only for it the result is true.
template <class Config>
__device__ __forceinline__ bool add_waves(MergeLds<Config>& lds, int own_part,
                                          float (&values)[PartReader<Config>::kPerLane]) {
  constexpr int kPerLane = PartReader<Config>::kPerLane, kColumns = Shape<Config>::kHeadDimV;
  const int lane = lane_index();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + i * kWaveSize < kColumns) lds.values[own_part][lane + i * kWaveSize] = values[i];
  }
  workgroup_barrier();
  if (own_part > 0) return false;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int column = lane + i * kWaveSize < kColumns ? lane + i * kWaveSize : 0;
    values[i] = lds.values[0][column];
#pragma unroll
    for (int w = 1; w < kWaves; ++w) values[i] += lds.values[w][column];
  }
  return true;
}

template <class Config>
__device__ __forceinline__ void store_row(const typename Shape<Config>::Args& args, int row, int head,
                                          const float (&values)[PartReader<Config>::kPerLane], float factor) {
#pragma unroll
  for (int i = 0; i < PartReader<Config>::kPerLane; ++i) {
    const int column = lane_index() + i * kWaveSize;
    if (column < Shape<Config>::width(args))
      args.out[row * args.out_row + head * args.out_head + column] =
          from_float<typename Shape<Config>::OutElement>(values[i] * factor);
  }
}

/// Adds up the parts of one row of one head, a wave each in their order, or where there are few rows every fourth part
/// each, then the waves' sums in their order. All that a wave reads is under way at once: a merge is as long as its
/// chain of waits.
template <class Config>
__device__ __attribute__((always_inline)) void merge_body(const typename Shape<Config>::Args& args,
                                                          MergeLds<Config>& lds) {
  using S = Shape<Config>;
  using Reader = PartReader<Config>;
  constexpr int kPerLane = Reader::kPerLane, kAtOnce = Reader::kAtOnce;
  // All arguments that have to be waited for before the first load, in one wait.
  asm volatile("" ::"s"(args.merge_shift), "s"(args.merged_rows.factor), "s"(args.queries.factor), "s"(args.parts),
               "s"(args.sums), "s"(args.out), "s"(args.out_row), "s"(args.out_head));
  const int waves = 1 << args.merge_shift, own_part = wave_index() & (waves - 1), batch = args.plan.lengths.batch;
  const int most = static_cast<int>(args.queries.divisor), rows = static_cast<int>(args.merged_rows.divisor);
  const uint32_t id = (workgroup_index().x * kWaves + wave_index()) >> args.merge_shift;
  const uint32_t number = args.merged_rows.divide(id), row_id = id - number * args.merged_rows.divisor;
  const int sequence = static_cast<int>(number) < batch ? static_cast<int>(number) : batch - 1;
  const Split found = args.splits[sequence];
  keep_order();
  const auto lengths = args.plan.lengths.of(sequence);
  const int head = static_cast<int>(args.queries.divide(row_id)), query = static_cast<int>(row_id) - head * most;
  if (static_cast<int>(number) >= batch || query >= lengths.rows || found.parts < 2) return;
  const int64_t first = int64_t{found.first_slot} * rows + int64_t{head} * most + query;
  const Reader reader{args, first, found.parts, rows, waves};
  const int lane = lane_index();
  // A lane has the weight of a part, and its columns of kAtOnce parts.
  float values[kPerLane] = {}, sum = 0.f, maximum = kLowest;
  float next_sum = reader.state(lane)[0], next_maximum = reader.state(lane)[1];
  typename Reader::Loaded now, next;
  reader.load(now, own_part);
  for (int begin = 0; begin < found.parts; begin += kWaveSize) {
    const bool is_part = begin + lane < found.parts;
    const float own_sum = next_sum, own = is_part ? next_maximum : kLowest;
    const int end = found.parts - begin < kWaveSize ? found.parts : begin + kWaveSize;
    if (end < found.parts) next_sum = reader.state(end + lane)[0], next_maximum = reader.state(end + lane)[1];
    const float highest = __builtin_fmaxf(maximum, wave_reduce(own, Maximum{}));
    const float old = fast_exp2(maximum - highest), weight = is_part ? fast_exp2(own - highest) : 0.f;
    sum = __builtin_fmaf(sum, old, wave_reduce(is_part ? own_sum * weight : 0.f, Sum{}));
    maximum = highest;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) values[i] *= old;
    const auto add = [&](const typename Reader::Loaded& loaded, int part) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (part + j * waves >= end) break;
        const float by = bits_float(__builtin_amdgcn_readlane(float_bits(weight), part + j * waves - begin));
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) values[i] = __builtin_fmaf(loaded[j][i], by, values[i]);
      }
    };
    static_assert(kWaveSize % (2 * kAtOnce * kWaves) == 0, "a wave's last part is the last of both halves");
    for (int part = begin + own_part; part < end; part += 2 * kAtOnce * waves) {
      const int second = part + kAtOnce * waves, third = second + kAtOnce * waves;
      if (second < found.parts) reader.load(next, second);
      add(now, part);
      if (third < found.parts) reader.load(now, third);
      add(next, second);
    }
  }
  if (waves > 1 && !add_waves<Config>(lds, own_part, values)) return;
  const int row = lengths.first_row + query;
  const float scale = value_scale<S>(args, sequence, static_cast<int>(args.group.divide(head)));
  const float factor = finish_row(args, maximum, sum, scale, row, head, lane == 0);
  store_row<Config>(args, row, head, values, factor);
}

}  // namespace aiter_like::paged

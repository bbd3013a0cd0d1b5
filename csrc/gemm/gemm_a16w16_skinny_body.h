// SPDX-License-Identifier: MIT
// out = act(a · bᵀ + bias) + residual for few rows of a: a workgroup has kBlockN columns of out, its waves share the
// depth. Each wave streams its part of the weights through registers, kStages steps ahead, and a beside it from the L2;
// no wave waits for another one before the sums meet in LDS. They are added up in the order of the waves.
#pragma once

#include "../activation/activation.h"
#include "aiter_like/dtype.h"
#include "aiter_like/gpu.h"
#include "skinny_unit.h"

namespace aiter_like {

template <class Config>
struct SkinnyArgs {
  const typename Config::Element *a, *b;       // [rows, depth]; [columns, depth], twice as many if kIsGated
  typename Config::OutElement* out;            // [rows, columns]
  const typename Config::OutElement* residual; // [rows, columns]; read where the build has one
  const typename Config::BiasElement* bias;    // one for each row of b; read where the build has one
  float* partials;                             // [kSplits, kHalves, rows, columns] where the depth is split
  uint32_t a_row, b_row, out_row, out_column, residual_row, residual_column;  // strides in elements
  uint32_t rows, columns, depth;               // below 2^31; depth at least 8
};

namespace skinny {

/// A configuration, and what follows from it. A Config has
///   Element, OutElement, BiasElement   of a and b: bf16 or f16; of out and residual; of bias
///   kBlockM, kBlockN                   at least the rows of a; columns of out for a workgroup
///   kWaves, kStages, kSplits           waves, and workgroups, along the depth; steps that a wave has under way
///   kHasBias, kHasResidual, kHasActivation, kActivation
///   kIsGated                           out = act(gate) · up, gate the first and up the second half of b's rows
template <class Config>
struct Shape : Config {
  using Unit = skinny::Unit<typename Config::Element>;
  using Sums = typename Unit::Sums;
  static constexpr int kThreads = Config::kWaves * kWaveSize;
  static constexpr int kHalves = Config::kIsGated ? 2 : 1;
  static constexpr int kColumnUnits = Config::kBlockN / Unit::kColumns;  // units of columns of out
  static constexpr int kUnitsN = kHalves * kColumnUnits, kUnitsM = (Config::kBlockM + Unit::kRows - 1) / Unit::kRows;
  static constexpr int kRowRuns = (Config::kBlockM + Unit::kRunRows - 1) / Unit::kRunRows / kUnitsM;  // runs of a unit
  static constexpr int kTiles = kUnitsN * kUnitsM, kTileFloats = 4 * kWaveSize;
  static_assert(kColumnUnits * Unit::kColumns == Config::kBlockN, "whole units");

  /// In LDS, of each wave: what it exchanges between its lanes; at the end its sums.
  union Memory {
    typename Unit::Exchange exchange;
    Vec<float, 4> sums[kTiles][kWaveSize];
  };
};

/// A lane's part of the operands for Unit::kDepth of the depth.
template <class Shape>
struct Step {
  Run weights[Shape::kUnitsN][Shape::Unit::kColumnRuns], a[Shape::kUnitsM][Shape::kRowRuns];

  /// sums += weights · aᵀ
  __device__ void multiply(typename Shape::Sums (&sums)[Shape::kTiles], typename Shape::Memory& lds) const {
    using Unit = typename Shape::Unit;
    decltype(Unit::rows(a[0], lds.exchange)) rows[Shape::kUnitsM];
#pragma unroll
    for (int m = 0; m < Shape::kUnitsM; ++m) rows[m] = Unit::rows(a[m], lds.exchange);
#pragma unroll
    for (int n = 0; n < Shape::kUnitsN; ++n) {
      const auto columns = Unit::columns(weights[n], lds.exchange);
#pragma unroll
      for (int m = 0; m < Shape::kUnitsM; ++m) Unit::multiply(sums[n * Shape::kUnitsM + m], columns, rows[m]);
    }
  }
};

/// Reads a lane's operands.
template <class Shape, bool kIsAligned>
class Reader {
 public:
  using Element = typename Shape::Element;
  using Unit = typename Shape::Unit;

  __device__ Reader(const SkinnyArgs<Shape>& args, uint32_t first_column) : depth_(args.depth) {
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
      const uint32_t first = first_column + u % Shape::kColumnUnits * Unit::kColumns;
      const uint32_t row = u / Shape::kColumnUnits * args.columns + unit_begin<Unit::kColumns>(first, args.columns);
      weights_[u] = reinterpret_cast<const char*>(args.b + uint64_t{row} * args.b_row);
    }
#pragma unroll
    for (int run = 0; run < Unit::kColumnRuns; ++run)
      of_column_[run] = within(Unit::column(run), args.columns) * args.b_row * kBytes;
#pragma unroll
    for (int u = 0; u < Shape::kUnitsM; ++u) {
#pragma unroll
      for (int run = 0; run < Shape::kRowRuns; ++run)
        of_row_[u][run] = within(u * Unit::kRows + Unit::row(run), args.rows) * args.a_row * kBytes;
    }
    a_ = reinterpret_cast<const char*>(args.a);
  }

  /// Starts the loads of the step at `k`, which lies within the depth.
  __device__ void load(Step<Shape>& step, uint32_t k) const { load_from(step, k + Unit::depth()); }

  /// Like load(), for a step that reaches beyond the depth; complete() follows. Lanes beyond it read the beginning of a
  /// row.
  __device__ void load_part(Step<Shape>& step, uint32_t k) const {
    const uint32_t at = k + Unit::depth();
    load_from(step, at + Unit::kRun <= depth_ ? at : 0);
  }

  /// Puts zeros where load_part was beyond the depth, and the elements of the last run, if it is no whole one.
  __device__ void complete(Step<Shape>& step, uint32_t k) const {
    const uint32_t at = k + Unit::depth(), rest = depth_ % Unit::kRun;
    const uint32_t mask = at + Unit::kRun <= depth_ ? 0xFFFFFFFFu : 0u;
    each(step, 0, [&](Run& run, const char*, uint32_t) {
#pragma unroll
      for (int w = 0; w < 4; ++w) run[w] &= mask;
    });
    if (rest == 0 || at != depth_ - rest) return;
    for (uint32_t e = 0; e < rest; ++e) {
      each(step, at + e, [&](Run& run, const char* base, uint32_t offset) {
        const auto element = *reinterpret_cast<const Element*>(base + offset);
        const uint32_t bits = static_cast<uint32_t>(element.bits) << (16 * (e % 2));
#pragma unroll
        for (uint32_t w = 0; w < 4; ++w) run[w] |= e / 2 == w ? bits : 0u;
      });
    }
  }

 private:
  static constexpr uint32_t kBytes = sizeof(Element);
  const char *weights_[Shape::kUnitsN], *a_;  // the same in all lanes; of a unit of columns, and of all rows
  /// Bytes from there to the lane's rows.
  uint32_t of_column_[Unit::kColumnRuns], of_row_[Shape::kUnitsM][Shape::kRowRuns];
  uint32_t depth_;

  __device__ void load_from(Step<Shape>& step, uint32_t at) const {
    each(step, at, [](Run& run, const char* base, uint32_t offset) {
      run = load_run<kIsAligned, Element>(base + offset);
    });
  }

  /// f(run, base, offset) for each run of a step whose elements begin at `at` of their rows.
  template <class F>
  __device__ void each(Step<Shape>& step, uint32_t at, F f) const {
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
#pragma unroll
      for (int run = 0; run < Unit::kColumnRuns; ++run)
        f(step.weights[u][run], weights_[u], of_column_[run] + at * kBytes);
    }
#pragma unroll
    for (int u = 0; u < Shape::kUnitsM; ++u) {
#pragma unroll
      for (int run = 0; run < Shape::kRowRuns; ++run) f(step.a[u][run], a_, of_row_[u][run] + at * kBytes);
    }
  }
};

/// Adds up what this wave has of the depth: every kWaves-th step of its split's.
template <class Shape, bool kIsAligned>
__device__ void multiply(const SkinnyArgs<Shape>& args, uint32_t first_column, uint32_t split,
                         typename Shape::Sums (&sums)[Shape::kTiles], typename Shape::Memory& lds) {
  using Unit = typename Shape::Unit;
  constexpr uint32_t kStages = Shape::kStages, kDepth = Unit::kDepth;
  constexpr uint32_t kApart = Shape::kWaves * kDepth, kRound = kStages * kApart;  // counted along the depth
  const Reader<Shape, kIsAligned> reader(args, first_column);

  const uint32_t steps = (args.depth + kDepth - 1) / kDepth, share = (steps + Shape::kSplits - 1) / Shape::kSplits;
  const uint32_t last = (split + 1) * share < steps ? (split + 1) * share : steps, end = last * kDepth;
  uint32_t k = (split * share + wave_index()) * kDepth;
  const uint32_t whole_end = end < args.depth ? end : args.depth;
  // A round is whole if the last of its steps, which begins at k + kRound − kApart, is.
  const auto is_whole = [&](uint32_t round) { return round + (kRound - kApart + kDepth) <= whole_end; };

  Step<Shape> current[kStages];
  if (is_whole(k + kRound)) {
#pragma unroll
    for (uint32_t s = 0; s < kStages; ++s) {
      reader.load(current[s], k + s * kApart);
      keep_order();
    }
    k += kRound;
    do {
#pragma unroll
      for (uint32_t s = 0; s < kStages; ++s) {
        current[s].multiply(sums, lds);
        reader.load(current[s], k + s * kApart);
        keep_order();
      }
      k += kRound;
    } while (is_whole(k));
#pragma unroll
    for (uint32_t s = 0; s < kStages; ++s) current[s].multiply(sums, lds);
    settle_before_branch();
  }
  // The rest is less than a round, or one whose last step reaches beyond the depth, or all of a short depth.
  for (; k < end; k += kRound) {
    const auto step = [&](uint32_t s) { return k + s * kApart < end ? k + s * kApart : args.depth; };
#pragma unroll
    for (uint32_t s = 0; s < kStages; ++s) {
      reader.load_part(current[s], step(s));
      keep_order();
    }
#pragma unroll
    for (uint32_t s = 0; s < kStages; ++s) {
      reader.complete(current[s], step(s));
      current[s].multiply(sums, lds);
    }
    settle_before_branch();
  }
}

/// From the sums of an element of out, gate and up if kIsGated, to the element.
template <class Shape>
__device__ void finish(const SkinnyArgs<Shape>& args, float (&x)[Shape::kHalves], uint32_t row, uint32_t column) {
  using OutElement = typename Shape::OutElement;
  if constexpr (Shape::kHasBias) {
#pragma unroll
    for (int half = 0; half < Shape::kHalves; ++half) x[half] += to_float(args.bias[half * args.columns + column]);
  }
  float y = x[0];
  if constexpr (Shape::kHasActivation) y = activated<Shape::kActivation, OutElement>(y);
  if constexpr (Shape::kIsGated) y *= x[1];
  if constexpr (Shape::kHasResidual)
    y += to_float(args.residual[uint64_t{row} * args.residual_row + uint64_t{column} * args.residual_column]);
  args.out[uint64_t{row} * args.out_row + uint64_t{column} * args.out_column] = from_float<OutElement>(y);
}

/// Runs a workgroup (block of columns, split).
template <class Shape, bool kIsAligned>
__device__ __forceinline__ void product_body(const SkinnyArgs<Shape>& args, WorkgroupIndex workgroup,
                                             typename Shape::Memory (&lds)[Shape::kWaves]) {
  using Unit = typename Shape::Unit;
  const uint32_t first_column = workgroup.x * Shape::kBlockN, split = workgroup.y;
  typename Shape::Sums sums[Shape::kTiles] = {};
  multiply<Shape, kIsAligned>(args, first_column, split, sums, lds[wave_index()]);

#pragma unroll
  for (int t = 0; t < Shape::kTiles; ++t)
    lds[wave_index()].sums[t][lane_index()] = {{sums[t][0], sums[t][1], sums[t][2], sums[t][3]}};
  workgroup_barrier();
  const auto total = [&](int t, int lane, int i) {
    float sum = 0.f;
#pragma unroll
    for (int wave = 0; wave < Shape::kWaves; ++wave) sum += lds[wave].sums[t][lane][i];
    return sum;
  };
  constexpr int kElements = Shape::kColumnUnits * Shape::kUnitsM * Shape::kTileFloats;
  for (int index = thread_index(); index < kElements; index += Shape::kThreads) {
    const int t = index / Shape::kTileFloats, lane = index / 4 % kWaveSize, i = index % 4;
    // A unit that begins earlier has columns of the one before it, too.
    const uint32_t own_column = first_column + t / Shape::kUnitsM * Unit::kColumns;
    const uint32_t row = t % Shape::kUnitsM * Unit::kRows + Unit::sum_row(lane, i);
    const uint32_t column = unit_begin<Unit::kColumns>(own_column, args.columns) + Unit::sum_column(lane, i);
    if (row >= args.rows || column < own_column || column >= args.columns) continue;
    float x[Shape::kHalves];
#pragma unroll
    for (int half = 0; half < Shape::kHalves; ++half)
      x[half] = total(half * Shape::kColumnUnits * Shape::kUnitsM + t, lane, i);
    if constexpr (Shape::kSplits > 1) {
#pragma unroll
      for (int half = 0; half < Shape::kHalves; ++half)
        args.partials[(uint64_t{split * Shape::kHalves + half} * args.rows + row) * args.columns + column] = x[half];
    } else {
      finish(args, x, row, column);
    }
  }
}

constexpr int kSumThreads = 256;

/// Adds the partial sums of an element of out up, in the order of the splits, and finishes them.
template <class Shape>
__device__ void sum_body(const SkinnyArgs<Shape>& args, uint32_t workgroup) {
  const uint32_t size = args.rows * args.columns, index = workgroup * kSumThreads + thread_index();
  if (index >= size) return;
  float x[Shape::kHalves] = {};
#pragma unroll
  for (uint32_t split = 0; split < Shape::kSplits; ++split) {
#pragma unroll
    for (uint32_t half = 0; half < Shape::kHalves; ++half)
      x[half] += args.partials[uint64_t{split * Shape::kHalves + half} * size + index];
  }
  finish(args, x, index / args.columns, index % args.columns);
}

}  // namespace skinny
}  // namespace aiter_like

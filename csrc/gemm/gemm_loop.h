// SPDX-License-Identifier: MIT
// The plain loop of a matrix product (gemm_body.h), for any operands and any way to add products up.
#pragma once

#include "aiter_like/tile/fence.h"
#include "gemm_shape.h"

namespace aiter_like::gemm {

/// Adds the products of a step to the sums as they are.
struct AddProducts {
  __device__ void fetch(int64_t) {}
  __device__ void publish() {}
  template <class Sums, class Products>
  __device__ void add(Sums& sums, Products products) {
    products(sums);
  }
};

/// Slice `s` of the left operand: all rows of a wave, or ROWS of them from `row` on.
template <int ROWS, class Shape, class Left>
__device__ auto part_of(const Left& left, const typename Left::Memory& lds, int s, int row) {
  if constexpr (ROWS == Shape::kWaveM)
    return left.slice(lds, s);
  else
    return left.template slice<ROWS>(lds, s, row);
}

/// The loop with two steps under way. Loads beyond the end read nothing, so that no branch hides from the compiler
/// which ones are under way. Weights are fetched to where the last ones were: registers that the loop would copy would
/// be waited for.
template <int DEPTH, class Step, class Publish, class Add>
__device__ __forceinline__ void alternate(Step (&steps)[2], Span span, const Publish& publish, const Add& add) {
  constexpr int kSteps = 2;
  const auto fetch_rows = [](Step& step, int64_t k) {
    step.left.fetch(k);
    step.accumulate.fetch(k);
    keep_order();
  };
  const auto fetch_weights = [](Step& step, int64_t k) {
    step.right.fetch(k);
    keep_order();
  };
  int64_t k = span.first;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    fetch_rows(steps[i], k + i * DEPTH);
    fetch_weights(steps[i], k + i * DEPTH);
  }
  for (; k + (kSteps - 1) * DEPTH < span.end; k += kSteps * DEPTH) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      publish(steps[i]);
      auto current = steps[i].accumulate;
      fetch_rows(steps[i], k + (kSteps + i) * DEPTH);
      add(steps[i], current);
      keep_order();
      fetch_weights(steps[i], k + (kSteps + i) * DEPTH);
      workgroup_barrier();  // All waves have read it.
    }
  }
  if (k < span.end) {
    publish(steps[0]);
    add(steps[0], steps[0].accumulate);
    workgroup_barrier();
  }
}

/// b · aᵀ over a part of the depth, for this wave's part of the tile and share of each step. `accumulate` has fetch(k)
/// and publish(), called with those of the operands, and add(sums, products): products(tile) adds the products of the
/// current step to a tile like the sums, or with more arguments those of its slices `first` to `last`, and of the rows
/// of a from `row` on to a tile of fewer columns.
template <class Shape, class Left, class Right, class Accumulate>
__device__ typename Shape::Sums multiply(const Left& left, const Right& right, const Accumulate& accumulate, Span span,
                                         Memory<Shape, Left, Right>& lds) {
  struct Step {
    Left left;
    Right right;
    Accumulate accumulate;
  };
  constexpr int kSteps = Shape::kAhead, kDepth = Shape::kDepth;
  typename Shape::Sums sums;
  clear(sums);
  const auto publish = [&](Step& step) {
    step.left.publish(lds.operands.left);
    step.right.publish(lds.operands.right);
    step.accumulate.publish();
    workgroup_barrier();  // The step is there.
  };
  const auto add = [&](const Step& step, Accumulate& current) {
    current.add(sums, [&](auto& tile, int first = 0, int last = Shape::kSlices, int row = 0) {
#pragma unroll
      for (int s = first; s < last; ++s) {
        const auto b_slice = step.right.slice(lds.operands.right, s);
        mma<Form::ABt>(tile, b_slice, part_of<std::decay_t<decltype(tile)>::kColumns, Shape>(
                                          step.left, lds.operands.left, s, row));
      }
    });
  };
  if constexpr (kSteps == 1) {
    Step step{left, right, accumulate};
    const auto fetch = [&](int64_t k) {
      step.left.fetch(k);
      step.right.fetch(k);
      step.accumulate.fetch(k);
    };
    if (span.first < span.end) fetch(span.first);
    for (int64_t k = span.first; k < span.end; k += kDepth) {
      publish(step);
      Accumulate current = step.accumulate;
      if (k + kDepth < span.end) fetch(k + kDepth);
      add(step, current);
      workgroup_barrier();  // All waves have read it.
    }
  } else {
    static_assert(kSteps == 2, "as many as are made here");
    Step steps[kSteps] = {{left, right, accumulate}, {left, right, accumulate}};
    alternate<kDepth>(steps, span, publish, add);
  }
  return sums;
}

}  // namespace aiter_like::gemm

// SPDX-License-Identifier: MIT
// The schedule of flash_attn_bwd: the steps of its products, and beside which product each piece of other work stands.
#pragma once

#include "aiter_like/tile/fence.h"
#include "flash_attn_bwd_layout.h"

namespace aiter_like::attn_bwd {

/// Products that pass before the result of one is read by other instructions: more than it takes.
constexpr int kDelay = 8;

/// The steps of the stream, and the products of each.
template <class Shape>
struct Steps {
  static constexpr int kRowSteps = Shape::kDim / 32, kGradSteps = Shape::kDimV / 32;  // of a row tile
  static constexpr int kS = 0, kDp = kS + Shape::kRowTiles * kRowSteps, kDv = kDp + Shape::kRowTiles * kGradSteps,
                       kDk = kDv + Shape::kRowTiles * kGradSteps, kDq = kDk + Shape::kRowTiles * kRowSteps,
                       kCount = kDq + Shape::kDqRowTiles * Shape::kBlockN / 32;

  static constexpr __host__ __device__ int products(int step) {
    return 2 * (step < kDq ? Shape::kKeyTiles : Shape::kDqTiles);
  }
  /// How many products come before a step.
  static constexpr __host__ __device__ int first_product(int step) {
    const int before = step < kDq ? step : kDq;
    return 2 * (before * Shape::kKeyTiles + (step - before) * Shape::kDqTiles);
  }
  /// Registers for left operands: those of a step are in slot step % kSlots, in this block and the next one.
  static constexpr int slots() {
    int count = Shape::kAhead + 1;
    while (kCount % count != 0) ++count;
    return count;
  }
  static constexpr int kSlots = slots();

  /// Where the workgroup meets: behind the products of these steps.
  static constexpr int kMeetBeforeDk = kDk - Shape::kAhead, kMeetBeforeS = kCount - Shape::kAhead;
};

/// Work of `count` equal pieces beside the products [from, end).
struct Job {
  int from, end, count;

  /// The pieces [begin(product), begin(product + 1)) stand beside a product.
  constexpr __host__ __device__ int begin(int product) const {
    const int at = product < from ? 0 : product > end ? end - from : product - from;
    return (at * count + end - from - 1) / (end - from);
  }
};

/// What stands beside which products. A result is read kDelay products after the one that gives it.
template <class Shape>
struct Schedule {
  using S = Steps<Shape>;
  static constexpr int kScores = 4 * Shape::kKeyTiles;  // of a lane in a row tile
  static constexpr int at(int step) { return S::first_product(step); }

  /// P of row tile rt: two pieces for each score, the exponential and the rest.
  static constexpr Job p(int rt) {
    const int from = at((rt + 1) * S::kRowSteps) + kDelay;
    const int next = rt + 1 < Shape::kRowTiles ? at((rt + 2) * S::kRowSteps) : at(S::kDp + S::kGradSteps);
    return {from, next + kDelay < at(S::kDv) ? next + kDelay : at(S::kDv), 2 * kScores};
  }
  /// dS of row tile rt: two pieces for each score, dS and its way to LDS.
  static constexpr Job ds(int rt) {
    const int from = at(S::kDp + (rt + 1) * S::kGradSteps) + kDelay;
    const int last = at(S::kMeetBeforeDk) + S::products(S::kMeetBeforeDk);
    const int next = at(S::kDp + (rt + 2) * S::kGradSteps) + kDelay;
    return {from, rt + 1 < Shape::kRowTiles || next < last ? next : last, 2 * kScores};
  }
  static_assert(ds(Shape::kRowTiles - 1).from < ds(Shape::kRowTiles - 1).end, "dS is there before the workgroup meets");

  // The next block: Q transposed goes to LDS once dK of this one has read it, then its registers take the block after.
  static constexpr Job land_q_columns(int count) { return {0, at(S::kRowSteps), count}; }
  static constexpr Job move_q(int count) { return {at(S::kRowSteps) / 2, at(S::kRowSteps), count}; }
  static constexpr Job move_dout(int count) { return {at(S::kRowSteps), at(2 * S::kRowSteps), count}; }
  static constexpr Job load_dq() { return {at(S::kDk) - 2, at(S::kDk), 1}; }
  static constexpr Job load_rows(int count) { return {at(S::kDk), at(S::kDk) + count, count}; }
  static constexpr Job land_q(int count) { return {at(S::kDk) + 4, at(S::kDq), count}; }
  static constexpr Job land_dout(int count) { return {at(S::kDk) + 5, at(S::kDq), count}; }
  static constexpr Job go_on() { return {at(S::kDq) + 4, at(S::kMeetBeforeS), 2}; }
  static constexpr Job land_dout_columns(int count) { return {at(S::kDq), at(S::kMeetBeforeS), count}; }
};

}  // namespace aiter_like::attn_bwd

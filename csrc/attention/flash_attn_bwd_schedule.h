// SPDX-License-Identifier: MIT
// The schedule of flash_attn_bwd: the steps of its products, and beside which product each piece of other work stands.
#pragma once

#include "aiter_like/tile/fence.h"
#include "flash_attn_bwd_layout.h"

namespace aiter_like::attn_bwd {

/// Products that pass before the result of one is read by other instructions. The compiler waits where these are too
/// few: it is a matter of time alone.
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

/// Work of COUNT equal pieces beside the products [FROM, END).
template <int FROM, int END, int COUNT>
struct Work {
  static_assert(FROM < END, "there are products for the work to stand beside");
  /// The pieces [begin(product), begin(product + 1)) stand beside a product.
  static constexpr __host__ __device__ int begin(int product) {
    const int at = product < FROM ? 0 : product > END ? END - FROM : product - FROM;
    return (at * COUNT + END - FROM - 1) / (END - FROM);
  }
};

/// What stands beside which products. A result is read kDelay products after the one that gives it.
template <class Shape>
struct Schedule {
  using S = Steps<Shape>;
  static constexpr int kRowTiles = Shape::kRowTiles;
  static constexpr int kScores = 4 * Shape::kKeyTiles;  // of a lane in a row tile
  static constexpr int at(int step) { return S::first_product(step); }
  static constexpr int later(int a, int b) { return a > b ? a : b; }
  static constexpr int sooner(int a, int b) { return a < b ? a : b; }

  // Work on scores stands from the first results on, until the workgroup meets. P takes twice the time of dS.
  static constexpr int kFirst = at(S::kRowSteps) + kDelay,
                       kLast = at(S::kMeetBeforeDk) + S::products(S::kMeetBeforeDk);
  static constexpr int share(int parts) { return kFirst + (kLast - kFirst) * parts / (3 * kRowTiles); }
  static constexpr int p_from(int rt) { return later(share(2 * rt), at((rt + 1) * S::kRowSteps) + kDelay); }
  static constexpr int p_end(int rt) { return sooner(share(2 * rt + 2), at(S::kDv + rt * S::kGradSteps)); }
  static constexpr int ds_from(int rt) {
    const int results = at(S::kDp + (rt + 1) * S::kGradSteps) + kDelay;
    return later(later(share(2 * kRowTiles + rt), p_end(kRowTiles - 1)), results);
  }

  /// P of row tile rt: two pieces for each score, the exponential and the rest.
  template <int rt>
  using P = Work<p_from(rt), p_end(rt), 2 * kScores>;
  /// dS of row tile rt: two pieces for each score, dS and its way to LDS.
  template <int rt>
  using Ds = Work<ds_from(rt), share(2 * kRowTiles + rt + 1), 2 * kScores>;

  // The next block: Q transposed goes to LDS once dK of this one has read it, then its registers take the block after.
  template <int COUNT>
  using LandQColumns = Work<0, at(S::kRowSteps), COUNT>;
  template <int COUNT>
  using MoveQ = Work<at(S::kRowSteps) / 2, at(S::kRowSteps), COUNT>;
  template <int COUNT>
  using MoveDout = Work<at(S::kRowSteps), at(2 * S::kRowSteps), COUNT>;
  using FindDq = Work<at(S::kDv) - 8, at(S::kDv), 1>;
  using EndTurn = Work<at(S::kDk), at(S::kDk) + 1, 1>;
  using LoadDq = Work<at(S::kDk), at(S::kDk) + 8, 1>;
  template <int COUNT>
  using LoadRows = Work<at(S::kDk) + 2, at(S::kDk) + 2 + 2 * COUNT, COUNT>;
  template <int COUNT>
  using LandQ = Work<at(S::kDk) + 4, at(S::kDq), COUNT>;
  template <int COUNT>
  using LandDout = Work<at(S::kDk) + 5, at(S::kDq), COUNT>;
  template <int COUNT>
  using LandDoutColumns = Work<at(S::kDq), at(S::kMeetBeforeS), COUNT>;
  static constexpr int kGoOnPieces = 6;
  using GoOn = Work<at(S::kDk + S::kRowSteps), at(S::kMeetBeforeS), kGoOnPieces>;
};

}  // namespace aiter_like::attn_bwd

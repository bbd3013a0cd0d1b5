// SPDX-License-Identifier: MIT
// Where the elements of a tile are in the registers of a wave: the map that the matrix instructions fix, as a type.
//
// One axis of a tile is owned, the other is its depth. An owned index belongs to one lane of each group: with
// lane = WIDTH · group + owner, strip s of a lane is owned index WIDTH · s + owner. Along the depth a lane holds runs
// of RUN consecutive indices, group 0 the first run, group 1 the next …
//   WIDTH 16: 4 groups, v_mfma_f32_16x16x16 (16-bit) and 16x16x32 (8-bit);  WIDTH 32: 2 groups, 32x32x8 and 32x32x16.
// The contraction of a product runs along the depth of both operands. Its order does not matter as long as both have
// the same, so an operand may have runs longer than the instruction's own: one 16-byte read feeds two instructions.
//
// Steps interleave: with OWNED_STEP n, strips come in sets of n that hold every n-th index: an operand that is read
// transposed in dwords of n elements has this layout. The product then has DEPTH_STEP n, and n runs of a lane together
// are consecutive again.
#pragma once

#include "aiter_like/gpu.h"

#if !defined(__HIP__)
#error "tile/: this source is for gfx942 only; there is no NVIDIA form of it"
#endif

namespace aiter_like::tile {

enum class Axis { kRow, kColumn };

template <Axis OWNED, int RUN, int DEPTH_STEP = 1, int OWNED_STEP = 1, int WIDTH = 16>
struct Layout {
  static_assert(WIDTH == 16 || WIDTH == 32, "the matrix instructions are 16 or 32 wide");
  static_assert(WIDTH == 16 || DEPTH_STEP == 1, "a product 32 wide has its runs of other strips far apart");
  static constexpr Axis kOwned = OWNED;
  static constexpr int kRun = RUN, kDepthStep = DEPTH_STEP, kOwnedStep = OWNED_STEP;
  static constexpr int kWidth = WIDTH, kGroups = kWaveSize / WIDTH;
  static constexpr int kSpan = RUN * DEPTH_STEP;  // consecutive indices of depth that one lane holds

  __device__ static int group() { return lane_index() / WIDTH; }
  __device__ static int owner() { return lane_index() % WIDTH; }

  /// Owned index of strip `strip` of this lane.
  __device__ static int owned(int strip) {
    return WIDTH * OWNED_STEP * (strip / OWNED_STEP) + OWNED_STEP * owner() + strip % OWNED_STEP;
  }

  /// Depth of element `element` of this lane, of any strip: that of its first element, and a constant.
  __device__ static int depth(int element) { return first_depth() + depth_after_first(element); }
  __device__ static int first_depth() { return kSpan * group(); }
  static constexpr __host__ __device__ int depth_after_first(int element) {
    const int run = element / RUN;
    return kSpan * kGroups * (run / DEPTH_STEP) + DEPTH_STEP * (element % RUN) + run % DEPTH_STEP;
  }

  /// The element that holds index `place` of span `span`: depth(element_at(span, place)) = depth of the span + place.
  static constexpr __host__ __device__ int element_at(int span, int place) {
    return kSpan * span + RUN * (place % DEPTH_STEP) + place / DEPTH_STEP;
  }
};

/// An operand of which each lane has rows: of [M, K] as the left one, of [N, K] as the right one.
template <int RUN, int WIDTH = 16>
using OperandByRow = Layout<Axis::kRow, RUN, 1, 1, WIDTH>;

/// An operand of which each lane has columns: of [K, M] as the left one, of [K, N] as the right one.
template <int RUN, int OWNED_STEP = 1, int WIDTH = 16>
using OperandByColumn = Layout<Axis::kColumn, RUN, 1, OWNED_STEP, WIDTH>;

/// A product [M, N]: each lane has columns, in runs of 4 rows. LEFT_STEP is the left operand's OWNED_STEP. Rounded and
/// with LEFT_STEP 1 it is the right operand of a next product without any movement.
template <int LEFT_STEP = 1, int WIDTH = 16>
using Product = Layout<Axis::kColumn, 4, LEFT_STEP, 1, WIDTH>;

}  // namespace aiter_like::tile

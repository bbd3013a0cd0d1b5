// SPDX-License-Identifier: MIT
// Two groups of a workgroup's waves that take turns: every SIMD has waves of both, and while those of one group
// multiply those of the other do what needs the rest of the CU. Both run the same loop of slots, each ended by a
// barrier, group B one slot behind group A:
//
//   slot   group A      group B
//   2n     multiply n   other n - 1
//   2n+1   other n      multiply n
//
// A kernel calls end_slot() after each part, PingPong::stagger before the first and PingPong::join after the last one.
// What a slot may read and write in LDS follows from the table: a barrier is between two slots, none within one.
#pragma once

#include "aiter_like/tile/fence.h"

namespace aiter_like::tile {

/// All waves of the workgroup have come here, and the compiler moves nothing across. Waits for no access.
__device__ inline void end_slot() {
  keep_order();
  meet();
  keep_order();
}

/// The groups of WAVES waves: wave w is in group w / kGroupWaves, 0 for A and 1 for B. The kernel keeps this as it
/// likes, and says it where it matters: registers are few.
template <int WAVES>
struct PingPong {
  static_assert(WAVES % 8 == 0, "waves go to the four SIMDs in turns: as many of each group on every one");
  static constexpr int kGroupWaves = WAVES / 2;

  /// From here on group B is one slot behind.
  __device__ static void stagger(bool is_group_b) {
    if (is_group_b) end_slot();
  }
  /// Group A waits for the last slot of group B: both have passed equally many barriers.
  __device__ static void join(bool is_group_b) {
    if (!is_group_b) end_slot();
  }
};

/// Puts this wave before those of priority 0 on its SIMD as long as it lives; the compiler moves nothing across its
/// beginning and end: for the part that multiplies, so that the matrix units never wait.
class Priority {
 public:
  __device__ Priority() {
    keep_order();
    set_priority<1>();
  }
  __device__ ~Priority() {
    keep_order();
    set_priority<0>();
  }
  Priority(const Priority&) = delete;
  Priority& operator=(const Priority&) = delete;
};

}  // namespace aiter_like::tile

// SPDX-License-Identifier: MIT
// A loop over LDS tiles in a ring: while the waves use one stage, later ones are on their way. One barrier per stage.
// The caller has the tiles, an array of as many as stages for each operand, and says how an item gets into them:
//
//   for (Ring<3, kAccesses, Items> ring(items, start); ring.has_next();) {
//     const RingSlot slot = ring.next(start);
//     use(slot.item, tiles[slot.stage]);
//   }
//
// ITEMS is what the loop goes over: begin(), next(item), and `end`, the first int that is none.
#pragma once

#include "aiter_like/tile/fence.h"

namespace aiter_like::tile {

struct RingSlot {
  int item, stage;
};

// Either of two stages is behind the other one: one instruction.
template <int STAGES>
__device__ inline int stage_after(int stage) {
  return STAGES == 2 ? stage ^ 1 : stage + 1 == STAGES ? 0 : stage + 1;
}
template <int STAGES>
__device__ inline int stage_before(int stage) {
  return STAGES == 2 ? stage ^ 1 : stage == 0 ? STAGES - 1 : stage - 1;
}

/// Filled by DMA, STAGES - 1 slots ahead: start(item, stage) begins with ACCESSES vector memory instructions in every
/// wave. A wave waits until only those of later items are under way, memory answers in order.
///
///   slot n   waits for n; barrier; starts n + STAGES - 1 where n - 1 was; uses n
template <int STAGES, int ACCESSES, class ITEMS>
class Ring {
 public:
  static_assert(STAGES >= 2, "one stage is used while another one is filled");

  /// Starts the first STAGES - 1 items.
  template <class START>
  __device__ Ring(const ITEMS& items, START start) : items_(items) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      coming_[i] = i == 0 ? items_.begin() : items_.next(coming_[i - 1]);
      if (coming_[i] < items_.end) start(coming_[i], i);
    }
  }
  __device__ bool has_next() const { return coming_[0] < items_.end; }

  /// The next item, and where it is; it can be used until the next call.
  template <class START>
  __device__ RingSlot next(START start) {
    wait_for_first<kAhead - 1>();
    workgroup_barrier();  // This stage is there, and all waves have read the one before it.
    const RingSlot slot{coming_[0], stage_};
#pragma unroll
    for (int i = 1; i < kAhead; ++i) coming_[i - 1] = coming_[i];
    coming_[kAhead - 1] = items_.next(kAhead == 1 ? slot.item : coming_[kAhead - 1]);
    if (coming_[kAhead - 1] < items_.end) start(coming_[kAhead - 1], stage_before<STAGES>(stage_));
    stage_ = stage_after<STAGES>(stage_);
    return slot;
  }

 private:
  static constexpr int kAhead = STAGES - 1;

  /// Until at most the accesses of LATER items are under way, of which there are fewer towards the end.
  template <int LATER>
  __device__ void wait_for_first() const {
    if constexpr (LATER == 0) {
      wait_vector_memory();
    } else if (coming_[LATER] < items_.end) {
      wait_vector_memory<LATER * ACCESSES>();
    } else {
      wait_for_first<LATER - 1>();
    }
  }

  ITEMS items_;
  int coming_[kAhead];  // the items whose stages are being filled
  int stage_ = 0;
};

/// Filled through registers, two stages: load(item) requests, store(stage) puts what has come into LDS, and the
/// compiler counts what it waits for. Registers hold one item, so that more stages would bring nothing. Each next() has
/// its finish(), after the use.
///
///   slot n   loads n + 1; uses n; stores n + 1 where n - 1 was; barrier
template <class ITEMS>
class StagedRing {
 public:
  template <class LOAD, class STORE>
  __device__ StagedRing(const ITEMS& items, LOAD load, STORE store) : items_(items), coming_(items.begin()) {
    if (has_next()) {
      load(coming_);
      store(0);
    }
    workgroup_barrier();
  }
  __device__ bool has_next() const { return coming_ < items_.end; }

  template <class LOAD>
  __device__ RingSlot next(LOAD load) {
    const RingSlot slot{coming_, stage_};
    coming_ = items_.next(slot.item);
    if (has_next()) load(coming_);
    return slot;
  }
  template <class STORE>
  __device__ void finish(STORE store) {
    stage_ = stage_after<2>(stage_);
    if (has_next()) store(stage_);
    workgroup_barrier();  // The next stage is there, and all waves have read this one.
  }

 private:
  ITEMS items_;
  int coming_, stage_ = 0;
};

}  // namespace aiter_like::tile

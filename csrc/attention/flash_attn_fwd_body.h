// SPDX-License-Identifier: MIT
// What a workgroup of flash_attn_fwd does: its query block, key block by key block, and the merge of split ones.
//
// K and V blocks of 64 keys lie in LDS twice: one buffer is read while the other is filled. A block has two phases, and
// the workgroup two groups of four waves, one wave of each on every SIMD: while group A multiplies, group B has its
// softmax.
//   M(n)   O^T += V[n-1]ᵀ P, S^T = K[n] Qᵀ                                                  flash_attn_phases.h
//   S(n)   group A moves K[n+1], group B V[n+1], before and after most of P = exp2(S · scale − m); first V fragments
// At the edges of a mask both phases leave out tiles of rows and keys that are hidden: flash_attn_visibility.h.
// Only O, P, Q, m and l live from block to block. After the last block out = O / l, LSE = ln 2 · (m + log2 l).
#pragma once

#include "aiter_like/gpu.h"
#include "flash_attn_mover.h"
#include "flash_attn_phases.h"
#include "flash_attn_results.h"
#include "flash_attn_softmax.h"
#include "flash_attn_task.h"
#include "flash_attn_visibility.h"

namespace aiter_like::flash_attn {

/// A wave on its way over the key blocks, in two groups as in tile/ping_pong.h.
///
///   slot   group A                                         group B
///   2n     M(n): reads V[n-1], K[n]                        S(n-1): writes V[n], reads fragments of V[n-1]
///   2n+1   S(n): writes K[n+1], reads fragments of V[n]    M(n): reads V[n-1], K[n]
///
/// K[n+1] replaces K[n-1], which is read last in slot 2n-1; V[n+1], written in slot 2n+2, replaces V[n-1], which is
/// read last in slot 2n+1. With two buffers no other assignment of the moves to the groups works.
template <class Shape>
struct BlockWalk {
  using Visibility = WaveVisibility<Shape>;
  static constexpr int kSteps = Shape::kSteps;

  WaveState<Shape> wave;
  BlockMover<Shape> mover;

  /// Moves the first block's K and V and does the half of M that multiplies with keys. hidden: its first rows that no
  /// row of the workgroup sees.
  __device__ void start(char* tiles, int hidden) {
    wave.lds = tiles;
    wave.half = 0x8000;
    asm("" : "+s"(wave.half));
    wave.offsets = ReadOffsets<Shape>::first_block();
    if constexpr (Shape::kLimitsLeft && !Shape::kIsPaged)
      mover.move_from(hidden);
    else
      mover.move();
    mover.land(tiles);
    tile::wait_lds();
    tile::end_slot();
    Groups::stagger(mover.is_group_b());
    wave.request_first(kSteps);
    matrix_steps<kSteps, 2 * kSteps>(wave, [&] { mover.advance(); });
    tile::end_slot();
  }

  /// The slots S(block) and M(next), of blocks that hide nothing.
  __device__ void step(float scale) {
    mover.move();
    softmax(wave, scale, [&] { mover.land(wave.lds); });
    end_softmax();
    matrix_steps<0, 2 * kSteps>(wave, [&] { mover.advance(); });
    wave.offsets.flip_values();
    tile::end_slot();
  }

  /// The slots S(block) and M(next) at an edge of the mask.
  __device__ void step_at_edge(const Visibility& visibility, int block, int next, float scale) {
    mover.move();
    softmax_at_edge(visibility, block, scale);
    mover.land(wave.lds);
    mover.advance();
    end_softmax();
    seen_matrix_steps<0, 2 * kSteps>(
        wave, [&](int step, int t) { return visibility.sees_step(t, step < kSteps ? block : next, step); });
    wave.offsets.flip_values();
    tile::end_slot();
  }

  /// The slots S(block) and M(next) of a wave without rows, which moves its part of the block all the same.
  __device__ void step_without_rows() {
    mover.move();
    mover.land(wave.lds);
    mover.advance();
    tile::wait_lds();
    tile::end_slot();
    tile::end_slot();
  }

  /// Does S and the half of M that multiplies with values. Nothing is left to move or to multiply with keys.
  __device__ void finish(const Visibility& visibility, int block, float scale) {
    softmax_at_edge(visibility, block, scale);
    wave.request_first(0);
    tile::end_slot();
    seen_matrix_steps<0, kSteps>(wave, [&](int step, int t) { return visibility.sees_step(t, block, step); });
    Groups::join(mover.is_group_b());
  }

 private:
  __device__ void end_softmax() {
    tile::wait_lds();
    wave.request_first(0);
    wave.offsets.flip_keys();
    tile::end_slot();
  }

  /// The softmax of the row tiles that see a key.
  __device__ void softmax_at_edge(const Visibility& visibility, int block, float scale) {
    seen_softmax(
        wave, scale, [&](int t) { return visibility.sees_block(t, block); },
        [&](int t) { visibility.mask(wave, t, block); });
  }
};

/// Runs workgroup `workgroup` of a launch with its kThreads work-items. `tiles` is kLdsBytes of LDS, from a
/// multiple of 1024 on; all waves must meet before it is used again. Inlined before all else, the body is compiled
/// like a kernel.
template <class Config>
__device__ __attribute__((always_inline)) void forward_body(const ArgsOf<Shape<Config>>& args, int workgroup,
                                                            char* tiles) {
  using Shape = flash_attn::Shape<Config>;
  const Task<Shape> task = Task<Shape>::of(args, workgroup);
  if (task.row >= task.rows) return;
  const BlockRange range = BlockRange::of(args, task);
  int block = range.first + task.part;
  BlockWalk<Shape> walk;
  RowState<Shape>& state = walk.wave.rows;
  load_rows(state, args, task);
  if (block < range.end) {
    const int last = range.last_from(block, args, task);
    const float scale = args.scale_log2;
    const WaveVisibility<Shape> visibility(args, task);
    walk.mover.start(task, args, block);
    walk.start(tiles, range.lowest - kBlockN * block);
    if (Shape::kLimitsLeft)
      for (; block < last && block < range.clear; block += task.parts)
        walk.step_at_edge(visibility, block, block + task.parts, scale);
    const int clear_end = Shape::kLimitsRight && range.clear_end < last ? range.clear_end : last;
    for (; block < clear_end; block += task.parts) walk.step(scale);
    if (Shape::kSkipsTiles && !visibility.has_rows(task))
      for (; block < last; block += task.parts) walk.step_without_rows();
    if (Shape::kLimitsRight)
      for (; block < last; block += task.parts) walk.step_at_edge(visibility, block, block + task.parts, scale);
    walk.finish(visibility, block, scale);
  }
  sum_rows(state);
  if (!Shape::kSplits || task.parts == 1)
    store_rows(state, args, task);
  else
    store_partial(state, args, task);
}

/// Runs workgroup `workgroup` of the merge: merges kMergeRows rows of a split query block.
template <class Config>
__device__ void merge_body(const ArgsOf<Shape<Config>>& args, int workgroup) {
  using Shape = flash_attn::Shape<Config>;
  constexpr int kWorkgroups = Shape::kBlockM / Shape::kMergeRows, kLanes = kThreads / Shape::kMergeRows;
  const Task<Shape> task = Task<Shape>::of(args, Task<Shape>::first_part(args, workgroup / kWorkgroups));
  const int row = workgroup % kWorkgroups * Shape::kMergeRows + thread_index() / kLanes;
  if (task.row + row < task.rows) merge_row(args, task, row, thread_index() % kLanes * 16);
}

}  // namespace aiter_like::flash_attn

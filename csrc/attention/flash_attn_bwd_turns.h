// SPDX-License-Identifier: MIT
// Turns: workgroups add to a block of dQ one after another, in a fixed order, so that its sum is the same in each run.
//
// The sum so far is where the products begin, and what they end with is stored. Both bypass the L1, and stores go
// through to memory (sc1), since the next workgroup may be on another XCD. A turn is over when the stores of all waves
// have arrived: each wave waits for its own before it meets the others, and then one of them says so.
#pragma once

#include "aiter_like/tile/fence.h"
#include "flash_attn_bwd_task.h"

namespace aiter_like::attn_bwd {

constexpr int kThrough = 16;  // sc1 of a buffer instruction

/// A workgroup's turns at the blocks of dQ of its task.
template <class Shape>
struct Turns {
  using Sums = Accumulator[Shape::kDqRowTiles][Shape::kDqTiles];
  static constexpr bool kIsAtomic = Shape::kIsAtomic;

  int* turns;   // the chain's
  float* sums;
  tile::BufferDescriptor so_far;
  int answer, seen;  // what is on its way and what has been read of the next block's turn
  int due;    // this workgroup's
  int block, next_block;  // the block at hand and the one behind it, in scratch
  int head, row_block;    // the latter's in its sequence
  int ended;  // the block before, whose stores are on their way, and its turn; -1: none
  int ended_turn;

  __device__ void start(const Args& args, int chain, int turn) {
    const int64_t blocks = int64_t{args.row_blocks} * args.heads;
    turns = args.turns + chain * blocks, sums = args.dq_sums + chain * blocks * Shape::kDqFloats;
    answer = seen = block = next_block = head = row_block = ended_turn = 0, ended = -1, due = turn;
  }

  /// Begins to read the turn of a block.
  __device__ void ask(int of_block) {
    if constexpr (!kIsAtomic) answer = read(of_block);
  }
  /// Waits for what has been asked for. Stores that begin before it would be waited for, too.
  __device__ void take_answer() {
    if constexpr (!kIsAtomic) seen = __builtin_amdgcn_readfirstlane(answer);
  }

  /// What block follows the one at hand.
  __device__ void follow(int of_block, int of_head, int of_row_block) {
    next_block = of_block, head = of_head, row_block = of_row_block;
  }

  /// Waits until the turn at the block at hand has come, and spoils the block if it does not.
  __device__ void await(const Args& args) {
    if constexpr (kIsAtomic) return;
    for (int polls = 0; __builtin_expect(seen != due, false); ++polls) {
      if (polls == args.most_polls) return spoil();
      __builtin_amdgcn_s_sleep(1);
      ask(block);
      take_answer();
    }
  }

  /// Where the sum so far is: in the first turn nowhere.
  __device__ void find() {
    if constexpr (!kIsAtomic) so_far = tile::make_buffer(data(), due == 0 ? 0 : Shape::kDqFloats * 4);
  }
  /// Begins to load it.
  __device__ void load(Sums& dq) const {
    if constexpr (kIsAtomic) {
      for_tiles([&](int rt, int x, int) { dq[rt][x] = {}; });
      return;
    }
    for_tiles([&](int rt, int x, int place) {
      dq[rt][x] = __builtin_bit_cast(Accumulator,
                                     __builtin_amdgcn_raw_buffer_load_b128(so_far, 4 * place, 0, kThrough));
    });
  }

  /// Stores the sum, or adds to it.
  __device__ void store(const Sums& dq) {
    if constexpr (kIsAtomic) {
      for_tiles([&](int rt, int x, int place) {
#pragma unroll
        for (int i = 0; i < 4; ++i) add(data() + place + i, dq[rt][x][i]);
      });
      block = next_block;
      return;
    }
    const tile::BufferDescriptor buffer = tile::make_buffer(data(), Shape::kDqFloats * 4);
    for_tiles([&](int rt, int x, int place) {
      __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(Chunk, dq[rt][x]), buffer, 4 * place, 0, kThrough);
    });
    ended = block, ended_turn = due;
    block = next_block;
  }

  /// Says that the turn at the block before is over. The stores of all waves have arrived.
  __device__ void end() const {
    if constexpr (kIsAtomic) return;
    const tile::BufferDescriptor buffer = tile::make_buffer(turns + (ended < 0 ? 0 : ended), ended < 0 ? 0 : 4);
    __builtin_amdgcn_raw_buffer_store_b32(ended_turn + 1, buffer, 4 * thread_index(), 0, kThrough);
  }

 private:
  __device__ int read(int of_block) const {
    return __hip_atomic_load(turns + of_block, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  }
  __device__ float* data() const { return sums + static_cast<int64_t>(block) * Shape::kDqFloats; }

  /// The turn never came: its block becomes NaN, not a wrong number.
  __device__ void spoil() {
    Sums nan;
    for_tiles([&](int rt, int x, int) { nan[rt][x] = Accumulator{} + __builtin_nanf(""); });
    store(nan);
    tile::wait_vector_memory();
    ended = -1;
    due = due == 0 ? 1 : due;
  }

  template <class F>
  __device__ static void for_tiles(const F& f) {
    const int wave = wave_index();
#pragma unroll
    for (int rt = 0; rt < Shape::kDqRowTiles; ++rt) {
#pragma unroll
      for (int x = 0; x < Shape::kDqTiles; ++x)
        f(rt, x, Shape::dq_place(Shape::dq_tile(wave) + x, Shape::dq_row_tile(wave) + rt));
    }
  }
  __device__ static void add(float* address, float x) {
    using Global = __attribute__((address_space(1))) float;
    __builtin_amdgcn_global_atomic_fadd_f32((Global*)address, x);
  }
};

}  // namespace aiter_like::attn_bwd

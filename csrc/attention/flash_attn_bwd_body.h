// SPDX-License-Identifier: MIT
// What a workgroup of flash_attn_bwd does: its task, block of rows by block of rows.
#pragma once

#include "flash_attn_bwd_turns.h"
#include "flash_attn_bwd_wave.h"

namespace aiter_like::attn_bwd {

/// Where this lane's elements of a block of scores are: rows and keys of the sequence, and which a mask hides.
template <class Shape>
struct ScorePlaces {
  static constexpr int kFar = 1 << 30;
  int first_row, first_key;            // this lane's: element 0 of row tile 0, of key tile 0
  int least, sink;                     // a row sees keys from row + least on, or below sink,
  uint32_t span;                       // up to row + least + span
  int distance[Shape::kKeyTiles];      // from first_row + least to the key; beyond span for keys past the end
  int rows, keys;

  __device__ void start(const Task<Shape>& task) {
    const auto& blocks = task.sequence.blocks;
    first_row = 0;
    first_key = task.task_key(wave_index() * Shape::kWaveKeys + lane_index() % 16);
    least = blocks.left < 0 ? -kFar : blocks.delta() - blocks.left;
    span = static_cast<uint32_t>((blocks.right < 0 ? kFar : blocks.delta() + blocks.right) - least);
    sink = blocks.sink, rows = blocks.rows, keys = blocks.keys;
  }
  __device__ void move_to(int block) {
    first_row = block * Shape::kBlockM + lane_index() / 16 * 4;
#pragma unroll
    for (int kt = 0; kt < Shape::kKeyTiles; ++kt)
      distance[kt] = key(kt) < keys ? key(kt) - first_row - least : -kFar / 2 * 3;
  }
  __device__ int row(int rt, int i) const { return first_row + 16 * rt + i; }
  __device__ int key(int kt) const { return first_key + 16 * kt; }
  /// Whether the row does not see the key.
  __device__ bool hides(int rt, int kt, int i) const {
    const bool is_out = static_cast<uint32_t>(distance[kt] - (16 * rt + i)) > span;
    if constexpr (kIsPlain<typename Shape::Scores>) return is_out;
    // A row past the end has no score, whatever infinite keys there are: 0 · Inf is no 0.
    const bool is_past = row(rt, i) >= rows;
    if constexpr (!Shape::Scores::kHasSinkTokens) return is_out | is_past;
    return is_past | (is_out & ((key(kt) >= sink) | (distance[kt] - (16 * rt + i) >= 0)));
  }
};

/// The floats of a part of a divided task: the sums of a key tile of all waves lie from end to end.
template <class Shape>
struct PartPlace {
  static constexpr int kKeyFloats = Shape::kDim * kMatrix * kWaves, kValueFloats = Shape::kDimV * kMatrix * kWaves;
  __device__ static int of_keys(int kt) { return kt * (kKeyFloats + kValueFloats) + 4 * thread_index(); }
  __device__ static int of_values(int kt) { return of_keys(kt) + kKeyFloats; }
};

/// Each column of a key tile of dK^T or dV^T, times `scale`, to its key's row, 16 bytes at a time.
template <class Shape, int COUNT>
__device__ void store_key_tile(const FlashAttnTensor& tensor, const Task<Shape>& task, int kt,
                               const Accumulator (&sums)[COUNT], int columns, float scale) {
  using Element = typename Shape::Element;
  const int key = task.task_key(wave_index() * Shape::kWaveKeys + 16 * kt + lane_index() % 16);
  if (key >= task.sequence.blocks.keys) return;
  Element* const row = reinterpret_cast<Element*>(task.sequence.key_of(tensor, task.kv_head, key));
#pragma unroll
  for (int g = 0; g < COUNT / 2; ++g) {
    const int column = 32 * g + lane_index() / 16 * 8;
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = sums[2 * g + i % 2][i / 2] * scale;
    if (column < columns) store_vec<8>(row + column, vec_from_float<Element, 8>(values));
  }
}

/// The blocks of rows of a task, one after another: where the one at hand is, and how many are to come. It goes on by
/// additions in scalar registers, without branches.
template <class Shape>
struct Cursor {
  static constexpr int kM = Shape::kBlockM;
  const char *q, *dout;
  int block, head, scratch_block;
  int left;                                              // blocks to come, this one included
  int64_t q_step, q_head_step, dout_step, dout_head_step;  // bytes: to the block before, and more to the next head's
  int head_blocks, first;

  __device__ void start(const Args& args, const Task<Shape>& task) {
    const int blocks = task.end - task.first, member = task.step / blocks;
    left = task.end_step - task.step, first = task.first;
    block = task.end - 1 - (task.step - member * blocks);
    head = task.kv_head * args.group + member;
    q = task.sequence.row_of(args.q, head, block * kM), dout = task.sequence.row_of(args.dout, head, block * kM);
    scratch_block = static_cast<int>(task.sequence.block_of(args, head, block));
    q_step = -kM * args.q.row, dout_step = -kM * args.dout.row;
    q_head_step = args.q.head - blocks * q_step, dout_head_step = args.dout.head - blocks * dout_step;
    head_blocks = args.row_blocks;
  }
  // A choice would become a branch.
  __device__ void advance_q() { q += q_step + (q_head_step & last_mask()); }
  __device__ void advance_dout() { dout += dout_step + (dout_head_step & last_mask()); }
  __device__ void advance_numbers(const Task<Shape>& task) {
    const int mask = static_cast<int>(last_mask()), back = task.end - first;
    --left;
    scratch_block += -1 + (head_blocks + back & mask);
    block += -1 + (back & mask);
    head -= mask;
  }

 private:
  __device__ int64_t last_mask() const { return -int64_t{block == first}; }
};

/// A workgroup on its way over its steps. IS_MASKED: a row may not see a key.
template <class Shape, bool IS_MASKED>
struct Walk {
  using S = Steps<Shape>;
  using Lds = Places<Shape>;
  using Map = ScoreMap<typename Shape::Scores>;
  static constexpr int kM = Shape::kBlockM, kN = Shape::kBlockN, kAhead = Shape::kAhead;

  const Args& args;
  Task<Shape> task;
  WaveState<Shape> wave;
  BlockMover<kM, Shape::kDim> q;
  BlockMover<kM, Shape::kDimV> dout;
  Cursor<Shape> next;      // the block whose rows are moved to LDS, behind the one at hand
  Moves q_move, dout_move;
  int ahead;               // its number in scratch, or behind the last block that of the one at hand
  Turns<Shape> turns;
  ScorePlaces<Shape> places;
  int first_row, end_row;  // rows that see any key of the task

  __device__ Walk(const Args& args, const Task<Shape>& task) : args(args), task(task) {}

  /// The keys to registers, and the first block to LDS.
  __device__ void start(char* tiles) {
    const auto& blocks = task.sequence.blocks;
    load_keys(tiles);
    wave.start(tiles);
    wave.kept_scale = args.dropout_scale;
    q.start(args.q.row, args.dim);
    dout.start(args.dout.row, args.dim_v);
    const int key = task.task_key(0), end = key + kN < blocks.keys ? key + kN : blocks.keys;
    first_row = blocks.first_row(key), end_row = blocks.end_row(key, end);
    next.start(args, task);
    turns.start(args, task.place.j % args.plan.chains, blocks.turn(0, task.place.j, args.plan.chains));
    places.start(task);
    find_rows();
#pragma unroll
    for (int i = 0; i < decltype(q)::kLoads; ++i) q.load(q_move, i);
#pragma unroll
    for (int i = 0; i < decltype(dout)::kLoads; ++i) dout.load(dout_move, i);
#pragma unroll
    for (int i = 0; i <= kRowValues; ++i) load_row_values(i);
#pragma unroll
    for (int i = 0; i < decltype(q)::kLoads; ++i) q.land_row(tiles + Lds::kQRows, i);
#pragma unroll
    for (int i = 0; i < decltype(dout)::kLoads; ++i) dout.land_row(tiles + Lds::kGradRows, i);
#pragma unroll
    for (int i = 0; i < decltype(dout)::kColumns; ++i) dout.land_column(tiles + Lds::kGradColumns, i);
    turns.take_answer();
#pragma unroll
    for (int i = 0; i < Schedule<Shape>::kGoOnPieces; ++i) go_on(i);
    turns.block = turns.next_block;
    tile::wait_lds();
    tile::meet();
    tile::keep_order();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) wave.request(i);
  }

  /// The block at hand, from this workgroup's turn at it on. From the first product on there is one sequence of
  /// instructions without branches: a branch would part what the schedule orders, and move sums between registers.
  __device__ void step() {
    if (task.sequence.blocks.left >= 0)
      turns.due = task.sequence.blocks.turn(turns.row_block, task.place.j, args.plan.chains);
    turns.await(args);
    const Map map = Map::of(args, task.sequence.batch, turns.head, task.sequence.first_row, task.sequence.blocks);
    each<0, S::kCount>([&](auto step_number) {
      constexpr int n = decltype(step_number)::value;
      each<0, S::products(n)>([&](auto product_number) {
        constexpr int m = decltype(product_number)::value, product = S::first_product(n) + m;
        wave.template multiply<n, m>();
        if constexpr (m == 0 && n != S::kMeetBeforeDk && n != S::kMeetBeforeS) wave.request(n + kAhead);
        beside<product>(map);
        tile::keep_order();
        asm volatile("" ::: "memory");  // The compiler would make one access of two that stand far apart.
      });
      if constexpr (n == S::kMeetBeforeDk) {
        tile::wait_vector_memory<decltype(q)::kLoads + decltype(dout)::kLoads>();  // the stores of the block before
        meet();
        wave.request(n + kAhead);
      }
      if constexpr (n == S::kMeetBeforeS) {
        meet();
        wave.request(n + kAhead);
      }
      tile::keep_order();
    });
    turns.take_answer();
    turns.store(wave.dq);
    asm volatile("" ::: "memory");
    tile::keep_order();
  }

  /// Ends the last turn, and stores dK and dV, or the part's sums.
  __device__ void finish() {
    tile::wait_vector_memory();
    meet();
    turns.end();
    store_results();
  }
  __device__ void store_results() const {
    if (task.place.slot >= 0)
      store_partial();
    else
      store_keys();
  }

 private:
  template <int n, int end, class F>
  __device__ static void each(const F& f) {
    if constexpr (n < end) {
      f(std::integral_constant<int, n>{});
      each<n + 1, end>(f);
    }
  }

  __device__ void meet() {
    tile::keep_order();
    tile::wait_lds();
    tile::meet();
    tile::keep_order();
  }

  /// f(i) for the pieces of a Work that stand beside a product.
  template <int product, class WORK, class F>
  __device__ static void pieces(const F& f) {
    constexpr int kBegin = WORK::begin(product), kEnd = WORK::begin(product + 1);
    if constexpr (kBegin < kEnd) {
#pragma unroll
      for (int i = kBegin; i < kEnd; ++i) f(i);
    }
  }

  /// What stands beside a product.
  template <int product>
  __device__ void beside(const Map& map) {
    using Plan = Schedule<Shape>;
    using Q = decltype(q);
    using Dout = decltype(dout);
    char* const lds = wave.lds;
    each<0, Shape::kRowTiles>([&](auto row_tile) {
      constexpr int rt = decltype(row_tile)::value;
      pieces<product, typename Plan::template P<rt>>([&](int i) { work_on_p(rt, i, map); });
      pieces<product, typename Plan::template Ds<rt>>([&](int i) { work_on_ds(rt, i); });
    });
    pieces<product, typename Plan::template LandQColumns<Q::kColumns>>(
        [&](int i) { q.land_column(lds + Lds::kQColumns, i); });
    pieces<product, typename Plan::template MoveQ<Q::kLoads>>([&](int i) { q.load(q_move, i); });
    pieces<product, typename Plan::template MoveDout<Dout::kLoads>>([&](int i) { dout.load(dout_move, i); });
    pieces<product, typename Plan::FindDq>([&](int) { turns.find(); });
    pieces<product, typename Plan::EndTurn>([&](int) { turns.end(); });
    pieces<product, typename Plan::LoadDq>([&](int) { turns.load(wave.dq); });
    pieces<product, typename Plan::template LoadRows<kRowValues + 1>>([&](int i) { load_row_values(i); });
    pieces<product, typename Plan::template LandQ<Q::kLoads>>([&](int i) { q.land_row(lds + Lds::kQRows, i); });
    pieces<product, typename Plan::template LandDout<Dout::kLoads>>(
        [&](int i) { dout.land_row(lds + Lds::kGradRows, i); });
    pieces<product, typename Plan::template LandDoutColumns<Dout::kColumns>>(
        [&](int i) { dout.land_column(lds + Lds::kGradColumns, i); });
    pieces<product, typename Plan::GoOn>([&](int i) { go_on(i); });
  }

  /// Piece i of P of a row tile: an exponential, or what comes before the next one and behind the one before.
  __device__ void work_on_p(int rt, int i, const Map& map) {
    using Score = typename WaveState<Shape>::Element16;
    const int e = i / 2;
    if (i == 0) wave.scale(Score(rt, 0), map, places);
    if (i % 2 == 0) return wave.exponentiate(Score(rt, e));
    if (e + 1 < Schedule<Shape>::kScores) wave.scale(Score(rt, e + 1), map, places);
    if (e > 0) wave.template finish_p<IS_MASKED>(Score(rt, e - 1), map, places);
    if (e + 1 == Schedule<Shape>::kScores) wave.template finish_p<IS_MASKED>(Score(rt, e), map, places);
  }
  __device__ void work_on_ds(int rt, int i) {
    using Score = typename WaveState<Shape>::Element16;
    if (i % 2 == 0) wave.template differentiate<IS_MASKED>(Score(rt, i / 2));
    if (i % 4 == 3) wave.write_gradients(Score(rt, i / 2 - 1));
  }

  static constexpr int kRowValues = kRowValueCount<Shape> * Shape::kRowTiles;
  __device__ void load_row_values(int i) {
    if (i == kRowValues) return turns.ask(ahead);
    wave.load_row_value(args, ahead, static_cast<RowValue>(i / Shape::kRowTiles), i % Shape::kRowTiles);
  }

  /// The next block becomes the one at hand, and the block behind it the next one; in pieces.
  __device__ void go_on(int piece) {
    if (piece == 0) {
      turns.follow(ahead, next.head, next.block);
      if (IS_MASKED || !WaveState<Shape>::kIsPlain) places.move_to(next.block);
    }
    if (piece == 1) next.advance_q();
    if (piece == 2) next.advance_dout();
    if (piece == 3) next.advance_numbers(task);
    if (piece == 4) find_rows_of(q, next.q, q_move);
    if (piece == 5) find_rows_of(dout, next.dout, dout_move);
  }
  /// The rows of `next` that see any key of the task: 0 · NaN is no 0. Behind the last block there are none.
  template <class MOVER>
  __device__ void find_rows_of(const MOVER& mover, const char* block, Moves& moves) {
    ahead = next.left > 0 ? next.scratch_block : turns.next_block;
    const int row = next.block * kM;
    const int first = IS_MASKED ? between(first_row - row, kM) : 0;
    const int seen = between(end_row - row, kM), end = next.left > 0 ? seen : 0;
    moves = mover.moves_of(block, first, end);
  }
  __device__ void find_rows() {
    find_rows_of(q, next.q, q_move);
    find_rows_of(dout, next.dout, dout_move);
  }
  /// `x` between 0 and `most`; where it is the same in all lanes the compiler has no instruction for both bounds.
  __device__ static int between(int x, int most) {
    x = x < 0 ? 0 : x;
    asm volatile("" : "+s"(x));
    return x < most ? x : most;
  }

  /// K and V of the wave's keys, and this wave's columns of K of all keys, which come through LDS.
  __device__ void load_keys(char* tiles) {
    const auto& sequence = task.sequence;
    const auto load = [&](const FlashAttnTensor& tensor, auto& rows, int columns) {
      const int first = task.task_key(wave_index() * Shape::kWaveKeys);
      const int count = clamped(sequence.blocks.keys - first, 0, Shape::kWaveKeys);
      const uint32_t row_bytes = static_cast<uint32_t>(tensor.row);
      const tile::BufferDescriptor buffer = tile::make_buffer(
          sequence.key_of(tensor, task.kv_head, first), count == 0 ? 0 : (count - 1) * row_bytes + 2 * columns);
      constexpr int kChunks = sizeof(rows[0]) / sizeof(Chunk);
#pragma unroll
      for (int kt = 0; kt < Shape::kKeyTiles; ++kt) {
        const int key = 16 * kt + lane_index() % 16;
        const bool is_seen = sequence.blocks.sees_key(first + key);
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
          const int column = 32 * j + lane_index() / 16 * 8;
          rows[kt][j] = tile::load_chunk(
              buffer, is_seen && column < columns ? key * row_bytes + 2 * column : tile::kOutOfRange);
        }
      }
    };
    load(args.k, wave.k, args.dim);
    load(args.v, wave.v, args.dim_v);
    transpose_keys(tiles);
  }

  /// From all keys in LDS, by row, each wave takes its columns.
  __device__ void transpose_keys(char* tiles) {
    using Image = ByRow<kN, Shape::kDim>;
    const int wave_row = wave_index() * Shape::kWaveKeys, lane = lane_index();
    char* const own = tiles + Image::read_place() + wave_row * Image::kRowBytes;
#pragma unroll
    for (int kt = 0; kt < Shape::kKeyTiles; ++kt) {
#pragma unroll
      for (int j = 0; j < Shape::kDim / 32; ++j) *reinterpret_cast<Chunk*>(own + Image::step(kt, j)) = wave.k[kt][j];
    }
    workgroup_barrier();
#pragma unroll
    for (int x = 0; x < Shape::kDqTiles; ++x) {
      const int tile = Shape::dq_tile(wave_index()) + x, column = 32 * (tile / 2) + 2 * (lane % 16) + tile % 2;
      const char* const at = tiles + lane / 16 * 4 * Image::kRowBytes + 2 * column;
#pragma unroll
      for (int f = 0; f < kN / 16; ++f) {
        uint32_t keys[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          keys[i] = *reinterpret_cast<const uint16_t*>(at + Image::step(f, 0) + i * Image::kRowBytes);
        wave.k_columns[x][f] = Fragment{pack_lower(keys[0], keys[1]), pack_lower(keys[2], keys[3])};
      }
    }
    workgroup_barrier();
  }

  /// The sums of the task's part, as add_parts_body takes them.
  __device__ void store_partial() const {
    float* const part = args.partials + int64_t{task.place.slot} * Shape::kPartFloats;
#pragma unroll
    for (int kt = 0; kt < Shape::kKeyTiles; ++kt) {
      store_sums(part + PartPlace<Shape>::of_keys(kt), wave.dk[kt]);
      store_sums(part + PartPlace<Shape>::of_values(kt), wave.dv[kt]);
    }
  }
  template <int COUNT>
  __device__ static void store_sums(float* place, const Accumulator (&sums)[COUNT]) {
#pragma unroll
    for (int x = 0; x < COUNT; ++x) *reinterpret_cast<Accumulator*>(place + 4 * kThreads * x) = sums[x];
  }
  __device__ void store_keys() const {
#pragma unroll
    for (int kt = 0; kt < Shape::kKeyTiles; ++kt) {
      store_key_tile(args.dk, task, kt, wave.dk[kt], args.dim, args.softmax_scale);
      store_key_tile(args.dv, task, kt, wave.dv[kt], args.dim_v, 1.f);
    }
  }
};

template <class Shape, bool IS_MASKED>
__device__ void run_task(const Args& args, const Task<Shape>& task, char* tiles) {
  Walk<Shape, IS_MASKED> walk(args, task);
  walk.start(tiles);
  for (int left = task.end_step - task.step; left > 0; --left) walk.step();
  walk.finish();
}

/// Runs workgroup `workgroup` of a launch with its kThreads work-items. `tiles` is kLdsBytes of LDS.
template <class Config>
__device__ __attribute__((always_inline)) void gradients_body(const Args& args, int workgroup, char* tiles) {
  using Shape = attn_bwd::Shape<Config>;
  const Task<Shape> task = Task<Shape>::of(args, workgroup);
  const auto& blocks = task.sequence.blocks;
  if (task.place.j >= blocks.key_blocks()) return;
  if (task.step >= task.end_step) {
    Walk<Shape, false> walk(args, task);
    walk.wave.start(tiles);
    walk.store_results();
  } else if (Shape::kIsMasked || task.task_key(Shape::kBlockN) > blocks.keys) {
    run_task<Shape, true>(args, task, tiles);
  } else {
    run_task<Shape, false>(args, task, tiles);
  }
}

/// Sums of parts `stride` floats apart, in their order.
template <int COUNT>
__device__ void add_parts(Accumulator (&sums)[COUNT], const float* place, int parts, int64_t stride) {
#pragma unroll
  for (auto& sum : sums) sum = {};
  for (int n = 0; n < parts; ++n, place += stride) {
#pragma unroll
    for (int x = 0; x < COUNT; ++x) sums[x] += *reinterpret_cast<const Accumulator*>(place + 4 * kThreads * x);
  }
}

/// Adds up the parts of a divided task: dK (matrix 0) or dV (1) of one key tile. `number` is its first part's.
template <class Config>
__device__ void add_parts_body(const Args& args, int number, int kt, int matrix) {
  using Shape = attn_bwd::Shape<Config>;
  const Task<Shape> task = Task<Shape>::of(args, number);
  if (task.place.slot < 0 || task.place.part > 0 || task.place.j >= task.sequence.blocks.key_blocks()) return;
  const float* const part = args.partials + int64_t{task.place.slot} * Shape::kPartFloats;
  const int64_t stride = int64_t{args.plan.columns} * Shape::kPartFloats;
  if (matrix == 0) {
    Accumulator sums[Shape::kDim / 16];
    add_parts(sums, part + PartPlace<Shape>::of_keys(kt), task.place.parts, stride);
    store_key_tile(args.dk, task, kt, sums, args.dim, args.softmax_scale);
  } else {
    Accumulator sums[Shape::kDimV / 16];
    add_parts(sums, part + PartPlace<Shape>::of_values(kt), task.place.parts, stride);
    store_key_tile(args.dv, task, kt, sums, args.dim_v, 1.f);
  }
}

}  // namespace aiter_like::attn_bwd

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
  int keys;

  __device__ void start(const Task<Shape>& task) {
    const auto& blocks = task.sequence.blocks;
    first_row = 0;
    first_key = task.task_key(wave_index() * Shape::kWaveKeys + lane_index() % 16);
    least = blocks.left < 0 ? -kFar : blocks.delta() - blocks.left;
    span = static_cast<uint32_t>((blocks.right < 0 ? kFar : blocks.delta() + blocks.right) - least);
    sink = blocks.sink, keys = blocks.keys;
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
    if constexpr (!Shape::Scores::kHasSinkTokens) return is_out;
    return is_out & ((key(kt) >= sink) | (distance[kt] - (16 * rt + i) >= 0));
  }
};

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
  __device__ void advance(const Task<Shape>& task) {
    // A choice would become a branch.
    const int is_last = block == first, back = task.end - first;
    const int64_t mask = -int64_t{is_last};
    --left;
    q += q_step + (q_head_step & mask);
    dout += dout_step + (dout_head_step & mask);
    scratch_block += -1 + (head_blocks + back & static_cast<int>(mask));
    block += -1 + (back & static_cast<int>(mask));
    head += is_last;
  }
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
    for (int i = 0; i < kRowValues; ++i) load_row_values(i);
    turns.ask(ahead);
#pragma unroll
    for (int i = 0; i < decltype(q)::kLoads; ++i) q.land_row(tiles + Lds::kQRows, i);
#pragma unroll
    for (int i = 0; i < decltype(dout)::kLoads; ++i) dout.land_row(tiles + Lds::kGradRows, i);
#pragma unroll
    for (int i = 0; i < decltype(dout)::kColumns; ++i) dout.land_column(tiles + Lds::kGradColumns, i);
    turns.take_answer();
    go_on();
    turns.block = turns.next_block;
    find_rows();
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
    turns.await();
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
        turns.end();
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

  /// Adds up the parts of the task, of which this is the first.
  __device__ void add_parts() {
    for (int n = 0; n < task.place.parts; ++n) {
      const float* const part = partial(task.place.slot + n * args.plan.columns);
      for_sums([&](Accumulator& sum, int place) { sum += *reinterpret_cast<const Accumulator*>(part + place); });
    }
  }

  /// Ends the last turn, and stores dK and dV, or the part's sums.
  __device__ void finish() {
    tile::wait_vector_memory();
    meet();
    turns.end();
    store_results();
  }
  __device__ void store_results() {
    if (task.place.slot >= 0)
      store_partial();
    else
      store_keys();
  }
  __device__ void store_keys() const {
    store(args.dk, wave.dk, args.dim, args.softmax_scale);
    store(args.dv, wave.dv, args.dim_v, 1.f);
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

  /// f(i) for the pieces of a job beside a product.
  template <int begin, int end, class F>
  __device__ static void pieces(const F& f) {
#pragma unroll
    for (int i = begin; i < end; ++i) f(i);
  }

  /// What stands beside a product.
  template <int product>
  __device__ void beside(const Map& map) {
    using Plan = Schedule<Shape>;
    constexpr int kQLoads = decltype(q)::kLoads, kDoutLoads = decltype(dout)::kLoads;
    each<0, Shape::kRowTiles>([&](auto row_tile) {
      constexpr int rt = decltype(row_tile)::value;
      constexpr Job p = Plan::p(rt), ds = Plan::ds(rt);
      pieces<p.begin(product), p.begin(product + 1)>([&](int i) { work_on_p(rt, i, map); });
      pieces<ds.begin(product), ds.begin(product + 1)>([&](int i) { work_on_ds(rt, i); });
    });
#define AITER_LIKE_JOB(JOB, ...) \
  { \
    constexpr Job job = JOB; \
    if constexpr (job.begin(product) < job.begin(product + 1)) pieces<job.begin(product), job.begin(product + 1)>(__VA_ARGS__); \
  }
    AITER_LIKE_JOB(Plan::land_q_columns(decltype(q)::kColumns), [&](int i) { q.land_column(wave.lds + Lds::kQColumns, i); })
    AITER_LIKE_JOB(Plan::move_q(kQLoads), [&](int i) { q.load(q_move, i); })
    AITER_LIKE_JOB(Plan::move_dout(kDoutLoads), [&](int i) { dout.load(dout_move, i); })
    AITER_LIKE_JOB(Plan::load_dq(), [&](int) { turns.load(wave.dq); })
    AITER_LIKE_JOB(Plan::load_rows(kRowValues + 1), [&](int i) { i < kRowValues ? load_row_values(i) : turns.ask(ahead); })
    AITER_LIKE_JOB(Plan::land_q(kQLoads), [&](int i) { q.land_row(wave.lds + Lds::kQRows, i); })
    AITER_LIKE_JOB(Plan::land_dout(kDoutLoads), [&](int i) { dout.land_row(wave.lds + Lds::kGradRows, i); })
    AITER_LIKE_JOB(Plan::land_dout_columns(decltype(dout)::kColumns), [&](int i) { dout.land_column(wave.lds + Lds::kGradColumns, i); })
    AITER_LIKE_JOB(Plan::go_on(), [&](int i) { i == 0 ? go_on() : find_rows(); })
#undef AITER_LIKE_JOB
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
    wave.load_row_value(args, ahead, static_cast<RowValue>(i / Shape::kRowTiles), i % Shape::kRowTiles);
  }

  /// The next block becomes the one at hand.
  __device__ void go_on() {
    turns.follow(ahead, next.head, next.block);
    if (IS_MASKED || !WaveState<Shape>::kIsPlain) places.move_to(next.block);
    next.advance(task);
  }
  /// The rows of `next` that see any key of the task: 0 · NaN is no 0. Behind the last block there are none.
  __device__ void find_rows() {
    ahead = next.left > 0 ? next.scratch_block : turns.next_block;
    const int row = next.block * kM;
    const int first = IS_MASKED ? between(first_row - row, kM) : 0;
    const int seen = between(end_row - row, kM), end = next.left > 0 ? seen : 0;
    q_move = q.moves_of(next.q, first, end);
    dout_move = dout.moves_of(next.dout, first, end);
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

  /// Each column of dK^T or dV^T, times `scale`, to its key's row, 16 bytes at a time.
  template <class SUMS>
  __device__ void store(const FlashAttnTensor& tensor, const SUMS& sums, int columns, float scale) const {
    using Element = typename Shape::Element;
    constexpr int kGroups = sizeof(sums[0]) / sizeof(Accumulator) / 2;
#pragma unroll
    for (int kt = 0; kt < Shape::kKeyTiles; ++kt) {
      const int key = task.task_key(wave_index() * Shape::kWaveKeys + 16 * kt + lane_index() % 16);
      if (key >= task.sequence.blocks.keys) continue;
      Element* const row = reinterpret_cast<Element*>(task.sequence.key_of(tensor, task.kv_head, key));
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int column = 32 * g + lane_index() / 16 * 8;
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = sums[kt][2 * g + i % 2][i / 2] * scale;
        if (column < columns) store_vec<8>(row + column, vec_from_float<Element, 8>(values));
      }
    }
  }

  /// f(sum, place) of each sum of dK and dV, and its place among the floats of a part.
  template <class F>
  __device__ void for_sums(const F& f) {
    int place = thread_index() * 4;
    const auto take = [&](auto& sums) {
#pragma unroll
      for (auto& tiles : sums) {
#pragma unroll
        for (auto& sum : tiles) {
          f(sum, place);
          place += 4 * kThreads;
        }
      }
    };
    take(wave.dk);
    take(wave.dv);
  }
  __device__ float* partial(int slot) const { return args.partials + int64_t{slot} * Shape::kPartFloats; }
  __device__ void store_partial() {
    float* const part = partial(task.place.slot);
    for_sums([&](const Accumulator& sum, int place) { *reinterpret_cast<Accumulator*>(part + place) = sum; });
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

/// Runs workgroup `workgroup` of the launch that adds up the parts of divided tasks, as many as the one before has.
template <class Config>
__device__ void add_parts_body(const Args& args, int workgroup) {
  using Shape = attn_bwd::Shape<Config>;
  const Task<Shape> task = Task<Shape>::of(args, workgroup);
  if (task.place.slot < 0 || task.place.part > 0 || task.place.j >= task.sequence.blocks.key_blocks()) return;
  Walk<Shape, false> walk(args, task);
  walk.wave.start(nullptr);
  walk.add_parts();
  walk.store_keys();
}

}  // namespace aiter_like::attn_bwd

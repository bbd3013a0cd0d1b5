// SPDX-License-Identifier: MIT
// The kernel of rope.hip, rope_2d.hip and rope_rounded.hip, which say what a Config holds. Each rotated pair of a head
// turns by an angle of its token:
//   first' = first · cos - second · sin,  second' = second · cos + first · sin
//
//   1. a lane loads its two packs of kVec elements of kHeads heads
//   2. meanwhile it finds its token's row of the table and loads its kVec pairs' angles, once for all its heads
//   3. it rotates in fp32, rounds, stores; loads the next kHeads heads, up to kShare in all
//   4. lanes beyond the rotated part copy the rest of a head, unless it is in place
//
// Tile: 2^lane_bits lanes take a head; as many groups of them as a token's heads need share the token. LDS: none.
// Bound: memory. An element moves 2 · sizeof(Element) bytes for 3 flop; a row of the table serves all heads of a lane.
#pragma once

#include "aiter_like/math.h"
#include "rope.h"

namespace aiter_like {

constexpr int kRopeThreads = 256;
template <class Config>
constexpr int kRopeVec = 16 / sizeof(typename Config::Element);

struct RopeStrides {
  int64_t s, b, head;  // in elements
};

/// A tensor of heads: [s, b, heads, head_dim].
template <class Element>
struct RopeHeads {
  const Element* input;
  Element* out;
  RopeStrides input_strides, out_strides;
  int heads;
};

/// Cosines and sines, or angles; strides of a row in elements.
template <class Table>
struct RopeTable {
  const Table *cosines, *sines;
  int64_t cosine_stride, sine_stride;
  uint32_t rows;
};

template <class Config>
struct RopeArgs {
  RopeHeads<typename Config::Element> first, second;  // the second has 0 heads where there is one tensor
  // The second is for images: there the second half of a head turns by the column.
  RopeTable<typename Config::Table> table, column_table;
  RopeIndices positions, offsets;
  Divider groups;                // a token's: those of the first tensor, then those of the second
  uint32_t first_groups, second_groups;
  int64_t tokens;
  Divider batch, image_width;
  int sequences;                 // > 0: positions are the `sequences` + 1 starts of packed sequences
  int rotary_dim, rotary_begin, copied, copied_begin, half_dim;
  int rotary_lanes, rotary_distance, copied_distance;  // lanes with pairs; from a lane's low pack to its high one
  int lane_bits;
  bool is_backward;
};

/// Row of the table for token (s, b): loaded before it is needed, so that the loads of heads need not wait for it.
struct RopeRow {
  RopeIndex position, offset;

  template <class Args>
  __device__ RopeRow(const Args& args, int64_t s, int64_t b) {
    if (args.sequences == 0 && args.positions.data != nullptr) position = args.positions.load(s, b);
    if (args.offsets.data != nullptr) offset = args.offsets.load(s, b);
  }

  /// Modulo 2^64: a sum that is negative is larger than any table.
  template <class Args>
  __device__ uint64_t find(const Args& args, int32_t s) const {
    if (args.sequences > 0) {
      int low = 0, high = args.sequences;  // starts[low] ≤ s < starts[high]
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (args.positions.at(middle) <= s ? low : high) = middle;
      }
      return int64_t(s - args.positions.at(low));
    }
    const uint64_t row = args.positions.data != nullptr ? position.value(args.positions.is_long) : uint64_t(s);
    return row + offset.value(args.offsets.is_long);
  }
};

/// What a lane works on: two packs, `distance` elements apart, of each of its heads of one token.
struct RopeLane {
  uint32_t s, b, group;  // the token, and the heads' group among its tensor's
  int turned;            // the first rotated element that is the lane's
  int low, distance;     // its first pack in a head, and from there to its second
  bool is_rotated, has_high, is_column;
};

/// A lane's heads in its tensor, each `step` heads after the last.
template <class Element>
struct RopeShare {
  const Element* input;
  Element* out;
  int64_t input_step, out_step;  // elements
  uint32_t step, heads;
};

template <class Config, int kVec, bool kIsGptj, bool kIsShared>
struct RopeBody {
  using Element = typename Config::Element;
  using Table = typename Config::Table;
  using Args = RopeArgs<Config>;
  using Share = RopeShare<Element>;
  using Packs = Pairs<Element, kVec, kIsGptj>[Config::kHeads];
  using Angles = Turn<Table, kVec, kIsGptj, kIsShared, Config::kIsAngle>;

  /// Whether there is work for the lane, and then which.
  __device__ __forceinline__ static bool find_lane(const Args& args, RopeLane& at) {
    const int lane = thread_index() & ((1 << args.lane_bits) - 1);
    const uint32_t item = workgroup_index().x * (kRopeThreads >> args.lane_bits) + (thread_index() >> args.lane_bits);
    const uint32_t token = args.groups.divide(item);
    at.group = item - token * args.groups.divisor;
    at.is_rotated = lane < args.rotary_lanes;  // the others copy
    const int copied = (lane - args.rotary_lanes) * kVec;
    if (token >= args.tokens || (!at.is_rotated && copied >= args.copied_distance)) return false;

    at.turned = lane * kVec * (kAreNeighbours<kVec, kIsGptj> ? 2 : 1);
    at.low = at.is_rotated ? args.rotary_begin + at.turned : args.copied_begin + copied;
    at.distance = at.is_rotated ? args.rotary_distance : args.copied_distance;
    at.has_high = at.is_rotated || copied + at.distance < args.copied;
    at.s = args.batch.divide(token), at.b = token - at.s * args.batch.divisor;
    at.is_column = Config::kIsImage && (at.group & 1);  // groups are even in number there
    if constexpr (Config::kIsImage) at.group >>= 1;
    return true;
  }

  /// Values are selected one by one: a selected struct would be read from memory by every lane.
  __device__ __forceinline__ static Share find_heads(const Args& args, RopeLane& at) {
    const bool is_first = at.group < args.first_groups;
    const auto pick = [&](auto first, auto second) { return is_first ? first : second; };
    at.group -= is_first ? 0 : args.first_groups;
    Share share;
    share.step = pick(args.first_groups, args.second_groups);
    share.heads = args.second.heads + (is_first ? args.first.heads - args.second.heads : 0);  // not by a load
    const auto place = [&](const RopeStrides& first, const RopeStrides& second) {
      return at.s * pick(first.s, second.s) + at.b * pick(first.b, second.b) +
             at.group * pick(first.head, second.head) + at.low + (at.is_column ? args.half_dim : 0);
    };
    const RopeStrides &from = args.first.input_strides, &to = args.first.out_strides;
    const RopeStrides &from_second = args.second.input_strides, &to_second = args.second.out_strides;
    share.input = pick(args.first.input, args.second.input) + place(from, from_second);
    share.out = pick(args.first.out, args.second.out) + place(to, to_second);
    share.input_step = share.step * pick(from.head, from_second.head);
    share.out_step = share.step * pick(to.head, to_second.head);
    return share;
  }

  __device__ static void load(const RopeLane& at, const Share& share, uint32_t head, Packs& x) {
#pragma unroll
    for (uint32_t i = 0; i < Config::kHeads; ++i) {
      if (head + i * share.step >= share.heads) continue;
      x[i].low.load(share.input + i * share.input_step);
      if (at.has_high) x[i].high.load(share.input + i * share.input_step + at.distance);
    }
  }

  __device__ __forceinline__ static void load_angles(const Args& args, const RopeLane& at, const RopeRow& found,
                                                     Angles& turn) {
    const uint32_t image_row = Config::kIsImage ? args.image_width.divide(at.s) : 0;
    const int64_t row = !Config::kIsImage ? found.find(args, at.s)
                        : at.is_column    ? at.s - image_row * args.image_width.divisor
                                          : image_row;
    const auto table = [&](const Table* of_row, const Table* of_column, int64_t stride, int64_t column_stride) {
      return (at.is_column ? of_column : of_row) + row * (at.is_column ? column_stride : stride);
    };
    const RopeTable<Table> &rows = args.table, &columns = args.column_table;
    if (Config::kIsImage || static_cast<uint64_t>(row) < rows.rows)
      turn.load(table(rows.cosines, columns.cosines, rows.cosine_stride, columns.cosine_stride),
                table(rows.sines, columns.sines, rows.sine_stride, columns.sine_stride), at.turned, at.distance);
    else
      turn.load_nan();
    if (args.is_backward) turn.transpose();
  }

  __device__ __forceinline__ static void store(const RopeLane& at, const Share& share, uint32_t head, const Packs& x,
                                               const Angles& turn) {
#pragma unroll
    for (uint32_t i = 0; i < Config::kHeads; ++i) {
      if (head + i * share.step >= share.heads) continue;
      Element* to = share.out + i * share.out_step;
      if (at.is_rotated) {
        rotate_pairs<Config::kIsRounded>(to, to + at.distance, x[i], turn);
      } else {
        x[i].low.store(to);
        if (at.has_high) x[i].high.store(to + at.distance);
      }
    }
  }

  __device__ __forceinline__ static void run(const Args& args) {
    RopeLane at;
    if (!find_lane(args, at)) return;
    Share share = find_heads(args, at);
    const RopeRow found(args, at.s, at.b);
    Packs x;
    load(at, share, at.group, x);
    Angles turn;
    if (at.is_rotated) load_angles(args, at, found, turn);
    for (uint32_t head = at.group;;) {
      store(at, share, head, x, turn);
      head += Config::kHeads * share.step;
      if (head >= share.heads) break;
      share.input += Config::kHeads * share.input_step;
      share.out += Config::kHeads * share.out_step;
      load(at, share, head, x);
    }
  }
};

template <class Body>
__global__ __launch_bounds__(kRopeThreads) void rope_kernel(typename Body::Args args) {
  await_stream();
#if defined(__HIP__)
  fetch_arguments<typename Body::Args>();
#endif
  Body::run(args);
}

template <class Config, int kVec>
inline void launch_rope_kernel(RopeArgs<Config> args, bool is_gptj, bool is_shared, Stream stream) {
  args.rotary_lanes = args.rotary_dim / (2 * kVec);
  args.rotary_distance = is_gptj && kVec == 1 ? 1 : args.rotary_dim / 2;
  args.copied_distance = (args.copied + 2 * kVec - 1) / (2 * kVec) * kVec;
  const int lanes = args.rotary_lanes + args.copied_distance / kVec;
  args.lane_bits = 0;
  while ((1 << args.lane_bits) < lanes) ++args.lane_bits;
  // A lane takes kShare heads, or fewer where there are too few tokens to fill the device: 2^17 lanes fill 64 CUs.
  int64_t groups = 0;
  for (int share = Config::kShare; share > 0; share /= 2) {
    args.first_groups = static_cast<uint32_t>((args.first.heads + share - 1) / share);
    args.second_groups = static_cast<uint32_t>((args.second.heads + share - 1) / share);
    groups = (int64_t{args.first_groups} + args.second_groups) * (Config::kIsImage ? 2 : 1);
    if (args.tokens * groups << args.lane_bits >= int64_t{1} << 17) break;
  }
  if (args.tokens * groups >= int64_t{1} << 31) {  // a lane takes all heads of a tensor
    args.first_groups = args.first.heads > 0;
    args.second_groups = args.second.heads > 0;
    groups = (args.first_groups + args.second_groups) * (Config::kIsImage ? 2 : 1);
  }
  args.groups = Divider(static_cast<uint32_t>(groups));
  const int64_t items = args.tokens * groups, per_group = kRopeThreads >> args.lane_bits;
  const dim3 grid(static_cast<uint32_t>((items + per_group - 1) / per_group));
  const auto kernel = is_gptj && is_shared ? rope_kernel<RopeBody<Config, kVec, true, true>>
                      : is_gptj            ? rope_kernel<RopeBody<Config, kVec, true, false>>
                      : is_shared          ? rope_kernel<RopeBody<Config, kVec, false, true>>
                                           : rope_kernel<RopeBody<Config, kVec, false, false>>;
  launch_named("rope_kernel", kernel, grid, kRopeThreads, stream, args);
}

template <class Config>
void launch_rope(const RopeArgs<Config>& args, bool is_gptj, bool is_shared, bool is_aligned, Stream stream) {
  if (is_aligned) launch_rope_kernel<Config, kRopeVec<Config>>(args, is_gptj, is_shared, stream);
  else launch_rope_kernel<Config, 1>(args, is_gptj, is_shared, stream);
}

}  // namespace aiter_like

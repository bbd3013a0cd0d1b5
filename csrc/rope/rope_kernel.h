// SPDX-License-Identifier: MIT
// The kernel of rope.hip and rope_2d.hip. Each rotated pair of a head turns by an angle of its token:
//   first' = first · cos - second · sin,  second' = second · cos + first · sin
//
//   1. a lane loads its two packs of kVec elements of HEADS heads
//   2. meanwhile it finds its token's row of the table and loads its kVec pairs' angles, once for all its heads
//   3. it rotates in fp32, rounds, stores; loads the next HEADS heads, up to SHARE in all
//   4. lanes beyond the rotated part copy the rest of a head, unless it is in place
//
// Tile: 2^lane_bits lanes take a head; as many groups of them as a token's heads need share the token. LDS: none.
// Bound: memory. An element moves 2 · sizeof(ELEMENT) bytes for 3 flop; a row of the table serves all heads of a lane.
#pragma once

#include "aiter_like/ffi.h"
#include "aiter_like/math.h"
#include "rope.h"

#if !defined(ELEMENT) || !defined(TABLE) || !defined(IS_ANGLE) || !defined(HEADS) || !defined(SHARE)
#error "rope: -DELEMENT=bf16|f16|float -DTABLE=bf16|f16|float -DIS_ANGLE=0|1 -DHEADS=1|2|4 -DSHARE=1…16"
#endif

namespace aiter_like {

constexpr int kRopeThreads = 256;
constexpr int kRopeVec = 16 / sizeof(ELEMENT);

struct RopeStrides {
  int64_t s, b, head;  // in elements
};

/// A tensor of heads: [s, b, heads, head_dim].
struct RopeHeads {
  const ELEMENT* input;
  ELEMENT* out;
  RopeStrides input_strides, out_strides;
  int heads;
};

/// Cosines and sines, or angles; strides of a row in elements.
struct RopeTable {
  const TABLE *cosines, *sines;
  int64_t cosine_stride, sine_stride;
  uint32_t rows;
};

struct RopeArgs {
  RopeHeads first, second;       // the second has 0 heads where there is one tensor
  RopeTable table, column_table; // the latter for images: the second half of a head turns by the column
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

  __device__ RopeRow(const RopeArgs& args, int64_t s, int64_t b) {
    if (args.sequences == 0 && args.positions.data != nullptr) position = args.positions.load(s, b);
    if (args.offsets.data != nullptr) offset = args.offsets.load(s, b);
  }

  /// Modulo 2^64: a sum that is negative is larger than any table.
  __device__ uint64_t find(const RopeArgs& args, int32_t s) const {
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

template <int kVec, bool kIsGptj, bool kIsShared, bool kIsImage>
__global__ __launch_bounds__(kRopeThreads) void rope_kernel(RopeArgs args) {
  await_stream();
#if defined(__HIP__)
  fetch_arguments<RopeArgs>();
#endif
  const int lane = thread_index() & ((1 << args.lane_bits) - 1);
  const uint32_t item = workgroup_index().x * (kRopeThreads >> args.lane_bits) + (thread_index() >> args.lane_bits);
  const uint32_t token = args.groups.divide(item);
  uint32_t group = item - token * args.groups.divisor;
  const bool is_rotated = lane < args.rotary_lanes;  // the others copy
  const int copied = (lane - args.rotary_lanes) * kVec;
  if (token >= args.tokens || (!is_rotated && copied >= args.copied_distance)) return;

  const int turned = lane * kVec * (kAreNeighbours<kVec, kIsGptj> ? 2 : 1);
  const int low = is_rotated ? args.rotary_begin + turned : args.copied_begin + copied;
  const int distance = is_rotated ? args.rotary_distance : args.copied_distance;
  const bool has_high = is_rotated || copied + distance < args.copied;
  const uint32_t s = args.batch.divide(token), b = token - s * args.batch.divisor;
  const bool is_column = kIsImage && (group & 1);  // groups are even in number there
  if constexpr (kIsImage) group >>= 1;

  // Values are selected one by one: a selected struct would be read from memory by every lane.
  const bool is_first = group < args.first_groups;
  const auto pick = [&](auto first, auto second) { return is_first ? first : second; };
  group -= is_first ? 0 : args.first_groups;
  const uint32_t step = pick(args.first_groups, args.second_groups);
  const uint32_t heads = args.second.heads + (is_first ? args.first.heads - args.second.heads : 0);  // not by a load
  const auto place = [&](const RopeStrides& first, const RopeStrides& second) {
    return s * pick(first.s, second.s) + b * pick(first.b, second.b) + group * pick(first.head, second.head) + low +
           (is_column ? args.half_dim : 0);
  };
  const RopeStrides &from = args.first.input_strides, &to = args.first.out_strides;
  const RopeStrides &from_second = args.second.input_strides, &to_second = args.second.out_strides;
  const ELEMENT* input = pick(args.first.input, args.second.input) + place(from, from_second);
  ELEMENT* out = pick(args.first.out, args.second.out) + place(to, to_second);
  const int64_t input_step = step * pick(from.head, from_second.head), out_step = step * pick(to.head, to_second.head);

  const RopeRow found(args, s, b);
  Pairs<ELEMENT, kVec, kIsGptj> x[HEADS];
  const auto load = [&](uint32_t head) {
#pragma unroll
    for (uint32_t i = 0; i < HEADS; ++i) {
      if (head + i * step >= heads) continue;
      x[i].low.load(input + i * input_step);
      if (has_high) x[i].high.load(input + i * input_step + distance);
    }
  };
  load(group);

  Turn<TABLE, kVec, kIsGptj, kIsShared, IS_ANGLE> turn;
  if (is_rotated) {
    const uint32_t image_row = kIsImage ? args.image_width.divide(s) : 0;
    const int64_t row = !kIsImage    ? found.find(args, s)
                        : is_column ? s - image_row * args.image_width.divisor
                                    : image_row;
    const auto table = [&](const TABLE* of_row, const TABLE* of_column, int64_t stride, int64_t column_stride) {
      return (is_column ? of_column : of_row) + row * (is_column ? column_stride : stride);
    };
    const RopeTable &rows = args.table, &columns = args.column_table;
    if (kIsImage || static_cast<uint64_t>(row) < rows.rows)
      turn.load(table(rows.cosines, columns.cosines, rows.cosine_stride, columns.cosine_stride),
                table(rows.sines, columns.sines, rows.sine_stride, columns.sine_stride), turned, distance);
    else
      turn.load_nan();
    if (args.is_backward) turn.transpose();
  }

  for (uint32_t head = group;;) {
#pragma unroll
    for (uint32_t i = 0; i < HEADS; ++i) {
      if (head + i * step >= heads) continue;
      ELEMENT* at = out + i * out_step;
      if (is_rotated) {
        rotate_pairs(at, at + distance, x[i], turn);
      } else {
        x[i].low.store(at);
        if (has_high) x[i].high.store(at + distance);
      }
    }
    head += HEADS * step;
    if (head >= heads) break;
    input += HEADS * input_step;
    out += HEADS * out_step;
    load(head);
  }
}

template <int kVec>
inline void launch_rope_kernel(RopeArgs args, bool is_gptj, bool is_shared, Stream stream) {
  constexpr bool kIsImage = ROPE_IS_IMAGE;
  args.rotary_lanes = args.rotary_dim / (2 * kVec);
  args.rotary_distance = is_gptj && kVec == 1 ? 1 : args.rotary_dim / 2;
  args.copied_distance = (args.copied + 2 * kVec - 1) / (2 * kVec) * kVec;
  const int lanes = args.rotary_lanes + args.copied_distance / kVec;
  args.lane_bits = 0;
  while ((1 << args.lane_bits) < lanes) ++args.lane_bits;
  // A lane takes SHARE heads, or fewer where there are too few tokens to fill the device: 2^17 lanes fill 64 CUs.
  int64_t groups = 0;
  for (int share = SHARE; share > 0; share /= 2) {
    args.first_groups = static_cast<uint32_t>((args.first.heads + share - 1) / share);
    args.second_groups = static_cast<uint32_t>((args.second.heads + share - 1) / share);
    groups = (int64_t{args.first_groups} + args.second_groups) * (kIsImage ? 2 : 1);
    if (args.tokens * groups << args.lane_bits >= int64_t{1} << 17) break;
  }
  if (args.tokens * groups >= int64_t{1} << 31) {  // a lane takes all heads of a tensor
    args.first_groups = args.first.heads > 0;
    args.second_groups = args.second.heads > 0;
    groups = (args.first_groups + args.second_groups) * (kIsImage ? 2 : 1);
  }
  args.groups = Divider(static_cast<uint32_t>(groups));
  const int64_t items = args.tokens * groups, per_group = kRopeThreads >> args.lane_bits;
  const dim3 grid(static_cast<uint32_t>((items + per_group - 1) / per_group));
  const auto kernel = is_gptj && is_shared ? rope_kernel<kVec, true, true, kIsImage>
                      : is_gptj            ? rope_kernel<kVec, true, false, kIsImage>
                      : is_shared          ? rope_kernel<kVec, false, true, kIsImage>
                                           : rope_kernel<kVec, false, false, kIsImage>;
  launch_named("rope_kernel", kernel, grid, kRopeThreads, stream, args);
}

void launch_rope(const RopeArgs& args, bool is_gptj, bool is_shared, bool is_aligned, Stream stream) {
  if (is_aligned) launch_rope_kernel<kRopeVec>(args, is_gptj, is_shared, stream);
  else launch_rope_kernel<1>(args, is_gptj, is_shared, stream);
}

#if AITER_LIKE_HOST_PASS

/// Collects the kernel's arguments from tensors; `is_aligned` says whether every access may take kRopeVec elements.
struct RopeCall {
  ffi::Match match;
  ffi::Size s{"s"}, b{"b"}, head_dim{"head_dim"}, width{"elements of a table's row"};
  RopeArgs args{};
  bool is_aligned = true, is_in_place = true;

  explicit RopeCall(const char* op) : match(op) {}

  /// Heads of `input` and `out`: [s, b, heads, head_dim], or [s, heads, head_dim].
  RopeHeads heads(const ffi::Tensor& input, const ffi::Tensor& out) {
    ffi::Size heads{"heads"};
    const bool has_batch = input.ndim() == 4;
    const int head = has_batch ? 2 : 1;
    const ffi::Shape shape = has_batch ? ffi::Shape{s, b, heads, head_dim} : ffi::Shape{s, heads, head_dim};
    const auto x = match.take<const ELEMENT>(input, shape, "input");
    const auto y = match.take<ELEMENT>(out, shape, "out");
    const auto strides_of = [&](const int64_t* strides) {
      return RopeStrides{strides[0], has_batch ? strides[1] : 0, strides[head]};
    };
    is_in_place = is_in_place && x == y;
    for (int d = 0; d <= head; ++d) is_in_place = is_in_place && x.step(d) == y.step(d);
    is_aligned = is_aligned && ffi::are_rows_aligned(input, 16) && ffi::are_rows_aligned(out, 16);
    return {x, y, strides_of(x.strides), strides_of(y.strides), static_cast<int>(heads)};
  }

  /// Two tables of the same size, or one of angles.
  RopeTable table(const ffi::Tensor& cosines, const ffi::OptionalTensor& sines) {
    ffi::Size rows{"rows of a table"};
    match.built(sines.has_value() != IS_ANGLE, "kinds of tables");
    const ffi::Tensor others = sines.has_value() ? *sines : cosines;
    const auto c = match.rows<const TABLE>(cosines, rows, width, "cos");
    const auto s = match.rows<const TABLE>(others, rows, width, "sin");
    constexpr int64_t kBytes = kRopeVec * sizeof(TABLE) < 16 ? kRopeVec * sizeof(TABLE) : 16;
    is_aligned = is_aligned && ffi::are_rows_aligned(cosines, kBytes) && ffi::are_rows_aligned(others, kBytes);
    return {c.data, s.data, c.stride, s.stride, static_cast<uint32_t>(rows)};
  }

  /// Sets the parts of a head, or of half of one, that are rotated and copied.
  void parts(int64_t elements, bool is_shared, bool nope_first) {
    args.rotary_dim = static_cast<int>(width * (is_shared ? 2 : 1));
    match.require(args.rotary_dim % 2 == 0 && args.rotary_dim <= elements,
                  "the table's rows must fit the head and make whole pairs");
    const int rest = static_cast<int>(elements) - args.rotary_dim;
    args.rotary_begin = nope_first ? rest : 0;
    args.copied_begin = nope_first ? 0 : args.rotary_dim;
    args.copied = is_in_place ? 0 : rest;
    is_aligned = is_aligned && ((args.rotary_dim / 2) | rest) % kRopeVec == 0;
    match.require(elements <= 2 * kRopeThreads, "heads of at most 512 elements");
  }
};

#endif

}  // namespace aiter_like

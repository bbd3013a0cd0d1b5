// SPDX-License-Identifier: MIT
// The kernel of rope.hip and rope_2d.hip. Each rotated pair of a head turns by an angle of its token:
//   first' = first · cos - second · sin,  second' = second · cos + first · sin
//
//   1. a lane finds its token's row of the table and loads its kVec pairs' angles, once for all its heads
//   2. it loads its two packs of kVec elements of HEADS heads at a time, rotates in fp32, rounds, stores
//   3. lanes beyond the rotated part copy the rest of a head, unless it is in place
//
// Tile: 2^lane_bits lanes take a head, 2^group_bits groups of them share a token's heads. LDS: none.
// Bound: memory. An element moves 2 · sizeof(ELEMENT) bytes for 3 flop; a row of the table serves all heads of a token.
#pragma once

#include "aiter_like/ffi.h"
#include "aiter_like/rope.h"

#if !defined(ELEMENT) || !defined(TABLE) || !defined(IS_ANGLE) || !defined(HEADS)
#error "rope: -DELEMENT=bf16|f16|float -DTABLE=bf16|f16|float -DIS_ANGLE=0|1 -DHEADS=1|2|4"
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

/// One column of a token's heads, which are those of a first and then of a second tensor.
template <class T>
struct RopePlace {
  T *first, *second;  // values, selected by value: a selected struct would be read from memory by every lane
  int64_t first_step, second_step;

  __device__ RopePlace(T* first, T* second, const RopeStrides& first_strides, const RopeStrides& second_strides,
                       int64_t s, int64_t b, int column)
      : first(first + s * first_strides.s + b * first_strides.b + column),
        second(second + s * second_strides.s + b * second_strides.b + column),
        first_step(first_strides.head),
        second_step(second_strides.head) {}

  __device__ T* head(int index, int first_heads) const {
    const bool is_first = index < first_heads;
    const int64_t step = is_first ? first_step : second_step;
    return (is_first ? first : second) + (is_first ? index : index - first_heads) * step;
  }
};

/// Cosines and sines, or angles; rows in elements.
struct RopeTable {
  const TABLE *cosines, *sines;
  int64_t cosine_stride, sine_stride;
};

struct RopeArgs {
  RopeHeads first, second;       // the second has 0 heads where there is one tensor
  RopeTable table, column_table; // the latter for images: the second half of a head turns by the column
  RopeIndices positions, offsets;
  int64_t tokens;
  int batch, image_width;        // image_width 0: no image
  int sequences;                 // > 0: positions are the `sequences` + 1 starts of packed sequences
  int rotary_dim, rotary_begin, copied, copied_begin, half_dim;
  int lane_bits, group_bits;
  bool is_backward;
};

/// Row of the table for token (s, b).
__device__ inline int64_t rope_row(const RopeArgs& args, int64_t s, int64_t b) {
  if (args.sequences > 0) {
    int low = 0, high = args.sequences;  // starts[low] ≤ s < starts[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (args.positions.at(middle) <= s ? low : high) = middle;
    }
    return s - args.positions.at(low);
  }
  int64_t row = args.positions.data != nullptr ? args.positions.at(s, b) : s;
  if (args.offsets.data != nullptr) row += args.offsets.at(s, b);
  return row;
}

template <int kVec, bool kIsGptj, bool kIsShared>
__global__ __launch_bounds__(kRopeThreads) void rope_kernel(RopeArgs args) {
  const int lane = thread_index() & ((1 << args.lane_bits) - 1);
  const int group = (thread_index() >> args.lane_bits) & ((1 << args.group_bits) - 1);
  const int token_bits = args.lane_bits + args.group_bits;
  const int64_t token = int64_t{workgroup_index().x} * (kRopeThreads >> token_bits) + (thread_index() >> token_bits);
  const int rotated = args.rotary_dim / (2 * kVec);  // lanes with pairs; the others copy
  const int copied = (lane - rotated) * 2 * kVec;
  if (token >= args.tokens || (lane >= rotated && copied >= args.copied)) return;

  const bool is_rotated = lane < rotated;
  const int low = is_rotated ? args.rotary_begin + lane * kVec * (kIsGptj ? 2 : 1) : args.copied_begin + copied;
  const int distance = is_rotated && !kIsGptj ? args.rotary_dim / 2 : kVec;  // from low to high
  const bool has_high = is_rotated || copied + kVec < args.copied;
  const int64_t s = static_cast<uint32_t>(token) / static_cast<uint32_t>(args.batch);
  const int64_t b = static_cast<uint32_t>(token) % static_cast<uint32_t>(args.batch);

  const bool is_column = args.image_width > 0 && (group & 1);  // groups are even in number there
  Turn<TABLE, kVec, kIsGptj, kIsShared, IS_ANGLE> turn;
  if (is_rotated) {
    int64_t row;
    if (args.image_width > 0) row = is_column ? s % args.image_width : s / args.image_width;
    else row = rope_row(args, s, b);
    const TABLE* cosines = is_column ? args.column_table.cosines : args.table.cosines;
    const TABLE* sines = is_column ? args.column_table.sines : args.table.sines;
    const int64_t cosine_stride = is_column ? args.column_table.cosine_stride : args.table.cosine_stride;
    const int64_t sine_stride = is_column ? args.column_table.sine_stride : args.table.sine_stride;
    turn.load(cosines + row * cosine_stride, sines + row * sine_stride, lane * kVec, distance);
  }

  const RopePlace<const ELEMENT> input{args.first.input, args.second.input, args.first.input_strides,
                                       args.second.input_strides, s, b, low + is_column * args.half_dim};
  const RopePlace<ELEMENT> out{args.first.out, args.second.out, args.first.out_strides, args.second.out_strides,
                               s, b, low + is_column * args.half_dim};
  const int heads = args.first.heads + args.second.heads, is_image = args.image_width > 0;
  for (int start = group; start < heads; start += HEADS << args.group_bits) {
    Pairs<ELEMENT, kVec, kIsGptj> x[HEADS];
#pragma unroll
    for (int i = 0; i < HEADS; ++i) {
      const int head = start + (i << args.group_bits);
      if (head >= heads) continue;
      const ELEMENT* from = input.head(head >> is_image, args.first.heads);
      x[i].low.load(from);
      if (has_high) x[i].high.load(from + distance);
    }
#pragma unroll
    for (int i = 0; i < HEADS; ++i) {
      const int head = start + (i << args.group_bits);
      if (head >= heads) continue;
      ELEMENT* to = out.head(head >> is_image, args.first.heads);
      if (is_rotated) {
        rotate_pairs(to, to + distance, x[i], turn, args.is_backward);
      } else {
        x[i].low.store(to);
        if (has_high) x[i].high.store(to + distance);
      }
    }
  }
}

template <int kVec>
inline void launch_rope_kernel(RopeArgs args, bool is_gptj, bool is_shared, Stream stream) {
  const auto bits = [](int64_t count) {
    int found = 0;
    while ((int64_t{1} << found) < count) ++found;
    return found;
  };
  const int lanes = (args.rotary_dim / 2 + (args.copied + 1) / 2 + kVec - 1) / kVec;
  const int64_t heads = args.first.heads + args.second.heads;
  args.lane_bits = bits(lanes);
  // A lane takes HEADS heads, or one where there are too few tokens to fill the device: 2^17 lanes fill 64 CUs.
  const int64_t share = args.tokens * heads << args.lane_bits < int64_t{HEADS} << 17 ? 1 : HEADS;
  const int is_image = args.image_width > 0;
  args.group_bits = bits((heads + share - 1) / share);
  if (args.lane_bits + args.group_bits > 8) args.group_bits = 8 - args.lane_bits;
  if (args.group_bits < is_image) args.group_bits = is_image;
  const int64_t tokens_per_group = kRopeThreads >> (args.lane_bits + args.group_bits);
  const dim3 grid(static_cast<uint32_t>((args.tokens + tokens_per_group - 1) / tokens_per_group));
  if (is_gptj && is_shared) rope_kernel<kVec, true, true><<<grid, kRopeThreads, 0, stream>>>(args);
  else if (is_gptj) rope_kernel<kVec, true, false><<<grid, kRopeThreads, 0, stream>>>(args);
  else if (is_shared) rope_kernel<kVec, false, true><<<grid, kRopeThreads, 0, stream>>>(args);
  else rope_kernel<kVec, false, false><<<grid, kRopeThreads, 0, stream>>>(args);
  check_launch("rope_kernel");
}

void launch_rope(const RopeArgs& args, bool is_gptj, bool is_shared, bool is_aligned, Stream stream) {
  if (is_aligned) launch_rope_kernel<kRopeVec>(args, is_gptj, is_shared, stream);
  else launch_rope_kernel<1>(args, is_gptj, is_shared, stream);
}

#if AITER_LIKE_HOST_PASS

/// Collects the kernel's arguments from tensors; `is_aligned` says whether every access may take kRopeVec elements.
struct RopeCall {
  RopeArgs args{};
  bool is_aligned = true, is_in_place = true;

  /// Heads of `input` and `out`: [s, b, heads, head_dim], or [s, heads, head_dim].
  RopeHeads heads(const ffi::Tensor& input, const ffi::Tensor& out) {
    ffi::check_type(ffi::has_element<ELEMENT>(input) && ffi::has_element<ELEMENT>(out),
                    "rope: input or out has another dtype than this module was built for");
    const int last = input.ndim() - 1, b = last - 2;
    ffi::check_value((last == 2 || last == 3) && out.ndim() == last + 1, "rope: input must have 3 or 4 dimensions");
    for (int d = 0; d <= last; ++d)
      ffi::check_value(input.size(d) == out.size(d), "rope: out must have the shape of input");
    ffi::check_value(input.size(last) == 1 || (input.stride(last) == 1 && out.stride(last) == 1),
                     "rope: input and out must be contiguous in their last dimension");
    const bool has_batch = last == 3;
    const auto strides_of = [&](const ffi::Tensor& tensor) {
      return RopeStrides{tensor.stride(0), has_batch ? tensor.stride(b) : 0, tensor.stride(last - 1)};
    };
    const RopeHeads result{static_cast<const ELEMENT*>(input.data_ptr()), static_cast<ELEMENT*>(out.data_ptr()),
                           strides_of(input), strides_of(out), static_cast<int>(input.size(last - 1))};
    align(reinterpret_cast<intptr_t>(result.input) | reinterpret_cast<intptr_t>(result.out), 16);
    is_in_place = is_in_place && result.input == result.out;
    const auto compare = [&](int64_t size, int64_t from, int64_t to) {
      if (size <= 1) return;
      align(from | to, kRopeVec);
      is_in_place = is_in_place && from == to;
    };
    compare(input.size(0), result.input_strides.s, result.out_strides.s);
    compare(has_batch ? input.size(b) : 1, result.input_strides.b, result.out_strides.b);
    compare(input.size(last - 1), result.input_strides.head, result.out_strides.head);
    return result;
  }

  /// Two tables of the same size, or one of angles.
  RopeTable table(const ffi::Tensor& cosines, const ffi::Optional<ffi::Tensor>& sines, int64_t& width) {
    const ffi::Rows c = ffi::rows<TABLE>(cosines, "rope: cos"), s = ffi::rows<TABLE>(
        sines.has_value() ? sines.value() : cosines, "rope: sin");
    ffi::check_value(sines.has_value() != IS_ANGLE && c.size == s.size && c.count == s.count,
                     "rope: cos and sin must have one shape, and this module was built for another kind of table");
    width = c.size;
    constexpr int64_t kBytes = kRopeVec * sizeof(TABLE) < 16 ? kRopeVec * sizeof(TABLE) : 16;
    is_aligned = is_aligned && c.is_aligned(kBytes, sizeof(TABLE)) && s.is_aligned(kBytes, sizeof(TABLE));
    return {static_cast<const TABLE*>(c.data), static_cast<const TABLE*>(s.data), c.stride, s.stride};
  }

  /// What of a head of `head_dim` elements is rotated and copied.
  void parts(int64_t width, int64_t head_dim, bool is_shared, bool nope_first) {
    args.rotary_dim = static_cast<int>(is_shared ? 2 * width : width);
    ffi::check_value(args.rotary_dim % 2 == 0 && args.rotary_dim <= head_dim,
                     "rope: the table's rows must fit the head and make whole pairs");
    const int rest = static_cast<int>(head_dim) - args.rotary_dim;
    args.rotary_begin = nope_first ? rest : 0;
    args.copied_begin = nope_first ? 0 : args.rotary_dim;
    args.copied = is_in_place ? 0 : rest;
    align((args.rotary_dim / 2) | rest, kRopeVec);
    ffi::check_value(head_dim <= 2 * kRopeThreads, "rope: heads of at most 512 elements");
  }

  void align(int64_t bits, int64_t unit) { is_aligned = is_aligned && (bits & (unit - 1)) == 0; }
};

#endif

}  // namespace aiter_like

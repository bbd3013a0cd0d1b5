// SPDX-License-Identifier: MIT
// The host's part of a launch of flash_attn_fwd's body: its order, its split, and how heads share workgroups.
#pragma once

#include "flash_attn_results.h"

namespace aiter_like::flash_attn {

/// The launch holds no more query blocks than this, less one, nor tensors more rows.
constexpr int64_t kMostGrid = int64_t{1} << 31, kMostRows = int64_t{1} << 30;
constexpr int64_t kLargestRowStride = int64_t{1} << 24;  // elements: 64 rows within a signed 32-bit offset

inline bool is_key_row_stride(int64_t bytes, int64_t row_bytes) {
  return row_bytes <= bytes && bytes < 2 * kLargestRowStride;
}

/// Limits beyond these hide nothing, and sums of positions stay within 32 bits.
inline void set_window(FlashAttnArgs& args, int64_t left, int64_t right, int64_t seqlen_q, int64_t seqlen_k) {
  args.window_left = static_cast<int>(0 <= left && left < seqlen_k ? left : seqlen_k);
  args.window_right = static_cast<int>(0 <= right && right < seqlen_q ? right : seqlen_q);
}

/// The slots of a head for sequences of so many rows in all; of several, each may begin within a block (first_slot).
inline int64_t slots_of(int64_t rows, int64_t sequences, int block) {
  return sequences == 1 ? (rows + block - 1) / block : rows / block + sequences;
}

/// The order of a launch that is split so.
template <class Shape>
void order_launch(FlashAttnArgs& args, int query_blocks, KeySplit split, int num_cus) {
  const int group = static_cast<int>(args.group.divisor);
  args.split = split;
  args.parts = Divider(static_cast<uint32_t>(split.parts));
  if (!Shape::kLimitsRight) {
    args.slots_of_group = Divider(static_cast<uint32_t>(args.slots * group));
    return;
  }
  int columns = query_blocks / args.slots;
  const int whole = split.whole / columns;
  if (split.parts == 1) columns = band_columns(args.slots, columns, group, num_cus);
  args.order = LongestFirst(args.slots, whole, columns, split.parts);
}

/// The order and the split of a launch. most_parts: 0 for no limit; 1 for a launch of several packed sequences, of
/// whose lengths the host knows but bounds.
template <class Shape>
void plan_launch(FlashAttnArgs& args, int query_blocks, int most_parts, int num_cus) {
  KeySplit split{query_blocks, 1};
  if (!Shape::kLimitsRight && most_parts != 1)
    split = KeySplit::plan(query_blocks, (args.seqlen_k + kBlockN - 1) / kBlockN, num_cus, most_parts);
  if (Shape::kLimitsRight && Shape::kSplits && most_parts != 1)
    split = KeySplit::plan({args.slots, query_blocks / args.slots, args.seqlen_q, args.seqlen_k,
                            static_cast<int>(args.pack.divisor), Shape::kBlockM, args.window_right},
                           num_cus, most_parts);
  order_launch<Shape>(args, query_blocks, split, num_cus);
}

/// The bytes of a launch's partial results.
template <class Shape>
int64_t partial_bytes(const FlashAttnArgs& args, int64_t query_blocks) {
  return (query_blocks - args.split.whole) * args.split.parts * PartialResult<Shape>::kFloats * int64_t{sizeof(float)};
}

/// How many workgroups a launch has.
inline uint32_t grid_of(const FlashAttnArgs& args, int query_blocks) {
  return static_cast<uint32_t>(args.split.whole + (query_blocks - args.split.whole) * args.split.parts);
}

/// … and the merge of its split query blocks, where there are any.
template <class Shape>
uint32_t merge_grid_of(const FlashAttnArgs& args, int query_blocks) {
  return static_cast<uint32_t>((query_blocks - args.split.whole) * (Shape::kBlockM / Shape::kMergeRows));
}

}  // namespace aiter_like::flash_attn

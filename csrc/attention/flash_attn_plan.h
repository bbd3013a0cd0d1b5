// SPDX-License-Identifier: MIT
// Which workgroup of flash_attn_fwd.hip does what: arithmetic on a flat index, no table. ops/attention_plan.py has the
// same formula for the size of the workspace.
//
//   pack     the rows of a group's heads share a workgroup where they fit one
//   order    chunks of workgroups that read the same keys (all query blocks of a KV head and its group) go to one XCD
//   split    the last, partly filled round over the CUs divides its keys into `parts` of every parts-th block
#pragma once

#include "aiter_like/gpu.h"
#include "aiter_like/math.h"

namespace aiter_like {

constexpr int kXcds = 8;              // of an MI300X; workgroups are dealt to them round-robin
constexpr int kMostPartsPerCu = 2;    // of a tail: bounds the workspace
constexpr int kLeastSplitBlocks = 48; // key blocks below which a tail is not worth the merge
constexpr int kLeastPartBlocks = 4;   // key blocks of a part
constexpr int kBlockOverhead = 3;     // of prologue and epilogue, in key blocks

/// How many query heads share the rows of a workgroup: all of a KV head's group, where their rows fit one. Keys are
/// read once for all of them then. length: of a sequence; total: of all of them, whose rows must stay countable.
inline int packed_heads(int64_t group, int64_t length, int64_t total, int block) {
  return length * group <= block && total * group < int64_t{1} << 30 ? static_cast<int>(group) : 1;
}

/// How a launch's tail is split.
struct KeySplit {
  int whole;   // workgroups that take all keys; the query blocks behind them are split
  int parts;   // 1: none is

  /// query_blocks: all of the launch; key_blocks: of the longest sequence; most_parts: 0 for no limit.
  static KeySplit plan(int query_blocks, int key_blocks, int num_cus, int most_parts) {
    const int tail = query_blocks % num_cus;
    const KeySplit none{query_blocks, 1};
    if (tail == 0 || 20 * tail > 19 * num_cus || key_blocks < kLeastSplitBlocks) return none;
    int limit = kMostPartsPerCu * num_cus / tail;
    if (most_parts > 0 && most_parts < limit) limit = most_parts;
    int best = 1, least = key_blocks + kBlockOverhead;
    for (int parts = 2; parts <= limit && key_blocks / parts >= kLeastPartBlocks; ++parts) {
      const int rounds = (tail * parts + num_cus - 1) / num_cus;
      const int cost = rounds * ((key_blocks + parts - 1) / parts) + kBlockOverhead;
      if (cost < least) best = parts, least = cost;
    }
    return best == 1 ? none : KeySplit{query_blocks - tail, best};
  }
};

/// A bijection of [0, count) under which ids that lie `chunk` apart in the result go to the same XCD, chunk by chunk.
/// What does not fill all XCDs once more goes there in eight equal pieces; the last ids stay.
__host__ __device__ inline int xcd_order(int id, int count, int chunk) {
  const int rounds = count / (kXcds * chunk);
  int first = 0, size = chunk;
  if (id >= rounds * kXcds * chunk) {
    first = rounds * kXcds * chunk;
    size = (count - first) / kXcds;
    if (id >= first + kXcds * size) return id;
  }
  const int local = (id - first) / kXcds;
  return first + local / size * (kXcds * size) + (id - first) % kXcds * size + local % size;
}

/// Varlen without a table of sequences: sequence s owns the query blocks that begin at start(s) / block + s, of which
/// there are at least as many as it needs.
__host__ __device__ inline int first_slot(int start, int sequence, int block) { return start / block + sequence; }

}  // namespace aiter_like

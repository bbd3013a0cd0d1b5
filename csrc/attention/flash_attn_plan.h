// SPDX-License-Identifier: MIT
// Which workgroup of flash_attn_fwd does what: arithmetic on a flat index, no table. attention_workspace.hip gives the
// size of the workspace by it.
//
//   pack     The rows of a group's heads share a workgroup where they fit one.
//   order    Without a mask, chunks of workgroups that read the same keys (all query blocks of a KV head and its group)
//            go to one XCD. Under a mask the longest query blocks of all heads come first, and a head's go to one XCD.
//   split    The keys of a query block are divided into `parts`, each of which takes every parts-th key block. Without
//            a mask the query blocks of the last, partly filled round over the CUs are split; under a mask the longest
//            ones are, which would end last.
#pragma once

#include "aiter_like/gpu.h"
#include "aiter_like/math.h"

namespace aiter_like {

constexpr int kXcds = 8;              // an MI300X's, which deals workgroups to them round-robin
constexpr int kBlockN = 64;           // keys per block
constexpr int kMostPartsPerCu = 2;    // bounds the workspace
constexpr int kMostRoundsOfAll = 3;   // the same on each CU where all query blocks are split
constexpr int kLeastSplitBlocks = 16; // key blocks below which a query block is not worth the merge
constexpr int kLeastPartBlocks = 4;   // key blocks of a part
constexpr int kBlockOverhead = 3;     // time of prologue and epilogue, in key blocks
constexpr int kMergeOverhead = 3;     // time of a part's merge, in key blocks
constexpr int kMergedBytes = 12 << 20;  // Memory moves so many in the time of a key block, 3.2 us on the cycle model.
constexpr int kBandRounds = 4;        // least number of query blocks per CU in a band of heads

/// How many query heads of a KV head's group share the rows of workgroups: as many as leave the fewest workgroups, and
/// of those the most, so that a workgroup's rows are of fewer queries, whose masks end closer together. length: of a
/// sequence; total: of all sequences, whose rows must stay countable.
inline int packed_heads(int64_t group, int64_t length, int64_t total, int block) {
  int64_t best = 1, least = (length + block - 1) / block * group;
  for (int64_t pack = 2; pack <= group; ++pack) {
    if (group % pack != 0 || total * pack >= int64_t{1} << 30) continue;
    const int64_t blocks = (length * pack + block - 1) / block * (group / pack);
    if (blocks <= least) best = pack, least = blocks;
  }
  return static_cast<int>(best);
}

/// The end of the key blocks that query `query` sees any key of, when it sees keys up to query + above. There are
/// `blocks` in all.
__host__ __device__ inline int end_of_seen_blocks(int query, int above, int blocks) {
  const int end = query + above < 0 ? 0 : (query + above) / kBlockN + 1;
  return end < blocks ? end : blocks;
}

/// The query blocks of a dense launch that limits keys on the right, as a causal mask does. The `columns` are the heads
/// or the groups of packed heads of all sequences; each has `slots` query blocks. Later slots see more keys.
struct CausalLaunch {
  int slots, columns;
  int queries, keys, pack;  // a sequence's
  int rows;                 // a query block's
  int window_right;

  /// How many key blocks a slot sees any key of.
  int seen_blocks(int slot) const {
    const int end_row = slot + 1 < slots ? (slot + 1) * rows : queries * pack;
    return end_of_seen_blocks((end_row - 1) / pack, keys - queries + window_right, (keys + kBlockN - 1) / kBlockN);
  }

  /// When a launch that divides the keys of the last `split` slots into `parts` has ended, in key blocks. `seen` is the
  /// sum of seen_blocks over all slots. The launch takes no less than each CU's share; and among the first
  /// r · num_cus + 1 workgroups, whole ones and parts each counted longest first, some r + 1 have the same CU.
  int64_t end_time(int64_t seen, int split, int parts, int num_cus) const {
    const int64_t whole_ids = int64_t{slots - split} * columns, part_ids = int64_t{split} * columns * parts;
    int64_t end = ceil_div(seen * columns + kBlockOverhead * (whole_ids + part_ids), num_cus);
    const auto not_before = [&](int64_t time) { end = time > end ? time : end; };
    for (int64_t id = 0, round = 1; id < whole_ids; id += num_cus, ++round)
      not_before(round * (seen_blocks(static_cast<int>(slots - split - 1 - id / columns)) + kBlockOverhead));
    for (int64_t id = 0, round = 1; id < part_ids; id += num_cus, ++round) {
      const int slot = static_cast<int>(slots - 1 - id / (columns * parts));
      not_before(round * (ceil_div(seen_blocks(slot), parts) + kBlockOverhead));
    }
    return end + ceil_div(kMergeOverhead * part_ids, num_cus);
  }

  static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
};

/// How a launch is split.
struct KeySplit {
  int whole;  // workgroups that take all keys of their query block; the other query blocks are split
  int parts;  // parts of a split query block; 1: no query block is split

  /// The split without a mask. query_blocks: of the whole launch; key_blocks: of the longest sequence; most_parts: 0
  /// for no limit.
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

  /// The split of sequences of whose lengths the host knows but bounds: of all query blocks, or of none. A part of all
  /// rows gives part_bytes, which are written and read.
  static KeySplit plan_all(int query_blocks, int key_blocks, int64_t part_bytes, int num_cus) {
    int best = 1, least = 0;
    for (int parts = 1; parts == 1 || (key_blocks >= kLeastSplitBlocks && key_blocks / parts >= kLeastPartBlocks);
         ++parts) {
      const int64_t rounds = (int64_t{query_blocks} * parts + num_cus - 1) / num_cus;
      if (rounds > kMostRoundsOfAll) break;
      const int cost = static_cast<int>(rounds) * ((key_blocks + parts - 1) / parts + kBlockOverhead) +
                       (parts > 1 ? kMergeOverhead + static_cast<int>(2 * parts * part_bytes / kMergedBytes) : 0);
      if (parts == 1 || cost < least) best = parts, least = cost;
    }
    return best == 1 ? KeySplit{query_blocks, 1} : KeySplit{0, best};
  }

  /// The split with a limit on the right. Split are the last slots of each column, as many as the workspace holds, but
  /// no slot that is at most half as long as the longest part. The least end_time wins, and among equal ones the
  /// smaller number of parts.
  static KeySplit plan(const CausalLaunch& launch, int num_cus, int most_parts) {
    const KeySplit none{launch.slots * launch.columns, 1};
    const int limit = kMostPartsPerCu * num_cus / launch.columns;  // parts of a column's query blocks, all together
    if (limit < 2) return none;
    const int longest = launch.seen_blocks(launch.slots - 1);
    if (longest < kLeastSplitBlocks) return none;
    int64_t seen = 0;
    for (int slot = 0; slot < launch.slots; ++slot) seen += launch.seen_blocks(slot);
    KeySplit best = none;
    int64_t least = launch.end_time(seen, 0, 1, num_cus);
    int first = launch.slots;  // the first slot that is long enough to be split
    for (int parts = 2; parts <= limit && (most_parts == 0 || parts <= most_parts); ++parts) {
      if (longest / parts < kLeastPartBlocks) break;
      while (first > 0 && launch.seen_blocks(first - 1) > (longest + parts - 1) / parts / 2) --first;
      const int split = launch.slots - first < limit / parts ? launch.slots - first : limit / parts;
      const int64_t end = launch.end_time(seen, split, parts, num_cus);
      if (split > 0 && end < least) best = {(launch.slots - split) * launch.columns, parts}, least = end;
    }
    return best;
  }
};

/// How many columns of a launch with a mask make a band, whose heads are worked on side by side, slot after slot. With
/// more columns the CUs are filled more evenly at the end; with fewer, more workgroups read the same keys at the same
/// time. The result divides `columns`, of which each `group` read the same keys.
inline int band_columns(int slots, int columns, int group, int num_cus) {
  const int chunks = columns / group;
  int64_t bands = int64_t{slots} * columns / (kBandRounds * num_cus);
  if (bands > chunks / kXcds) bands = chunks / kXcds;
  while (bands > 1 && chunks % (kXcds * bands) != 0) --bands;
  return columns / static_cast<int>(bands > 1 ? bands : 1);
}

/// A bijection of [0, count) that gives each XCD whole chunks of `chunk` consecutive results. The remainder, which does
/// not fill all XCDs once more, goes to them in eight equal pieces, and the last ids stay as they are.
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

/// The workgroups of a launch with a mask, the longest first: id = (band · places + place) · columns + column. The
/// places of a band are its whole slots, the last slot first, and then the parts of its split slots in the same order.
struct LongestFirst {
  int slots, whole;              // slots of a column, and how many of them are not split
  Divider columns, band, parts;  // columns of a band, workgroups of a band, parts of a split slot

  LongestFirst() = default;
  LongestFirst(int slots, int whole, int columns, int parts)
      : slots(slots),
        whole(whole),
        columns(static_cast<uint32_t>(columns)),
        band(static_cast<uint32_t>((whole + (slots - whole) * parts) * columns)),
        parts(static_cast<uint32_t>(parts)) {}

  struct Place {
    int column, slot;
    int tail, part;  // tail: index among the split query blocks, -1 for one that is not split
  };

  /// The place of workgroup `id`. The columns of a group, which read the same keys, go to one XCD.
  __device__ Place at(int id, int group) const {
    const int of_band = static_cast<int>(band.divide(id)), width = static_cast<int>(columns.divisor);
    id -= of_band * static_cast<int>(band.divisor);
    const int place = static_cast<int>(columns.divide(id)), column = id - place * width;
    Place found{of_band * width + xcd_order(column, width, group), whole - 1 - place, -1, 0};
    if (place >= whole) {
      const int nth = static_cast<int>(parts.divide(place - whole));
      found.part = place - whole - nth * static_cast<int>(parts.divisor);
      found.tail = nth * width + column;
      found.slot = slots - 1 - nth;
    }
    return found;
  }

  /// The id of the first part of a split query block, in a launch of one band.
  __device__ int first_part(int tail) const {
    const int width = static_cast<int>(columns.divisor);
    return whole * width + tail + static_cast<int>(columns.divide(tail) * (parts.divisor - 1)) * width;
  }
};

/// A varlen launch needs no table of query blocks: sequence s owns the slots from start(s) / block + s to those of the
/// next sequence, which are at least as many as it needs.
__host__ __device__ inline int first_slot(int start, int sequence, int block) { return start / block + sequence; }

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Arguments of flash_attn_fwd's kernels, and what one workgroup takes of them.
#pragma once

#include <type_traits>

#include "attention_sequence.h"
#include "flash_attn_layout.h"
#include "flash_attn_plan.h"
#include "paged_lengths.h"

namespace aiter_like {

/// The arguments of a launch. A varlen launch has `batch` sequences of different lengths behind one another in one
/// tensor.
struct FlashAttnArgs {
  FlashAttnTensor q, k, v, out;    // [batch, rows, heads, kHeadDim], varlen [rows, heads, kHeadDim]
  float* lse;                      // [batch, num_heads, seqlen_q], varlen [num_heads, total_q]; or null
  float* partials;                 // split query blocks' results, see PartialResult
  const int* cu_seqlens_q;         // [batch + 1], as cu_seqlens_k; both are null unless varlen
  const int* cu_seqlens_k;
  const int* seqlens_k;            // [batch], or null
  int64_t lse_batch, lse_head;     // strides
  int batch, seqlen_q, seqlen_k;   // varlen: number of sequences, all rows, all keys
  int window_left, window_right;   // keys before and after a row's own that it sees
  float scale_log2;                // softmax_scale · log2 e
  int slots;                       // query blocks per head: of a sequence, varlen of all sequences
  KeySplit split;
  Divider pack;                    // heads of a group that share a workgroup: row r is query r / pack, head r % pack
  Divider group, kv_heads, parts;  // group: workgroups of a KV head and a slot
  Divider slots_of_group;          // without a mask
  LongestFirst order;              // with a mask
};

/// The arguments of a launch whose keys lie in pages: k and v are [pages, page_size, kv_heads, kHeadDim], and their
/// `batch` is from page to page. q and out are varlen.
struct PagedFlashAttnArgs : FlashAttnArgs {
  paged::Lengths lengths;
  const int* block_table;
  int64_t table_row;  // elements
  Divider page_size;
  int num_pages;
};

namespace flash_attn {

template <class Shape>
using ArgsOf = std::conditional_t<Shape::kIsPaged, PagedFlashAttnArgs, FlashAttnArgs>;

/// A query block of one head, or of the packed heads of one group, of one sequence, and its share of the keys.
template <class Shape>
struct Task {
  using Args = ArgsOf<Shape>;
  int sequence, head, kv_head;  // head: the first one of packed heads
  int first_query, queries;     // the sequence's: where they begin in q, and how many there are
  int first_key, keys;
  int rows;                     // the sequence's: queries · packed heads
  int row;                      // first row of the block; not below `rows` for a slot that no row needs
  int part, parts;
  int tail;                     // index among the split query blocks
  int first_entry;              // the sequence's first page, in its row of the block table

  __device__ static Task of(const Args& args, int id) {
    Task task;
    task.part = task.tail = 0;
    task.parts = 1;
    if (Shape::kLimitsRight)
      task.find_longest_first(args, id);
    else
      task.find_chunk(args, id);
    return task;
  }

  /// The id of the first part of a split query block.
  __device__ static int first_part(const Args& args, int tail) {
    if (!Shape::kLimitsRight) return args.split.whole + tail * args.split.parts;
    return args.order.first_part(tail);
  }

  /// Row r of the sequence in a tensor like q.
  __device__ char* row_of(const FlashAttnTensor& t, const FlashAttnArgs& args, int r) const {
    const int query = static_cast<int>(args.pack.divide(r)), member = r - query * static_cast<int>(args.pack.divisor);
    return const_cast<char*>(base(t, first_query, head)) + query * t.row + member * t.head;
  }
  __device__ float& lse_of(const FlashAttnArgs& args, int r) const {
    const int query = static_cast<int>(args.pack.divide(r)), member = r - query * static_cast<int>(args.pack.divisor);
    return args.lse[sequence * args.lse_batch + (head + member) * args.lse_head + first_query + query];
  }
  __device__ const char* keys_of(const FlashAttnTensor& t) const { return base(t, first_key, kv_head); }

 private:
  // All query blocks take equally long: id = (chunk · slots + slot) · group + member, and the parts of the last ones
  // come behind.
  __device__ void find_chunk(const Args& args, int id) {
    if (id < args.split.whole) {
      id = xcd_order(id, args.split.whole, static_cast<int>(args.slots_of_group.divisor));
    } else {
      const int extra = id - args.split.whole;
      parts = args.split.parts;
      tail = static_cast<int>(args.parts.divide(extra));
      part = extra - tail * parts;
      id = args.split.whole + tail;
    }
    const int chunk = static_cast<int>(args.slots_of_group.divide(id));
    id -= chunk * static_cast<int>(args.slots_of_group.divisor);
    const int slot = static_cast<int>(args.group.divide(id));
    find_rows(args, chunk, id - slot * static_cast<int>(args.group.divisor), slot);
  }

  // Later slots take longer.
  __device__ void find_longest_first(const Args& args, int id) {
    const int group = static_cast<int>(args.group.divisor);
    const LongestFirst::Place place = args.order.at(id, group);
    if (Shape::kSplits && place.tail >= 0) {
      tail = place.tail;
      part = place.part;
      parts = args.split.parts;
    }
    const int chunk = static_cast<int>(args.group.divide(place.column));
    find_rows(args, chunk, place.column - chunk * group, place.slot);
  }

  // chunk = sequence · kv_heads + kv_head; a varlen launch has the slots of all sequences in sequence 0.
  __device__ void find_rows(const Args& args, int chunk, int member, int slot) {
    sequence = static_cast<int>(args.kv_heads.divide(chunk));
    kv_head = chunk - sequence * static_cast<int>(args.kv_heads.divisor);
    head = (kv_head * static_cast<int>(args.group.divisor) + member) * static_cast<int>(args.pack.divisor);
    if constexpr (Shape::kIsPaged) {
      find_paged_sequence(args, slot);
    } else if (args.cu_seqlens_q != nullptr) {
      find_sequence(args, slot);
    } else {
      first_query = first_key = 0;
      queries = args.seqlen_q;
      keys = args.seqlens_k == nullptr ? args.seqlen_k : clamped(args.seqlens_k[sequence], 0, args.seqlen_k);
      row = slot * Shape::kBlockM;
    }
    if constexpr (!Shape::kIsPaged) rows = queries * static_cast<int>(args.pack.divisor);
  }

  /// The sequence that owns a slot.
  __device__ static int sequence_of(const Args& args, int slot) {
    const int pack = static_cast<int>(args.pack.divisor);
    int begun = 0;  // sequences whose slots begin at this one or before
    for (int first = 0; first < args.batch; first += kWaveSize) {
      const int s = first + lane_index();
      const int start = clamped(args.cu_seqlens_q[s < args.batch ? s : args.batch], 0, args.seqlen_q);
      begun += __builtin_popcountll(
          __builtin_amdgcn_ballot_w64(s < args.batch && first_slot(start * pack, s, Shape::kBlockM) <= slot));
    }
    return begun > 0 ? begun - 1 : 0;
  }

  // Whatever cu_seqlens holds, every row that comes out lies inside the tensors.
  __device__ void find_sequence(const Args& args, int slot) {
    const int pack = static_cast<int>(args.pack.divisor);
    sequence = sequence_of(args, slot);
    first_query = clamped(args.cu_seqlens_q[sequence], 0, args.seqlen_q);
    queries = clamped(args.cu_seqlens_q[sequence + 1], first_query, args.seqlen_q) - first_query;
    first_key = clamped(args.cu_seqlens_k[sequence], 0, args.seqlen_k);
    keys = clamped(args.cu_seqlens_k[sequence + 1], first_key, args.seqlen_k) - first_key;
    row = (slot - first_slot(first_query * pack, sequence, Shape::kBlockM)) * Shape::kBlockM;
    if (row < 0) row = queries * pack;
    sequence = 0;  // Varlen tensors have no batch stride.
  }

  // Queries beyond the launch's longest sequence count for the mask, and are not computed.
  __device__ void find_paged_sequence(const PagedFlashAttnArgs& args, int slot) {
    const int pack = static_cast<int>(args.pack.divisor);
    sequence = sequence_of(args, slot);
    const paged::Lengths::Sequence lengths = args.lengths.of(sequence);
    first_query = lengths.first_row;
    queries = lengths.rows;
    first_key = 0;
    keys = lengths.keys;
    first_entry = lengths.first_entry;
    rows = (queries < args.lengths.max_seqlen_q ? queries : args.lengths.max_seqlen_q) * pack;
    row = (slot - first_slot(first_query * pack, sequence, Shape::kBlockM)) * Shape::kBlockM;
    if (row < 0) row = rows;
  }

  __device__ const char* base(const FlashAttnTensor& t, int first_row, int of_head) const {
    return static_cast<const char*>(t.data) + sequence * t.batch + first_row * t.row + of_head * t.head;
  }
};

/// The key blocks [first, end) of a task. The blocks [clear, clear_end) hide nothing from any of its rows; keys before
/// `lowest`, which may be in the first block, are hidden from all.
struct BlockRange {
  int first, end, clear, clear_end, lowest;

  template <class Shape>
  __device__ static BlockRange of(const FlashAttnArgs& args, const Task<Shape>& task) {
    const int blocks = (task.keys + kBlockN - 1) / kBlockN, full = task.keys / kBlockN;
    BlockRange range{0, blocks, 0, full, 0};
    if (!Shape::kLimitsRight) return range;
    const int last_row = (task.row + Shape::kBlockM < task.rows ? task.row + Shape::kBlockM : task.rows) - 1;
    const int first = static_cast<int>(args.pack.divide(task.row)), last = static_cast<int>(args.pack.divide(last_row));
    const int delta = task.keys - task.queries;
    if (Shape::kLimitsLeft) {
      range.lowest = first + delta - args.window_left;
      range.first = range.lowest > 0 ? range.lowest / kBlockN : 0;
      range.clear = (last + delta - args.window_left + kBlockN - 1) >> 6;
    }
    range.end = end_of_seen_blocks(last, delta + args.window_right, blocks);
    range.clear_end = clamped((first + delta + args.window_right + 1) >> 6, 0, full);
    range.end = range.end < range.first ? range.first : range.end;
    // Rows of one tile a wave: the loop for edges, which leaves the others out, is faster.
    if (Shape::kSkipsTiles && task.rows - task.row <= Shape::kBlockM / Shape::kRowTiles) range.clear_end = 0;
    range.clear = clamped(range.clear, range.first, range.end);
    range.clear_end = clamped(range.clear_end, range.clear, range.end);
    return range;
  }

  /// The last block of a part whose first one is `block`.
  template <class Shape>
  __device__ int last_from(int block, const FlashAttnArgs& args, const Task<Shape>& task) const {
    if (!Shape::kSplits || task.parts == 1) return end - 1;
    return block + static_cast<int>(args.parts.divide(end - 1 - block)) * task.parts;
  }
};

static_assert(kBlockN == 1 << 6);

}  // namespace flash_attn
}  // namespace aiter_like

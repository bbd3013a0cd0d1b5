// SPDX-License-Identifier: MIT
// Which workgroup of flash_attn_bwd does what, and in which order workgroups add to a block of dQ.
//
//   task    A block of keys of one KV head, with the blocks of rows that see any of them, of all query heads of the
//           group: its steps, head by head, last rows first. Where there are too few tasks their steps are divided into
//           parts, whose dK and dV a kernel of its own adds up.
//   number  Key blocks ascend, and columns (KV heads of all sequences) are next to one another: under a causal mask the
//           longest tasks come first, and on an MI300X, which deals workgroups to its XCDs in turns, those of a head
//           share an L2.
//   turn    Workgroups add to a block of dQ by ascending key blocks. So each waits for workgroups of lower number
//           alone, which are resident or done. They begin at the same rows, and who begins late is behind for good:
//           after the first steps nobody waits. Where these would take long, key blocks are dealt to chains, each with
//           a dQ of its own, which are added up at the end in one order.
#pragma once

#include "aiter_like/gpu.h"
#include "attention_sequence.h"

namespace aiter_like::attn_bwd {

constexpr int kMostParts = 64;

/// Rows and keys of a sequence, and what they see of one another.
struct Window {
  int rows, keys;
  int left, right, sink;  // as of Visibility; a limit of -1 is none

  __host__ __device__ int delta() const { return keys - rows; }
  __host__ __device__ int highest(int row) const {
    const int last = right < 0 ? keys - 1 : row + delta() + right;
    return last < keys - 1 ? last : keys - 1;
  }
  __host__ __device__ int lowest(int row) const {
    const int first = left < 0 ? 0 : row + delta() - left;
    return first > 0 ? first : 0;
  }

  /// The first row that sees any key of `first_key` …, and the end of those that see any before `end_key`.
  __host__ __device__ int first_row(int first_key) const {
    const int first = right < 0 ? 0 : first_key - delta() - right;
    return first < 0 ? 0 : first < rows ? first : rows;
  }
  __host__ __device__ int end_row(int first_key, int end_key) const {
    const int end = left < 0 || first_key < sink ? rows : end_key - delta() + left;
    return end < 0 ? 0 : end < rows ? end : rows;
  }
  __host__ __device__ bool sees_key(int key) const {
    return key < keys && rows > 0 && key <= highest(rows - 1) && (key >= lowest(0) || key < sink);
  }
};

/// Blocks of a sequence: M rows, N keys.
template <int M, int N>
struct Blocks : Window {
  __host__ __device__ int row_blocks() const { return (rows + M - 1) / M; }
  __host__ __device__ int key_blocks() const { return (keys + N - 1) / N; }

  /// The row blocks [first, end) of which a row sees any key of key block j.
  __host__ __device__ int first_block(int j) const {
    const int row = first_row(j * N);
    return row < rows ? row / M : row_blocks();
  }
  __host__ __device__ int end_block(int j) const {
    const int end = (end_row(j * N, (j + 1) * N) + M - 1) / M, first = first_block(j);
    return end < first ? first : end;
  }
  /// How many key blocks of j's chain come before it at row block i. Every chains-th key block is of a chain.
  __host__ __device__ int turn(int i, int j, int chains) const {
    const int first = lowest(i * M) / N;
    return j < first ? j / chains : (j - first) / chains + sinks_before(first, j % chains, chains);
  }
  /// Whether any key block of a chain is seen from row block i.
  __host__ __device__ bool has_turns(int i, int chain, int chains) const {
    const int last_row = (i + 1) * M < rows ? (i + 1) * M - 1 : rows - 1, last = highest(last_row);
    if (last < 0) return false;
    const int first = lowest(i * M) / N, end = last / N + 1;  // behind the last key block of the chain before `end`
    const int of_chain = end - 1 - (end - 1 - chain + chains) % chains;
    return of_chain >= first || sinks_before(first < end ? first : end, chain, chains) > 0;
  }

 private:
  /// How many key blocks of a chain have sink tokens and lie before `first`.
  __host__ __device__ int sinks_before(int first, int chain, int chains) const {
    const int blocks = (sink + N - 1) / N, end = blocks < first ? blocks : first;
    return end > chain ? (end - 1 - chain) / chains + 1 : 0;
  }
};

/// The tasks of a launch. Steps of a task beyond `most_steps`, and of one from key block `tail_from` on beyond
/// `tail_steps`, become parts.
struct Plan {
  int columns, key_blocks;  // of the longest sequence
  int chains;               // of key blocks: each adds up a dQ of its own
  int most_steps, tail_from, tail_steps;

  __host__ __device__ int parts(int j, int steps) const {
    const int most = j < tail_from ? most_steps : tail_steps, parts = (steps + most - 1) / most;
    return parts < 1 ? 1 : parts < kMostParts ? parts : kMostParts;
  }
};

/// A workgroup's task by its number. slot: of a divided task the place of its partial results, else -1.
struct Place {
  int j, column, part, parts, slot;

  /// steps(j): those of the longest sequence's key block j.
  template <class STEPS>
  __host__ __device__ static Place of(const Plan& plan, int number, const STEPS& steps) {
    int slots = 0;
    for (int j = 0; j < plan.key_blocks; ++j) {
      const int parts = plan.parts(j, steps(j)), count = parts * plan.columns;
      if (number < count) {
        const int part = number / plan.columns;
        return {j, number - part * plan.columns, part, parts, parts > 1 ? slots + number : -1};
      }
      number -= count;
      if (parts > 1) slots += count;
    }
    return {plan.key_blocks, 0, 0, 1, -1};
  }
};

}  // namespace aiter_like::attn_bwd

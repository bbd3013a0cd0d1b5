// SPDX-License-Identifier: MIT
// How many queries and keys the sequences of a call over pages have, and where they begin.
#pragma once

#include "attention_sequence.h"

namespace aiter_like::paged {

/// Lengths of sequences. The index tensors are not trusted: whatever they hold, ranges lie inside the tensors.
struct Lengths {
  const int *cu_seqlens_q, *seqlens_k, *page_starts;  // each may be null, but seqlens_k only with page_starts
  int batch, num_starts, total_q, max_seqlen_q, page_size;
  int capacity;  // keys of a row of the block table; with page_starts entries of the table

  struct Sequence {
    int first_row, rows, first_entry, keys;
  };
  /// A tensor that is not there is read where another one is, and the value not used: so all loads are under way at
  /// once, and none waits for a branch.
  __device__ Sequence of(int index) const {
    const bool has_starts = cu_seqlens_q != nullptr, has_pages = page_starts != nullptr;
    const int* given = has_pages ? page_starts : seqlens_k;
    const int* starts = has_starts ? cu_seqlens_q : given;
    const bool has_next = index + 1 < num_starts;
    const int start = starts[index], next = starts[has_next ? index + 1 : index];
    const int first_page = given[index], end_page = given[has_pages ? index + 1 : index];
    const int used = (seqlens_k != nullptr ? seqlens_k : given)[index];

    Sequence s{index * max_seqlen_q, max_seqlen_q, 0, clamped(used, 0, capacity)};
    if (has_starts) {
      s.first_row = clamped(start, 0, total_q);
      const int last = total_q - max_seqlen_q < s.first_row ? total_q : s.first_row + max_seqlen_q;
      s.rows = (has_next ? clamped(next, s.first_row, total_q) : last) - s.first_row;
    }
    if (has_pages) {
      s.first_entry = clamped(first_page, 0, capacity);
      const int pages = clamped(end_page, s.first_entry, capacity) - s.first_entry;
      const int last = seqlens_k == nullptr ? page_size : clamped(used, 0, page_size);
      s.keys = pages > 0 ? (pages - 1) * page_size + last : 0;
    }
    return s;
  }
};

}  // namespace aiter_like::paged

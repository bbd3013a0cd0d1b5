// SPDX-License-Identifier: MIT
// What one workgroup of attention works on: tensors, the rows and keys of its sequence, which keys a row sees, and
// which blocks of keys that makes.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like {

/// A tensor of a launch; strides are in bytes.
struct FlashAttnTensor {
  const void* data;
  int64_t batch, row, head;
};

__device__ inline int clamped(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

/// A range of rows of a tensor. The index tensors are not trusted: whatever they hold, a range lies inside the tensor.
struct RowRange {
  int first, count;

  /// The rows of packed sequence `index`. Without `cu_seqlens` the range is that of a dense tensor of `rows` rows, of
  /// which `lengths`, unless it is null, says how many sequence `index` has.
  static __device__ RowRange of(const int* cu_seqlens, const int* lengths, int index, int rows) {
    if (cu_seqlens == nullptr) return {0, lengths == nullptr ? rows : clamped(lengths[index], 0, rows)};
    const int first = clamped(cu_seqlens[index], 0, rows);
    return {first, clamped(cu_seqlens[index + 1], first, rows) - first};
  }
};

/// Query row i sees the keys lowest(i) … highest(i), and each key j < sink with j ≤ highest(i). LIMITED false: a row
/// sees all keys.
template <bool LIMITED>
struct Visibility {
  int keys;         // the sequence's
  int delta;        // keys − queries: row i stands at key i + delta
  int left, right;  // reach of the window; −1: no limit
  int sink;

  __device__ int highest(int row) const {
    if (!LIMITED || right < 0) return keys - 1;
    return row + delta + right < keys - 1 ? row + delta + right : keys - 1;
  }
  __device__ int lowest(int row) const {
    if (!LIMITED || left < 0) return 0;
    return row + delta - left > 0 ? row + delta - left : 0;
  }
  /// Whether a row of first … last sees a key of begin … end - 1.
  __device__ bool any(int first, int last, int begin, int end) const {
    return begin <= highest(last) && (end > lowest(first) || (LIMITED && begin < sink));
  }
  /// Whether each row of first … last sees every key of begin … end - 1.
  __device__ bool all(int first, int last, int begin, int end) const {
    return end - 1 <= highest(first) && (begin >= lowest(last) || (LIMITED && end <= sink));
  }
};

/// The blocks of BLOCK_N keys that rows first … last see a key of: the blocks with sink keys, then those of the window.
template <int BLOCK_N>
struct KeyBlocks {
  int sink_end, window_begin, end;

  template <bool LIMITED>
  __device__ KeyBlocks(const Visibility<LIMITED>& visible, int first, int last) {
    const int highest = visible.highest(last);
    end = highest < 0 ? 0 : highest / BLOCK_N + 1;
    window_begin = visible.lowest(first) / BLOCK_N;
    const int sink_blocks = LIMITED ? (visible.sink + BLOCK_N - 1) / BLOCK_N : 0;
    sink_end = sink_blocks < window_begin ? sink_blocks : window_begin;
    if (sink_end > end) sink_end = end;
  }
  __device__ int begin() const { return sink_end > 0 ? 0 : window_begin; }
  __device__ int next(int block) const {
    return block + 1 < sink_end || block >= window_begin ? block + 1 : window_begin;
  }
};

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// What plans of attention over pages share: which part of a launch takes which pages of which sequence, in AITER's
// lists.
#pragma once

#include "aiter_like/ffi.h"
#include "aiter_like/gpu.h"

namespace aiter_like {
namespace plan {

__device__ inline int within(int x, int low, int high) {
  const int below = x < high ? x : high;
  return below > low ? below : low;
}
__device__ inline int ceil_div(int a, int b) { return a / b + (a % b != 0); }
__device__ inline bool is_inside(int index, int size) { return index >= 0 && index < size; }  // after sums that wrap

/// Rows of q, pages, and blocks of pages.
struct Sequence {
  int first_row, rows, first_page, pages, blocks;
};

/// An item: the pages [begin, end) of a sequence, for the rows that it has. place: of its rows' partial results, or -1;
/// rest: pages behind it; heads: a range of heads, in 16 bits each.
__device__ inline void write_item(int* work_info, int item, int index, int place, const Sequence& own, int begin,
                                  int end, int rest, int heads) {
  int* info = work_info + int64_t{item} * 8;
  info[0] = index, info[1] = place, info[2] = own.first_row, info[3] = own.first_row + own.rows;
  info[4] = begin, info[5] = end, info[6] = rest, info[7] = heads;
}

/// A group of partial results that are added up: where its places end, and its rows.
__device__ inline void write_group(int* reduce_indptr, int* reduce_final_map, int group, int end,
                                   const Sequence& own) {
  reduce_indptr[group + 1] = end;
  reduce_final_map[2 * group] = own.first_row;
  reduce_final_map[2 * group + 1] = own.first_row + own.rows;
}

}  // namespace plan

#if AITER_LIKE_HOST_PASS
namespace ffi {

/// The int32 elements of a tensor that must be contiguous; `op` begins the message.
inline int* integers(const Tensor& tensor, const char* op) {
  if (!has_element<int32_t>(tensor)) TVM_FFI_THROW(TypeError) << op << ": plan and lengths must be int32";
  if (!tensor.IsContiguous()) TVM_FFI_THROW(ValueError) << op << ": plan and lengths must be contiguous";
  return static_cast<int*>(tensor.data_ptr());
}

}  // namespace ffi
#endif

}  // namespace aiter_like

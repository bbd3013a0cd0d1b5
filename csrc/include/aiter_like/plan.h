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

/// The tensors of a plan and its lengths, into MlaPlanArgs or PaPlanArgs. Returns for how many groups of partial
/// results there is room.
template <class Args>
int64_t take_plan(Match& match, Args& args, const Tensor& work_indptr, const Tensor& work_info,
                  const Tensor& reduce_indptr, const Tensor& reduce_final_map, const Tensor& reduce_partial_map,
                  const Tensor& qo_indptr, const Tensor& kv_indptr) {
  Size parts{"parts + 1"}, items{"items"}, groups{"groups + 1"}, slots{"slots"}, starts{"sequences + 1"};
  args.work_indptr = match.elements<int>(work_indptr, parts, "work_indptr");
  args.work_info = match.take<int>(work_info, {items, 8}, "work_info", kDense);
  args.reduce_indptr = match.elements<int>(reduce_indptr, groups, "reduce_indptr");
  args.reduce_final_map = match.elements<int>(reduce_final_map, 2 * (groups - 1), "reduce_final_map");
  args.reduce_partial_map = match.elements<int>(reduce_partial_map, slots, "reduce_partial_map");
  args.qo_indptr = match.elements<const int>(qo_indptr, starts, "qo_indptr");
  args.kv_indptr = match.elements<const int>(kv_indptr, starts, "kv_indptr");
  match.require(parts > 1 && groups > 0 && starts > 0, "plan and lengths must not be empty");
  args.batch = starts - 1, args.num_parts = parts - 1, args.num_items = items, args.num_slots = slots;
  return groups - 1;
}

}  // namespace ffi
#endif

}  // namespace aiter_like

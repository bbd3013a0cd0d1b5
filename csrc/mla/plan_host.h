// SPDX-License-Identifier: MIT
// The tensors of a plan of attention, MlaPlanArgs or PaPlanArgs, at the boundary. Host pass only.
#pragma once

#include "aiter_like/ffi.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like::ffi {

/// Returns how many tiles `reduce_indptr` has room for.
template <class Args>
int64_t take_plan(Match& match, Args& args, const Tensor& work_indptr, const Tensor& work_info,
                  const Tensor& reduce_indptr, const Tensor& reduce_final_map, const Tensor& reduce_partial_map,
                  const Tensor& qo_indptr, const Tensor& kv_indptr) {
  Size parts{"parts + 1"}, items{"items"}, tiles{"tiles + 1"}, slots{"slots"}, starts{"sequences + 1"};
  args.work_indptr = match.elements<int>(work_indptr, parts, "work_indptr");
  args.work_info = match.take<int>(work_info, {items, 8}, "work_info", kDense);
  args.reduce_indptr = match.elements<int>(reduce_indptr, tiles, "reduce_indptr");
  args.reduce_final_map = match.elements<int>(reduce_final_map, 2 * (tiles - 1), "reduce_final_map");
  args.reduce_partial_map = match.elements<int>(reduce_partial_map, slots, "reduce_partial_map");
  args.qo_indptr = match.elements<const int>(qo_indptr, starts, "qo_indptr");
  args.kv_indptr = match.elements<const int>(kv_indptr, starts, "kv_indptr");
  match.require(parts > 1 && tiles > 0 && starts > 0, "plan and lengths must not be empty");
  args.batch = starts - 1, args.num_parts = parts - 1, args.num_items = items, args.num_slots = slots;
  return tiles - 1;
}

}  // namespace aiter_like::ffi
#endif

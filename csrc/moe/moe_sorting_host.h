// SPDX-License-Identifier: MIT
// The pairs of token and expert at the boundary of the kernels that sort them. Host pass only.
#pragma once

#include "aiter_like/ffi.h"
#include "moe_sorting_body.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like::ffi {

/// The numbers of `experts` experts in topk_ids, which blocks of `block` pairs are made of. Returns how many places all
/// blocks may take.
template <class Config>
int64_t take_pairs(Match& match, MoeSortingArgs<Config>& args, const Tensor& topk_ids, int64_t experts,
                   int64_t block) {
  Size tokens{"tokens"}, slots{"topk"};
  const auto ids = match.rows<const typename Config::Id>(topk_ids, tokens, slots, "topk_ids");
  const int64_t pairs = tokens * slots, most = pairs < experts ? pairs : experts;
  match.require(pairs < int64_t{1} << 31 && experts > 0 && experts <= Config::kExperts && block > 0 &&
                    (block <= 1 << 16 || Config::kForm == PairForm::kPacked),
                "less than 2^31 pairs of this module's experts, in blocks of 1 to 2^16");
  args.ids = ids.data, args.ids_stride = ids.stride, args.pairs = pairs, args.tokens = tokens, args.slots = slots;
  args.experts = static_cast<int>(experts), args.block = static_cast<int>(block);
  return pairs + most * (block - 1);
}

}  // namespace aiter_like::ffi
#endif

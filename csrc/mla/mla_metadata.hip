// SPDX-License-Identifier: MIT
// The plan of latent attention: which part of a launch takes which pages of which sequence (mla_plan.h). HIP (gfx9) and
// CUDA. One build. Bound: latency.
#include "mla_plan.h"

namespace aiter_like {

#if AITER_LIKE_HOST_PASS

void mla_metadata(ffi::Tensor work_indptr, ffi::Tensor work_info, ffi::Tensor reduce_indptr,
                  ffi::Tensor reduce_final_map, ffi::Tensor reduce_partial_map, ffi::Tensor qo_indptr,
                  ffi::Tensor kv_indptr, int64_t num_entries, int64_t total_q, int64_t max_seqlen_q,
                  int64_t block_pages, int64_t least_blocks, int64_t overhead, int64_t num_kv_splits, bool is_even,
                  int64_t topk) {
  ffi::Match match("mla_metadata");
  MlaPlanArgs args{};
  args.num_tiles = ffi::take_plan(match, args, work_indptr, work_info, reduce_indptr, reduce_final_map,
                                  reduce_partial_map, qo_indptr, kv_indptr);
  match.require(num_entries >= 0 && total_q >= 0 && max_seqlen_q >= 0 && block_pages > 0 && least_blocks > 0 &&
                    overhead >= 0 && num_kv_splits >= 0 && (!is_even || num_kv_splits > 0) && topk >= -1,
                "a size is negative");
  const auto limited = [](int64_t x) { return static_cast<int>(x < 1 << 30 ? x : 1 << 30); };
  args.num_entries = limited(num_entries), args.total_q = limited(total_q), args.max_seqlen_q = limited(max_seqlen_q);
  args.block_pages = limited(block_pages), args.least_blocks = limited(least_blocks);
  args.overhead = limited(overhead), args.most = limited(num_kv_splits), args.is_even = is_even;
  args.topk = limited(topk);
  if (args.batch > 0) launch_mla_metadata(args, ffi::stream_of(work_indptr));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(mla_metadata, aiter_like::mla_metadata);
#endif

// SPDX-License-Identifier: MIT
// The sum of partial results of latent attention (mla_sum.h). HIP (gfx9) and CUDA. One build per dtype of the result.
// Bound: memory.
#include "mla_plan.h"
#include "mla_sum.h"

#if !defined(OUT_ELEMENT)
#error "mla_reduce.hip: -DOUT_ELEMENT=bf16|f16|float"
#endif

namespace aiter_like {

void launch_reduce(const MlaSumArgs& args, Stream stream) { launch_mla_reduce<OUT_ELEMENT>(args, stream); }

#if AITER_LIKE_HOST_PASS

using OptionalTensor = ffi::Optional<ffi::Tensor>;

void mla_reduce(ffi::Tensor out, OptionalTensor lse, ffi::Tensor partial_out, ffi::Tensor partial_lse,
                ffi::Tensor reduce_indptr, OptionalTensor reduce_final_map, ffi::Tensor reduce_partial_map,
                int64_t max_seqlen_q) {
  MlaSumArgs args = ffi::mla_sum<OUT_ELEMENT>(out, lse, partial_out, partial_lse);
  args.reduce_indptr = ffi::integers(reduce_indptr), args.reduce_partial_map = ffi::integers(reduce_partial_map);
  args.num_tiles = static_cast<int>(reduce_indptr.numel() - 1);
  args.num_slots = static_cast<int>(reduce_partial_map.numel());
  if (reduce_final_map.has_value()) {
    args.reduce_final_map = ffi::integers(reduce_final_map.value());
    ffi::check_value(reduce_final_map.value().numel() == 2 * int64_t{args.num_tiles},
                     "mla_reduce: reduce_final_map must have two rows for each tile");
  }
  ffi::check_value(args.num_tiles >= 0 && max_seqlen_q >= 0 && max_seqlen_q < int64_t{1} << 30 &&
                       args.num_tiles * max_seqlen_q * args.num_heads < int64_t{1} << 31,
                   "mla_reduce: less than 2^31 rows of heads fit one launch");
  args.max_seqlen_q = static_cast<int>(max_seqlen_q);
  if (args.num_tiles * max_seqlen_q * args.num_heads * args.v_dim > 0) launch_reduce(args, ffi::stream_of(out));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(mla_reduce, aiter_like::mla_reduce);
#endif

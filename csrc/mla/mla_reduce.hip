// SPDX-License-Identifier: MIT
// The sum of partial results of latent attention (mla_sum.h). HIP (gfx9) and CUDA. One build per dtype of the result.
// Bound: memory.
#include "mla_plan.h"
#include "mla_sum.h"

#if !defined(OUT_ELEMENT)
#error "mla_reduce.hip: -DOUT_ELEMENT=bf16|f16|float"
#endif

namespace aiter_like {

struct Config {
  using Out = OUT_ELEMENT;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_mla_reduce<Config::Out>(const MlaSumArgs&, Stream);

#if AITER_LIKE_HOST_PASS

void mla_reduce(ffi::Tensor out, ffi::OptionalTensor lse, ffi::Tensor partial_out, ffi::Tensor partial_lse,
                ffi::Tensor reduce_indptr, ffi::OptionalTensor reduce_final_map, ffi::Tensor reduce_partial_map,
                int64_t max_seqlen_q) {
  ffi::Match match("mla_reduce");
  ffi::Size tiles{"tiles + 1"}, slots{"slots"};
  MlaSumArgs args = ffi::mla_sum<Config::Out>(match, out, lse, partial_out, partial_lse);
  args.reduce_indptr = match.elements<const int>(reduce_indptr, tiles, "reduce_indptr");
  args.reduce_partial_map = match.elements<const int>(reduce_partial_map, slots, "reduce_partial_map");
  args.reduce_final_map = match.elements<const int>(reduce_final_map, 2 * (tiles - 1), "reduce_final_map");
  args.num_tiles = tiles - 1, args.num_slots = slots, args.max_seqlen_q = max_seqlen_q;
  match.require(tiles > 0 && max_seqlen_q >= 0 && max_seqlen_q < int64_t{1} << 30 &&
                    args.num_tiles * max_seqlen_q * args.num_heads < int64_t{1} << 31,
                "less than 2^31 rows of heads fit one launch");
  if (args.num_tiles * max_seqlen_q * args.num_heads * args.v_dim > 0)
    launch_mla_reduce<Config::Out>(args, ffi::stream_of(out));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(mla_reduce, aiter_like::mla_reduce);
#endif

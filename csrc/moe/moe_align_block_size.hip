// SPDX-License-Identifier: MIT
// moe_align_block_size of PyTorch tensors; moe_sorting_body.h has the kernels. One build per type of experts' numbers
// and count of experts.
#include "moe_sorting_host.h"

#if !defined(ID) || !defined(EXPERTS)
#error "moe_align_block_size.hip: -DID=int32_t|int64_t -DEXPERTS=256|1024"
#endif

namespace aiter_like {

struct Config {
  using Id = ID;
  static constexpr PairForm kForm = PairForm::kNumber;
  static constexpr int kExperts = EXPERTS;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_moe_sorting<Config>(const MoeSortingArgs<Config>&, Stream);

#if AITER_LIKE_HOST_PASS

void moe_align_block_size(ffi::Tensor sorted_ids, ffi::Tensor sorted_experts, ffi::OptionalTensor block_pairs,
                          ffi::Tensor valid, ffi::Tensor ids, int64_t experts, int64_t block) {
  ffi::Match match("moe_align_block_size");
  MoeSortingArgs<Config> args{};
  const int64_t capacity = ffi::take_pairs(match, args, ids, experts, block);
  args.sorted_ids = match.take<int32_t>(sorted_ids, {ffi::at_least(capacity)}, "sorted_token_ids");
  args.sorted_experts = match.take<int32_t>(sorted_experts, {ffi::at_least(capacity / block)}, "experts_ids");
  args.block_pairs = match.take<int32_t>(block_pairs, {ffi::at_least(capacity / block)}, "token_nums");
  args.valid = match.take<int32_t>(valid, {ffi::at_least(1)}, "num_tokens_post_pad");
  const ffi::Scratch counts(share_pairs(args) * 4, ids.device());
  args.counts = counts.data<uint32_t>();
  launch_moe_sorting<Config>(args, ffi::stream_of(ids));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_align_block_size, aiter_like::moe_align_block_size);
#endif

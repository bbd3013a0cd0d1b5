// SPDX-License-Identifier: MIT
// moe_align_block_size of PyTorch tensors; moe_sorting_body.h has the kernels. One build per type of experts' numbers
// and count of experts.
#include <optional>

#include "aiter_like/ffi.h"
#include "moe_sorting_body.h"
#include "moe_vectors.h"

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

void moe_align_block_size(ffi::Tensor sorted_ids, ffi::Tensor sorted_experts, ffi::Optional<ffi::Tensor> block_pairs,
                          ffi::Tensor valid, ffi::Tensor ids, int64_t experts, int64_t block) {
  const ffi::Rows i = ffi::rows<Config::Id>(ids, "moe_align_block_size: topk_ids");
  const int64_t pairs = ids.numel(), most = pairs < experts ? pairs : experts;
  ffi::check_value(i.size < (int64_t{1} << 31) && pairs < (int64_t{1} << 31) && experts > 0 && experts <= EXPERTS &&
                       block > 0 && block <= (1 << 16),
                   "moe_align_block_size: at most EXPERTS experts, less than 2^31 of them in topk_ids");
  const int64_t capacity = pairs + most * (block - 1);
  MoeSortingArgs<Config> args{};
  args.sorted_ids = ffi::vector_of<int32_t>(sorted_ids, capacity, "moe_align_block_size: sorted_token_ids");
  args.sorted_experts =
      ffi::vector_of<int32_t>(sorted_experts, capacity / block, "moe_align_block_size: experts_ids");
  args.block_pairs = ffi::vector_of<int32_t>(block_pairs, capacity / block, "moe_align_block_size: token_nums");
  args.valid = ffi::vector_of<int32_t>(valid, 1, "moe_align_block_size: num_tokens_post_pad");
  args.ids = static_cast<const Config::Id*>(i.data);
  args.ids_stride = i.stride;
  args.pairs = static_cast<uint32_t>(pairs);
  args.tokens = static_cast<int>(i.count);
  args.slots = static_cast<int>(i.size);
  args.experts = static_cast<int>(experts);
  args.block = static_cast<int>(block);
  const int64_t words = share_pairs(args);
  std::optional<ffi::Scratch> counts;
  if (words > 0) args.counts = static_cast<uint32_t*>(counts.emplace(words * 4, ids.device()).data());
  launch_moe_sorting<Config>(args, ffi::stream_of(ids));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_align_block_size, aiter_like::moe_align_block_size);
#endif

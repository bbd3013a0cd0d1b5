// SPDX-License-Identifier: MIT
// moe_sorting of PyTorch tensors; moe_sorting_body.h has the kernels. One build per count of experts.
#include <optional>

#include "aiter_like/ffi.h"
#include "moe_sorting_body.h"
#include "moe_vectors.h"

#if !defined(EXPERTS)
#error "moe_sorting.hip: -DEXPERTS=256|1024"
#endif

namespace aiter_like {

struct Config {
  using Id = int32_t;
  static constexpr PairForm kForm = PairForm::kPacked;
  static constexpr int kExperts = EXPERTS;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_moe_sorting<Config>(const MoeSortingArgs<Config>&, Stream);

#if AITER_LIKE_HOST_PASS

using OptionalTensor = ffi::Optional<ffi::Tensor>;

void moe_sorting(ffi::Tensor sorted_ids, ffi::Tensor sorted_weights, ffi::Tensor sorted_experts, ffi::Tensor valid,
                 OptionalTensor buffer, ffi::Tensor ids, ffi::Tensor weights, OptionalTensor mask,
                 OptionalTensor local_tokens, int64_t experts, int64_t block, OptionalTensor local_ids) {
  constexpr int64_t kThreads = MoeSortingBody<Config>::kThreads;
  const ffi::Rows i = ffi::rows<int32_t>(ids, "moe_sorting: topk_ids");
  const ffi::Rows w = ffi::rows<float>(weights, "moe_sorting: topk_weights");
  const int64_t weighted = weights.ndim() == 2 ? weights.size(0) : -1, tokens = ids.ndim() == 2 ? ids.size(0) : -1;
  ffi::check_value(tokens >= 0 && weighted >= 0 && weights.size(1) == ids.size(1) &&
                       (weighted == tokens || (weighted < tokens && local_tokens.has_value())),
                   "moe_sorting: topk_weights must be like topk_ids, or with num_local_tokens have fewer rows");
  ffi::check_value(i.size > 0 && i.size <= 127 && i.count < (int64_t{1} << 24) &&
                       i.count * i.size < (int64_t{1} << 31) && experts > 0 && experts <= EXPERTS && block > 0,
                   "moe_sorting: at most EXPERTS experts, 127 of them for each of less than 2^24 tokens");
  const int64_t pairs = i.count * i.size, most = pairs < experts ? pairs : experts;
  const int64_t capacity = pairs + most * (block - 1);
  MoeSortingArgs<Config> args{};
  args.sorted_ids = ffi::vector_of<int32_t>(sorted_ids, capacity, "moe_sorting: sorted_ids");
  args.sorted_weights = ffi::vector_of<float>(sorted_weights, capacity, "moe_sorting: sorted_weights");
  args.sorted_experts = ffi::vector_of<int32_t>(sorted_experts, capacity / block, "moe_sorting: sorted_expert_ids");
  args.valid = ffi::vector_of<int32_t>(valid, 2, "moe_sorting: num_valid_ids");
  args.ids = static_cast<const int32_t*>(i.data);
  args.weights = static_cast<const float*>(w.data);
  args.ids_stride = i.stride;
  args.weights_stride = w.stride;
  args.mask = ffi::vector_of<int32_t>(mask, experts, "moe_sorting: expert_mask");
  args.local_tokens = ffi::vector_of<int32_t>(local_tokens, 1, "moe_sorting: num_local_tokens");
  if (local_ids.has_value()) {
    const ffi::Tensor local = local_ids.value();
    ffi::check_value(ffi::has_element<int32_t>(local) && local.IsContiguous() && local.numel() == pairs,
                     "moe_sorting: local_topk_ids must be contiguous int32, like topk_ids");
    args.local_ids = static_cast<int32_t*>(local.data_ptr());
  }
  args.weighted = static_cast<uint32_t>(weighted * i.size);
  args.pairs = static_cast<uint32_t>(pairs);
  args.tokens = static_cast<int>(i.count);
  args.slots = static_cast<int>(i.size);
  args.experts = static_cast<int>(experts);
  args.block = static_cast<int>(block);
  const int64_t words = share_pairs(args);
  if (buffer.has_value()) {
    const ffi::Tensor b = buffer.value();
    const int64_t bytes = b.numel() * b.dtype().bits / 8;
    ffi::check_value(b.IsContiguous() && bytes % 4 == 0, "moe_sorting: moe_buf must be contiguous, in whole words");
    args.buffer = static_cast<uint32_t*>(b.data_ptr());
    args.buffer_words = bytes / 4;
    const int64_t groups = (args.buffer_words + 16 * kThreads - 1) / (16 * kThreads);
    args.clearing = static_cast<int>(groups < 1024 ? groups : 1024);
  }
  std::optional<ffi::Scratch> counts;
  if (words > 0) args.counts = static_cast<uint32_t*>(counts.emplace(words * 4, ids.device()).data());
  launch_moe_sorting<Config>(args, ffi::stream_of(ids));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_sorting, aiter_like::moe_sorting);
#endif

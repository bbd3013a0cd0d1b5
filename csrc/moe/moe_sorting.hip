// SPDX-License-Identifier: MIT
// moe_sorting of PyTorch tensors; moe_sorting_body.h has the kernels. One build per count of experts.
#include "moe_sorting_host.h"

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

void moe_sorting(ffi::Tensor sorted_ids, ffi::Tensor sorted_weights, ffi::Tensor sorted_experts, ffi::Tensor valid,
                 ffi::OptionalTensor buffer, ffi::Tensor ids, ffi::Tensor weights, ffi::OptionalTensor mask,
                 ffi::OptionalTensor local_tokens, int64_t experts, int64_t block, ffi::OptionalTensor local_ids) {
  constexpr int64_t kThreads = MoeSortingBody<Config>::kThreads;
  ffi::Match match("moe_sorting");
  ffi::Size tokens{"tokens", 1 << 24}, weighted{"tokens of weights"}, slots{"topk", 128};
  MoeSortingArgs<Config> args{};
  match.take<const Config::Id>(ids, {tokens, slots}, "topk_ids");
  const auto factors = match.take<const float>(weights, {weighted, slots}, "topk_weights");
  match.require(slots > 0 && (weighted == tokens || (weighted < tokens && local_tokens.has_value())),
                "topk_weights must be like topk_ids, or with num_local_tokens have fewer rows");
  const int64_t capacity = ffi::take_pairs(match, args, ids, experts, block);
  args.sorted_ids = match.take<int32_t>(sorted_ids, {ffi::at_least(capacity)}, "sorted_ids");
  args.sorted_weights = match.take<float>(sorted_weights, {ffi::at_least(capacity)}, "sorted_weights");
  args.sorted_experts = match.take<int32_t>(sorted_experts, {ffi::at_least(capacity / block)}, "sorted_expert_ids");
  args.valid = match.take<int32_t>(valid, {ffi::at_least(2)}, "num_valid_ids");
  args.weights = factors, args.weights_stride = factors.step(0), args.weighted = weighted * slots;
  args.mask = match.take<const int32_t>(mask, {ffi::at_least(experts)}, "expert_mask");
  args.local_tokens = match.take<const int32_t>(local_tokens, {ffi::at_least(1)}, "num_local_tokens");
  args.local_ids = match.elements<int32_t>(local_ids, tokens * slots, "local_topk_ids");
  if (buffer.has_value()) {
    const int64_t bytes = (*buffer).numel() * (*buffer).dtype().bits / 8;
    args.buffer = static_cast<uint32_t*>(match.elements<void>(buffer, ffi::at_least(0), "moe_buf"));
    match.require(bytes % 4 == 0, "moe_buf must be of whole words");
    args.buffer_words = bytes / 4;
    const int64_t groups = (args.buffer_words + 16 * kThreads - 1) / (16 * kThreads);
    args.clearing = static_cast<int>(groups < 1024 ? groups : 1024);
  }
  const ffi::Scratch counts(share_pairs(args) * 4, ids.device());
  args.counts = counts.data<uint32_t>();
  launch_moe_sorting<Config>(args, ffi::stream_of(ids));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_sorting, aiter_like::moe_sorting);
#endif

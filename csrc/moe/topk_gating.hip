// SPDX-License-Identifier: MIT
// topk_gating of PyTorch tensors; topk_gating_body.h has the kernel. One build per element type and count of experts.
#include "aiter_like/ffi.h"
#include "topk_gating_body.h"

#if !defined(ELEMENT) || !defined(EXPERTS)
#error "topk_gating.hip: -DELEMENT=bf16|f16|float -DEXPERTS=64|128|256|512|1024"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  static constexpr int kEach = EXPERTS / kWaveSize;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_topk_gating(const TopkGatingArgs<Config>&, Stream);

#if AITER_LIKE_HOST_PASS

void topk_gating(ffi::Tensor weights, ffi::Tensor ids, ffi::Tensor gating, ffi::OptionalTensor bias, int64_t score,
                 int64_t groups, int64_t best_groups, bool has_sum_of_two, bool is_renormalized, double scale,
                 int64_t shared, bool has_shared_logits, double shared_weight) {
  ffi::Match match("topk_gating");
  ffi::Size tokens{"tokens"}, columns{"columns"}, chosen{"chosen", 33}, numbers{"ids of a token"};
  const auto x = match.rows<const Config::Element>(gating, tokens, columns, "gating");
  if (tokens == 0) return;
  const auto w = match.rows<float>(weights, tokens, chosen, "weights");
  const auto i = match.rows<int32_t>(ids, tokens, numbers, "ids");
  const int64_t experts = columns - (has_shared_logits ? shared : 0), k = chosen - shared;
  match.require(numbers == chosen || numbers == k, "ids must be like weights, or without the shared experts");
  match.require(experts > 0 && experts <= EXPERTS && shared >= 0 && k > 0 && k <= experts,
                "at most EXPERTS experts, and k of them");
  match.require(groups > 0 && groups <= 32 && experts % groups == 0 && best_groups > 0 && best_groups <= groups &&
                    k <= best_groups * (experts / groups) && score >= 0 && score <= 2,
                "at most 32 groups of equally many experts, of which the best hold k");
  TopkGatingArgs<Config> args{};
  args.weights = w.data, args.weights_stride = w.stride;
  args.ids = i.data, args.ids_stride = i.stride, args.id_columns = numbers;
  args.gating = x.data, args.gating_stride = x.stride;
  args.bias = match.take<const void>(bias, {experts}, "bias");
  if (bias.has_value()) args.bias_kind = static_cast<Bias>(1 + match.one_of<float, bf16, f16>(*bias, "bias"));
  args.tokens = tokens, args.experts = experts, args.k = k, args.shared = shared;
  args.groups = groups, args.best_groups = best_groups, args.score = static_cast<Score>(score);
  args.shared_kind = has_shared_logits ? Shared::kSigmoid : Shared::kConstant;
  args.has_sum_of_two = has_sum_of_two, args.is_renormalized = is_renormalized;
  args.scale = scale, args.shared_weight = shared_weight;
  launch_topk_gating(args, ffi::stream_of(gating));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(topk_gating, aiter_like::topk_gating);
#endif

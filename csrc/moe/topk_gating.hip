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

void topk_gating(ffi::Tensor weights, ffi::Tensor ids, ffi::Tensor gating, ffi::Optional<ffi::Tensor> bias,
                 int64_t score, int64_t groups, int64_t best_groups, bool has_sum_of_two, bool is_renormalized,
                 double scale, int64_t shared, bool has_shared_logits, double shared_weight) {
  const ffi::Rows x = ffi::rows<Config::Element>(gating, "topk_gating: gating");
  const ffi::Rows w = ffi::rows<float>(weights, "topk_gating: weights");
  const ffi::Rows i = ffi::rows<int32_t>(ids, "topk_gating: ids");
  TopkGatingArgs<Config> args{};
  const int64_t experts = x.size - (has_shared_logits ? shared : 0), k = w.size - shared;
  if (x.count == 0) return;
  ffi::check_value(w.count == x.count && i.count == x.count && (i.size == w.size || i.size == k) &&
                       x.count < (int64_t{1} << 31),
                   "topk_gating: weights and ids must have the tokens of gating");
  ffi::check_value(experts > 0 && experts <= EXPERTS && shared >= 0 && k > 0 && k <= experts && w.size <= 32,
                   "topk_gating: at most EXPERTS experts, and k of them, with the shared ones at most 32");
  ffi::check_value(groups > 0 && groups <= 32 && experts % groups == 0 && best_groups > 0 && best_groups <= groups &&
                       k <= best_groups * (experts / groups) && score >= 0 && score <= 2,
                   "topk_gating: at most 32 groups of equally many experts, of which the best hold k");
  args.weights = static_cast<float*>(w.data);
  args.ids = static_cast<int32_t*>(i.data);
  args.gating = static_cast<const Config::Element*>(x.data);
  args.weights_stride = w.stride;
  args.ids_stride = i.stride;
  args.gating_stride = x.stride;
  if (bias.has_value()) {
    const ffi::Tensor b = bias.value();
    args.bias_kind = ffi::is_f32(b) ? Bias::kFloat : ffi::is_bf16(b) ? Bias::kBf16 : Bias::kF16;
    ffi::check_type(ffi::is_f32(b) || ffi::is_bf16(b) || ffi::is_f16(b), "topk_gating: bias has another dtype");
    ffi::check_value(b.ndim() == 1 && b.size(0) == experts && (experts == 1 || b.stride(0) == 1),
                     "topk_gating: bias must be a contiguous vector of the experts");
    args.bias = b.data_ptr();
  }
  args.tokens = static_cast<int>(x.count);
  args.experts = static_cast<int>(experts);
  args.k = static_cast<int>(k);
  args.shared = static_cast<int>(shared);
  args.id_columns = static_cast<int>(i.size);
  args.groups = static_cast<int>(groups);
  args.best_groups = static_cast<int>(best_groups);
  args.score = static_cast<Score>(score);
  args.shared_kind = has_shared_logits ? Shared::kSigmoid : Shared::kConstant;
  args.has_sum_of_two = has_sum_of_two;
  args.is_renormalized = is_renormalized;
  args.scale = static_cast<float>(scale);
  args.shared_weight = static_cast<float>(shared_weight);
  launch_topk_gating(args, ffi::stream_of(gating));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(topk_gating, aiter_like::topk_gating);
#endif

// SPDX-License-Identifier: MIT
// moe_permute of PyTorch tensors: moe_sorting_body.h finds where the pairs of token and expert go, moe_permute_body.h
// copies rows there. One build per type of experts' numbers and count of experts, for all types of rows.
#include "moe_permute_body.h"
#include "moe_sorting_host.h"

#if !defined(ID) || !defined(EXPERTS)
#error "moe_permute.hip: -DID=int32_t|int64_t -DEXPERTS=256|1024"
#endif

namespace aiter_like {

struct Config {
  using Id = ID;
  static constexpr PairForm kForm = PairForm::kNumber;
  static constexpr int kExperts = EXPERTS;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
void launch_both(const MoeSortingArgs<Config>& sorting, const MoePermuteArgs& args, int unit_bytes, Stream stream) {
  launch_moe_sorting<Config>(sorting, stream);
  if (args.tokens > 0 && args.units > 0) launch_moe_permute(args, unit_bytes, stream);
}

#if AITER_LIKE_HOST_PASS

/// Chooses the units of the copies. Returns their bytes.
int set_rows(ffi::Match& match, MoePermuteArgs& args, const ffi::Tensor& output, const ffi::Tensor& input,
             ffi::Size& rows, ffi::Size& tokens) {
  ffi::Size columns{"columns"};
  const auto from = match.take<const void>(input, {tokens, columns}, "hidden_states");
  const auto to = match.take<void>(output, {rows, columns}, "permuted_hidden_states");
  const int bits = input.dtype().bits, bytes = bits / 8;
  match.require(output.dtype() == input.dtype() && (bits == 8 || bits == 16 || bits == 32),
                "permuted_hidden_states must have the dtype of hidden_states, of 1, 2 or 4 bytes");
  const int unit = ffi::takes_vectors(16 / bytes, output, input) ? 16 : bytes;
  args.output = to, args.output_stride = to.step(0) * bytes / unit;
  args.input = from, args.input_stride = from.step(0) * bytes / unit;
  args.units = columns * bytes / unit, args.tokens = tokens;
  return unit;
}

void set_scales(ffi::Match& match, MoePermuteArgs& args, const ffi::OptionalTensor& output,
                const ffi::OptionalTensor& scales, ffi::Size& rows, ffi::Size& tokens) {
  match.require(output.has_value() == scales.has_value(), "a1q_scale must come with its result");
  if (!scales.has_value()) return;
  ffi::Size groups{"groups", (int64_t{1} << 31) - kWaveSize};
  const auto from = match.take<const float>(scales, {tokens, groups}, "a1q_scale", ffi::kStrided);
  const auto to = match.take<float>(output, {rows, groups}, "permuted scales");
  args.output_scales = to, args.output_scales_stride = to.step(0);
  args.scales = groups > 0 ? from.data : nullptr, args.groups = groups;
  args.token_scales_stride = from.stride(0), args.group_scales_stride = from.stride(1);
}

void moe_permute(ffi::Tensor output, ffi::OptionalTensor output_scales, ffi::Tensor index, ffi::Tensor inverse,
                 ffi::Tensor first, ffi::Tensor input, ffi::OptionalTensor scales, ffi::Tensor ids,
                 ffi::OptionalTensor expert_map, int64_t experts, int64_t block) {
  ffi::Match match("moe_permute");
  ffi::Size tokens{"tokens"}, slots{"topk"}, rows{"rows"}, mapped{"experts of expert_map"};
  MoeSortingArgs<Config> sorting{};
  const int64_t capacity = ffi::take_pairs(match, sorting, ids, experts, block);
  match.take<const Config::Id>(ids, {tokens, slots}, "topk_ids");
  sorting.tokens = tokens;  // those without slots, too
  MoePermuteArgs args{};
  const int unit_bytes = set_rows(match, args, output, input, rows, tokens);
  match.require(rows >= capacity, "permuted_hidden_states has too few rows");
  set_scales(match, args, output_scales, scales, rows, tokens);
  sorting.sorted_ids = match.take<int32_t>(index, {ffi::at_least(rows)}, "permuted_idx");
  sorting.first = match.take<int64_t>(first, {ffi::at_least(experts + 1)}, "expert_first_token_offset");
  sorting.inverse = match.elements<int32_t>(inverse, tokens * slots, "inv_permuted_idx");
  sorting.map = match.take<const int32_t>(expert_map, {mapped}, "expert_map");
  sorting.mapped = expert_map.has_value() ? static_cast<int>(mapped) : 0;
  sorting.places = rows;
  args.inverse = sorting.inverse, args.slots = slots;
  const ffi::Scratch counts(share_pairs(sorting) * 4, ids.device());
  sorting.counts = counts.data<uint32_t>();
  launch_both(sorting, args, unit_bytes, ffi::stream_of(ids));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_permute, aiter_like::moe_permute);
#endif

// SPDX-License-Identifier: MIT
// moe_sum of PyTorch tensors; moe_sum_body.h has the kernel. One build per element types of input and output.
#include "aiter_like/ffi.h"
#include "moe_sum_body.h"

#if !defined(ELEMENT) || !defined(OUT)
#error "moe_sum.hip: -DELEMENT=bf16|f16|float -DOUT=bf16|f16|float"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Out = OUT;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_moe_sum<Config>(const MoeSumArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void moe_sum(ffi::Tensor output, ffi::Tensor input, ffi::OptionalTensor weights, ffi::OptionalTensor ids,
             ffi::OptionalTensor mask, ffi::OptionalTensor local_tokens, int64_t experts, ffi::OptionalTensor index,
             ffi::OptionalTensor used) {
  using Element = const Config::Element;
  ffi::Match match("moe_sum");
  ffi::Size tokens{"tokens", ffi::kNoLimit}, slots{"slots", (int64_t{1} << 31) - 64}, columns{"columns"};
  ffi::Size rows{"rows of input", ffi::kNoLimit};
  MoeSumArgs<Config> args{};
  const auto y = match.take<Config::Out>(output, {tokens, columns}, "output");
  const auto x = index.has_value() ? match.take<Element>(input, {rows, columns}, "input")
                                   : match.take<Element>(input, {tokens, slots, columns}, "input");
  match.require(experts >= 0 && experts < int64_t{1} << 31, "less than 2^31 experts");
  if (tokens == 0 || columns == 0) return;
  const auto places = match.take<const int32_t>(index, {tokens, slots}, "index");
  const auto factors = match.take<const float>(weights, {tokens, slots}, "weights");
  const auto numbers = match.take<const int32_t>(ids, {tokens, slots}, "ids");
  const int last = input.ndim() - 1;
  args.out = y, args.out_stride = y.step(0);
  args.input = x, args.token_stride = index.has_value() ? 0 : x.step(0);
  args.row_stride = x.step(last - 1), args.rows = x.sizes[last - 1];
  args.index = places, args.index_stride = places.step(0);
  args.weights = factors, args.weights_stride = factors.step(0);
  args.ids = numbers, args.ids_stride = numbers.step(0);
  args.mask = match.take<const int32_t>(mask, {experts}, "mask");
  match.require(!mask.has_value() || ids.has_value(), "mask must come with ids");
  args.local_tokens = match.elements<const int32_t>(local_tokens, 1, "local_tokens");
  args.used = match.elements<const int64_t>(used, 1, "used");
  args.tokens = tokens, args.slots = slots, args.columns = columns, args.experts = static_cast<int32_t>(experts);
  launch_moe_sum(args, ffi::takes_vectors(16 / sizeof(Element), input, output), ffi::stream_of(output));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_sum, aiter_like::moe_sum);
#endif

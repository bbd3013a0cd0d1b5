// SPDX-License-Identifier: MIT
// moe_sum of PyTorch tensors; moe_sum_body.h has the kernel. One build per element types of input and output.
#include <tuple>

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

using OptionalTensor = ffi::Optional<ffi::Tensor>;

/// What a matrix [tokens, slots] of T holds, and its stride; null and 0 where there is none.
template <class T>
std::pair<const T*, int64_t> of_slots(const OptionalTensor& tensor, int64_t tokens, int64_t slots, const char* name) {
  if (!tensor.has_value()) return {nullptr, 0};
  const ffi::Tensor matrix = tensor.value();
  const ffi::Rows rows = ffi::rows<T>(matrix, name);
  if (matrix.ndim() != 2 || matrix.size(0) != tokens || matrix.size(1) != slots)
    TVM_FFI_THROW(ValueError) << name << " must have shape (" << tokens << ", " << slots << ")";
  return {static_cast<const T*>(rows.data), rows.stride};
}

void moe_sum(ffi::Tensor output, ffi::Tensor input, OptionalTensor weights, OptionalTensor ids, OptionalTensor mask,
             OptionalTensor local_tokens, int64_t experts, OptionalTensor index, OptionalTensor used) {
  const ffi::Rows y = ffi::rows<Config::Out>(output, "moe_sum: output");
  ffi::check_type(ffi::has_element<Config::Element>(input),
                  "moe_sum: input has another dtype than this module was built for");
  const int last = input.ndim() - 1;
  ffi::check_value(output.ndim() == 2 && last == (index.has_value() ? 1 : 2) && input.size(last) == output.size(1),
                   "moe_sum: input must be [tokens, slots, columns], or with index [rows, columns], like output");
  ffi::check_value(y.size <= 1 || input.stride(last) == 1, "moe_sum: input must be contiguous in its last dimension");
  const int64_t tokens = output.size(0);
  int64_t slots = index.has_value() ? 0 : input.size(1);
  if (index.has_value() && index.value().ndim() == 2) slots = index.value().size(1);
  ffi::check_value((index.has_value() || input.size(0) == tokens) && slots < (int64_t{1} << 31) - 64 &&
                       y.size < (int64_t{1} << 31) && experts >= 0 && experts < (int64_t{1} << 31),
                   "moe_sum: input must have the tokens of output, and less than 2^31 slots and columns");
  if (tokens == 0 || y.size == 0) return;
  MoeSumArgs<Config> args{};
  args.out = static_cast<Config::Out*>(y.data);
  args.out_stride = y.stride;
  args.input = static_cast<const Config::Element*>(input.data_ptr());
  args.token_stride = index.has_value() || tokens == 1 ? 0 : input.stride(0);
  args.row_stride = input.size(last - 1) == 1 ? 0 : input.stride(last - 1);
  args.rows = input.size(last - 1);
  std::tie(args.weights, args.weights_stride) = of_slots<float>(weights, tokens, slots, "moe_sum: weights");
  std::tie(args.ids, args.ids_stride) = of_slots<int32_t>(ids, tokens, slots, "moe_sum: ids");
  std::tie(args.index, args.index_stride) = of_slots<int32_t>(index, tokens, slots, "moe_sum: index");
  if (mask.has_value()) {
    const ffi::Rows m = ffi::rows<int32_t>(mask.value(), "moe_sum: mask");
    ffi::check_value(ids.has_value() && mask.value().ndim() == 1 && m.size == experts,
                     "moe_sum: mask must have a number for each of the experts, which ids name");
    args.mask = static_cast<const int32_t*>(m.data);
  }
  args.local_tokens = ffi::scalar<int32_t>(local_tokens, "moe_sum: local_tokens");
  args.used = ffi::scalar<int64_t>(used, "moe_sum: used");
  args.tokens = tokens;
  args.slots = static_cast<int32_t>(slots);
  args.experts = static_cast<int32_t>(experts);
  args.columns = static_cast<uint32_t>(y.size);
  constexpr int64_t kIn = sizeof(Config::Element), kOut = sizeof(Config::Out), kVec = 16 / kIn;
  const int64_t strides = (args.token_stride | args.row_stride) * kIn;
  const bool is_aligned = y.size % kVec == 0 && (reinterpret_cast<uintptr_t>(args.input) | strides) % 16 == 0 &&
                          y.is_aligned(kVec * kOut < 16 ? kVec * kOut : 16, kOut);
  launch_moe_sum(args, is_aligned, ffi::stream_of(output));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_sum, aiter_like::moe_sum);
#endif

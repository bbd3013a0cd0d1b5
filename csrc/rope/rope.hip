// SPDX-License-Identifier: MIT
// Rotary position embedding of one or two tensors of heads, by position in the sequence, by given positions or within
// packed sequences; forward or transposed; into another tensor or in place. HIP (gfx9) and CUDA. See rope_kernel.h.
#include "rope_kernel.h"

#if AITER_LIKE_HOST_PASS

namespace aiter_like {

/// `tensor` as indices [s, b]; none where it is absent.
static RopeIndices rope_indices(const ffi::Optional<ffi::Tensor>& optional) {
  if (!optional.has_value()) return {};
  const ffi::Tensor tensor = optional.value();
  const bool is_long = ffi::has_element<int64_t>(tensor);
  ffi::check_type(is_long || ffi::has_element<int32_t>(tensor), "rope: positions and offsets must be int32 or int64");
  return {tensor.data_ptr(), tensor.stride(0), tensor.ndim() > 1 ? tensor.stride(1) : 0, is_long};
}

void rope(ffi::Tensor out, ffi::Optional<ffi::Tensor> out_2, ffi::Tensor input, ffi::Optional<ffi::Tensor> input_2,
          ffi::Tensor cos, ffi::Optional<ffi::Tensor> sin, ffi::Optional<ffi::Tensor> positions,
          ffi::Optional<ffi::Tensor> offsets, int64_t rotate_style, bool reuse_freqs_front_part, bool nope_first,
          bool is_backward) {
  RopeCall call;
  RopeArgs& args = call.args;
  args.first = call.heads(input, out);
  if (input_2.has_value() && out_2.has_value()) args.second = call.heads(input_2.value(), out_2.value());
  const int last = input.ndim() - 1;
  args.batch = last == 3 ? static_cast<int>(input.size(1)) : 1;
  args.tokens = input.size(0) * args.batch;
  if (args.tokens == 0 || input.size(last) == 0) return;
  ffi::check_value(args.tokens < int64_t{1} << 31, "rope: at most 2^31 - 1 tokens");

  int64_t width = 0;
  args.table = call.table(cos, sin, width);
  call.parts(width, input.size(last), reuse_freqs_front_part, nope_first);
  args.positions = rope_indices(positions);
  args.offsets = rope_indices(offsets);
  if (positions.has_value() && positions.value().ndim() == 1)
    args.sequences = static_cast<int>(positions.value().size(0)) - 1;
  args.is_backward = is_backward;
  if (args.rotary_dim == 0 && args.copied == 0) return;
  launch_rope(args, rotate_style != 0, reuse_freqs_front_part, call.is_aligned, ffi::stream_of(input));
}

}  // namespace aiter_like

AITER_LIKE_EXPORT(rope, aiter_like::rope);
#endif

// SPDX-License-Identifier: MIT
// Rotary position embedding of one or two tensors of heads, by position in the sequence, by given positions or within
// packed sequences; forward or transposed; into another tensor or in place. HIP (gfx9) and CUDA. See rope_kernel.h.
#define ROPE_IS_IMAGE 0
#include "rope_kernel.h"

#if AITER_LIKE_HOST_PASS

namespace aiter_like {

void rope(ffi::Tensor out, ffi::Optional<ffi::Tensor> out_y, ffi::Tensor input, ffi::Optional<ffi::Tensor> input_y,
          ffi::Tensor cos, ffi::Optional<ffi::Tensor> sin, ffi::Optional<ffi::Tensor> positions,
          ffi::Optional<ffi::Tensor> offsets, int64_t rotate_style, bool reuse_freqs_front_part, bool nope_first,
          bool is_backward) {
  RopeCall call;
  RopeArgs& args = call.args;
  args.first = call.heads(input, out);
  if (input_y.has_value() && out_y.has_value()) args.second = call.heads(input_y.value(), out_y.value());
  const int last = input.ndim() - 1;
  const int64_t batch = last == 3 ? input.size(1) : 1;
  args.tokens = input.size(0) * batch;
  if (args.tokens == 0 || input.size(last) == 0 || args.first.heads + args.second.heads == 0) return;
  ffi::check_value(args.tokens < int64_t{1} << 30, "rope: less than 2^30 tokens");
  args.batch = Divider(static_cast<uint32_t>(batch));

  int64_t width = 0;
  args.table = call.table(cos, sin, width);
  call.parts(width, input.size(last), reuse_freqs_front_part, nope_first);
  args.positions = ffi::rope_indices(positions);
  args.offsets = ffi::rope_indices(offsets);
  if (positions.has_value() && positions.value().ndim() == 1)
    args.sequences = static_cast<int>(positions.value().size(0)) - 1;
  args.is_backward = is_backward;
  if (args.rotary_dim == 0 && args.copied == 0) return;
  launch_rope(args, rotate_style != 0, reuse_freqs_front_part, call.is_aligned, ffi::stream_of(input));
}

}  // namespace aiter_like

AITER_LIKE_EXPORT(rope, aiter_like::rope);
#endif

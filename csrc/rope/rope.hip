// SPDX-License-Identifier: MIT
// Rotary position embedding of one or two tensors of heads, by position in the sequence, by given positions or within
// packed sequences; forward or transposed; into another tensor or in place. HIP (gfx9) and CUDA. See rope_kernel.h.
#define ROPE_IS_IMAGE 0
#include "rope_kernel.h"

#if AITER_LIKE_HOST_PASS

namespace aiter_like {

void rope(ffi::Tensor out, ffi::OptionalTensor out_y, ffi::Tensor input, ffi::OptionalTensor input_y, ffi::Tensor cos,
          ffi::OptionalTensor sin, ffi::OptionalTensor positions, ffi::OptionalTensor offsets, int64_t rotate_style,
          bool reuse_freqs_front_part, bool nope_first, bool is_backward) {
  RopeCall call("rope");
  RopeArgs& args = call.args;
  args.first = call.heads(input, out);
  if (input_y.has_value() && out_y.has_value()) args.second = call.heads(*input_y, *out_y);
  const int64_t batch = input.ndim() == 4 ? int64_t{call.b} : 1;
  args.tokens = call.s * batch;
  if (args.tokens == 0 || call.head_dim == 0 || args.first.heads + args.second.heads == 0) return;
  call.match.require(args.tokens < 1 << 30, "less than 2^30 tokens");
  args.batch = Divider(batch);
  args.table = call.table(cos, sin);
  call.parts(call.head_dim, reuse_freqs_front_part, nope_first);
  const bool has_starts = positions.has_value() && (*positions).ndim() == 1;  // starts of sequences
  args.positions = ffi::rope_indices(call.match, positions, has_starts ? 1 : int64_t{call.s}, "positions");
  args.offsets = ffi::rope_indices(call.match, offsets, call.s, "offsets");
  if (has_starts) args.sequences = static_cast<int>((*positions).size(0)) - 1;
  args.is_backward = is_backward;
  if (args.rotary_dim == 0 && args.copied == 0) return;
  launch_rope(args, rotate_style != 0, reuse_freqs_front_part, call.is_aligned, ffi::stream_of(input));
}

}  // namespace aiter_like

AITER_LIKE_EXPORT(rope, aiter_like::rope);
#endif

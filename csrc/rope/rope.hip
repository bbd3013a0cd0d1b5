// SPDX-License-Identifier: MIT
// Rotary position embedding of one or two tensors of heads, by position in the sequence, by given positions or within
// packed sequences; forward or transposed; into another tensor or in place. HIP (gfx9) and CUDA. See rope_body.h.
#include "rope_host.h"

#if !defined(ELEMENT) || !defined(TABLE) || !defined(IS_ANGLE) || !defined(HEADS) || !defined(SHARE)
#error "rope: -DELEMENT=bf16|f16|float -DTABLE=bf16|f16|float -DIS_ANGLE=0|1 -DHEADS=1|2|4 -DSHARE=1…16"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Table = TABLE;
  static constexpr bool kIsAngle = IS_ANGLE;  // the table has angles, not cosines and sines
  static constexpr bool kIsImage = false, kIsRounded = false;
  static constexpr uint32_t kHeads = HEADS;  // that a lane works on at once
  static constexpr int kShare = SHARE;       // heads of a lane, at most
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_rope(const RopeArgs<Config>&, bool, bool, bool, Stream);

#if AITER_LIKE_HOST_PASS

void rope(ffi::Tensor out, ffi::OptionalTensor out_y, ffi::Tensor input, ffi::OptionalTensor input_y, ffi::Tensor cos,
          ffi::OptionalTensor sin, ffi::OptionalTensor positions, ffi::OptionalTensor offsets, int64_t rotate_style,
          bool reuse_freqs_front_part, bool nope_first, bool is_backward) {
  RopeCall<Config> call("rope");
  RopeArgs<Config>& args = call.args;
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

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(rope, aiter_like::rope);
#endif

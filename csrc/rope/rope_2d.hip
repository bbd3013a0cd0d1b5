// SPDX-License-Identifier: MIT
// Rotary position embedding of image patches: the first half of a head turns by its patch's row, the second half by its
// column, each as a head of its own. HIP (gfx9) and CUDA. See rope_body.h.
#include <utility>

#include "rope_host.h"

#if !defined(ELEMENT) || !defined(TABLE) || !defined(IS_ANGLE) || !defined(HEADS) || !defined(SHARE)
#error "rope: -DELEMENT=bf16|f16|float -DTABLE=bf16|f16|float -DIS_ANGLE=0|1 -DHEADS=1|2|4 -DSHARE=1…16"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Table = TABLE;
  static constexpr bool kIsAngle = IS_ANGLE;  // the table has angles, not cosines and sines
  static constexpr bool kIsImage = true, kIsRounded = false;
  static constexpr uint32_t kHeads = HEADS;  // that a lane works on at once
  static constexpr int kShare = SHARE;       // heads of a lane, at most
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_rope(const RopeArgs<Config>&, bool, bool, bool, Stream);

#if AITER_LIKE_HOST_PASS

void rope_2d(ffi::Tensor out, ffi::Tensor input, ffi::Tensor cos_h, ffi::Tensor sin_h, ffi::Tensor cos_w,
             ffi::Tensor sin_w, int64_t img_height, int64_t img_width, int64_t rotate_style,
             bool reuse_freqs_front_part, bool nope_first, bool is_backward) {
  RopeCall<Config> call("rope_2d");
  RopeArgs<Config>& args = call.args;
  auto heads = call.heads(input, out);  // [b, img_height · img_width, heads, head_dim]
  call.match.require(input.ndim() == 4 && input.size(1) == img_height * img_width && input.size(3) % 2 == 0,
                     "input must be [b, img_height * img_width, heads, head_dim], head_dim even");
  args.tokens = input.size(0) * input.size(1);
  if (args.tokens == 0 || input.size(2) == 0 || input.size(3) == 0) return;
  call.match.require(args.tokens < 1 << 30, "less than 2^30 patches");
  args.batch = Divider(input.size(0)), args.image_width = Divider(img_width);
  std::swap(heads.input_strides.s, heads.input_strides.b);  // a token's first index is the patch
  std::swap(heads.out_strides.s, heads.out_strides.b);
  args.first = heads;
  args.table = call.table(cos_h, sin_h);
  args.column_table = call.table(cos_w, sin_w);
  args.half_dim = static_cast<int>(input.size(3) / 2);
  call.parts(args.half_dim, reuse_freqs_front_part, nope_first);
  args.is_backward = is_backward;
  if (args.rotary_dim == 0 && args.copied == 0) return;
  launch_rope(args, rotate_style != 0, reuse_freqs_front_part, call.is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(rope_2d, aiter_like::rope_2d);
#endif

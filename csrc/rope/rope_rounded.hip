// SPDX-License-Identifier: MIT
// Rotary position embedding of tokens as a program of 16-bit tensors computes it: each product is rounded to the dtype
// of the heads before two of them are added. HIP (gfx9) and CUDA. The kernel is that of rope_body.h.
#include <type_traits>

#include "rope_host.h"

#if !defined(ELEMENT) || !defined(TABLE) || !defined(IS_ANGLE) || !defined(HEADS) || !defined(SHARE)
#error "rope: -DELEMENT=bf16|f16|float -DTABLE=bf16|f16|float -DIS_ANGLE=0|1 -DHEADS=1|2|4 -DSHARE=1…16"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Table = TABLE;
  static constexpr bool kIsAngle = IS_ANGLE;  // the table has angles, not cosines and sines
  static constexpr bool kIsImage = false, kIsRounded = true;
  static constexpr uint32_t kHeads = HEADS;  // that a lane works on at once
  static constexpr int kShare = SHARE;       // heads of a lane, at most
};
static_assert(sizeof(Config::Element) == 2 && std::is_same_v<Config::Element, Config::Table> && !Config::kIsAngle,
              "rope_rounded: tables of the heads' own dtype of 16 bits");

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_rope(const RopeArgs<Config>&, bool, bool, bool, Stream);

#if AITER_LIKE_HOST_PASS

void rope_rounded(ffi::Tensor out, ffi::Tensor out_y, ffi::Tensor x, ffi::Tensor y, ffi::Tensor cos, ffi::Tensor sin,
                  ffi::Tensor positions, ffi::OptionalTensor offsets, int64_t rotate_style,
                  bool reuse_freqs_front_part, bool nope_first, bool is_backward) {
  RopeCall<Config> call("rope_rounded");
  RopeArgs<Config>& args = call.args;
  call.match.require(x.ndim() == 3 && y.ndim() == 3, "x and y must be [tokens, heads, head_dim]");
  args.first = call.heads(x, out);
  args.second = call.heads(y, out_y);
  args.tokens = call.s;
  if (args.tokens == 0 || call.head_dim == 0 || args.first.heads + args.second.heads == 0) return;
  call.match.require(args.tokens < 1 << 30, "less than 2^30 tokens");
  args.batch = Divider(1);
  args.table = call.table(cos, sin);
  call.parts(call.head_dim, reuse_freqs_front_part, nope_first);
  args.positions = ffi::rope_indices(call.match, positions, call.s, "positions");
  args.offsets = ffi::rope_indices(call.match, offsets, call.s, "offsets");
  args.is_backward = is_backward;
  if (args.rotary_dim == 0 && args.copied == 0) return;
  launch_rope(args, rotate_style != 0, reuse_freqs_front_part, call.is_aligned, ffi::stream_of(x));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(rope_rounded, aiter_like::rope_rounded);
#endif

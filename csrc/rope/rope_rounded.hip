// SPDX-License-Identifier: MIT
// Rotary position embedding of tokens as a program of 16-bit tensors computes it: each product is rounded to the dtype
// of the heads before two of them are added. HIP (gfx9) and CUDA. The kernel is that of rope_kernel.h.
#include <type_traits>

#include "rope.h"

namespace aiter_like {

static_assert(std::is_same_v<ELEMENT, TABLE> && sizeof(ELEMENT) == 2 && !IS_ANGLE,
              "rope_rounded: tables of the heads' own dtype of 16 bits");

/// x · factor, rounded to ELEMENT; not fused with what is added to it, for which LLVM would leave the rounding out.
__device__ inline float rounded_product(float x, float factor) {
#pragma clang fp contract(off)
  return to_float(from_float<ELEMENT>(x * factor));
}

/// first' = R(first · cos) - R(second · sin), second' = R(second · cos) + R(first · sin), where R rounds to ELEMENT.
/// The kernel finds this one, which is more specialised than that of rope.h.
template <int kVec, bool kIsGptj, bool kIsShared>
__device__ inline void rotate_pairs(ELEMENT* low, ELEMENT* high, const Pairs<ELEMENT, kVec, kIsGptj>& x,
                                    const Turn<ELEMENT, kVec, kIsGptj, kIsShared, false>& turn) {
  store_pairs<kIsGptj, kVec>(
      low, high,
      [&](int e) {
        return rounded_product(x.first(e), turn.cosine(e, false)) - rounded_product(x.second(e), turn.sine(e, false));
      },
      [&](int e) {
        return rounded_product(x.second(e), turn.cosine(e, true)) + rounded_product(x.first(e), turn.sine(e, true));
      });
}

}  // namespace aiter_like

#define ROPE_IS_IMAGE 0
#include "rope_kernel.h"

#if AITER_LIKE_HOST_PASS

namespace aiter_like {

void rope_rounded(ffi::Tensor out, ffi::Tensor out_y, ffi::Tensor x, ffi::Tensor y, ffi::Tensor cos, ffi::Tensor sin,
                  ffi::Tensor positions, ffi::OptionalTensor offsets, int64_t rotate_style,
                  bool reuse_freqs_front_part, bool nope_first, bool is_backward) {
  RopeCall call("rope_rounded");
  RopeArgs& args = call.args;
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

}  // namespace aiter_like

AITER_LIKE_EXPORT(rope_rounded, aiter_like::rope_rounded);
#endif

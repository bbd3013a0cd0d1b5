// SPDX-License-Identifier: MIT
// The size of flash_attn_fwd's workspace, by the plan of its launch. There is no kernel here, and one build serves all
// shapes.
#include "aiter_like/ffi.h"
#include "flash_attn_results.h"

#if AITER_LIKE_HOST_PASS

namespace aiter_like {
namespace {

template <int kDim>
struct Config {
  using Element = bf16;
  static constexpr int kHeadDim = kDim;
  static constexpr Rounding kRounding = Rounding::kNearestEven;
  static constexpr bool kLimitsRight = true, kLimitsLeft = false, kIsPaged = false;
};

/// The bytes of a dense launch. window_right: -1 where no key behind a query's own is hidden.
template <class Shape>
int64_t workspace_bytes(const ffi::Tensor& q, const ffi::Tensor& k, int64_t window_right, int64_t num_splits) {
  const int64_t seqlen_q = q.size(1), seqlen_k = k.size(1), heads = q.size(2), kv_heads = k.size(2);
  if (q.numel() == 0 || kv_heads == 0) return 0;
  const int pack = packed_heads(heads / kv_heads, seqlen_q, seqlen_q, Shape::kBlockM);
  const int64_t slots = (seqlen_q * pack + Shape::kBlockM - 1) / Shape::kBlockM, columns = q.size(0) * heads / pack;
  // No launch holds more, so that another backend serves the call.
  constexpr int64_t kMost = int64_t{1} << 30;
  if (seqlen_q >= kMost || seqlen_k >= kMost || slots >= kMost / columns) return 0;
  const int query_blocks = static_cast<int>(slots * columns), keys = static_cast<int>(seqlen_k);
  const int num_cus = num_compute_units(q.device().device_id), most_parts = static_cast<int>(num_splits);
  const CausalLaunch launch{static_cast<int>(slots), static_cast<int>(columns), static_cast<int>(seqlen_q), keys, pack,
                            Shape::kBlockM, static_cast<int>(window_right)};
  const KeySplit split = window_right < 0
                             ? KeySplit::plan(query_blocks, (keys + kBlockN - 1) / kBlockN, num_cus, most_parts)
                             : KeySplit::plan(launch, num_cus, most_parts);
  return int64_t{query_blocks - split.whole} * split.parts * flash_attn::PartialResult<Shape>::kFloats * sizeof(float);
}

}  // namespace

int64_t attention_workspace(ffi::Tensor q, ffi::Tensor k, int64_t window_right, int64_t num_splits) {
  ffi::Match match("attention_workspace");
  match.require(q.ndim() == 4 && k.ndim() == 4, "q and k must be [batch, seqlen, heads, dim]");
  match.require(window_right < (1 << 30), "window_right must be below 2^30");
  const int64_t head_dim = q.size(3);
  return head_dim == 64    ? workspace_bytes<flash_attn::Shape<Config<64>>>(q, k, window_right, num_splits)
         : head_dim == 128 ? workspace_bytes<flash_attn::Shape<Config<128>>>(q, k, window_right, num_splits)
                           : 0;
}

}  // namespace aiter_like

AITER_LIKE_EXPORT(attention_workspace, aiter_like::attention_workspace);
#endif

// SPDX-License-Identifier: MIT
// Rows of tokens, per head or group, quantised on their way into a paged cache (kv_cache.h): a scale each (quant.h).
#pragma once

#include "aiter_like/kv_cache.h"
#include "aiter_like/quant.h"

namespace aiter_like {

/// The rows of one source and where they go; `scales` has strides of block, token and head only.
struct QuantPlane {
  CachePlane cache, scales;
  const void* source;                 // [tokens, heads, dims]
  int64_t source_token, source_head;  // elements
  uint32_t dims;
};

/// Rounded up to a power of two; NaN and infinity stay.
__device__ inline float power_of_two_above(float scale) {
  const uint32_t bits = float_bits(scale);
  return bits >= 0x7F800000u ? scale : bits_float((bits + 0x007FFFFFu) & 0x7F800000u);
}

/// Quantises the rows of workgroup `group`, which follow one another by token, then by head: Layout::kLanes lanes hold
/// a row. Every work-item takes part. With kContiguous a lane's elements are stored in vectors.
template <class Layout, class S, class Q, Pack kPack, bool kContiguous>
__device__ inline void write_quantised(const QuantPlane& plane, const SlotMapping& slots, uint32_t tokens,
                                       uint32_t heads, uint32_t group, bool is_power_of_two,
                                       RowScratch<Layout>& scratch) {
  const uint32_t row = group * Layout::kRows + (Layout::kRows > 1 ? thread_index() / Layout::kLanes : 0);
  const uint32_t head = row / tokens, token = row - head * tokens;
  CachePlace place{};
  const bool is_there = head < heads && slots.find(token, place);
  const int dims = is_there ? static_cast<int>(plane.dims) : 0;  // lanes without a row take part in the reduction

  RowTile<Layout, S> x;
  const int64_t source = head < heads ? token * plane.source_token + head * plane.source_head : 0;
  x.load(static_cast<const S*>(plane.source) + source, dims);
  const auto at = [&](int v, int e) { return x.at(v, e); };
  QuantScale scale = quant_scale<Q>(row_max<Layout>(lane_amax<Layout>(at), scratch));
  if (is_power_of_two) {
    scale.scale = power_of_two_above(scale.scale);
    scale.inverse = 1.f / scale.scale;
  }
  if (!is_there) return;
  if (Layout::lane() == 0)
    static_cast<float*>(plane.scales.data)[plane_offset<Pack::kNone>(plane.scales, place, head, 0)] = scale.scale;

#pragma unroll
  for (int v = 0; v < Layout::kVectors; ++v) {
    if (Layout::column(v) >= dims) continue;
    float y[Layout::kVec];
#pragma unroll
    for (int e = 0; e < Layout::kVec; ++e) y[e] = x.at(v, e) * scale.inverse;
    const Vec<Q, Layout::kVec> out = vec_from_float<Q>(y);
    Q* to = static_cast<Q*>(plane.cache.data) + plane_offset<kPack>(plane.cache, place, head, Layout::column(v));
    if constexpr (kContiguous) {
      store_vec<Layout::kVec>(to, out);
    } else {
#pragma unroll
      for (int e = 0; e < Layout::kVec; ++e) to[e * plane.cache.dim] = out[e];
    }
  }
}

}  // namespace aiter_like

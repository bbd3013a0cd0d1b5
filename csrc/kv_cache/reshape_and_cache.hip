// SPDX-License-Identifier: MIT
// Writes each token's K and V into its slot of a paged cache (kv_cache.h): copied, or to fp8 as value · (1 / scale).
// HIP (gfx9) and CUDA. One build per pair of element types; layouts and vector widths are kernels of the same module.
//
//   1. a lane takes VEC neighbouring elements of one head of one token: one slot, one load (two for 16 bit → fp8)
//   2. converts them, and stores them: 16 bytes at once where the layout keeps them together
// In the layouts whose V keeps tokens together, neighbouring lanes take neighbouring tokens, so that the lanes' single
// elements share cache lines when the tokens' slots are neighbours (prefill).
//
// The first workgroups write K, the others V. Slots outside the cache are skipped. No LDS.
// Bound: memory. A token moves 2 · heads · (head_dim + value_dim) elements and does at most a multiplication each.
#include "aiter_like/dtype.h"
#include "aiter_like/kv_cache.h"

#if !defined(SOURCE) || !defined(CACHE)
#error "reshape_and_cache.hip: -DSOURCE=bf16|f16|float -DCACHE=fp8, or both uint8_t|uint16_t|uint32_t for a copy"
#endif

namespace aiter_like {

constexpr bool kIsCopy = __is_same(SOURCE, CACHE);
constexpr int kVector = 16 / sizeof(CACHE);
constexpr uint32_t kThreads = 256;
constexpr uint32_t kTokenGroup = 16;  // tokens of neighbouring lanes: with 16-bit elements a 32-byte sector

struct PlaneArgs {
  CachePlane cache;
  const void* source;           // [tokens, heads, dims]
  int64_t source_token, source_head;  // elements
  const float* scale;           // one, or null for 1
  uint32_t dims, groups;        // workgroups that write this plane
};

struct ReshapeArgs {
  PlaneArgs planes[2];  // K, V
  SlotMapping slots;
  uint32_t tokens, heads;
};

template <int kVec, Pack kPack, bool kTokensFirst>
__device__ inline void write_plane(const PlaneArgs& plane, const ReshapeArgs& args, uint32_t index) {
  const uint32_t vectors = plane.dims / kVec, per_token = args.heads * vectors;
  uint32_t token, rest;
  if constexpr (kTokensFirst) {
    const uint32_t column = index / kTokenGroup, group = column / per_token;
    token = group * kTokenGroup + index % kTokenGroup;
    rest = column - group * per_token;
  } else {
    token = index / per_token;
    rest = index - token * per_token;
  }
  if (token >= args.tokens) return;
  const uint32_t head = rest / vectors, dim = (rest - head * vectors) * kVec;
  const auto in = load_vec<kVec>(static_cast<const SOURCE*>(plane.source) + token * plane.source_token +
                                 head * plane.source_head + dim);
  CachePlace place;
  if (!args.slots.find(token, place)) return;

  Vec<CACHE, kVec> out;
  if constexpr (kIsCopy) {
    out = in;
  } else {
    const float inverse = plane.scale ? 1.f / *plane.scale : 1.f;
    float y[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) y[e] = to_float(in[e]) * inverse;
    out = vec_from_float<CACHE>(y);
  }
  CACHE* to = static_cast<CACHE*>(plane.cache.data) + plane_offset<kPack>(plane.cache, place, head, dim);
  if constexpr (!kTokensFirst) {
    store_vec<kVec>(to, out);
  } else {
#pragma unroll
    for (int e = 0; e < kVec; ++e) to[e * plane.cache.dim] = out[e];
  }
}

template <int kVec, KvLayout kLayout>
__global__ __launch_bounds__(kThreads) void reshape_and_cache_kernel(ReshapeArgs args) {
  const bool is_value = workgroup_index().x >= args.planes[0].groups;
  const uint32_t group = workgroup_index().x - (is_value ? args.planes[0].groups : 0);
  if constexpr (kLayout == KvLayout::kRows)  // one code for both: two of them, merged by the compiler, store in pieces
    write_plane<kVec, Pack::kNone, false>(args.planes[is_value], args, group * kThreads + thread_index());
  else if (is_value)
    write_plane<kVec, kValuePack<kLayout>, true>(args.planes[1], args, group * kThreads + thread_index());
  else
    write_plane<kVec, kKeyPack<kLayout>, false>(args.planes[0], args, group * kThreads + thread_index());
}

template <int kVec>
void launch_reshape_and_cache(const ReshapeArgs& args, KvLayout layout, Stream stream) {
  const dim3 grid(args.planes[0].groups + args.planes[1].groups);
  if (layout == KvLayout::kRows)
    reshape_and_cache_kernel<kVec, KvLayout::kRows><<<grid, kThreads, 0, stream>>>(args);
  else if (layout == KvLayout::kColumns)
    reshape_and_cache_kernel<kVec, KvLayout::kColumns><<<grid, kThreads, 0, stream>>>(args);
  else
    reshape_and_cache_kernel<kVec, KvLayout::kShuffled><<<grid, kThreads, 0, stream>>>(args);
  check_launch("reshape_and_cache_kernel");
}

void launch_reshape_and_cache(const ReshapeArgs& args, KvLayout layout, bool is_wide, Stream stream) {
  if (is_wide)
    launch_reshape_and_cache<kVector>(args, layout, stream);
  else
    launch_reshape_and_cache<1>(args, layout, stream);
}

#if AITER_LIKE_HOST_PASS

bool has_bits(const ffi::Tensor& tensor, size_t bytes) { return tensor.dtype().bits == 8 * bytes; }

PlaneArgs plane_args(const CachePlane& cache, const ffi::Tensor& source, const ffi::CacheShape& shape, int64_t tokens,
                     const ffi::Optional<ffi::Tensor>& scale, bool is_tokens_first, int vec) {
  ffi::check_type(has_bits(source, sizeof(SOURCE)), "reshape_and_cache: this module was built for other dtypes");
  ffi::check_value(source.ndim() == 3 && source.size(0) >= tokens && source.size(1) == shape.heads &&
                       (source.size(2) < 2 || source.stride(2) == 1),
                   "reshape_and_cache: key and value must be [num_tokens, num_heads, head_dim]");
  if (scale.has_value())
    ffi::check_value(ffi::has_element<float>(scale.value()) && scale.value().numel() == 1,
                     "reshape_and_cache: scales must be 1 fp32 element");
  PlaneArgs args{cache, source.data_ptr(), source.stride(0), source.stride(1), nullptr};
  if (scale.has_value()) args.scale = static_cast<const float*>(scale.value().data_ptr());
  args.dims = static_cast<uint32_t>(source.size(2));
  if (is_tokens_first) tokens = (tokens + kTokenGroup - 1) / kTokenGroup * kTokenGroup;
  const int64_t items = tokens * shape.heads * (source.size(2) / vec);
  ffi::check_value(items < (int64_t{1} << 31), "reshape_and_cache: less than 2^31 accesses fit one launch");
  args.groups = static_cast<uint32_t>((items + kThreads - 1) / kThreads);
  return args;
}

void reshape_and_cache(ffi::Tensor key_cache, ffi::Tensor value_cache, ffi::Tensor key, ffi::Tensor value,
                       ffi::Tensor slot_mapping, ffi::String kv_cache_dtype, ffi::Optional<ffi::Tensor> k_scale,
                       ffi::Optional<ffi::Tensor> v_scale, ffi::String layout_name) {
  const KvLayout layout = ffi::layout_of(layout_name);
  const ffi::CacheShape shape = ffi::cache_shape(key_cache, value_cache, layout);
  ffi::check_value((kv_cache_dtype == "auto") == kIsCopy && has_bits(key_cache, sizeof(CACHE)) &&
                       has_bits(value_cache, sizeof(CACHE)),
                   "reshape_and_cache: this module was built for another kv_cache_dtype");
  ffi::check_value(key.ndim() == 3 && value.ndim() == 3 && key.size(2) == shape.key_dim &&
                       value.size(2) == shape.value_dim,
                   "reshape_and_cache: key and value must have the head_dim of their caches");
  const int64_t tokens = slot_mapping.size(0);
  const bool is_rows = layout == KvLayout::kRows;
  const bool is_wide = ffi::takes_vectors(key, kVector, sizeof(SOURCE)) &&
                       ffi::takes_vectors(value, kVector, sizeof(SOURCE)) &&
                       ffi::takes_vectors(key_cache, kVector, sizeof(CACHE)) &&
                       (!is_rows || ffi::takes_vectors(value_cache, kVector, sizeof(CACHE)));
  const int vec = is_wide ? kVector : 1;
  ReshapeArgs args{};
  args.planes[0] = plane_args(ffi::key_plane(key_cache), key, shape, tokens, k_scale, false, vec);
  args.planes[1] =
      plane_args(ffi::value_plane(value_cache, layout), value, shape, tokens, v_scale, !is_rows, vec);
  args.slots = ffi::slot_mapping(slot_mapping, shape);
  args.tokens = static_cast<uint32_t>(tokens);
  args.heads = static_cast<uint32_t>(shape.heads);
  if (args.planes[0].groups + args.planes[1].groups == 0) return;
  launch_reshape_and_cache(args, layout, is_wide, ffi::stream_of(key));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(reshape_and_cache, aiter_like::reshape_and_cache);
#endif

// SPDX-License-Identifier: MIT
// Quantises K and V to fp8 or int8 (quant.h) into a paged cache with packed keys (kv_cache.h), one scale for each block
// and head. HIP (gfx9) and CUDA. One build per pair of element types.
//
// A run is what follows one another in a sequence and goes to one block. One workgroup takes a run of one head:
//   1. count the run's tokens; their largest magnitude gives a scale
//   2. where the run does not begin the block: the larger of it and the block's scale so far; when that grows, what the
//      slots before the run hold is rescaled
//   3. quantise the run's tokens; write the scale
// There is a workgroup for each token, head and plane; those whose token begins no run leave at once. The first write
// K, the others V. Slots outside the cache are skipped. LDS: 8 bytes per wave. Bound: memory; a run is read twice, the
// second time from cache.
#include "aiter_like/kv_cache.h"
#include "aiter_like/quant.h"

#if !defined(SOURCE) || !defined(CACHE)
#error "reshape_and_cache_with_block_quant.hip: -DSOURCE=bf16|f16|float -DCACHE=fp8|int8_t"
#endif

namespace aiter_like {

constexpr int kVector = 16 / sizeof(SOURCE);
constexpr uint32_t kThreads = 256;

struct BlockPlane {
  CachePlane cache, scales;                         // scales: strides of block and head only
  const void* source;                               // [batch, seq_len, heads, dims]
  int64_t source_batch, source_token, source_head;  // elements
  uint32_t dims;
};

struct BlockArgs {
  BlockPlane planes[2];  // K, V
  SlotMapping slots;
  uint32_t tokens, seq_len, heads;
};

struct Scratch {
  float count[kThreads / kWaveSize], amax[kThreads / kWaveSize];
};

template <int kVec, Pack kPack, bool kContiguous>
__device__ inline void write_run(const BlockPlane& plane, const BlockArgs& args, uint32_t token, uint32_t head,
                                 Scratch& scratch) {
  const uint32_t batch = token / args.seq_len, position = token - batch * args.seq_len;
  CachePlace first, place;
  if (!args.slots.find(token, first)) return;
  if (position > 0 && args.slots.find(token - 1, place) && place.block == first.block) return;

  uint32_t limit = args.seq_len - position;
  if (limit > args.tokens - token) limit = args.tokens - token;
  if (limit > args.slots.page_size.divisor) limit = args.slots.page_size.divisor;
  float beyond = 0.f;  // tokens from the first of another block on; below 2^24, so that floats count exactly
  for (uint32_t i = thread_index(); i < limit; i += kThreads)
    if (!args.slots.find(token + i, place) || place.block != first.block)
      beyond = larger(beyond, static_cast<float>(limit - i));
  const uint32_t count = limit - static_cast<uint32_t>(workgroup_max<kThreads>(beyond, scratch.count));

  const SOURCE* source = static_cast<const SOURCE*>(plane.source) + batch * plane.source_batch +
                         position * plane.source_token + head * plane.source_head;
  float* stored = static_cast<float*>(plane.scales.data) + plane_offset<Pack::kNone>(plane.scales, first, head, 0);
  const float old = first.offset > 0 ? *stored : 0.f;
  const uint32_t vectors = plane.dims / kVec;
  float amax = 0.f;
  for (uint32_t item = thread_index(); item < count * vectors; item += kThreads) {
    const uint32_t i = item / vectors;
    const auto x = load_vec<kVec>(source + i * plane.source_token + (item - i * vectors) * kVec);
#pragma unroll
    for (int e = 0; e < kVec; ++e) amax = larger(amax, __builtin_fabsf(to_float(x[e])));
  }
  const float scale = larger(old, quant_scale<CACHE>(workgroup_max<kThreads>(amax, scratch.amax)).scale);
  if (thread_index() == 0) *stored = scale;  // each work-item has read the old one before the last barrier

  CACHE* cache = static_cast<CACHE*>(plane.cache.data);
  if (first.offset > 0 && !(scale == old)) {
    const float factor = old / scale;
    for (uint32_t item = thread_index(); item < first.offset * plane.dims; item += kThreads) {
      const uint32_t inner = kContiguous ? plane.dims : first.offset;
      const uint32_t high = item / inner, low = item - high * inner;
      const CachePlace before{first.block, kContiguous ? high : low};
      CACHE* at = cache + plane_offset<kPack>(plane.cache, before, head, kContiguous ? low : high);
      *at = from_float<CACHE>(to_float(*at) * factor);
    }
    workgroup_barrier();  // a run whose slots do not ascend writes some of these again
  }

  const float inverse = 1.f / scale;
  for (uint32_t item = thread_index(); item < count * vectors; item += kThreads) {
    const uint32_t inner = kContiguous ? vectors : count, high = item / inner, low = item - high * inner;
    const uint32_t i = kContiguous ? high : low, dim = (kContiguous ? low : high) * kVec;
    if (!args.slots.find(token + i, place)) continue;
    const auto x = load_vec<kVec>(source + i * plane.source_token + dim);
    float y[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) y[e] = to_float(x[e]) * inverse;
    const Vec<CACHE, kVec> out = vec_from_float<CACHE>(y);
    CACHE* to = cache + plane_offset<kPack>(plane.cache, place, head, dim);
    if constexpr (kContiguous) {
      store_vec<kVec>(to, out);
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e) to[e * plane.cache.dim] = out[e];
    }
  }
}

template <int kVec, KvLayout kLayout>
__global__ __launch_bounds__(kThreads) void reshape_and_cache_with_block_quant_kernel(BlockArgs args) {
  __shared__ Scratch scratch;
  const uint32_t rows = args.tokens * args.heads;
  const bool is_value = workgroup_index().x >= rows;
  const uint32_t row = workgroup_index().x - (is_value ? rows : 0), token = row / args.heads;
  const uint32_t head = row - token * args.heads;
  if (is_value)
    write_run<kVec, kValuePack<kLayout>, false>(args.planes[1], args, token, head, scratch);
  else
    write_run<kVec, kKeyPack<kLayout>, true>(args.planes[0], args, token, head, scratch);
}

template <int kVec>
void launch_reshape_and_cache_with_block_quant(const BlockArgs& args, KvLayout layout, Stream stream) {
  const dim3 grid(2 * args.tokens * args.heads);
  if (layout == KvLayout::kColumns)
    reshape_and_cache_with_block_quant_kernel<kVec, KvLayout::kColumns><<<grid, kThreads, 0, stream>>>(args);
  else
    reshape_and_cache_with_block_quant_kernel<kVec, KvLayout::kShuffled><<<grid, kThreads, 0, stream>>>(args);
  check_launch("reshape_and_cache_with_block_quant_kernel");
}

void launch_reshape_and_cache_with_block_quant(const BlockArgs& args, KvLayout layout, bool is_wide, Stream stream) {
  if (is_wide)
    launch_reshape_and_cache_with_block_quant<kVector>(args, layout, stream);
  else
    launch_reshape_and_cache_with_block_quant<1>(args, layout, stream);
}

#if AITER_LIKE_HOST_PASS

BlockPlane plane_args(const CachePlane& cache, const ffi::Tensor& source, const ffi::Tensor& scales,
                      const ffi::CacheShape& shape, KvLayout layout) {
  ffi::check_type(ffi::has_element<SOURCE>(source) && ffi::has_element<float>(scales),
                  "reshape_and_cache_with_block_quant: this module was built for other dtypes");
  ffi::check_value(source.size(2) == shape.heads && (source.size(3) < 2 || source.stride(3) == 1),
                   "reshape_and_cache_with_block_quant: key and value must be [batch, seq_len, num_heads, head_dim]");
  const int block = layout == KvLayout::kShuffled ? 0 : 1;  // its dimension: [blocks, heads], or [heads, blocks]
  ffi::check_value(scales.ndim() == 2 && scales.size(block) == shape.blocks && scales.size(1 - block) == shape.heads,
                   "reshape_and_cache_with_block_quant: scales must have an element for each block and head");
  BlockPlane args{cache, {}, source.data_ptr(), source.stride(0), source.stride(1), source.stride(2),
                  static_cast<uint32_t>(source.size(3))};
  args.scales.data = scales.data_ptr();
  args.scales.block = scales.stride(block);
  args.scales.head = scales.stride(1 - block);
  return args;
}

void reshape_and_cache_with_block_quant(ffi::Tensor key_cache, ffi::Tensor value_cache, ffi::Tensor k_dequant_scales,
                                        ffi::Tensor v_dequant_scales, ffi::Tensor key, ffi::Tensor value,
                                        ffi::Tensor slot_mapping, ffi::String layout_name) {
  const KvLayout layout = ffi::layout_of(layout_name);
  const ffi::CacheShape shape = ffi::cache_shape(key_cache, value_cache, layout);
  ffi::check_value(layout != KvLayout::kRows && ffi::has_element<CACHE>(key_cache) &&
                       ffi::has_element<CACHE>(value_cache) && key.ndim() == 4 && value.ndim() == 4 &&
                       key.size(0) == value.size(0) && key.size(1) == value.size(1) && key.size(3) == shape.key_dim &&
                       value.size(3) == shape.value_dim,
                   "reshape_and_cache_with_block_quant: this module was built for other dtypes or head_dims");
  const int64_t tokens = slot_mapping.size(0);
  ffi::check_value(tokens <= key.size(0) * key.size(1), "reshape_and_cache_with_block_quant: too many slots");
  if (tokens * shape.heads == 0) return;
  const int64_t largest = shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim;
  ffi::check_value(tokens * shape.heads < (int64_t{1} << 23) && shape.page_size < (int64_t{1} << 24) &&
                       shape.page_size * largest < (int64_t{1} << 31),
                   "reshape_and_cache_with_block_quant: too much for one launch");
  const bool is_wide = ffi::takes_vectors(key, kVector, sizeof(SOURCE)) &&
                       ffi::takes_vectors(value, kVector, sizeof(SOURCE)) &&
                       ffi::takes_vectors(key_cache, kVector, sizeof(CACHE));
  BlockArgs args{};
  args.planes[0] = plane_args(ffi::key_plane(key_cache), key, k_dequant_scales, shape, layout);
  args.planes[1] = plane_args(ffi::value_plane(value_cache, layout), value, v_dequant_scales, shape, layout);
  args.slots = ffi::slot_mapping(slot_mapping, shape);
  args.tokens = static_cast<uint32_t>(tokens);
  args.seq_len = static_cast<uint32_t>(key.size(1));
  args.heads = static_cast<uint32_t>(shape.heads);
  launch_reshape_and_cache_with_block_quant(args, layout, is_wide, ffi::stream_of(key));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(reshape_and_cache_with_block_quant, aiter_like::reshape_and_cache_with_block_quant);
#endif

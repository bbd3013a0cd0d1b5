// SPDX-License-Identifier: MIT
// Quantises K and V to fp8 or int8 (quant.h) into a paged cache with packed keys (kv_cache.h), one scale for each block
// and head: a block is a page of the cache, or several that follow one another. HIP (gfx9) and CUDA. One build per pair
// of element types, and for int8 that is cut off towards zero.
//
// A run is what follows one another in a sequence and goes to one block. One workgroup takes a run of one head:
//   1. count the run's tokens; their largest magnitude gives a scale
//   2. where the run does not begin the block: the larger of it and the block's scale so far; when that grows, what the
//      slots before the run hold is rescaled
//   3. quantise the run's tokens; write the scale. V, which keeps tokens together, goes through LDS in tiles of 64
//      tokens by 128 elements (kv_tile.h) and leaves in 16 bytes, single tokens byte by byte
// There is a workgroup for each window of tokens, head and plane; it takes the runs that begin there. The first write
// K, the others V. Slots outside the cache are skipped. LDS: 8.5 KiB. Bound: memory; a run is read twice, the second
// time from cache.
#include "aiter_like/kv_tile.h"
#include "aiter_like/quant.h"

#if !defined(SOURCE) || !defined(CACHE) || !defined(IS_TRUNCATED)
#error "reshape_and_cache_with_block_quant.hip: -DSOURCE=bf16|f16|float -DCACHE=fp8|int8_t -DIS_TRUNCATED=0|1"
#endif

namespace aiter_like {

struct Config {
  using Source = SOURCE;
  using Cache = CACHE;
  static constexpr bool kIsTruncated = IS_TRUNCATED;  // towards zero
  static constexpr int kVector = 16 / sizeof(Source);
};

constexpr uint32_t kThreads = 256, kPack = 16;  // elements in 16 bytes
constexpr uint32_t kMaxWindow = 16;              // tokens: a block has at least one run that begins there
constexpr uint32_t kTileTokens = 64, kTileColumns = 128;

struct BlockPlane {
  CachePlane cache, scales;                         // scales: strides of block and head only
  const void* source;                               // [batch, seq_len, heads, dims]
  int64_t source_batch, source_token, source_head;  // elements
  uint32_t dims;
  Divider vectors;  // of a head
};

struct BlockArgs {
  BlockPlane planes[2];  // K, V
  SlotMapping slots, blocks;  // in pages, and in what shares a scale
  Divider seq_len, heads;
  uint32_t tokens, window, windows;
  bool has_packs;  // tokens of V's packs are 16 aligned bytes of the cache
};

template <class Cache>
struct Scratch {
  bool is_start[kMaxWindow];
  float count[kThreads / kWaveSize], amax[kThreads / kWaveSize];
  TilePacks<kTileTokens, kPack> packs;
  TileRows<Cache, kTileTokens, kTileColumns> rows;
};

/// What conversion to Cache, which rounds, makes the number that is stored.
template <class Config>
__device__ inline float before_rounding(float x) {
  return Config::kIsTruncated ? __builtin_truncf(x) : x;
}

/// Whether a run begins with a token.
__device__ inline bool is_start(const BlockArgs& args, uint32_t token) {
  CachePlace first, before;
  if (token >= args.tokens || !args.blocks.find(token, first)) return false;
  const uint32_t position = token - args.seq_len.divide(token) * args.seq_len.divisor;
  return position == 0 || !args.blocks.find(token - 1, before) || before.block != first.block;
}

/// Quantises `count` tokens from `token` on, which `source` holds, into V's cache.
template <class Config, int kVec, Pack kLayout>
__device__ inline void write_tiles(const BlockPlane& plane, const BlockArgs& args,
                                   const typename Config::Source* source, uint32_t token, uint32_t count, uint32_t head,
                                   float inverse, Scratch<typename Config::Cache>& scratch) {
  using Cache = typename Config::Cache;
  constexpr uint32_t kVectors = kTileColumns / kVec;
  Cache* cache = static_cast<Cache*>(plane.cache.data);
  for (uint32_t first = 0; first < count; first += kTileTokens) {
    scratch.packs.sort(args.slots, token + first, token + count, args.has_packs);
    for (uint32_t column = 0; column < plane.dims; column += kTileColumns) {
      workgroup_barrier();
      for (uint32_t item = thread_index(); item < kTileTokens * kVectors; item += kThreads) {
        const uint32_t row = item / kVectors, in_tile = item % kVectors * kVec, dim = column + in_tile;
        if (first + row >= count) break;
        if (dim >= plane.dims) continue;
        const auto x = load_vec<kVec>(source + (first + row) * plane.source_token + dim);
        float y[kVec];
#pragma unroll
        for (int e = 0; e < kVec; ++e) y[e] = before_rounding<Config>(to_float(x[e]) * inverse);
        const Vec<Cache, kVec> out = vec_from_float<Cache>(y);
        const uint32_t single = scratch.packs.single[row];
        if (single == SlotMapping::kNowhere) {
          store_vec<kVec>(scratch.rows.at(row, in_tile), out);
        } else {
          Cache* to = cache + plane_offset<kLayout>(plane.cache, args.slots.place(single), head, dim);
#pragma unroll
          for (int e = 0; e < kVec; ++e) to[e * plane.cache.dim] = out[e];
        }
      }
      workgroup_barrier();
      for (uint32_t i = thread_index(); i < kTileTokens / kPack * kTileColumns; i += kThreads) {
        const TileItem<kLayout, kTileColumns> item(i);
        const uint32_t slot = scratch.packs.pack_slot[item.pack], dim = column + item.column;
        if (first + item.pack * kPack >= count || slot == SlotMapping::kNowhere || dim >= plane.dims) continue;
        store_whole(cache + plane_offset<kLayout>(plane.cache, args.slots.place(slot), head, dim),
                    scratch.rows.column(scratch.packs.pack_row[item.pack], item.column));
      }
    }
    workgroup_barrier();
  }
}

/// Multiplies what a block has before `first`, whose scale grows.
template <class Config, Pack kLayout, bool kContiguous>
__device__ __forceinline__ void rescale(const BlockPlane& plane, const BlockArgs& args, CachePlace first, uint32_t head,
                                        float factor) {
  using Cache = typename Config::Cache;
  Cache* cache = static_cast<Cache*>(plane.cache.data);
  for (uint32_t item = thread_index(); item < first.offset * plane.dims; item += kThreads) {
    const uint32_t inner = kContiguous ? plane.dims : first.offset;
    const uint32_t high = item / inner, low = item - high * inner;
    const uint32_t begin = first.block * args.blocks.page_size.divisor;  // the block's first slot
    const CachePlace before = args.slots.place(begin + (kContiguous ? high : low));
    Cache* at = cache + plane_offset<kLayout>(plane.cache, before, head, kContiguous ? low : high);
    *at = from_float<Cache>(before_rounding<Config>(to_float(*at) * factor));
  }
}

template <class Config, int kVec, Pack kLayout, bool kContiguous>
__device__ inline void write_run(const BlockPlane& plane, const BlockArgs& args, uint32_t token, uint32_t head,
                                 Scratch<typename Config::Cache>& scratch) {
  using Source = typename Config::Source;
  using Cache = typename Config::Cache;
  const uint32_t batch = args.seq_len.divide(token), position = token - batch * args.seq_len.divisor;
  CachePlace first{}, place;
  args.blocks.find(token, first);
  uint32_t limit = args.seq_len.divisor - position;
  if (limit > args.tokens - token) limit = args.tokens - token;
  if (limit > args.blocks.page_size.divisor) limit = args.blocks.page_size.divisor;
  float beyond = 0.f;  // tokens from the first of another block on; below 2^24, so that floats count exactly
  for (uint32_t i = thread_index(); i < limit; i += kThreads)
    if (!args.blocks.find(token + i, place) || place.block != first.block)
      beyond = larger(beyond, static_cast<float>(limit - i));
  const uint32_t count = limit - static_cast<uint32_t>(workgroup_max<kThreads>(beyond, scratch.count));

  const Source* source = static_cast<const Source*>(plane.source) + batch * plane.source_batch +
                         position * plane.source_token + head * plane.source_head;
  float* stored = static_cast<float*>(plane.scales.data) + plane_offset<Pack::kNone>(plane.scales, first, head, 0);
  const float old = first.offset > 0 ? *stored : 0.f;
  const uint32_t vectors = plane.vectors.divisor;
  float amax = 0.f;
  for (uint32_t item = thread_index(); item < count * vectors; item += kThreads) {
    const uint32_t i = plane.vectors.divide(item);
    const auto x = load_vec<kVec>(source + i * plane.source_token + (item - i * vectors) * kVec);
#pragma unroll
    for (int e = 0; e < kVec; ++e) amax = larger(amax, __builtin_fabsf(to_float(x[e])));
  }
  const float scale = larger(old, quant_scale<Cache>(workgroup_max<kThreads>(amax, scratch.amax)).scale);
  if (thread_index() == 0) *stored = scale;  // each work-item has read the old one before the last barrier

  Cache* cache = static_cast<Cache*>(plane.cache.data);
  if (first.offset > 0 && !(scale == old)) {
    rescale<Config, kLayout, kContiguous>(plane, args, first, head, old / scale);
    workgroup_barrier();  // a run whose slots do not ascend writes some of these again
  }

  const float inverse = 1.f / scale;
  if constexpr (!kContiguous && kVec > 1)
    return write_tiles<Config, kVec, kLayout>(plane, args, source, token, count, head, inverse, scratch);
  for (uint32_t item = thread_index(); item < count * vectors; item += kThreads) {
    const uint32_t dim = item / count * kVec, i = item % count;  // neighbouring lanes: tokens, neighbours in the cache
    if (!args.slots.find(token + i, place)) continue;
    const auto x = load_vec<kVec>(source + i * plane.source_token + dim);
    float y[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) y[e] = before_rounding<Config>(to_float(x[e]) * inverse);
    const Vec<Cache, kVec> out = vec_from_float<Cache>(y);
    Cache* to = cache + plane_offset<kLayout>(plane.cache, place, head, dim);
    if constexpr (kContiguous) {
      store_vec<kVec>(to, out);
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e) to[e * plane.cache.dim] = out[e];
    }
  }
}

template <class Config, int kVec, KvLayout kLayout>
__global__ __launch_bounds__(kThreads) void reshape_and_cache_with_block_quant_kernel(BlockArgs args) {
  await_stream();
  __shared__ Scratch<typename Config::Cache> scratch;
  const uint32_t rows = args.windows * args.heads.divisor;
  const bool is_value = workgroup_index().x >= rows;
  const uint32_t row = workgroup_index().x - (is_value ? rows : 0), window = args.heads.divide(row);
  const uint32_t head = row - window * args.heads.divisor, first = window * args.window;
  if (thread_index() < args.window) scratch.is_start[thread_index()] = is_start(args, first + thread_index());
  workgroup_barrier();
  for (uint32_t i = 0; i < args.window; ++i) {
    if (!scratch.is_start[i]) continue;
    if (is_value)
      write_run<Config, kVec, kValuePack<kLayout>, false>(args.planes[1], args, first + i, head, scratch);
    else
      write_run<Config, kVec, kKeyPack<kLayout>, true>(args.planes[0], args, first + i, head, scratch);
    workgroup_barrier();  // the next run needs the same LDS
  }
}

template <class Config, int kVec>
void launch_reshape_and_cache_with_block_quant(const BlockArgs& args, KvLayout layout, Stream stream) {
  const auto kernel = layout == KvLayout::kColumns
                          ? reshape_and_cache_with_block_quant_kernel<Config, kVec, KvLayout::kColumns>
                          : reshape_and_cache_with_block_quant_kernel<Config, kVec, KvLayout::kShuffled>;
  launch_named("reshape_and_cache_with_block_quant_kernel", kernel, dim3(2 * args.windows * args.heads.divisor),
               kThreads, stream, args);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_reshape_and_cache_with_block_quant<Config, Config::kVector>(const BlockArgs&, KvLayout, Stream);
template void launch_reshape_and_cache_with_block_quant<Config, 1>(const BlockArgs&, KvLayout, Stream);

#if AITER_LIKE_HOST_PASS

BlockPlane plane_args(ffi::Match& match, ffi::Cache& cache, const CachePlane& plane, const ffi::Shape& shape,
                      const ffi::Tensor& source, const ffi::Tensor& scales, KvLayout layout, int64_t pages,
                      const char* name) {
  const auto rows = match.take<const SOURCE>(source, shape, name);
  const int block = layout == KvLayout::kShuffled ? 0 : 1;  // its dimension: [blocks, heads], or [heads, blocks]
  match.require(cache.blocks % pages == 0, "num_blocks must be a multiple of the pages that share a scale");
  const int64_t groups = cache.blocks / pages;
  const auto taken = block == 0 ? match.take<float>(scales, {groups, cache.heads}, "scales", ffi::kStrided)
                                : match.take<float>(scales, {cache.heads, groups}, "scales", ffi::kStrided);
  BlockPlane args{plane, {}, rows.data, rows.strides[0], rows.strides[1], rows.strides[2],
                  static_cast<uint32_t>(rows.sizes[3]), {}};
  args.scales.data = taken.data, args.scales.block = taken.strides[block], args.scales.head = taken.strides[1 - block];
  return args;
}

void reshape_and_cache_with_block_quant(ffi::Tensor key_cache, ffi::Tensor value_cache, ffi::Tensor k_dequant_scales,
                                        ffi::Tensor v_dequant_scales, ffi::Tensor key, ffi::Tensor value,
                                        ffi::Tensor slot_mapping, ffi::String layout_name, int64_t pages,
                                        bool is_truncated) {
  constexpr int kVector = Config::kVector;
  ffi::Match match("reshape_and_cache_with_block_quant");
  const KvLayout layout = ffi::layout_of(match, layout_name);
  match.built(layout != KvLayout::kRows, "layouts");
  match.built(is_truncated == bool{IS_TRUNCATED}, "roundings");
  match.require(pages > 0, "a scale must be that of 1 page or more");
  auto cache = ffi::take_cache<CACHE>(match, key_cache, value_cache, layout);
  auto& [key_plane, value_plane, blocks, page_size, heads, key_dim, value_dim, slots] = cache;
  ffi::Size tokens{"num_tokens"}, batch{"batch"}, seq_len{"seq_len"};
  BlockArgs args{};
  args.slots = args.blocks = ffi::take_slots(match, slot_mapping, tokens, page_size, slots);
  args.planes[0] = plane_args(match, cache, key_plane, {batch, seq_len, heads, key_dim}, key, k_dequant_scales, layout,
                              pages, "key");
  args.planes[1] = plane_args(match, cache, value_plane, {batch, seq_len, heads, value_dim}, value, v_dequant_scales,
                              layout, pages, "value");
  match.require(tokens <= batch * seq_len, "too many slots");
  if (tokens * heads == 0) return;
  const int64_t largest = key_dim > value_dim ? key_dim : value_dim;
  match.require(tokens * heads < 1 << 23 && page_size * pages < 1 << 24 &&
                    page_size * pages * largest < int64_t{1} << 31, "too much for one launch");
  args.blocks.page_size = Divider(page_size * pages);
  const bool is_wide = ffi::takes_vectors(kVector, key, value, key_cache);
  for (BlockPlane& plane : args.planes) {
    const uint32_t vectors = plane.dims / (is_wide ? kVector : 1);
    plane.vectors = Divider(vectors > 0 ? vectors : 1);
  }
  args.tokens = tokens, args.seq_len = Divider(seq_len), args.heads = Divider(heads);
  // Tokens of different sequences begin a run each, and should not wait for one another.
  args.window = seq_len < kMaxWindow ? 1 : kMaxWindow;
  args.windows = (args.tokens + args.window - 1) / args.window;
  args.has_packs = ffi::takes_vectors(kPack, value_cache) &&
                   (pages == 1 || page_size % kPack == 0);  // no pack lies in two pages
  if (is_wide) launch_reshape_and_cache_with_block_quant<Config, kVector>(args, layout, ffi::stream_of(key));
  else launch_reshape_and_cache_with_block_quant<Config, 1>(args, layout, ffi::stream_of(key));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(reshape_and_cache_with_block_quant, aiter_like::reshape_and_cache_with_block_quant);
#endif

// SPDX-License-Identifier: MIT
// Quantises K and V to fp8 or int8 (quant.h) into a paged cache with packed keys (kv_cache.h), one scale for each block
// and head: a block is a page of the cache, or several that follow one another. HIP (gfx9) and CUDA. One build per pair
// of element types, and for int8 that is cut off towards zero (IS_TRUNCATED).
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

constexpr int kVector = 16 / sizeof(SOURCE);
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

struct Scratch {
  bool is_start[kMaxWindow];
  float count[kThreads / kWaveSize], amax[kThreads / kWaveSize];
  TilePacks<kTileTokens, kPack> packs;
  TileRows<CACHE, kTileTokens, kTileColumns> rows;
};

/// What conversion to CACHE, which rounds, makes the number that is stored.
__device__ inline float before_rounding(float x) { return IS_TRUNCATED ? __builtin_truncf(x) : x; }

/// Whether a run begins with a token.
__device__ inline bool is_start(const BlockArgs& args, uint32_t token) {
  CachePlace first, before;
  if (token >= args.tokens || !args.blocks.find(token, first)) return false;
  const uint32_t position = token - args.seq_len.divide(token) * args.seq_len.divisor;
  return position == 0 || !args.blocks.find(token - 1, before) || before.block != first.block;
}

/// Quantises `count` tokens from `token` on, which `source` holds, into V's cache.
template <int kVec, Pack kLayout>
__device__ inline void write_tiles(const BlockPlane& plane, const BlockArgs& args, const SOURCE* source, uint32_t token,
                                   uint32_t count, uint32_t head, float inverse, Scratch& scratch) {
  constexpr uint32_t kVectors = kTileColumns / kVec;
  CACHE* cache = static_cast<CACHE*>(plane.cache.data);
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
        for (int e = 0; e < kVec; ++e) y[e] = before_rounding(to_float(x[e]) * inverse);
        const Vec<CACHE, kVec> out = vec_from_float<CACHE>(y);
        const uint32_t single = scratch.packs.single[row];
        if (single == SlotMapping::kNowhere) {
          store_vec<kVec>(scratch.rows.at(row, in_tile), out);
        } else {
          CACHE* to = cache + plane_offset<kLayout>(plane.cache, args.slots.place(single), head, dim);
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

template <int kVec, Pack kLayout, bool kContiguous>
__device__ inline void write_run(const BlockPlane& plane, const BlockArgs& args, uint32_t token, uint32_t head,
                                 Scratch& scratch) {
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

  const SOURCE* source = static_cast<const SOURCE*>(plane.source) + batch * plane.source_batch +
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
  const float scale = larger(old, quant_scale<CACHE>(workgroup_max<kThreads>(amax, scratch.amax)).scale);
  if (thread_index() == 0) *stored = scale;  // each work-item has read the old one before the last barrier

  CACHE* cache = static_cast<CACHE*>(plane.cache.data);
  if (first.offset > 0 && !(scale == old)) {
    const float factor = old / scale;
    for (uint32_t item = thread_index(); item < first.offset * plane.dims; item += kThreads) {
      const uint32_t inner = kContiguous ? plane.dims : first.offset;
      const uint32_t high = item / inner, low = item - high * inner;
      const uint32_t begin = first.block * args.blocks.page_size.divisor;  // the block's first slot
      const CachePlace before = args.slots.place(begin + (kContiguous ? high : low));
      CACHE* at = cache + plane_offset<kLayout>(plane.cache, before, head, kContiguous ? low : high);
      *at = from_float<CACHE>(before_rounding(to_float(*at) * factor));
    }
    workgroup_barrier();  // a run whose slots do not ascend writes some of these again
  }

  const float inverse = 1.f / scale;
  if constexpr (!kContiguous && kVec > 1)
    return write_tiles<kVec, kLayout>(plane, args, source, token, count, head, inverse, scratch);
  for (uint32_t item = thread_index(); item < count * vectors; item += kThreads) {
    const uint32_t dim = item / count * kVec, i = item % count;  // neighbouring lanes: tokens, neighbours in the cache
    if (!args.slots.find(token + i, place)) continue;
    const auto x = load_vec<kVec>(source + i * plane.source_token + dim);
    float y[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) y[e] = before_rounding(to_float(x[e]) * inverse);
    const Vec<CACHE, kVec> out = vec_from_float<CACHE>(y);
    CACHE* to = cache + plane_offset<kLayout>(plane.cache, place, head, dim);
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
  await_stream();
  __shared__ Scratch scratch;
  const uint32_t rows = args.windows * args.heads.divisor;
  const bool is_value = workgroup_index().x >= rows;
  const uint32_t row = workgroup_index().x - (is_value ? rows : 0), window = args.heads.divide(row);
  const uint32_t head = row - window * args.heads.divisor, first = window * args.window;
  if (thread_index() < args.window) scratch.is_start[thread_index()] = is_start(args, first + thread_index());
  workgroup_barrier();
  for (uint32_t i = 0; i < args.window; ++i) {
    if (!scratch.is_start[i]) continue;
    if (is_value)
      write_run<kVec, kValuePack<kLayout>, false>(args.planes[1], args, first + i, head, scratch);
    else
      write_run<kVec, kKeyPack<kLayout>, true>(args.planes[0], args, first + i, head, scratch);
    workgroup_barrier();  // the next run needs the same LDS
  }
}

template <int kVec>
void launch_reshape_and_cache_with_block_quant(const BlockArgs& args, KvLayout layout, Stream stream) {
  const dim3 grid(2 * args.windows * args.heads.divisor);
  if (layout == KvLayout::kColumns)
    launch_overlapped(reshape_and_cache_with_block_quant_kernel<kVec, KvLayout::kColumns>,
                      grid, kThreads, stream, args);
  else
    launch_overlapped(reshape_and_cache_with_block_quant_kernel<kVec, KvLayout::kShuffled>,
                      grid, kThreads, stream, args);
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
                      const ffi::CacheShape& shape, KvLayout layout, int64_t pages) {
  ffi::check_type(ffi::has_element<SOURCE>(source) && ffi::has_element<float>(scales),
                  "reshape_and_cache_with_block_quant: this module was built for other dtypes");
  ffi::check_value(source.size(2) == shape.heads && (source.size(3) < 2 || source.stride(3) == 1),
                   "reshape_and_cache_with_block_quant: key and value must be [batch, seq_len, num_heads, head_dim]");
  const int block = layout == KvLayout::kShuffled ? 0 : 1;  // its dimension: [blocks, heads], or [heads, blocks]
  ffi::check_value(scales.ndim() == 2 && scales.size(block) * pages == shape.blocks &&
                       scales.size(1 - block) == shape.heads,
                   "reshape_and_cache_with_block_quant: scales must have an element for each block and head");
  BlockPlane args{cache, {}, source.data_ptr(), source.stride(0), source.stride(1), source.stride(2),
                  static_cast<uint32_t>(source.size(3)), {}};
  args.scales.data = scales.data_ptr();
  args.scales.block = scales.stride(block);
  args.scales.head = scales.stride(1 - block);
  return args;
}

void reshape_and_cache_with_block_quant(ffi::Tensor key_cache, ffi::Tensor value_cache, ffi::Tensor k_dequant_scales,
                                        ffi::Tensor v_dequant_scales, ffi::Tensor key, ffi::Tensor value,
                                        ffi::Tensor slot_mapping, ffi::String layout_name, int64_t pages,
                                        bool is_truncated) {
  const KvLayout layout = ffi::layout_of(layout_name);
  const ffi::CacheShape shape = ffi::cache_shape(key_cache, value_cache, layout);
  ffi::check_value(layout != KvLayout::kRows && ffi::has_element<CACHE>(key_cache) &&
                       ffi::has_element<CACHE>(value_cache) && key.ndim() == 4 && value.ndim() == 4 &&
                       key.size(0) == value.size(0) && key.size(1) == value.size(1) && key.size(3) == shape.key_dim &&
                       value.size(3) == shape.value_dim,
                   "reshape_and_cache_with_block_quant: this module was built for other dtypes or head_dims");
  ffi::check_value(is_truncated == bool{IS_TRUNCATED},
                   "reshape_and_cache_with_block_quant: this module was built for another rounding");
  const int64_t tokens = slot_mapping.size(0);
  ffi::check_value(tokens <= key.size(0) * key.size(1), "reshape_and_cache_with_block_quant: too many slots");
  ffi::check_value(pages > 0, "reshape_and_cache_with_block_quant: a scale must be that of 1 page or more");
  if (tokens * shape.heads == 0) return;
  const int64_t largest = shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim;
  ffi::check_value(tokens * shape.heads < (int64_t{1} << 23) && shape.page_size * pages < (int64_t{1} << 24) &&
                       shape.page_size * pages * largest < (int64_t{1} << 31),
                   "reshape_and_cache_with_block_quant: too much for one launch");
  const bool is_wide = ffi::takes_vectors(key, kVector, sizeof(SOURCE)) &&
                       ffi::takes_vectors(value, kVector, sizeof(SOURCE)) &&
                       ffi::takes_vectors(key_cache, kVector, sizeof(CACHE));
  BlockArgs args{};
  args.planes[0] = plane_args(ffi::key_plane(key_cache), key, k_dequant_scales, shape, layout, pages);
  args.planes[1] = plane_args(ffi::value_plane(value_cache, layout), value, v_dequant_scales, shape, layout, pages);
  args.slots = args.blocks = ffi::slot_mapping(slot_mapping, shape);
  args.blocks.page_size = Divider(static_cast<uint32_t>(shape.page_size * pages));
  for (int i = 0; i < 2; ++i) {
    const uint32_t vectors = args.planes[i].dims / (is_wide ? kVector : 1);
    args.planes[i].vectors = Divider(vectors > 0 ? vectors : 1);
  }
  args.tokens = static_cast<uint32_t>(tokens);
  args.seq_len = Divider(static_cast<uint32_t>(key.size(1)));
  args.heads = Divider(static_cast<uint32_t>(shape.heads));
  // Tokens of different sequences begin a run each, and should not wait for one another.
  args.window = key.size(1) < kMaxWindow ? 1 : kMaxWindow;
  args.windows = (args.tokens + args.window - 1) / args.window;
  args.has_packs = ffi::takes_vectors(value_cache, kPack, sizeof(CACHE)) &&
                   (pages == 1 || shape.page_size % kPack == 0);  // no pack lies in two pages
  launch_reshape_and_cache_with_block_quant(args, layout, is_wide, ffi::stream_of(key));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(reshape_and_cache_with_block_quant, aiter_like::reshape_and_cache_with_block_quant);
#endif

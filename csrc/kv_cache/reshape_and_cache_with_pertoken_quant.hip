// SPDX-License-Identifier: MIT
// Quantises each head of each token's K and V to fp8 or int8 (quant.h), a scale each, into a paged cache with packed
// keys (kv_cache.h). HIP (gfx9) and CUDA. One build per pair of element types and number of lanes.
//
//   1. LANES lanes hold a head's elements, of four tokens one after the other: one load of 16 bytes each; meanwhile a
//      wave looks which tokens have consecutive slots (kv_tile.h)
//   2. the largest magnitude over the lanes gives the scale; the quantised rows go to LDS; of V, which keeps tokens
//      together, single tokens are stored byte by byte
//   3. K leaves LDS in 16 bytes of a token, V in those of 16 tokens; scales by neighbouring tokens
// Heads of more lanes than 32, and caches that are not aligned, are written row by row from registers.
//
// The first workgroups write K, the others V. Slots outside the cache are skipped. LDS: 8.8 KiB.
// Bound: memory. A token moves heads · 2 · head_dim · (sizeof(SOURCE) + 1) bytes and the scales.
#include "aiter_like/kv_tile.h"
#include "kv_quant.h"

#if !defined(SOURCE) || !defined(CACHE) || !defined(LANES)
#error "reshape_and_cache_with_pertoken_quant.hip: -DSOURCE=bf16|f16|float -DCACHE=fp8|int8_t -DLANES=8…1024"
#endif

namespace aiter_like {

constexpr int kVector = 16 / sizeof(SOURCE);

constexpr bool kHasTiles = LANES <= 32;
constexpr uint32_t kThreads = RowLayout<LANES, 1, 1>::kThreads, kRows = RowLayout<LANES, 1, 1>::kRows;
constexpr uint32_t kTileTokens = LANES < 16 ? 64 : kHasTiles ? 4 * kRows : 16, kColumns = LANES * kVector;
constexpr uint32_t kPack = 16;  // elements in 16 bytes

struct QuantArgs {
  QuantPlane planes[2];  // K, V
  SlotMapping slots;
  Divider heads;
  uint32_t tokens, groups;  // groups: workgroups of a plane
  bool has_packs;           // tokens of V's packs are 16 aligned bytes of the cache
};

struct Tile {
  TilePacks<kTileTokens, kPack> packs;
  TileRows<CACHE, kTileTokens, kColumns> rows;
  float scales[kTileTokens];
};

/// Step 3: the quantised rows from LDS into the cache, 16 bytes at once.
template <Pack kLayout>
__device__ __forceinline__ void store_tile(const QuantPlane& plane, const QuantArgs& args, uint32_t head, Tile& tile) {
  constexpr bool kIsKey = kLayout == Pack::kDims;
  CACHE* cache = static_cast<CACHE*>(plane.cache.data);
#pragma unroll
  for (uint32_t i = 0; i < kTileTokens * kColumns / kPack / kThreads; ++i) {
    const uint32_t item = i * kThreads + thread_index();
    if constexpr (kIsKey) {
      const uint32_t row = item / (kColumns / kPack), vector = item % (kColumns / kPack);
      const uint32_t to = tile.packs.single[row];
      if (to == SlotMapping::kNowhere || vector * kPack >= plane.dims) continue;
      store_whole(cache + plane_offset<kLayout>(plane.cache, args.slots.place(to), head, vector * kPack),
                  tile.rows.data[row][vector]);
    } else {
      const TileItem<kLayout, kColumns> place(item);
      const uint32_t to = tile.packs.pack_slot[place.pack];
      if (to == SlotMapping::kNowhere || place.column >= plane.dims) continue;
      store_whole(cache + plane_offset<kLayout>(plane.cache, args.slots.place(to), head, place.column),
                  tile.rows.column(tile.packs.pack_row[place.pack], place.column));
    }
  }
}

/// kTileTokens tokens of one head.
template <Pack kLayout>
__device__ inline void write_tile(const QuantPlane& plane, const QuantArgs& args, uint32_t index, Tile& tile) {
  using Layout = RowLayout<LANES, 1, kVector>;
  constexpr uint32_t kPasses = kTileTokens / kRows;
  constexpr bool kIsKey = kLayout == Pack::kDims;
  const uint32_t tile_index = args.heads.divide(index), head = index - tile_index * args.heads.divisor;
  const uint32_t first = tile_index * kTileTokens, lane_row = thread_index() / LANES, dim = Layout::lane() * kVector;
  const SOURCE* source = static_cast<const SOURCE*>(plane.source) + head * plane.source_head;
  CACHE* cache = static_cast<CACHE*>(plane.cache.data);

  RowTile<Layout, SOURCE> x[kPasses];
#pragma unroll
  for (uint32_t i = 0; i < kPasses; ++i) {
    const uint32_t token = first + lane_row + i * kRows;
    const bool is_there = token < args.tokens;
    x[i].load(source + (is_there ? token : 0) * plane.source_token, is_there ? plane.dims : 0);
  }
  const uint32_t slot = tile.packs.sort(args.slots, first, args.tokens, !kIsKey && args.has_packs);
  workgroup_barrier();

  RowScratch<Layout> unused;  // a row has no more lanes than a wave
#pragma unroll
  for (uint32_t i = 0; i < kPasses; ++i) {
    const uint32_t row = lane_row + i * kRows;
    const auto at = [&](int v, int e) { return x[i].at(v, e); };
    const QuantScale scale = quant_scale<CACHE>(row_max<Layout>(lane_amax<Layout>(at), unused));
    if (Layout::lane() == 0) tile.scales[row] = scale.scale;
    float y[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) y[e] = at(0, e) * scale.inverse;
    const Vec<CACHE, kVector> out = vec_from_float<CACHE>(y);
    const uint32_t single = tile.packs.single[row];
    if (kIsKey || single == SlotMapping::kNowhere) {
      store_vec<kVector>(tile.rows.at(row, dim), out);
    } else if (dim < plane.dims) {
      CACHE* to = cache + plane_offset<kLayout>(plane.cache, args.slots.place(single), head, dim);
#pragma unroll
      for (int e = 0; e < kVector; ++e) to[e * plane.cache.dim] = out[e];
    }
  }
  workgroup_barrier();

  if (slot != SlotMapping::kNowhere) {
    const int64_t to = plane_offset<Pack::kNone>(plane.scales, args.slots.place(slot), head, 0);
    static_cast<float*>(plane.scales.data)[to] = tile.scales[thread_index()];
  }
  store_tile<kLayout>(plane, args, head, tile);
}

template <KvLayout kLayout>
__global__ __launch_bounds__(kThreads) void reshape_and_cache_with_pertoken_quant_tiles_kernel(QuantArgs args) {
  await_stream();
  __shared__ Tile tile;
  const uint32_t group = workgroup_index().x;
  if (group < args.groups)
    write_tile<kKeyPack<kLayout>>(args.planes[0], args, group, tile);
  else
    write_tile<kValuePack<kLayout>>(args.planes[1], args, group - args.groups, tile);
}

template <int kVec, KvLayout kLayout>
__global__ __launch_bounds__((RowLayout<LANES, 1, 1>::kThreads)) void
reshape_and_cache_with_pertoken_quant_kernel(QuantArgs args) {
  await_stream();
  using Layout = RowLayout<LANES, kVector / kVec, kVec>;
  __shared__ RowScratch<Layout> scratch;
  const uint32_t group = workgroup_index().x;
  if (group < args.groups)
    write_quantised<Layout, SOURCE, CACHE, kKeyPack<kLayout>, true>(args.planes[0], args.slots, args.tokens,
                                                                    args.heads.divisor, group, false, scratch);
  else
    write_quantised<Layout, SOURCE, CACHE, kValuePack<kLayout>, false>(
        args.planes[1], args.slots, args.tokens, args.heads.divisor, group - args.groups, false, scratch);
}

template <int kVec>
void launch_reshape_and_cache_with_pertoken_quant(const QuantArgs& args, KvLayout layout, Stream stream) {
  const dim3 grid(2 * args.groups);
  if (layout == KvLayout::kColumns)
    launch_overlapped(reshape_and_cache_with_pertoken_quant_kernel<kVec, KvLayout::kColumns>,
                      grid, kThreads, stream, args);
  else
    launch_overlapped(reshape_and_cache_with_pertoken_quant_kernel<kVec, KvLayout::kShuffled>,
                      grid, kThreads, stream, args);
  check_launch("reshape_and_cache_with_pertoken_quant_kernel");
}

void launch_reshape_and_cache_with_pertoken_quant(const QuantArgs& args, KvLayout layout, bool is_wide,
                                                  bool has_tiles, Stream stream) {
  if constexpr (kHasTiles) {
    if (has_tiles) {
      const dim3 grid(2 * args.groups);
      if (layout == KvLayout::kColumns)
        launch_overlapped(reshape_and_cache_with_pertoken_quant_tiles_kernel<KvLayout::kColumns>,
                          grid, kThreads, stream, args);
      else
        launch_overlapped(reshape_and_cache_with_pertoken_quant_tiles_kernel<KvLayout::kShuffled>,
                          grid, kThreads, stream, args);
      return check_launch("reshape_and_cache_with_pertoken_quant_tiles_kernel");
    }
  }
  if (is_wide)
    launch_reshape_and_cache_with_pertoken_quant<kVector>(args, layout, stream);
  else
    launch_reshape_and_cache_with_pertoken_quant<1>(args, layout, stream);
}

#if AITER_LIKE_HOST_PASS

QuantPlane plane_args(ffi::Match& match, ffi::Cache& cache, const CachePlane& plane, int64_t dim,
                      const ffi::Tensor& source, const ffi::Tensor& scales, KvLayout layout, int64_t tokens,
                      const char* name) {
  const auto rows = match.take<const SOURCE>(source, {ffi::at_least(tokens), cache.heads, dim}, name);
  QuantPlane args{plane, {}, rows.data, rows.strides[0], rows.strides[1], static_cast<uint32_t>(dim)};
  const bool is_shuffled = layout == KvLayout::kShuffled;
  const auto s = is_shuffled
                     ? match.take<float>(scales, {cache.blocks, cache.heads, cache.page_size}, "scales", ffi::kStrided)
                     : match.take<float>(scales, {cache.heads, ffi::at_least(cache.slots)}, "scales", ffi::kStrided);
  args.scales.data = s.data;
  args.scales.head = s.strides[is_shuffled ? 1 : 0], args.scales.token = s.strides[is_shuffled ? 2 : 1];
  args.scales.block = is_shuffled ? s.strides[0] : cache.page_size * s.strides[1];
  return args;
}

void reshape_and_cache_with_pertoken_quant(ffi::Tensor key_cache, ffi::Tensor value_cache,
                                           ffi::Tensor k_dequant_scales, ffi::Tensor v_dequant_scales, ffi::Tensor key,
                                           ffi::Tensor value, ffi::Tensor slot_mapping, ffi::String layout_name) {
  ffi::Match match("reshape_and_cache_with_pertoken_quant");
  const KvLayout layout = ffi::layout_of(match, layout_name);
  auto cache = ffi::take_cache<CACHE>(match, key_cache, value_cache, layout);
  match.built(layout != KvLayout::kRows, "layouts");
  match.built(cache.key_dim <= LANES * kVector && cache.value_dim <= LANES * kVector, "head_dims");
  ffi::Size tokens{"num_tokens"};
  QuantArgs args{};
  args.slots = ffi::take_slots(match, slot_mapping, tokens, cache.page_size, cache.slots);
  const int64_t rows = tokens * cache.heads;
  if (rows == 0) return;
  match.require(rows * LANES < 1 << 30, "too many rows for one launch");
  args.planes[0] = plane_args(match, cache, cache.key, cache.key_dim, key, k_dequant_scales, layout, tokens, "key");
  args.planes[1] = plane_args(match, cache, cache.value, cache.value_dim, value, v_dequant_scales, layout, tokens,
                              "value");
  args.tokens = tokens, args.heads = Divider(cache.heads);
  const bool is_wide = ffi::takes_vectors(kVector, key, value, key_cache);
  const bool has_tiles = kHasTiles && is_wide && ffi::takes_vectors(kPack, key_cache);
  args.has_packs = ffi::takes_vectors(kPack, value_cache);
  args.groups = static_cast<uint32_t>(has_tiles ? (tokens + kTileTokens - 1) / kTileTokens * cache.heads
                                                : (rows + kRows - 1) / kRows);
  launch_reshape_and_cache_with_pertoken_quant(args, layout, is_wide, has_tiles, ffi::stream_of(key));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(reshape_and_cache_with_pertoken_quant, aiter_like::reshape_and_cache_with_pertoken_quant);
#endif

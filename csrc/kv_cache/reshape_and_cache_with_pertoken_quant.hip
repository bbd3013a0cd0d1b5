// SPDX-License-Identifier: MIT
// Quantises each head of each token's K and V to fp8 or int8 (quant.h), a scale each, into a paged cache with packed
// keys (kv_cache.h). HIP (gfx9) and CUDA. One build per pair of element types and number of lanes.
//
//   1. kLanes lanes hold a head's elements, of four tokens one after the other: one load of 16 bytes each; meanwhile a
//      wave looks which tokens have consecutive slots (kv_tile.h)
//   2. the largest magnitude over the lanes gives the scale; the quantised rows go to LDS; of V, which keeps tokens
//      together, single tokens are stored byte by byte
//   3. K leaves LDS in 16 bytes of a token, V in those of 16 tokens; scales by neighbouring tokens
// Heads of more lanes than 32, and caches that are not aligned, are written row by row from registers.
//
// The first workgroups write K, the others V. Slots outside the cache are skipped. LDS: 8.8 KiB.
// Bound: memory. A token moves heads · 2 · head_dim · (sizeof(Source) + 1) bytes and the scales.
#include "aiter_like/kv_tile.h"
#include "kv_quant.h"

#if !defined(SOURCE) || !defined(CACHE) || !defined(LANES)
#error "reshape_and_cache_with_pertoken_quant.hip: -DSOURCE=bf16|f16|float -DCACHE=fp8|int8_t -DLANES=8…1024"
#endif

namespace aiter_like {

constexpr uint32_t kPack = 16;  // elements in 16 bytes

struct Config {
  using Source = SOURCE;
  using Cache = CACHE;
  static constexpr int kLanes = LANES, kVector = 16 / sizeof(Source);
  template <int kVec>
  using Layout = RowLayout<kLanes, kVector / kVec, kVec>;
  static constexpr bool kHasTiles = kLanes <= 32;
  static constexpr uint32_t kThreads = Layout<1>::kThreads, kRows = Layout<1>::kRows;
  static constexpr uint32_t kTileTokens = kLanes < 16 ? 64 : kHasTiles ? 4 * kRows : 16, kColumns = kLanes * kVector;
};

struct QuantArgs {
  QuantPlane planes[2];  // K, V
  SlotMapping slots;
  Divider heads;
  uint32_t tokens, groups;  // groups: workgroups of a plane
  bool has_packs;           // tokens of V's packs are 16 aligned bytes of the cache
};

template <class Config>
struct Tile {
  TilePacks<Config::kTileTokens, kPack> packs;
  TileRows<typename Config::Cache, Config::kTileTokens, Config::kColumns> rows;
  float scales[Config::kTileTokens];
};

/// Step 3: the quantised rows from LDS into the cache, 16 bytes at once.
template <class Config, Pack kLayout>
__device__ __forceinline__ void store_tile(const QuantPlane& plane, const QuantArgs& args, uint32_t head,
                                           Tile<Config>& tile) {
  constexpr bool kIsKey = kLayout == Pack::kDims;
  constexpr uint32_t kColumns = Config::kColumns;
  auto* cache = static_cast<typename Config::Cache*>(plane.cache.data);
#pragma unroll
  for (uint32_t i = 0; i < Config::kTileTokens * kColumns / kPack / Config::kThreads; ++i) {
    const uint32_t item = i * Config::kThreads + thread_index();
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
template <class Config, Pack kLayout>
__device__ inline void write_tile(const QuantPlane& plane, const QuantArgs& args, uint32_t index, Tile<Config>& tile) {
  using Cache = typename Config::Cache;
  using Source = typename Config::Source;
  constexpr int kVector = Config::kVector;
  using Layout = typename Config::template Layout<kVector>;
  constexpr uint32_t kRows = Config::kRows, kTileTokens = Config::kTileTokens, kPasses = kTileTokens / kRows;
  constexpr bool kIsKey = kLayout == Pack::kDims;
  const uint32_t tile_index = args.heads.divide(index), head = index - tile_index * args.heads.divisor;
  const uint32_t first = tile_index * kTileTokens, lane_row = thread_index() / Config::kLanes;
  const uint32_t dim = Layout::lane() * kVector;
  const Source* source = static_cast<const Source*>(plane.source) + head * plane.source_head;
  Cache* cache = static_cast<Cache*>(plane.cache.data);

  RowTile<Layout, Source> x[kPasses];
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
    const QuantScale scale = quant_scale<Cache>(row_max<Layout>(lane_amax<Layout>(at), unused));
    if (Layout::lane() == 0) tile.scales[row] = scale.scale;
    float y[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) y[e] = at(0, e) * scale.inverse;
    const Vec<Cache, kVector> out = vec_from_float<Cache>(y);
    const uint32_t single = tile.packs.single[row];
    if (kIsKey || single == SlotMapping::kNowhere) {
      store_vec<kVector>(tile.rows.at(row, dim), out);
    } else if (dim < plane.dims) {
      Cache* to = cache + plane_offset<kLayout>(plane.cache, args.slots.place(single), head, dim);
#pragma unroll
      for (int e = 0; e < kVector; ++e) to[e * plane.cache.dim] = out[e];
    }
  }
  workgroup_barrier();

  if (slot != SlotMapping::kNowhere) {
    const int64_t to = plane_offset<Pack::kNone>(plane.scales, args.slots.place(slot), head, 0);
    static_cast<float*>(plane.scales.data)[to] = tile.scales[thread_index()];
  }
  store_tile<Config, kLayout>(plane, args, head, tile);
}

template <class Config, KvLayout kLayout>
__global__ __launch_bounds__(Config::kThreads) void reshape_and_cache_with_pertoken_quant_tiles_kernel(QuantArgs args) {
  await_stream();
  __shared__ Tile<Config> tile;
  const uint32_t group = workgroup_index().x;
  if (group < args.groups)
    write_tile<Config, kKeyPack<kLayout>>(args.planes[0], args, group, tile);
  else
    write_tile<Config, kValuePack<kLayout>>(args.planes[1], args, group - args.groups, tile);
}

template <class Config, int kVec, KvLayout kLayout>
__global__ __launch_bounds__(Config::kThreads) void reshape_and_cache_with_pertoken_quant_kernel(QuantArgs args) {
  using Layout = typename Config::template Layout<kVec>;
  using Source = typename Config::Source;
  using Cache = typename Config::Cache;
  await_stream();
  __shared__ RowScratch<Layout> scratch;
  const uint32_t group = workgroup_index().x;
  if (group < args.groups)
    write_quantised<Layout, Source, Cache, kKeyPack<kLayout>, true>(args.planes[0], args.slots, args.tokens,
                                                                    args.heads.divisor, group, false, scratch);
  else
    write_quantised<Layout, Source, Cache, kValuePack<kLayout>, false>(
        args.planes[1], args.slots, args.tokens, args.heads.divisor, group - args.groups, false, scratch);
}

template <class Config>
void launch_reshape_and_cache_with_pertoken_quant(const QuantArgs& args, KvLayout layout, bool is_wide, bool has_tiles,
                                                  Stream stream) {
  constexpr auto kColumns = KvLayout::kColumns, kShuffled = KvLayout::kShuffled;
  constexpr int kVector = Config::kVector;
  const bool is_columns = layout == kColumns;
  const dim3 grid(2 * args.groups);
  if constexpr (Config::kHasTiles) {
    const auto kernel = is_columns ? reshape_and_cache_with_pertoken_quant_tiles_kernel<Config, kColumns>
                                   : reshape_and_cache_with_pertoken_quant_tiles_kernel<Config, kShuffled>;
    if (has_tiles)
      return launch_named("reshape_and_cache_with_pertoken_quant_tiles_kernel", kernel, grid, Config::kThreads, stream,
                          args);
  }
  const auto wide = is_columns ? reshape_and_cache_with_pertoken_quant_kernel<Config, kVector, kColumns>
                               : reshape_and_cache_with_pertoken_quant_kernel<Config, kVector, kShuffled>;
  const auto narrow = is_columns ? reshape_and_cache_with_pertoken_quant_kernel<Config, 1, kColumns>
                                 : reshape_and_cache_with_pertoken_quant_kernel<Config, 1, kShuffled>;
  launch_named("reshape_and_cache_with_pertoken_quant_kernel", is_wide ? wide : narrow, grid, Config::kThreads, stream,
               args);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_reshape_and_cache_with_pertoken_quant<Config>(const QuantArgs&, KvLayout, bool, bool, Stream);

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
  match.built(cache.key_dim <= Config::kColumns && cache.value_dim <= Config::kColumns, "head_dims");
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
  const bool is_wide = ffi::takes_vectors(Config::kVector, key, value, key_cache);
  const bool has_tiles = Config::kHasTiles && is_wide && ffi::takes_vectors(kPack, key_cache);
  args.has_packs = ffi::takes_vectors(kPack, value_cache);
  constexpr uint32_t kTileTokens = Config::kTileTokens, kRows = Config::kRows;
  args.groups = static_cast<uint32_t>(has_tiles ? (tokens + kTileTokens - 1) / kTileTokens * cache.heads
                                                : (rows + kRows - 1) / kRows);
  launch_reshape_and_cache_with_pertoken_quant<Config>(args, layout, is_wide, has_tiles, ffi::stream_of(key));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(reshape_and_cache_with_pertoken_quant, aiter_like::reshape_and_cache_with_pertoken_quant);
#endif

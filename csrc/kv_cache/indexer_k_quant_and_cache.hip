// SPDX-License-Identifier: MIT
// Quantises groups of each token's key to fp8, a scale each, into the indexer's cache, whose blocks hold first the keys
// of all their tokens, then the scales: [page_size, head_dim] fp8, [page_size, head_dim / group] fp32. HIP (gfx9) and
// CUDA. One build per element type and number of lanes.
//
//   1. kLanes lanes hold a group: one load of 16 bytes each, the largest magnitude, the scale
//   2. quantise and store: in rows, or in the tiles of 16 tokens by 16 elements that matrix instructions read
// Slots outside the cache are skipped. LDS: 4 bytes per wave. Bound: memory, 3 bytes per element.
#include "kv_quant.h"

#if !defined(SOURCE) || !defined(LANES)
#error "indexer_k_quant_and_cache.hip: -DSOURCE=bf16|f16|float -DLANES=8…1024"
#endif

namespace aiter_like {

struct Config {
  using Source = SOURCE;
  static constexpr int kLanes = LANES, kVector = 16 / sizeof(Source);
};

struct IndexerArgs {
  QuantPlane plane;  // a head is a group
  SlotMapping slots;
  uint32_t tokens, groups;
  bool is_power_of_two;
};

template <class Config, int kVec, Pack kPack>
__global__ __launch_bounds__((RowLayout<Config::kLanes, 1, 1>::kThreads)) void
indexer_k_quant_and_cache_kernel(IndexerArgs args) {
  await_stream();
  using Layout = RowLayout<Config::kLanes, Config::kVector / kVec, kVec>;
  __shared__ RowScratch<Layout> scratch;
  write_quantised<Layout, typename Config::Source, fp8, kPack, true>(
      args.plane, args.slots, args.tokens, args.groups, workgroup_index().x, args.is_power_of_two, scratch);
}

template <class Config>
void launch_indexer_k_quant_and_cache(const IndexerArgs& args, bool is_tiled, bool is_wide, Stream stream) {
  using Layout = RowLayout<Config::kLanes, 1, 1>;
  constexpr int kVector = Config::kVector;
  const auto kernel = is_tiled ? is_wide ? indexer_k_quant_and_cache_kernel<Config, kVector, Pack::kTiles>
                                         : indexer_k_quant_and_cache_kernel<Config, 1, Pack::kTiles>
                      : is_wide ? indexer_k_quant_and_cache_kernel<Config, kVector, Pack::kNone>
                                : indexer_k_quant_and_cache_kernel<Config, 1, Pack::kNone>;
  launch_named("indexer_k_quant_and_cache_kernel", kernel, dim3(Layout::workgroups(args.tokens * args.groups)),
               Layout::kThreads, stream, args);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_indexer_k_quant_and_cache<Config>(const IndexerArgs&, bool, bool, Stream);

#if AITER_LIKE_HOST_PASS

void indexer_k_quant_and_cache(ffi::Tensor kv_cache, ffi::Tensor k, ffi::Tensor slot_mapping, int64_t quant_block_size,
                               ffi::String scale_fmt, bool preshuffle) {
  constexpr int kVector = Config::kVector;
  ffi::Match match("indexer_k_quant_and_cache");
  match.built(quant_block_size > 0 && quant_block_size <= LANES * kVector, "quant_block_sizes");
  ffi::Size rows{"num_tokens"}, dims{"head_dim"}, blocks{"num_blocks"}, page_size{"page_size"}, bytes{"bytes of a key"};
  ffi::Size tokens{"slots"};
  const auto keys = match.take<const SOURCE>(k, {rows, dims}, "k");
  const auto cache = match.take<ffi::Opaque<1>>(kv_cache, {blocks, page_size, bytes}, "kv_cache");
  const int64_t block = cache.strides[0], groups = dims / quant_block_size;
  auto* const data = reinterpret_cast<uint8_t*>(cache.data);
  IndexerArgs args{};
  args.slots = ffi::take_slots(match, slot_mapping, tokens, page_size, blocks * page_size);
  match.require(tokens <= rows && dims % quant_block_size == 0, "k must have a row of whole groups for each slot");
  match.require(cache.strides[1] == bytes && bytes >= dims + 4 * groups &&
                    ((reinterpret_cast<uintptr_t>(data) | block | page_size * dims) & 3) == 0,
                "kv_cache must have place for aligned scales, contiguous in its blocks");
  match.require(!preshuffle || (page_size % 16 == 0 && quant_block_size % 16 == 0),
                "preshuffle needs multiples of 16");
  match.require(tokens * groups * LANES < 1 << 30, "too much for one launch");
  if (tokens == 0 || dims == 0 || blocks == 0) return;
  args.plane.cache = {data, block, preshuffle ? 16 : int64_t{dims},
                      preshuffle ? 16 * quant_block_size : quant_block_size, 1, 16 * dims, 4};
  args.plane.scales = {data + page_size * dims, block / 4, groups, 1, 0, 0, 0};
  args.plane.source = keys.data, args.plane.source_token = keys.strides[0];
  args.plane.source_head = quant_block_size, args.plane.dims = quant_block_size;
  args.tokens = tokens, args.groups = groups;
  args.is_power_of_two = scale_fmt == "ue8m0";
  const bool is_wide = ffi::takes_vectors(kVector, k) && quant_block_size % kVector == 0 &&
                       (reinterpret_cast<uintptr_t>(data) | block | dims) % kVector == 0;
  launch_indexer_k_quant_and_cache<Config>(args, preshuffle, is_wide, ffi::stream_of(k));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(indexer_k_quant_and_cache, aiter_like::indexer_k_quant_and_cache);
#endif

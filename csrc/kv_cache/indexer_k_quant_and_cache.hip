// SPDX-License-Identifier: MIT
// Quantises groups of each token's key to fp8, a scale each, into the indexer's cache, whose blocks hold first the keys
// of all their tokens, then the scales: [page_size, head_dim] fp8, [page_size, head_dim / group] fp32. HIP (gfx9) and
// CUDA. One build per element type and number of lanes.
//
//   1. LANES lanes hold a group: one load of 16 bytes each, the largest magnitude, the scale
//   2. quantise and store: in rows, or in the tiles of 16 tokens by 16 elements that matrix instructions read
// Slots outside the cache are skipped. LDS: 4 bytes per wave. Bound: memory, 3 bytes per element.
#include "kv_quant.h"

#if !defined(SOURCE) || !defined(LANES)
#error "indexer_k_quant_and_cache.hip: -DSOURCE=bf16|f16|float -DLANES=8…1024"
#endif

namespace aiter_like {

constexpr int kVector = 16 / sizeof(SOURCE);

struct IndexerArgs {
  QuantPlane plane;  // a head is a group
  SlotMapping slots;
  uint32_t tokens, groups;
  bool is_power_of_two;
};

template <int kVec, Pack kPack>
__global__ __launch_bounds__((RowLayout<LANES, 1, 1>::kThreads)) void
indexer_k_quant_and_cache_kernel(IndexerArgs args) {
  await_stream();
  using Layout = RowLayout<LANES, kVector / kVec, kVec>;
  __shared__ RowScratch<Layout> scratch;
  write_quantised<Layout, SOURCE, fp8, kPack, true>(args.plane, args.slots, args.tokens, args.groups,
                                                    workgroup_index().x, args.is_power_of_two, scratch);
}

void launch_indexer_k_quant_and_cache(const IndexerArgs& args, bool is_tiled, bool is_wide, Stream stream) {
  using Layout = RowLayout<LANES, 1, 1>;
  const dim3 grid(Layout::workgroups(args.tokens * args.groups));
  if (is_tiled && is_wide)
    launch_overlapped(indexer_k_quant_and_cache_kernel<kVector, Pack::kTiles>, grid, Layout::kThreads, stream, args);
  else if (is_tiled)
    launch_overlapped(indexer_k_quant_and_cache_kernel<1, Pack::kTiles>, grid, Layout::kThreads, stream, args);
  else if (is_wide)
    launch_overlapped(indexer_k_quant_and_cache_kernel<kVector, Pack::kNone>, grid, Layout::kThreads, stream, args);
  else
    launch_overlapped(indexer_k_quant_and_cache_kernel<1, Pack::kNone>, grid, Layout::kThreads, stream, args);
  check_launch("indexer_k_quant_and_cache_kernel");
}

#if AITER_LIKE_HOST_PASS

void indexer_k_quant_and_cache(ffi::Tensor kv_cache, ffi::Tensor k, ffi::Tensor slot_mapping, int64_t quant_block_size,
                               ffi::String scale_fmt, bool preshuffle) {
  ffi::check_type(ffi::has_element<SOURCE>(k) && kv_cache.dtype().bits == 8,
                  "indexer_k_quant_and_cache: this module was built for other dtypes");
  const int64_t dims = k.size(1), tokens = slot_mapping.size(0), page_size = kv_cache.size(1);
  ffi::check_value(k.ndim() == 2 && kv_cache.ndim() == 3 && tokens <= k.size(0) && k.stride(1) == 1 &&
                       kv_cache.stride(2) == 1 && kv_cache.stride(1) == kv_cache.size(2),
                   "indexer_k_quant_and_cache: k must be [num_tokens, head_dim], kv_cache contiguous in its blocks");
  ffi::check_value(quant_block_size > 0 && dims % quant_block_size == 0 && quant_block_size <= LANES * kVector,
                   "indexer_k_quant_and_cache: this module was built for another quant_block_size");
  const int64_t groups = dims / quant_block_size;
  uint8_t* data = static_cast<uint8_t*>(kv_cache.data_ptr());
  ffi::check_value(kv_cache.size(2) >= dims + 4 * groups &&
                       ((reinterpret_cast<uintptr_t>(data) | kv_cache.stride(0) | page_size * dims) & 3) == 0,
                   "indexer_k_quant_and_cache: kv_cache must have place for aligned scales");
  ffi::check_value(!preshuffle || (page_size % 16 == 0 && quant_block_size % 16 == 0),
                   "indexer_k_quant_and_cache: preshuffle needs multiples of 16");
  ffi::check_value(tokens * groups * LANES < (int64_t{1} << 30), "indexer_k_quant_and_cache: too much for one launch");
  if (tokens == 0 || dims == 0 || kv_cache.size(0) == 0) return;

  const ffi::CacheShape shape{kv_cache.size(0), page_size, groups, dims, dims};
  IndexerArgs args{};
  args.plane.cache = {data, kv_cache.stride(0), preshuffle ? 16 : dims,
                      preshuffle ? 16 * quant_block_size : quant_block_size, 1, 16 * dims, 4};
  args.plane.scales = {data + page_size * dims, kv_cache.stride(0) / 4, groups, 1, 0, 0, 0};
  args.plane.source = k.data_ptr();
  args.plane.source_token = k.stride(0);
  args.plane.source_head = quant_block_size;
  args.plane.dims = static_cast<uint32_t>(quant_block_size);
  args.slots = ffi::slot_mapping(slot_mapping, shape);
  args.tokens = static_cast<uint32_t>(tokens);
  args.groups = static_cast<uint32_t>(groups);
  args.is_power_of_two = scale_fmt == "ue8m0";
  const bool is_wide = ffi::takes_vectors(k, kVector, sizeof(SOURCE)) && quant_block_size % kVector == 0 &&
                       (reinterpret_cast<uintptr_t>(data) | kv_cache.stride(0) | dims) % kVector == 0;
  launch_indexer_k_quant_and_cache(args, preshuffle, is_wide, ffi::stream_of(k));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(indexer_k_quant_and_cache, aiter_like::indexer_k_quant_and_cache);
#endif

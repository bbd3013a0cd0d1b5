// SPDX-License-Identifier: MIT
// Gathers the keys and scales of sequences from the indexer's cache (indexer_k_quant_and_cache.hip) into rows: token t
// belongs to the sequence b with cu_seq_lens[b] <= t < cu_seq_lens[b + 1]. HIP (gfx9) and CUDA.
//
//   1. a lane takes kWord bytes of a token's key, or one of its scales; it finds the sequence by bisection
//   2. copies them
// Tokens of no sequence and blocks outside the cache are skipped. No LDS. Bound: memory, each byte read and written
// once; the bisection's loads are the same for neighbouring lanes and stay in cache.
#include "aiter_like/dtype.h"
#include "aiter_like/ffi.h"

namespace aiter_like {

constexpr uint32_t kThreads = 256;

struct GatherArgs {
  const uint8_t* cache;
  uint8_t* keys;         // [tokens, head_dim]
  uint8_t* scales;       // [tokens, 4 · groups] bytes
  const int32_t* table;  // [sequences, columns]
  const int32_t* starts; // cu_seq_lens
  int64_t block_stride, key_stride, scale_stride, table_stride;  // bytes, bytes, bytes, elements
  int64_t blocks;
  uint32_t tokens, sequences, columns, page_size, head_dim, groups;
  bool is_tiled;
};

template <class Word>
__global__ __launch_bounds__(kThreads) void cp_gather_indexer_k_quant_cache_kernel(GatherArgs args) {
  await_stream();
  constexpr uint32_t kWord = sizeof(Word);
  const uint32_t words = args.head_dim / kWord, per_token = words + args.groups;
  const uint32_t index = workgroup_index().x * kThreads + thread_index();
  const uint32_t token = index / per_token, item = index - token * per_token;
  if (token >= args.tokens) return;

  uint32_t low = 0, high = args.sequences;  // starts[low] <= token < starts[high]
  if (static_cast<int64_t>(token) < args.starts[0] || static_cast<int64_t>(token) >= args.starts[high]) return;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (args.starts[middle] <= static_cast<int64_t>(token)) low = middle;
    else high = middle;
  }
  const uint32_t position = token - args.starts[low];
  const uint32_t column = position / args.page_size, offset = position - column * args.page_size;
  if (column >= args.columns) return;
  const int32_t block = args.table[low * args.table_stride + column];
  if (block < 0 || block >= args.blocks) return;
  const uint8_t* from = args.cache + block * args.block_stride;

  if (item >= words) {
    const uint32_t group = item - words;
    const int64_t at = int64_t{args.page_size} * args.head_dim + (int64_t{offset} * args.groups + group) * 4;
    *reinterpret_cast<uint32_t*>(args.scales + token * args.scale_stride + 4 * group) =
        *reinterpret_cast<const uint32_t*>(from + at);
    return;
  }
  const uint32_t dim = item * kWord;
  const int64_t at = args.is_tiled
                         ? int64_t{offset / 16} * 16 * args.head_dim + dim / 16 * 256 + offset % 16 * 16 + dim % 16
                         : int64_t{offset} * args.head_dim + dim;
  *reinterpret_cast<Word*>(args.keys + token * args.key_stride + dim) = *reinterpret_cast<const Word*>(from + at);
}

void launch_cp_gather_indexer_k_quant_cache(const GatherArgs& args, int word_bytes, Stream stream) {
  const uint32_t items = args.tokens * (args.head_dim / word_bytes + args.groups);
  const dim3 grid((items + kThreads - 1) / kThreads);
  if (word_bytes == 16)
    launch_overlapped(cp_gather_indexer_k_quant_cache_kernel<Vec<uint32_t, 4>>, grid, kThreads, stream, args);
  else if (word_bytes == 4)
    launch_overlapped(cp_gather_indexer_k_quant_cache_kernel<uint32_t>, grid, kThreads, stream, args);
  else
    launch_overlapped(cp_gather_indexer_k_quant_cache_kernel<uint8_t>, grid, kThreads, stream, args);
  check_launch("cp_gather_indexer_k_quant_cache_kernel");
}

#if AITER_LIKE_HOST_PASS

void cp_gather_indexer_k_quant_cache(ffi::Tensor dst_k, ffi::Tensor dst_scale, ffi::Tensor kv_cache,
                                     ffi::Tensor block_table, ffi::Tensor cu_seq_lens, bool preshuffle) {
  ffi::Match match("cp_gather_indexer_k_quant_cache");
  ffi::Size tokens{"tokens"}, dims{"head_dim"}, columns{"columns of scales"}, blocks{"num_blocks", ffi::kNoLimit};
  ffi::Size page_size{"page_size"}, bytes{"bytes of a key"}, sequences{"sequences"}, entries{"entries"};
  const auto keys = match.take<ffi::Opaque<1>>(dst_k, {tokens, dims}, "dst_k");
  const auto scales = match.take<void>(dst_scale, {tokens, columns}, "dst_scale");
  const auto cache = match.take<const ffi::Opaque<1>>(kv_cache, {blocks, page_size, bytes}, "kv_cache");
  const auto table = match.take<const int32_t>(block_table, {sequences, entries}, "block_table");
  const int64_t scale_bytes = dst_scale.dtype().bits / 8, groups = columns * scale_bytes / 4;
  GatherArgs args{};
  args.starts = match.take<const int32_t>(cu_seq_lens, {sequences + 1}, "cu_seq_lens");
  if (tokens == 0 || dims == 0 || blocks == 0 || sequences == 0) return;
  args.cache = reinterpret_cast<const uint8_t*>(cache.data), args.block_stride = cache.strides[0];
  args.keys = reinterpret_cast<uint8_t*>(keys.data), args.key_stride = keys.strides[0];
  args.scales = static_cast<uint8_t*>(scales.data), args.scale_stride = scales.strides[0] * scale_bytes;
  args.table = table, args.table_stride = table.strides[0];
  const auto address = [](const void* data) { return reinterpret_cast<uintptr_t>(data); };
  match.require(cache.strides[1] == bytes && bytes >= dims + 4 * groups &&
                    ((address(args.cache) | address(args.scales) | args.block_stride | args.scale_stride |
                      page_size * dims) & 3) == 0,
                "kv_cache must be contiguous in its blocks, and scales aligned to 4 bytes");
  match.require(!preshuffle || (page_size % 16 == 0 && dims % 16 == 0), "preshuffle needs multiples of 16");
  match.require(tokens * (dims + groups) < int64_t{1} << 31, "too much for one launch");
  args.blocks = blocks, args.tokens = tokens, args.sequences = sequences, args.columns = entries;
  args.page_size = page_size, args.head_dim = dims, args.groups = groups, args.is_tiled = preshuffle;
  const uintptr_t bits = address(args.cache) | address(args.keys) | args.block_stride | args.key_stride | dims;
  launch_cp_gather_indexer_k_quant_cache(args, bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1, ffi::stream_of(kv_cache));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(cp_gather_indexer_k_quant_cache, aiter_like::cp_gather_indexer_k_quant_cache);
#endif

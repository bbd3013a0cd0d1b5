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
  ffi::check_type(dst_k.dtype().bits == 8 && kv_cache.dtype().bits == 8 && ffi::has_element<int32_t>(block_table) &&
                      ffi::has_element<int32_t>(cu_seq_lens),
                  "cp_gather_indexer_k_quant_cache: keys of 1 byte, block_table and cu_seq_lens of int32 are needed");
  ffi::check_value(dst_k.ndim() == 2 && dst_scale.ndim() == 2 && kv_cache.ndim() == 3 && block_table.ndim() == 2 &&
                       cu_seq_lens.ndim() == 1 && cu_seq_lens.size(0) == block_table.size(0) + 1 &&
                       dst_scale.size(0) == dst_k.size(0) && kv_cache.stride(2) == 1 &&
                       kv_cache.stride(1) == kv_cache.size(2),
                   "cp_gather_indexer_k_quant_cache: shapes do not fit");
  const int64_t bytes = dst_scale.dtype().bits / 8, tokens = dst_k.size(0), dims = dst_k.size(1);
  const int64_t groups = dst_scale.size(1) * bytes / 4, page_size = kv_cache.size(1);
  if (tokens == 0 || dims == 0 || kv_cache.size(0) == 0 || block_table.size(0) == 0) return;
  GatherArgs args{};
  args.cache = static_cast<const uint8_t*>(kv_cache.data_ptr());
  args.keys = static_cast<uint8_t*>(dst_k.data_ptr());
  args.scales = static_cast<uint8_t*>(dst_scale.data_ptr());
  args.table = static_cast<const int32_t*>(block_table.data_ptr());
  args.starts = static_cast<const int32_t*>(cu_seq_lens.data_ptr());
  args.block_stride = kv_cache.stride(0);
  args.key_stride = dst_k.stride(0);
  args.scale_stride = dst_scale.stride(0) * bytes;
  args.table_stride = block_table.stride(0);
  const auto address = [](const void* data) { return reinterpret_cast<uintptr_t>(data); };
  ffi::check_value(kv_cache.size(2) >= dims + 4 * groups &&
                       ((address(args.cache) | address(args.scales) | args.block_stride | args.scale_stride |
                         page_size * dims) & 3) == 0,
                   "cp_gather_indexer_k_quant_cache: scales must be aligned to 4 bytes");
  ffi::check_value(!preshuffle || (page_size % 16 == 0 && dims % 16 == 0),
                   "cp_gather_indexer_k_quant_cache: preshuffle needs multiples of 16");
  ffi::check_value(tokens * (dims + groups) < (int64_t{1} << 31),
                   "cp_gather_indexer_k_quant_cache: too much for one launch");
  args.blocks = kv_cache.size(0);
  args.tokens = static_cast<uint32_t>(tokens);
  args.sequences = static_cast<uint32_t>(block_table.size(0));
  args.columns = static_cast<uint32_t>(block_table.size(1));
  args.page_size = static_cast<uint32_t>(page_size);
  args.head_dim = static_cast<uint32_t>(dims);
  args.groups = static_cast<uint32_t>(groups);
  args.is_tiled = preshuffle;
  const uintptr_t bits = address(args.cache) | address(args.keys) | args.block_stride | args.key_stride | dims;
  launch_cp_gather_indexer_k_quant_cache(args, bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1, ffi::stream_of(kv_cache));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(cp_gather_indexer_k_quant_cache, aiter_like::cp_gather_indexer_k_quant_cache);
#endif

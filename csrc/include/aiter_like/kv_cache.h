// SPDX-License-Identifier: MIT
// Paged KV caches: slot → block and offset → address, in every layout that the attention kernels read. B blocks of bs
// tokens, H heads of D elements, x elements in 16 bytes:
//   kRows    K and V [B, bs, H, D] with any strides: NHD, HND transposed, K and V packed into one [B, H, bs, 2D]
//   kColumns K [B, H, D/x, bs, x], V [B, H, D, bs]
//   kShuffled K as before, V [B, H, bs/x, D, x]
#pragma once

#include "aiter_like/ffi.h"
#include "aiter_like/gpu.h"
#include "aiter_like/math.h"

namespace aiter_like {

enum class KvLayout : int { kRows, kColumns, kShuffled };

/// Things that are stored in groups of 2^pack_log2: nothing, a head's elements (K of the packed layouts), tokens, or
/// both, in tiles (the indexer's keys).
enum class Pack : int { kNone, kDims, kTokens, kTiles };

/// The K or the V of a cache. Strides in elements; `pack` leads from group to group, of tokens where both are grouped.
struct CachePlane {
  void* data;
  int64_t block, token, head, dim, pack;
  uint32_t pack_log2;
};

struct CachePlace {
  uint32_t block, offset;
};

/// The slot of each token. A slot below 0 or beyond the cache's last is nowhere: its token is not written.
struct SlotMapping {
  const void* slots;  // int64_t or int32_t
  bool is_wide;
  Divider page_size;
  uint32_t num_slots;

  static constexpr uint32_t kNowhere = ~0u;

  /// The token's slot, or kNowhere.
  __device__ uint32_t number(uint32_t token) const {
    const int64_t slot =
        is_wide ? static_cast<const int64_t*>(slots)[token] : int64_t{static_cast<const int32_t*>(slots)[token]};
    return slot < 0 || slot >= int64_t{num_slots} ? kNowhere : static_cast<uint32_t>(slot);
  }
  __device__ CachePlace place(uint32_t slot) const {
    const uint32_t block = page_size.divide(slot);
    return {block, slot - block * page_size.divisor};
  }
  __device__ bool find(uint32_t token, CachePlace& place) const {
    const uint32_t slot = number(token);
    if (slot == kNowhere) return false;
    place = this->place(slot);
    return true;
  }
};

/// Elements from the plane's first to element `dim` of `head` at a place.
template <Pack kPack>
__device__ inline int64_t plane_offset(const CachePlane& plane, CachePlace place, uint32_t head, uint32_t dim) {
  const int64_t start = int64_t{place.block} * plane.block + int64_t{head} * plane.head;
  const uint32_t mask = (1u << plane.pack_log2) - 1;
  if constexpr (kPack == Pack::kDims)
    return start + int64_t{place.offset} * plane.token + int64_t{dim >> plane.pack_log2} * plane.pack +
           int64_t{dim & mask} * plane.dim;
  if constexpr (kPack == Pack::kTiles)  // the tiles of 2^pack_log2 tokens follow one another
    return start + int64_t{place.offset >> plane.pack_log2} * plane.pack +
           int64_t{(place.offset & mask) + (dim & ~mask)} * plane.token + int64_t{dim & mask} * plane.dim;
  if constexpr (kPack == Pack::kTokens)
    return start + int64_t{place.offset >> plane.pack_log2} * plane.pack +
           int64_t{place.offset & mask} * plane.token + int64_t{dim} * plane.dim;
  return start + int64_t{place.offset} * plane.token + int64_t{dim} * plane.dim;
}

template <KvLayout kLayout>
constexpr Pack kKeyPack = kLayout == KvLayout::kRows ? Pack::kNone : Pack::kDims;
template <KvLayout kLayout>
constexpr Pack kValuePack = kLayout == KvLayout::kShuffled ? Pack::kTokens : Pack::kNone;

#if AITER_LIKE_HOST_PASS

namespace ffi {

inline KvLayout layout_of(const Match& match, const String& name) {
  match.require(name == "rows" || name == "mla" || name == "columns" || name == "shuffled",
                "layout must be rows, mla, columns or shuffled");
  return name == "columns" ? KvLayout::kColumns : name == "shuffled" ? KvLayout::kShuffled : KvLayout::kRows;
}

/// A cache at the boundary: its planes, and their sizes.
struct Cache {
  CachePlane key, value;
  Size blocks{"num_blocks"}, page_size{"page_size"}, heads{"num_heads"}, key_dim{"head_dim"}, value_dim{"head_dim_v"};
  int64_t slots;
};

inline uint32_t log2_of(const Match& match, int64_t size) {
  uint32_t result = 0;
  while ((int64_t{1} << result) < size) ++result;
  match.require((int64_t{1} << result) == size, "the innermost dimension of a packed cache must be a power of two");
  return result;
}

/// Takes the cache, whose elements are T.
template <class T>
Cache take_cache(Match& match, const Tensor& key, const Tensor& value, KvLayout layout) {
  Cache cache;
  auto& [k, v, blocks, page_size, heads, key_dim, value_dim, slots] = cache;
  if (layout == KvLayout::kRows) {
    const auto rows = match.take<T>(key, {blocks, page_size, heads, key_dim}, "key_cache", kStrided);
    const auto others = match.take<T>(value, {blocks, page_size, heads, value_dim}, "value_cache", kStrided);
    k = {rows.data, rows.strides[0], rows.strides[1], rows.strides[2], rows.strides[3], 0, 0};
    v = {others.data, others.strides[0], others.strides[1], others.strides[2], others.strides[3], 0, 0};
  } else {
    Size parts{"parts of a head"}, pack{"elements of a part"};
    Size tokens{"parts of a page"}, tokens_pack{"tokens of a part"};
    const auto dims = match.take<T>(key, {blocks, heads, parts, page_size, pack}, "key_cache", kStrided);
    key_dim.value = parts * pack;
    k = {dims.data, dims.strides[0], dims.strides[3], dims.strides[1], dims.strides[4], dims.strides[2],
         log2_of(match, pack)};
    if (layout == KvLayout::kColumns) {
      const auto columns = match.take<T>(value, {blocks, heads, value_dim, page_size}, "value_cache", kStrided);
      v = {columns.data, columns.strides[0], columns.strides[3], columns.strides[1], columns.strides[2], 0, 0};
    } else {
      const auto packs = match.take<T>(value, {blocks, heads, tokens, value_dim, tokens_pack}, "value_cache", kStrided);
      match.require(tokens * tokens_pack == page_size, "value_cache", "must have the tokens of key_cache");
      v = {packs.data, packs.strides[0], packs.strides[4], packs.strides[1], packs.strides[3], packs.strides[2],
           log2_of(match, tokens_pack)};
    }
  }
  slots = blocks * page_size;
  match.require(page_size > 0 && slots < int64_t{1} << 31, "a cache holds at least 1 and less than 2^31 slots");
  return cache;
}

/// The slots of `tokens` tokens.
inline SlotMapping take_slots(Match& match, const Tensor& mapping, Size& tokens, int64_t page_size, int64_t slots) {
  const bool is_wide = match.one_of<int32_t, int64_t>(mapping, "slot_mapping") == 1;
  return {match.take<const void>(mapping, {tokens}, "slot_mapping"), is_wide, Divider(page_size),
          static_cast<uint32_t>(slots)};
}

}  // namespace ffi

#endif

}  // namespace aiter_like

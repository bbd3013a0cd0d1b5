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

/// What is stored in groups of 2^pack_log2: nothing, a head's elements (K of the packed layouts), tokens, or both, in
/// tiles (the indexer's keys).
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

struct CacheShape {
  int64_t blocks, page_size, heads, key_dim, value_dim;
};

inline KvLayout layout_of(const String& name) {
  check_value(name == "rows" || name == "mla" || name == "columns" || name == "shuffled",
              "layout must be rows, mla, columns or shuffled");
  return name == "columns" ? KvLayout::kColumns : name == "shuffled" ? KvLayout::kShuffled : KvLayout::kRows;
}

/// Shape of a cache.
/// Throws ValueError when K and V do not fit each other or the layout.
inline CacheShape cache_shape(const Tensor& key, const Tensor& value, KvLayout layout) {
  CacheShape shape{};
  const bool is_rows = layout == KvLayout::kRows;
  check_value(key.ndim() == (is_rows ? 4 : 5) && value.ndim() == (layout == KvLayout::kShuffled ? 5 : 4),
              "key_cache and value_cache must have the dimensions of the layout");
  shape.blocks = key.size(0);
  shape.page_size = key.size(is_rows ? 1 : 3);
  shape.heads = key.size(is_rows ? 2 : 1);
  shape.key_dim = is_rows ? key.size(3) : key.size(2) * key.size(4);
  int64_t page_size, heads;
  if (is_rows) {
    page_size = value.size(1), heads = value.size(2), shape.value_dim = value.size(3);
  } else {
    heads = value.size(1);
    shape.value_dim = value.size(value.ndim() == 4 ? 2 : 3);
    page_size = value.ndim() == 4 ? value.size(3) : value.size(2) * value.size(4);
  }
  check_value(value.size(0) == shape.blocks && page_size == shape.page_size && heads == shape.heads,
              "key_cache and value_cache must have the same blocks, tokens per block and heads");
  check_value(shape.page_size > 0 && shape.blocks * shape.page_size < (int64_t{1} << 31),
              "a cache holds at least 1 and less than 2^31 slots");
  return shape;
}

inline uint32_t log2_of(int64_t size) {
  uint32_t result = 0;
  while ((int64_t{1} << result) < size) ++result;
  check_value((int64_t{1} << result) == size, "the innermost dimension of a packed cache must be a power of two");
  return result;
}

inline CachePlane key_plane(const Tensor& cache) {
  if (cache.ndim() == 4)
    return {cache.data_ptr(), cache.stride(0), cache.stride(1), cache.stride(2), cache.stride(3), 0, 0};
  return {cache.data_ptr(), cache.stride(0), cache.stride(3), cache.stride(1), cache.stride(4), cache.stride(2),
          log2_of(cache.size(4))};
}

inline CachePlane value_plane(const Tensor& cache, KvLayout layout) {
  if (layout == KvLayout::kRows) return key_plane(cache);
  if (layout == KvLayout::kColumns)
    return {cache.data_ptr(), cache.stride(0), cache.stride(3), cache.stride(1), cache.stride(2), 0, 0};
  return {cache.data_ptr(), cache.stride(0), cache.stride(4), cache.stride(1), cache.stride(3), cache.stride(2),
          log2_of(cache.size(4))};
}

/// Whether `count` neighbours of the last dimension can be moved at once wherever a multiple of `count` begins.
inline bool takes_vectors(const Tensor& tensor, int64_t count, int64_t element_bytes) {
  const int last = tensor.ndim() - 1;
  const int64_t bytes = count * element_bytes < 16 ? count * element_bytes : 16;
  if (tensor.size(last) % count || tensor.stride(last) != 1) return false;
  uintptr_t bits = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  for (int d = 0; d < last; ++d)
    if (tensor.size(d) > 1) bits |= static_cast<uintptr_t>(tensor.stride(d) * element_bytes);
  return bits % bytes == 0;
}

/// The slots of `tokens` tokens.
inline SlotMapping slot_mapping(const Tensor& slots, const CacheShape& shape) {
  check_type(has_element<int64_t>(slots) || has_element<int32_t>(slots), "slot_mapping must be int64 or int32");
  check_value(slots.ndim() == 1 && (slots.size(0) < 2 || slots.stride(0) == 1), "slot_mapping must be contiguous");
  return {slots.data_ptr(), has_element<int64_t>(slots), Divider(static_cast<uint32_t>(shape.page_size)),
          static_cast<uint32_t>(shape.blocks * shape.page_size)};
}

}  // namespace ffi

#endif

}  // namespace aiter_like

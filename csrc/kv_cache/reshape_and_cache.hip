// SPDX-License-Identifier: MIT
// Writes each token's K and V into its slot of a paged cache (kv_cache.h): copied, or to fp8 as value · (1 / scale).
// HIP (gfx9) and CUDA. One build per pair of element types; layouts and vector widths are kernels of the same module.
//
//   1. a lane takes kVec neighbouring elements of a token's head: one slot, one load (CUDA: two from 16 bit to fp8)
//   2. converts them, and stores them: 16 bytes at once where the layout keeps them together
// In the packed layouts neighbouring lanes take neighbouring tokens, whose stores then share cache lines. V, which
// keeps tokens together there, goes through LDS in tiles of 64 tokens by 8 vectors:
//   1. as above, two vectors a lane; meanwhile a wave looks which tokens have consecutive slots (kv_tile.h)
//   2. the vectors go to LDS; single tokens are stored element by element
//   3. a lane takes one element of each token of a pack, and stores them: 16 bytes at once
//
// The first workgroups write K, the others V; V's tiles come before K. Slots outside the cache are skipped.
// LDS: 8.4 KiB in the packed layouts.
// Bound: memory. A token moves 2 · heads · (head_dim + value_dim) elements and does at most a multiplication each.
#include "aiter_like/dtype.h"
#include "aiter_like/kv_tile.h"
#include "aiter_like/preload.h"

#if !defined(SOURCE) || !defined(CACHE)
#error "reshape_and_cache.hip: -DSOURCE=bf16|f16|float -DCACHE=fp8, or both uint8_t|uint16_t|uint32_t for a copy"
#endif

namespace aiter_like {

struct Config {
  using Source = SOURCE;
  using Cache = CACHE;
  static constexpr bool kIsCopy = __is_same(Source, Cache);
  static constexpr int kVector = 16 / sizeof(Cache);
  // Of a lane outside of tiles. On gfx942 one load each: of two, a lane would wait twice as long, and half as many
  // waves would have loads in flight.
#if defined(__HIP__)
  static constexpr int kAccess = 16 / (sizeof(Source) > sizeof(Cache) ? sizeof(Source) : sizeof(Cache));
#else
  static constexpr int kAccess = kVector;
#endif
};

constexpr uint32_t kThreads = 256;
constexpr uint32_t kTokenGroup = 16;  // tokens of neighbouring lanes: with 16-bit elements a 32-byte sector
constexpr uint32_t kTileTokens = 64, kTileVectors = 8;  // a token's part of a tile is a cache line of 128 bytes

struct PlaneArgs {
  CachePlane cache;
  const void* source;           // [tokens, heads, dims]
  int64_t source_token, source_head;  // elements
  const float* scale;           // one, or null for 1
  uint32_t groups;              // workgroups that write this plane
  Divider vectors, per_token;   // of a head, of a token
  Divider strips;               // of a tile of tokens
  bool has_packs;               // tokens of a pack (kv_tile.h) are 16 aligned bytes of the cache
};

#if defined(__HIP__)
/// What a lane needs before its first loads where it copies rows, in as many words as can be preloaded, if K and V are
/// alike: as many vectors of a token, its heads side by side, strides of 32 bits. If not, it waits for the rest of the
/// arguments first. Modelled: 64 tokens of 8 heads 1.00 us instead of 1.53, 8192 tokens 15.9 instead of 16.2; where a
/// scale is loaded as well, 1.64 instead of 1.74 and 14.7 instead of 13.7.
struct FirstRows {
  const void *sources[2], *slots;
  uint32_t key_groups, tokens, divisor, factor, source_tokens[2];
  int16_t shift;
  bool are_alike, is_wide;

  __device__ Divider per_token() const {
    Divider result;
    result.divisor = divisor, result.factor = factor, result.shift = shift;
    return result;
  }
};
static_assert(sizeof(FirstRows) <= kPreloadedWords * sizeof(Word));
#endif

struct ReshapeArgs {
#if defined(__HIP__)
  FirstRows first;
  static constexpr Preload preload() {
    constexpr size_t kWord = sizeof(Word);
    return {0 * kWord, 1 * kWord, 2 * kWord, 3 * kWord, 4 * kWord, 5 * kWord, 6 * kWord};
  }
#endif
  PlaneArgs planes[2];  // K, V
  SlotMapping slots;
  uint32_t tokens;
};

/// Found where it is asked for: later, when the slots are known, a lane would wait for memory once more.
template <class Config>
__device__ inline float inverse_scale(const PlaneArgs& plane) {
  if constexpr (Config::kIsCopy) return 1.f;
  return bits_float(opaque(float_bits(plane.scale ? 1.f / *plane.scale : 1.f)));
}

template <class Config, int kVec>
__device__ inline Vec<typename Config::Cache, kVec> converted(const Vec<typename Config::Source, kVec>& in,
                                                              [[maybe_unused]] float inverse) {
  if constexpr (Config::kIsCopy) {
    return in;
  } else {
    float y[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) y[e] = to_float(in[e]) * inverse;
    return vec_from_float<typename Config::Cache>(y);
  }
}

template <class Config, int kVec, Pack kPack, bool kTokensFirst>
__device__ inline void write_plane(const PlaneArgs& plane, const ReshapeArgs& args, uint32_t index) {
  using Source = typename Config::Source;
  using Cache = typename Config::Cache;
  const uint32_t column = kTokensFirst ? index / kTokenGroup : index, group = plane.per_token.divide(column);
  const uint32_t token = kTokensFirst ? group * kTokenGroup + index % kTokenGroup : group;
  if (token >= args.tokens) return;
  const uint32_t rest = column - group * plane.per_token.divisor, head = plane.vectors.divide(rest);
  const uint32_t dim = (rest - head * plane.vectors.divisor) * kVec;
  const auto in = load_vec<kVec>(static_cast<const Source*>(plane.source) + token * plane.source_token +
                                 head * plane.source_head + dim);
  const uint32_t slot = args.slots.number(token);
  const float inverse = inverse_scale<Config>(plane);
  if (slot == SlotMapping::kNowhere) return;
  const CachePlace place = args.slots.place(slot);
  Cache* to = static_cast<Cache*>(plane.cache.data) + plane_offset<kPack>(plane.cache, place, head, dim);
  const Vec<Cache, kVec> out = converted<Config, kVec>(in, inverse);
  if constexpr (kVec == Config::kVector) store_whole(to, out);
  else store_vec<kVec>(to, out);
}

#if defined(__HIP__)
/// As write_plane, of rows that are copied: both planes by one code, since the compiler would merge two and store in
/// pieces.
template <class Config, int kVec>
__device__ inline void copy_row(const ReshapeArgs& args, bool is_value, uint32_t index) {
  using Source = typename Config::Source;
  using Cache = typename Config::Cache;
  // The plane comes from memory: of arguments with preloaded words it would be selected in scratch.
  PlaneArgs plane;
  const auto* in_memory = argument_in_memory<char>(offsetof(ReshapeArgs, planes) + is_value * sizeof(PlaneArgs));
  __builtin_memcpy(&plane, (const char*)in_memory, sizeof(plane));
  const FirstRows& first = args.first;
  uint32_t token, rest;
  const Source* from;
  if (first.are_alike) {
    token = first.per_token().divide(index), rest = index - token * first.divisor;
    from = static_cast<const Source*>(is_value ? first.sources[1] : first.sources[0]) +
           uint64_t{token} * (is_value ? first.source_tokens[1] : first.source_tokens[0]) + rest * kVec;
  } else {
    token = plane.per_token.divide(index), rest = index - token * plane.per_token.divisor;
    const uint32_t head = plane.vectors.divide(rest);
    from = static_cast<const Source*>(plane.source) + token * plane.source_token + head * plane.source_head +
           (rest - head * plane.vectors.divisor) * kVec;
  }
  if (token >= first.tokens) return;
  const auto in = load_vec<kVec>(global(from));
  const auto* words = global(static_cast<const int32_t*>(first.slots)) + (uint64_t{token} << first.is_wide);
  const auto low = static_cast<uint32_t>(words[0]), high = static_cast<uint32_t>(words[first.is_wide]);
  const CachePlane& cache = plane.cache;
  const Divider& page = args.slots.page_size;
  await_arguments(cache.data, cache.block, cache.token, cache.head, cache.dim, plane.vectors.divisor,
                  plane.vectors.factor, plane.vectors.shift, page.divisor, page.factor, page.shift,
                  args.slots.num_slots);
  const uint32_t head = plane.vectors.divide(rest), dim = (rest - head * plane.vectors.divisor) * kVec;
  // The upper half is looked at for each slot: its load would else be made where it counts, and be waited for there.
  const uint32_t beyond = opaque(high);
  if (low >= args.slots.num_slots || (first.is_wide && beyond != 0)) return;
  Cache* to = static_cast<Cache*>(cache.data) + plane_offset<Pack::kNone>(cache, args.slots.place(low), head, dim);
  const Vec<Cache, kVec> out = converted<Config, kVec>(in, 1.f);
  if constexpr (kVec == Config::kVector) store_whole(to, out);
  else store_vec<kVec>(to, out);
}
#endif

template <class Config>
struct Tile {
  TilePacks<kTileTokens, Config::kVector> packs;
  TileRows<typename Config::Cache, kTileTokens, kTileVectors * Config::kVector> rows;
};

/// One strip of kTileVectors vectors of kTileTokens tokens' values.
template <class Config, Pack kPack>
__device__ inline void write_tile(const PlaneArgs& plane, const ReshapeArgs& args, uint32_t index, Tile<Config>& tile) {
  using Source = typename Config::Source;
  using Cache = typename Config::Cache;
  constexpr int kVector = Config::kVector;
  constexpr uint32_t kPerLane = kTileTokens * kTileVectors / kThreads;
  const uint32_t vectors = plane.vectors.divisor, per_token = plane.per_token.divisor;
  const uint32_t row_of_tiles = plane.strips.divide(index), first = row_of_tiles * kTileTokens;
  const uint32_t strip = (index - row_of_tiles * plane.strips.divisor) * kTileVectors;
  Cache* cache = static_cast<Cache*>(plane.cache.data);

  const uint32_t lane_row = thread_index() / kTileVectors, lane_vector = thread_index() % kTileVectors;
  const uint32_t lane_head = plane.vectors.divide(strip + lane_vector);
  const uint32_t lane_dim = (strip + lane_vector - lane_head * vectors) * kVector;
  Vec<Source, kVector> in[kPerLane];
#pragma unroll
  for (uint32_t i = 0; i < kPerLane; ++i) {
    const uint32_t token = first + lane_row + i * (kThreads / kTileVectors);
    if (token < args.tokens && strip + lane_vector < per_token)
      in[i] = load_vec<kVector>(static_cast<const Source*>(plane.source) + token * plane.source_token +
                                lane_head * plane.source_head + lane_dim);
  }
  tile.packs.sort(args.slots, first, args.tokens, plane.has_packs);
  const float inverse = inverse_scale<Config>(plane);
  workgroup_barrier();

#pragma unroll
  for (uint32_t i = 0; i < kPerLane; ++i) {
    const uint32_t row = lane_row + i * (kThreads / kTileVectors), slot = tile.packs.single[row];
    if (first + row >= args.tokens || strip + lane_vector >= per_token) continue;
    const Vec<Cache, kVector> out = converted<Config, kVector>(in[i], inverse);
    if (slot == SlotMapping::kNowhere) {
      tile.rows.data[row][lane_vector] = out;
    } else {
      Cache* to = cache + plane_offset<kPack>(plane.cache, args.slots.place(slot), lane_head, lane_dim);
#pragma unroll
      for (int e = 0; e < kVector; ++e) to[e * plane.cache.dim] = out[e];
    }
  }
  workgroup_barrier();

#pragma unroll
  for (uint32_t i = 0; i < kPerLane; ++i) {
    const TileItem<kPack, kTileVectors * kVector> item(i * kThreads + thread_index());
    const uint32_t column = strip + item.column / kVector, slot = tile.packs.pack_slot[item.pack];
    if (slot == SlotMapping::kNowhere || column >= per_token) continue;
    const uint32_t head = plane.vectors.divide(column);
    const uint32_t dim = (column - head * vectors) * kVector + item.column % kVector;
    store_whole(cache + plane_offset<kPack>(plane.cache, args.slots.place(slot), head, dim),
                tile.rows.column(tile.packs.pack_row[item.pack], item.column));
  }
}

template <class Config, int kVec, KvLayout kLayout>
__global__ __launch_bounds__(kThreads, Config::kIsCopy ? 8 : 4) void reshape_and_cache_kernel(
    AITER_LIKE_PRELOADED(ReshapeArgs)) {
  constexpr int kRowVec = kVec == 1 ? 1 : Config::kAccess;
  await_stream();
#if defined(__HIP__)
  if constexpr (kLayout == KvLayout::kRows && Config::kIsCopy) {  // a conversion waits for its scale in any case
    take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
    const bool is_value = workgroup_index().x >= args.first.key_groups;
    const uint32_t group = workgroup_index().x - (is_value ? args.first.key_groups : 0);
    return copy_row<Config, kRowVec>(args, is_value, group * kThreads + thread_index());
  }
  fetch_arguments<ReshapeArgs>();
#endif
  constexpr bool kHasTiles = kLayout != KvLayout::kRows && kVec > 1;  // which take longest, and so begin first
  const uint32_t before = args.planes[kHasTiles].groups;
  const bool is_value = (workgroup_index().x >= before) != kHasTiles;
  const uint32_t group = workgroup_index().x - (is_value != kHasTiles ? before : 0);
  if constexpr (kLayout == KvLayout::kRows) {  // one code for both: two, merged by the compiler, store in pieces
    write_plane<Config, kRowVec, Pack::kNone, false>(args.planes[is_value], args, group * kThreads + thread_index());
  } else if (!is_value) {
    write_plane<Config, kRowVec, kKeyPack<kLayout>, true>(args.planes[0], args, group * kThreads + thread_index());
  } else if constexpr (kVec == 1) {
    write_plane<Config, kVec, kValuePack<kLayout>, true>(args.planes[1], args, group * kThreads + thread_index());
  } else {
    __shared__ Tile<Config> tile;
    write_tile<Config, kValuePack<kLayout>>(args.planes[1], args, group, tile);
  }
}

template <class Config, int kVec>
void launch_reshape_and_cache(const ReshapeArgs& args, KvLayout layout, Stream stream) {
  const dim3 grid(args.planes[0].groups + args.planes[1].groups);
  const auto kernel = layout == KvLayout::kShuffled ? reshape_and_cache_kernel<Config, kVec, KvLayout::kShuffled>
                      : layout == KvLayout::kRows   ? reshape_and_cache_kernel<Config, kVec, KvLayout::kRows>
                                                    : reshape_and_cache_kernel<Config, kVec, KvLayout::kColumns>;
  launch_named("reshape_and_cache_kernel", kernel, grid, kThreads, stream, args);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_reshape_and_cache<Config, Config::kVector>(const ReshapeArgs&, KvLayout, Stream);
template void launch_reshape_and_cache<Config, 1>(const ReshapeArgs&, KvLayout, Stream);

#if AITER_LIKE_HOST_PASS

PlaneArgs plane_args(ffi::Match& match, ffi::Cache& cache, const CachePlane& plane, int64_t dim,
                     const ffi::Tensor& source, const ffi::OptionalTensor& scale, int64_t tokens, uint32_t token_group,
                     int vec, const char* name) {
  using Element = const ffi::Opaque<sizeof(SOURCE)>;
  const auto rows = match.take<Element>(source, {ffi::at_least(tokens), cache.heads, dim}, name);
  PlaneArgs args{plane, rows.data, rows.strides[0], rows.strides[1], match.elements<const float>(scale, 1, "scale")};
  const int64_t vectors = dim / vec, per_token = cache.heads * vectors;
  args.vectors = Divider(vectors > 0 ? vectors : 1), args.per_token = Divider(per_token > 0 ? per_token : 1);
  const int64_t items = (tokens + token_group - 1) / token_group * token_group * per_token;
  match.require(items < int64_t{1} << 31, "less than 2^31 accesses fit one launch");
  args.groups = static_cast<uint32_t>((items + kThreads - 1) / kThreads);
  return args;
}

#if defined(__HIP__)
FirstRows first_rows(const ReshapeArgs& args, const ffi::Tensor& key, const ffi::Tensor& value) {
  const PlaneArgs &k = args.planes[0], &v = args.planes[1];
  const auto fits = [](const PlaneArgs& plane, const ffi::Tensor& source) {
    return (source.size(1) < 2 || plane.source_head == source.size(2)) && plane.source_token < int64_t{1} << 32;
  };
  FirstRows first{{k.source, v.source}, args.slots.slots, k.groups, args.tokens, k.per_token.divisor,
                  k.per_token.factor, {static_cast<uint32_t>(k.source_token), static_cast<uint32_t>(v.source_token)}};
  first.shift = static_cast<int16_t>(k.per_token.shift);
  first.are_alike = k.per_token.divisor == v.per_token.divisor && fits(k, key) && fits(v, value);
  first.is_wide = args.slots.is_wide;
  return first;
}
#endif

void reshape_and_cache(ffi::Tensor key_cache, ffi::Tensor value_cache, ffi::Tensor key, ffi::Tensor value,
                       ffi::Tensor slot_mapping, ffi::String kv_cache_dtype, ffi::OptionalTensor k_scale,
                       ffi::OptionalTensor v_scale, ffi::String layout_name) {
  constexpr int kVector = Config::kVector;
  ffi::Match match("reshape_and_cache");
  match.built((kv_cache_dtype == "auto") == Config::kIsCopy, "kv_cache_dtypes");
  const KvLayout layout = ffi::layout_of(match, layout_name);
  auto cache = ffi::take_cache<ffi::Opaque<sizeof(CACHE)>>(match, key_cache, value_cache, layout);
  ffi::Size tokens{"num_tokens"};
  ReshapeArgs args{};
  args.slots = ffi::take_slots(match, slot_mapping, tokens, cache.page_size, cache.slots);
  const bool is_rows = layout == KvLayout::kRows;
  const bool is_wide = ffi::takes_vectors(kVector, key, value, key_cache) &&
                       (!is_rows || ffi::takes_vectors(kVector, value_cache));
  const int vec = is_wide ? Config::kAccess : 1, value_vec = is_rows ? vec : is_wide ? kVector : 1;
  const uint32_t token_group = is_rows ? 1 : kTokenGroup;
  args.planes[0] = plane_args(match, cache, cache.key, cache.key_dim, key, k_scale, tokens, token_group, vec, "key");
  args.planes[1] = plane_args(match, cache, cache.value, cache.value_dim, value, v_scale, tokens, token_group,
                              value_vec, "value");
  PlaneArgs& values = args.planes[1];
  if (!is_rows && is_wide && values.groups > 0) {
    values.strips = Divider((values.per_token.divisor + kTileVectors - 1) / kTileVectors);
    values.groups = static_cast<uint32_t>((tokens + kTileTokens - 1) / kTileTokens) * values.strips.divisor;
    values.has_packs = ffi::takes_vectors(kVector, value_cache);
  }
  args.tokens = tokens;
#if defined(__HIP__)
  args.first = first_rows(args, key, value);
#endif
  if (args.planes[0].groups + args.planes[1].groups == 0) return;
  if (is_wide) launch_reshape_and_cache<Config, kVector>(args, layout, ffi::stream_of(key));
  else launch_reshape_and_cache<Config, 1>(args, layout, ffi::stream_of(key));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(reshape_and_cache, aiter_like::reshape_and_cache);
#endif

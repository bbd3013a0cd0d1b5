// SPDX-License-Identifier: MIT
// From a layer's q, k and v to attention's inputs in one pass: RMSNorm of q and k heads (kHasNorm), rotary position
// embedding, K and V into their slots of a paged cache (kv_cache.h), as they are or as fp8 value · (1 / scale).
// HIP (gfx9) and CUDA. fused_qk_rope_cache.hip says what a Config holds.
//
//   1. a lane loads two packs of a head, kVec pairs where the head is rotated (rope.h), and the pairs' angles and
//      weights, once for up to kShare heads of a token; a head's packs are loaded while it works on the one before
//   2. kHasNorm: the sum of squares over a head's lanes, x / sqrt(mean + epsilon) · weight
//   3. rotates in fp32; q, and k and v where they are wanted, rounded once to Element
//   4. k and v from the same fp32 values into the cache; slots outside the cache are skipped
//
// In the packed layouts neighbouring lanes take neighbouring tokens' keys; V, which keeps tokens together there, goes
// through LDS in tiles of 64 tokens or more of one head (kv_tile.h): packs of tokens leave in 16 bytes.
//
// Tile: kHeadDim / (2 · kVec) lanes take a head of a token, the rest of a power of two idle. LDS: a tile in the packed
// layouts, else none. kVec elements are 16 bytes where heads, rotated part and strides are multiples of that.
// Bound: memory. A token moves each element of q, k and v once in, once out; weights and tables stay in cache.
#pragma once

#include "aiter_like/kv_tile.h"
#include "rope.h"

namespace aiter_like {

constexpr int power_of_two(int count) { return count <= 1 ? 1 : 2 * power_of_two((count + 1) / 2); }

/// q, k or v: [tokens, heads, head_dim]; strides in elements. `out` may be null.
template <class Element>
struct FusedHeads {
  const Element* input;
  Element* out;
  const Element* weight;  // [head_dim]
  int64_t token, head, out_token, out_head;
  uint32_t count;
};

template <class Config>
struct FusedArgs {
  using Table = typename Config::Table;

  FusedHeads<typename Config::Element> parts[3];    // q, k, v
  CachePlane planes[2];   // k's, v's
  const float* scales[2];  // one each, or null for 1
  bool has_vectors[2];    // kVec neighbours of a head are neighbours in the cache
  KvLayout layout;
  SlotMapping slots;
  uint32_t slot_count;    // tokens that have one
  const Table *cosines, *sines;
  int64_t cosine_stride, sine_stride;
  uint32_t rows;  // the tables'
  RopeIndices positions, offsets;
  uint32_t tokens;
  uint32_t groups[2];     // workgroups of q, and of k, in the packed layouts; of everything in that of rows
  uint32_t share, q_groups, kv_groups;  // a lane's heads, at most; how many groups of them q has, and k or v
  Divider per_token, per_group, kv_heads;  // groups of a token in groups[0]; tokens, of a group in groups[1]; of V
  int rotary_dim;
  float epsilon;
};

/// How K and V go into the cache: kRows as rows, kPacked with V in tiles, both by kVec neighbours of a head; kAny into
/// whatever layout, if need be element by element, which takes more registers.
enum class Form { kRows, kPacked, kAny };

__device__ inline float inverse_scale(const float* scale) { return scale != nullptr ? 1.f / *scale : 1.f; }

template <class Config_>
struct FusedBody {
  using Config = Config_;
  using Element = typename Config::Element;
  using Table = typename Config::Table;
  using Cache = typename Config::Cache;
  using Heads = FusedHeads<Element>;
  using Args = FusedArgs<Config>;

  static constexpr int kVec = Config::kVec, kHeadDim = Config::kHeadDim, kThreads = Config::kThreads;
  static constexpr int kUsedLanes = kHeadDim / (2 * kVec), kLanes = power_of_two(kUsedLanes);
  static constexpr int kAccessBytes = kVec * sizeof(Element);
  static constexpr uint32_t kRows = kThreads / kLanes;  // heads that a workgroup takes at once
  static constexpr uint32_t kTileTokens = kRows < 64 ? 64 : kRows, kPack = 16 / sizeof(Cache);
  static constexpr size_t kMostLds = 48 * 1024;  // a workgroup's on CUDA; gfx942 has 64 KB
  static constexpr size_t kTileBytes = kTileTokens * (kHeadDim * sizeof(Cache) + 8);  // 8: of a token's slots, at most
  static constexpr bool kHasTiles = kHeadDim % 16 == 0 && kAccessBytes == 16 && kTileBytes <= kMostLds;
  static_assert(kThreads >= 64, "a work-item for each token of a tile");
  static_assert(kHeadDim == 2 * kVec * kUsedLanes && kLanes <= kWaveSize && kAccessBytes <= 16, "a head fits a wave");

  struct Tile {
    TilePacks<kTileTokens, kPack> packs;
    TileRows<Cache, kTileTokens, kHeadDim> rows;
  };

  template <Pack kPack, bool kHasVectors = false>
  __device__ inline static void put(const CachePlane& plane, bool has_vectors, CachePlace place, uint32_t head,
                                    uint32_t dim, const float (&x)[kVec], float inverse) {
    float scaled[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) scaled[e] = x[e] * inverse;
    const auto packed = vec_from_float<Cache>(scaled);
    Cache* to = static_cast<Cache*>(plane.data);
    if (kHasVectors || has_vectors) {
      store_vec<kVec>(to + plane_offset<kPack>(plane, place, head, dim), packed);
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e) to[plane_offset<kPack>(plane, place, head, dim + e)] = packed[e];
    }
  }

  /// V of kTileTokens tokens of one head.
  template <Pack kLayout>
  __device__ inline static void write_values(const Args& args, uint32_t index, Tile& tile) {
    constexpr uint32_t kPasses = kTileTokens / kRows, kVectors = kTileTokens / kPack * kHeadDim;
    const uint32_t tile_index = args.kv_heads.divide(index), head = index - tile_index * args.kv_heads.divisor;
    const uint32_t first = tile_index * kTileTokens, lane_row = thread_index() / kLanes;
    const uint32_t lane = thread_index() % kLanes, dim = lane * 2 * kVec;
    const Heads& part = args.parts[2];
    Cache* cache = static_cast<Cache*>(args.planes[1].data);

    RopePack<Element, kVec> packs[kPasses][2];
#pragma unroll
    for (uint32_t i = 0; i < kPasses; ++i) {
      const uint32_t token = first + lane_row + i * kRows;
      if (token >= args.tokens || lane >= kUsedLanes) continue;
      const Element* input = part.input + token * part.token + head * part.head + dim;
      packs[i][0].load(input);
      packs[i][1].load(input + kVec);
    }
    tile.packs.sort(args.slots, first, args.slot_count, true);
    workgroup_barrier();

    const float inverse = inverse_scale(args.scales[1]);
#pragma unroll
    for (uint32_t i = 0; i < kPasses; ++i) {
      const uint32_t row = lane_row + i * kRows, token = first + row, single = tile.packs.single[row];
      if (token >= args.tokens || lane >= kUsedLanes) continue;
      if (part.out != nullptr) {
        Element* out = part.out + token * part.out_token + head * part.out_head + dim;
        packs[i][0].store(out);
        packs[i][1].store(out + kVec);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x[kVec];
#pragma unroll
        for (int e = 0; e < kVec; ++e) x[e] = packs[i][half].at(e) * inverse;
        const auto out = vec_from_float<Cache>(x);
        if (single == SlotMapping::kNowhere) {
          store_vec<kVec>(tile.rows.at(row, dim + half * kVec), out);
        } else {
          Cache* to = cache + plane_offset<kLayout>(args.planes[1], args.slots.place(single), head, dim + half * kVec);
#pragma unroll
          for (int e = 0; e < kVec; ++e) to[e * args.planes[1].dim] = out[e];
        }
      }
    }
    workgroup_barrier();

    for (uint32_t i = thread_index(); i < kVectors; i += kThreads) {
      const TileItem<kLayout, kHeadDim> item(i);
      const uint32_t slot = tile.packs.pack_slot[item.pack];
      if (slot == SlotMapping::kNowhere) continue;
      store_whole(cache + plane_offset<kLayout>(args.planes[1], args.slots.place(slot), head, item.column),
                  tile.rows.column(tile.packs.pack_row[item.pack], item.column));
    }
  }

  /// Turns the pairs of two packs.
  template <bool kIsGptj, class Turn>
  __device__ inline static void rotate(float (&x)[2][kVec], const Turn& turn) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      float& first = kIsGptj ? x[2 * e / kVec][2 * e % kVec] : x[0][e];
      float& second = kIsGptj ? x[(2 * e + 1) / kVec][(2 * e + 1) % kVec] : x[1][e];
      const float turned = first * turn.cosine(e, false) - second * turn.sine(e, false);
      second = second * turn.cosine(e, true) + first * turn.sine(e, true);
      first = turned;
    }
  }

  /// The heads that a lane works on: `first` of its part and each `step` heads after it; kinds are 0 (q), 1 (k), 2 (v).
  struct Work {
    uint32_t token, first, kind, step;
    bool is_used;
  };

  template <Form kForm>
  __device__ __forceinline__ static Work find_work(const Args& args, uint32_t lane) {
    const uint32_t group = workgroup_index().x, row = thread_index() / kLanes;
    const bool is_key = kForm == Form::kPacked && group >= args.groups[0];
    const uint32_t index = (is_key ? group - args.groups[0] : group) * kRows + row;
    uint32_t token, first, kind = is_key;
    bool is_used = kLanes == kUsedLanes || lane < kUsedLanes;
    if (is_key) {
      first = args.per_group.divide(index);
      token = index - first * args.per_group.divisor;
      is_used = is_used && first < args.kv_groups;
    } else {
      token = args.per_token.divide(index);
      first = index - token * args.per_token.divisor;
      is_used = is_used && token < args.tokens;
      token = token < args.tokens ? token : 0;
      kind = (first >= args.q_groups) + (first >= args.q_groups + args.kv_groups);
      first -= kind == 0 ? 0 : kind == 1 ? args.q_groups : args.q_groups + args.kv_groups;
    }
    return {token, first, kind, kind == 0 ? args.q_groups : args.kv_groups, is_used};
  }

  template <class Turn>
  __device__ __forceinline__ static void load_angles(const Args& args, uint32_t token, int low, int distance,
                                                     Turn& turn) {
    uint64_t row = args.positions.load(token, 0).value(args.positions.is_long);
    if (args.offsets.data != nullptr) row += args.offsets.load(token, 0).value(args.offsets.is_long);
    if (row < args.rows)
      turn.load(args.cosines + row * args.cosine_stride, args.sines + row * args.sine_stride, low, distance);
    else
      turn.load_nan();
  }

  /// Step 2 for q and k; v's lanes take part in the sum.
  __device__ __forceinline__ static void normalise(float (&x)[2][kVec], const RopePack<Element, kVec> (&weight)[2],
                                                   bool is_normed, float epsilon) {
    float squares = 0.f;
#pragma unroll
    for (int e = 0; e < 2 * kVec; ++e) squares += x[e / kVec][e % kVec] * x[e / kVec][e % kVec];
    if constexpr (kLanes > 1) squares = wave_sum<kLanes / 2>(squares);
    const float inverse_rms = reciprocal_square_root(squares / kHeadDim + epsilon);
#pragma unroll
    for (int e = 0; is_normed && e < 2 * kVec; ++e)
      x[e / kVec][e % kVec] *= inverse_rms * weight[e / kVec].at(e % kVec);
  }

  /// Step 4 for one pack of k (`which` 0) or of v (1).
  template <Form kForm>
  __device__ __forceinline__ static void put_pack(const Args& args, uint32_t which, CachePlace place, uint32_t head,
                                                  uint32_t dim, const float (&x)[kVec], float inverse) {
    if constexpr (kForm == Form::kPacked)  // V is elsewhere
      put<Pack::kDims, true>(args.planes[0], true, place, head, dim, x, inverse);
    else if constexpr (kForm == Form::kRows)
      put<Pack::kNone, true>(args.planes[which], true, place, head, dim, x, inverse);
    else if (args.layout == KvLayout::kRows)  // one code for both: two, merged by the compiler, store in pieces
      put<Pack::kNone>(args.planes[which], args.has_vectors[which], place, head, dim, x, inverse);
    else if (which == 0)
      put<Pack::kDims>(args.planes[0], args.has_vectors[0], place, head, dim, x, inverse);
    else if (args.layout == KvLayout::kColumns)
      put<Pack::kNone>(args.planes[1], false, place, head, dim, x, inverse);
    else
      put<Pack::kTokens>(args.planes[1], false, place, head, dim, x, inverse);
  }

  template <bool kIsGptj, Form kForm>
  __device__ inline static void write_heads(const Args& args) {
    const uint32_t lane = thread_index() % kLanes;
    const Work work = find_work<kForm>(args, lane);
    const uint32_t token = work.token, kind = work.kind;
    // Values are selected one by one: a part selected by its number would be read from memory by every lane.
    const auto pick = [&](auto q, auto k, auto v) { return kind == 0 ? q : kind == 1 ? k : v; };
    const Heads &q = args.parts[0], &k = args.parts[1], &v = args.parts[2];
    const uint32_t count = work.is_used ? pick(q.count, k.count, v.count) : 0;  // heads beyond it take part in the sums

    const bool is_rotated = kind < 2 && lane < args.rotary_dim / (2 * kVec);
    const bool is_apart = is_rotated && !kAreNeighbours<kVec, kIsGptj>;
    const int low = is_apart ? lane * kVec : lane * 2 * kVec, distance = is_apart ? args.rotary_dim / 2 : kVec;
    const int64_t input_head = pick(q.head, k.head, v.head), out_head = pick(q.out_head, k.out_head, v.out_head);
    const Element* input = pick(q.input, k.input, v.input) + token * pick(q.token, k.token, v.token) + low;
    RopePack<Element, kVec> packs[2]{};
    const auto load = [&](uint32_t head) {
      if (head >= count) return;
      packs[0].load(input + head * input_head);
      packs[1].load(input + head * input_head + distance);
    };
    load(work.first);
    Turn<Table, kVec, kIsGptj, Config::kIsShared, false> turn;
    if (is_rotated) load_angles(args, token, low, distance, turn);
    RopePack<Element, kVec> weight[2]{};
    if (Config::kHasNorm && kind < 2 && work.first < count) {
      weight[0].load((kind == 0 ? q.weight : k.weight) + low);
      weight[1].load((kind == 0 ? q.weight : k.weight) + low + distance);
    }
    CachePlace place{};
    const bool is_cached = kind > 0 && token < args.slot_count && args.slots.find(token, place);
    const uint32_t which = kind == 2;
    const float inverse = is_cached ? inverse_scale(which == 0 ? args.scales[0] : args.scales[1]) : 1.f;
    Element* out = pick(q.out, k.out, v.out);
    if (out != nullptr) out += token * pick(q.out_token, k.out_token, v.out_token) + low;

#pragma unroll 1
    for (uint32_t i = 0, head = work.first; i < args.share; ++i, head += work.step) {
      float x[2][kVec];
#pragma unroll
      for (int e = 0; e < 2 * kVec; ++e) x[e / kVec][e % kVec] = packs[e / kVec].at(e % kVec);
      load(head + work.step);
      turn.drop_floats();
      weight[0].drop_floats();
      weight[1].drop_floats();
      if constexpr (Config::kHasNorm) normalise(x, weight, kind < 2, args.epsilon);
      if (is_rotated) rotate<kIsGptj>(x, turn);
      if (head >= count) continue;
      if (out != nullptr) {
        store_vec<kVec>(out + head * out_head, vec_from_float<Element>(x[0]));
        store_vec<kVec>(out + head * out_head + distance, vec_from_float<Element>(x[1]));
      }
      if (!is_cached) continue;
      const uint32_t dims = opaque(low);  // the layouts' offsets of all dims, kept for the next head, would spill
#pragma unroll
      for (int half = 0; half < 2; ++half)
        put_pack<kForm>(args, which, place, head, dims + half * distance, x[half], inverse);
    }
  }
};

template <class Body, bool kIsGptj, Form kForm>
__global__ __launch_bounds__(Body::kThreads, (kForm == Form::kRows ? 768 : 640) / Body::kThreads)
void fused_qk_rope_cache_kernel(typename Body::Args args) {
  await_stream();
#if defined(__HIP__)
  fetch_arguments<typename Body::Args>();
#endif
  if constexpr (kForm == Form::kPacked) {
    __shared__ typename Body::Tile tile;
    if (const uint32_t others = args.groups[0] + args.groups[1]; workgroup_index().x >= others) {
      if (args.layout == KvLayout::kColumns)
        Body::template write_values<Pack::kNone>(args, workgroup_index().x - others, tile);
      else
        Body::template write_values<Pack::kTokens>(args, workgroup_index().x - others, tile);
      return;
    }
  }
  Body::template write_heads<kIsGptj, kForm>(args);
}

template <class Config>
void launch_fused_qk_rope_cache(FusedArgs<Config> args, bool is_gptj, Form form, Stream stream) {
  using Body = FusedBody<Config>;
  const bool is_packed = form == Form::kPacked;
  const uint32_t q_heads = args.parts[0].count, kv_heads = args.parts[1].count;
  // kShare heads per lane, or fewer where there are too few tokens to fill the device: 2^17 lanes fill 64 CUs.
  args.share = Config::kShare;
  while (args.share > 1 && uint64_t{args.tokens} * (q_heads + 2 * kv_heads) / args.share * Body::kLanes < 1 << 17)
    args.share /= 2;
  args.q_groups = (q_heads + args.share - 1) / args.share;
  args.kv_groups = (kv_heads + args.share - 1) / args.share;
  const uint32_t per_token = is_packed ? args.q_groups : args.q_groups + 2 * args.kv_groups;
  args.groups[0] = (args.tokens * per_token + Body::kRows - 1) / Body::kRows;
  args.groups[1] = is_packed ? (args.tokens * args.kv_groups + Body::kRows - 1) / Body::kRows : 0;
  args.per_token = Divider(per_token > 0 ? per_token : 1);
  args.per_group = Divider(args.tokens);
  args.kv_heads = Divider(kv_heads > 0 ? kv_heads : 1);
  const uint32_t tiles = is_packed ? (args.tokens + Body::kTileTokens - 1) / Body::kTileTokens * kv_heads : 0;
  const dim3 grid(args.groups[0] + args.groups[1] + tiles);
  const auto launch = [&](auto neox, auto gptj) {
    launch_named("fused_qk_rope_cache_kernel", is_gptj ? gptj : neox, grid, Body::kThreads, stream, args);
  };
  if constexpr (Body::kHasTiles)
    if (form == Form::kPacked)
      return launch(fused_qk_rope_cache_kernel<Body, false, Form::kPacked>,
                    fused_qk_rope_cache_kernel<Body, true, Form::kPacked>);
  if (form == Form::kRows)
    launch(fused_qk_rope_cache_kernel<Body, false, Form::kRows>, fused_qk_rope_cache_kernel<Body, true, Form::kRows>);
  else
    launch(fused_qk_rope_cache_kernel<Body, false, Form::kAny>, fused_qk_rope_cache_kernel<Body, true, Form::kAny>);
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// From a layer's q, k and v to attention's inputs in one pass: RMSNorm of q and k heads (HAS_NORM), rotary position
// embedding, K and V into their slots of a paged cache (kv_cache.h), as they are or as fp8 value · (1 / scale).
// HIP (gfx9) and CUDA. One build per combination of the macros below.
//
//   1. a lane loads two packs of a head, kVec pairs where the head is rotated (rope.h), and the pairs' angles and
//      weights, once for up to SHARE heads of a token; a head's packs are loaded while it works on the one before
//   2. HAS_NORM: the sum of squares over a head's lanes, x / sqrt(mean + epsilon) · weight
//   3. rotates in fp32; q, and k and v where they are wanted, rounded once to ELEMENT
//   4. k and v from the same fp32 values into the cache; slots outside the cache are skipped
//
// In the packed layouts neighbouring lanes take neighbouring tokens' keys; V, which keeps tokens together there, goes
// through LDS in tiles of 64 tokens or more of one head (kv_tile.h): packs of tokens leave in 16 bytes.
//
// Tile: HEAD_DIM / (2 · VEC) lanes take a head of a token, the rest of a power of two idle. LDS: a tile in the packed
// layouts, else none. VEC elements are 16 bytes where heads, rotated part and strides are multiples of that.
// Bound: memory. A token moves each element of q, k and v once in, once out; weights and tables stay in cache.
#include "aiter_like/ffi.h"
#include "aiter_like/kv_tile.h"
#include "rope.h"

#if !defined(ELEMENT) || !defined(TABLE) || !defined(CACHE) || !defined(HEAD_DIM) || !defined(HAS_NORM) || \
    !defined(IS_SHARED) || !defined(VEC) || !defined(THREADS) || !defined(SHARE)
#error "fused_qk_rope_cache.hip: -DELEMENT -DTABLE=bf16|f16|float -DCACHE=ELEMENT|fp8 -DHEAD_DIM -DVEC -DSHARE…"
#endif

namespace aiter_like {

constexpr int power_of_two(int count) { return count <= 1 ? 1 : 2 * power_of_two((count + 1) / 2); }
constexpr int kVec = VEC, kUsedLanes = HEAD_DIM / (2 * kVec), kLanes = power_of_two(kUsedLanes), kThreads = THREADS;
constexpr int kAccessBytes = kVec * sizeof(ELEMENT);
constexpr uint32_t kRows = kThreads / kLanes;  // heads that a workgroup takes at once
constexpr uint32_t kTileTokens = kRows < 64 ? 64 : kRows, kPack = 16 / sizeof(CACHE);
constexpr size_t kMostLds = 48 * 1024;  // a workgroup's on CUDA; gfx942 has 64 KB
constexpr bool kHasTiles = HEAD_DIM % 16 == 0 && kAccessBytes == 16 &&
                           kTileTokens * (HEAD_DIM * sizeof(CACHE) + 8) <= kMostLds;  // 8: of a token's slots, at most
static_assert(kThreads >= 64, "a work-item for each token of a tile");
static_assert(HEAD_DIM == 2 * kVec * kUsedLanes && kLanes <= kWaveSize && kAccessBytes <= 16, "a head fits a wave");

/// q, k or v: [tokens, heads, HEAD_DIM]; strides in elements. `out` may be null.
struct FusedHeads {
  const ELEMENT* input;
  ELEMENT* out;
  const ELEMENT* weight;  // [HEAD_DIM]
  int64_t token, head, out_token, out_head;
  uint32_t count;
};

struct FusedArgs {
  FusedHeads parts[3];    // q, k, v
  CachePlane planes[2];   // k's, v's
  const float* scales[2];  // one each, or null for 1
  bool has_vectors[2];    // kVec neighbours of a head are neighbours in the cache
  KvLayout layout;
  SlotMapping slots;
  uint32_t slot_count;    // tokens that have one
  const TABLE *cosines, *sines;
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

struct Tile {
  TilePacks<kTileTokens, kPack> packs;
  TileRows<CACHE, kTileTokens, HEAD_DIM> rows;
};

template <Pack kPack, bool kHasVectors = false>
__device__ inline void put(const CachePlane& plane, bool has_vectors, CachePlace place, uint32_t head, uint32_t dim,
                           const float (&x)[kVec], float inverse) {
  float scaled[kVec];
#pragma unroll
  for (int e = 0; e < kVec; ++e) scaled[e] = x[e] * inverse;
  const auto packed = vec_from_float<CACHE>(scaled);
  CACHE* to = static_cast<CACHE*>(plane.data);
  if (kHasVectors || has_vectors) {
    store_vec<kVec>(to + plane_offset<kPack>(plane, place, head, dim), packed);
  } else {
#pragma unroll
    for (int e = 0; e < kVec; ++e) to[plane_offset<kPack>(plane, place, head, dim + e)] = packed[e];
  }
}

__device__ inline float inverse_scale(const float* scale) { return scale != nullptr ? 1.f / *scale : 1.f; }

/// V of kTileTokens tokens of one head.
template <Pack kLayout>
__device__ inline void write_values(const FusedArgs& args, uint32_t index, Tile& tile) {
  constexpr uint32_t kPasses = kTileTokens / kRows, kVectors = kTileTokens / kPack * HEAD_DIM;
  const uint32_t tile_index = args.kv_heads.divide(index), head = index - tile_index * args.kv_heads.divisor;
  const uint32_t first = tile_index * kTileTokens, lane_row = thread_index() / kLanes;
  const uint32_t lane = thread_index() % kLanes, dim = lane * 2 * kVec;
  const FusedHeads& part = args.parts[2];
  CACHE* cache = static_cast<CACHE*>(args.planes[1].data);

  RopePack<ELEMENT, kVec> packs[kPasses][2];
#pragma unroll
  for (uint32_t i = 0; i < kPasses; ++i) {
    const uint32_t token = first + lane_row + i * kRows;
    if (token >= args.tokens || lane >= kUsedLanes) continue;
    const ELEMENT* input = part.input + token * part.token + head * part.head + dim;
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
      ELEMENT* out = part.out + token * part.out_token + head * part.out_head + dim;
      packs[i][0].store(out);
      packs[i][1].store(out + kVec);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[kVec];
#pragma unroll
      for (int e = 0; e < kVec; ++e) x[e] = packs[i][half].at(e) * inverse;
      const auto out = vec_from_float<CACHE>(x);
      if (single == SlotMapping::kNowhere) {
        store_vec<kVec>(tile.rows.at(row, dim + half * kVec), out);
      } else {
        CACHE* to = cache + plane_offset<kLayout>(args.planes[1], args.slots.place(single), head, dim + half * kVec);
#pragma unroll
        for (int e = 0; e < kVec; ++e) to[e * args.planes[1].dim] = out[e];
      }
    }
  }
  workgroup_barrier();

  for (uint32_t i = thread_index(); i < kVectors; i += kThreads) {
    const TileItem<kLayout, HEAD_DIM> item(i);
    const uint32_t slot = tile.packs.pack_slot[item.pack];
    if (slot == SlotMapping::kNowhere) continue;
    store_whole(cache + plane_offset<kLayout>(args.planes[1], args.slots.place(slot), head, item.column),
                tile.rows.column(tile.packs.pack_row[item.pack], item.column));
  }
}

/// Turns the pairs of two packs.
template <bool kIsGptj, class Turn>
__device__ inline void rotate(float (&x)[2][kVec], const Turn& turn) {
#pragma unroll
  for (int e = 0; e < kVec; ++e) {
    float& first = kIsGptj ? x[2 * e / kVec][2 * e % kVec] : x[0][e];
    float& second = kIsGptj ? x[(2 * e + 1) / kVec][(2 * e + 1) % kVec] : x[1][e];
    const float turned = first * turn.cosine(e, false) - second * turn.sine(e, false);
    second = second * turn.cosine(e, true) + first * turn.sine(e, true);
    first = turned;
  }
}

template <bool kIsGptj, Form kForm>
__device__ inline void write_heads(const FusedArgs& args) {
  const uint32_t lane = thread_index() % kLanes, group = workgroup_index().x, row = thread_index() / kLanes;
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
  // Values are selected one by one: a part selected by its number would be read from memory by every lane.
  const auto pick = [&](auto q, auto k, auto v) { return kind == 0 ? q : kind == 1 ? k : v; };
  const FusedHeads &q = args.parts[0], &k = args.parts[1], &v = args.parts[2];
  const uint32_t step = kind == 0 ? args.q_groups : args.kv_groups;
  const uint32_t count = is_used ? pick(q.count, k.count, v.count) : 0;  // heads beyond it take part in the sums

  const bool is_rotated = kind < 2 && lane < args.rotary_dim / (2 * kVec);
  const bool is_apart = is_rotated && !kAreNeighbours<kVec, kIsGptj>;
  const int low = is_apart ? lane * kVec : lane * 2 * kVec, distance = is_apart ? args.rotary_dim / 2 : kVec;
  const int64_t input_head = pick(q.head, k.head, v.head), out_head = pick(q.out_head, k.out_head, v.out_head);
  const ELEMENT* input = pick(q.input, k.input, v.input) + token * pick(q.token, k.token, v.token) + low;
  RopePack<ELEMENT, kVec> packs[2]{};
  const auto load = [&](uint32_t head) {
    if (head >= count) return;
    packs[0].load(input + head * input_head);
    packs[1].load(input + head * input_head + distance);
  };
  load(first);
  Turn<TABLE, kVec, kIsGptj, IS_SHARED, false> turn;
  if (is_rotated) {
    uint64_t row = args.positions.load(token, 0).value(args.positions.is_long);
    if (args.offsets.data != nullptr) row += args.offsets.load(token, 0).value(args.offsets.is_long);
    if (row < args.rows)
      turn.load(args.cosines + row * args.cosine_stride, args.sines + row * args.sine_stride, low, distance);
    else
      turn.load_nan();
  }
  RopePack<ELEMENT, kVec> weight[2]{};
  if (HAS_NORM && kind < 2 && first < count) {
    weight[0].load((kind == 0 ? q.weight : k.weight) + low);
    weight[1].load((kind == 0 ? q.weight : k.weight) + low + distance);
  }
  CachePlace place{};
  const bool is_cached = kind > 0 && token < args.slot_count && args.slots.find(token, place);
  const uint32_t which = kind == 2;
  const float inverse = is_cached ? inverse_scale(which == 0 ? args.scales[0] : args.scales[1]) : 1.f;
  ELEMENT* out = pick(q.out, k.out, v.out);
  if (out != nullptr) out += token * pick(q.out_token, k.out_token, v.out_token) + low;

#pragma unroll 1
  for (uint32_t i = 0, head = first; i < args.share; ++i, head += step) {
    float x[2][kVec];
#pragma unroll
    for (int e = 0; e < 2 * kVec; ++e) x[e / kVec][e % kVec] = packs[e / kVec].at(e % kVec);
    load(head + step);
    turn.drop_floats();
    weight[0].drop_floats();
    weight[1].drop_floats();
    if constexpr (HAS_NORM) {
      float squares = 0.f;
#pragma unroll
      for (int e = 0; e < 2 * kVec; ++e) squares += x[e / kVec][e % kVec] * x[e / kVec][e % kVec];
      if constexpr (kLanes > 1) squares = wave_sum<kLanes / 2>(squares);
      const float inverse_rms = reciprocal_square_root(squares / HEAD_DIM + args.epsilon);
#pragma unroll
      for (int e = 0; kind < 2 && e < 2 * kVec; ++e)
        x[e / kVec][e % kVec] *= inverse_rms * weight[e / kVec].at(e % kVec);
    }
    if (is_rotated) rotate<kIsGptj>(x, turn);
    if (head >= count) continue;
    if (out != nullptr) {
      store_vec<kVec>(out + head * out_head, vec_from_float<ELEMENT>(x[0]));
      store_vec<kVec>(out + head * out_head + distance, vec_from_float<ELEMENT>(x[1]));
    }
    if (!is_cached) continue;
    const uint32_t dims = opaque(low);  // the layouts' offsets of all dims, kept for the next head, would spill
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t dim = dims + half * distance;
      if constexpr (kForm == Form::kPacked)  // V is elsewhere
        put<Pack::kDims, true>(args.planes[0], true, place, head, dim, x[half], inverse);
      else if constexpr (kForm == Form::kRows)
        put<Pack::kNone, true>(args.planes[which], true, place, head, dim, x[half], inverse);
      else if (args.layout == KvLayout::kRows)  // one code for both: two, merged by the compiler, store in pieces
        put<Pack::kNone>(args.planes[which], args.has_vectors[which], place, head, dim, x[half], inverse);
      else if (which == 0)
        put<Pack::kDims>(args.planes[0], args.has_vectors[0], place, head, dim, x[half], inverse);
      else if (args.layout == KvLayout::kColumns)
        put<Pack::kNone>(args.planes[1], false, place, head, dim, x[half], inverse);
      else
        put<Pack::kTokens>(args.planes[1], false, place, head, dim, x[half], inverse);
    }
  }
}

template <bool kIsGptj, Form kForm>
__global__ __launch_bounds__(kThreads, (kForm == Form::kRows ? 768 : 640) / kThreads) void fused_qk_rope_cache_kernel(
    FusedArgs args) {
  await_stream();
#if defined(__HIP__)
  fetch_arguments<FusedArgs>();
#endif
  if constexpr (kForm == Form::kPacked) {
    __shared__ Tile tile;
    if (const uint32_t others = args.groups[0] + args.groups[1]; workgroup_index().x >= others) {
      if (args.layout == KvLayout::kColumns)
        write_values<Pack::kNone>(args, workgroup_index().x - others, tile);
      else
        write_values<Pack::kTokens>(args, workgroup_index().x - others, tile);
      return;
    }
  }
  write_heads<kIsGptj, kForm>(args);
}

void launch_fused_qk_rope_cache(FusedArgs args, bool is_gptj, Form form, Stream stream) {
  const bool is_packed = form == Form::kPacked;
  const uint32_t q_heads = args.parts[0].count, kv_heads = args.parts[1].count;
  // SHARE heads per lane, or fewer where there are too few tokens to fill the device: 2^17 lanes fill 64 CUs.
  args.share = SHARE;
  while (args.share > 1 && uint64_t{args.tokens} * (q_heads + 2 * kv_heads) / args.share * kLanes < 1 << 17)
    args.share /= 2;
  args.q_groups = (q_heads + args.share - 1) / args.share;
  args.kv_groups = (kv_heads + args.share - 1) / args.share;
  const uint32_t per_token = is_packed ? args.q_groups : args.q_groups + 2 * args.kv_groups;
  args.groups[0] = (args.tokens * per_token + kRows - 1) / kRows;
  args.groups[1] = is_packed ? (args.tokens * args.kv_groups + kRows - 1) / kRows : 0;
  args.per_token = Divider(per_token > 0 ? per_token : 1);
  args.per_group = Divider(args.tokens);
  args.kv_heads = Divider(kv_heads > 0 ? kv_heads : 1);
  const uint32_t tiles = is_packed ? (args.tokens + kTileTokens - 1) / kTileTokens * kv_heads : 0;
  const dim3 grid(args.groups[0] + args.groups[1] + tiles);
  const auto launch = [&](auto neox, auto gptj) {
    launch_named("fused_qk_rope_cache_kernel", is_gptj ? gptj : neox, grid, kThreads, stream, args);
  };
  if constexpr (kHasTiles)
    if (form == Form::kPacked)
      return launch(fused_qk_rope_cache_kernel<false, Form::kPacked>, fused_qk_rope_cache_kernel<true, Form::kPacked>);
  if (form == Form::kRows)
    launch(fused_qk_rope_cache_kernel<false, Form::kRows>, fused_qk_rope_cache_kernel<true, Form::kRows>);
  else
    launch(fused_qk_rope_cache_kernel<false, Form::kAny>, fused_qk_rope_cache_kernel<true, Form::kAny>);
}

#if AITER_LIKE_HOST_PASS

static FusedHeads fused_heads(ffi::Match& match, const ffi::Tensor& input, const ffi::OptionalTensor& out,
                              const ffi::OptionalTensor& weight, ffi::Size& tokens, ffi::Size& heads,
                              const char* name, const char* out_name) {
  const auto x = match.take<const ELEMENT>(input, {tokens, heads, HEAD_DIM}, name);
  const auto y = match.take<ELEMENT>(out, {tokens, heads, HEAD_DIM}, out_name);
  match.require(ffi::takes_vectors(kVec, input, out), name, "must have heads at multiples of this module's accesses");
  match.built(weight.has_value() == HAS_NORM);
  match.require(!weight.has_value() || ffi::are_rows_aligned(*weight, kAccessBytes),
                "weights must begin at a multiple of this module's accesses");
  FusedHeads result{};
  result.input = x, result.token = x.strides[0], result.head = x.strides[1], result.count = heads;
  result.out = y, result.out_token = y.stride(0), result.out_head = y.stride(1);
  result.weight = match.elements<const ELEMENT>(weight, HEAD_DIM, "weight");
  return result;
}

void fused_qk_rope_cache(ffi::Tensor q_out, ffi::OptionalTensor k_out, ffi::OptionalTensor v_out,
                         ffi::Tensor key_cache, ffi::Tensor value_cache, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                         ffi::OptionalTensor q_weight, ffi::OptionalTensor k_weight, ffi::Tensor cos, ffi::Tensor sin,
                         ffi::Tensor positions, ffi::OptionalTensor offsets, ffi::Tensor slot_mapping,
                         ffi::OptionalTensor k_scale, ffi::OptionalTensor v_scale, double epsilon,
                         int64_t rotate_style, bool reuse_freqs_front_part, ffi::String layout_name) {
  ffi::Match match("fused_qk_rope_cache");
  match.built(reuse_freqs_front_part == IS_SHARED);
  ffi::Size tokens{"tokens"}, heads{"heads"}, kv_heads{"kv_heads"}, slots{"slots"};
  ffi::Size rows{"rows of cos"}, width{"elements of its rows"};
  FusedArgs args{};
  args.parts[0] = fused_heads(match, q, q_out, q_weight, tokens, heads, "q", "q_out");
  args.parts[1] = fused_heads(match, k, k_out, k_weight, tokens, kv_heads, "k", "k_out");
  // v does not read the weight.
  args.parts[2] = fused_heads(match, v, v_out, k_weight, tokens, kv_heads, "v", "v_out");
  args.layout = ffi::layout_of(match, layout_name);
  const auto cache = ffi::take_cache<CACHE>(match, key_cache, value_cache, args.layout);
  match.require(cache.heads == kv_heads && cache.key_dim == HEAD_DIM && cache.value_dim == HEAD_DIM,
                "the caches must have the heads of k and v");
  const bool is_rows = args.layout == KvLayout::kRows;
  args.planes[0] = cache.key, args.planes[1] = cache.value;
  args.has_vectors[0] = ffi::takes_vectors(kVec, key_cache);
  args.has_vectors[1] = is_rows && ffi::takes_vectors(kVec, value_cache);
  args.scales[0] = match.elements<const float>(k_scale, 1, "k_scale");
  args.scales[1] = match.elements<const float>(v_scale, 1, "v_scale");
  args.slots = ffi::take_slots(match, slot_mapping, slots, cache.page_size, cache.slots);
  args.slot_count = slots;
  ffi::take_tables<TABLE>(match, args, cos, sin, rows, width, kVec);
  args.rows = rows, args.rotary_dim = width * (IS_SHARED ? 2 : 1);
  match.require(args.rotary_dim <= HEAD_DIM && args.rotary_dim % (2 * kVec) == 0,
                "cos and sin must turn a multiple of two accesses");
  args.positions = ffi::rope_indices(match, positions, tokens, "positions");
  args.offsets = ffi::rope_indices(match, offsets, tokens, "offsets");
  args.epsilon = epsilon, args.tokens = tokens;
  const int64_t lanes = tokens * (heads + 2 * kv_heads) * kLanes;
  match.require(lanes < int64_t{1} << 31, "too many heads for one launch");
  if (lanes == 0) return;
  const bool has_values = is_rows ? args.has_vectors[1] : kHasTiles && ffi::takes_vectors(kPack, value_cache);
  const Form form = !args.has_vectors[0] || !has_values ? Form::kAny : is_rows ? Form::kRows : Form::kPacked;
  launch_fused_qk_rope_cache(args, rotate_style != 0, form, ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(fused_qk_rope_cache, aiter_like::fused_qk_rope_cache);
#endif

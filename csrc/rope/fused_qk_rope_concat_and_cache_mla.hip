// SPDX-License-Identifier: MIT
// From the parts of latent attention's queries and keys to its inputs in one pass: rotary position embedding of q_pe
// and k_pe, both behind (or before) their latents, q into q_out, the key into its slot of a paged cache; each as it is
// or as fp8 value · (1 / scale). HIP (gfx9) and CUDA. One build per combination of the macros below.
//
//   1. a lane takes two packs of a row: neighbours of the latent, or kVec pairs of the rotated part (rope.h)
//   2. loads them, and the pairs' angles
//   3. rotates in fp32, rounds once, stores; slots outside the cache are skipped, with their queries or without
//
// Tile: a row, of a head of q or of the key, is (rank + pe) / (2 · kVec) lanes; the lanes of all rows lie side by side.
// LDS: none. kVec elements are 16 bytes where both parts and all strides are multiples of that.
// Bound: memory. A token moves each element of q and of the key once in, once out; the tables stay in cache.
#include "aiter_like/ffi.h"
#include "aiter_like/kv_cache.h"
#include "rope.h"

#if !defined(ELEMENT) || !defined(TABLE) || !defined(Q_OUT) || !defined(CACHE) || !defined(VEC)
#error "fused_qk_rope_concat_and_cache_mla.hip: -DELEMENT -DTABLE=bf16|f16|float -DQ_OUT -DCACHE=ELEMENT|fp8 -DVEC"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Table = TABLE;
  using QueryOut = Q_OUT;
  using Cache = CACHE;
  static constexpr int kVec = VEC;
};

constexpr uint32_t kThreads = 256;

/// Latents [tokens, heads, rank] and rotated parts [tokens, heads, pe] of q, or of the keys; strides in elements.
template <class Element>
struct LatentParts {
  const Element *latent, *rotated;
  int64_t latent_token, latent_head, rotated_token, rotated_head;
};

template <class Config>
struct FusedMlaArgs {
  LatentParts<typename Config::Element> q, k;
  typename Config::QueryOut* out;  // [tokens, heads, rank + pe]
  int64_t out_token, out_head;
  CachePlane cache;
  SlotMapping slots;
  const float *q_scale, *k_scale;  // one each, or null for 1
  const typename Config::Table *cosines, *sines;  // [rows, pe / 2]
  int64_t cosine_stride, sine_stride;
  uint32_t table_rows, tokens, q_heads;
  RopeIndices positions;
  Divider lanes, heads;  // a row's; a token's, keys' heads included
  uint32_t latent_lanes;
  int rank, pe, latent_at, rotated_at;  // the last two: beginnings of both parts in a result
  bool has_vectors;  // Config::kVec neighbours of the cache can be stored at once
  bool all_queries;  // also of tokens whose slot is nowhere
};

template <class T, int kVec>
__device__ inline void put(T* to, const float (&x)[kVec], float inverse, bool is_whole) {
  float scaled[kVec];
#pragma unroll
  for (int e = 0; e < kVec; ++e) scaled[e] = sizeof(T) == 1 ? x[e] * inverse : x[e];
  const auto packed = vec_from_float<T>(scaled);
  if (is_whole) {
    store_vec<kVec>(to, packed);
  } else {
#pragma unroll
    for (int e = 0; e < kVec; ++e) to[e] = packed[e];
  }
}

template <class Config, bool kIsGptj>
__global__ __launch_bounds__(kThreads) void fused_qk_rope_concat_and_cache_mla_kernel(FusedMlaArgs<Config> args) {
  using Cache = typename Config::Cache;
  using QueryOut = typename Config::QueryOut;
  constexpr int kVec = Config::kVec;
  await_stream();
  const uint32_t index = workgroup_index().x * kThreads + thread_index(), row = args.lanes.divide(index);
  const uint32_t lane = index - row * args.lanes.divisor, token = args.heads.divide(row);
  if (token >= args.tokens) return;
  const uint32_t place_of_head = row - token * args.heads.divisor;
  const bool is_key = place_of_head >= args.q_heads, is_latent = lane < args.latent_lanes;
  const uint32_t head = is_key ? place_of_head - args.q_heads : place_of_head;
  CachePlace place{};
  const bool has_slot = args.slots.find(token, place);
  if (!has_slot && (is_key || !args.all_queries)) return;

  const auto &q = args.q, &k = args.k;
  const auto pick = [&](auto of_q, auto of_k) { return is_key ? of_k : of_q; };
  const bool are_neighbours = is_latent || kAreNeighbours<kVec, kIsGptj>;
  const uint32_t nth = is_latent ? lane : lane - args.latent_lanes;
  const int low = are_neighbours ? nth * 2 * kVec : nth * kVec, distance = are_neighbours ? kVec : args.pe / 2;
  const auto* from =
      is_latent ? pick(q.latent, k.latent) + token * pick(q.latent_token, k.latent_token) +
                      head * pick(q.latent_head, k.latent_head)
                : pick(q.rotated, k.rotated) + token * pick(q.rotated_token, k.rotated_token) +
                      head * pick(q.rotated_head, k.rotated_head);
  Pairs<typename Config::Element, kVec, kIsGptj> x;
  x.low.load(from + low);
  x.high.load(from + low + distance);
  float first[kVec], second[kVec];
#pragma unroll
  for (int e = 0; e < kVec; ++e) first[e] = x.low.at(e), second[e] = x.high.at(e);
  if (!is_latent) {
    Turn<typename Config::Table, kVec, kIsGptj, true, false> turn;
    const uint64_t position = args.positions.load(token, 0).value(args.positions.is_long);
    if (position < args.table_rows)
      turn.load(args.cosines + position * args.cosine_stride, args.sines + position * args.sine_stride, low, distance);
    else
      turn.load_nan();
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      const float a = x.first(e), b = x.second(e), cosine = turn.cosine(e, false), sine = turn.sine(e, false);
      const float turned[2] = {a * cosine - b * sine, b * cosine + a * sine};
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        const int at = kIsGptj ? 2 * e + which : which * kVec + e;
        (at < kVec ? first[at] : second[at - kVec]) = turned[which];
      }
    }
  }
  const int dim = (is_latent ? args.latent_at : args.rotated_at) + low;
  if (is_key) {
    const float inverse = sizeof(Cache) == 1 && args.k_scale != nullptr ? 1.f / *args.k_scale : 1.f;
    Cache* to = static_cast<Cache*>(args.cache.data) + plane_offset<Pack::kNone>(args.cache, place, head, dim);
    put(to, first, inverse, args.has_vectors);
    put(to + distance, second, inverse, args.has_vectors);
  } else {
    const float inverse = sizeof(QueryOut) == 1 && args.q_scale != nullptr ? 1.f / *args.q_scale : 1.f;
    QueryOut* to = args.out + token * args.out_token + head * args.out_head + dim;
    put(to, first, inverse, true);
    put(to + distance, second, inverse, true);
  }
}

template <class Config>
void launch_fused_qk_rope_concat_and_cache_mla(const FusedMlaArgs<Config>& args, bool is_gptj, Stream stream) {
  const uint32_t lanes = args.tokens * args.heads.divisor * args.lanes.divisor;
  const dim3 grid((lanes + kThreads - 1) / kThreads);
  const auto kernel = is_gptj ? fused_qk_rope_concat_and_cache_mla_kernel<Config, true>
                              : fused_qk_rope_concat_and_cache_mla_kernel<Config, false>;
  launch_named("fused_qk_rope_concat_and_cache_mla_kernel", kernel, grid, kThreads, stream, args);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_fused_qk_rope_concat_and_cache_mla(const FusedMlaArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

static LatentParts<ELEMENT> latent_parts(ffi::Match& match, const ffi::Tensor& latent, const ffi::Tensor& rotated,
                                         ffi::Size& tokens, ffi::Size& heads, ffi::Size& rank, ffi::Size& pe) {
  const auto l = match.take<const ELEMENT>(latent, {tokens, heads, rank}, "q_nope or kv_c");
  const auto r = match.take<const ELEMENT>(rotated, {tokens, heads, pe}, "q_pe or k_pe");
  match.require(ffi::takes_vectors(VEC, latent, rotated), "parts must begin at multiples of this module's accesses");
  return {l, r, l.strides[0], l.strides[1], r.strides[0], r.strides[1]};
}

void fused_qk_rope_concat_and_cache_mla(ffi::Tensor q_out, ffi::Tensor kv_cache, ffi::Tensor q_nope, ffi::Tensor q_pe,
                                        ffi::Tensor kv_c, ffi::Tensor k_pe, ffi::Tensor slot_mapping,
                                        ffi::Tensor positions, ffi::Tensor cos, ffi::Tensor sin,
                                        ffi::OptionalTensor k_scale, ffi::OptionalTensor q_scale, bool is_neox,
                                        bool is_nope_first, bool compute_all_q_rope) {
  ffi::Match match("fused_qk_rope_concat_and_cache_mla");
  ffi::Size q_rows{"rows of q"}, k_rows{"rows of kv_c"}, q_heads{"heads of q"}, k_heads{"heads of kv_c"};
  ffi::Size rank{"rank"}, pe{"pe"}, tokens{"tokens"}, rows{"rows of cos"}, width{"elements of its rows"};
  FusedMlaArgs<Config> args{};
  constexpr int kVec = VEC;
  args.q = latent_parts(match, q_nope, q_pe, q_rows, q_heads, rank, pe);
  args.k = latent_parts(match, kv_c, k_pe, k_rows, k_heads, rank, pe);
  match.require(rank % (2 * kVec) == 0 && pe % (2 * kVec) == 0, "rank and pe must be multiples of two accesses");
  auto cache = ffi::take_cache<CACHE>(match, kv_cache, kv_cache, KvLayout::kRows);
  args.slots = ffi::take_slots(match, slot_mapping, tokens, cache.page_size, cache.slots);
  match.require(cache.heads == k_heads && cache.key_dim == rank + pe, "kv_cache must have the heads and width of keys");
  match.require(q_rows >= tokens && k_rows >= tokens, "q and kv_c must have a row for each slot");
  const auto results = match.take<Q_OUT>(q_out, {ffi::at_least(tokens), q_heads, rank + pe}, "q_out");
  match.require(ffi::takes_vectors(kVec, q_out), "q_out must have rows at multiples of this module's accesses");
  args.out = results, args.out_token = results.strides[0], args.out_head = results.strides[1];
  args.cache = cache.key, args.has_vectors = ffi::takes_vectors(kVec, kv_cache);
  args.q_scale = match.elements<const float>(q_scale, 1, "q_scale");
  args.k_scale = match.elements<const float>(k_scale, 1, "k_scale");
  ffi::take_tables<TABLE>(match, args, cos, sin, rows, width, kVec);
  match.require(2 * width == pe, "cos and sin must have a value per pair");
  args.table_rows = rows;
  args.positions = ffi::rope_indices(match, positions, tokens, "positions");
  args.tokens = tokens, args.q_heads = q_heads;
  const int64_t heads = q_heads + k_heads, lanes = (rank + pe) / (2 * kVec);
  match.require(tokens * heads * lanes < int64_t{1} << 31, "too many heads for one launch");
  if (tokens * heads * lanes == 0) return;
  args.lanes = Divider(lanes), args.heads = Divider(heads);
  args.latent_lanes = rank / (2 * kVec), args.rank = rank, args.pe = pe;
  args.latent_at = is_nope_first ? 0 : args.pe, args.rotated_at = is_nope_first ? args.rank : 0;
  args.all_queries = compute_all_q_rope;
  launch_fused_qk_rope_concat_and_cache_mla(args, !is_neox, ffi::stream_of(q_out));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(fused_qk_rope_concat_and_cache_mla, aiter_like::fused_qk_rope_concat_and_cache_mla);
#endif

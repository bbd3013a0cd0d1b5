// SPDX-License-Identifier: MIT
// Latent attention's queries and keys from their projections in one pass: RMSNorm over each head, rotary position
// embedding of its last `pe` elements, the rest as fp8 with a power-of-two scale per group. An entry, which takes the
// place of a head's head_dim bytes, is nope fp8 values, then each group's scale twice (e8m0, the biased exponent); the
// rotated part goes to a tensor of its own. HIP (gfx9) and CUDA. One build per combination of the macros below.
//
//   1. a Layout's lanes load a head, a query's or the token's only key, and its weights, 8 elements an access
//   2. the sum of squares over the lanes; x / sqrt(mean + epsilon) · weight in fp32
//   3. scale = the power of two at or above amax / largest of a group's lanes (quant.h), values rounded once
//   4. rotates; NeoX's other element of a pair is read again, from cache
//   5. a key goes to its slot or its token's row, and once more to a row of a pool of recent tokens (swa)
//
// Queries of Element are not quantised: a head is written whole. LDS: 4 bytes per wave. Bound: memory. A head is read
// once and written once, in fp8 nearly half of it.
#include "../kv_cache/kv_quant.h"
#include "rope.h"

#if !defined(ELEMENT) || !defined(TABLE) || !defined(Q_OUT) || !defined(LANES) || !defined(VECTORS)
#error "fused_qk_norm_rope_group_quant.hip: -DELEMENT -DTABLE=bf16|f16|float -DQ_OUT=ELEMENT|fp8 -DLANES -DVECTORS"
#endif

namespace aiter_like {

constexpr int kVec = 8;

struct Config {
  using Element = ELEMENT;
  using Table = TABLE;
  using Layout = RowLayout<LANES, VECTORS, kVec>;
  static_assert(LANES >= 16, "a group of 128 elements is 16 lanes");
  static constexpr bool kHasEntries = sizeof(Q_OUT) == 1;  // queries become entries
};

/// The memory that heads go to; strides in elements.
template <class Element>
struct EntryPlane {
  uint8_t* entries;  // bytes
  Element* rotated;
  int64_t block, row, rotated_block, rotated_row;

  __device__ uint8_t* entry(CachePlace at) const { return entries + at.block * block + at.offset * row; }
  /// Of a query that does not become an entry.
  __device__ Element* head(CachePlace at) const {
    return reinterpret_cast<Element*>(entries) + at.block * block + at.offset * row;
  }
  __device__ Element* rotary(CachePlace at) const {
    return rotated + at.block * rotated_block + at.offset * rotated_row;
  }
};

template <class Element>
struct HeadSource {
  const Element *input, *weight;  // weight may be null
  int64_t token, head;
  int group;  // elements that share a scale
};

template <class Config>
struct NormRopeArgs {
  using Element = typename Config::Element;
  HeadSource<Element> q, k;
  EntryPlane<Element> q_out, k_out, pool;  // q_out: tokens are blocks, heads are rows; its entries may be Elements
  SlotMapping slots;                       // none: a token's row is its number
  RopeIndices pool_rows, pool_blocks, batch_ids;
  Divider pool_page;
  uint32_t pool_size, sequences, blocks_per_sequence;
  const typename Config::Table *cosines, *sines;
  int64_t cosine_stride, sine_stride;
  uint32_t table_rows, tokens;
  Divider heads;  // a token has so many, its key included
  RopeIndices positions;
  int head_dim, nope;
  float epsilon;
};

/// The row of the pool for a token, if it has one.
template <class Args>
__device__ inline bool find_pool_row(const Args& args, uint32_t token, uint64_t position, CachePlace& place) {
  if (args.pool.entries == nullptr || int64_t(position) < 0) return false;
  uint64_t sequence = 0, row;
  if (args.batch_ids.data != nullptr) sequence = args.batch_ids.load(token, 0).value(args.batch_ids.is_long);
  if (int64_t(sequence) < 0) return false;
  if (args.pool_rows.data != nullptr) {
    row = args.pool_rows.load(token, 0).value(args.pool_rows.is_long);
  } else {
    if (position >> 31 || sequence >= args.sequences) return false;
    const uint32_t nth = args.pool_page.divide(static_cast<uint32_t>(position));
    if (nth >= args.blocks_per_sequence) return false;
    const uint64_t block = args.pool_blocks.load(sequence, nth).value(args.pool_blocks.is_long);
    if (block >> 31) return false;  // none, which is a negative number
    row = block * args.pool_page.divisor + (position - uint64_t{nth} * args.pool_page.divisor);
  }
  place = {0, static_cast<uint32_t>(row)};
  return row < args.pool_size;
}

/// The eight elements at `column`, normalised.
template <class Element>
__device__ inline void load_normed(const Element* head, const Element* weight, int column, float inverse_rms,
                                   float (&y)[kVec]) {
  Packed<Element, kVec> x, w;
  x.load(head + column);
  if (weight != nullptr) w.load(weight + column);
#pragma unroll
  for (int e = 0; e < kVec; ++e) y[e] = x.at(e) * inverse_rms * (weight != nullptr ? w.at(e) : 1.f);
}

/// Turns the elements at `column` of the rotated part; `other` are those of NeoX's other half.
template <bool kIsGptj, class Config>
__device__ inline void rotate(const NormRopeArgs<Config>& args, uint64_t position, int column, float (&y)[kVec],
                              const float (&other)[kVec]) {
  constexpr int kAngles = kIsGptj ? kVec / 2 : kVec;
  const int half = (args.head_dim - args.nope) / 2;
  const bool is_second = !kIsGptj && column >= half;
  const int first = kIsGptj ? column / 2 : is_second ? column - half : column;
  Packed<typename Config::Table, kAngles> cosines, sines;
  const bool is_row = position < args.table_rows;
  if (is_row) {
    cosines.load(args.cosines + position * args.cosine_stride + first);
    sines.load(args.sines + position * args.sine_stride + first);
  }
#pragma unroll
  for (int e = 0; e < kAngles; ++e) {
    const float cosine = is_row ? cosines.at(e) : __builtin_nanf(""), sine = is_row ? sines.at(e) : cosine;
    if constexpr (kIsGptj) {
      const float a = y[2 * e], b = y[2 * e + 1];
      y[2 * e] = a * cosine - b * sine, y[2 * e + 1] = b * cosine + a * sine;
    } else {
      y[e] = y[e] * cosine + other[e] * (is_second ? sine : -sine);
    }
  }
}

/// A lane's elements of a group as fp8, with its scale twice.
struct GroupValues {
  Vec<fp8, kVec> values;
  uint16_t scales;

  __device__ __forceinline__ GroupValues(float (&y)[kVec], float amax) {
    const float scale = power_of_two_above(quant_scale<fp8>(amax).scale);
    const float inverse = 1.f / scale;
#pragma unroll
    for (int e = 0; e < kVec; ++e) y[e] *= inverse;
    values = vec_from_float<fp8>(y);
    const uint32_t exponent = float_bits(scale) >> 23 & 0xFF;
    scales = static_cast<uint16_t>(exponent | exponent << 8);
  }
  __device__ __forceinline__ void write(uint8_t* entry, int column, int group, int nope) const {
    store_vec<kVec>(reinterpret_cast<fp8*>(entry) + column, values);
    if (column % group == 0) *reinterpret_cast<uint16_t*>(entry + nope + 2 * (column / group)) = scales;
  }
};

template <class Config, bool kIsGptj, class Layout = typename Config::Layout>
__global__ __launch_bounds__(Layout::kThreads) void fused_qk_norm_rope_group_quant_kernel(NormRopeArgs<Config> args) {
  await_stream();
  __shared__ RowScratch<Layout> scratch;
  const uint32_t index = static_cast<uint32_t>(Layout::row()), found = args.heads.divide(index);
  const bool is_there = found < args.tokens;  // lanes without a head take part in the sums
  const uint32_t token = is_there ? found : 0, head = is_there ? index - found * args.heads.divisor : 0;
  const bool is_key = head + 1 == args.heads.divisor;
  const auto* input = is_key ? args.k.input + token * args.k.token
                             : args.q.input + token * args.q.token + head * args.q.head;
  const auto* weight = is_key ? args.k.weight : args.q.weight;
  const int columns = is_there ? args.head_dim : 0;

  RowTile<Layout, typename Config::Element> x, w{};
  x.load(input, columns);
  if (weight != nullptr) w.load(weight, columns);
  const uint64_t position = args.positions.load(token, 0).value(args.positions.is_long);
  CachePlace place{token, is_key ? 0 : head}, pool_place{};
  bool is_written = is_there, is_pooled = false;
  if (is_key) {
    if (args.slots.slots != nullptr) is_written = is_there && args.slots.find(token, place);
    is_pooled = is_there && find_pool_row(args, token, position, pool_place);
  }
  const float squares = row_sum<Layout>(lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); }),
                                        scratch);
  const float inverse_rms = reciprocal_square_root(squares / args.head_dim + args.epsilon);
  const bool has_entry = is_key || Config::kHasEntries;
  const int group = is_key ? args.k.group : args.q.group;

#pragma unroll
  for (int v = 0; v < Layout::kVectors; ++v) {
    const int column = Layout::column(v);
    float y[kVec], amax = 0.f;
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      y[e] = x.at(v, e) * inverse_rms * (weight != nullptr ? w.at(v, e) : 1.f);
      amax = larger(amax, __builtin_fabsf(y[e]));
    }
    const float of_32 = wave_max<2>(amax), of_64 = wave_max<4>(amax), of_128 = wave_max<8>(amax);
    if (column >= columns) continue;
    if (column >= args.nope) {
      const int own = column - args.nope, half = (args.head_dim - args.nope) / 2;
      float other[kVec] = {};
      if constexpr (!kIsGptj)
        load_normed(input, weight, own < half ? column + half : column - half, inverse_rms, other);
      rotate<kIsGptj>(args, position, own, y, other);
    }
    if (!has_entry) {
      store_vec<kVec>(args.q_out.head(place) + column, vec_from_float<typename Config::Element>(y));
      continue;
    }
    const auto& out = is_key ? args.k_out : args.q_out;
    if (column >= args.nope) {
      const auto rotated = vec_from_float<typename Config::Element>(y);
      if (is_written) store_vec<kVec>(out.rotary(place) + column - args.nope, rotated);
      if (is_pooled) store_vec<kVec>(args.pool.rotary(pool_place) + column - args.nope, rotated);
      continue;
    }
    const GroupValues values(y, group == 32 ? of_32 : group == 64 ? of_64 : of_128);
    if (is_written) values.write(out.entry(place), column, group, args.nope);
    if (is_pooled) values.write(args.pool.entry(pool_place), column, group, args.nope);
  }
}

template <class Config>
void launch_fused_qk_norm_rope_group_quant(const NormRopeArgs<Config>& args, bool is_gptj, Stream stream) {
  using Layout = typename Config::Layout;
  const dim3 grid(Layout::workgroups(int64_t{args.tokens} * args.heads.divisor));
  const auto kernel = is_gptj ? fused_qk_norm_rope_group_quant_kernel<Config, true>
                              : fused_qk_norm_rope_group_quant_kernel<Config, false>;
  launch_named("fused_qk_norm_rope_group_quant_kernel", kernel, grid, Layout::kThreads, stream, args);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_fused_qk_norm_rope_group_quant(const NormRopeArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

using Args = NormRopeArgs<Config>;

/// Entries [outer, inner, head_dim] of T, and the rotated parts beside them, which are the query's or key's own.
template <class T>
EntryPlane<ELEMENT> entry_plane(ffi::Match& match, const ffi::OptionalTensor& entries,
                                const ffi::OptionalTensor& rotated, int64_t outer, const ffi::Dim& inner,
                                const Args& args, const char* name) {
  const auto taken = match.take<T>(entries, {ffi::at_least(outer), inner, args.head_dim}, name);
  if (!entries.has_value()) return {};
  const ffi::Shape beside{taken.sizes[0], taken.sizes[1], args.head_dim - args.nope};
  const auto parts = match.take<ELEMENT>(rotated, beside, "rotated parts");
  match.require(ffi::takes_vectors(kVec, entries, rotated), name, "must have rows at multiples of 8 elements");
  return {reinterpret_cast<uint8_t*>(taken.data), parts, taken.strides[0], taken.strides[1], parts.stride(0),
          parts.stride(1)};
}

const ELEMENT* weight_of(ffi::Match& match, const ffi::OptionalTensor& weight, int64_t head_dim) {
  match.require(!weight.has_value() || ffi::are_rows_aligned(*weight, 16), "weights must be aligned to 16 bytes");
  return match.elements<const ELEMENT>(weight, head_dim, "weight");
}

void check_group(const ffi::Match& match, const Args& args, int64_t group) {
  match.require((group == 32 || group == 64 || group == 128) && args.nope % group == 0 &&
                    args.nope + 2 * (args.nope / group) <= args.head_dim && (args.head_dim - args.nope) % 16 == 0,
                "groups must divide the part that is not rotated");
}

void fused_qk_norm_rope_group_quant(
    ffi::Tensor k_nope_scale_buff, ffi::Tensor k_rope_buff, ffi::OptionalTensor q_nope_scale_buff,
    ffi::OptionalTensor q_rope_buff, ffi::OptionalTensor swa_nope_scale_buff, ffi::OptionalTensor swa_rope_buff,
    ffi::OptionalTensor q, ffi::Tensor kv, ffi::OptionalTensor q_weight, ffi::OptionalTensor k_weight,
    ffi::Tensor positions, ffi::Tensor cos_cache, ffi::Tensor sin_cache, ffi::OptionalTensor slot_mapping,
    ffi::OptionalTensor swa_dest_row, ffi::OptionalTensor swa_block_tables, ffi::OptionalTensor batch_id_per_token,
    int64_t swa_block_size, int64_t q_group_size, int64_t quant_group_size, double eps, bool is_neox) {
  using Byte = ffi::Opaque<1>;
  using QueryEntry = std::conditional_t<Config::kHasEntries, Byte, Q_OUT>;
  ffi::Match match("fused_qk_norm_rope_group_quant");
  ffi::Size tokens{"tokens"}, head_dim{"head_dim", Config::Layout::kCapacity + 1}, heads{"heads"}, slots{"slots"};
  ffi::Size rows{"rows of cos"}, width{"elements of its rows"};
  Args args{};
  const auto keys = match.take<const ELEMENT>(kv, {tokens, head_dim}, "kv");
  ffi::take_tables<TABLE>(match, args, cos_cache, sin_cache, rows, width, 16 / sizeof(TABLE));
  match.require(2 * width < head_dim, "a part of each head must not be rotated");
  args.table_rows = rows, args.head_dim = head_dim, args.nope = head_dim - 2 * width;
  check_group(match, args, quant_group_size);
  args.k = {keys, weight_of(match, k_weight, head_dim), keys.strides[0], 0, static_cast<int>(quant_group_size)};
  const bool has_slots = slot_mapping.has_value();
  args.k_out = entry_plane<Byte>(match, k_nope_scale_buff, k_rope_buff, has_slots ? 0 : int64_t{tokens},
                                 has_slots ? ffi::at_least(0) : 1, args, "k_nope_scale_buff");
  if (has_slots) {
    const int64_t page_size = k_nope_scale_buff.size(1);
    args.slots = ffi::take_slots(match, *slot_mapping, slots, page_size, k_nope_scale_buff.size(0) * page_size);
    match.require(slots >= tokens && page_size > 0, "slot_mapping must have a slot for each token");
  }
  const auto queries = match.take<const ELEMENT>(q, {tokens, heads, head_dim}, "q");
  if (q.has_value()) {
    match.built(q_nope_scale_buff.has_value() && q_rope_buff.has_value() == Config::kHasEntries, "results");
    if (Config::kHasEntries) check_group(match, args, q_group_size);
    args.q = {queries, weight_of(match, q_weight, head_dim), queries.strides[0], queries.strides[1],
              static_cast<int>(q_group_size)};
    args.q_out = entry_plane<QueryEntry>(match, q_nope_scale_buff, q_rope_buff, tokens, heads, args,
                                         "q_nope_scale_buff");
  } else {
    heads.value = 0;
  }
  match.require(ffi::takes_vectors(kVec, kv, q), "rows of q and kv must be at multiples of 8 elements");
  args.pool = entry_plane<Byte>(match, swa_nope_scale_buff, swa_rope_buff, 1, ffi::at_least(0), args,
                                "swa_nope_scale_buff");
  if (swa_nope_scale_buff.has_value()) {
    args.pool_size = (*swa_nope_scale_buff).size(1);
    args.pool_rows = ffi::rope_indices(match, swa_dest_row, tokens, "swa_dest_row");
    args.batch_ids = ffi::rope_indices(match, batch_id_per_token, tokens, "batch_id_per_token");
    args.pool_blocks = ffi::rope_indices(match, swa_block_tables, 0, "swa_block_tables");
    match.require(swa_rope_buff.has_value() && swa_dest_row.has_value() != swa_block_tables.has_value(),
                  "the pool's rows must be given in one way");
    args.pool_page = Divider(swa_block_size > 0 ? swa_block_size : 1);
    if (swa_block_tables.has_value())
      args.sequences = (*swa_block_tables).size(0), args.blocks_per_sequence = (*swa_block_tables).size(1);
  }
  args.positions = ffi::rope_indices(match, positions, tokens, "positions");
  args.tokens = tokens, args.epsilon = eps;
  match.require(tokens * (heads + 1) * LANES < int64_t{1} << 31, "too many heads");
  if (tokens == 0) return;
  args.heads = Divider(heads + 1);
  launch_fused_qk_norm_rope_group_quant(args, !is_neox, ffi::stream_of(kv));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(fused_qk_norm_rope_group_quant, aiter_like::fused_qk_norm_rope_group_quant);
#endif

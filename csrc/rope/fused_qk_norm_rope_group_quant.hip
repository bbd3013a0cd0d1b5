// SPDX-License-Identifier: MIT
// Latent attention's queries and keys from their projections in one pass: RMSNorm over each head, rotary position
// embedding of its last `pe` elements, the rest as fp8 with a power-of-two scale per group. An entry, which takes the
// place of a head's head_dim bytes, is nope fp8 values, then each group's scale twice (e8m0, the biased exponent); the
// rotated part goes to a tensor of its own. HIP (gfx9) and CUDA. One build per combination of the macros below.
//
//   1. LANES lanes load a head, a query's or the token's only key, and its weights, 8 elements an access
//   2. the sum of squares over the lanes; x / sqrt(mean + epsilon) · weight in fp32
//   3. scale = the power of two at or above amax / largest of a group's lanes (quant.h), values rounded once
//   4. rotates; NeoX's other element of a pair is read again, from cache
//   5. a key goes to its slot or its token's row, and once more to a row of a pool of recent tokens (swa)
//
// Queries of ELEMENT are not quantised: a head is written whole. LDS: 4 bytes per wave. Bound: memory. A head is read
// once and written once, in fp8 nearly half of it.
#include "../kv_cache/kv_quant.h"
#include "rope.h"

#if !defined(ELEMENT) || !defined(TABLE) || !defined(Q_OUT) || !defined(LANES) || !defined(VECTORS)
#error "fused_qk_norm_rope_group_quant.hip: -DELEMENT -DTABLE=bf16|f16|float -DQ_OUT=ELEMENT|fp8 -DLANES -DVECTORS"
#endif

namespace aiter_like {

constexpr int kVec = 8;
constexpr bool kHasEntries = sizeof(Q_OUT) == 1;  // queries become entries
using Layout = RowLayout<LANES, VECTORS, kVec>;
static_assert(LANES >= 16, "a group of 128 elements is 16 lanes");

/// Where heads go; strides in elements.
struct EntryPlane {
  uint8_t* entries;  // bytes
  ELEMENT* rotated;
  int64_t block, row, rotated_block, rotated_row;

  __device__ uint8_t* entry(CachePlace at) const { return entries + at.block * block + at.offset * row; }
  __device__ ELEMENT* rotary(CachePlace at) const {
    return rotated + at.block * rotated_block + at.offset * rotated_row;
  }
};

struct HeadSource {
  const ELEMENT *input, *weight;  // weight may be null
  int64_t token, head;
  int group;  // elements that share a scale
};

struct NormRopeQuantArgs {
  HeadSource q, k;
  EntryPlane q_out, k_out, pool;  // q_out has tokens as blocks and heads as rows; its entries may be ELEMENTs
  SlotMapping slots;              // none: a token's row is its number
  RopeIndices pool_rows, pool_blocks, batch_ids;
  Divider pool_page;
  uint32_t pool_size, sequences, blocks_per_sequence;
  const TABLE *cosines, *sines;
  int64_t cosine_stride, sine_stride;
  uint32_t table_rows, tokens;
  Divider heads;  // a token has so many, its key included
  RopeIndices positions;
  int head_dim, nope;
  float epsilon;
};

/// The row of the pool for a token, if it has one.
__device__ inline bool find_pool_row(const NormRopeQuantArgs& args, uint32_t token, uint64_t position,
                                     CachePlace& place) {
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
__device__ inline void load_normed(const ELEMENT* head, const ELEMENT* weight, int column, float inverse_rms,
                                   float (&y)[kVec]) {
  Packed<ELEMENT, kVec> x, w;
  x.load(head + column);
  if (weight != nullptr) w.load(weight + column);
#pragma unroll
  for (int e = 0; e < kVec; ++e) y[e] = x.at(e) * inverse_rms * (weight != nullptr ? w.at(e) : 1.f);
}

/// Turns the elements at `column` of the rotated part; `other` are those of NeoX's other half.
template <bool kIsGptj>
__device__ inline void rotate(const NormRopeQuantArgs& args, uint64_t position, int column, float (&y)[kVec],
                              const float (&other)[kVec]) {
  constexpr int kAngles = kIsGptj ? kVec / 2 : kVec;
  const int half = (args.head_dim - args.nope) / 2;
  const bool is_second = !kIsGptj && column >= half;
  const int first = kIsGptj ? column / 2 : is_second ? column - half : column;
  Packed<TABLE, kAngles> cosines, sines;
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

template <bool kIsGptj>
__global__ __launch_bounds__(Layout::kThreads) void fused_qk_norm_rope_group_quant_kernel(NormRopeQuantArgs args) {
  await_stream();
  __shared__ RowScratch<Layout> scratch;
  const uint32_t index = static_cast<uint32_t>(Layout::row()), found = args.heads.divide(index);
  const bool is_there = found < args.tokens;  // lanes without a head take part in the sums
  const uint32_t token = is_there ? found : 0, head = is_there ? index - found * args.heads.divisor : 0;
  const bool is_key = head + 1 == args.heads.divisor;
  const ELEMENT* input = is_key ? args.k.input + token * args.k.token
                                : args.q.input + token * args.q.token + head * args.q.head;
  const ELEMENT* weight = is_key ? args.k.weight : args.q.weight;
  const int columns = is_there ? args.head_dim : 0;

  RowTile<Layout, ELEMENT> x, w{};
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
  const bool has_entry = is_key || kHasEntries;
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
      store_vec<kVec>(reinterpret_cast<ELEMENT*>(args.q_out.entries) + place.block * args.q_out.block +
                          place.offset * args.q_out.row + column, vec_from_float<ELEMENT>(y));
      continue;
    }
    const EntryPlane& out = is_key ? args.k_out : args.q_out;
    if (column >= args.nope) {
      const auto rotated = vec_from_float<ELEMENT>(y);
      if (is_written) store_vec<kVec>(out.rotary(place) + column - args.nope, rotated);
      if (is_pooled) store_vec<kVec>(args.pool.rotary(pool_place) + column - args.nope, rotated);
      continue;
    }
    const float scale =
        power_of_two_above(quant_scale<fp8>(group == 32 ? of_32 : group == 64 ? of_64 : of_128).scale);
    const float inverse = 1.f / scale;
#pragma unroll
    for (int e = 0; e < kVec; ++e) y[e] *= inverse;
    const auto values = vec_from_float<fp8>(y);
    const uint32_t exponent = float_bits(scale) >> 23 & 0xFF;
    const uint16_t both = static_cast<uint16_t>(exponent | exponent << 8);
    const auto write = [&](uint8_t* entry) {
      store_vec<kVec>(reinterpret_cast<fp8*>(entry) + column, values);
      if (column % group == 0) *reinterpret_cast<uint16_t*>(entry + args.nope + 2 * (column / group)) = both;
    };
    if (is_written) write(out.entry(place));
    if (is_pooled) write(args.pool.entry(pool_place));
  }
}

void launch_fused_qk_norm_rope_group_quant(const NormRopeQuantArgs& args, bool is_gptj, Stream stream) {
  const dim3 grid(Layout::workgroups(int64_t{args.tokens} * args.heads.divisor));
  const auto kernel = is_gptj ? fused_qk_norm_rope_group_quant_kernel<true>
                              : fused_qk_norm_rope_group_quant_kernel<false>;
  launch_overlapped(kernel, grid, Layout::kThreads, stream, args);
  check_launch("fused_qk_norm_rope_group_quant_kernel");
}

#if AITER_LIKE_HOST_PASS

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

namespace {

bool are_rows(const ffi::Tensor& tensor, int64_t outer, int64_t inner, int64_t width, int64_t element_bytes) {
  return tensor.ndim() == 3 && (outer < 0 || tensor.size(0) >= outer) && (inner < 0 || tensor.size(1) == inner) &&
         tensor.size(2) == width && ffi::takes_vectors(tensor, kVec, element_bytes);
}

/// [outer, inner, head_dim] bytes and [outer, inner, pe]; `entry_bytes` of an element of the former.
EntryPlane entry_plane(const ffi::Tensor& entries, const OptionalTensor& rotated, int64_t outer, int64_t inner,
                       const NormRopeQuantArgs& args, int64_t entry_bytes) {
  check_value(are_rows(entries, outer, inner, args.head_dim, entry_bytes),
              "fused_qk_norm_rope_group_quant: entries must be rows of head_dim at multiples of 8 elements");
  EntryPlane plane{static_cast<uint8_t*>(entries.data_ptr()), nullptr, entries.stride(0), entries.stride(1), 0, 0};
  if (!rotated.has_value()) return plane;
  const ffi::Tensor pe = rotated.value();
  check_value(ffi::has_element<ELEMENT>(pe) && pe.size(0) == entries.size(0) &&
                  are_rows(pe, -1, entries.size(1), args.head_dim - args.nope, sizeof(ELEMENT)),
              "fused_qk_norm_rope_group_quant: rotated parts must be rows of this module's dtype beside the entries");
  plane.rotated = static_cast<ELEMENT*>(pe.data_ptr());
  plane.rotated_block = pe.stride(0), plane.rotated_row = pe.stride(1);
  return plane;
}

const ELEMENT* weight_of(const OptionalTensor& weight, int64_t head_dim) {
  if (!weight.has_value()) return nullptr;
  const ffi::Rows row = ffi::rows<ELEMENT>(weight.value(), "fused_qk_norm_rope_group_quant: weight");
  check_value(row.size == head_dim && row.count == 1 && row.is_aligned(16, sizeof(ELEMENT)),
              "fused_qk_norm_rope_group_quant: weights must be [head_dim], aligned to 16 bytes");
  return static_cast<const ELEMENT*>(row.data);
}

void set_tables(NormRopeQuantArgs& args, const ffi::Tensor& cos, const ffi::Tensor& sin) {
  const ffi::Rows c = ffi::rows<TABLE>(cos, "fused_qk_norm_rope_group_quant: cos");
  const ffi::Rows s = ffi::rows<TABLE>(sin, "fused_qk_norm_rope_group_quant: sin");
  check_value(c.size == s.size && c.count == s.count && c.count < int64_t{1} << 31 &&
                  2 * c.size < args.head_dim && c.is_aligned(16, sizeof(TABLE)) && s.is_aligned(16, sizeof(TABLE)),
              "fused_qk_norm_rope_group_quant: cos and sin must be tables of one shape, rows aligned to 16 bytes");
  args.cosines = static_cast<const TABLE*>(c.data), args.sines = static_cast<const TABLE*>(s.data);
  args.cosine_stride = c.stride, args.sine_stride = s.stride, args.table_rows = static_cast<uint32_t>(c.count);
  args.nope = args.head_dim - 2 * static_cast<int>(c.size);
}

void check_group(const NormRopeQuantArgs& args, int64_t group) {
  check_value((group == 32 || group == 64 || group == 128) && args.nope % group == 0 &&
                  args.nope + 2 * (args.nope / group) <= args.head_dim && (args.head_dim - args.nope) % 16 == 0,
              "fused_qk_norm_rope_group_quant: groups must divide the part that is not rotated");
}

}  // namespace

void fused_qk_norm_rope_group_quant(
    ffi::Tensor k_nope_scale_buff, ffi::Tensor k_rope_buff, OptionalTensor q_nope_scale_buff,
    OptionalTensor q_rope_buff, OptionalTensor swa_nope_scale_buff, OptionalTensor swa_rope_buff, OptionalTensor q,
    ffi::Tensor kv, OptionalTensor q_weight, OptionalTensor k_weight, ffi::Tensor positions, ffi::Tensor cos_cache,
    ffi::Tensor sin_cache, OptionalTensor slot_mapping, OptionalTensor swa_dest_row, OptionalTensor swa_block_tables,
    OptionalTensor batch_id_per_token, int64_t swa_block_size, int64_t q_group_size, int64_t quant_group_size,
    double eps, bool is_neox) {
  NormRopeQuantArgs args{};
  const int64_t tokens = kv.size(0), head_dim = kv.size(1), heads = q.has_value() ? q.value().size(1) : 0;
  check_value(kv.ndim() == 2 && ffi::has_element<ELEMENT>(kv) && ffi::takes_vectors(kv, kVec, sizeof(ELEMENT)) &&
                  head_dim <= Layout::kCapacity && positions.size(0) >= tokens,
              "fused_qk_norm_rope_group_quant: kv must be [tokens, head_dim] of this module's dtype");
  args.head_dim = static_cast<int>(head_dim);
  set_tables(args, cos_cache, sin_cache);
  check_group(args, quant_group_size);
  args.k = {static_cast<const ELEMENT*>(kv.data_ptr()), weight_of(k_weight, head_dim), kv.stride(0), 0,
            static_cast<int>(quant_group_size)};
  const bool has_slots = slot_mapping.has_value();
  args.k_out = entry_plane(k_nope_scale_buff, k_rope_buff, has_slots ? -1 : tokens,
                           has_slots ? -1 : 1, args, 1);
  if (has_slots) {
    const ffi::CacheShape shape{k_nope_scale_buff.size(0), k_nope_scale_buff.size(1), 1, head_dim, head_dim};
    check_value(slot_mapping.value().size(0) >= tokens && shape.page_size > 0,
                "fused_qk_norm_rope_group_quant: slot_mapping must have a slot for each token");
    args.slots = ffi::slot_mapping(slot_mapping.value(), shape);
  }
  if (q.has_value()) {
    const ffi::Tensor queries = q.value(), out = q_nope_scale_buff.value();
    check_value(ffi::has_element<ELEMENT>(queries) && are_rows(queries, tokens, heads, head_dim, sizeof(ELEMENT)) &&
                    (kHasEntries ? out.dtype().bits == 8 && q_rope_buff.has_value() : ffi::has_element<Q_OUT>(out)),
                "fused_qk_norm_rope_group_quant: q must be [tokens, heads, head_dim] of this module's dtype");
    if (kHasEntries) check_group(args, q_group_size);
    args.q = {static_cast<const ELEMENT*>(queries.data_ptr()), weight_of(q_weight, head_dim), queries.stride(0),
              queries.stride(1), static_cast<int>(q_group_size)};
    args.q_out = entry_plane(out, q_rope_buff, tokens, heads, args, sizeof(Q_OUT));
  }
  if (swa_nope_scale_buff.has_value()) {
    args.pool = entry_plane(swa_nope_scale_buff.value(), swa_rope_buff, 1, -1, args, 1);
    args.pool_size = static_cast<uint32_t>(swa_nope_scale_buff.value().size(1));
    args.pool_rows = ffi::rope_indices(swa_dest_row), args.batch_ids = ffi::rope_indices(batch_id_per_token);
    args.pool_blocks = ffi::rope_indices(swa_block_tables);
    check_value(args.pool.rotated != nullptr && swa_dest_row.has_value() != swa_block_tables.has_value(),
                "fused_qk_norm_rope_group_quant: the pool's rows must be given in one way");
    args.pool_page = Divider(static_cast<uint32_t>(swa_block_size > 0 ? swa_block_size : 1));
    if (swa_block_tables.has_value()) {
      args.sequences = static_cast<uint32_t>(swa_block_tables.value().size(0));
      args.blocks_per_sequence = static_cast<uint32_t>(swa_block_tables.value().size(1));
    }
  }
  args.positions = ffi::rope_indices(positions);
  args.tokens = static_cast<uint32_t>(tokens);
  args.epsilon = static_cast<float>(eps);
  check_value(tokens * (heads + 1) * LANES < int64_t{1} << 31, "fused_qk_norm_rope_group_quant: too many heads");
  if (tokens == 0) return;
  args.heads = Divider(static_cast<uint32_t>(heads + 1));
  launch_fused_qk_norm_rope_group_quant(args, !is_neox, ffi::stream_of(kv));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(fused_qk_norm_rope_group_quant, aiter_like::fused_qk_norm_rope_group_quant);
#endif

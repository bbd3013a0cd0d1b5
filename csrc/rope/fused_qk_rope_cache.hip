// SPDX-License-Identifier: MIT
// From a layer's q, k and v to attention's inputs in one pass: RMSNorm of q and k heads (HAS_NORM), rotary position
// embedding, K and V into their slots of a paged cache (kv_cache.h), as they are or as fp8 value · (1 / scale).
// HIP (gfx9) and CUDA. One build per combination of the macros below.
//
//   1. a lane loads two packs of a head's elements, which are kVec pairs where the head is rotated there (rope.h)
//   2. HAS_NORM: the sum of squares over the head's lanes, x / sqrt(mean + epsilon) · weight
//   3. rotates in fp32; q, and k and v where they are wanted, rounded once to ELEMENT
//   4. k and v from the same fp32 values into the cache; slots outside the cache are skipped
//
// Tile: HEAD_DIM / (2 · VEC) lanes take a head of a token, the rest of a power of two idle. LDS: none. VEC elements are
// 16 bytes where heads, rotated part and strides are multiples of that.
// Bound: memory. A token moves each element of q, k and v once in, once out; weights and tables stay in cache.
#include "aiter_like/ffi.h"
#include "aiter_like/kv_cache.h"
#include "aiter_like/rope.h"

#if !defined(ELEMENT) || !defined(TABLE) || !defined(CACHE) || !defined(HEAD_DIM) || !defined(HAS_NORM) || \
    !defined(IS_SHARED) || !defined(VEC)
#error "fused_qk_rope_cache.hip: -DELEMENT=bf16|f16|float -DTABLE=… -DCACHE=ELEMENT|fp8 -DHEAD_DIM -DVEC and two flags"
#endif

namespace aiter_like {

constexpr int power_of_two(int count) { return count <= 1 ? 1 : 2 * power_of_two((count + 1) / 2); }
constexpr int kVec = VEC, kUsedLanes = HEAD_DIM / (2 * kVec), kLanes = power_of_two(kUsedLanes), kThreads = 256;
constexpr int kAccessBytes = kVec * sizeof(ELEMENT);
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
  CachePlane planes[2];   // of k, of v
  const float* scales[2];  // one each, or null for 1
  bool has_vectors[2];    // kVec neighbours of a head are neighbours in the cache
  KvLayout layout;
  SlotMapping slots;
  uint32_t slot_count;    // tokens that have one
  const TABLE *cosines, *sines;
  int64_t cosine_stride, sine_stride;
  RopeIndices positions, offsets;
  uint32_t tokens;
  int rotary_dim;
  float epsilon;
};

template <Pack kPack>
__device__ inline void put(const CachePlane& plane, bool has_vectors, CachePlace place, uint32_t head, uint32_t dim,
                           const float (&x)[kVec], float inverse) {
  float scaled[kVec];
#pragma unroll
  for (int e = 0; e < kVec; ++e) scaled[e] = x[e] * inverse;
  const auto packed = vec_from_float<CACHE>(scaled);
  CACHE* to = static_cast<CACHE*>(plane.data);
  if (has_vectors) {
    store_vec<kVec>(to + plane_offset<kPack>(plane, place, head, dim), packed);
  } else {
#pragma unroll
    for (int e = 0; e < kVec; ++e) to[plane_offset<kPack>(plane, place, head, dim + e)] = packed[e];
  }
}

template <bool kIsGptj>
__global__ __launch_bounds__(kThreads) void fused_qk_rope_cache_kernel(FusedArgs args) {
  const uint32_t lane = thread_index() % kLanes, heads = args.parts[0].count + 2 * args.parts[1].count;
  const uint32_t index = workgroup_index().x * (kThreads / kLanes) + thread_index() / kLanes;
  // Lanes of a token that is not there take part in the sum.
  const bool is_there = index / heads < args.tokens;
  const uint32_t token = is_there ? index / heads : args.tokens - 1;
  uint32_t head = index % heads;
  const uint32_t kind = (head >= args.parts[0].count) + (head >= args.parts[0].count + args.parts[1].count);
  head -= kind == 0 ? 0 : kind == 1 ? args.parts[0].count : args.parts[0].count + args.parts[1].count;
  const FusedHeads& part = args.parts[kind];

  const bool is_rotated = kind < 2 && lane < args.rotary_dim / (2 * kVec);
  const int low = is_rotated && !kIsGptj ? lane * kVec : lane * 2 * kVec;
  const int distance = is_rotated && !kIsGptj ? args.rotary_dim / 2 : kVec;
  const bool is_used = kLanes == kUsedLanes || lane < kUsedLanes;
  RopePack<ELEMENT, kVec> packs[2]{};
  if (is_used) {
    const ELEMENT* input = part.input + token * part.token + head * part.head + low;
    packs[0].load(input);
    packs[1].load(input + distance);
  }
  Turn<TABLE, kVec, kIsGptj, IS_SHARED, false> turn;
  if (is_rotated) {
    int64_t row = args.positions.at(token, 0);
    if (args.offsets.data != nullptr) row += args.offsets.at(token, 0);
    turn.load(args.cosines + row * args.cosine_stride, args.sines + row * args.sine_stride, lane * kVec, distance);
  }

  float x[2][kVec];
#pragma unroll
  for (int i = 0; i < 2 * kVec; ++i) x[i / kVec][i % kVec] = packs[i / kVec].at(i % kVec);
  if constexpr (HAS_NORM) {
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < 2 * kVec; ++i) squares += x[i / kVec][i % kVec] * x[i / kVec][i % kVec];
    if constexpr (kLanes > 1) squares = wave_sum<kLanes / 2>(squares);
    if (kind < 2 && is_used) {
      const float inverse_rms = 1.f / square_root(squares / HEAD_DIM + args.epsilon);
      packs[0].load(part.weight + low);
      packs[1].load(part.weight + low + distance);
#pragma unroll
      for (int i = 0; i < 2 * kVec; ++i) x[i / kVec][i % kVec] *= inverse_rms * packs[i / kVec].at(i % kVec);
    }
  }
  if (is_rotated) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      float& first = kIsGptj ? x[2 * e / kVec][2 * e % kVec] : x[0][e];
      float& second = kIsGptj ? x[(2 * e + 1) / kVec][(2 * e + 1) % kVec] : x[1][e];
      const float turned = first * turn.cosine(e, false) - second * turn.sine(e, false);
      second = second * turn.cosine(e, true) + first * turn.sine(e, true);
      first = turned;
    }
  }
  if (!is_there || !is_used) return;

  if (part.out != nullptr) {
    ELEMENT* out = part.out + token * part.out_token + head * part.out_head + low;
    store_vec<kVec>(out, vec_from_float<ELEMENT>(x[0]));
    store_vec<kVec>(out + distance, vec_from_float<ELEMENT>(x[1]));
  }
  CachePlace place;
  if (kind == 0 || token >= args.slot_count || !args.slots.find(token, place)) return;
  const uint32_t which = kind - 1;
  const float inverse = args.scales[which] != nullptr ? 1.f / *args.scales[which] : 1.f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t dim = low + i * distance;
    if (args.layout == KvLayout::kRows)  // one code for both: two, merged by the compiler, store in pieces
      put<Pack::kNone>(args.planes[which], args.has_vectors[which], place, head, dim, x[i], inverse);
    else if (which == 0)
      put<Pack::kDims>(args.planes[0], args.has_vectors[0], place, head, dim, x[i], inverse);
    else if (args.layout == KvLayout::kColumns)
      put<Pack::kNone>(args.planes[1], false, place, head, dim, x[i], inverse);
    else
      put<Pack::kTokens>(args.planes[1], false, place, head, dim, x[i], inverse);
  }
}

void launch_fused_qk_rope_cache(const FusedArgs& args, bool is_gptj, Stream stream) {
  const uint32_t heads = args.parts[0].count + 2 * args.parts[1].count, per_group = kThreads / kLanes;
  const dim3 grid((args.tokens * heads + per_group - 1) / per_group);
  if (is_gptj)
    fused_qk_rope_cache_kernel<true><<<grid, kThreads, 0, stream>>>(args);
  else
    fused_qk_rope_cache_kernel<false><<<grid, kThreads, 0, stream>>>(args);
  check_launch("fused_qk_rope_cache_kernel");
}

#if AITER_LIKE_HOST_PASS

using OptionalTensor = ffi::Optional<ffi::Tensor>;

static void check_heads(const ffi::Tensor& tensor, int64_t tokens) {
  ffi::check_value(ffi::has_element<ELEMENT>(tensor) && tensor.ndim() == 3 && tensor.size(0) == tokens &&
                       tensor.size(2) == HEAD_DIM && ffi::takes_vectors(tensor, kVec, sizeof(ELEMENT)),
                   "fused_qk_rope_cache: q, k, v and their outputs must be [tokens, heads, head_dim] of one dtype, "
                   "heads at multiples of this module's accesses");
}

static FusedHeads fused_heads(const ffi::Tensor& input, const OptionalTensor& out, const OptionalTensor& weight) {
  FusedHeads result{};
  check_heads(input, input.size(0));
  result.input = static_cast<const ELEMENT*>(input.data_ptr());
  result.token = input.stride(0), result.head = input.stride(1);
  result.count = static_cast<uint32_t>(input.size(1));
  if (out.has_value()) {
    check_heads(out.value(), input.size(0));
    result.out = static_cast<ELEMENT*>(out.value().data_ptr());
    result.out_token = out.value().stride(0), result.out_head = out.value().stride(1);
  }
  ffi::check_value(weight.has_value() == HAS_NORM, "fused_qk_rope_cache: this module was built for other flags");
  if (weight.has_value()) {
    const ffi::Rows row = ffi::rows<ELEMENT>(weight.value(), "fused_qk_rope_cache: weight");
    ffi::check_value(row.size == HEAD_DIM && row.is_aligned(kAccessBytes, sizeof(ELEMENT)),
                     "fused_qk_rope_cache: weights must be [head_dim] at a multiple of this module's accesses");
    result.weight = static_cast<const ELEMENT*>(row.data);
  }
  return result;
}

void fused_qk_rope_cache(ffi::Tensor q_out, OptionalTensor k_out, OptionalTensor v_out, ffi::Tensor key_cache,
                         ffi::Tensor value_cache, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                         OptionalTensor q_weight, OptionalTensor k_weight, ffi::Tensor cos, ffi::Tensor sin,
                         ffi::Tensor positions, OptionalTensor offsets, ffi::Tensor slot_mapping,
                         OptionalTensor k_scale, OptionalTensor v_scale, double epsilon, int64_t rotate_style,
                         bool reuse_freqs_front_part, ffi::String layout_name) {
  const KvLayout layout = ffi::layout_of(layout_name);
  const ffi::CacheShape shape = ffi::cache_shape(key_cache, value_cache, layout);
  FusedArgs args{};
  args.parts[0] = fused_heads(q, q_out, q_weight);
  args.parts[1] = fused_heads(k, k_out, k_weight);
  args.parts[2] = fused_heads(v, v_out, k_weight);  // a weight that v does not read
  ffi::check_value(k.size(0) == q.size(0) && v.size(0) == q.size(0) && v.size(1) == k.size(1) &&
                       shape.heads == k.size(1) && shape.key_dim == HEAD_DIM && shape.value_dim == HEAD_DIM,
                   "fused_qk_rope_cache: q, k, v and the caches must fit each other");
  ffi::check_type(ffi::has_element<CACHE>(key_cache) && ffi::has_element<CACHE>(value_cache),
                  "fused_qk_rope_cache: the caches have another dtype than this module was built for");
  args.planes[0] = ffi::key_plane(key_cache);
  args.planes[1] = ffi::value_plane(value_cache, layout);
  args.has_vectors[0] = ffi::takes_vectors(key_cache, kVec, sizeof(CACHE));
  args.has_vectors[1] = layout == KvLayout::kRows && ffi::takes_vectors(value_cache, kVec, sizeof(CACHE));
  const OptionalTensor scales[] = {k_scale, v_scale};
  for (int i = 0; i < 2; ++i) {
    if (!scales[i].has_value()) continue;
    ffi::check_type(ffi::has_element<float>(scales[i].value()) && scales[i].value().numel() == 1,
                    "fused_qk_rope_cache: scales must be 1 fp32 element");
    args.scales[i] = static_cast<const float*>(scales[i].value().data_ptr());
  }
  args.layout = layout;
  args.slots = ffi::slot_mapping(slot_mapping, shape);
  args.slot_count = static_cast<uint32_t>(slot_mapping.size(0));

  const ffi::Rows c = ffi::rows<TABLE>(cos, "fused_qk_rope_cache: cos");
  const ffi::Rows s = ffi::rows<TABLE>(sin, "fused_qk_rope_cache: sin");
  args.rotary_dim = static_cast<int>(IS_SHARED ? 2 * c.size : c.size);
  constexpr int64_t kBytes = kVec * sizeof(TABLE) < 16 ? kVec * sizeof(TABLE) : 16;
  ffi::check_value(reuse_freqs_front_part == IS_SHARED && c.size == s.size && c.count == s.count &&
                       c.count < int64_t{1} << 31 &&
                       args.rotary_dim <= HEAD_DIM && args.rotary_dim % (2 * kVec) == 0 &&
                       c.is_aligned(kBytes, sizeof(TABLE)) && s.is_aligned(kBytes, sizeof(TABLE)),
                   "fused_qk_rope_cache: cos and sin must be tables of one shape, rows at multiples of an access, that "
                   "turn a multiple of two accesses");
  args.cosines = static_cast<const TABLE*>(c.data), args.sines = static_cast<const TABLE*>(s.data);
  args.cosine_stride = c.stride, args.sine_stride = s.stride;
  args.positions = ffi::rope_indices(positions);
  args.offsets = ffi::rope_indices(offsets);
  args.epsilon = static_cast<float>(epsilon);
  args.tokens = static_cast<uint32_t>(q.size(0));
  const int64_t lanes = q.size(0) * (q.size(1) + 2 * k.size(1)) * kLanes;
  ffi::check_value(lanes < int64_t{1} << 31, "fused_qk_rope_cache: too many heads for one launch");
  if (lanes == 0) return;
  launch_fused_qk_rope_cache(args, rotate_style != 0, ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(fused_qk_rope_cache, aiter_like::fused_qk_rope_cache);
#endif

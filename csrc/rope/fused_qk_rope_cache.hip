// SPDX-License-Identifier: MIT
// fused_qk_rope_cache of PyTorch tensors; fused_qk_rope_cache_body.h has the kernel. One build per combination of the
// macros.
#include "aiter_like/ffi.h"
#include "fused_qk_rope_cache_body.h"

#if !defined(ELEMENT) || !defined(TABLE) || !defined(CACHE) || !defined(HEAD_DIM) || !defined(HAS_NORM) || \
    !defined(IS_SHARED) || !defined(VEC) || !defined(THREADS) || !defined(SHARE)
#error "fused_qk_rope_cache.hip: -DELEMENT -DTABLE=bf16|f16|float -DCACHE=ELEMENT|fp8 -DHEAD_DIM -DVEC -DSHARE…"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Table = TABLE;
  using Cache = CACHE;
  static constexpr int kHeadDim = HEAD_DIM, kVec = VEC, kThreads = THREADS;
  static constexpr uint32_t kShare = SHARE;  // heads of a lane, at most
  static constexpr bool kHasNorm = HAS_NORM;
  static constexpr bool kIsShared = IS_SHARED;  // both elements of a pair have one angle
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_fused_qk_rope_cache(FusedArgs<Config>, bool, Form, Stream);

#if AITER_LIKE_HOST_PASS

using Body = FusedBody<Config>;

static Body::Heads fused_heads(ffi::Match& match, const ffi::Tensor& input, const ffi::OptionalTensor& out,
                               const ffi::OptionalTensor& weight, ffi::Size& tokens, ffi::Size& heads,
                               const char* name, const char* out_name) {
  const auto x = match.take<const ELEMENT>(input, {tokens, heads, Body::kHeadDim}, name);
  const auto y = match.take<ELEMENT>(out, {tokens, heads, Body::kHeadDim}, out_name);
  match.require(ffi::takes_vectors(Body::kVec, input, out), name,
                "must have heads at multiples of this module's accesses");
  match.built(weight.has_value() == Config::kHasNorm);
  match.require(!weight.has_value() || ffi::are_rows_aligned(*weight, Body::kAccessBytes),
                "weights must begin at a multiple of this module's accesses");
  Body::Heads result{};
  result.input = x, result.token = x.strides[0], result.head = x.strides[1], result.count = heads;
  result.out = y, result.out_token = y.stride(0), result.out_head = y.stride(1);
  result.weight = match.elements<const ELEMENT>(weight, Body::kHeadDim, "weight");
  return result;
}

void fused_qk_rope_cache(ffi::Tensor q_out, ffi::OptionalTensor k_out, ffi::OptionalTensor v_out,
                         ffi::Tensor key_cache, ffi::Tensor value_cache, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                         ffi::OptionalTensor q_weight, ffi::OptionalTensor k_weight, ffi::Tensor cos, ffi::Tensor sin,
                         ffi::Tensor positions, ffi::OptionalTensor offsets, ffi::Tensor slot_mapping,
                         ffi::OptionalTensor k_scale, ffi::OptionalTensor v_scale, double epsilon,
                         int64_t rotate_style, bool reuse_freqs_front_part, ffi::String layout_name) {
  ffi::Match match("fused_qk_rope_cache");
  match.built(reuse_freqs_front_part == Config::kIsShared);
  ffi::Size tokens{"tokens"}, heads{"heads"}, kv_heads{"kv_heads"}, slots{"slots"};
  ffi::Size rows{"rows of cos"}, width{"elements of its rows"};
  Body::Args args{};
  args.parts[0] = fused_heads(match, q, q_out, q_weight, tokens, heads, "q", "q_out");
  args.parts[1] = fused_heads(match, k, k_out, k_weight, tokens, kv_heads, "k", "k_out");
  // v does not read the weight.
  args.parts[2] = fused_heads(match, v, v_out, k_weight, tokens, kv_heads, "v", "v_out");
  args.layout = ffi::layout_of(match, layout_name);
  const auto cache = ffi::take_cache<CACHE>(match, key_cache, value_cache, args.layout);
  match.require(cache.heads == kv_heads && cache.key_dim == Body::kHeadDim && cache.value_dim == Body::kHeadDim,
                "the caches must have the heads of k and v");
  const bool is_rows = args.layout == KvLayout::kRows;
  args.planes[0] = cache.key, args.planes[1] = cache.value;
  args.has_vectors[0] = ffi::takes_vectors(Body::kVec, key_cache);
  args.has_vectors[1] = is_rows && ffi::takes_vectors(Body::kVec, value_cache);
  args.scales[0] = match.elements<const float>(k_scale, 1, "k_scale");
  args.scales[1] = match.elements<const float>(v_scale, 1, "v_scale");
  args.slots = ffi::take_slots(match, slot_mapping, slots, cache.page_size, cache.slots);
  args.slot_count = slots;
  ffi::take_tables<TABLE>(match, args, cos, sin, rows, width, Body::kVec);
  args.rows = rows, args.rotary_dim = width * (Config::kIsShared ? 2 : 1);
  match.require(args.rotary_dim <= Body::kHeadDim && args.rotary_dim % (2 * Body::kVec) == 0,
                "cos and sin must turn a multiple of two accesses");
  args.positions = ffi::rope_indices(match, positions, tokens, "positions");
  args.offsets = ffi::rope_indices(match, offsets, tokens, "offsets");
  args.epsilon = epsilon, args.tokens = tokens;
  const int64_t lanes = tokens * (heads + 2 * kv_heads) * Body::kLanes;
  match.require(lanes < int64_t{1} << 31, "too many heads for one launch");
  if (lanes == 0) return;
  const bool has_values =
      is_rows ? args.has_vectors[1] : Body::kHasTiles && ffi::takes_vectors(Body::kPack, value_cache);
  const Form form = !args.has_vectors[0] || !has_values ? Form::kAny : is_rows ? Form::kRows : Form::kPacked;
  launch_fused_qk_rope_cache(args, rotate_style != 0, form, ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(fused_qk_rope_cache, aiter_like::fused_qk_rope_cache);
#endif

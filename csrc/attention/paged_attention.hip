// SPDX-License-Identifier: MIT
// Decoding over pages for gfx942: paged_attention_body.h has its steps. One build per element, head dimensions, rows,
// kind of page, and whether scores have further terms or keys scales of their own.
//
//   out = Σ p v / Σ p,  p = 2^(score − max),  score = log2 e · (softcap(softmax_scale · q kᵀ) − alibi), masked
//
// Bound: memory, (HEAD_DIM + HEAD_DIM_V) · bytes per key and KV head; a tile of 8 KB of K and one of V of each of four
// waves are under way, 64 KB of a workgroup. LDS: 32 KB at most, so that two workgroups fit.
#include "attention_host.h"
#include "paged_attention_merge.h"

#if !defined(ELEMENT) || !defined(QUERY_ELEMENT) || !defined(CACHE_ELEMENT) || !defined(OUT_ELEMENT) || \
    !defined(HEAD_DIM) || !defined(HEAD_DIM_V) || !defined(BLOCK_ROWS) || !defined(PAGE_FORM) || \
    !defined(HAS_TERMS) || !defined(HAS_QUERY_SCALE) || \
    !defined(HAS_TOKEN_SCALES) || !defined(LEAST_KEYS) || !defined(PARTS_PER_CU) || !defined(PART_COST) || \
    !defined(MOST_ROUNDS)
#error "paged_attention.hip: the macros that ops/attention/paged_attention_hip.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using QueryElement = QUERY_ELEMENT;
  using CacheElement = CACHE_ELEMENT;
  using OutElement = OUT_ELEMENT;
  static constexpr int kHeadDim = HEAD_DIM, kHeadDimV = HEAD_DIM_V, kRows = BLOCK_ROWS;
  static constexpr paged::Form kForm = paged::Form::PAGE_FORM;
  static constexpr bool kHasTerms = HAS_TERMS, kHasTokenScales = HAS_TOKEN_SCALES, kHasQueryScale = HAS_QUERY_SCALE;
};
using Shape = paged::Shape<Config>;
using Args = Shape::Args;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) __attribute__((amdgpu_waves_per_eu(2)))
void paged_attention_kernel(Args args) {
  __shared__ Shape::Lds lds;
  paged::attend_body<Config>(args, lds);
}

__global__ __launch_bounds__(Shape::kThreads) void paged_attention_merge_kernel(Args args) {
  __shared__ paged::MergeLds<Config> lds;
  paged::merge_body<Config>(args, lds);
}

void launch_paged_attention(const Args& args, uint32_t workgroups, uint32_t merges, Stream stream) {
  paged_attention_kernel<<<workgroups, Shape::kThreads, 0, stream>>>(args);
  check_launch("paged_attention_kernel");
  if (merges == 0) return;
  paged_attention_merge_kernel<<<merges, Shape::kThreads, 0, stream>>>(args);
  check_launch("paged_attention_merge_kernel");
}

#if AITER_LIKE_HOST_PASS

namespace {

using ffi::OptionalTensor;

constexpr int64_t kMost = int64_t{1} << 30;

struct Sizes {
  ffi::Size total_q{"total_q", kMost}, heads{"num_heads"}, head_dim{"head_dim"}, head_dim_v{"head_dim_v"};
  ffi::Size pages{"pages"}, page_size{"page_size"}, kv_heads{"num_kv_heads"};
  ffi::Size batch{"batch", 65536}, entries{"entries"};  // entries: of the block table, or of a row of it
};

/// One scale for all, or those of a shape.
ffi::View<const float> scales_of(ffi::Match& match, const OptionalTensor& scale, const ffi::Shape& shape,
                                 const char* name) {
  if (scale.has_value() && (*scale).numel() == 1) return {match.elements<const float>(scale, 1, name)};
  return match.take<const float>(scale, shape, name, ffi::kStrided);
}

PagedScale cache_scales(ffi::Match& match, const OptionalTensor& tensor, Sizes& sizes, const char* name) {
  if (HAS_TOKEN_SCALES) {
    const auto scale = scales_of(match, tensor, {sizes.pages, sizes.page_size, sizes.kv_heads}, name);
    return {scale, scale.stride(0), scale.stride(1), scale.stride(2), 0};
  }
  const auto scale = scales_of(match, tensor, {sizes.batch, sizes.kv_heads}, name);
  return {scale, 0, 0, scale.stride(1), scale.stride(0)};
}

int log2_of(int64_t x) { return 63 - __builtin_clzll(static_cast<uint64_t>(x)); }
int64_t pack_of(const ffi::Tensor& pages) { return pages.ndim() == 5 && pages.size(4) > 0 ? pages.size(4) : 1; }

/// K and V, and how far their parts are from one another.
void set_pages(ffi::Match& match, Args& args, const ffi::Tensor& k, const ffi::Tensor& v, Sizes& sizes) {
  using T = const Shape::CacheElement;
  auto& [total_q, heads, head_dim, head_dim_v, pages, page_size, kv_heads, batch, entries] = sizes;
  constexpr int kSize = sizeof(T), kPack = 16 / kSize;
  constexpr bool kIsPacked = Config::kForm == paged::Form::kPacked, kIsRows = Config::kForm == paged::Form::kRows;
  const bool k_has_packs = k.ndim() == 5, v_has_packs = v.ndim() == 5;
  const int64_t k_pack = pack_of(k), v_pack = pack_of(v);
  const auto keys = k_has_packs
                        ? match.take<T>(k, {pages, page_size, kv_heads, head_dim / k_pack, k_pack}, "k")
                        : match.take<T>(k, {pages, page_size, kv_heads, head_dim}, "k");
  const auto values =
      v_has_packs
          ? match.take<T>(v, {pages, page_size / v_pack, kv_heads, head_dim_v, v_pack}, "v", ffi::kStrided)
          : match.take<T>(v, {pages, page_size, kv_heads, head_dim_v}, "v", ffi::kStrided);
  match.require(((k_pack & (k_pack - 1)) | (v_pack & (v_pack - 1)) | head_dim % k_pack | page_size % v_pack) == 0,
                "packs of k and v must be powers of two that divide head_dim and page_size");
  match.built(!kIsRows || (!k_has_packs && !v_has_packs && values.strides[3] == 1), "layouts of pages");
  match.built(!kIsPacked || (k_pack == kPack && page_size % kPack == 0 &&
                             (v_has_packs ? v_pack == kPack && values.strides[4] == 1 : values.strides[1] == 1)),
              "layouts of pages");
  args.k = keys, args.v = values;
  args.k_page = keys.strides[0], args.k_place = keys.strides[1], args.k_head = keys.strides[2];
  args.v_page = values.strides[0], args.v_head = values.strides[2];
  args.v_place = kIsPacked && !v_has_packs ? kPack : values.strides[1];
  args.packs = {keys.strides[3] * kSize, values.strides[3] * kSize, v_has_packs ? values.strides[4] * kSize : 0,
                log2_of(k_pack), log2_of(v_pack), static_cast<int>(head_dim), static_cast<int>(head_dim_v)};
}

constexpr int kMergesPerCu = 8;  // workgroups of the merge at once on a CU: its waves' registers leave room for all
constexpr int kPartsPerWave = 8;  // that one wave of the merge reads at once

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

/// best_share of ops/attention/paged_attention_call.py.
int64_t best_share(int64_t batch, int64_t longest, int64_t at_once) {
  int64_t best = batch, least = -1;
  for (int64_t parts = 1; parts <= ceil_div(longest, LEAST_KEYS); ++parts) {
    if (parts > 1 && batch * parts > MOST_ROUNDS * at_once) break;
    const int64_t cost = ceil_div(batch * parts, at_once) * (ceil_div(longest, parts) + PART_COST);
    if (least < 0 || cost < least) best = batch * parts, least = cost;
  }
  return best;
}

void set_lengths(ffi::Match& match, Args& args, Sizes& sizes, const OptionalTensor& cu_seqlens_q,
                 const OptionalTensor& seqlens_k, const OptionalTensor& page_starts, int64_t max_seqlen_q,
                 int64_t capacity) {
  auto& [total_q, heads, head_dim, head_dim_v, pages, page_size, kv_heads, batch, entries] = sizes;
  ffi::Size starts{"batch + 1, or batch"};
  auto& lengths = args.plan.lengths;
  lengths = {match.take<const int32_t>(cu_seqlens_q, {starts}, "cu_seqlens_q"),
             match.take<const int32_t>(seqlens_k, {batch}, "seqlens_k"),
             match.take<const int32_t>(page_starts, {batch + 1}, "page_starts"),
             static_cast<int>(batch), cu_seqlens_q.has_value() ? static_cast<int>(starts) : 0,
             static_cast<int>(total_q), static_cast<int>(max_seqlen_q), static_cast<int>(page_size),
             static_cast<int>(capacity)};
  match.require((page_starts.has_value() || seqlens_k.has_value()) &&
                    (cu_seqlens_q.has_value() ? starts == batch || starts == batch + 1
                                              : total_q == batch * max_seqlen_q),
                "lengths must be those of the batch");
}

void set_scales(ffi::Match& match, Args& args, Sizes& sizes, const OptionalTensor& q_scale,
                const OptionalTensor& k_scale, const OptionalTensor& v_scale, const OptionalTensor& out_scale) {
  const auto query_scale = scales_of(match, q_scale, {sizes.total_q, sizes.heads}, "q_scale");
  args.q_scale = query_scale, args.q_scale_row = query_scale.stride(0), args.q_scale_head = query_scale.stride(1);
  args.k_scale = cache_scales(match, k_scale, sizes, "k_scale");
  args.v_scale = cache_scales(match, v_scale, sizes, "v_scale");
  args.out_scale = match.elements<const float>(out_scale, 1, "out_scale");
}

/// Sets what is added to the scores, ALiBi and sinks, and the mask of a tree of drafts.
void set_scores(ffi::Match& match, Args& args, Sizes& sizes, const OptionalTensor& alibi_slopes,
                const OptionalTensor& sink, const OptionalTensor& tree_mask, int64_t max_seqlen_q) {
  auto& [total_q, heads, head_dim, head_dim_v, pages, page_size, kv_heads, batch, entries] = sizes;
  if (sink.has_value())
    args.sink = {match.elements<const void>(sink, heads, "sink"), match.one_of<float, bf16, f16>(*sink, "sink")};
  const ffi::Slopes slopes = ffi::slopes_of(match, alibi_slopes, batch, heads);
  args.alibi_slopes = slopes.data, args.alibi_batch = slopes.batch;
  if (!tree_mask.has_value()) return;
  const int last = (*tree_mask).ndim() - 1;
  const ffi::Dim queries = ffi::at_least(max_seqlen_q);
  const ffi::Shape shape = last == 2 ? ffi::Shape{batch, queries, queries} : ffi::Shape{queries, queries};
  const auto mask = match.take<const bool>(tree_mask, shape, "tree_mask", ffi::kStrided);
  args.tree = reinterpret_cast<const uint8_t*>(mask.data);
  args.tree_batch = last == 2 ? mask.stride(0) : 0;
  args.tree_row = mask.stride(last - 1), args.tree_column = mask.stride(last);
}

void set_sizes(Args& args, const Sizes& sizes, int64_t max_seqlen_q) {
  const int64_t heads = sizes.heads, group = heads / sizes.kv_heads;
  args.page_size = Divider(sizes.page_size), args.num_pages = sizes.pages;
  args.kv_heads = Divider(sizes.kv_heads), args.group = Divider(group), args.num_heads = heads;
  args.queries = Divider(max_seqlen_q), args.blocks = Divider(ceil_div(max_seqlen_q * group, BLOCK_ROWS));
  args.merged_rows = Divider(max_seqlen_q * heads);
}

/// Parts of a sequence at most; parts that all are to have together, or 0; workgroups of a head; parts with results of
/// their own.
struct Parts {
  int64_t most, share, grid, slots;
};

/// Parts of ops/attention/paged_attention_call.py, whose constants these macros are.
Parts parts_of(int64_t batch, int64_t kv_heads, int64_t max_seqlen_k, int64_t num_splits, int64_t compute_units) {
  const int64_t longest = max_seqlen_k > 1 ? max_seqlen_k : 1;
  Parts parts;
  auto& [most, share, grid, slots] = parts;
  most = num_splits > 0 ? num_splits : ceil_div(longest, LEAST_KEYS);
  share = 0, grid = batch * most;
  slots = most > 1 ? grid : 0;
  if (num_splits == 0) {
    const int64_t at_once = int64_t{PARTS_PER_CU} * compute_units / kv_heads;
    share = best_share(batch, longest, at_once > 0 ? at_once : 1);
    grid = least_of(batch + share, grid);
    slots = least_of(2 * share, slots);
  }
  return parts;
}

}  // namespace

void paged_attention(ffi::Tensor out, OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                     ffi::Tensor block_table, OptionalTensor seqlens_k, OptionalTensor page_starts,
                     OptionalTensor cu_seqlens_q, OptionalTensor q_scale, OptionalTensor k_scale,
                     OptionalTensor v_scale, OptionalTensor out_scale, OptionalTensor alibi_slopes, OptionalTensor sink,
                     OptionalTensor tree_mask, OptionalTensor workspace, int64_t max_seqlen_q, int64_t max_seqlen_k,
                     double softmax_scale, int64_t window_left, double softcap, int64_t num_splits) {
  ffi::Match match("paged_attention");
  Sizes sizes;
  auto& [total_q, heads, head_dim, head_dim_v, pages, page_size, kv_heads, batch, entries] = sizes;
  Args args{};
  args.q = match.take<const Shape::QueryElement>(q, {total_q, heads, head_dim}, "q");
  args.out = match.take<Shape::OutElement>(out, {total_q, heads, head_dim_v}, "out");
  set_pages(match, args, k, v, sizes);
  match.built(Shape::kIsPadded ? head_dim <= HEAD_DIM && head_dim_v <= HEAD_DIM_V
                               : head_dim == HEAD_DIM && head_dim_v == HEAD_DIM_V, "head dimensions");
  match.built(HAS_TERMS || (!tree_mask.has_value() && !alibi_slopes.has_value() && softcap == 0));
  match.built(q_scale.has_value() == HAS_QUERY_SCALE, "scales of q");
  match.require(kv_heads > 0 && heads % kv_heads == 0 && page_size > 0, "heads of k must divide those of q");
  ffi::check_scale(match, softmax_scale);
  const bool is_ragged = page_starts.has_value();
  if (is_ragged) batch.value = (*page_starts).numel() - 1;
  args.block_table = is_ragged ? match.take<const int32_t>(block_table, {entries}, "block_table")
                               : match.take<const int32_t>(block_table, {batch, entries}, "block_table");
  const int64_t capacity = is_ragged ? entries : entries * page_size;
  match.require(max_seqlen_q >= 0 && max_seqlen_q * heads < kMost && block_table.numel() * page_size < kMost * 64 &&
                    entries * page_size < kMost && batch <= 65535,
                "at most 65535 sequences of less than 2^30 keys, max_seqlen_q at least 0");
  if (batch <= 0 || max_seqlen_q == 0 || total_q == 0 || heads == 0 || pages == 0) return;

  args.table_row = is_ragged ? 0 : block_table.stride(0);
  set_lengths(match, args, sizes, cu_seqlens_q, seqlens_k, page_starts, max_seqlen_q, capacity);
  args.q_row = q.stride(0), args.q_head = q.stride(1), args.out_row = out.stride(0), args.out_head = out.stride(1);
  const auto sums = match.take<float>(lse, {heads, total_q}, "lse", ffi::kStrided);
  args.lse = sums, args.lse_head = sums.stride(0), args.lse_row = sums.stride(1);
  set_scales(match, args, sizes, q_scale, k_scale, v_scale, out_scale);
  set_scores(match, args, sizes, alibi_slopes, sink, tree_mask, max_seqlen_q);
  set_sizes(args, sizes, max_seqlen_q);
  args.softmax_scale = softmax_scale, args.softcap = softcap;
  args.plan.window_left = window_left < 0 ? -1 : static_cast<int>(least_of(window_left, kMost));

  const auto [most, share, grid, slots] =
      parts_of(batch, kv_heads, max_seqlen_k, num_splits, num_compute_units(q.device().device_id));
  args.plan.share = share, args.plan.most = most, args.plan.least = LEAST_KEYS;
  args.plan.by_share = Divider(share > 0 ? share : 1);
  args.plan.is_split = most > 1;
  const int64_t sums_of_slots = slots * heads * max_seqlen_q * (head_dim_v + 2);
  args.sums = slots * heads * max_seqlen_q * head_dim_v;
  const int64_t bytes = slots > 0 ? sums_of_slots * 4 + batch * sizeof(paged::Split) : 0;
  // A row takes all of a workgroup where there may be many parts, and rows do not fill the device.
  const int64_t merged_rows = slots > 0 ? batch * heads * max_seqlen_q : 0;
  const bool is_wide = most > kPartsPerWave && (share == 0 || share > kPartsPerWave) &&
                       merged_rows <= int64_t{kMergesPerCu} * num_compute_units(q.device().device_id);
  args.merge_shift = is_wide ? 2 : 0;
  const int64_t workgroups = grid * kv_heads * args.blocks.divisor;
  const int64_t merges = is_wide ? merged_rows : ceil_div(merged_rows, paged::kWaves);
  match.require(workgroups < kMost && merges < kMost, "too many rows and parts for one launch");
  const ffi::Scratch memory(bytes, q.device(), match.memory(workspace, bytes, 4));
  args.parts = memory.data<float>();
  if (bytes > 0) args.splits = reinterpret_cast<paged::Split*>(args.parts + sums_of_slots);
  launch_paged_attention(args, static_cast<uint32_t>(workgroups), static_cast<uint32_t>(merges), ffi::stream_of(q));
}

/// The fields of unified_attention's call where its sequences have a few queries each.
void unified_attention(ffi::Tensor out, OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                       ffi::Tensor cu_seqlens_q, OptionalTensor seqlens_k, ffi::Tensor block_table,
                       OptionalTensor page_starts, OptionalTensor q_descale, OptionalTensor k_descale,
                       OptionalTensor v_descale, OptionalTensor alibi_slopes, OptionalTensor output_scale,
                       OptionalTensor qq_bias, OptionalTensor sink, int64_t max_seqlen_q, int64_t max_seqlen_k,
                       double softmax_scale, int64_t window_left, int64_t window_right, int64_t sink_size,
                       double softcap) {
  const ffi::Match match("unified_attention");
  match.require(!qq_bias.has_value() && sink_size == 0 && (window_right == 0 || max_seqlen_q <= 1),
                "the kernel of decoding takes causal calls without qq_bias and sink tokens");
  constexpr bool kHasScales = sizeof(Shape::CacheElement) == 1;  // those of 16-bit caches do not count
  const OptionalTensor none;
  paged_attention(out, lse, q, k, v, block_table, seqlens_k, page_starts, cu_seqlens_q,
                  sizeof(Shape::QueryElement) == 1 ? q_descale : none,
                  kHasScales ? k_descale : none, kHasScales ? v_descale : none, output_scale, alibi_slopes, sink, none,
                  none, max_seqlen_q, max_seqlen_k, softmax_scale, window_left, softcap, 0);
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(paged_attention, aiter_like::paged_attention);
AITER_LIKE_EXPORT(unified_attention, aiter_like::unified_attention);
#endif

// SPDX-License-Identifier: MIT
// Decoding over pages for gfx942: paged_attention_body.h has its steps. One build per element, head dimensions, rows,
// kind of page, and whether scores have further terms or keys scales of their own.
//
//   out = Σ p v / Σ p,  p = 2^(score − max),  score = log2 e · (softcap(softmax_scale · q kᵀ) − alibi), masked
//
// Bound: memory, (HEAD_DIM + HEAD_DIM_V) · bytes per key and KV head; a tile of 8 KB of K and one of V of each of four
// waves are under way, 64 KB of a workgroup. LDS: 32 KB at most, so that two workgroups fit.
#include <type_traits>

#include "aiter_like/ffi.h"
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

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

template <class T>
T* data_of(const ffi::Tensor& tensor, int ndim, const char* message) {
  ffi::check_type(ffi::has_element<std::remove_const_t<T>>(tensor), message);
  check_value(tensor.ndim() == ndim && (tensor.size(ndim - 1) <= 1 || tensor.stride(ndim - 1) == 1), message);
  return static_cast<T*>(tensor.data_ptr());
}

const int* indices(const OptionalTensor& tensor, const char* message) {
  if (!tensor.has_value()) return nullptr;
  return data_of<const int32_t>(tensor.value(), 1, message);
}

/// The data of an fp32 tensor of `count` elements along its last dimension; null for none.
const float* floats(const OptionalTensor& tensor, int64_t count, const char* message) {
  if (!tensor.has_value()) return nullptr;
  const ffi::Tensor value = tensor.value();
  ffi::check_type(ffi::is_f32(value), message);
  const int last = value.ndim() - 1;
  check_value(last < 0 ? count == 1 : value.size(last) == count && (count == 1 || value.stride(last) == 1), message);
  return static_cast<const float*>(value.data_ptr());
}

PagedScale scale_of(const OptionalTensor& tensor) {
  if (!tensor.has_value()) return {};
  const ffi::Tensor value = tensor.value();
  ffi::check_type(ffi::is_f32(value), "paged_attention: scales of k and v must be float32");
  const auto* data = static_cast<const float*>(value.data_ptr());
  if (value.numel() == 1) return {data, 0, 0, 0, 0};
  check_value(value.ndim() == (HAS_TOKEN_SCALES ? 3 : 2),
              "paged_attention: scales of k and v must have one element, or the dimensions that this module was built "
              "for");
  if (HAS_TOKEN_SCALES) return {data, value.stride(0), value.stride(1), value.stride(2), 0};
  return {data, 0, 0, value.stride(1), value.stride(0)};
}

PagedSinks sinks_of(const OptionalTensor& tensor, int64_t heads) {
  if (!tensor.has_value()) return {};
  const ffi::Tensor value = tensor.value();
  const bool is_bf16 = ffi::has_element<bf16>(value);
  ffi::check_type(is_bf16 || ffi::has_element<f16>(value) || ffi::is_f32(value),
                  "paged_attention: sink must be float32, bfloat16 or float16");
  check_value(value.numel() == heads && value.IsContiguous(), "paged_attention: sink must have shape [num_heads]");
  const auto form = ffi::is_f32(value) ? PagedSinks::kFloat : is_bf16 ? PagedSinks::kBf16 : PagedSinks::kF16;
  return {value.data_ptr(), form};
}

int log2_of(int64_t x) { return 63 - __builtin_clzll(static_cast<uint64_t>(x)); }

/// K and V, and how far their parts are from one another.
void set_pages(Args& args, const ffi::Tensor& k, const ffi::Tensor& v, int64_t head_dim) {
  using T = Shape::CacheElement;
  constexpr int kSize = sizeof(T), kPack = 16 / kSize;
  constexpr bool kIsPacked = Config::kForm == paged::Form::kPacked, kIsRows = Config::kForm == paged::Form::kRows;
  ffi::check_type(ffi::has_element<T>(k) && ffi::has_element<T>(v),
                  "paged_attention: k and v must have the dtype that this module was built for");
  const bool k_has_packs = k.ndim() == 5, v_has_packs = v.ndim() == 5;
  check_value((k.ndim() == 4 || k_has_packs) && (v.ndim() == 4 || v_has_packs) && k.stride(k.ndim() - 1) == 1,
              "paged_attention: k and v must have 4 or 5 dimensions, the last one of k contiguous");
  const int64_t k_pack = k_has_packs ? k.size(4) : 1, v_pack = v_has_packs ? v.size(4) : 1, width = v.size(3);
  const bool are_powers = k_pack > 0 && v_pack > 0 && (k_pack & (k_pack - 1)) == 0 && (v_pack & (v_pack - 1)) == 0;
  check_value(are_powers && k.size(3) * k_pack == head_dim && v.size(0) == k.size(0) && v.size(2) == k.size(2) &&
                  v.size(1) * v_pack == k.size(1) && width <= HEAD_DIM_V && (Shape::kIsPadded || width == HEAD_DIM_V),
              "paged_attention: k and v do not fit each other, or this module's head dimensions");
  check_value(!kIsRows || (!k_has_packs && !v_has_packs && v.stride(3) == 1),
              "paged_attention: this module was built for rows of v that are contiguous");
  check_value(!kIsPacked || (k_pack == kPack && k.size(1) % kPack == 0 &&
                             (v_has_packs ? v_pack == kPack && v.stride(4) == 1 : v.stride(1) == 1)),
              "paged_attention: this module was built for packs of 16 bytes");
  args.k = static_cast<const T*>(k.data_ptr());
  args.v = static_cast<const T*>(v.data_ptr());
  args.k_page = k.stride(0), args.k_place = k.stride(1), args.k_head = k.stride(2);
  args.v_page = v.stride(0), args.v_place = v.stride(1), args.v_head = v.stride(2);
  if (kIsPacked && !v_has_packs) args.v_place = kPack;
  args.packs = {k.stride(3) * kSize, v.stride(3) * kSize, v_has_packs ? v.stride(4) * kSize : 0,
                log2_of(k_pack), log2_of(v_pack), static_cast<int>(head_dim), static_cast<int>(width)};
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

}  // namespace

void paged_attention(ffi::Tensor out, OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                     ffi::Tensor block_table, OptionalTensor seqlens_k, OptionalTensor page_starts,
                     OptionalTensor cu_seqlens_q, OptionalTensor q_scale, OptionalTensor k_scale,
                     OptionalTensor v_scale, OptionalTensor out_scale, OptionalTensor alibi_slopes, OptionalTensor sink,
                     OptionalTensor tree_mask, OptionalTensor workspace, int64_t max_seqlen_q, int64_t max_seqlen_k,
                     double softmax_scale, int64_t window_left, double softcap, int64_t num_splits) {
  Args args{};
  constexpr const char* kRowsMessage = "paged_attention: q and out must have the dtypes that this module was built "
                                       "for, and three dimensions, the last one contiguous";
  args.q = data_of<const Shape::QueryElement>(q, 3, kRowsMessage);
  args.out = data_of<Shape::OutElement>(out, 3, kRowsMessage);
  set_pages(args, k, v, q.size(2));
  const int64_t heads = q.size(1), kv_heads = k.size(2), page_size = k.size(1), pages = k.size(0);
  const bool is_ragged = page_starts.has_value();
  const int64_t batch = is_ragged ? page_starts.value().size(0) - 1 : block_table.size(0);
  const int64_t head_dim_v = v.size(3);
  check_value(q.size(2) <= HEAD_DIM && (Shape::kIsPadded || q.size(2) == HEAD_DIM) && out.size(2) == head_dim_v &&
                  out.size(0) == q.size(0) && out.size(1) == heads && kv_heads > 0 && heads % kv_heads == 0 &&
                  page_size > 0,
              "paged_attention: q, k and out do not fit each other, or this module's head dimensions");
  check_value(softmax_scale >= 1e-8 && softmax_scale < 1e30,
              "paged_attention: softmax_scale must be in 1e-8 … 1e30");
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t capacity = is_ragged ? block_table.size(0) : block_table.size(1) * page_size;
  check_value(q.size(0) < kMost && max_seqlen_q * heads < kMost && block_table.numel() * page_size < kMost * 64 &&
                  (is_ragged ? capacity * page_size : capacity) < kMost && batch <= 65535 && 0 <= max_seqlen_q,
              "paged_attention: at most 65535 sequences of less than 2^30 keys");
  if (batch <= 0 || max_seqlen_q == 0 || q.size(0) == 0 || heads == 0 || pages == 0) return;

  const char* integers = "paged_attention: lengths and numbers of pages must be int32, contiguous";
  args.block_table = data_of<const int32_t>(block_table, is_ragged ? 1 : 2, integers);
  args.table_row = is_ragged ? 0 : block_table.stride(0);
  auto& lengths = args.plan.lengths;
  lengths = {indices(cu_seqlens_q, integers), indices(seqlens_k, integers), indices(page_starts, integers),
             static_cast<int>(batch), cu_seqlens_q.has_value() ? static_cast<int>(cu_seqlens_q.value().size(0)) : 0,
             static_cast<int>(q.size(0)), static_cast<int>(max_seqlen_q), static_cast<int>(page_size),
             static_cast<int>(capacity)};
  check_value((is_ragged || seqlens_k.has_value()) && (!seqlens_k.has_value() || seqlens_k.value().size(0) == batch) &&
                  (cu_seqlens_q.has_value() ? lengths.num_starts == batch || lengths.num_starts == batch + 1
                                            : q.size(0) == batch * max_seqlen_q),
              "paged_attention: lengths must be those of the batch");
  args.q_row = q.stride(0), args.q_head = q.stride(1), args.out_row = out.stride(0), args.out_head = out.stride(1);
  if (lse.has_value()) {
    const ffi::Tensor t = lse.value();
    ffi::check_type(ffi::is_f32(t), "paged_attention: lse must be float32");
    check_value(t.ndim() == 2 && t.size(0) == heads && t.size(1) == q.size(0),
                "paged_attention: lse has another shape");
    args.lse = static_cast<float*>(t.data_ptr()), args.lse_head = t.stride(0), args.lse_row = t.stride(1);
  }
  check_value(q_scale.has_value() == HAS_QUERY_SCALE, "paged_attention: this module was built for other scales of q");
  if (q_scale.has_value()) {
    const ffi::Tensor t = q_scale.value();
    ffi::check_type(ffi::is_f32(t), "paged_attention: q_scale must be float32");
    check_value(t.numel() == 1 || (t.ndim() == 2 && t.size(0) == q.size(0) && t.size(1) == heads),
                "paged_attention: q_scale must have one element, or [total_q, num_heads]");
    args.q_scale = static_cast<const float*>(t.data_ptr());
    if (t.numel() > 1) args.q_scale_row = t.stride(0), args.q_scale_head = t.stride(1);
  }
  args.k_scale = scale_of(k_scale);
  args.v_scale = scale_of(v_scale);
  args.out_scale = floats(out_scale, 1, "paged_attention: out_scale must be float32");
  args.sink = sinks_of(sink, heads);
  args.alibi_slopes = floats(alibi_slopes, heads, "paged_attention: alibi_slopes must be float32 [.., num_heads]");
  if (alibi_slopes.has_value() && alibi_slopes.value().ndim() == 2) {
    check_value(alibi_slopes.value().size(0) == batch, "paged_attention: alibi_slopes must have a row per sequence");
    args.alibi_batch = alibi_slopes.value().stride(0);
  }
  if (tree_mask.has_value()) {
    const ffi::Tensor t = tree_mask.value();
    const int last = t.ndim() - 1;
    check_value(t.dtype().bits == 8 && (last == 1 || last == 2) && t.size(last) >= max_seqlen_q &&
                    t.size(last - 1) >= max_seqlen_q && (last == 1 || t.size(0) == batch),
                "paged_attention: tree_mask must be bool [(batch,) n, n]");
    args.tree = static_cast<const uint8_t*>(t.data_ptr());
    args.tree_batch = last == 2 ? t.stride(0) : 0;
    args.tree_row = t.stride(last - 1), args.tree_column = t.stride(last);
  }
  check_value(HAS_TERMS || (!tree_mask.has_value() && !alibi_slopes.has_value() && softcap == 0),
              "paged_attention: this module was built without further terms");
  const int64_t group = heads / kv_heads, blocks = ceil_div(max_seqlen_q * group, BLOCK_ROWS);
  args.page_size = Divider(static_cast<uint32_t>(page_size));
  args.group = Divider(static_cast<uint32_t>(group));
  args.blocks = Divider(static_cast<uint32_t>(blocks));
  args.kv_heads = Divider(static_cast<uint32_t>(kv_heads));
  args.queries = Divider(static_cast<uint32_t>(max_seqlen_q));
  args.merged_rows = Divider(static_cast<uint32_t>(max_seqlen_q * heads));
  args.num_pages = static_cast<int>(pages);
  args.num_heads = static_cast<int>(heads);
  args.softmax_scale = static_cast<float>(softmax_scale);
  args.softcap = static_cast<float>(softcap);
  args.plan.window_left = window_left < 0 ? -1 : static_cast<int>(least_of(window_left, kMost));

  // Parts of ops/attention/paged_attention_call.py, whose constants these macros are.
  const int64_t longest = max_seqlen_k > 1 ? max_seqlen_k : 1;
  int64_t most = num_splits > 0 ? num_splits : ceil_div(longest, LEAST_KEYS), share = 0, grid = batch * most;
  int64_t slots = most > 1 ? grid : 0;
  if (num_splits == 0) {
    const int64_t at_once = int64_t{PARTS_PER_CU} * num_compute_units(q.device().device_id) / kv_heads;
    share = best_share(batch, longest, at_once > 0 ? at_once : 1);
    grid = least_of(batch + share, grid);
    slots = least_of(2 * share, slots);
  }
  args.plan.share = static_cast<int>(share), args.plan.most = static_cast<int>(most), args.plan.least = LEAST_KEYS;
  args.plan.by_share = Divider(static_cast<uint32_t>(share > 0 ? share : 1));
  args.plan.is_split = most > 1;
  const int64_t sums_of_slots = slots * heads * max_seqlen_q * (head_dim_v + 2);
  args.sums = slots * heads * max_seqlen_q * head_dim_v;
  const int64_t bytes = slots > 0 ? sums_of_slots * 4 + batch * sizeof(paged::Split) : 0;
  // Where there may be many parts, and rows do not fill the device, a row takes all of a workgroup.
  const int64_t merged_rows = slots > 0 ? batch * heads * max_seqlen_q : 0;
  const bool is_wide = most > kPartsPerWave && (share == 0 || share > kPartsPerWave) &&
                       merged_rows <= int64_t{kMergesPerCu} * num_compute_units(q.device().device_id);
  args.merge_shift = is_wide ? 2 : 0;
  const int64_t workgroups = grid * kv_heads * blocks;
  const int64_t merges = is_wide ? merged_rows : ceil_div(merged_rows, paged::kWaves);
  check_value(workgroups < kMost && merges < kMost, "paged_attention: too many rows and parts for one launch");
  if (bytes > 0 && !workspace.has_value()) {
    ffi::Scratch scratch(bytes, q.device());
    args.parts = static_cast<float*>(scratch.data());
    args.splits = reinterpret_cast<paged::Split*>(args.parts + sums_of_slots);
    launch_paged_attention(args, static_cast<uint32_t>(workgroups), static_cast<uint32_t>(merges), ffi::stream_of(q));
    return;
  }
  if (bytes > 0) {
    check_value(workspace.value().numel() >= bytes, "paged_attention: workspace is too small");
    args.parts = static_cast<float*>(workspace.value().data_ptr());
    args.splits = reinterpret_cast<paged::Split*>(args.parts + sums_of_slots);
  }
  launch_paged_attention(args, static_cast<uint32_t>(workgroups), static_cast<uint32_t>(merges), ffi::stream_of(q));
}

/// The fields of unified_attention's call where its sequences have a few queries each.
void unified_attention(ffi::Tensor out, OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                       ffi::Tensor cu_seqlens_q, OptionalTensor seqlens_k, ffi::Tensor block_table,
                       OptionalTensor page_starts, OptionalTensor q_descale, OptionalTensor k_descale,
                       OptionalTensor v_descale,
                       OptionalTensor alibi_slopes, OptionalTensor output_scale, OptionalTensor qq_bias,
                       OptionalTensor sink, int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale,
                       int64_t window_left, int64_t window_right, int64_t sink_size, double softcap) {
  check_value(!qq_bias.has_value() && sink_size == 0 && (window_right == 0 || max_seqlen_q <= 1),
              "unified_attention: the kernel of decoding takes causal calls without qq_bias and sink tokens");
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

// SPDX-License-Identifier: MIT
// Attention over pages for gfx942 where sequences have many queries, composed from the tile library as
// flash_attn_fwd_tile.hip is; unified_attention_body.h has its steps. One build per element, head dimension, and what
// happens to a score.
//
//   out = Σ p v / Σ p,  p = 2^(score − max),  score = log2 e · (softcap(softmax_scale · q kᵀ) − alibi), masked
//
// Tiles: 128 rows of one head, 64 keys. LDS: 64 rows of K and of V. Bound: MFMA, 4 · HEAD_DIM flop per score; K and V
// are gathered from their pages once per 128 rows.
#include "aiter_like/ffi.h"
#include "unified_attention_body.h"

#if !defined(ELEMENT) || !defined(HEAD_DIM) || !defined(NUM_WAVES) || !defined(IS_MASKED) || !defined(HAS_ALIBI) || \
    !defined(HAS_SOFTCAP)
#error "unified_attention.hip: the macros that ops/attention/unified_attention_ck.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using OutElement = ELEMENT;
  using BiasElement = void;
  static constexpr int kHeadDim = HEAD_DIM, kHeadDimV = HEAD_DIM, kWaves = NUM_WAVES;
  static constexpr bool kIsMasked = IS_MASKED, kHasAlibi = HAS_ALIBI, kHasSoftcap = HAS_SOFTCAP;
  static constexpr Rounding kRounding = Rounding::kNearestEven;
};
using Shape = flash_attn_tile::Shape<Config>;
using Args = UnifiedAttentionArgs<Config::Element, Config::OutElement>;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) __attribute__((amdgpu_waves_per_eu(Shape::kWavesPerSimd)))
void unified_attention_kernel(Args args) {
  __shared__ flash_attn_tile::QrKsVsPaged<Shape> pipeline;
  flash_attn_tile::unified_body<Config>(args, workgroup_index(), pipeline);
}

void launch_unified_attention(const Args& args, int batch, Stream stream) {
  const dim3 grid(static_cast<uint32_t>(args.num_blocks_m), static_cast<uint32_t>(args.q.sizes[2]),
                  static_cast<uint32_t>(batch));
  unified_attention_kernel<<<grid, Shape::kThreads, 0, stream>>>(args);
  check_launch("unified_attention_kernel");
}

#if AITER_LIKE_HOST_PASS

namespace {

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

/// The view of rows [rows, heads, dim], as one batch.
template <class T>
tile::GlobalView<T, 4> view_of(const ffi::Tensor& tensor) {
  ffi::check_type(ffi::has_element<std::remove_const_t<T>>(tensor),
                  "unified_attention: q and out must have the dtype that this module was built for");
  const int64_t row = tensor.size(0) > 1 ? tensor.stride(0) : HEAD_DIM;
  constexpr int64_t kMaxRowStride = int64_t{1} << 23;
  check_value(tensor.ndim() == 3 && tensor.size(2) == HEAD_DIM && tensor.stride(2) == 1 && HEAD_DIM <= row &&
                  row < kMaxRowStride,
              "unified_attention: q and out must be [rows, heads, dim] of this module's dim, the last one contiguous, "
              "rows apart and less than 2^23 elements");
  return {static_cast<T*>(tensor.data_ptr()), {1, tensor.size(0), tensor.size(1), HEAD_DIM},
          {0, row, tensor.size(1) > 1 ? tensor.stride(1) : 0, 1}};
}

const int* indices(const OptionalTensor& tensor, int64_t count) {
  if (!tensor.has_value()) return nullptr;
  const ffi::Tensor value = tensor.value();
  ffi::check_type(ffi::has_element<int32_t>(value), "unified_attention: lengths must be int32");
  check_value(value.ndim() == 1 && value.size(0) == count && (count <= 1 || value.stride(0) == 1),
              "unified_attention: lengths must be those of the batch, contiguous");
  return static_cast<const int*>(value.data_ptr());
}

const Config::Element* pages_of(const ffi::Tensor& tensor, int64_t (&strides)[3]) {
  ffi::check_type(ffi::has_element<Config::Element>(tensor),
                  "unified_attention: k and v must have the dtype that this module was built for");
  check_value(tensor.ndim() == 4 && tensor.size(3) == HEAD_DIM && tensor.stride(3) == 1,
              "unified_attention: k and v must be [pages, page_size, heads, dim] of this module's dim, the last one "
              "contiguous");
  constexpr int64_t kMost = (int64_t{1} << 31) / sizeof(Config::Element);
  int64_t span = HEAD_DIM;
  for (int d = 0; d < 3; ++d) {
    strides[d] = tensor.size(d) > 1 ? tensor.stride(d) : 0;
    if (d > 0) span += (tensor.size(d) - 1) * strides[d];
  }
  check_value(strides[0] < kMost && span < kMost,
              "unified_attention: pages must be less than 2^31 bytes apart, and span less");
  return static_cast<const Config::Element*>(tensor.data_ptr());
}

int window_of(int64_t size) { return static_cast<int>(size < 0 ? -1 : size < (1 << 30) ? size : 1 << 30); }

}  // namespace

void unified_attention(ffi::Tensor out, OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                       ffi::Tensor cu_seqlens_q, OptionalTensor seqlens_k, ffi::Tensor block_table,
                       OptionalTensor page_starts, OptionalTensor, OptionalTensor, OptionalTensor,
                       OptionalTensor alibi_slopes, OptionalTensor output_scale, OptionalTensor qq_bias,
                       OptionalTensor sink, int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale,
                       int64_t window_left, int64_t window_right, int64_t sink_size, double softcap) {
  Args args{};
  args.q = view_of<const Config::Element>(q);
  args.out = view_of<Config::OutElement>(out);
  int64_t k_strides[3], v_strides[3];
  args.k_pages = pages_of(k, k_strides);
  args.v_pages = pages_of(v, v_strides);
  args.k_page = k_strides[0], args.k_place = k_strides[1], args.k_head = k_strides[2];
  args.v_page = v_strides[0], args.v_place = v_strides[1], args.v_head = v_strides[2];
  const int64_t rows = q.size(0), heads = q.size(1), pages = k.size(0), page_size = k.size(1), kv_heads = k.size(2);
  const bool is_ragged = page_starts.has_value();
  const int64_t batch = cu_seqlens_q.size(0) - 1;
  check_value(out.size(0) == rows && out.size(1) == heads && v.size(0) == pages && v.size(1) == page_size &&
                  v.size(2) == kv_heads && kv_heads > 0 && heads % kv_heads == 0 && page_size > 0,
              "unified_attention: q, k, v and out do not fit each other");
  check_value(block_table.ndim() == (is_ragged ? 1 : 2) && ffi::has_element<int32_t>(block_table) &&
                  (is_ragged || block_table.size(0) == batch) && (is_ragged || seqlens_k.has_value()) &&
                  (block_table.numel() <= 1 || block_table.stride(is_ragged ? 0 : 1) == 1),
              "unified_attention: numbers of pages must be int32, a row per sequence or one for all");
  constexpr int64_t kMost = int64_t{1} << 30, kMostGrid = 65535;
  const int64_t capacity = is_ragged ? block_table.size(0) : block_table.size(1) * page_size;
  check_value(rows < kMost && (is_ragged ? capacity * page_size : capacity) < kMost && batch <= kMostGrid &&
                  heads <= kMostGrid && max_seqlen_q >= 0,
              "unified_attention: at most 2^30 - 1 rows and keys, 65535 sequences and 65535 heads fit one launch");
  check_value(!output_scale.has_value() && !qq_bias.has_value() && softmax_scale >= 1e-8 && softmax_scale < 1e30 &&
                  (softcap > 0) == Config::kHasSoftcap && alibi_slopes.has_value() == Config::kHasAlibi &&
                  (Config::kIsMasked || (window_left < 0 && window_right < 0)),
              "unified_attention: this module was built for other features");
  const int64_t longest = max_seqlen_q < rows ? max_seqlen_q : rows;
  args.num_blocks_m = static_cast<int>((longest + flash_attn_tile::kBlockM - 1) / flash_attn_tile::kBlockM);
  if (batch <= 0 || args.num_blocks_m == 0 || heads == 0 || pages == 0) return;

  args.block_table = static_cast<const int*>(block_table.data_ptr());
  args.table_row = is_ragged ? 0 : block_table.stride(0);
  args.lengths = {indices(cu_seqlens_q, batch + 1), indices(seqlens_k, batch), indices(page_starts, batch + 1),
                  static_cast<int>(batch), static_cast<int>(batch + 1), static_cast<int>(rows),
                  static_cast<int>(longest), static_cast<int>(page_size), static_cast<int>(capacity)};
  if (lse.has_value()) {
    const ffi::Tensor t = lse.value();
    ffi::check_type(ffi::is_f32(t), "unified_attention: lse must be float32");
    check_value(t.ndim() == 2 && t.size(0) == heads && t.size(1) == rows && (rows <= 1 || t.stride(1) == 1),
                "unified_attention: lse must be [num_heads, total_q], the last one contiguous");
    args.lse = static_cast<float*>(t.data_ptr());
    args.lse_head_stride = t.stride(0);
  }
  if (sink.has_value()) {
    const ffi::Tensor t = sink.value();
    ffi::check_type(ffi::is_f32(t), "unified_attention: sink must be float32");
    check_value(t.ndim() == 1 && t.size(0) == heads && t.IsContiguous(), "unified_attention: sink must be [num_heads]");
    args.sink = static_cast<const float*>(t.data_ptr());
  }
  if (alibi_slopes.has_value()) {
    const ffi::Tensor t = alibi_slopes.value();
    const int last = t.ndim() - 1;
    ffi::check_type(ffi::is_f32(t), "unified_attention: alibi_slopes must be float32");
    check_value((last == 0 || (last == 1 && t.size(0) == batch)) && t.size(last) == heads &&
                    (heads == 1 || t.stride(last) == 1),
                "unified_attention: alibi_slopes must be [num_heads] or [batch, num_heads]");
    args.alibi_slopes = static_cast<const float*>(t.data_ptr());
    args.alibi_batch_stride = last == 1 ? t.stride(0) : 0;
  }
  args.page_size = Divider(static_cast<uint32_t>(page_size));
  args.num_pages = static_cast<int>(pages);
  args.group_size = static_cast<int>(heads / kv_heads);
  args.window_left = window_of(window_left);
  args.window_right = window_of(window_right);
  args.sink_size = static_cast<int>(sink_size < kMost ? sink_size : kMost);
  args.softmax_scale = static_cast<float>(softmax_scale);
  args.softcap = static_cast<float>(softcap);
  launch_unified_attention(args, static_cast<int>(batch), ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(unified_attention, aiter_like::unified_attention);
#endif

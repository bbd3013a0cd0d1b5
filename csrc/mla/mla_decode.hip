// SPDX-License-Identifier: MIT
// Latent attention over pages for gfx942, composed from the tile library: the plan (mla_plan.h), the attention
// (mla_decode_body.h has its steps) and the sum of its parts (mla_sum.h). One build per elements, dimensions, rows of a
// tile and a cap of the scores.
//
//   out = Σ p v / Σ p,  p = 2^(score − max),  score = log2 e · softcap(softmax_scale · q kᵀ), masked
//
// Tiles: 16 · ROW_WAVES rows, 32 keys. LDS: 32 keys of HEAD_DIM elements, 36 KiB at 576.
// Bound: memory up to about 64 rows, else MFMA and LDS: a block of 32 keys of 576 + 512 columns for 64 rows is 2176
// clocks of MFMA on each SIMD, and 272 KiB of LDS reads, 2176 clocks at 128 bytes each.
#include "aiter_like/ffi.h"
#include "mla_decode_body.h"
#include "mla_sum.h"

#if !defined(ELEMENT) || !defined(Q_ELEMENT) || !defined(KV_ELEMENT) || !defined(HEAD_DIM) || \
    !defined(HEAD_DIM_V) || !defined(ROW_WAVES) || !defined(WAVES) || !defined(HAS_SOFTCAP) || !defined(BLOCK_KEYS) || \
    !defined(LEAST_BLOCKS) || !defined(OVERHEAD)
#error "mla_decode.hip: the macros that ops/mla/mla_decode.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using QElement = Q_ELEMENT;
  using KvElement = KV_ELEMENT;
  using OutElement = ELEMENT;
  static constexpr int kHeadDim = HEAD_DIM, kHeadDimV = HEAD_DIM_V, kRowWaves = ROW_WAVES, kWaves = WAVES;
  static constexpr bool kHasSoftcap = HAS_SOFTCAP;
};
using Shape = mla_tile::Shape<Config>;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) __attribute__((amdgpu_waves_per_eu(Config::kWaves / 4)))
void mla_decode_kernel(MlaDecodeArgs args) {
  await_stream();
  __shared__ mla_tile::Lds<Shape> lds;
  mla_tile::body<Config>(args, workgroup_index().x, lds);
}

void launch_mla_decode(const MlaPlanArgs* plan, const MlaDecodeArgs& args, const MlaSumArgs* sum, int tiles,
                       Stream stream) {
  if (plan != nullptr) launch_mla_metadata(*plan, stream);
  const dim3 grid(static_cast<uint32_t>(args.num_parts) * static_cast<uint32_t>(tiles));
  launch_overlapped(mla_decode_kernel, grid, Shape::kThreads, stream, args);
  check_launch("mla_decode_kernel");
  if (sum != nullptr) launch_mla_reduce<Config::OutElement>(*sum, stream);
}

#if AITER_LIKE_HOST_PASS

void mla_decode(ffi::Tensor out, ffi::OptionalTensor lse, ffi::Tensor partial_out, ffi::Tensor partial_lse,
                ffi::Tensor work_indptr, ffi::Tensor work_info, ffi::Tensor reduce_indptr, ffi::Tensor reduce_final_map,
                ffi::Tensor reduce_partial_map, ffi::Tensor q, ffi::Tensor kv, ffi::Tensor qo_indptr,
                ffi::Tensor kv_indptr, ffi::Tensor kv_indices, ffi::OptionalTensor kv_last_page_lens,
                ffi::OptionalTensor q_scale, ffi::OptionalTensor kv_scale, ffi::OptionalTensor g_kv_indptr,
                bool is_planned, int64_t max_seqlen_q, int64_t num_kv_splits, double softmax_scale, double softcap,
                bool causal, int64_t cp_world_size, int64_t cp_rank) {
  constexpr int64_t kMost = int64_t{1} << 30, kSize = sizeof(Config::KvElement);
  ffi::Match match("mla_decode");
  match.built((softcap > 0) == Config::kHasSoftcap);
  ffi::Size total_q{"total_q", kMost}, heads{"num_heads", 1 << 20}, entries{"entries"};
  ffi::Size pages{"pages"}, page_size{"page_size", kMost};
  MlaDecodeArgs args{};
  const auto queries = match.take<const Config::QElement>(q, {total_q, heads, HEAD_DIM}, "q");
  const auto keys = match.take<const Config::KvElement>(kv, {pages, page_size, 1, HEAD_DIM}, "kv");
  args.out = match.take<Config::Element>(out, {total_q, heads, HEAD_DIM_V}, "out");
  match.require(ffi::takes_vectors(8, q) && ffi::takes_vectors(16 / kSize, kv) && ffi::takes_vectors(2, out),
                "rows of q and kv must begin at multiples of 16 bytes, and those of out of 4");
  MlaSumArgs sum = ffi::mla_sum<Config::Element>(match, out, lse, partial_out, partial_lse);
  MlaPlanArgs plan{};
  plan.num_tiles = ffi::take_plan(match, plan, work_indptr, work_info, reduce_indptr, reduce_final_map,
                                  reduce_partial_map, qo_indptr, kv_indptr);
  args.kv_indices = match.elements<const int>(kv_indices, entries, "kv_indices");
  args.kv_last_page_lens = match.elements<const int>(kv_last_page_lens, plan.batch, "kv_last_page_lens");
  args.g_kv_indptr = match.elements<const int>(g_kv_indptr, plan.batch + 1, "g_kv_indptr");
  args.q_scale = match.elements<const float>(q_scale, 1, "q_scale");
  args.kv_scale = match.elements<const float>(kv_scale, 1, "kv_scale");
  match.require(page_size > 0 && entries * page_size < kMost && max_seqlen_q > 0 && cp_world_size > 0 &&
                    max_seqlen_q * heads < kMost,
                "less than 2^30 rows and keys fit one launch");
  plan.num_entries = entries, plan.total_q = total_q, plan.max_seqlen_q = max_seqlen_q;
  plan.block_pages = (BLOCK_KEYS + page_size - 1) / page_size;
  plan.least_blocks = LEAST_BLOCKS, plan.overhead = OVERHEAD;
  plan.most = num_kv_splits, plan.is_even = num_kv_splits > 0, plan.topk = -1;
  match.require(is_planned || !plan.is_even || plan.num_parts >= plan.batch * num_kv_splits,
                "work_indptr must have num_kv_splits parts for each sequence");
  args.q = queries, args.q_row = queries.strides[0], args.q_head = queries.strides[1];
  args.kv = keys, args.kv_page = keys.strides[0] * kSize, args.kv_key = keys.strides[1] * kSize;
  args.lse = sum.lse, args.lse_row = sum.lse_row, args.lse_head = sum.lse_head;
  args.partial_out = static_cast<float*>(partial_out.data_ptr());
  args.partial_lse = static_cast<float*>(partial_lse.data_ptr());
  args.out_row = sum.out_row, args.out_head = sum.out_head;
  args.part_row = sum.part_row, args.part_head = sum.part_head;
  args.sum_row = sum.sum_row, args.sum_head = sum.sum_head;
  args.kv_indptr = plan.kv_indptr, args.work_indptr = plan.work_indptr, args.work_info = plan.work_info;
  args.batch = plan.batch, args.total_q = total_q, args.num_entries = entries, args.num_pages = pages;
  args.num_items = plan.num_items, args.num_rows = sum.num_rows, args.num_parts = plan.num_parts;
  args.world_size = cp_world_size, args.rank = cp_rank;
  args.page_size = Divider(page_size);
  const int64_t rows = max_seqlen_q * heads, tiles = (rows + Shape::kRows - 1) / Shape::kRows;
  if (args.batch <= 0 || rows == 0) return;
  args.num_heads = Divider(heads);
  args.softmax_scale = softmax_scale, args.softcap = softcap, args.is_causal = causal;
  match.require(args.num_parts * tiles < int64_t{1} << 31 && plan.num_tiles * rows < int64_t{1} << 31,
                "less than 2^31 workgroups and rows of heads fit one launch");
  sum.reduce_indptr = plan.reduce_indptr, sum.reduce_final_map = plan.reduce_final_map;
  sum.reduce_partial_map = plan.reduce_partial_map, sum.num_tiles = plan.num_tiles, sum.num_slots = plan.num_slots;
  sum.max_seqlen_q = max_seqlen_q;
  const bool has_parts = (is_planned || (num_kv_splits != 1 && plan.num_parts > 1)) && plan.num_tiles > 0;
  launch_mla_decode(is_planned ? nullptr : &plan, args, has_parts ? &sum : nullptr, static_cast<int>(tiles),
                    ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(mla_decode, aiter_like::mla_decode);
#endif

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
#include <type_traits>

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

__global__ __launch_bounds__(Shape::kThreads) __attribute__((amdgpu_waves_per_eu(WAVES / 4)))
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
  if (sum != nullptr) launch_mla_reduce<ELEMENT>(*sum, stream);
}

#if AITER_LIKE_HOST_PASS

namespace {

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

/// int32 elements of an optional tensor, null where it is absent.
const int* integers(const OptionalTensor& tensor, int64_t count) {
  if (!tensor.has_value()) return nullptr;
  check_value(tensor.value().numel() == count, "mla_decode: lengths must have one element for each sequence");
  return ffi::integers(tensor.value());
}

/// Whether every row of `last` bytes begins at a multiple of `bytes`.
bool is_aligned(const ffi::Tensor& tensor, int64_t element, int64_t bytes) {
  bool result = reinterpret_cast<uintptr_t>(tensor.data_ptr()) % bytes == 0;
  for (int d = 0; d + 1 < tensor.ndim(); ++d)
    result = result && (tensor.size(d) <= 1 || tensor.stride(d) * element % bytes == 0);
  return result;
}

}  // namespace

void mla_decode(ffi::Tensor out, OptionalTensor lse, ffi::Tensor partial_out, ffi::Tensor partial_lse,
                ffi::Tensor work_indptr, ffi::Tensor work_info, ffi::Tensor reduce_indptr, ffi::Tensor reduce_final_map,
                ffi::Tensor reduce_partial_map, ffi::Tensor q, ffi::Tensor kv, ffi::Tensor qo_indptr,
                ffi::Tensor kv_indptr, ffi::Tensor kv_indices, OptionalTensor kv_last_page_lens, OptionalTensor q_scale,
                OptionalTensor kv_scale, OptionalTensor g_kv_indptr, bool is_planned, int64_t max_seqlen_q,
                int64_t num_kv_splits, double softmax_scale, double softcap, bool causal, int64_t cp_world_size,
                int64_t cp_rank) {
  using Element = Config::Element;
  using KvElement = Config::KvElement;
  ffi::check_type(ffi::has_element<Config::QElement>(q) && ffi::has_element<KvElement>(kv),
                  "mla_decode: q or kv has another dtype than this module was built for");
  check_value(q.ndim() == 3 && q.size(2) == HEAD_DIM && kv.ndim() == 4 && kv.size(2) == 1 && kv.size(3) == HEAD_DIM &&
                  kv.size(1) > 0 && kv.size(1) < int64_t{1} << 30 && out.ndim() == 3 && out.size(2) == HEAD_DIM_V &&
                  out.size(0) == q.size(0) && out.size(1) == q.size(1) && q.stride(2) == 1 && kv.stride(3) == 1 &&
                  out.stride(2) == 1 && (softcap > 0) == Config::kHasSoftcap,
              "mla_decode: this module was built for other shapes or features");
  check_value(is_aligned(q, sizeof(Config::QElement), 8 * sizeof(Config::QElement)) &&
                  is_aligned(kv, sizeof(KvElement), 16) && is_aligned(out, sizeof(Element), 4),
              "mla_decode: rows of q and kv must begin at multiples of 16 bytes");
  MlaSumArgs sum = ffi::mla_sum<Element>(out, lse, partial_out, partial_lse);
  MlaPlanArgs plan = ffi::mla_plan(work_indptr, work_info, reduce_indptr, reduce_final_map, reduce_partial_map,
                                   qo_indptr, kv_indptr);
  check_value(q.size(0) < int64_t{1} << 30 && kv.size(0) < int64_t{1} << 31 && q.size(1) < int64_t{1} << 20 &&
                  kv_indices.numel() * kv.size(1) < int64_t{1} << 30 && max_seqlen_q > 0 && cp_world_size > 0 &&
                  max_seqlen_q * q.size(1) < int64_t{1} << 30,
              "mla_decode: less than 2^30 rows and keys fit one launch");
  plan.num_entries = static_cast<int>(kv_indices.numel()), plan.total_q = static_cast<int>(q.size(0));
  plan.max_seqlen_q = static_cast<int>(max_seqlen_q);
  plan.block_pages = static_cast<int>((BLOCK_KEYS + kv.size(1) - 1) / kv.size(1));
  plan.least_blocks = LEAST_BLOCKS, plan.overhead = OVERHEAD;
  plan.most = static_cast<int>(num_kv_splits), plan.is_even = num_kv_splits > 0, plan.topk = -1;
  check_value(is_planned || !plan.is_even || plan.num_parts >= plan.batch * num_kv_splits,
              "mla_decode: work_indptr must have num_kv_splits parts for each sequence");

  MlaDecodeArgs args{};
  args.q = q.data_ptr(), args.kv = kv.data_ptr(), args.out = out.data_ptr();
  args.lse = sum.lse, args.lse_row = sum.lse_row, args.lse_head = sum.lse_head;
  args.partial_out = static_cast<float*>(partial_out.data_ptr());
  args.partial_lse = static_cast<float*>(partial_lse.data_ptr());
  args.q_row = q.stride(0), args.q_head = q.stride(1);
  args.kv_page = kv.stride(0) * int64_t{sizeof(KvElement)}, args.kv_key = kv.stride(1) * int64_t{sizeof(KvElement)};
  args.out_row = sum.out_row, args.out_head = sum.out_head;
  args.part_row = sum.part_row, args.part_head = sum.part_head;
  args.sum_row = sum.sum_row, args.sum_head = sum.sum_head;
  args.kv_indptr = plan.kv_indptr, args.kv_indices = ffi::integers(kv_indices);
  args.kv_last_page_lens = integers(kv_last_page_lens, plan.batch);
  args.g_kv_indptr = integers(g_kv_indptr, plan.batch + 1);
  args.work_indptr = plan.work_indptr, args.work_info = plan.work_info;
  args.q_scale = ffi::scalar<float>(q_scale, "mla_decode: q_scale");
  args.kv_scale = ffi::scalar<float>(kv_scale, "mla_decode: kv_scale");
  args.batch = plan.batch, args.total_q = plan.total_q, args.num_entries = plan.num_entries;
  args.num_pages = static_cast<int>(kv.size(0)), args.num_items = plan.num_items, args.num_rows = sum.num_rows;
  args.num_parts = plan.num_parts;
  args.world_size = static_cast<int>(cp_world_size), args.rank = static_cast<int>(cp_rank);
  args.page_size = Divider(static_cast<uint32_t>(kv.size(1)));
  const int64_t rows = max_seqlen_q * q.size(1), tiles = (rows + Shape::kRows - 1) / Shape::kRows;
  if (args.batch <= 0 || rows == 0) return;
  args.num_heads = Divider(static_cast<uint32_t>(q.size(1)));
  args.softmax_scale = static_cast<float>(softmax_scale), args.softcap = static_cast<float>(softcap);
  args.is_causal = causal;
  check_value(args.num_parts * tiles < int64_t{1} << 31, "mla_decode: less than 2^31 workgroups fit one launch");

  sum.reduce_indptr = plan.reduce_indptr, sum.reduce_final_map = plan.reduce_final_map;
  sum.reduce_partial_map = plan.reduce_partial_map, sum.num_tiles = plan.num_tiles, sum.num_slots = plan.num_slots;
  sum.max_seqlen_q = plan.max_seqlen_q;
  const bool has_parts = (is_planned || (num_kv_splits != 1 && plan.num_parts > 1)) && plan.num_tiles > 0;
  check_value(plan.num_tiles * rows < int64_t{1} << 31, "mla_decode: less than 2^31 rows of heads fit one launch");
  launch_mla_decode(is_planned ? nullptr : &plan, args, has_parts ? &sum : nullptr, static_cast<int>(tiles),
                    ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(mla_decode, aiter_like::mla_decode);
#endif

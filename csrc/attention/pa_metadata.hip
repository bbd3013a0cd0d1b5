// SPDX-License-Identifier: MIT
// AITER's plan of decoding over listed pages, made on the device from lengths: for each head of the keys the blocks of
// all sequences lie on a line, and the line is cut into parts that differ by a block at most. HIP (gfx9) and CUDA. One
// build.
//
// A workgroup per part finds by itself where the sequences lie, 256 of them at once:
//   1. adds up the blocks of all, from which the edges of the parts follow
//   2. where there are several heads, adds up the pieces of all, behind which the next head's items begin
//   3. scans blocks, pieces, cut sequences and rows of partial results, so that each sequence knows its place in every
//      list, and writes what its part holds; the first workgroup also what belongs to no part
// The first 256 are read once. LDS: a word for each wave and list. Bound: latency.
#include "aiter_like/plan.h"
#include "aiter_like/scan.h"

namespace aiter_like {

struct PaPlanArgs {
  int *work_indptr, *work_info, *reduce_indptr, *reduce_final_map, *reduce_partial_map;  // written
  const int *qo_indptr, *kv_indptr, *context_lens;
  int batch, heads, group;  // sequences; heads of the keys; heads of q for each of them
  int page_size, block_pages, max_seqlen_q;
  int head_parts;  // parts of a head
  int num_parts, num_items, num_slots, num_groups;  // The tensors have room for so many.
};

namespace pa_plan {

using plan::ceil_div, plan::is_inside, plan::Sequence, plan::within;

constexpr int kThreads = 256, kWaves = kThreads / kWaveSize;

/// Sequence `index`; nothing beyond the last one.
__device__ inline Sequence sequence(const PaPlanArgs& args, int index) {
  Sequence found{0, 0, 0, 0, 0};
  if (index >= args.batch) return found;
  const int row = args.qo_indptr[index], page = args.kv_indptr[index], keys = args.context_lens[index];
  found.first_row = row > 0 ? row : 0, found.first_page = page > 0 ? page : 0;
  const int last_row = args.qo_indptr[index + 1], last_page = args.kv_indptr[index + 1];
  found.rows = last_row > found.first_row ? within(last_row - found.first_row, 0, args.max_seqlen_q) : 0;
  const int listed = last_page > found.first_page ? last_page - found.first_page : 0;
  found.pages = within(ceil_div(keys > 0 ? keys : 0, args.page_size), 0, listed);
  found.blocks = found.rows > 0 ? ceil_div(found.pages, args.block_pages) : 0;
  return found;
}

using Lds = ScanLds<4, kWaves>;

/// The line's parts: the first `rest` of them have a block more than `share`.
struct Edges {
  int share, rest;

  __device__ int of(int part) const { return part * share + (part < rest ? part : rest); }
  __device__ int part_of(int block) const {
    const int wide = rest * (share + 1);
    return block < wide ? block / (share + 1) : rest + (block - wide) / (share > 1 ? share : 1);
  }
};

struct Pieces {
  int first_part, count;
};

/// The pieces of a sequence whose blocks begin at `origin`. One without blocks has a piece too, as its rows are to be
/// written; it lies in the part of the block before it.
__device__ inline Pieces pieces_of(const Edges& edges, int origin, const Sequence& own) {
  if (own.blocks == 0) return {origin > 0 ? edges.part_of(origin - 1) : 0, 1};
  const int first = edges.part_of(origin);
  return {first, edges.part_of(origin + own.blocks - 1) - first + 1};
}

__device__ inline void make(const PaPlanArgs& args, int part, Lds& lds) {
  const int thread = thread_index();
  const Sequence early = sequence(args, thread);
  int total = 0;
  for (int first = 0; first < args.batch; first += kThreads) {
    int blocks[1] = {(first == 0 ? early : sequence(args, first + thread)).blocks}, sum[1];
    scan(lds, blocks, sum);
    total += sum[0];
  }
  const Edges edges{total / args.head_parts, total % args.head_parts};
  int head_items = 0;
  for (int first = 0, line = 0; first < args.batch && args.heads > 1 && part > 0; first += kThreads) {
    const Sequence own = first == 0 ? early : sequence(args, first + thread);
    int blocks[1] = {own.blocks}, sum[1], all[1];
    scan(lds, blocks, sum);
    int pieces[1] = {first + thread < args.batch ? pieces_of(edges, line + blocks[0], own).count : 0};
    scan(lds, pieces, all);
    line += sum[0], head_items += all[0];
  }

  const int head = within(part / args.head_parts, 0, args.heads);
  const bool is_used = head < args.heads;
  const int part_of_head = is_used ? part % args.head_parts : 0;
  int line = 0, items = 0, slots = 0, groups = 0, rows = 0, mine = 0;
  for (int first = 0; first < args.batch; first += kThreads) {
    const int index = first + thread;
    const bool is_there = index < args.batch;
    const Sequence own = first == 0 ? early : sequence(args, index);
    int blocks[1] = {own.blocks}, sum[1];
    scan(lds, blocks, sum);
    const int origin = line + blocks[0];
    const Pieces pieces = pieces_of(edges, origin, own);
    const int count = is_there ? pieces.count : 0, partials = count > 1 ? count : 0;
    const int nth = part_of_head - pieces.first_part;
    int lists[4] = {count, partials, partials > 0 ? 1 : 0, partials * own.rows}, all[4];
    scan(lds, lists, all);
    int before[1] = {within(nth, 0, count)}, earlier[1];
    scan(lds, before, earlier);
    mine += earlier[0];

    const int item = head * head_items + items + lists[0] + nth, slot = slots + lists[1] + nth;
    if (is_used && nth >= 0 && nth < count && is_inside(item, args.num_items)) {
      const int low = within(edges.of(part_of_head) - origin, 0, own.blocks) * args.block_pages;
      const int high = within(edges.of(part_of_head + 1) - origin, 0, own.blocks) * args.block_pages;
      const int place = count > 1 ? rows + lists[3] + nth * own.rows : -1;
      plan::write_item(args.work_info, item, index, place, own, own.first_page + (low < own.pages ? low : own.pages),
                       own.first_page + (high < own.pages ? high : own.pages), 0,
                       head * args.group | (head + 1) * args.group << 16);
      if (head == 0 && count > 1 && is_inside(slot, args.num_slots)) args.reduce_partial_map[slot] = place;
    }
    const int own_group = groups + lists[2];
    if (part == 0 && partials > 0 && is_inside(own_group, args.num_groups))
      plan::write_group(args.reduce_indptr, args.reduce_final_map, own_group, slots + lists[1] + partials, own);
    line += sum[0], items += all[0], slots += all[1], groups += all[2], rows += all[3];
  }
  const auto room = [&](int count) { return within(count, 0, args.num_items); };
  if (thread == 0) args.work_indptr[part] = room(head * items + mine);
  if (part != 0) return;
  if (thread == 0) args.work_indptr[args.num_parts] = room(args.heads * items), args.reduce_indptr[0] = 0;
  for (int index = groups + thread; index < args.num_groups; index += kThreads) args.reduce_indptr[index + 1] = slots;
}

}  // namespace pa_plan

__global__ __launch_bounds__(pa_plan::kThreads) void pa_metadata_kernel(PaPlanArgs args) {
  await_stream();
  __shared__ pa_plan::Lds lds;
  pa_plan::make(args, static_cast<int>(workgroup_index().x), lds);
}

inline void launch_pa_metadata(const PaPlanArgs& args, Stream stream) {
  launch_overlapped(pa_metadata_kernel, dim3(static_cast<uint32_t>(args.num_parts)), pa_plan::kThreads, stream, args);
  check_launch("pa_metadata_kernel");
}

#if AITER_LIKE_HOST_PASS

void pa_metadata(ffi::Tensor work_indptr, ffi::Tensor work_info, ffi::Tensor reduce_indptr,
                 ffi::Tensor reduce_final_map, ffi::Tensor reduce_partial_map, ffi::Tensor qo_indptr,
                 ffi::Tensor kv_indptr, ffi::Tensor context_lens, int64_t num_heads_k, int64_t group,
                 int64_t page_size, int64_t block_pages, int64_t num_parts, int64_t max_seqlen_q) {
  constexpr int64_t kMost = 1 << 30, kMostHeads = 32767;
  ffi::Match match("pa_metadata");
  PaPlanArgs args{};
  args.num_groups = ffi::take_plan(match, args, work_indptr, work_info, reduce_indptr, reduce_final_map,
                                   reduce_partial_map, qo_indptr, kv_indptr);
  args.context_lens = match.elements<const int>(context_lens, args.batch, "context_lens");
  match.require(num_heads_k > 0 && group > 0 && num_heads_k * group <= kMostHeads && page_size > 0 &&
                    page_size <= kMost && block_pages > 0 && block_pages <= kMost && max_seqlen_q > 0 &&
                    max_seqlen_q <= kMost && num_parts >= num_heads_k && num_parts % num_heads_k == 0 &&
                    num_parts <= args.num_parts,
                "a size is out of range");
  args.heads = num_heads_k, args.group = group, args.head_parts = num_parts / num_heads_k;
  args.page_size = page_size, args.block_pages = block_pages, args.max_seqlen_q = max_seqlen_q;
  launch_pa_metadata(args, ffi::stream_of(work_indptr));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(pa_metadata, aiter_like::pa_metadata);
#endif

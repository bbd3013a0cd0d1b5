// SPDX-License-Identifier: MIT
// The plan of latent attention, made on the device from cumulative lengths: the blocks of keys of all sequences lie on
// a line, `overhead` blocks apart, and the line is cut into equal parts, one for each place in the attention's launch.
//
// A workgroup per part finds by itself where the sequences lie, 256 of them at once:
//   1. adds up the blocks of all, from which the length of a part follows; where parts a little longer are enough for
//      each to hold blocks of one sequence only, they are, and each sequence begins a part
//   2. scans blocks, pieces and rows of partial results, so that each sequence knows its place in every list
//   3. writes what its part of the line holds; the first workgroup also what belongs to no part
// The first 256 are read once. LDS: a word for each wave and list. Bound: latency.
#pragma once

#include "aiter_like/plan.h"
#include "aiter_like/reduce.h"
#include "aiter_like/scan.h"

namespace aiter_like {

struct MlaPlanArgs {
  int *work_indptr, *work_info, *reduce_indptr, *reduce_final_map, *reduce_partial_map;  // written
  const int *qo_indptr, *kv_indptr;
  int batch, num_entries, total_q, max_seqlen_q;  // sequences; pages; rows in all, and of a sequence at most
  int block_pages, least_blocks, overhead;
  int most;      // pieces of a sequence; 0: any number
  bool is_even;  // each sequence has `most` parts of its own
  int topk;      // -1, or pages of a token at most, where tokens are sequences
  int num_parts, num_items, num_slots, num_tiles;
};

namespace mla_plan {

using plan::ceil_div, plan::is_inside, plan::Sequence, plan::within;

constexpr int kThreads = 256;

/// Sequence `index`, inside of the tensors whatever the lengths hold; nothing beyond the last one.
__device__ inline Sequence sequence(const MlaPlanArgs& args, int index, int count, int tokens) {
  Sequence found{0, 0, 0, 0, 0};
  if (index >= count) return found;
  const int batch = args.topk < 0 ? index : index / tokens;
  found.first_page = within(args.kv_indptr[batch], 0, args.num_entries);
  found.pages = within(args.kv_indptr[batch + 1], found.first_page, args.num_entries) - found.first_page;
  if (args.topk < 0) {
    found.first_row = within(args.qo_indptr[batch], 0, args.total_q);
    const int rows = within(args.qo_indptr[batch + 1], found.first_row, args.total_q) - found.first_row;
    found.rows = rows < args.max_seqlen_q ? rows : args.max_seqlen_q;
  } else {
    found.first_row = index, found.rows = 1;
    found.first_page = index * args.topk, found.pages = found.pages < args.topk ? found.pages : args.topk;
  }
  const int blocks = ceil_div(found.pages, args.block_pages);
  found.blocks = found.rows == 0 ? 0 : blocks > 1 ? blocks : 1;  // without a key there is still a row to write
  return found;
}

constexpr int kWaves = kThreads / kWaveSize;

struct Lds : ScanLds<3, kWaves> {
  float longest[kWaves];
};

/// Whether parts of `share` blocks, or of up to an eighth more, which then is the share, are enough for each to hold
/// blocks of one sequence only: fewer pieces, whose rows need be added up, are worth that much.
__device__ inline bool widen(const MlaPlanArgs& args, const Sequence& early, int count, int tokens, int& share,
                             Lds& lds) {
  const int shares[3] = {share, share + share / 16, share + share / 8};
  int needed[3] = {0, 0, 0};
  for (int first = 0; first < count; first += kThreads) {
    const Sequence own = first == 0 ? early : sequence(args, first + thread_index(), count, tokens);
    int parts[3], sums[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) parts[i] = own.blocks > 0 ? ceil_div(own.blocks + args.overhead, shares[i]) : 0;
    scan(lds, parts, sums);
#pragma unroll
    for (int i = 0; i < 3; ++i) needed[i] += sums[i];
  }
  for (int i = 0; i < 3; ++i) {
    if (needed[i] > args.num_parts) continue;
    share = shares[i];
    return true;
  }
  return false;
}

/// How the line is cut: sequences, or tokens of as many each that are sequences; blocks of a part; whether a part holds
/// blocks of one sequence only.
struct Cut {
  int tokens, count, share;
  bool is_whole;
};

/// Step 1. `early` becomes the work-item's first sequence.
__device__ __forceinline__ Cut cut(const MlaPlanArgs& args, Sequence& early, Lds& lds) {
  const int thread = thread_index();
  int tokens = 1, count = args.batch;
  if (args.topk >= 0) {
    const int begin = within(args.qo_indptr[0], 0, args.total_q);
    const int each = within(args.qo_indptr[1], begin, args.total_q) - begin;
    tokens = each > 1 ? each : 1;
    count = count < args.total_q / tokens ? count * tokens : args.total_q;
  }
  early = sequence(args, thread, count, tokens);
  int total = 0, longest = 0;
  for (int first = 0; first < count; first += kThreads) {
    const Sequence own = first == 0 ? early : sequence(args, first + thread, count, tokens);
    int size[1] = {own.blocks > 0 ? own.blocks + args.overhead : 0}, sum[1];
    scan(lds, size, sum);
    total += sum[0];
    longest = longest > own.blocks ? longest : own.blocks;
  }
  if (args.most > 0)  // bits of numbers that are not negative are ordered like the floats they would be
    longest = static_cast<int>(
        float_bits(workgroup_max<kThreads>(bits_float(static_cast<uint32_t>(longest)), lds.longest)));
  int share = ceil_div(total, args.num_parts);
  share = share > args.least_blocks ? share : args.least_blocks;
  if (args.most > 0 && share < ceil_div(longest, args.most)) share = ceil_div(longest, args.most);
  const bool is_whole = !args.is_even && widen(args, early, count, tokens, share, lds);
  return {tokens, count, share, is_whole};
}

/// Steps 2 and 3.
__device__ inline void make(const MlaPlanArgs& args, int part, Lds& lds) {
  const int thread = thread_index();
  Sequence early;
  const auto [tokens, count, share, is_whole] = cut(args, early, lds);
  int line = 0, items = 0, slots = 0, rows = 0, mine = 0;
  for (int first = 0; first < count; first += kThreads) {
    const int index = first + thread;
    const Sequence own = first == 0 ? early : sequence(args, index, count, tokens);
    const int size = own.blocks > 0 ? own.blocks + args.overhead : 0;
    int places[1] = {is_whole ? ceil_div(size, share) * share : size}, sums[1];
    scan(lds, places, sums);
    const int origin = line + places[0];
    int chunk = share, first_part = origin / share, offset = origin % share;
    if (args.is_even) {
      const int each = ceil_div(own.blocks, args.most);
      chunk = each > 1 ? each : 1, first_part = index * args.most, offset = 0;
    }
    const int pieces = own.blocks > 0 ? ceil_div(offset + own.blocks, chunk) : 0, partials = pieces > 1 ? pieces : 0;
    int lists[3] = {pieces, partials, partials * own.rows}, all[3];
    scan(lds, lists, all);
    const int item = items + lists[0], slot = slots + lists[1], row = rows + lists[2], nth = part - first_part;

    int before[1] = {within(nth, 0, pieces)}, sum[1];
    scan(lds, before, sum);
    mine += sum[0];
    if (nth >= 0 && nth < pieces && is_inside(item + nth, args.num_items)) {
      const int low = within(nth * chunk - offset, 0, own.blocks) * args.block_pages;
      const int high = within((nth + 1) * chunk - offset, 0, own.blocks) * args.block_pages;
      const int place = pieces > 1 ? row + nth * own.rows : -1;
      const int end = own.first_page + (high < own.pages ? high : own.pages);
      plan::write_item(args.work_info, item + nth, index / tokens, place, own,
                       own.first_page + (low < own.pages ? low : own.pages), end, own.first_page + own.pages - end, 0);
      if (pieces > 1 && is_inside(slot + nth, args.num_slots)) args.reduce_partial_map[slot + nth] = place;
    }
    if (part == 0 && index < count && index < args.num_tiles)
      plan::write_group(args.reduce_indptr, args.reduce_final_map, index, slot + partials, own);
    line += sums[0], items += all[0], slots += all[1], rows += all[2];
  }
  if (thread == 0) args.work_indptr[part] = within(mine, 0, args.num_items);
  if (part != 0) return;
  if (thread == 0) {
    args.work_indptr[args.num_parts] = within(items, 0, args.num_items);
    args.reduce_indptr[0] = 0;
  }
  for (int index = count + thread; index < args.num_tiles; index += kThreads)
    plan::write_group(args.reduce_indptr, args.reduce_final_map, index, slots, {});
}

}  // namespace mla_plan

__global__ __launch_bounds__(mla_plan::kThreads) void mla_metadata_kernel(MlaPlanArgs args) {
  await_stream();
  __shared__ mla_plan::Lds lds;
  mla_plan::make(args, static_cast<int>(workgroup_index().x), lds);
}

inline void launch_mla_metadata(const MlaPlanArgs& args, Stream stream) {
  launch_overlapped(mla_metadata_kernel, dim3(static_cast<uint32_t>(args.num_parts)), mla_plan::kThreads, stream, args);
  check_launch("mla_metadata_kernel");
}

}  // namespace aiter_like

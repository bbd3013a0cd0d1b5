// SPDX-License-Identifier: MIT
// The host part that renorm_probs.hip and sampling_from_probs.hip share. Host pass only.
#pragma once

#include "filter_body.h"
#include "sampling_host.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like::ffi {

/// The limits of each of the `rows` results.
template <class Config>
void take_limits(Match& match, FilterArgs<Config>& args, int64_t rows, int64_t top_k, double top_p, double min_p,
                 const OptionalTensor& top_ks, const OptionalTensor& top_ps, const OptionalTensor& min_ps) {
  args.top_k = row_number<int64_t>(match, top_ks, top_k, rows, "top_k");
  args.top_p = row_number<float>(match, top_ps, static_cast<float>(top_p), rows, "top_p");
  args.min_p = row_number<float>(match, min_ps, static_cast<float>(min_p), rows, "min_p");
}

/// How slices are summed in chunks, as small ones as there is room for.
template <class Element, class Args>
void plan_chunks(Args& args, uint32_t slices) {
  const uint32_t most = slices == 1 ? kMostChunks : kMostSlicedChunks;
  const int vectors = (args.slices.length + Chunks<Element>::kVec - 1) / Chunks<Element>::kVec;
  while (vectors > 1 << (Chunks<Element>::kLog2 + args.log2_chunks)) ++args.log2_chunks;
  for (; slices << args.log2_chunks > most; --args.log2_chunks) ++args.chunk_shift;
  args.sums_of_row = ChunkSums::rounded(static_cast<int>(slices << args.log2_chunks));
}

/// Fills in what depends on the limits and on how the `rows` results are cut, and launches. `groups`: workgroups of a
/// row; 0: as many as suit.
template <class Config, class Launch>
void run_filter(Match& match, FilterArgs<Config>& args, const Tensor& probs, int64_t rows, uint32_t groups,
                Launch launch) {
  using Element = typename Config::Element;
  Size probs_rows{"rows"}, columns{"columns", (1 << 22) + 1};
  args.probs = match.rows<const Element>(probs, probs_rows, columns, "probs");
  match.require(columns > 0 && rows < kRowLimit, "at most 65535 rows, which are not empty");
  args.probs_rows = probs_rows;
  const bool is_limited = args.top_k.data || args.top_p.data || (args.top_k.value > 0 && args.top_k.value < columns) ||
                          !(args.top_p.value >= 1.f);
  const bool has_min_p = args.min_p.data || args.min_p.value > 0.f;
  const int64_t row_bytes = columns * static_cast<int64_t>(sizeof(Element));
  const bool is_read_once = !Config::kIsRenorm && !is_limited && !has_min_p;
  uint32_t slices = groups;
  if (groups == 0) slices = is_read_once || 2 * rows <= units_of(probs) ? count_slices(rows, row_bytes, probs) : 1;
  // The tuner has to find where a cluster that holds the row is faster: only `groups` asks for one.
  if (!is_read_once && groups != 0)
    args.cluster = cluster_of(groups, rows, row_bytes, kMostDynamicLds, probs);
  if (args.cluster > 0) slices = args.cluster;
  if (!Config::kIsRenorm && slices > kMostSlicedChunks) slices = kMostSlicedChunks;
  args.slices = plan_slices(columns, slices);
  if (!Config::kIsRenorm) plan_chunks<Element>(args, args.cluster > 0 ? 1 : slices);
  const bool is_sliced = slices > 1 && args.cluster == 0;
  const bool is_searched = is_limited || has_min_p || Config::kIsRenorm;
  const Scratch searches(is_sliced && is_searched ? rows * int64_t{sizeof(RowSearch)} : 0, probs.device());
  const Scratch sums(is_sliced && !Config::kIsRenorm ? rows * (2 + args.sums_of_row) * 8 : 0, probs.device());
  args.searches = searches.data<RowSearch>(), args.sums = sums.data<uint64_t>();
  launch(args, static_cast<uint32_t>(rows), slices, is_limited, has_min_p, stream_of(probs));
}

}  // namespace aiter_like::ffi
#endif

// SPDX-License-Identifier: MIT
// The host part that renorm_probs.hip and sampling_from_probs.hip share. Host pass only.
#pragma once

#include <optional>

#include "filter_body.h"
#include "sampling_host.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like::ffi {

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
void run_filter(FilterArgs<Config>& args, const Tensor& probs, int64_t rows, uint32_t groups, Launch launch) {
  using Element = typename Config::Element;
  const Rows p = ffi::rows<Element>(probs, "probs");
  check_value(rows <= kMostRows && p.size > 0 && p.size <= (int64_t{1} << 22),
              "probs: at most 65535 rows of 1 to 2^22 elements");
  args.probs = {static_cast<const Element*>(p.data), p.stride};
  args.probs_rows = p.count;
  const bool is_limited = args.top_k.data || args.top_p.data || (args.top_k.value > 0 && args.top_k.value < p.size) ||
                          !(args.top_p.value >= 1.f);
  const bool has_min_p = args.min_p.data || args.min_p.value > 0.f;
  const int64_t row_bytes = p.size * static_cast<int64_t>(sizeof(Element));
  const bool is_read_once = !Config::kIsRenorm && !is_limited && !has_min_p;
  uint32_t slices = groups;
  if (groups == 0) slices = is_read_once || 2 * rows <= units_of(probs) ? count_slices(rows, row_bytes, probs) : 1;
  // Where a cluster that holds the row is the faster way, the tuner has to find: only `groups` asks for one.
  if (!is_read_once && groups != 0)
    args.cluster = cluster_of(groups, rows, row_bytes, kMostDynamicLds, probs);
  if (args.cluster > 0) slices = args.cluster;
  if (!Config::kIsRenorm && slices > kMostSlicedChunks) slices = kMostSlicedChunks;
  args.slices = plan_slices(p.size, slices);
  if (!Config::kIsRenorm) plan_chunks<Element>(args, args.cluster > 0 ? 1 : slices);
  std::optional<Scratch> searches, sums;
  const bool is_sliced = slices > 1 && args.cluster == 0;
  if (is_sliced && (is_limited || has_min_p || Config::kIsRenorm))
    args.searches = static_cast<RowSearch*>(
        searches.emplace(rows * static_cast<int64_t>(sizeof(RowSearch)), probs.device()).data());
  if (is_sliced && !Config::kIsRenorm)
    args.sums = static_cast<uint64_t*>(sums.emplace(rows * (2 + args.sums_of_row) * 8, probs.device()).data());
  launch(args, static_cast<uint32_t>(rows), slices, is_limited, has_min_p, stream_of(probs));
}

}  // namespace aiter_like::ffi
#endif

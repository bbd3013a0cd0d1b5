// SPDX-License-Identifier: MIT
// The host part that renorm_probs.hip and sampling_from_probs.hip share. Host pass only.
#pragma once

#include <optional>

#include "filter_body.h"
#include "sampling_host.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like::ffi {

/// Fills in what depends on the limits and on how the `rows` results are cut, and launches.
template <class Config, class Launch>
void run_filter(FilterArgs<Config>& args, const Tensor& probs, int64_t rows, Launch launch) {
  using Element = typename Config::Element;
  const Rows p = ffi::rows<Element>(probs, "probs");
  check_value(rows <= kMostRows && p.size > 0 && p.size <= (int64_t{1} << 22),
              "probs: at most 65535 rows of 1 to 2^22 elements");
  args.probs = {static_cast<const Element*>(p.data), p.stride};
  args.probs_rows = p.count;
  const bool is_limited = args.top_k.data || args.top_p.data || (args.top_k.value > 0 && args.top_k.value < p.size) ||
                          !(args.top_p.value >= 1.f);
  const bool has_min_p = args.min_p.data || args.min_p.value > 0.f;
  uint32_t slices = 1;
  if (2 * rows <= num_compute_units(probs.device().device_type == kDLCPU ? 0 : probs.device().device_id))
    slices = count_slices(rows, p.size * static_cast<int64_t>(sizeof(Element)), probs);
  args.slices = plan_slices(p.size, slices);
  std::optional<Scratch> searches, best;
  if (slices > 1 && (is_limited || has_min_p || Config::kIsRenorm))
    args.searches = static_cast<RowSearch*>(
        searches.emplace(rows * static_cast<int64_t>(sizeof(RowSearch)), probs.device()).data());
  if (slices > 1 && !Config::kIsRenorm)
    args.best = static_cast<uint64_t*>(best.emplace(rows * slices * 8, probs.device()).data());
  launch(args, static_cast<uint32_t>(rows), slices, is_limited, has_min_p, stream_of(probs));
}

}  // namespace aiter_like::ffi
#endif

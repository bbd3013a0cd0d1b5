// SPDX-License-Identifier: MIT
// sampling_from_probs of PyTorch tensors; filter_launch.h has the kernels. One build per element type.
#include "filter_host.h"
#include "filter_launch.h"

#if !defined(ELEMENT) || !defined(GROUPS)
#error "sampling_from_probs.hip: -DELEMENT=bf16|f16|float -DGROUPS=workgroups of a row, or 0: as many as suit"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  static constexpr bool kIsRenorm = false;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_filter(const FilterArgs<Config>&, uint32_t, uint32_t, bool, bool, Stream);

#if AITER_LIKE_HOST_PASS

void sampling_from_probs(ffi::Tensor out, ffi::Tensor probs, ffi::OptionalTensor indices, int64_t top_k, double top_p,
                         double min_p, ffi::OptionalTensor top_ks, ffi::OptionalTensor top_ps,
                         ffi::OptionalTensor min_ps, int64_t seed, int64_t offset, ffi::OptionalTensor seeds,
                         ffi::OptionalTensor offsets) {
  ffi::Match match("sampling_from_probs");
  ffi::Size rows{"rows"};
  FilterArgs<Config> args{};
  args.tokens = match.elements<int32_t>(out, rows, "out");
  if (rows == 0) return;
  match.require(probs.ndim() == 2 && (indices.has_value() || probs.size(0) == rows),
                "out must have an element for each row of probs, or of indices");
  args.indices = match.elements<const int32_t>(indices, rows, "indices");
  ffi::take_limits(match, args, rows, top_k, top_p, min_p, top_ks, top_ps, min_ps);
  args.seeds = ffi::seeds_of(match, seed, offset, seeds, offsets, rows);
  ffi::run_filter(match, args, probs, rows, GROUPS, launch_filter<Config>);
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(sampling_from_probs, aiter_like::sampling_from_probs);
#endif

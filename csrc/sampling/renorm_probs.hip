// SPDX-License-Identifier: MIT
// renorm_probs of PyTorch tensors; filter_launch.h has the kernels. One build per element type.
#include "filter_host.h"
#include "filter_launch.h"

#if !defined(ELEMENT) || !defined(GROUPS)
#error "renorm_probs.hip: -DELEMENT=bf16|f16|float -DGROUPS=workgroups of a row, or 0: as many as suit"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  static constexpr bool kIsRenorm = true;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_filter(const FilterArgs<Config>&, uint32_t, uint32_t, bool, bool, Stream);

#if AITER_LIKE_HOST_PASS

void renorm_probs(ffi::Tensor out, ffi::Tensor probs, int64_t top_k, double top_p, double min_p,
                  ffi::OptionalTensor top_ks, ffi::OptionalTensor top_ps, ffi::OptionalTensor min_ps) {
  ffi::Match match("renorm_probs");
  ffi::Size rows{"rows"}, columns{"columns"};
  FilterArgs<Config> args{};
  args.out = match.rows<Config::Element>(out, rows, columns, "out");
  if (rows == 0) return;
  match.take<const Config::Element>(probs, {rows, columns}, "probs");
  ffi::take_limits(match, args, rows, top_k, top_p, min_p, top_ks, top_ps, min_ps);
  ffi::run_filter(match, args, probs, rows, GROUPS, launch_filter<Config>);
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(renorm_probs, aiter_like::renorm_probs);
#endif

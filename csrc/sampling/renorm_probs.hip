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
                  ffi::Optional<ffi::Tensor> top_ks, ffi::Optional<ffi::Tensor> top_ps,
                  ffi::Optional<ffi::Tensor> min_ps) {
  const ffi::Rows y = ffi::rows<Config::Element>(out, "renorm_probs: out");
  const int64_t rows = y.count;
  if (rows == 0) return;
  ffi::check_value(probs.ndim() == 2 && probs.size(0) == rows && probs.size(1) == y.size,
                   "renorm_probs: out must have the shape of probs");
  FilterArgs<Config> args{};
  args.out = {static_cast<Config::Element*>(y.data), y.stride};
  args.top_k = ffi::row_number<int64_t>(top_ks, top_k, rows, "renorm_probs: top_k");
  args.top_p = ffi::row_number<float>(top_ps, static_cast<float>(top_p), rows, "renorm_probs: top_p");
  args.min_p = ffi::row_number<float>(min_ps, static_cast<float>(min_p), rows, "renorm_probs: min_p");
  ffi::run_filter(args, probs, rows, GROUPS, launch_filter<Config>);
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(renorm_probs, aiter_like::renorm_probs);
#endif

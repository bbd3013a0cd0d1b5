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

void sampling_from_probs(ffi::Tensor out, ffi::Tensor probs, ffi::Optional<ffi::Tensor> indices, int64_t top_k,
                         double top_p, double min_p, ffi::Optional<ffi::Tensor> top_ks,
                         ffi::Optional<ffi::Tensor> top_ps, ffi::Optional<ffi::Tensor> min_ps, int64_t seed,
                         int64_t offset, ffi::Optional<ffi::Tensor> seeds, ffi::Optional<ffi::Tensor> offsets) {
  const int64_t rows = out.numel();
  if (rows == 0) return;
  ffi::check_value(probs.ndim() == 2 && (indices.has_value() || probs.size(0) == rows),
                   "sampling_from_probs: out must have an element for each row of probs, or of indices");
  FilterArgs<Config> args{};
  args.tokens = const_cast<int32_t*>(ffi::per_row<int32_t>(out, rows, "sampling_from_probs: out"));
  args.indices = ffi::per_row<int32_t>(indices, rows, "sampling_from_probs: indices");
  args.top_k = ffi::row_number<int64_t>(top_ks, top_k, rows, "sampling_from_probs: top_k");
  args.top_p = ffi::row_number<float>(top_ps, static_cast<float>(top_p), rows, "sampling_from_probs: top_p");
  args.min_p = ffi::row_number<float>(min_ps, static_cast<float>(min_p), rows, "sampling_from_probs: min_p");
  args.seeds = ffi::seeds_of(seed, offset, seeds, offsets, rows, "sampling_from_probs: seed and offset");
  ffi::run_filter(args, probs, rows, GROUPS, launch_filter<Config>);
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(sampling_from_probs, aiter_like::sampling_from_probs);
#endif

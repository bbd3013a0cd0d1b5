// SPDX-License-Identifier: MIT
// softmax of PyTorch tensors; softmax_body.h has the kernels. One build per pair of element types.
#include "sampling_host.h"
#include "softmax_body.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(GROUPS)
#error "softmax.hip: -DELEMENT=bf16|f16|float -DOUT=bf16|f16|float -DGROUPS=workgroups of a row, or 0: as many as suit"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Out = OUT;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_softmax(const SoftmaxArgs<Config>&, uint32_t, uint32_t, Stream);

#if AITER_LIKE_HOST_PASS

void softmax(ffi::Tensor out, ffi::Tensor input, double temperature, ffi::OptionalTensor temperatures) {
  ffi::Match match("softmax");
  ffi::Size rows{"rows", ffi::kRowLimit}, columns{"columns"};
  SoftmaxArgs<Config> args{};
  args.input = match.rows<const Config::Element>(input, rows, columns, "input");
  args.out = match.rows<Config::Out>(out, rows, columns, "out");
  if (rows == 0) return;
  args.temperatures = match.elements<const float>(temperatures, rows, "temperature");
  args.temperature = temperature;
  const int64_t row_bytes = columns * int64_t{sizeof(Config::Element)};
  uint32_t slices = GROUPS;
  if (GROUPS == 0) {  // whole rows, of which what is held is read once, are faster from a row for each third CU on
    slices = 3 * rows <= ffi::units_of(input) ? ffi::count_slices(rows, row_bytes, input) : 1;
  }
  args.cluster = ffi::cluster_of(GROUPS, rows, row_bytes, kMostDynamicLds, input);
  if (args.cluster > 0) slices = args.cluster;
  args.slices = ffi::plan_slices(columns, slices);
  const ffi::Scratch parts(slices > 1 && args.cluster == 0 ? rows * slices * 8 : 0, input.device());
  args.parts = parts.data<float>();
  launch_softmax(args, rows, slices, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(softmax, aiter_like::softmax);
#endif

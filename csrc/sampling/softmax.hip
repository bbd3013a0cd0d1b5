// SPDX-License-Identifier: MIT
// softmax of PyTorch tensors; softmax_body.h has the kernels. One build per pair of element types.
#include <optional>

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

void softmax(ffi::Tensor out, ffi::Tensor input, double temperature, ffi::Optional<ffi::Tensor> temperatures) {
  const ffi::Rows x = ffi::rows<Config::Element>(input, "softmax: input");
  const ffi::Rows y = ffi::rows<Config::Out>(out, "softmax: out");
  const int64_t rows = x.count;
  if (rows == 0) return;
  ffi::check_value(rows <= ffi::kMostRows && x.size > 0 && x.size < (int64_t{1} << 31),
                   "softmax: at most 65535 rows of 1 to 2^31 - 1 elements");
  ffi::check_value(y.count == rows && y.size == x.size, "softmax: out must have the shape of input");
  SoftmaxArgs<Config> args{};
  args.out = {static_cast<Config::Out*>(y.data), y.stride};
  args.input = {static_cast<const Config::Element*>(x.data), x.stride};
  args.temperatures = ffi::per_row<float>(temperatures, rows, "softmax: temperature");
  args.temperature = static_cast<float>(temperature);
  const int64_t row_bytes = x.size * static_cast<int64_t>(sizeof(Config::Element));
  uint32_t slices = GROUPS;
  if (GROUPS == 0) {  // whole rows, of which what is held is read once, are faster from a row for each third CU on
    slices = 3 * rows <= ffi::units_of(input) ? ffi::count_slices(rows, row_bytes, input) : 1;
  }
  args.cluster = ffi::cluster_of(GROUPS, rows, row_bytes, kMostDynamicLds, input);
  if (args.cluster > 0) slices = args.cluster;
  args.slices = ffi::plan_slices(x.size, slices);
  std::optional<ffi::Scratch> parts;
  if (slices > 1 && args.cluster == 0)
    args.parts = static_cast<float*>(parts.emplace(rows * slices * 8, input.device()).data());
  launch_softmax(args, static_cast<uint32_t>(rows), slices, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(softmax, aiter_like::softmax);
#endif

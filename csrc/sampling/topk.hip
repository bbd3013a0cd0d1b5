// SPDX-License-Identifier: MIT
// topk of PyTorch tensors; topk_body.h has the kernels. One build per element type.
#include <optional>

#include "sampling_host.h"
#include "topk_body.h"

#if !defined(ELEMENT) || !defined(GROUPS)
#error "topk.hip: -DELEMENT=bf16|f16|float -DGROUPS=workgroups of a row, or 0: as many as suit"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_topk(const TopkArgs<Config>&, uint32_t, uint32_t, Stream);

#if AITER_LIKE_HOST_PASS

void topk(ffi::Tensor indices, ffi::Optional<ffi::Tensor> values, ffi::Tensor input, bool is_largest, bool is_by_column,
          ffi::Optional<ffi::Tensor> row_starts, ffi::Optional<ffi::Tensor> row_ends,
          ffi::Optional<ffi::Tensor> lengths, int64_t next_n) {
  const ffi::Rows x = ffi::rows<Config::Element>(input, "topk: input");
  const int64_t rows = input.ndim() == 2 ? input.size(0) : 0;
  ffi::check_value(indices.ndim() == 2 && indices.size(0) == rows, "topk: indices must have the rows of input");
  const int64_t k = indices.size(1);
  if (rows == 0 || k == 0) return;
  ffi::check_value(rows <= ffi::kMostRows && x.size > 0 && x.size < (int64_t{1} << 31) && k <= 4096,
                   "topk: at most 65535 rows of 1 to 2^31 - 1 elements, and k at most 4096");
  TopkArgs<Config> args{};
  args.is_64bit = ffi::has_element<int64_t>(indices);
  const ffi::Rows ids = args.is_64bit ? ffi::rows<int64_t>(indices, "topk: indices")
                                      : ffi::rows<int32_t>(indices, "topk: indices");
  args.indices = ids.data;
  args.indices_stride = ids.stride;
  if (values.has_value()) {
    ffi::check_value(values.value().ndim() == 2 && values.value().size(0) == rows && values.value().size(1) == k,
                     "topk: values must have the shape of indices");
    args.values = ffi::scan_rows<Config::Element>(values.value(), "topk: values");
  }
  args.input = {static_cast<const Config::Element*>(x.data), x.stride};
  args.row_starts = ffi::per_row<int32_t>(row_starts, rows, "topk: row_starts");
  args.row_ends = ffi::per_row<int32_t>(row_ends, rows, "topk: row_ends");
  ffi::check_value(next_n > 0 && rows <= next_n * int64_t{1 << 20}, "topk: next_n must be positive");
  args.lengths = ffi::per_row<int32_t>(lengths, rows / next_n, "topk: lengths");
  args.k = static_cast<int>(k);
  args.next_n = static_cast<int>(next_n);
  args.is_largest = is_largest;
  args.is_by_column = is_by_column;
  uint32_t slices = GROUPS;
  if (GROUPS == 0) {
    slices = ffi::count_slices(rows, x.size * static_cast<int64_t>(sizeof(Config::Element)), input);
    if (2 * rows > ffi::units_of(input)) slices = 1;
  }
  const int64_t most = x.size / (4 * k);  // so that the candidates are few beside the elements
  if (slices > most) slices = static_cast<uint32_t>(most < 1 ? 1 : most);
  args.slices = ffi::plan_slices(x.size, slices);
  std::optional<ffi::Scratch> candidates;
  if (slices > 1)
    args.candidates = static_cast<uint64_t*>(candidates.emplace(rows * slices * k * 8, input.device()).data());
  launch_topk(args, static_cast<uint32_t>(rows), slices, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(topk, aiter_like::topk);
#endif

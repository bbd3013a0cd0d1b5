// SPDX-License-Identifier: MIT
// topk of PyTorch tensors; topk_body.h has the kernels. One build per element type.
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

void topk(ffi::Tensor indices, ffi::OptionalTensor values, ffi::Tensor input, bool is_largest, bool is_by_column,
          ffi::OptionalTensor row_starts, ffi::OptionalTensor row_ends, ffi::OptionalTensor lengths, int64_t next_n) {
  ffi::Match match("topk");
  ffi::Size rows{"rows", ffi::kRowLimit}, columns{"columns"}, k{"k", 4097};
  TopkArgs<Config> args{};
  const auto x = match.take<const Config::Element>(input, {rows, columns}, "input");
  const auto ids = match.take<void>(indices, {rows, k}, "indices");
  const auto best = match.take<Config::Element>(values, {rows, k}, "values");
  if (rows == 0 || k == 0) return;
  match.require(columns > 0 && next_n > 0 && rows <= next_n * int64_t{1 << 20},
                "rows must not be empty, and next_n be positive");
  args.is_64bit = match.one_of<int32_t, int64_t>(indices, "indices") == 1;
  args.indices = ids, args.indices_stride = ids.step(0);
  args.values = {best, best.step(0)};
  args.input = {x, x.step(0)};
  args.row_starts = match.elements<const int32_t>(row_starts, rows, "row_starts");
  args.row_ends = match.elements<const int32_t>(row_ends, rows, "row_ends");
  args.lengths = match.elements<const int32_t>(lengths, rows / next_n, "lengths");
  args.k = k, args.next_n = next_n, args.is_largest = is_largest, args.is_by_column = is_by_column;
  uint32_t slices = GROUPS;
  if (GROUPS == 0) {
    slices = ffi::count_slices(rows, columns * int64_t{sizeof(Config::Element)}, input);
    if (2 * rows > ffi::units_of(input)) slices = 1;
  }
  const int64_t most = columns / (4 * k);  // so that the candidates are few beside the elements
  if (slices > most) slices = static_cast<uint32_t>(most < 1 ? 1 : most);
  args.slices = ffi::plan_slices(columns, slices);
  const ffi::Scratch candidates(slices > 1 ? rows * slices * k * 8 : 0, input.device());
  args.candidates = candidates.data<uint64_t>();
  launch_topk(args, rows, slices, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(topk, aiter_like::topk);
#endif

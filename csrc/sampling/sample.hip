// SPDX-License-Identifier: MIT
// sample of PyTorch tensors; sample_body.h has the kernels. One build per element type.
#include "sample_body.h"
#include "sampling_host.h"

#if !defined(ELEMENT) || !defined(GROUPS)
#error "sample.hip: -DELEMENT=bf16|f16|float -DGROUPS=workgroups of a row, or 0: as many as suit"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
void launch(const SampleArgs<Config>& args, Noise noise, uint32_t rows, uint32_t slices, Stream stream) {
  if (noise == Noise::kNone) launch_sample<Config, Noise::kNone>(args, rows, slices, stream);
  if (noise == Noise::kGiven) launch_sample<Config, Noise::kGiven>(args, rows, slices, stream);
  if (noise == Noise::kPhilox) launch_sample<Config, Noise::kPhilox>(args, rows, slices, stream);
}

#if AITER_LIKE_HOST_PASS

void sample(ffi::Tensor out, ffi::Tensor input, ffi::OptionalTensor temperatures, ffi::OptionalTensor exponentials,
            bool is_mixed, double lambd, double epsilon, int64_t seed, int64_t offset, ffi::OptionalTensor seeds,
            ffi::OptionalTensor offsets) {
  ffi::Match match("sample");
  ffi::Size rows{"rows", ffi::kRowLimit}, columns{"columns"};
  SampleArgs<Config> args{};
  args.input = match.rows<const Config::Element>(input, rows, columns, "input");
  if (rows == 0) return;
  args.out = match.elements<int32_t>(out, rows, "out");
  args.temperatures = match.elements<const float>(temperatures, rows, "temperatures");
  args.exponentials = match.rows<const float>(exponentials, rows, columns, "exponentials");
  args.seeds = ffi::seeds_of(match, seed, offset, seeds, offsets, rows);
  args.epsilon = epsilon, args.inverse_lambda = 1.0 / lambd, args.is_mixed = is_mixed;
  const int64_t row_bytes = columns * int64_t{sizeof(Config::Element)};
  const Noise noise = !args.temperatures         ? Noise::kNone
                      : exponentials.has_value() ? Noise::kGiven
                                                 : Noise::kPhilox;
  uint32_t slices = GROUPS == 0 ? ffi::count_slices(rows, row_bytes, input) : GROUPS;
  uint32_t groups = GROUPS == 0 ? ffi::readers_of(rows, row_bytes, input) : GROUPS;
  // A second launch costs less than a cluster where few rows leave multiprocessors idle, or numbers are drawn (H100).
  const bool is_filled = rows * groups >= ffi::units_of(input);
  if (GROUPS != 0 || (noise == Noise::kNone && is_filled))
    args.cluster = ffi::cluster_of(groups, rows, row_bytes, row_bytes, input);  // they hold nothing
  if (args.cluster > 0) slices = args.cluster;
  args.slices = ffi::plan_slices(columns, slices);
  const ffi::Scratch best(slices > 1 && args.cluster == 0 ? rows * slices * 8 : 0, input.device());
  args.best = best.data<uint64_t>();
  launch(args, noise, rows, slices, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(sample, aiter_like::sample);
#endif

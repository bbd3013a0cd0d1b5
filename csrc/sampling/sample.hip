// SPDX-License-Identifier: MIT
// sample of PyTorch tensors; sample_body.h has the kernels. One build per element type.
#include <optional>

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

void sample(ffi::Tensor out, ffi::Tensor input, ffi::Optional<ffi::Tensor> temperatures,
            ffi::Optional<ffi::Tensor> exponentials, bool is_mixed, double lambd, double epsilon, int64_t seed,
            int64_t offset, ffi::Optional<ffi::Tensor> seeds, ffi::Optional<ffi::Tensor> offsets) {
  const ffi::Rows x = ffi::rows<Config::Element>(input, "sample: input");
  const int64_t rows = x.count;
  if (rows == 0) return;
  ffi::check_value(rows <= ffi::kMostRows && x.size > 0 && x.size < (int64_t{1} << 31),
                   "sample: at most 65535 rows of 1 to 2^31 - 1 elements");
  SampleArgs<Config> args{};
  args.out = const_cast<int32_t*>(ffi::per_row<int32_t>(out, rows, "sample: out"));
  args.input = {static_cast<const Config::Element*>(x.data), x.stride};
  args.temperatures = ffi::per_row<float>(temperatures, rows, "sample: temperatures");
  if (exponentials.has_value())
    args.exponentials = ffi::scan_rows<const float>(exponentials.value(), "sample: exponentials");
  args.seeds = ffi::seeds_of(seed, offset, seeds, offsets, rows, "sample: seed and offset");
  args.epsilon = static_cast<float>(epsilon);
  args.inverse_lambda = static_cast<float>(1.0 / lambd);
  args.is_mixed = is_mixed;
  const int64_t row_bytes = x.size * static_cast<int64_t>(sizeof(Config::Element));
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
  args.slices = ffi::plan_slices(x.size, slices);
  std::optional<ffi::Scratch> best;
  if (slices > 1 && args.cluster == 0)
    args.best = static_cast<uint64_t*>(best.emplace(rows * slices * 8, input.device()).data());
  launch(args, noise, static_cast<uint32_t>(rows), slices, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(sample, aiter_like::sample);
#endif

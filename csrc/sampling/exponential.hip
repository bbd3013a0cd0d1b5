// SPDX-License-Identifier: MIT
// Exponential random numbers: out[row, c] = E / lambda + epsilon, E by draws.h. They are those that sample.hip makes
// for itself from the same seeds, so that a race with these is the same race. HIP (gfx9) and CUDA.
//
// A lane takes four columns, the words of one counter. LDS: none. Bound: memory, 4 bytes written per element.
#include "sampling_host.h"

namespace aiter_like {

constexpr int kThreads = 256;

struct ExponentialArgs {
  ScanRows<float> out;
  Seeds seeds;
  int size;
  float epsilon, inverse_lambda;
};

__global__ __launch_bounds__(kThreads) void exponential_kernel(ExponentialArgs args) {
  await_stream();
  const int64_t row = workgroup_index().y;
  const int column = static_cast<int>(workgroup_index().x * kThreads + thread_index()) * 4;
  if (column >= args.size) return;
  const auto words = Draw(args.seeds, row).words<4>(column);
  Vec<float, 4> x;
#pragma unroll
  for (int e = 0; e < 4; ++e) x[e] = exponential_of(words[e]) * args.inverse_lambda + args.epsilon;
  float* out = args.out.row(row) + column;
  if (column + 4 <= args.size && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
    store_vec(out, x);
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e)
    if (column + e < args.size) out[e] = x[e];
}

void launch_exponential(const ExponentialArgs& args, uint32_t rows, Stream stream) {
  const uint32_t groups = static_cast<uint32_t>((int64_t{args.size} + 4 * kThreads - 1) / (4 * kThreads));
  launch_named("exponential_kernel", exponential_kernel, dim3(groups, rows), kThreads, stream, args);
}

#if AITER_LIKE_HOST_PASS

void exponential(ffi::Tensor out, double lambd, double epsilon, int64_t seed, int64_t offset, ffi::OptionalTensor seeds,
                 ffi::OptionalTensor offsets) {
  ffi::Match match("exponential");
  ffi::Size rows{"rows", ffi::kRowLimit}, columns{"columns", (int64_t{1} << 31) - 4};
  ExponentialArgs args{};
  args.out = match.rows<float>(out, rows, columns, "out");
  if (rows == 0) return;
  args.seeds = ffi::seeds_of(match, seed, offset, seeds, offsets, rows);
  args.size = columns, args.epsilon = epsilon, args.inverse_lambda = 1.0 / lambd;
  launch_exponential(args, rows, ffi::stream_of(out));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(exponential, aiter_like::exponential);
#endif

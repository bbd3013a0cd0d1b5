// SPDX-License-Identifier: MIT
// Squared ReLU: out = max(input, 0)², element by element, in fp32; NaN stays. HIP (gfx9) and CUDA. One build per
// ELEMENT.
//
// A lane takes kVectors vectors of 16 bytes; a workgroup's are side by side.
// Bound: memory. Per element sizeof(ELEMENT) bytes are read and as many written: 8192 × 8192 bf16 = 268 MB, 51 us at
// 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "aiter_like/math.h"

#if !defined(ELEMENT)
#error "relu_squared.hip: -DELEMENT=bf16|f16|float"
#endif

namespace aiter_like {

/// The macros of this build; the code below takes them from here.
struct Config {
  using Element = ELEMENT;
};

template <class Config>
struct ReluSquaredArgs {
  typename Config::Element* out;          // [rows, columns]
  const typename Config::Element* input;  // [rows, columns]
  int64_t out_stride, input_stride;       // elements from row to row
  int64_t rows;
  uint32_t columns;
};

constexpr int kThreads = 256, kVectors = 2;

// kVec elements per access: 16 bytes, or 1 element where an address is not aligned to that.
template <class Config, int kVec>
__device__ void relu_squared_body(const ReluSquaredArgs<Config>& args, Divider row_vectors) {
  using Element = typename Config::Element;
  const uint32_t first = workgroup_index().x * (kThreads * kVectors) + thread_index();
  const uint32_t end = static_cast<uint32_t>(args.rows) * row_vectors.divisor;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const uint32_t index = first + v * kThreads;
    if (index >= end) break;
    const uint32_t row = row_vectors.divide(index), column = (index - row * row_vectors.divisor) * kVec;
    Packed<Element, kVec> x;
    x.load(args.input + row * args.input_stride + column);
    float y[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) y[e] = x.at(e) <= 0.f ? 0.f : x.at(e) * x.at(e);
    store_vec<kVec>(args.out + row * args.out_stride + column, vec_from_float<Element>(y));
  }
}

template <int kVec>
__global__ __launch_bounds__(kThreads, 8) void relu_squared_kernel(ReluSquaredArgs<Config> args, Divider row_vectors) {
  await_stream();
  relu_squared_body<Config, kVec>(args, row_vectors);
}

template <int kVec>
void launch_vectors(ReluSquaredArgs<Config> args, Stream stream) {
  constexpr int64_t kPerGroup = kThreads * kVectors;
  const int64_t row_vectors = args.columns / kVec, total = args.rows;
  const int64_t most = ((int64_t{1} << 31) - kPerGroup) / row_vectors;  // rows of a launch: indices stay below 2^31
  for (int64_t row = 0; row < total; row += args.rows) {
    args.rows = total - row < most ? total - row : most;
    const int64_t groups = (args.rows * row_vectors + kPerGroup - 1) / kPerGroup;
    launch_overlapped(relu_squared_kernel<kVec>, dim3(static_cast<uint32_t>(groups)), kThreads, stream, args,
                      Divider(static_cast<uint32_t>(row_vectors)));
    args.input += args.rows * args.input_stride;
    args.out += args.rows * args.out_stride;
  }
  check_launch("relu_squared_kernel");
}

// Both passes compile this function: the device pass emits a kernel only where a launch of it is instantiated.
void launch_relu_squared(const ReluSquaredArgs<Config>& args, bool is_aligned, Stream stream) {
  if (is_aligned)
    launch_vectors<16 / sizeof(Config::Element)>(args, stream);
  else
    launch_vectors<1>(args, stream);
}

#if AITER_LIKE_HOST_PASS

void relu_squared(ffi::Tensor out, ffi::Tensor input) {
  ffi::Match match("relu_squared");
  ffi::Size rows{"rows", ffi::kNoLimit}, columns{"columns", 1 << 30};
  const auto x = match.rows<const Config::Element>(input, rows, columns, "input");
  const auto y = match.rows<Config::Element>(out, rows, columns, "out");
  if (rows == 0) return;
  const ReluSquaredArgs<Config> args{y.data, x.data, y.stride, x.stride, rows, static_cast<uint32_t>(columns)};
  launch_relu_squared(args, ffi::takes_vectors(16 / sizeof(Config::Element), input, out), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(relu_squared, aiter_like::relu_squared);
#endif

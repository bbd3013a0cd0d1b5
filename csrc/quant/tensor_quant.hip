// SPDX-License-Identifier: MIT
// Quantisation of a matrix to fp8 or int8 with one scale: q = round(x · (1 / scale)), saturated. HIP (gfx9) and CUDA.
// The scale is in memory; where is_dynamic it is first found, as the rule of quant.h gives it:
//
//   1. set the scale to that of zeros
//   2. each workgroup's largest magnitude, its scale, and an atomic maximum with the one in memory: the rule is
//      monotonous, so that the maximum is the scale of all elements, whatever the order
//   3. quantise, the last elements first: they are what a cache still has of step 2
//
// A lane takes kVectors vectors of the flattened matrix at a time. LDS: 4 bytes per wave.
// Bound: memory. sizeof(Element) + 1 bytes per element, 2 · sizeof(Element) + 1 where dynamic: 8192 × 8192 bf16 =
// 336 MB, 63 us at 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "aiter_like/math.h"
#include "aiter_like/preload.h"
#include "aiter_like/quant.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(VECTORS) || !defined(VEC)
#error "tensor_quant.hip: -DELEMENT=bf16|f16|float -DOUT=fp8|int8_t -DVECTORS -DVEC"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Out = OUT;
  static constexpr int kVectors = VECTORS, kVec = VEC;
};

constexpr int kThreads = 256;
constexpr int64_t kMostGroups = 2048;  // workgroups of step 2: a device full, and few atomics

template <class Config>
struct TensorQuantArgs {
  Matrix<typename Config::Out> out;
  Matrix<const typename Config::Element> input;
  float* scale;             // [1]
  const int32_t* num_rows;  // [1] or null: only num_rows · num_rows_factor rows are quantised
  int64_t rows, num_rows_factor;
#if defined(__HIP__)
  Divider row_vectors;
  uint32_t all_rows;  // `rows`, beside what is preloaded
  static constexpr Preload preload() {
    using A = TensorQuantArgs;
    return {offsetof(A, num_rows), offsetof(A, row_vectors), offsetof(A, row_vectors.shift), offsetof(A, scale),
            offsetof(A, input.data), offsetof(A, input.stride), offsetof(A, out.data)};
  }
#endif

  /// Rows to quantise.
  __device__ int64_t count() const {
    const int64_t wanted = num_rows == nullptr ? rows : *num_rows * num_rows_factor;
    return wanted < 0 ? 0 : wanted < rows ? wanted : rows;
  }
};

template <class Config>
__global__ __launch_bounds__(kThreads) void tensor_quant_reset_kernel(float* scale) {
  await_stream();
  if (thread_index() == 0) *scale = quant_scale<typename Config::Out>(0.f).scale;
}

template <class Config, int kVec>
__global__ __launch_bounds__(kThreads, 8) void tensor_quant_amax_kernel(TensorQuantArgs<Config> args,
                                                                         Divider row_vectors, uint32_t groups) {
  await_stream();
  constexpr int kVectors = Config::kVectors;
  __shared__ float scratch[kThreads / kWaveSize];
  const uint32_t end = static_cast<uint32_t>(args.count()) * row_vectors.divisor;
  float amax = 0.f;
  for (uint32_t start = workgroup_index().x * (kThreads * kVectors); start < end;
       start += groups * (kThreads * kVectors)) {
    Packed<typename Config::Element, kVec> x[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint32_t index = start + v * kThreads + thread_index(), row = row_vectors.divide(index);
      x[v] = {};
      if (index < end) x[v].load(args.input.row(row) + (index - row * row_vectors.divisor) * kVec);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (int e = 0; e < kVec; ++e) amax = larger(amax, __builtin_fabsf(x[v].at(e)));
  }
  amax = workgroup_max<kThreads>(amax, scratch);
  if (thread_index() == 0) atomic_larger(args.scale, quant_scale<typename Config::Out>(amax).scale);
}

#if defined(__HIP__)
template <class Config, int kVec>
__global__ __launch_bounds__(kThreads) void tensor_quant_kernel(AITER_LIKE_PRELOADED(TensorQuantArgs<Config>)) {
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  constexpr int kVectors = Config::kVectors;
  constexpr uint32_t kPerGroup = kThreads * kVectors;
  const Divider row_vectors = args.row_vectors;
  const float scale = *args.scale;
  const uint32_t all = args.all_rows * row_vectors.divisor, groups = (all + kPerGroup - 1) / kPerGroup;
  const uint32_t first = (groups - 1 - workgroup_index().x) * kPerGroup + thread_index();
  const uint32_t end = args.num_rows == nullptr ? all : static_cast<uint32_t>(args.count()) * row_vectors.divisor;
  Packed<typename Config::Element, kVec> x[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {  // without a branch, at whose end the next load would begin
    const uint32_t index = first + v * kThreads, row = row_vectors.divide(index);
    const auto* place = args.input.row(row) + (index - row * row_vectors.divisor) * kVec;
    x[v].load(index < end ? place : args.input.data);
  }
  await_arguments(args.out.stride, scale);
  const float inverse = 1.f / scale;
#else
template <class Config, int kVec>
__global__ __launch_bounds__(kThreads, 8) void tensor_quant_kernel(TensorQuantArgs<Config> args, Divider row_vectors,
                                                                    uint32_t groups) {
  await_stream();
  constexpr int kVectors = Config::kVectors;
  const uint32_t first = (groups - 1 - workgroup_index().x) * (kThreads * kVectors) + thread_index();
  const uint32_t end = static_cast<uint32_t>(args.count()) * row_vectors.divisor;
  const float inverse = 1.f / *args.scale;
  Packed<typename Config::Element, kVec> x[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const uint32_t index = first + v * kThreads, row = row_vectors.divide(index);
    if (index < end) x[v].load(args.input.row(row) + (index - row * row_vectors.divisor) * kVec);
  }
#endif
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const uint32_t index = first + v * kThreads, row = row_vectors.divide(index);
    if (index >= end) break;
    float y[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) y[e] = x[v].at(e) * inverse;
    store_vec<kVec>(args.out.row(row) + (index - row * row_vectors.divisor) * kVec,
                    vec_from_float<typename Config::Out>(y));
  }
}

template <class Config, int kVec>
void launch_vectors(const TensorQuantArgs<Config>& args, int64_t columns, bool is_dynamic, Stream stream) {
  constexpr int64_t kPerGroup = kThreads * Config::kVectors;
  const Divider row_vectors(static_cast<uint32_t>(columns / kVec));
  const auto groups = static_cast<uint32_t>((args.rows * (columns / kVec) + kPerGroup - 1) / kPerGroup);
  const uint32_t some = groups < kMostGroups ? groups : kMostGroups;
  if (is_dynamic) {
    launch_overlapped(tensor_quant_reset_kernel<Config>, dim3(1), kThreads, stream, args.scale);
    launch_overlapped(tensor_quant_amax_kernel<Config, kVec>, dim3(some), kThreads, stream, args, row_vectors, some);
  }
#if defined(__HIP__)
  TensorQuantArgs<Config> all = args;
  all.row_vectors = row_vectors;
  all.all_rows = static_cast<uint32_t>(args.rows);
  launch_overlapped(tensor_quant_kernel<Config, kVec>, dim3(groups), kThreads, stream, all);
#else
  launch_overlapped(tensor_quant_kernel<Config, kVec>, dim3(groups), kThreads, stream, args, row_vectors, groups);
#endif
  check_launch("tensor_quant_kernel");
}

template <class Config>
void launch_tensor_quant(const TensorQuantArgs<Config>& args, int64_t columns, bool is_dynamic, bool is_aligned,
                         Stream stream) {
  if (is_aligned)
    launch_vectors<Config, Config::kVec>(args, columns, is_dynamic, stream);
  else
    launch_vectors<Config, 1>(args, columns, is_dynamic, stream);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_tensor_quant(const TensorQuantArgs<Config>&, int64_t, bool, bool, Stream);

#if AITER_LIKE_HOST_PASS

void tensor_quant(ffi::Tensor out, ffi::Tensor scale, ffi::Tensor input, bool is_dynamic, ffi::OptionalTensor num_rows,
                  int64_t num_rows_factor) {
  ffi::Match match("tensor_quant");
  ffi::Size rows{"rows", 1 << 24}, columns{"columns"};
  TensorQuantArgs<Config> args{};
  args.input = match.rows<const ELEMENT>(input, rows, columns, "input");
  args.out = match.rows<OUT>(out, rows, columns, "out");
  args.scale = match.elements<float>(scale, 1, "scale");
  args.num_rows = match.elements<const int32_t>(num_rows, 1, "num_rows");
  args.num_rows_factor = num_rows_factor, args.rows = rows;
  if (rows == 0) return;
  match.require(rows * columns <= (int64_t{1} << 31) - (1 << 16), "more than 2^31 - 2^16 elements");
  launch_tensor_quant(args, columns, is_dynamic, ffi::takes_vectors(VEC, input, out), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(tensor_quant, aiter_like::tensor_quant);
#endif

// SPDX-License-Identifier: MIT
// One function of each element, or of the elements of two tensors at the same place, in fp32 and rounded once:
// OPERATION add, sub, mul, div, sigmoid or tanh of OUT, INPUT and OTHER. Tensors have any strides, 0 where one is
// broadcast. HIP (gfx9) and CUDA. One build per combination of the macros.
//
// The host merges dimensions that lie in all tensors as one; at most kDims are left. A lane takes kVectors vectors of
// 16 bytes of the result; a workgroup's are side by side. Where neighbours along the last dimension are neighbours in
// no memory, or addresses are not aligned, a vector is one element.
// Bound: memory. A sum of two 8192 × 8192 bf16 tensors moves 403 MB: 76 us at 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "aiter_like/math.h"

#if !defined(OPERATION) || !defined(OUT) || !defined(INPUT) || !defined(OTHER)
#error "elementwise.hip: -DOPERATION=add|sub|mul|div|sigmoid|tanh -DOUT -DINPUT -DOTHER=bf16|f16|float"
#endif

namespace aiter_like {

enum class Operation { add, sub, mul, div, sigmoid, tanh };

/// The macros of this build; the code below takes them from here.
struct Config {
  using Out = OUT;
  using Input = INPUT;
  using Other = OTHER;
  static constexpr Operation kOperation = Operation::OPERATION;
  static constexpr bool kHasOther = kOperation < Operation::sigmoid;
};

constexpr int kThreads = 256, kVectors = 2, kDims = 4;

template <class Config>
struct ElementwiseArgs {
  typename Config::Out* out;
  const typename Config::Input* input;
  const typename Config::Other* other;
  int64_t steps[3][kDims];  // elements from index to index of out, input and other; the last dimension is the fastest
  Divider sizes[kDims];     // of the last dimension in vectors
  uint32_t total;           // vectors
};

template <Operation kOperation>
__device__ inline float result(float x, float y) {
  if constexpr (kOperation == Operation::add) return x + y;
  if constexpr (kOperation == Operation::sub) return x - y;
  if constexpr (kOperation == Operation::mul) return x * y;
  if constexpr (kOperation == Operation::div) return x / y;
  if constexpr (kOperation == Operation::sigmoid) return sigmoid(x);
  return fast_tanh(x);
}

/// kVec neighbours, or one element for all of them where its step is 0.
template <int kVec, class T>
__device__ inline void load_operand(float (&x)[kVec], const T* from, bool is_one) {
  if (is_one) {
    const float value = to_float(*from);
#pragma unroll
    for (int e = 0; e < kVec; ++e) x[e] = value;
  } else {
    Packed<T, kVec> packed;
    packed.load(from);
#pragma unroll
    for (int e = 0; e < kVec; ++e) x[e] = packed.at(e);
  }
}

template <class Config, int kVec>
__device__ void elementwise_body(const ElementwiseArgs<Config>& args) {
  using Out = typename Config::Out;
  const uint32_t first = workgroup_index().x * (kThreads * kVectors) + thread_index();
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    uint32_t index = first + v * kThreads;
    if (index >= args.total) break;
    int64_t offsets[3] = {};
#pragma unroll
    for (int d = kDims - 1; d >= 0; --d) {
      const uint32_t rest = args.sizes[d].divide(index);
      const int64_t at = index - rest * args.sizes[d].divisor;
#pragma unroll
      for (int i = 0; i < 3; ++i) offsets[i] += at * args.steps[i][d] * (d == kDims - 1 ? kVec : 1);
      index = rest;
    }
    float x[kVec], y[kVec];
    load_operand<kVec>(x, args.input + offsets[1], args.steps[1][kDims - 1] == 0);
    if constexpr (Config::kHasOther) load_operand<kVec>(y, args.other + offsets[2], args.steps[2][kDims - 1] == 0);
#pragma unroll
    for (int e = 0; e < kVec; ++e) x[e] = result<Config::kOperation>(x[e], Config::kHasOther ? y[e] : 0.f);
    store_vec<kVec>(args.out + offsets[0], vec_from_float<Out>(x));
  }
}

template <int kVec>
__global__ __launch_bounds__(kThreads, 8) void elementwise_kernel(ElementwiseArgs<Config> args) {
  await_stream();
  elementwise_body<Config, kVec>(args);
}

template <int kVec>
void launch_vectors(const ElementwiseArgs<Config>& args, Stream stream) {
  const uint32_t groups = (args.total + kThreads * kVectors - 1) / (kThreads * kVectors);
  launch_overlapped(elementwise_kernel<kVec>, dim3(groups), kThreads, stream, args);
  check_launch("elementwise_kernel");
}

// Both passes compile this function: the device pass emits a kernel only where a launch of it is instantiated.
void launch_elementwise(const ElementwiseArgs<Config>& args, bool is_wide, Stream stream) {
  if (is_wide)
    launch_vectors<16 / sizeof(Config::Out)>(args, stream);
  else
    launch_vectors<1>(args, stream);
}

#if AITER_LIKE_HOST_PASS

/// The dimensions that are left, merged where that changes no address; the last is [kDims - 1].
struct Space {
  int64_t sizes[kDims] = {1, 1, 1, 1}, steps[3][kDims] = {};

  Space(const ffi::Tensor* const (&tensors)[3]) {
    const ffi::Tensor& out = *tensors[0];
    int used = 0;  // dimensions, from the last
    for (int d = out.ndim() - 1; d >= 0; --d) {
      if (out.size(d) == 1) continue;
      bool is_merged = used > 0;
      for (int i = 0; i < 3 && is_merged; ++i)
        is_merged = tensors[i]->stride(d) == steps[i][kDims - used] * sizes[kDims - used];
      if (is_merged) {
        sizes[kDims - used] *= out.size(d);
        continue;
      }
      ffi::check_value(used < kDims, "elementwise: more dimensions are left than the kernel takes");
      ++used;
      sizes[kDims - used] = out.size(d);
      for (int i = 0; i < 3; ++i) steps[i][kDims - used] = tensors[i]->stride(d);
    }
  }
};

/// Whether kVec neighbours of the last dimension are one access, or one element that is broadcast.
template <class T>
bool takes_vectors(const Space& space, int tensor, const ffi::Tensor& data, int64_t vec) {
  const int64_t step = space.steps[tensor][kDims - 1], bytes = vec * sizeof(T) < 16 ? vec * sizeof(T) : 16;
  if (step == 0 && tensor > 0) return true;
  bool is_aligned = step == 1 && reinterpret_cast<uintptr_t>(data.data_ptr()) % bytes == 0;
  for (int d = 0; d < kDims - 1; ++d) is_aligned = is_aligned && space.steps[tensor][d] * sizeof(T) % bytes == 0;
  return is_aligned;
}

void elementwise(ffi::Tensor out, ffi::Tensor input, ffi::Optional<ffi::Tensor> other, ffi::String operation) {
  ffi::check_type(ffi::has_element<Config::Out>(out) && ffi::has_element<Config::Input>(input) &&
                      operation == AITER_LIKE_TEXT(OPERATION) && other.has_value() == Config::kHasOther &&
                      (!other.has_value() || ffi::has_element<Config::Other>(other.value())),
                  "elementwise: this module was built for other dtypes or another operation");
  const ffi::Tensor second = other.has_value() ? other.value() : input;
  const ffi::Tensor* const tensors[3] = {&out, &input, &second};
  for (const ffi::Tensor* tensor : tensors) {
    ffi::check_value(tensor->ndim() == out.ndim(), "elementwise: tensors must have the shape of out");
    for (int d = 0; d < out.ndim(); ++d)
      ffi::check_value(tensor->size(d) == out.size(d), "elementwise: tensors must have the shape of out");
  }
  if (out.numel() == 0) return;
  ffi::check_value(out.numel() < int64_t{1} << 31, "elementwise: at most 2^31 - 1 elements fit one launch");
  const Space space(tensors);
  constexpr int64_t kVec = 16 / sizeof(Config::Out);
  const bool is_wide = space.sizes[kDims - 1] % kVec == 0 && takes_vectors<Config::Out>(space, 0, out, kVec) &&
                       takes_vectors<Config::Input>(space, 1, input, kVec) &&
                       (!Config::kHasOther || takes_vectors<Config::Other>(space, 2, second, kVec));
  ElementwiseArgs<Config> args{static_cast<Config::Out*>(out.data_ptr()),
                               static_cast<const Config::Input*>(input.data_ptr()),
                               static_cast<const Config::Other*>(second.data_ptr()), {}, {}, 0};
  const int64_t vec = is_wide ? kVec : 1;
  for (int d = 0; d < kDims; ++d) {
    args.sizes[d] = Divider(static_cast<uint32_t>(d == kDims - 1 ? space.sizes[d] / vec : space.sizes[d]));
    for (int i = 0; i < 3; ++i) args.steps[i][d] = space.steps[i][d];
  }
  args.total = static_cast<uint32_t>(out.numel() / vec);
  launch_elementwise(args, is_wide, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(elementwise, aiter_like::elementwise);
#endif

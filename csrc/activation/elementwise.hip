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
  Divider sizes[kDims];     // the last dimension's counts vectors
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
  launch_named("elementwise_kernel", elementwise_kernel<kVec>, dim3(groups), kThreads, stream, args);
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

  Space(const ffi::Match& match, const ffi::Tensor* const (&tensors)[3]) {
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
      match.require(used < kDims, "more dimensions are left than the kernel takes");
      ++used;
      sizes[kDims - used] = out.size(d);
      for (int i = 0; i < 3; ++i) steps[i][kDims - used] = tensors[i]->stride(d);
    }
  }
};

/// Whether `vec` neighbours of the last dimension are one access, or one element that is broadcast.
template <class T>
bool is_vectors(const Space& space, int tensor, const T* data, int64_t vec) {
  const int64_t step = space.steps[tensor][kDims - 1], bytes = vec * sizeof(T) < 16 ? vec * sizeof(T) : 16;
  if (step == 0 && tensor > 0) return true;
  bool is_aligned = step == 1 && reinterpret_cast<uintptr_t>(data) % bytes == 0;
  for (int d = 0; d < kDims - 1; ++d) is_aligned = is_aligned && space.steps[tensor][d] * sizeof(T) % bytes == 0;
  return is_aligned;
}

void elementwise(ffi::Tensor out, ffi::Tensor input, ffi::OptionalTensor other, ffi::String operation) {
  ffi::Match match("elementwise");
  match.built(operation == AITER_LIKE_TEXT(OPERATION) && other.has_value() == Config::kHasOther, "operations");
  const ffi::Tensor second = other.has_value() ? *other : input;
  const ffi::Tensor* const tensors[3] = {&out, &input, &second};
  for (const ffi::Tensor* tensor : tensors) {
    bool is_alike = tensor->ndim() == out.ndim();
    for (int d = 0; is_alike && d < out.ndim(); ++d) is_alike = tensor->size(d) == out.size(d);
    match.require(is_alike, "tensors must have the shape of out");
  }
  ffi::Size total{"elements"};
  ElementwiseArgs<Config> args{match.elements<Config::Out>(out, total, "out", ffi::kStrided),
                               match.elements<const Config::Input>(input, total, "input", ffi::kStrided), nullptr};
  if (Config::kHasOther) args.other = match.elements<const Config::Other>(second, total, "other", ffi::kStrided);
  if (total == 0) return;
  const Space space(match, tensors);
  constexpr int64_t kVec = 16 / sizeof(Config::Out);
  const bool is_wide = space.sizes[kDims - 1] % kVec == 0 && is_vectors(space, 0, args.out, kVec) &&
                       is_vectors(space, 1, args.input, kVec) &&
                       (!Config::kHasOther || is_vectors(space, 2, args.other, kVec));
  const int64_t vec = is_wide ? kVec : 1;
  for (int d = 0; d < kDims; ++d) {
    args.sizes[d] = Divider(d == kDims - 1 ? space.sizes[d] / vec : space.sizes[d]);
    for (int i = 0; i < 3; ++i) args.steps[i][d] = space.steps[i][d];
  }
  args.total = total / vec;
  launch_elementwise(args, is_wide, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(elementwise, aiter_like::elementwise);
#endif

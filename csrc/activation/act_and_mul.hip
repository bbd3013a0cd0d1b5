// SPDX-License-Identifier: MIT
// Gated activation: out = act(gate) · up, element by element, in fp32; a row of input is gate and up one after the
// other. HIP (gfx9) and CUDA. One build per Config:
//   kActivation silu | gelu | gelu_tanh: limit > 0 bounds gate from above and up on both sides first
//               swiglu: gate · sigmoid(1.702 gate) · (up + 1), with the same bounds
//   kIsGated 0  out = act(input): rows of the same length
//   kHasScale   divides by a number in memory; Out is then fp8 or int8 too
//   kHasBias    adds row expert_ids[row] of the bias to the input row; none where that is no expert
//
// A lane takes kVectors vectors of the flattened output: two (gate, up) loads of 16 bytes each, one store.
// Bound: memory. Per element of out 2 sizeof(Element) bytes read and sizeof(Out) written for 15 instructions (gelu: 24;
// counted on sm_90; a limit takes 3 more): 8192 × 8192 bf16 = 403 MB, 76 us at 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "aiter_like/preload.h"
#include "activation.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(BIAS) || !defined(ACTIVATION) || !defined(VECTORS) || \
    !defined(VEC) || !defined(IS_GATED) || !defined(HAS_SCALE) || !defined(HAS_BIAS)
#error "act_and_mul.hip: -DELEMENT -DOUT -DBIAS (types) -DACTIVATION -DVECTORS -DVEC and three flags 0|1"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Out = OUT;
  using Bias = BIAS;
  static constexpr Activation kActivation = Activation::ACTIVATION;
  static constexpr int kVectors = VECTORS, kVec = VEC;
  static constexpr bool kIsGated = IS_GATED, kHasScale = HAS_SCALE, kHasBias = HAS_BIAS;
};

constexpr int kThreads = 256;

template <class Config>
struct ActAndMulArgs {
  typename Config::Out* out;              // [rows, columns]
  const typename Config::Element* input;  // [rows, columns], twice as wide if kIsGated
  const float* scale;                     // [1]
  const typename Config::Bias* bias;      // [num_experts, as input]
  const int32_t* expert_ids;              // [rows]
  int64_t out_stride, input_stride, bias_stride;  // elements from row to row
  int64_t rows;
  uint32_t columns, num_experts;
  float limit;
#if defined(__HIP__)
  Divider row_vectors;
  static constexpr Preload preload() {
    using A = ActAndMulArgs;
    return {offsetof(A, rows), offsetof(A, columns), offsetof(A, limit), offsetof(A, row_vectors.factor),
            offsetof(A, input), offsetof(A, input_stride), offsetof(A, out)};
  }
#endif
};

/// Vectors of a lane; four single elements, since 16 of them would not fit the registers.
template <class Config>
constexpr int vectors(int vec) { return vec == Config::kVec ? Config::kVectors : 4; }

/// A vector's row and first column.
struct Place {
  int64_t row;
  uint32_t column;
};

// kVec elements per access: the Config's, or 1 element when an address is not aligned to Config::kVec of them.
#if defined(__HIP__)
template <class Config, int kVec>
__global__ __launch_bounds__(kThreads) void act_and_mul_kernel(AITER_LIKE_PRELOADED(ActAndMulArgs<Config>)) {
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  const Divider row_vectors = args.row_vectors;
#else
template <class Config, int kVec>
__global__ __launch_bounds__(kThreads, 8) void act_and_mul_kernel(ActAndMulArgs<Config> args, Divider row_vectors) {
#endif
  await_stream();
  using Out = typename Config::Out;
  constexpr int kVectors = vectors<Config>(kVec);
  const uint32_t first = workgroup_index().x * (kThreads * kVectors) + thread_index();
  const uint32_t end = static_cast<uint32_t>(args.rows) * row_vectors.divisor;
  const auto place = [&](int v) -> Place {
    const uint32_t index = first + v * kThreads, row = row_vectors.divide(index);
    return {row, (index - row * row_vectors.divisor) * kVec};
  };
  const float inverse_scale = Config::kHasScale ? 1.f / *args.scale : 1.f;

  Packed<typename Config::Element, kVec> gate[kVectors], up[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (first + v * kThreads >= end) break;
    const auto [row, column] = place(v);
    const auto* input = args.input + row * args.input_stride + column;
    gate[v].load(input);
    if constexpr (Config::kIsGated) up[v].load(input + args.columns);
  }
  await_arguments(args.out_stride);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (first + v * kThreads >= end) break;
    const auto [row, column] = place(v);
    Packed<typename Config::Bias, kVec> gate_bias{}, up_bias{};
    if constexpr (Config::kHasBias) {
      const auto expert = static_cast<uint32_t>(args.expert_ids[row]);  // a negative one is above num_experts
      if (expert < args.num_experts) {
        const auto* bias = args.bias + expert * args.bias_stride + column;
        gate_bias.load(bias);
        up_bias.load(bias + args.columns);
      }
    }
    float y[kVec], g[kVec], u[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      g[e] = Config::kHasBias ? gate[v].at(e) + gate_bias.at(e) : gate[v].at(e);
      if constexpr (Config::kIsGated) u[e] = Config::kHasBias ? up[v].at(e) + up_bias.at(e) : up[v].at(e);
      else y[e] = activated<Config::kActivation, Out>(g[e]);
    }
    if constexpr (Config::kIsGated) gated<Config::kActivation, Out>(y, g, u, args.limit);
    if constexpr (Config::kHasScale) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) y[e] *= inverse_scale;
    }
    store_vec<kVec>(args.out + row * args.out_stride + column, vec_from_float<Out>(y));
  }
}

template <class Config, int kVec>
void launch_vectors(ActAndMulArgs<Config> args, Stream stream) {
  constexpr int64_t kPerGroup = kThreads * vectors<Config>(kVec);
  const int64_t row_vectors = args.columns / kVec, total = args.rows;
  const int64_t most = ((int64_t{1} << 31) - kPerGroup) / row_vectors;  // rows of a launch: indices stay below 2^31
  for (int64_t row = 0; row < total; row += args.rows) {
    args.rows = total - row < most ? total - row : most;
    const int64_t groups = (args.rows * row_vectors + kPerGroup - 1) / kPerGroup;
#if defined(__HIP__)
    args.row_vectors = Divider(static_cast<uint32_t>(row_vectors));
    launch_overlapped(act_and_mul_kernel<Config, kVec>, dim3(static_cast<uint32_t>(groups)), kThreads, stream, args);
#else
    launch_overlapped(act_and_mul_kernel<Config, kVec>, dim3(static_cast<uint32_t>(groups)), kThreads, stream, args,
                      Divider(static_cast<uint32_t>(row_vectors)));
#endif
    args.input += args.rows * args.input_stride;
    args.out += args.rows * args.out_stride;
    if constexpr (Config::kHasBias) args.expert_ids += args.rows;
  }
}

template <class Config>
void launch_act_and_mul(const ActAndMulArgs<Config>& args, bool is_aligned, Stream stream) {
  if (is_aligned)
    launch_vectors<Config, Config::kVec>(args, stream);
  else
    launch_vectors<Config, 1>(args, stream);
  check_launch("act_and_mul_kernel");
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_act_and_mul(const ActAndMulArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void act_and_mul(ffi::Tensor out, ffi::Tensor input, ffi::String activation, bool is_gated, double limit,
                 ffi::OptionalTensor scale, ffi::OptionalTensor expert_ids, ffi::OptionalTensor bias) {
  ffi::Match match("act_and_mul");
  match.built(activation == AITER_LIKE_TEXT(ACTIVATION) && is_gated == IS_GATED && scale.has_value() == HAS_SCALE &&
              bias.has_value() == HAS_BIAS && expert_ids.has_value() == HAS_BIAS);
  ffi::Size rows{"rows", ffi::kNoLimit}, columns{"columns", 1 << 30}, experts{"experts"};
  ActAndMulArgs<Config> args{};
  const auto y = match.rows<OUT>(out, rows, columns, "out");
  if (rows == 0) return;
  const int64_t row_size = columns * (IS_GATED ? 2 : 1);
  const auto x = match.rows<const ELEMENT>(input, rows, row_size, "input");
  args.out = y.data, args.out_stride = y.stride;
  args.input = x.data, args.input_stride = x.stride;
  args.scale = match.elements<const float>(scale, 1, "scale");
  if constexpr (HAS_BIAS) {
    const auto biases = match.rows<const BIAS>(bias, experts, row_size, "bias");
    args.bias = biases.data, args.bias_stride = biases.stride, args.num_experts = experts;
    args.expert_ids = match.elements<const int32_t>(expert_ids, rows, "expert_ids");
  }
  args.rows = rows, args.columns = columns, args.limit = limit;
  launch_act_and_mul(args, ffi::takes_vectors(VEC, out, input, bias), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(act_and_mul, aiter_like::act_and_mul);
#endif

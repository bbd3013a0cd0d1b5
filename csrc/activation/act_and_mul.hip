// SPDX-License-Identifier: MIT
// Gated activation: out = act(gate) · up, element by element, in fp32; a row of input is gate and up one after the
// other. HIP (gfx9) and CUDA. One build per combination of the macros below.
//   ACTIVATION  silu | gelu | gelu_tanh: limit > 0 bounds gate from above and up on both sides first
//               swiglu: gate · sigmoid(1.702 gate) · (up + 1), with the same bounds
//   IS_GATED 0  out = act(input): rows of the same length
//   HAS_SCALE   divides by a number in memory; OUT is then fp8 or int8 too
//   HAS_BIAS    adds row expert_ids[row] of the bias to the input row; none where that is no expert
//
// A lane takes VECTORS vectors of the flattened output: two (gate, up) loads of 16 bytes each, one store.
// Bound: memory. Per element of out 2 sizeof(ELEMENT) bytes read and sizeof(OUT) written for 15 instructions (gelu: 24;
// counted on sm_90; a limit takes 3 more): 8192 × 8192 bf16 = 403 MB, 76 us at 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "aiter_like/preload.h"
#include "activation.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(BIAS) || !defined(ACTIVATION) || !defined(VECTORS) || \
    !defined(VEC) || !defined(IS_GATED) || !defined(HAS_SCALE) || !defined(HAS_BIAS)
#error "act_and_mul.hip: -DELEMENT -DOUT -DBIAS (types) -DACTIVATION -DVECTORS -DVEC and three flags 0|1"
#endif

namespace aiter_like {

constexpr int kThreads = 256;

struct ActAndMulArgs {
  OUT* out;                  // [rows, columns]
  const ELEMENT* input;      // [rows, columns], twice as wide if IS_GATED
  const float* scale;        // [1]
  const BIAS* bias;          // [num_experts, as input]
  const int32_t* expert_ids; // [rows]
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
constexpr int vectors(int vec) { return vec == VEC ? VECTORS : 4; }

/// A vector's row and first column.
struct Place {
  int64_t row;
  uint32_t column;
};

// kVec elements per access: VEC, or 1 element when an address is not aligned to VEC of them.
#if defined(__HIP__)
template <int kVec>
__global__ __launch_bounds__(kThreads) void act_and_mul_kernel(AITER_LIKE_PRELOADED(ActAndMulArgs)) {
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  const Divider row_vectors = args.row_vectors;
#else
template <int kVec>
__global__ __launch_bounds__(kThreads, 8) void act_and_mul_kernel(ActAndMulArgs args, Divider row_vectors) {
#endif
  await_stream();
  constexpr int kVectors = vectors(kVec);
  const uint32_t first = workgroup_index().x * (kThreads * kVectors) + thread_index();
  const uint32_t end = static_cast<uint32_t>(args.rows) * row_vectors.divisor;
  const auto place = [&](int v) -> Place {
    const uint32_t index = first + v * kThreads, row = row_vectors.divide(index);
    return {row, (index - row * row_vectors.divisor) * kVec};
  };
  const float inverse_scale = HAS_SCALE ? 1.f / *args.scale : 1.f;

  Packed<ELEMENT, kVec> gate[kVectors], up[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (first + v * kThreads >= end) break;
    const auto [row, column] = place(v);
    const ELEMENT* input = args.input + row * args.input_stride + column;
    gate[v].load(input);
    if constexpr (IS_GATED) up[v].load(input + args.columns);
  }
  await_arguments(args.out_stride);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (first + v * kThreads >= end) break;
    const auto [row, column] = place(v);
    Packed<BIAS, kVec> gate_bias{}, up_bias{};
    if constexpr (HAS_BIAS) {
      const auto expert = static_cast<uint32_t>(args.expert_ids[row]);  // a negative one is above num_experts
      if (expert < args.num_experts) {
        const BIAS* bias = args.bias + expert * args.bias_stride + column;
        gate_bias.load(bias);
        up_bias.load(bias + args.columns);
      }
    }
    float y[kVec], g[kVec], u[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      g[e] = HAS_BIAS ? gate[v].at(e) + gate_bias.at(e) : gate[v].at(e);
      if constexpr (IS_GATED) u[e] = HAS_BIAS ? up[v].at(e) + up_bias.at(e) : up[v].at(e);
      else y[e] = activated<Activation::ACTIVATION, OUT>(g[e]);
    }
    if constexpr (IS_GATED) gated<Activation::ACTIVATION, OUT>(y, g, u, args.limit);
    if constexpr (HAS_SCALE) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) y[e] *= inverse_scale;
    }
    store_vec<kVec>(args.out + row * args.out_stride + column, vec_from_float<OUT>(y));
  }
}

template <int kVec>
void launch_vectors(ActAndMulArgs args, Stream stream) {
  constexpr int64_t kPerGroup = kThreads * vectors(kVec);
  const int64_t row_vectors = args.columns / kVec, total = args.rows;
  const int64_t most = ((int64_t{1} << 31) - kPerGroup) / row_vectors;  // rows of a launch: indices stay below 2^31
  for (int64_t row = 0; row < total; row += args.rows) {
    args.rows = total - row < most ? total - row : most;
    const int64_t groups = (args.rows * row_vectors + kPerGroup - 1) / kPerGroup;
#if defined(__HIP__)
    args.row_vectors = Divider(static_cast<uint32_t>(row_vectors));
    launch_overlapped(act_and_mul_kernel<kVec>, dim3(static_cast<uint32_t>(groups)), kThreads, stream, args);
#else
    launch_overlapped(act_and_mul_kernel<kVec>, dim3(static_cast<uint32_t>(groups)), kThreads, stream, args,
                      Divider(static_cast<uint32_t>(row_vectors)));
#endif
    args.input += args.rows * args.input_stride;
    args.out += args.rows * args.out_stride;
    if constexpr (HAS_BIAS) args.expert_ids += args.rows;
  }
}

void launch_act_and_mul(const ActAndMulArgs& args, bool is_aligned, Stream stream) {
  if (is_aligned)
    launch_vectors<VEC>(args, stream);
  else
    launch_vectors<1>(args, stream);
  check_launch("act_and_mul_kernel");
}

#if AITER_LIKE_HOST_PASS

void act_and_mul(ffi::Tensor out, ffi::Tensor input, ffi::String activation, bool is_gated, double limit,
                 ffi::OptionalTensor scale, ffi::OptionalTensor expert_ids, ffi::OptionalTensor bias) {
  ffi::Match match("act_and_mul");
  match.built(activation == AITER_LIKE_TEXT(ACTIVATION) && is_gated == IS_GATED && scale.has_value() == HAS_SCALE &&
              bias.has_value() == HAS_BIAS && expert_ids.has_value() == HAS_BIAS);
  ffi::Size rows{"rows", ffi::kNoLimit}, columns{"columns", 1 << 30}, experts{"experts"};
  ActAndMulArgs args{};
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

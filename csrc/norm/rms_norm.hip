// SPDX-License-Identifier: MIT
// RMSNorm: out = x / sqrt(mean(x²) + epsilon) · weight, row by row, accumulated in fp32. HIP (gfx9) and CUDA.
//
//   1. each lane sums the squares of its 16-byte vectors of the row, and keeps the first kCachedVectors of them
//   2. the sum over the wave, or over the workgroup through LDS
//   3. scale, multiply with the weight, round, store; vectors beyond the kept ones are read again (from cache)
//
// Tile: 256 work-items take one row; one wave takes one row when the row fits the kept registers (4 rows per
// workgroup on gfx9: hidden ≤ 2048 in 16 bit). LDS: 4 bytes per wave.
// Bound: memory. A row moves 2 · hidden · sizeof(T) bytes plus the weight, which stays in cache, for 4 flop per
// element: 1 flop/byte at 16 bit, far left of the ridge. 4096 × 4096 bf16 = 67 MB, 12.7 us at 5.3 TB/s.
#include "aiter_like/dtype.h"
#include "aiter_like/ffi.h"
#include "aiter_like/gpu.h"
#include "aiter_like/reduce.h"

namespace aiter_like {

enum class Type { kBf16, kF16, kF32 };

struct RmsNormArgs {
  void* out;                // [rows, hidden]
  const void* input;        // [rows, hidden]
  const void* weight;       // [hidden]
  int64_t out_stride;       // elements from row to row
  int64_t input_stride;     // elements from row to row
  int64_t rows;
  int hidden;
  float epsilon;
  bool is_wave_per_row;
  bool is_model_sensitive;  // T5: round x / rms to the input's type before the weight is applied
};

namespace {

constexpr int kThreads = 256;
constexpr int kCachedVectors = 4;  // 16 VGPRs; a workgroup keeps 8192 16-bit elements, a gfx9 wave 2048

template <class T, int kVec>
__device__ float sum_of_squares(const Vec<T, kVec>& x) {
  float sum = 0.f;
#pragma unroll
  for (int e = 0; e < kVec; ++e) sum += to_float(x[e]) * to_float(x[e]);
  return sum;
}

template <class T, class W>
__device__ T normalise(T x, float inverse_rms, W weight, bool is_model_sensitive) {
  float y = to_float(x) * inverse_rms;
  if (is_model_sensitive) y = to_float(from_float<T>(y));
  return from_float<T>(y * to_float(weight));
}

template <class T, class W, int kVec>
__device__ void write_vec(T* out, const Vec<T, kVec>& x, const W* weight, float inverse_rms, bool is_model_sensitive) {
  const Vec<W, kVec> w = load_vec<kVec>(weight);
  Vec<T, kVec> y;
#pragma unroll
  for (int e = 0; e < kVec; ++e) y[e] = normalise(x[e], inverse_rms, w[e], is_model_sensitive);
  store_vec<kVec>(out, y);
}

}  // namespace

// kVec elements per access: 16 bytes, or 1 element when a row is not 16-byte aligned.
template <class T, class W, int kVec>
__global__ __launch_bounds__(kThreads) void rms_norm_kernel(RmsNormArgs args) {
  __shared__ float partial[kThreads / kWaveSize];
  const int lanes = args.is_wave_per_row ? kWaveSize : kThreads;
  const int lane = args.is_wave_per_row ? lane_index() : thread_index();
  int64_t row = workgroup_index().x;
  if (args.is_wave_per_row) row = row * (kThreads / kWaveSize) + wave_index();
  if (row >= args.rows) return;  // only where a wave has its own row: nobody waits for it

  const T* x = static_cast<const T*>(args.input) + row * args.input_stride;
  T* out = static_cast<T*>(args.out) + row * args.out_stride;
  const W* weight = static_cast<const W*>(args.weight);
  const int vectors = args.hidden / kVec;

  Vec<T, kVec> cached[kCachedVectors] = {};
  float sum = 0.f;
#pragma unroll
  for (int c = 0; c < kCachedVectors; ++c) {
    const int i = lane + c * lanes;
    if (i < vectors) cached[c] = load_vec<kVec>(x + i * kVec);
    sum += sum_of_squares(cached[c]);
  }
  for (int i = lane + kCachedVectors * lanes; i < vectors; i += lanes)
    sum += sum_of_squares(load_vec<kVec>(x + i * kVec));
  for (int i = vectors * kVec + lane; i < args.hidden; i += lanes) sum += to_float(x[i]) * to_float(x[i]);

  const float total = args.is_wave_per_row ? wave_sum(sum) : workgroup_sum<kThreads>(sum, partial);
  const float inverse_rms = 1.f / square_root(total / static_cast<float>(args.hidden) + args.epsilon);

#pragma unroll
  for (int c = 0; c < kCachedVectors; ++c) {
    const int i = lane + c * lanes;
    if (i < vectors) write_vec(out + i * kVec, cached[c], weight + i * kVec, inverse_rms, args.is_model_sensitive);
  }
  for (int i = lane + kCachedVectors * lanes; i < vectors; i += lanes)
    write_vec(out + i * kVec, load_vec<kVec>(x + i * kVec), weight + i * kVec, inverse_rms, args.is_model_sensitive);
  for (int i = vectors * kVec + lane; i < args.hidden; i += lanes)
    out[i] = normalise(x[i], inverse_rms, weight[i], args.is_model_sensitive);
}

namespace {

bool is_aligned(const void* pointer, int64_t stride_bytes) {
  return (reinterpret_cast<uintptr_t>(pointer) | static_cast<uintptr_t>(stride_bytes)) % 16 == 0;
}

template <class T, class W>
void launch_typed(RmsNormArgs args, Stream stream) {
  constexpr int kVec = 16 / sizeof(T);
  const int64_t size = sizeof(T);
  const bool is_vectorised = is_aligned(args.out, args.out_stride * size) &&
                             is_aligned(args.input, args.input_stride * size) && is_aligned(args.weight, 0);
  const int vec = is_vectorised ? kVec : 1;
  args.is_wave_per_row = args.hidden <= kWaveSize * kCachedVectors * vec;
  const int64_t rows_per_workgroup = args.is_wave_per_row ? kThreads / kWaveSize : 1;
  const dim3 grid(static_cast<uint32_t>((args.rows + rows_per_workgroup - 1) / rows_per_workgroup));
  if (is_vectorised)
    rms_norm_kernel<T, W, kVec><<<grid, kThreads, 0, stream>>>(args);
  else
    rms_norm_kernel<T, W, 1><<<grid, kThreads, 0, stream>>>(args);
  check_launch("rms_norm_kernel");
}

}  // namespace

void launch_rms_norm(const RmsNormArgs& args, Type input, Type weight, Stream stream) {
  const bool is_weight_f32 = weight == Type::kF32;
  if (input == Type::kF32) return launch_typed<float, float>(args, stream);
  if (input == Type::kBf16)
    return is_weight_f32 ? launch_typed<bf16, float>(args, stream) : launch_typed<bf16, bf16>(args, stream);
  return is_weight_f32 ? launch_typed<f16, float>(args, stream) : launch_typed<f16, f16>(args, stream);
}

#if AITER_LIKE_HOST_PASS

namespace {

Type type_of(const ffi::Tensor& tensor, const char* message) {
  ffi::check_type(ffi::is_bf16(tensor) || ffi::is_f16(tensor) || ffi::is_f32(tensor), message);
  return ffi::is_bf16(tensor) ? Type::kBf16 : ffi::is_f16(tensor) ? Type::kF16 : Type::kF32;
}

/// Elements from row to row, where the dimensions before the last count as one; 0 for a single row.
int64_t row_stride(const ffi::Tensor& tensor, const char* message) {
  const int last = tensor.ndim() - 1;
  ffi::check_value(tensor.size(last) <= 1 || tensor.stride(last) == 1, message);
  int64_t stride = 0, expected = -1;  // expected: stride of the next dimension outwards; -1 before the first
  for (int d = last - 1; d >= 0; --d) {
    if (tensor.size(d) == 1) continue;
    if (expected < 0)
      stride = expected = tensor.stride(d);
    else
      ffi::check_value(tensor.stride(d) == expected, message);
    expected *= tensor.size(d);
  }
  return stride;
}

}  // namespace

void rms_norm(ffi::Tensor out, ffi::Tensor input, ffi::Tensor weight, double epsilon,
              int64_t use_model_sensitive_rmsnorm) {
  ffi::check_value(input.ndim() > 0 && out.ndim() == input.ndim(),
                   "rms_norm: out and input must have the same rank, at least 1");
  for (int d = 0; d < input.ndim(); ++d)
    ffi::check_value(out.size(d) == input.size(d), "rms_norm: out must have the shape of input");
  const int64_t hidden = input.size(input.ndim() - 1);
  ffi::check_value(weight.ndim() == 1 && weight.size(0) == hidden && (hidden == 1 || weight.stride(0) == 1),
                   "rms_norm: weight must be contiguous, of shape (hidden,)");
  const Type type = type_of(input, "rms_norm: input must be bfloat16, float16 or float32");
  const Type weight_type = type_of(weight, "rms_norm: weight must be bfloat16, float16 or float32");
  constexpr const char* kOutMessage = "rms_norm: out must have the dtype of input";
  ffi::check_type(type_of(out, kOutMessage) == type, kOutMessage);
  ffi::check_type(weight_type == type || weight_type == Type::kF32,
                  "rms_norm: weight must have the dtype of input, or float32");
  if (input.numel() == 0) return;

  RmsNormArgs args{};
  args.out = out.data_ptr();
  args.input = input.data_ptr();
  args.weight = weight.data_ptr();
  args.out_stride = row_stride(out, "rms_norm: the rows of out must be evenly spaced, each contiguous");
  args.input_stride = row_stride(input, "rms_norm: the rows of input must be evenly spaced, each contiguous");
  args.rows = input.numel() / hidden;
  ffi::check_value(hidden < (int64_t{1} << 31) && args.rows < (int64_t{1} << 24),
                   "rms_norm: at most 2^24 - 1 rows of 2^31 - 1 elements fit one launch");
  args.hidden = static_cast<int>(hidden);
  args.epsilon = static_cast<float>(epsilon);
  args.is_model_sensitive = use_model_sensitive_rmsnorm != 0;
  launch_rms_norm(args, type, weight_type, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(rms_norm, aiter_like::rms_norm);
#endif

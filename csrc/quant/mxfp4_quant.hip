// SPDX-License-Identifier: MIT
// Quantisation to MXFP4: elements of fp4 (e2m1), two to a byte, the first in the low half, and for each 32 of a row a
// scale that is a power of two, kept as its biased exponent (e8m0). HIP (gfx9) and CUDA. One build per ELEMENT.
//
//   1. a lane loads 8 elements; four neighbours have a group
//   2. largest magnitude over the four; its exponent, rounded as the call says, less 2 is the scale's: fp4 ends at 6
//   3. multiply with 1 / scale, which is exact; round to fp4, ties to the even code; store a word a lane
// A group with a NaN or an infinity has the scale 255, which is NaN, and elements 0.
//
// Tile: a lane takes kVectors vectors of 8 elements of the flattened matrix. LDS: none.
// Bound: memory. sizeof(Element) + 17 / 32 bytes per element for 12 instructions: 8192 × 8192 bf16 = 170 MB, 32 us at
// 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "aiter_like/dtype.h"
#include "aiter_like/math.h"
#include "aiter_like/reduce.h"

#if !defined(ELEMENT) || !defined(VECTORS)
#error "mxfp4_quant.hip: -DELEMENT=bf16|f16|float -DVECTORS"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  static constexpr int kVectors = VECTORS;
};

constexpr int kThreads = 256;
constexpr int kVec = 8, kGroup = 32, kGroupLanes = kGroup / kVec;
constexpr uint32_t kInfinity = 0x7F800000u, kNanScale = 255;

template <class Config>
struct Mxfp4QuantArgs {
  uint8_t *out, *scale;                   // [rows, columns / 2], [rows, columns / 32]
  const typename Config::Element* input;  // [rows, columns]
  int64_t out_stride, scale_stride, input_stride;
  uint32_t rows;
  uint32_t rounding;  // is added to the bits of the largest magnitude: what carries goes to the next power of two
};

/// The biased exponent of the scale for the largest magnitude, whose bits these are. Where the scale is rounded up, no
/// group of other numbers than 0 has that of 0.
__device__ inline uint32_t biased_scale(uint32_t amax, uint32_t rounding) {
  constexpr uint32_t kToNearest = 0x200000;
  const int exponent = static_cast<int>((amax + rounding) >> 23) - 2;
  const int least = rounding > kToNearest && amax != 0 ? 1 : 0;
  return amax >= kInfinity ? kNanScale : static_cast<uint32_t>(exponent > least ? exponent : least);
}

/// The code of |x| · inverse. Up to 2 codes are halves, up to 4 they are whole numbers, above they are even ones: added
/// to 2^23, what is scaled so is rounded to the last bit of the sum.
__device__ inline uint32_t fp4_code(float x, float inverse) {
  const float y = __builtin_fabsf(x) * inverse;
  const float step = y < 2.f ? 2.f : y < 4.f ? 1.f : 0.5f;
  const uint32_t first = y < 2.f ? 0 : y < 4.f ? 2 : 4;
  const uint32_t code = (__builtin_bit_cast(uint32_t, y * step + 0x1p23f) & 15u) + first;
  return (code < 7 ? code : 7) | (__builtin_bit_cast(uint32_t, x) >> 31) << 3;
}

template <class Config, bool kIsAligned>
__global__ __launch_bounds__(kThreads, 8) void mxfp4_quant_kernel(Mxfp4QuantArgs<Config> args, Divider row_vectors) {
  await_stream();
  using Element = typename Config::Element;
  constexpr int kVectors = Config::kVectors;
  const uint32_t first = workgroup_index().x * (kThreads * kVectors) + thread_index();
  const uint32_t end = args.rows * row_vectors.divisor;
  uint32_t row[kVectors], vector[kVectors];
  float x[kVectors][kVec];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const uint32_t index = first + v * kThreads;
    row[v] = row_vectors.divide(index);
    vector[v] = index - row[v] * row_vectors.divisor;
    if (index >= end) continue;
    const Element* from = args.input + row[v] * args.input_stride + int64_t{vector[v]} * kVec;
    Vec<Element, kVec> loaded;
    if constexpr (kIsAligned) {
      loaded = load_vec<kVec>(from);
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e) loaded[e] = from[e];
    }
#pragma unroll
    for (int e = 0; e < kVec; ++e) x[v][e] = to_float(loaded[e]);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    // Rows are whole groups, so that the four lanes of one are all there or all beyond the end.
    const bool is_there = first + v * kThreads < end;
    float amax = 0.f;
#pragma unroll
    for (int e = 0; e < kVec; ++e) amax = larger(amax, is_there ? __builtin_fabsf(x[v][e]) : 0.f);
    amax = wave_max<kGroupLanes / 2>(amax);
    if (!is_there) continue;
    const uint32_t scale = biased_scale(__builtin_bit_cast(uint32_t, amax), args.rounding);
    const float inverse = __builtin_bit_cast(float, (254u - scale) << 23);
    uint32_t word = 0;
#pragma unroll
    for (int e = 0; e < kVec; ++e) word |= fp4_code(x[v][e], inverse) << 4 * e;
    if (scale == kNanScale) word = 0;
    uint8_t* out = args.out + row[v] * args.out_stride + int64_t{vector[v]} * (kVec / 2);
    if constexpr (kIsAligned) {
      *reinterpret_cast<uint32_t*>(out) = word;
    } else {
#pragma unroll
      for (int b = 0; b < kVec / 2; ++b) out[b] = static_cast<uint8_t>(word >> 8 * b);
    }
    if (vector[v] % kGroupLanes == 0)
      args.scale[row[v] * args.scale_stride + vector[v] / kGroupLanes] = static_cast<uint8_t>(scale);
  }
}

template <class Config>
void launch_mxfp4_quant(const Mxfp4QuantArgs<Config>& args, int64_t columns, bool is_aligned, Stream stream) {
  const Divider row_vectors(static_cast<uint32_t>(columns / kVec));
  constexpr int64_t kPerGroup = kThreads * Config::kVectors;
  const dim3 grid(static_cast<uint32_t>((args.rows * (columns / kVec) + kPerGroup - 1) / kPerGroup));
  const auto kernel = is_aligned ? mxfp4_quant_kernel<Config, true> : mxfp4_quant_kernel<Config, false>;
  launch_named("mxfp4_quant_kernel", kernel, grid, kThreads, stream, args, row_vectors);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_mxfp4_quant(const Mxfp4QuantArgs<Config>&, int64_t, bool, Stream);

#if AITER_LIKE_HOST_PASS

void mxfp4_quant(ffi::Tensor out, ffi::Tensor scale, ffi::Tensor input, int64_t round_mode) {
  // RoundDown, RoundUp, Even and Ceil: nothing carries; above 1.5; from 1.75 on; above 1.
  constexpr uint32_t kRounding[] = {0, 0x3FFFFF, 0x200000, 0x7FFFFF};
  ffi::Match match("mxfp4_quant");
  match.require(round_mode >= 0 && round_mode < 4, "round_mode must be 0, 1, 2 or 3");
  ffi::Size rows{"rows"}, columns{"columns"};
  const auto x = match.rows<ELEMENT>(input, rows, columns, "input");
  match.require(columns % kGroup == 0, "rows must be a multiple of 32 elements");
  const auto y = match.rows<uint8_t>(out, rows, columns / 2, "out");
  const auto s = match.rows<uint8_t>(scale, rows, columns / kGroup, "scale");
  if (rows == 0) return;
  match.require(rows * (columns / kVec) < (int64_t{1} << 31) - (1 << 16), "too many elements for one launch");
  const Mxfp4QuantArgs<Config> args{y.data, s.data, x.data, y.stride, s.stride, x.stride, static_cast<uint32_t>(rows),
                            kRounding[round_mode]};
  const bool is_aligned = ffi::takes_vectors(16 / sizeof(ELEMENT), input) && ffi::takes_vectors(4, out);
  launch_mxfp4_quant(args, columns, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(mxfp4_quant, aiter_like::mxfp4_quant);
#endif

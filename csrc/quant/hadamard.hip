// SPDX-License-Identifier: MIT
// The Walsh-Hadamard transform of rows: out[i] = scale · Σ (−1)^|i & j| · input[j]. HIP (gfx9) and CUDA. One build per
// ELEMENT, OUT_ELEMENT and COLUMNS.
//
// kLanes lanes of one wave share a row; element (v · kLanes + lane) · kVec + e of it is number (v, e) of a lane. A
// stage adds and subtracts the pairs that differ in one bit of their index, from the lowest bit on, as the reference
// does, so that the sums are the same: bits of e, then those of the lane, by an exchange within the wave, then those of
// v. All reads of a row come before its writes, so that `out` may be `input`.
// LDS: none. Bound: memory: 8192 × 1024 bf16 = 34 MB, 6.3 us at 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "aiter_like/math.h"

#if !defined(ELEMENT) || !defined(OUT_ELEMENT) || !defined(COLUMNS)
#error "hadamard.hip: -DELEMENT=bf16|f16|float -DOUT_ELEMENT=bf16|f16|float -DCOLUMNS=2…4096"
#endif

namespace aiter_like {

/// The macros of this build; the code below takes them from here.
struct Config {
  using Element = ELEMENT;
  using Out = OUT_ELEMENT;
  static constexpr int kColumns = COLUMNS;
};

constexpr int kThreads = 256;

template <class Config>
struct HadamardArgs {
  typename Config::Out* out;             // [rows, kColumns]
  const typename Config::Element* input;  // [rows, kColumns]
  int64_t out_stride, input_stride;       // elements from row to row
  int64_t rows;
  float scale;
};

template <class Config>
struct Hadamard {
  static constexpr int kColumns = Config::kColumns, kVec = kColumns < 8 ? kColumns : 8;
  static constexpr int kLanes = kColumns / kVec < kWaveSize ? kColumns / kVec : kWaveSize;
  static constexpr int kVectors = kColumns / (kVec * kLanes), kCount = kVec * kVectors, kRows = kThreads / kLanes;
  static_assert((kColumns & (kColumns - 1)) == 0 && kColumns > 1, "a power of two");

  float x[kCount];  // this lane's

  /// The stages of bits of a lane's own numbers, from kFirst to below kEnd.
  template <int kFirst, int kEnd>
  __device__ void transform_own() {
#pragma unroll
    for (int bit = kFirst; bit < kEnd; bit *= 2) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i & bit) continue;
        const float low = x[i], high = x[i | bit];
        x[i] = low + high, x[i | bit] = low - high;
      }
    }
  }

  /// The stages of the bits of the lane from kMask on.
  template <int kMask = 1>
  __device__ void transform_lanes(int lane) {
    if constexpr (kMask < kLanes) {
      const float sign = lane & kMask ? -1.f : 1.f;
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] = lane_xor<kMask>(x[i]) + sign * x[i];
      transform_lanes<2 * kMask>(lane);
    }
  }
};

template <bool kIsAligned>
__global__ __launch_bounds__(kThreads) void hadamard_kernel(HadamardArgs<Config> args) {
  await_stream();
  using Transform = Hadamard<Config>;
  constexpr int kVec = Transform::kVec, kLanes = Transform::kLanes;
  const int lane = thread_index() % kLanes;
  const int64_t row = int64_t{workgroup_index().x} * Transform::kRows + thread_index() / kLanes;
  const bool is_row = row < args.rows;  // other lanes take the last row along, for all exchange
#if defined(__HIP__)
  if (!is_row) return;  // lanes exchange within their row alone, and another wave may write the last one
#endif
  const Config::Element* input = args.input + (is_row ? row : args.rows - 1) * args.input_stride + lane * kVec;
  Transform transform;
#pragma unroll
  for (int v = 0; v < Transform::kVectors; ++v) {
    if constexpr (kIsAligned) {
      Packed<Config::Element, kVec> packed;
      packed.load(input + v * kLanes * kVec);
#pragma unroll
      for (int e = 0; e < kVec; ++e) transform.x[v * kVec + e] = packed.at(e);
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e) transform.x[v * kVec + e] = to_float(input[v * kLanes * kVec + e]);
    }
  }
  transform.transform_own<1, kVec>();
  transform.transform_lanes(lane);
  transform.transform_own<kVec, Transform::kCount>();
  if (!is_row) return;
  Config::Out* out = args.out + row * args.out_stride + lane * kVec;
#pragma unroll
  for (int v = 0; v < Transform::kVectors; ++v) {
    float y[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) y[e] = args.scale * transform.x[v * kVec + e];
    if constexpr (kIsAligned) {
      store_vec<kVec>(out + v * kLanes * kVec, vec_from_float<Config::Out>(y));
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e) out[v * kLanes * kVec + e] = from_float<Config::Out>(y[e]);
    }
  }
}

// Both passes compile this function: the device pass emits a kernel only where a launch of it is instantiated.
void launch_hadamard(const HadamardArgs<Config>& args, bool is_aligned, Stream stream) {
  constexpr int kRows = Hadamard<Config>::kRows;
  const dim3 grid(static_cast<uint32_t>((args.rows + kRows - 1) / kRows));
  launch_named("hadamard_kernel", is_aligned ? hadamard_kernel<true> : hadamard_kernel<false>, grid, kThreads, stream,
               args);
}

#if AITER_LIKE_HOST_PASS

void hadamard(ffi::Tensor out, ffi::Tensor input, double scale) {
  ffi::Match match("hadamard");
  ffi::Size rows{"rows"};
  const auto x = match.rows<const Config::Element>(input, rows, Config::kColumns, "input");
  const auto y = match.rows<Config::Out>(out, rows, Config::kColumns, "out");
  if (rows == 0) return;
  const HadamardArgs<Config> args{y.data, x.data, y.stride, x.stride, rows, static_cast<float>(scale)};
  launch_hadamard(args, ffi::takes_vectors(Hadamard<Config>::kVec, input, out), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(hadamard, aiter_like::hadamard);
#endif

// SPDX-License-Identifier: MIT
// softmax of rows: out = e^((x - max) / T) / sum, in fp32. HIP (gfx9) and CUDA. softmax.hip says what a Config holds.
//
//   1. load the row, as much of it as registers hold; each lane keeps the maximum and the sum of exponentials below it
//   2. those of the workgroup
//   3. the exponentials again, from registers; what did not fit is read again from its end, where a cache still has it
//
// On sm_90 the workgroups of a cluster share a row: each holds its slice in LDS (held_slice.h), and takes the maxima
// and sums of the others from theirs. Elsewhere few rows are cut into slices, in two launches: maximum and sum of each,
// then the result of each.
// Tile: kThreads lanes, kHeld accesses of 16 bytes each, 256 KB on gfx942: 131072 elements of 16 bits are read once;
// of longer rows, those of 131072 fp32 among them, the rest is read twice. LDS: 12 bytes per wave; of a cluster's
// workgroup 64 KB, so that three of a multiprocessor load and store in turns.
// Bound: memory, sizeof(Element) + sizeof(Out) bytes per element for two exponentials.
#pragma once

#include "aiter_like/math.h"
#include "aiter_like/preload.h"
#include "held_slice.h"

namespace aiter_like {

template <class Config>
struct SoftmaxArgs {
  using Element = typename Config::Element;
  using Out = typename Config::Out;

  ScanRows<Out> out;
  ScanRows<const Element> input;
  const float* temperatures;  // [rows]; null: `temperature`
  float* parts;               // [rows, slices, 2]: maximum and sum of each
  Slices slices;
  uint32_t cluster;  // workgroups that share a row without a second launch; 0: none do
  float temperature;
  static constexpr Preload preload() {
    using A = SoftmaxArgs;
    return {offsetof(A, input.data), offsetof(A, input.stride), offsetof(A, slices), offsetof(A, temperatures),
            offsetof(A, cluster), offsetof(A, out.data), offsetof(A, out.stride)};
  }
};

/// The maximum of numbers, NaNs aside, and the sum of 2^((x - maximum) · scale), which a NaN makes NaN.
struct SoftmaxSum {
  float maximum, sum;

  __device__ SoftmaxSum() : maximum(-__builtin_inff()), sum(0.f) {}
  __device__ SoftmaxSum(float maximum, float sum) : maximum(maximum), sum(sum) {}

  __device__ explicit SoftmaxSum(uint64_t bits)
      : maximum(bits_float(static_cast<uint32_t>(bits >> 32))), sum(bits_float(static_cast<uint32_t>(bits))) {}
  __device__ uint64_t bits() const { return uint64_t{float_bits(maximum)} << 32 | float_bits(sum); }

  /// -inf would make NaNs of elements of -inf that others outweigh.
  __device__ float base() const { return maximum == -__builtin_inff() ? 0.f : maximum; }

  /// The sum for another maximum, at least as large; of no numbers it stays 0, or NaN.
  __device__ float sum_below(float high, float scale) const {
    return maximum == -__builtin_inff() ? sum : sum * fast_exp2((maximum - high) * scale);
  }

  template <int kCount>
  __device__ void add(const Vec<float, kCount>& x, float scale) {
    float high = maximum;
#pragma unroll
    for (int e = 0; e < kCount; ++e) high = __builtin_fmaxf(high, x[e]);
    if (high != maximum) *this = SoftmaxSum(high, sum_below(high, scale));
#pragma unroll
    for (int e = 0; e < kCount; ++e) sum += fast_exp2((x[e] - base()) * scale);
  }
  __device__ void add(const SoftmaxSum& other, float scale) {
    const float high = __builtin_fmaxf(maximum, other.maximum);
    *this = SoftmaxSum(high, sum_below(high, scale) + other.sum_below(high, scale));
  }
};

template <class Config>
struct SoftmaxBody {
  using Element = typename Config::Element;
  using Out = typename Config::Out;
  using Args = SoftmaxArgs<Config>;
  using Split = RowSplit<Element>;
#if defined(__HIP__)
  static constexpr int kThreads = 1024, kHeld = 16;
#else
  static constexpr int kThreads = 512, kHeld = 20;
#endif
  static constexpr int kVec = Split::kVec;
  static constexpr int kWritten = 4;  // accesses of a lane in flight while a slice is written

  struct Scratch {
    uint64_t best[kThreads / kWaveSize];
    float sums[kThreads / kWaveSize];
  };

  __device__ static float scale_of(const Args& args, int64_t row) {
    constexpr float kLog2E = 1.44269504f, kLeastTemperature = 1e-5f;
    const float temperature = args.temperatures ? args.temperatures[row] : args.temperature;
    const float scale = kLog2E / (temperature < kLeastTemperature ? kLeastTemperature : temperature);  // NaN stays
    return scale < 0x1p-126f ? 0x1p-126f : scale;  // for an infinite temperature: -inf must stay -inf
  }

  /// A whole row.
  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ Scratch scratch;
    const int64_t row = workgroup_index().y;
    const float scale = scale_of(args, row);
    const Split split(args.input.row(row), 0, args.slices.size);
    Packed<Element, kVec> data[kHeld];
    const int thread = thread_index();
    if (split.vectors > 0) {
#pragma unroll
      for (int u = 0; u < kHeld; ++u) split.load(data[u], u * kThreads + thread);
    }
    SoftmaxSum lane;
    split.each_single([&](int, float x) { lane.add(Vec<float, 1>{{x}}, scale); });
#pragma unroll
    for (int u = 0; u < kHeld; ++u)
      if (u * kThreads + thread < split.vectors) lane.add(floats_of(data[u]), scale);
    const int rest = kHeld * kThreads + thread;
    for (int v = rest; v < split.vectors; v += 2 * kThreads) {
      Packed<Element, kVec> two[2];
#pragma unroll
      for (int u = 0; u < 2; ++u) split.load(two[u], v + u * kThreads);
#pragma unroll
      for (int u = 0; u < 2; ++u)
        if (v + u * kThreads < split.vectors) lane.add(floats_of(two[u]), scale);
    }
    const SoftmaxSum whole = of_workgroup(lane, scale, scratch);

    Out* out = args.out.row(row);
    const Writer write{out, is_wide_at<kVec>(out + split.head), whole.maximum, scale, 1.f / whole.sum};
    split.each_single([&](int column, float x) { write(column, Vec<float, 1>{{x}}); });
    const int steps = split.vectors > rest ? (split.vectors - 1 - rest) / kThreads : -1;
    for (int step = steps; step >= 0; --step) {
      const int v = rest + step * kThreads;
      Packed<Element, kVec> again;
      split.load(again, v);
      write(split.column(v), floats_of(again));
    }
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      data[u].drop_floats();
      const int v = u * kThreads + thread;
      if (v < split.vectors) write(split.column(v), floats_of(data[u]));
    }
  }

  /// A slice of a row, by one workgroup of a cluster.
  __device__ __forceinline__ static void run_cluster(const Args& args) {
    constexpr int kWaves = kThreads / kWaveSize;
    static_assert(!kHasClusters || kWaves <= kWaveSize, "a wave reduces the results of the waves");
    __shared__ uint64_t of_waves[kWaves], part;
    const int lane = lane_index();
    const int64_t row = workgroup_index().y;
    const float scale = scale_of(args, row);
    const HeldSlice<Element, kThreads> slice(args.input.row(row), args.slices, dynamic_lds());
    slice.read();
    await_copies();
    SoftmaxSum sum;
    slice.each([&](int, const auto& x) { sum.add(x, scale); });
    sum = of_wave(sum, scale);
    if (lane == 0) of_waves[wave_index()] = sum.bits();
    workgroup_barrier();
    if (wave_index() == 0) {
      sum = of_wave(lane < kWaves ? SoftmaxSum(of_waves[lane]) : SoftmaxSum(), scale);
      if (lane == 0) part = sum.bits();
    }
    cluster_barrier_with_own();
    sum = SoftmaxSum();
    if (lane < static_cast<int>(args.cluster)) sum = SoftmaxSum(load_of_peer(&part, lane));
    sum = of_wave(sum, scale);
    cluster_arrive_with_own();
    Out* out = args.out.row(row);
    slice.each(Writer{out, is_wide_at<kVec>(out + slice.split.column(0)), sum.maximum, scale, 1.f / sum.sum});
    cluster_wait();  // no workgroup ends before others have read its part
  }

  /// The first launch for slices: maximum and sum of one.
  __device__ __forceinline__ static void run_parts(const Args& args) {
    __shared__ Scratch scratch;
    const int64_t row = workgroup_index().y;
    const float scale = scale_of(args, row);
    SoftmaxSum lane;
    scan_row<kThreads>(args.input.row(row), args.slices.begin(), args.slices.end(),
                       [&](int, const auto& x) { lane.add(x, scale); });
    const SoftmaxSum slice = of_workgroup(lane, scale, scratch);
    if (thread_index() != 0) return;
    float* part = args.parts + 2 * (row * count(args) + workgroup_index().x);
    part[0] = slice.maximum;
    part[1] = slice.sum;
  }

  /// The second launch: the result of a slice, for the sums of all, in their order.
  __device__ __forceinline__ static void run_slices(const Args& args) {
    const int64_t row = workgroup_index().y;
    const float scale = scale_of(args, row);
    const float* parts = args.parts + 2 * row * count(args);
    SoftmaxSum whole;
    for (int slice = 0; slice < count(args); ++slice)
      whole.add(SoftmaxSum(parts[2 * slice], parts[2 * slice + 1]), scale);
    const Split split(args.input.row(row), args.slices.begin(), args.slices.end());
    Out* out = args.out.row(row);
    const Writer write{out, is_wide_at<kVec>(out + split.begin + split.head), whole.maximum, scale, 1.f / whole.sum};
    split.each_single([&](int column, float x) { write(column, Vec<float, 1>{{x}}); });
    const auto at = [&](int vector) { return split.first + split.head + int64_t{vector} * kVec; };
    for (int start = thread_index(); start < split.vectors; start += kThreads * kWritten) {
      Packed<Element, kVec> data[kWritten];
#pragma unroll
      for (int u = 0; u < kWritten; ++u) {  // `out` may be the input: a lane reads nothing that another one writes
        const int v = start + u * kThreads;
        data[u].load_if(v < split.vectors, at(v), at(start));
      }
#pragma unroll
      for (int u = 0; u < kWritten; ++u)
        if (start + u * kThreads < split.vectors) write(split.column(start + u * kThreads), floats_of(data[u]));
    }
  }

 private:
  __device__ static int count(const Args& args) {
    return (args.slices.size + args.slices.length - 1) / args.slices.length;
  }

  /// Writes the results of consecutive elements.
  struct Writer {
    Out* out;
    bool is_wide;
    float maximum, scale, inverse_sum;

    template <int kCount>
    __device__ void operator()(int column, const Vec<float, kCount>& x) const {
      float y[kCount];
#pragma unroll
      for (int e = 0; e < kCount; ++e) y[e] = fast_exp2((x[e] - maximum) * scale) * inverse_sum;
      store_elements(out + column, y, is_wide);
    }
  };

  /// The sum of all lanes of the wave, in each.
  __device__ static SoftmaxSum of_wave(const SoftmaxSum& lane, float scale) {
    const float high = wave_highest(lane.maximum);
    return SoftmaxSum(high, wave_sum(lane.sum_below(high, scale)));
  }
  template <int kMask = kWaveSize / 2>
  __device__ static float wave_highest(float x) {
    x = __builtin_fmaxf(x, lane_xor<kMask>(x));
    if constexpr (kMask > 1) return wave_highest<kMask / 2>(x);
    return x;
  }

  __device__ static SoftmaxSum of_workgroup(const SoftmaxSum& lane, float scale, Scratch& scratch) {
    const uint64_t best = workgroup_best<kThreads>(uint64_t{ordered_key(lane.maximum)} << 32, scratch.best);
    SoftmaxSum whole(key_float(candidate_key(best)), 0.f);
    whole.sum = workgroup_sum<kThreads>(lane.sum_below(whole.maximum, scale), scratch.sums);
    return whole;
  }
};

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 1) void softmax_kernel(AITER_LIKE_PRELOADED(typename Body::Args)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  Body::run(args);
}

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 3) void softmax_cluster_kernel(typename Body::Args args) {
  await_stream();
  Body::run_cluster(args);
}

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 1) void softmax_parts_kernel(AITER_LIKE_PRELOADED(typename Body::Args)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  Body::run_parts(args);
}

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 1) void softmax_slices_kernel(AITER_LIKE_PRELOADED(typename Body::Args)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  Body::run_slices(args);
}

template <class Config>
void launch_softmax(const SoftmaxArgs<Config>& args, uint32_t rows, uint32_t slices, Stream stream) {
  using Body = SoftmaxBody<Config>;
  const dim3 grid(slices, rows);
  if constexpr (kHasClusters) {
    if (args.cluster > 0) {
      const size_t lds_bytes = args.slices.length * sizeof(typename Config::Element);
      launch_clusters(softmax_cluster_kernel<Body>, args.cluster, rows, Body::kThreads, lds_bytes, stream, args);
      check_launch("softmax_cluster_kernel");
      return;
    }
  }
  if (slices == 1) {
    launch_named("softmax_kernel", softmax_kernel<Body>, grid, Body::kThreads, stream, args);
    return;
  }
  launch_named("softmax_parts_kernel", softmax_parts_kernel<Body>, grid, Body::kThreads, stream, args);
  launch_named("softmax_slices_kernel", softmax_slices_kernel<Body>, grid, Body::kThreads, stream, args);
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// A token of each row of logits: the largest, or the winner of a race, argmax of softmax(x / T)[c] / (E[c] + epsilon)
// with E exponential of rate lambda, which draws c with its probability. In logarithms, x · log2(e) / T - log2(E +
// epsilon), one pass needs no maximum and no sum. HIP (gfx9) and CUDA. sample.hip says what a Config holds.
//
//   1. a workgroup takes a slice of a row: each lane keeps its best score and the column, or, of logits as they are,
//      the 16 bytes with the largest one, which cost a maximum per element and a comparison per access
//   2. the best of the workgroup, as a number of key and column
//   3. where rows were cut: on sm_90 the slices' workgroups are a cluster, whose first one has all bests stored in its
//      LDS; elsewhere a second launch takes the best of the slices
//
// Equal scores: the lower column. A NaN never wins over a number; a row of NaNs gives column 0.
// Tile: kThreads lanes, 4 accesses of 16 bytes in flight each. LDS: 8 bytes per wave.
// Bound: memory for the largest; a race with own numbers takes 30 integer operations and two logarithms per element.
#pragma once

#include "aiter_like/cluster.h"
#include "draws.h"
#include "row_scan.h"

namespace aiter_like {

enum class Noise { kNone, kGiven, kPhilox };

template <class Config>
struct SampleArgs {
  using Element = typename Config::Element;

  int32_t* out;  // [rows]
  ScanRows<const Element> input;
  const float* temperatures;  // [rows]; null: the largest element
  ScanRows<const float> exponentials;
  uint64_t* best;  // [rows, slices]: of each slice
  Slices slices;
  uint32_t cluster;  // workgroups that share a row without a second launch; 0: none do
  Seeds seeds;
  float epsilon, inverse_lambda;
  bool is_mixed;  // temperature 0 means the largest element
};

template <class Config, Noise kNoise>
struct SampleBody {
  using Element = typename Config::Element;
  using Args = SampleArgs<Config>;
#if defined(__HIP__)
  static constexpr int kThreads = 512;
#else
  static constexpr int kThreads = 256;
#endif
  static constexpr float kLeastTemperature = 1e-5f;

  /// A lane's best score so far. It sees rising columns, so that of equal ones the first stays; the first number
  /// replaces NaNs.
  struct Best {
    float score = __builtin_nanf("");
    int column = 0;

    __device__ void add(float x, int at) {
      const bool is_better = x > score || score != score;
      score = is_better ? x : score;
      column = is_better ? at : column;
    }
    __device__ uint64_t number() const { return candidate(ordered_key(score), static_cast<uint32_t>(column)); }
  };

  __device__ __forceinline__ static void run(const Args& args) {
    const int64_t row = workgroup_index().y;
    const uint64_t best = of_slice(args, row);
    if (thread_index() != 0) return;
    if (args.best)
      args.best[row * workgroups(args) + workgroup_index().x] = best;
    else
      args.out[row] = token(best);
  }

  __device__ __forceinline__ static void run_cluster(const Args& args) {
    __shared__ uint64_t bests[kMostOfCluster];  // in the first workgroup
    cluster_arrive();
    const int64_t row = workgroup_index().y;
    const uint64_t best = of_slice(args, row);
    cluster_wait();
    if (thread_index() == 0) store_of_peer(&bests[workgroup_index().x], 0, best);
    cluster_barrier();
    if (workgroup_index().x != 0 || thread_index() != 0) return;
    uint64_t whole = 0;
    for (uint32_t rank = 0; rank < args.cluster; ++rank) whole = bests[rank] > whole ? bests[rank] : whole;
    args.out[row] = token(whole);
  }

  /// A key of 0 is that of a NaN.
  __device__ static int32_t token(uint64_t best) {
    return candidate_key(best) == 0 ? 0 : static_cast<int32_t>(candidate_column(best));
  }
  __device__ static uint32_t workgroups(const Args& args) {
    return static_cast<uint32_t>((args.slices.size + args.slices.length - 1) / args.slices.length);
  }

 private:
  /// The best of the workgroup's slice, in every work-item.
  __device__ __forceinline__ static uint64_t of_slice(const Args& args, int64_t row) {
    __shared__ uint64_t scratch[kThreads / kWaveSize];
    const float temperature = kNoise == Noise::kNone ? 0.f : args.temperatures[row];
    const bool is_race = kNoise != Noise::kNone && !(args.is_mixed && temperature == 0.f);
    const uint64_t best = is_race ? race(args, row, temperature) : largest(args, row);
    return workgroup_best<kThreads>(best, scratch);
  }

  __device__ static int begin_of(const Args& args) {
    return args.slices.begin() < args.slices.size ? args.slices.begin() : args.slices.size;
  }
  __device__ static int end_of(const Args& args) {
    const int begin = begin_of(args);
    return args.slices.size - begin < args.slices.length ? args.slices.size : begin + args.slices.length;
  }

  __device__ __forceinline__ static uint64_t largest(const Args& args, int64_t row) {
    using Split = RowSplit<Element>;
    constexpr int kUnroll = 4;
    const Split split(args.input.row(row), begin_of(args), end_of(args));
    uint64_t best = 0;
    const auto add = [&](int column, float x) {
      const uint64_t one = candidate(ordered_key(x), static_cast<uint32_t>(column));
      best = one > best ? one : best;
    };
    split.each_single(add);
    if (static_cast<int>(thread_index()) >= split.vectors) return best;
    Packed<Element, Split::kVec> kept;
    Best most;
    for (int start = thread_index(); start < split.vectors; start += kThreads * kUnroll) {
      Packed<Element, Split::kVec> data[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) split.load(data[u], start + u * kThreads);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (start + u * kThreads >= split.vectors) continue;
        float high = data[u].at(0);
#pragma unroll
        for (int e = 1; e < Split::kVec; ++e) high = __builtin_fmaxf(high, data[u].at(e));
        const int before = most.column;
        most.add(high, start + u * kThreads + 1);
        if (most.column != before) kept = data[u];
      }
    }
#pragma unroll
    for (int e = 0; e < Split::kVec; ++e) add(split.column(most.column - 1) + e, kept.at(e));
    return best;
  }

  __device__ __forceinline__ static uint64_t race(const Args& args, int64_t row, float temperature) {
    const float exact = 1.44269504f / (temperature < kLeastTemperature ? kLeastTemperature : temperature);  // NaN stays
    const float scale = exact < 0x1p-126f ? 0x1p-126f : exact;  // for an infinite temperature: -inf must stay -inf
    const Draw draw(args.seeds, row);
    Best wide, single;  // the single elements at the end of a row come first
    scan_row<kThreads>(args.input.row(row), begin_of(args), end_of(args), [&](int column, const auto& x) {
      constexpr int kCount = sizeof(x) / sizeof(float);
      float noise[kCount];
      if constexpr (kNoise == Noise::kGiven) {
#pragma unroll
        for (int e = 0; e < kCount; ++e) noise[e] = args.exponentials.row(row)[column + e];
      } else {
        const auto words = draw.template words<kCount>(column);
#pragma unroll
        for (int e = 0; e < kCount; ++e) noise[e] = exponential_of(words[e]) * args.inverse_lambda;
      }
      Best& best = kCount == 1 ? single : wide;
#pragma unroll
      for (int e = 0; e < kCount; ++e) best.add(x[e] * scale - fast_log2(noise[e] + args.epsilon), column + e);
    });
    const uint64_t a = wide.number(), b = single.number();
    return a > b ? a : b;
  }
};

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 1024 / Body::kThreads) void sample_kernel(typename Body::Args args) {
  await_stream();
  Body::run(args);
}

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 1024 / Body::kThreads) void sample_cluster_kernel(
    typename Body::Args args) {
  await_stream();
  Body::run_cluster(args);
}

/// The second launch: the best of a row's slices, by a wave.
template <class Body>
__global__ __launch_bounds__(kWaveSize) void sample_merge_kernel(typename Body::Args args) {
  await_stream();
  const int64_t row = workgroup_index().x;
  const int count = static_cast<int>(Body::workgroups(args));
  uint64_t best = 0;
  for (int slice = thread_index(); slice < count; slice += kWaveSize) {
    const uint64_t one = args.best[row * count + slice];
    best = one > best ? one : best;
  }
  best = wave_best(best);
  if (thread_index() == 0) args.out[row] = Body::token(best);
}

template <class Config, Noise kNoise>
void launch_sample(const SampleArgs<Config>& args, uint32_t rows, uint32_t slices, Stream stream) {
  using Body = SampleBody<Config, kNoise>;
  if constexpr (kHasClusters) {
    if (args.cluster > 0) {
      launch_clusters(sample_cluster_kernel<Body>, args.cluster, rows, Body::kThreads, 0, stream, args);
      check_launch("sample_cluster_kernel");
      return;
    }
  }
  launch_named("sample_kernel", sample_kernel<Body>, dim3(slices, rows), Body::kThreads, stream, args);
  if (slices == 1) return;
  launch_named("sample_merge_kernel", sample_merge_kernel<Body>, dim3(rows), kWaveSize, stream, args);
}

}  // namespace aiter_like

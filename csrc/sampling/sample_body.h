// SPDX-License-Identifier: MIT
// A token of each row of logits: the largest, or the winner of a race, argmax of softmax(x / T)[c] / (E[c] + epsilon)
// with E exponential of rate lambda, which draws c with its probability. In logarithms, x · log2(e) / T - log2(E +
// epsilon), one pass needs no maximum and no sum. HIP (gfx9) and CUDA. sample.hip says what a Config holds.
//
//   1. a workgroup takes a slice of a row: each lane keeps its best element, as a number of key and column
//   2. the best of the workgroup; where rows were cut, a second launch takes the best of the slices
//
// Equal scores: the lower column. A NaN never wins over a number; a row of NaNs gives column 0.
// Tile: kThreads lanes, 4 accesses of 16 bytes in flight each. LDS: 8 bytes per wave.
// Bound: memory for the largest; a race with own numbers takes 30 integer operations and two logarithms per element.
#pragma once

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
  Seeds seeds;
  float epsilon, inverse_lambda;
  bool is_mixed;  // temperature 0 means the largest element
};

template <class Config, Noise kNoise>
struct SampleBody {
  using Element = typename Config::Element;
  using Args = SampleArgs<Config>;
  static constexpr int kThreads = 512;
  static constexpr float kLeastTemperature = 1e-5f;

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ uint64_t scratch[kThreads / kWaveSize];
    const int64_t row = workgroup_index().y;
    const float temperature = kNoise == Noise::kNone ? 0.f : args.temperatures[row];
    const bool is_race = kNoise != Noise::kNone && !(args.is_mixed && temperature == 0.f);
    uint64_t best = 0;
    if (is_race)
      best = race(args, row, temperature);
    else
      scan_elements<kThreads>(args.input.row(row), args.slices.begin(), args.slices.end(), [&](int column, float x) {
        const uint64_t one = candidate(ordered_key(x), static_cast<uint32_t>(column));
        best = one > best ? one : best;
      });
    best = workgroup_best<kThreads>(best, scratch);
    if (thread_index() != 0) return;
    if (args.best)
      args.best[row * workgroups(args) + workgroup_index().x] = best;
    else
      args.out[row] = static_cast<int32_t>(candidate_column(best));
  }

  __device__ static uint32_t workgroups(const Args& args) {
    return static_cast<uint32_t>((args.slices.size + args.slices.length - 1) / args.slices.length);
  }

 private:
  __device__ __forceinline__ static uint64_t race(const Args& args, int64_t row, float temperature) {
    const float scale = 1.44269504f / (temperature > kLeastTemperature ? temperature : kLeastTemperature);
    const Draw draw(args.seeds, row);
    uint64_t best = 0;
    scan_row<kThreads>(args.input.row(row), args.slices.begin(), args.slices.end(), [&](int column, const auto& x) {
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
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        const float score = x[e] * scale - fast_log2(noise[e] + args.epsilon);
        const uint64_t one = candidate(ordered_key(score), static_cast<uint32_t>(column + e));
        best = one > best ? one : best;
      }
    });
    return best;
  }
};

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 2) void sample_kernel(typename Body::Args args) {
  await_stream();
  Body::run(args);
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
  if (thread_index() == 0) args.out[row] = static_cast<int32_t>(candidate_column(best));
}

template <class Config, Noise kNoise>
void launch_sample(const SampleArgs<Config>& args, uint32_t rows, uint32_t slices, Stream stream) {
  using Body = SampleBody<Config, kNoise>;
  launch_overlapped(sample_kernel<Body>, dim3(slices, rows), Body::kThreads, stream, args);
  check_launch("sample_kernel");
  if (slices == 1) return;
  launch_overlapped(sample_merge_kernel<Body>, dim3(rows), kWaveSize, stream, args);
  check_launch("sample_merge_kernel");
}

}  // namespace aiter_like

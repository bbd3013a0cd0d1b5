// SPDX-License-Identifier: MIT
// A token from what a target's probabilities have more than a draft's, max(target - draft, 0), by one uniform number:
// the column at which their sum in the order of columns passes that share of the whole. A workgroup takes a row of
// each. Sums are integers in units of 2^-44, so that the token does not depend on the order of additions.
//
//   1. sums of chunks of the row, each by a wave, in LDS
//   2. the chunk in which the sum passes the share, then the element, kThreads of them at a time
#pragma once

#include "draws.h"
#include "threshold.h"

namespace aiter_like {

template <int kThreads>
struct ResidualScratch {
  static constexpr int kChunks = 256;
  uint64_t chunks[kChunks], waves[kThreads / kWaveSize];
  uint32_t token;
};

/// A row of each; `draft` null: a draft of `drafted` alone, or of nothing where that is negative.
struct Residual {
  const float *target, *draft;
  int columns, drafted;

  __device__ uint64_t at(int column) const {
    const float low = draft ? draft[column] : column == drafted ? 1.f : 0.f;
    const float more = target[column] - (low > 0.f ? low : 0.f);
    return mass_of_key(probability_key(more));
  }
};

/// The token, in every work-item, for `share` = word / 2^32 of the sum; -1 where nothing is left.
template <int kThreads>
__device__ int residual_token(const Residual& row, uint32_t word, ResidualScratch<kThreads>& scratch) {
  constexpr int kChunks = ResidualScratch<kThreads>::kChunks, kWaves = kThreads / kWaveSize;
  const int thread = thread_index(), even = (row.columns + kChunks - 1) / kChunks;
  const int length = even < kWaveSize ? kWaveSize : even, chunks = (row.columns + length - 1) / length;
  for (int chunk = wave_index(); chunk < chunks; chunk += kWaves) {
    const int begin = chunk * length, end = begin + length < row.columns ? begin + length : row.columns;
    uint64_t sum = 0;
    for (int column = begin + lane_index(); column < end; column += kWaveSize) sum += row.at(column);
    sum = wave_total(sum);
    if (lane_index() == 0) scratch.chunks[chunk] = sum;
  }
  if (thread == 0) scratch.token = 0;
  workgroup_barrier();
  uint64_t total = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) total += scratch.chunks[chunk];
  if (total == 0) return -1;
  // floor(total · word / 2^32), which is below total
  uint64_t rest = (total >> 32) * word + ((total & 0xFFFFFFFFu) * word >> 32);
  int chunk = 0;
  while (rest >= scratch.chunks[chunk]) rest -= scratch.chunks[chunk++];
  const int begin = chunk * length, end = begin + length < row.columns ? begin + length : row.columns;
  for (int first = begin; first < end; first += kThreads) {
    const int column = first + thread;
    const uint64_t own = column < end ? row.at(column) : 0;
    uint64_t of_wave = own;
    uint64_t before = wave_sum_before(of_wave);
    if (lane_index() == 0) scratch.waves[wave_index()] = of_wave;
    workgroup_barrier();
    uint64_t of_all = 0;
    for (int wave = 0; wave < kWaves; ++wave) {
      if (wave < wave_index()) before += scratch.waves[wave];
      of_all += scratch.waves[wave];
    }
    if (before <= rest && rest < before + own) scratch.token = static_cast<uint32_t>(column);
    workgroup_barrier();
    if (rest < of_all) break;
    rest -= of_all;
  }
  return static_cast<int>(scratch.token);
}

}  // namespace aiter_like

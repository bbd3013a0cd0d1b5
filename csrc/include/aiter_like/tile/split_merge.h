// SPDX-License-Identifier: MIT
// Partial softmax of the same rows, by waves that had different keys: maxima and sums meet in LDS, then the sums of
// values, a strip of 16 rows and WIDTH columns at a time. The order is that of the waves.
#pragma once

#include "aiter_like/math.h"
#include "aiter_like/tile/softmax.h"

namespace aiter_like::tile {

/// LDS of a workgroup of WAVES waves that have ROWS rows.
template <int WAVES, int ROWS, int WIDTH>
struct SplitMerge {
  static constexpr int kPitch = WIDTH + 4;  // floats; neighbours in a column are in other banks

  float maxima[WAVES][ROWS], sums[WAVES][ROWS];
  float values[WAVES][16][kPitch];

  /// Stores this wave's rows, one lane each. A barrier has to follow.
  template <class SOFTMAX>
  __device__ void tell(const SOFTMAX& softmax, int wave) {
#pragma unroll
    for (int s = 0; s < ROWS / 16; ++s) {
      const float sum = softmax.total(s);
      if (SOFTMAX::Layout::group() == 0) {
        const int row = SOFTMAX::Layout::owned(s);
        maxima[wave][row] = softmax.maximum[s];
        sums[wave][row] = sum;
      }
    }
  }

  /// A row of all waves: its maximum, its sum, and the factor of each wave's values.
  struct Row {
    float maximum, sum, weights[WAVES];
  };
  __device__ Row row(int index) const {
    Row result;
    result.maximum = maxima[0][index];
#pragma unroll
    for (int w = 1; w < WAVES; ++w) result.maximum = __builtin_fmaxf(result.maximum, maxima[w][index]);
    result.sum = 0.f;
#pragma unroll
    for (int w = 0; w < WAVES; ++w) {
      result.weights[w] = fast_exp2(maxima[w][index] - result.maximum);
      result.sum = __builtin_fmaf(sums[w][index], result.weights[w], result.sum);
    }
    return result;
  }

  /// The sum of the waves' values at a place of the strip.
  __device__ float value(const Row& row, int index, int column) const {
    float result = 0.f;
#pragma unroll
    for (int w = 0; w < WAVES; ++w) result = __builtin_fmaf(values[w][index][column], row.weights[w], result);
    return result;
  }
};

}  // namespace aiter_like::tile

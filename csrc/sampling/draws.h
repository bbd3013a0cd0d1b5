// SPDX-License-Identifier: MIT
// Random numbers of samplers. A row's draw is a function of its seed, the number of the draw and the column alone: the
// same in any batch, on any grid and device. Column c of draw d takes word c mod 4 of counter d · 2^32 + c / 4.
#pragma once

#include "aiter_like/math.h"
#include "aiter_like/philox.h"

namespace aiter_like {

/// The source of a row's seed and draw: tensors with one element per row, or numbers: draw offset + row of one seed.
struct Seeds {
  const int64_t *seeds, *offsets;
  uint64_t seed, offset;
};

struct Draw {
  uint64_t seed, first;  // the counter of column 0

  __device__ Draw(const Seeds& from, int64_t row)
      : seed(from.seeds ? static_cast<uint64_t>(from.seeds[row]) : from.seed),
        first(((from.offsets ? static_cast<uint64_t>(from.offsets[row]) : from.offset) +
               (from.seeds ? 0 : static_cast<uint64_t>(row)))
              << 32) {}

  /// The words of columns [column, column + kCount).
  template <int kCount>
  __device__ Vec<uint32_t, kCount> words(int column) const {
    Vec<uint32_t, kCount> result;
    if (kCount % 4 == 0 && column % 4 == 0) {
#pragma unroll
      for (int e = 0; e + 3 < kCount; e += 4) {
        const Vec<uint32_t, 4> four = philox(seed, first + static_cast<uint32_t>(column + e) / 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) result[e + i] = four[i];
      }
    } else {
#pragma unroll 1
      for (int e = 0; e < kCount; ++e) {
        const Vec<uint32_t, 4> four = philox(seed, first + static_cast<uint32_t>(column + e) / 4);
        const int i = (column + e) % 4;
        const uint32_t word = i == 0 ? four[0] : i == 1 ? four[1] : i == 2 ? four[2] : four[3];
#pragma unroll
        for (int slot = 0; slot < kCount; ++slot)
          if (slot == e) result[slot] = word;
      }
    }
    return result;
  }
  __device__ uint32_t word(int column) const { return words<1>(column)[0]; }
  /// 64 bits: the word of column 1, and below it that of column 0.
  __device__ uint64_t number() const {
    const Vec<uint32_t, 4> four = philox(seed, first);
    return uint64_t{four[1]} << 32 | four[0];
  }
};

/// floor(number / 2^64 · total), which is below the total.
__device__ inline uint64_t share_of(uint64_t total, uint64_t number) {
  const uint64_t a = static_cast<uint32_t>(total), b = total >> 32;
  const uint64_t c = static_cast<uint32_t>(number), d = number >> 32;
  const uint64_t middle = (a * c >> 32) + static_cast<uint32_t>(a * d) + static_cast<uint32_t>(b * c);
  return b * d + (a * d >> 32) + (b * c >> 32) + (middle >> 32);
}

/// -ln(1 - u) of u = (word + 1/2) / 2^32, distributed as an exponential of rate 1: 1e-5 relative. Small results, which
/// decide a race, come from a series: 1 - u would leave few of their digits.
__device__ inline float exponential_of(uint32_t word) {
  constexpr float kLn2 = 0.693147181f, kUnit = 0x1p-32f;
  const float u = (static_cast<float>(word) + 0.5f) * kUnit;
  if (u < 0x1p-5f) return u * (1.f + u * (0.5f + u * (0.333333333f + u * (0.25f + u * 0.2f))));
  return -kLn2 * fast_log2((static_cast<float>(~word) + 0.5f) * kUnit);
}

}  // namespace aiter_like

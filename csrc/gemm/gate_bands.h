// SPDX-License-Identifier: MIT
// A tile whose rows of b are gates and what they let through, in bands of 16 by turns: the two sums of an element of
// out are in the same lane whichever matrix instruction made them, and a band is one of shuffled weights.
#pragma once

#include "gemm_body.h"

namespace aiter_like::gemm {

constexpr int kGateBand = 16;

/// The rows of b [2 columns of out, depth] of a tile. kIsInterleaved: gates are the even rows and what they let
/// through the odd ones, in place of one half each. Past the end it is the last column's.
template <bool kIsInterleaved>
struct GateRows {
  int64_t first, columns;  // columns of out

  __device__ int64_t operator()(int row) const {
    const int64_t at = first + row / (2 * kGateBand) * kGateBand + row % kGateBand;
    const int64_t column = at < columns ? at : columns - 1, half = row / kGateBand % 2;
    return kIsInterleaved ? 2 * column + half : half * columns + column;
  }
};

/// The place of a lane's gates in a strip of sums with COLUMNS rows of b, kSumColumns neighbours of a row of out: what
/// they let through is kGateBand further. Lanes that LDS serves at once have two rows, 4 apart, which SwizzledByRow
/// puts into different banks.
template <int COLUMNS>
struct GatePlace {
  static constexpr int kBandRuns = kGateBand / kSumColumns, kBands = COLUMNS / (2 * kGateBand);
  static constexpr int kRowsAtOnce = kWaveSize / (kBandRuns * kBands);
  static_assert(kBandRuns == 4 && kRowsAtOnce >= 8 && kRowsAtOnce * kBandRuns * kBands == kWaveSize, "whole rows");
  int others = lane_index() / 8;  // bits: two of the row, then those of the band, then the rest of the row
  int band = others / 4 % kBands;
  int row = lane_index() / 4 % 2 * 4 + others % 4 + others / (4 * kBands) * 8;
  int run = lane_index() % kBandRuns * kSumColumns;

  __device__ int tile_column() const { return band * 2 * kGateBand + run; }
  __device__ int column() const { return band * kGateBand + run; }  // in out
};

/// use(row, gates, ups) for the runs of this lane, of which `row` is that of the wave's first lane; strip by strip
/// through `strip` in LDS, as each_run.
template <class Sums, class Strip, class Use>
__device__ void each_gated_run(const Sums& sums, Strip& strip, Use use) {
  using Layout = typename Sums::Layout;
  using Run = Vec<typename Sums::Element, kSumColumns>;
  using Place = GatePlace<Sums::kRows>;
  static_assert(Layout::kWidth % Place::kRowsAtOnce == 0, "whole rows");
  const Place place;
#pragma unroll
  for (int s = 0; s < Sums::kStrips; ++s) {
    write_strip(sums, s, strip);
#pragma unroll
    for (int row = 0; row < Layout::kWidth; row += Place::kRowsAtOnce) {
      const auto read = [&](int column) {
        const Chunk stored =  // at once, wherever the compiler moves it to
            strip.template at<Chunk>(place.row + row, column * static_cast<int>(sizeof(Run) / kSumColumns));
        return __builtin_bit_cast(Run, stored);
      };
      use(s * Layout::kWidth + row, read(place.tile_column()), read(place.tile_column() + kGateBand));
    }
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    keep_order();  // One strip at a time: more would need more registers.
  }
}

}  // namespace aiter_like::gemm

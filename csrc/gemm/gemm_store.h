// SPDX-License-Identifier: MIT
// The end of a matrix product (gemm_body.h): sums of waves and of splits, finishes, and stores to out.
#pragma once

#include "aiter_like/tile/convert.h"
#include "aiter_like/tile/fence.h"
#include "aiter_like/tile/global.h"
#include "gemm_shape.h"

namespace aiter_like::gemm {

/// Adds the sums of the waves of a part up in its first wave, in the order of the waves.
template <class Shape>
__device__ void add_waves(typename Shape::Sums& sums, const WavePlace<Shape>& wave, typename Shape::WaveSums& lds) {
  const auto piece = [&](int depth, int strip, int p) -> typename Shape::Sums::Piece& {
    return lds.pieces[(depth - 1) * Shape::kParts + wave.part][strip * Shape::Sums::kPieces + p][lane_index()];
  };
  const auto each = [&](auto use) {
#pragma unroll
    for (int s = 0; s < Shape::Sums::kStrips; ++s) {
#pragma unroll
      for (int p = 0; p < Shape::Sums::kPieces; ++p) use(s, p);
    }
  };
  if (wave.depth > 0) each([&](int s, int p) { piece(wave.depth, s, p) = sums.pieces[s][p]; });
  workgroup_barrier();
  if (wave.depth > 0) return;
#pragma unroll
  for (int depth = 1; depth < Shape::kWavesK; ++depth)
    each([&](int s, int p) { sums.pieces[s][p] += piece(depth, s, p); });
}

constexpr int kSumThreads = 256, kSumColumns = 4;  // neighbours in a row of out that one lane has

/// The memory for the sums of splits: [splits, rows, columns], columns a multiple of 4; a batch has one after another.
template <class Sum>
struct Partials {
  Sum* data;
  int64_t rows, columns;

  template <int kSplits>
  __device__ Partials of_matrix(int64_t matrix) const {
    return {data + matrix * kSplits * rows * columns, rows, columns};
  }

  __device__ Sum* at(int64_t split, int64_t row, int64_t column) const {
    return data + (split * rows + row) * columns + column;
  }
};

/// The place of a lane's runs of kSumColumns neighbours in a row of out, in a part of COLUMNS columns: neighbouring
/// lanes have neighbouring runs, so that they write whole lines of memory.
template <int COLUMNS>
struct RunPlace {
  static constexpr int kRuns = COLUMNS / kSumColumns, kRowsAtOnce = kWaveSize / kRuns;  // rows of all lanes
  static_assert(kWaveSize % kRuns == 0, "whole rows");
  int row = lane_index() / kRuns, column = lane_index() % kRuns * kSumColumns;
};

/// Strip `s` of sums to `strip` in LDS, where this wave reads it by rows.
template <class Sums, class Strip>
__device__ void write_strip(const Sums& sums, int s, Strip& strip) {
  using Layout = typename Sums::Layout;
  using Run = Vec<typename Sums::Element, kSumColumns>;
  static_assert(Layout::kSpan == kSumColumns && Sums::kPieceElements % kSumColumns == 0, "whole runs");
#pragma unroll
  for (int e = 0; e < Sums::kPerStrip; e += kSumColumns) {
    Run run;
#pragma unroll
    for (int i = 0; i < kSumColumns; ++i)
      run[i] = sums.pieces[s][e / Sums::kPieceElements][e % Sums::kPieceElements + i];
    strip.template at<Run>(Layout::owner(), Layout::depth(e) * static_cast<int>(sizeof(run[0]))) = run;
  }
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");  // A wave's accesses to LDS stay in order.
}

/// use(row, sums) for the runs of this lane, of which `row` is that of the wave's first lane; strip by strip through
/// `strip` in LDS.
template <class Sums, class Strip, class Use>
__device__ void each_run(const Sums& sums, Strip& strip, Use use) {
  using Layout = typename Sums::Layout;
  using Run = Vec<typename Sums::Element, kSumColumns>;
  using Place = RunPlace<Sums::kRows>;
  static_assert(Layout::kWidth % Place::kRowsAtOnce == 0, "whole rows");
  const Place place;
#pragma unroll
  for (int s = 0; s < Sums::kStrips; ++s) {
    write_strip(sums, s, strip);
#pragma unroll
    for (int row = 0; row < Layout::kWidth; row += Place::kRowsAtOnce) {
      // The same sum, of which the compiler sees what the swizzle makes of it: few addresses and constants.
      const int near = (place.row | row % 8) + row / 8 * 8;
      const Run& stored = strip.template at<Run>(near, place.column * static_cast<int>(sizeof(Run) / kSumColumns));
      Run run;
#pragma unroll
      for (int i = 0; i < kSumColumns; ++i) run[i] = stored[i];  // A copy to memory as a whole would be less aligned.
      use(s * Layout::kWidth + row, run);
    }
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    keep_order();  // One strip at a time: more would need more registers.
  }
}

/// Writes the sums of a wave to `partials` (kSplits > 1) or finished to `out`, whose row and column are the same as
/// those of `wave`. `out` is a matrix view, or has `sizes` and window() as one has. What stands over an edge is
/// finished as its neighbour inside is, and not written: no branch keeps the loads of a finish apart.
template <class Shape, class Sums, class Out, class Finish>
__device__ void store_part(const Sums& sums, const WavePlace<Shape>& wave, int64_t split, const Out& out,
                           const Partials<typename Shape::Sum>& partials, Finish finish,
                           typename Shape::WaveSums& lds) {
  auto& strip = lds.strips[wave.part];
  const RunPlace<Shape::kWaveN> place;
  const int64_t row = wave.row() + place.row, column = wave.column() + place.column;
  if constexpr (Shape::kSplits > 1) {
    each_run(sums, strip, [&](int m, const auto& run) {
      if (row + m < partials.rows && column < partials.columns)
        __builtin_memcpy(partials.at(split, row + m, column), &run, sizeof(run));
    });
  } else {
    const auto window = out.template window<Shape::kWaveM, Shape::kWaveN>(wave.row(), wave.column());
    using Element = std::remove_pointer_t<decltype(window.data)>;
    if (window.rows <= 0 || window.columns <= 0) return;
    const BufferDescriptor buffer = window.descriptor();
    const uint32_t offset = window.offset(place.row, place.column);
    const int64_t near_column = column < out.sizes[1] ? column : out.sizes[1] - kSumColumns;
    each_run(sums, strip, [&](int m, const auto& run) {
      const int64_t near_row = row + m < out.sizes[0] ? row + m : out.sizes[0] - 1;
      float values[kSumColumns];
#pragma unroll
      for (int i = 0; i < kSumColumns; ++i) values[i] = finish(run[i], near_row, near_column + i);
      store_words(buffer, window.has_row(place.row + m) ? offset + m * window.row_bytes : kOutOfRange,
                  rounded<Element>(values));
    });
  }
}

/// Ends a tile with the sums of a wave: adds up the waves along the depth; the first one of each part writes them, like
/// store_part.
template <class Shape, class Sums, class Out, class Finish>
__device__ void store_sums(Sums& sums, const WavePlace<Shape>& wave, int64_t split, const Out& out,
                           const Partials<typename Shape::Sum>& partials, Finish finish,
                           typename Shape::WaveSums& lds) {
  if constexpr (Shape::kWavesK > 1) {
    add_waves<Shape>(sums, wave, lds);
    if (wave.depth > 0) return;
  }
  store_part<Shape>(sums, wave, split, out, partials, finish, lds);
}

/// The partial sums of kSumColumns elements added up, in the order of the splits: each kApart-th from `first` on.
template <int kSplits, int kApart, class Sum>
__device__ Vec<Sum, kSumColumns> summed(const Partials<Sum>& partials, int first, int64_t row, int64_t column) {
  Vec<Sum, kSumColumns> sum{};
  for (int split = 0; split < kSplits; ++split) {
    Vec<Sum, kSumColumns> part;
    __builtin_memcpy(&part, partials.at(first + split * kApart, row, column), sizeof(part));
#pragma unroll
    for (int i = 0; i < kSumColumns; ++i) sum[i] += part[i];
  }
  return sum;
}

/// Writes to `out` what finished(values, row, column) makes of kSumColumns elements.
template <class Sum, class Out, class Finished>
__device__ void store_finished(const Partials<Sum>& partials, const MatrixView<Out>& out, uint32_t workgroup,
                               Finished finished) {
  const int64_t size = partials.rows * partials.columns;
  const int64_t index = (int64_t{workgroup} * kSumThreads + thread_index()) * kSumColumns;
  if (index >= size) return;
  const int64_t row = index / partials.columns, column = index % partials.columns;
  float values[kSumColumns];
  finished(values, row, column);
  const auto result = rounded<Out>(values);
  __builtin_memcpy(out.data + row * out.strides[0] + column, &result, sizeof(result));
}

/// Adds the partial sums of kSumColumns elements up, in the order of the splits, and finishes them.
template <int kSplits, class Sum, class Out, class Finish>
__device__ void sum_partials(const Partials<Sum>& partials, const MatrixView<Out>& out, uint32_t workgroup,
                             Finish finish) {
  store_finished(partials, out, workgroup, [&](float (&values)[kSumColumns], int64_t row, int64_t column) {
    const auto sum = summed<kSplits, 1>(partials, 0, row, column);
#pragma unroll
    for (int i = 0; i < kSumColumns; ++i) values[i] = finish(sum[i], row, column + i);
  });
}

/// A vector for each matrix of a batch, or group.
template <class T>
struct VectorPerMatrix {
  const T* data;
  int64_t stride;

  __device__ const T* at(int64_t matrix) const { return data + matrix * stride; }
};

/// An element at an address of any alignment.
template <class T>
__device__ float element_of(const T* data) {
  T value;
  __builtin_memcpy(&value, data, sizeof(T));
  return to_float(value);
}

/// A finish: row_scale · x · column_scale + bias, each where the build has it. A Config has kHasScales, kHasBias and
/// BiasElement.
template <class Config>
struct ScaleAndBias {
  const float *row_scale, *column_scale;
  const typename Config::BiasElement* bias;

  template <class Sum>
  __device__ float operator()(Sum x, int64_t row, int64_t column) const {
    float y = static_cast<float>(x);
    if constexpr (Config::kHasScales) y = y * row_scale[row] * column_scale[column];
    if constexpr (Config::kHasBias) y += element_of(bias + column);
    return y;
  }
};

}  // namespace aiter_like::gemm

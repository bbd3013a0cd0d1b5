// SPDX-License-Identifier: MIT
// The parts of gemm_body.h for a product whose columns are gates and, in the second half, what they let through: a tile
// has two windows of b, half as many columns of each, and a lane both sums of an element of out.
#pragma once

#include "gemm_body.h"

namespace aiter_like::gemm {

/// Like ThroughLds, for b [2 columns of out, depth]: half of BLOCK rows, and of the ROWS of a wave, are gates, from
/// `first_row` / 2 on.
template <class Shape, int BLOCK, int ROWS>
class GatedThroughLds {
 public:
  using Element = typename Shape::Element;
  using Half = ThroughLds<Shape, BLOCK / 2, ROWS / 2>;
  struct Memory {
    typename Half::Memory gate, up;
  };
  using Slice = RegTile<Element, ROWS, Shape::kSlice, OperandByRow<Shape::kRun>>;

  __device__ GatedThroughLds(const MatrixView<const Element>& matrix, int64_t first_row, int wave_row, int wave_depth,
                             int64_t end)
      : gate_(half_of(matrix, 0), first_row / 2, wave_row / 2, wave_depth, end),
        up_(half_of(matrix, matrix.sizes[0] / 2), first_row / 2, wave_row / 2, wave_depth, end) {}

  __device__ void fetch(int64_t k) {
    gate_.fetch(k);
    up_.fetch(k);
  }
  __device__ void publish(Memory& lds) {
    gate_.publish(lds.gate);
    up_.publish(lds.up);
  }
  /// The gates' rows, then the others.
  __device__ Slice slice(const Memory& lds, int s) const {
    const auto gate = gate_.slice(lds.gate, s), up = up_.slice(lds.up, s);
    constexpr int kStrips = Slice::kStrips / 2;
    Slice result;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
      for (int p = 0; p < Slice::kPieces; ++p) {
        result.pieces[strip][p] = gate.pieces[strip][p];
        result.pieces[kStrips + strip][p] = up.pieces[strip][p];
      }
    }
    return result;
  }

 private:
  Half gate_, up_;

  __device__ static MatrixView<const Element> half_of(const MatrixView<const Element>& matrix, int64_t row) {
    return {matrix.data + row * matrix.strides[0], {matrix.sizes[0] / 2, matrix.sizes[1]}, {matrix.strides[0], 1}};
  }
};

/// The plain loop, for gates and what they let through.
template <class Shape>
struct GatedLoop {
  using Matrix = MatrixView<const typename Shape::Element>;
  using Left = ThroughLds<Shape, Shape::kBlockM, Shape::kWaveM>;
  using Right = GatedThroughLds<Shape, Shape::kBlockN, Shape::kWaveN>;
  using Memory = gemm::Memory<Shape, Left, Right>;

  __device__ __attribute__((always_inline)) static typename Shape::Sums multiply(const Matrix& a, const Matrix& b,
                                                                                 const WavePlace<Shape>& wave,
                                                                                 Span span, Memory& lds) {
    Left left(a, wave.first_row, wave.tile_row, wave.depth, span.end);
    Right right(b, wave.first_column, wave.tile_column, wave.depth, span.end);
    AddProducts accumulate;
    return gemm::multiply<Shape>(left, right, accumulate, span, lds);
  }
};

/// The half of a tile that is left when gate and up have met.
template <class Shape>
struct HalfOf : Shape {
  static constexpr int kBlockN = Shape::kBlockN / 2, kWaveN = Shape::kWaveN / 2;
};

/// Like store_sums, for `out` with half as many columns as the tile has rows of b. finish.gated(gate, up, column) lets
/// the sums of an element meet, finish.last(x, row, column) follows. The partial sums of number 2 split are those of
/// the gates.
template <class Shape, class Out, class Finish>
__device__ void store_gated_sums(typename Shape::Sums& sums, TilePlace tile, int64_t split, const MatrixView<Out>& out,
                                 const Partials<typename Shape::Sum>& partials, Finish finish,
                                 typename Shape::WaveSums& lds) {
  if constexpr (Shape::kWavesK > 1) {
    const WavePlace<Shape> wave(tile);
    add_waves<Shape>(sums, wave, lds);
    if (wave.depth > 0) return;
  }
  using Half = RegTile<typename Shape::Sum, Shape::kWaveN / 2, Shape::kWaveM, Product<>>;
  Half gate, up;
#pragma unroll
  for (int s = 0; s < Half::kStrips; ++s) {
#pragma unroll
    for (int p = 0; p < Half::kPieces; ++p) {
      gate.pieces[s][p] = sums.pieces[s][p];
      up.pieces[s][p] = sums.pieces[s][Half::kPieces + p];
    }
  }
  const WavePlace<HalfOf<Shape>> place(tile);
  const auto last = [&](float x, int64_t row, int64_t column) { return finish.last(x, row, column); };
  if constexpr (Shape::kSplits > 1) {
    store_part<HalfOf<Shape>>(gate, place, 2 * split, out, partials, last, lds);
    store_part<HalfOf<Shape>>(up, place, 2 * split + 1, out, partials, last, lds);
  } else {
#pragma unroll
    for (int e = 0; e < Half::kPerStrip; ++e) {
      const int64_t column = place.column() + Half::row(0, e), near = column < out.sizes[1] ? column : out.sizes[1] - 1;
#pragma unroll
      for (int s = 0; s < Half::kStrips; ++s) gate.set(s, e, finish.gated(gate.get(s, e), up.get(s, e), near));
    }
    store_part<HalfOf<Shape>>(gate, place, split, out, partials, last, lds);
  }
}

/// Like sum_partials, for what store_gated_sums left.
template <int kSplits, class Sum, class Out, class Finish>
__device__ void sum_gated_partials(const Partials<Sum>& partials, const MatrixView<Out>& out, uint32_t workgroup,
                                   Finish finish) {
  store_finished(partials, out, workgroup, [&](float (&values)[kSumColumns], int64_t row, int64_t column) {
    const auto gate = summed<kSplits, 2>(partials, 0, row, column), up = summed<kSplits, 2>(partials, 1, row, column);
#pragma unroll
    for (int i = 0; i < kSumColumns; ++i)
      values[i] = finish.last(finish.gated(gate[i], up[i], column + i), row, column + i);
  });
}

}  // namespace aiter_like::gemm

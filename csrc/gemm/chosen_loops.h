// SPDX-License-Identifier: MIT
// The loops of gemm_pipeline.h and gemm_scaled_pipeline.h for rows of both operands that functions choose. Where a row
// begins does not change in a loop: it costs registers, no instructions.
//
//   rows(i)      the row of a, for row i of the tile; a negative one means none, which reads as zeros
//   columns(i)   the row of b, for column i of the tile: RowsInOrder, or another one that has no gaps
#pragma once

#include "chosen_rows.h"
#include "gemm_scaled_pipeline.h"

namespace aiter_like::gemm {

/// An operand of the plain loop: b in the rows that `columns` chooses, BAND as in MainLoop.
template <class Shape, int BAND>
struct ChosenColumns {
  using Right = std::conditional_t<(BAND > 0), Preshuffled<Shape, Shape::kWaveN, BAND ? BAND : 16>,
                                   ChosenRows<Shape, Shape::kBlockN, Shape::kWaveN>>;
  template <class Columns>
  __device__ static Right of(const MatrixView<const typename Shape::Element>& b, const Columns& columns,
                             const WavePlace<Shape>& wave, Span span) {
    return Right(b, columns, wave.tile_column, wave.depth, span.end);
  }
};

/// Like MainLoop. Each operand lies within 2^31 bytes.
template <class Shape, int BAND, bool PIPELINED = MainLoop<Shape, BAND>::kIsPipelined>
struct ChosenLoop {
  using Base = MainLoop<Shape, BAND>;
  using Memory = typename Base::Memory;
  using Matrix = typename Base::Matrix;
  static constexpr int kWavesPerSimd = 0;  // as many as its registers allow

  template <class Rows, class Columns>
  __device__ __attribute__((always_inline)) static auto multiply(const Matrix& a, const Rows& rows, const Matrix& b,
                                                                 const Columns& columns, const WavePlace<Shape>& wave,
                                                                 Span span, Memory& lds) {
    typename Base::Loop::Sums sums;
    typename Base::Left left(a, rows, wave.tile_row, span);
    typename Base::Right right(b, columns, wave.tile_column, span);
    Base::Loop::run(sums, left, right, span, lds.operands);
    return sums;
  }
};

template <class Shape, int BAND>
struct ChosenLoop<Shape, BAND, false> {
  using Matrix = MatrixView<const typename Shape::Element>;
  using Left = ChosenRows<Shape, Shape::kBlockM, Shape::kWaveM>;
  using Right = typename ChosenColumns<Shape, BAND>::Right;
  using Memory = gemm::Memory<Shape, Left, Right>;
  static constexpr int kWavesPerSimd = 0;

  template <class Rows, class Columns>
  __device__ __attribute__((always_inline)) static auto multiply(const Matrix& a, const Rows& rows, const Matrix& b,
                                                                 const Columns& columns, const WavePlace<Shape>& wave,
                                                                 Span span, Memory& lds) {
    Left left(a, rows, wave.tile_row, wave.depth, span.end);
    Right right = ChosenColumns<Shape, BAND>::of(b, columns, wave, span);
    AddProducts accumulate;
    return gemm::multiply<Shape>(left, right, accumulate, span, lds);
  }
};

/// Scales of blocks, for rows that are chosen as those of the operands.
struct ScalesOfBlocks {
  ScaleMatrix a, b;
};

/// Like ScaledLoop. Each operand, and the scales of a, lie within 2^31 bytes. HALVES 2: columns are those of GateRows.
template <class Shape, int BAND, int HALVES, bool PIPELINED = ScaledLoop<Shape, BAND>::kIsPipelined>
struct ChosenScaledLoop {
  using Base = ScaledLoop<Shape, BAND>;
  using Loop = ScaledPipeline<Shape, typename Base::Left, typename Base::Right, HALVES>;
  union Memory {
    typename Loop::Memory operands;
    typename Shape::WaveSums sums;
  };
  using Matrix = typename Base::Matrix;
  static constexpr int kWavesPerSimd = Base::kWavesPerSimd;

  template <class Rows, class Columns>
  __device__ __attribute__((always_inline)) static auto multiply(const Matrix& a, const Rows& rows, const Matrix& b,
                                                                 const Columns& columns, const ScalesOfBlocks& scales,
                                                                 const WavePlace<Shape>& wave, Span span, Memory& lds) {
    typename Loop::Sums sums;
    typename Base::Left left(a, rows, wave.tile_row, span);
    typename Base::Right right(b, columns, wave.tile_column, span);
    typename Loop::Scales ahead(scales.a, a.sizes[0], rows, scales.b, columns, wave, span);
    Loop::run(sums, left, right, ahead, span, lds.operands);
    return sums;
  }
};

template <class Shape, int BAND, int HALVES>
struct ChosenScaledLoop<Shape, BAND, HALVES, false> {
  using Matrix = MatrixView<const typename Shape::Element>;
  using Left = ChosenRows<Shape, Shape::kBlockM, Shape::kWaveM>;
  using Right = typename ChosenColumns<Shape, BAND>::Right;
  using Memory = gemm::Memory<Shape, Left, Right>;
  static constexpr int kWavesPerSimd = ScaledLoop<Shape, BAND>::kWavesPerSimd;

  template <class Rows, class Columns>
  __device__ __attribute__((always_inline)) static auto multiply(const Matrix& a, const Rows& rows, const Matrix& b,
                                                                 const Columns& columns, const ScalesOfBlocks& scales,
                                                                 const WavePlace<Shape>& wave, Span span, Memory& lds) {
    Left left(a, rows, wave.tile_row, wave.depth, span.end);
    Right right = ChosenColumns<Shape, BAND>::of(b, columns, wave, span);
    AddScaledBlocks<Shape, HALVES> accumulate(scales.a, a.sizes[0], rows, scales.b, columns, wave, a.sizes[1]);
    return gemm::multiply<Shape>(left, right, accumulate, span, lds);
  }
};

}  // namespace aiter_like::gemm

// SPDX-License-Identifier: MIT
// Operands of a matrix product (gemm_body.h): through LDS as they stand in memory, or shuffled to registers.
#pragma once

#include "aiter_like/tile/global.h"
#include "gemm_shape.h"

namespace aiter_like::gemm {

/// Part `span` of the depth of a matrix that lies within 2^31 bytes, of which rows in any order are read.
struct AnyRows {
  BufferDescriptor buffer;
  uint32_t row_bytes;

  template <class T>
  __device__ AnyRows(const MatrixView<T>& matrix, Span span)
      : row_bytes(static_cast<uint32_t>(matrix.strides[0] * sizeof(T))) {
    const auto above = static_cast<uint32_t>(matrix.sizes[0] - 1);
    const auto used_bytes = static_cast<uint32_t>((span.end - span.first) * sizeof(T));
    buffer = make_buffer(matrix.data + span.first, matrix.sizes[0] > 0 ? above * row_bytes + used_bytes : 0);
  }
  /// The beginning of a row; a negative one means none, which reads as zeros.
  __device__ uint32_t offset(int64_t row) const {
    return row < 0 ? kOutOfRange : static_cast<uint32_t>(row) * row_bytes;
  }
};

/// The rows of a matrix from one on: operator()(row) is that of a tile's row, the last one past the end.
struct RowsInOrder {
  int64_t first, count;
  __device__ int64_t operator()(int row) const { return first + row < count ? first + row : count - 1; }
};

/// An operand [rows, depth] that goes through LDS as it stands in memory: BLOCK rows from `first_row` on, of which a
/// wave has ROWS from `wave_row` on. While a step is multiplied the next one travels in registers.
template <class Shape, int BLOCK, int ROWS>
class ThroughLds {
 public:
  using Element = typename Shape::Element;
  using Memory = LdsTile<Element, BLOCK, Shape::kDepth, SwizzledByRow>;
  using Slice = RegTile<Element, ROWS, Shape::kSlice, OperandByRow<Shape::kRun>>;

  /// Beyond `end` the depth reads as zero.
  __device__ ThroughLds(const MatrixView<const Element>& matrix, int64_t first_row, int wave_row, int wave_depth,
                        int64_t end)
      : matrix_{matrix.data, {matrix.sizes[0], end}, {matrix.strides[0], 1}},
        first_row_(first_row),
        wave_row_(wave_row),
        wave_depth_(wave_depth * Shape::kWaveDepth) {}

  /// Starts the loads of the step at `k`.
  __device__ void fetch(int64_t k) {
    staged_.load(TileWindow<const Element, BLOCK, Shape::kDepth>(matrix_, first_row_, k));
  }
  /// Makes the fetched step the current one; a barrier follows.
  __device__ void publish(Memory& lds) { staged_.store(lds); }
  /// Slice `s` of the current step, for this wave: all of its rows, or PART of them from `row` on.
  template <int PART = ROWS>
  __device__ auto slice(const Memory& lds, int s, int row = 0) const {
    using Part = RegTile<Element, PART, Shape::kSlice, typename Slice::Layout>;
    return load<Part>(lds, wave_row_ + row, wave_depth_ + s * Shape::kSlice);
  }

 private:
  MatrixView<const Element> matrix_;
  int64_t first_row_;
  int wave_row_, wave_depth_;
  Staged<Memory, Shape::kThreads> staged_;
};

/// Rows in bands of BAND, each cut into packs of 16 bytes that follow one another row by row (ops/layout/
/// shuffle_weight.py, layout (BAND, 16)): the order in which the lanes of a wave take them, so that they go straight to
/// registers. ROWS of them from `first_row` on, for one wave.
template <class Shape, int ROWS, int BAND = 16>
class Preshuffled {
 public:
  using Element = typename Shape::Element;
  struct Memory {};
  using Slice = RegTile<Element, ROWS, Shape::kSlice, OperandByRow<Shape::kRun>>;
  static constexpr int kStripRows = Slice::Layout::kWidth, kBandStrips = BAND / kStripRows;
  static_assert(BAND % kStripRows == 0 && ROWS % BAND == 0, "a wave has whole bands of whole strips");

  /// `matrix` [rows, depth] with whole bands, stored without gaps; beyond `end` the depth reads as zero.
  __device__ Preshuffled(const MatrixView<const Element>& matrix, int64_t first_row, int wave_depth, int64_t end)
      : end_(end), wave_depth_(wave_depth * Shape::kWaveDepth) {
    const int64_t left = matrix.sizes[0] - first_row, rows = left < ROWS ? left : ROWS;
    const auto band_bytes = band_bytes_of(matrix);
    buffer_ = make_buffer(matrix.data + first_row * matrix.sizes[1],
                          rows > 0 ? static_cast<uint32_t>(rows / BAND * band_bytes) : 0);
#pragma unroll
    for (int strip = 0; strip < Slice::kStrips; ++strip)
      rows_[strip] = strip / kBandStrips * band_bytes + strip % kBandStrips * kStripRows * sizeof(Chunk) +
                     Slice::Layout::owner() * sizeof(Chunk);
  }
  /// The rows(i) of the matrix, which lies within 2^31 bytes, for rows i of the tile from `wave_row` on.
  template <class Rows>
  __device__ Preshuffled(const MatrixView<const Element>& matrix, const Rows& rows, int wave_row, int wave_depth,
                         int64_t end)
      : end_(end), wave_depth_(wave_depth * Shape::kWaveDepth) {
    const auto band_bytes = band_bytes_of(matrix);
    buffer_ = make_buffer(matrix.data, static_cast<uint32_t>(matrix.sizes[0] / BAND * band_bytes));
#pragma unroll
    for (int strip = 0; strip < Slice::kStrips; ++strip) {
      const auto row = static_cast<uint32_t>(rows(wave_row + Slice::Layout::owned(strip)));
      rows_[strip] = row / BAND * band_bytes + row % BAND * sizeof(Chunk);
    }
  }

  __device__ void fetch(int64_t k) {
#pragma unroll
    for (int s = 0; s < Shape::kSlices; ++s) {
      const int64_t depth = k + wave_depth_ + s * Shape::kSlice + Slice::Layout::first_depth();
      const uint32_t offset =
          depth < end_ ? static_cast<uint32_t>((depth * BAND) * sizeof(Element)) : kOutOfRange;
#pragma unroll
      for (int strip = 0; strip < Slice::kStrips; ++strip)
        next_[s][strip] = load_chunk(buffer_, offset + rows_[strip]);
    }
  }
  __device__ void publish(Memory&) {
#pragma unroll
    for (int s = 0; s < Shape::kSlices; ++s) {
#pragma unroll
      for (int strip = 0; strip < Slice::kStrips; ++strip) {
        slices_[s].pieces[strip][0] = next_[s][strip].lo;
        slices_[s].pieces[strip][1] = next_[s][strip].hi;
      }
    }
  }
  __device__ const Slice& slice(const Memory&, int s) const { return slices_[s]; }

 private:
  __device__ static uint32_t band_bytes_of(const MatrixView<const Element>& matrix) {
    return static_cast<uint32_t>(BAND * matrix.sizes[1] * sizeof(Element));
  }

  BufferDescriptor buffer_;
  uint32_t rows_[Slice::kStrips];  // the beginning of this lane's row of a strip
  int64_t end_;
  int wave_depth_;
  Chunk next_[Shape::kSlices][Slice::kStrips];
  Slice slices_[Shape::kSlices];
};

}  // namespace aiter_like::gemm

// SPDX-License-Identifier: MIT
// Rows that an index chooses: an operand policy that gathers them on the way to LDS, and a view of out that leaves
// those without a row out.
#pragma once

#include "gemm_body.h"

namespace aiter_like::gemm {

/// The 32 bits of `lane`, another one for each lane.
template <class T>
__device__ inline T from_lane(T value, int lane) {
  static_assert(sizeof(T) == 4, "a register");
  return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(lane * 4, __builtin_bit_cast(int, value)));
}

/// For `count` rows the row of a matrix that each stands for; one that the matrix does not have means none.
struct RowIndex {
  const int32_t* rows;
  int64_t count;
  int64_t matrix_rows;

  __device__ bool has(int64_t row) const { return row < count && static_cast<uint32_t>(rows[row]) < matrix_rows; }
  /// The row of the matrix, or -1.
  __device__ int64_t at(int64_t row) const { return has(row) ? rows[row] : -1; }
};

/// Like ThroughLds, with the rows(i) of `matrix` for rows i of the tile; negative ones, which are none, are zeros. The
/// matrix lies within 2^31 bytes.
template <class Shape, int BLOCK, int ROWS>
class ChosenRows {
 public:
  using Element = typename Shape::Element;
  using Memory = LdsTile<Element, BLOCK, Shape::kDepth, SwizzledByRow>;
  using Slice = RegTile<Element, ROWS, Shape::kSlice, OperandByRow<Shape::kRun>>;

  template <class Rows>
  __device__ ChosenRows(const MatrixView<const Element>& matrix, const Rows& rows, int wave_row, int wave_depth,
                        int64_t end)
      : end_(end), wave_row_(wave_row), wave_depth_(wave_depth * Shape::kWaveDepth) {
    const AnyRows any(matrix, {0, end});
    buffer_ = any.buffer;
#pragma unroll
    for (int i = 0; i < Staging::kCount; ++i)
      offsets_[i] = Staging::is_inside(i) ? any.offset(rows(Staging::row(i))) : kOutOfRange;
  }

  __device__ void fetch(int64_t k) {
#pragma unroll
    for (int i = 0; i < Staging::kCount; ++i) {
      const int64_t column = k + Staging::column(i);
      const auto byte = static_cast<uint32_t>(column * sizeof(Element));
      if (Staging::is_inside(i))
        staged_.chunks[i] = load_chunk(buffer_, column < end_ ? offsets_[i] + byte : kOutOfRange);
    }
  }
  __device__ void publish(Memory& lds) { staged_.store(lds); }
  template <int PART = ROWS>
  __device__ auto slice(const Memory& lds, int s, int row = 0) const {
    using Part = RegTile<Element, PART, Shape::kSlice, typename Slice::Layout>;
    return load<Part>(lds, wave_row_ + row, wave_depth_ + s * Shape::kSlice);
  }

 private:
  using Staging = Staged<Memory, Shape::kThreads>;
  BufferDescriptor buffer_;
  uint32_t offsets_[Staging::kCount];
  int64_t end_;
  int wave_row_, wave_depth_;
  Staging staged_;
};

/// A matrix of which only the rows are written that the index has.
template <class T>
struct ChosenRowsView : MatrixView<T> {
  RowIndex index;

  template <int ROWS, int COLUMNS>
  struct Window : TileWindow<T, ROWS, COLUMNS> {
    RowIndex index;
    int64_t first_row;
    __device__ bool has_row(int row) const { return row < this->rows && index.has(first_row + row); }
  };
  template <int ROWS, int COLUMNS>
  __device__ Window<ROWS, COLUMNS> window(int64_t first_row, int64_t first_column) const {
    return {{*this, first_row, first_column}, index, first_row};
  }
};

}  // namespace aiter_like::gemm

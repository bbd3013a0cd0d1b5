// SPDX-License-Identifier: MIT
// Tensors and tiles in global memory. A view has run-time sizes and strides; a window is a tile of a matrix view that
// may stand over its edges: what lies outside reads as zero and is not written.
//
// Reads go through a buffer descriptor, whose bounds check costs nothing: its base is the window's first row, so
// offsets in a window are 32 bits while the tensor may be of any size.
#pragma once

#include "aiter_like/tile/lds_tile.h"

namespace aiter_like::tile {

template <class T, int ROWS, int COLUMNS>
struct TileWindow;

/// RANK dimensions; the last one is contiguous.
template <class T, int RANK>
struct GlobalView {
  T* data;
  int64_t sizes[RANK];
  int64_t strides[RANK];  // elements

  /// The view of dimension DIMENSION's entry `index`.
  template <int DIMENSION>
  __host__ __device__ GlobalView<T, RANK - 1> select(int64_t index) const {
    static_assert(0 <= DIMENSION && DIMENSION < RANK - 1, "the last dimension stays");
    GlobalView<T, RANK - 1> rest{data + index * strides[DIMENSION], {}, {}};
#pragma unroll
    for (int d = 0; d < RANK - 1; ++d) {
      rest.sizes[d] = sizes[d < DIMENSION ? d : d + 1];
      rest.strides[d] = strides[d < DIMENSION ? d : d + 1];
    }
    return rest;
  }

  /// The view of `count` entries of the first dimension, from `first` on.
  __host__ __device__ GlobalView slice(int64_t first, int64_t count) const {
    GlobalView part = *this;
    part.data += first * strides[0];
    part.sizes[0] = count;
    return part;
  }

  /// The window of ROWS × COLUMNS of a matrix from a row and a column on.
  template <int ROWS, int COLUMNS>
  __device__ TileWindow<T, ROWS, COLUMNS> window(int64_t first_row, int64_t first_column) const {
    return {*this, first_row, first_column};
  }
};

template <class T>
using MatrixView = GlobalView<T, 2>;

using BufferDescriptor = __amdgpu_buffer_rsrc_t;

/// Raw buffer of `bytes` < 2^31 bytes: reads at byte offsets from there on give zero. Both are the same in all lanes;
/// readfirstlane, because clang 19 may compute such values in VGPRs all the same, where no descriptor can be.
__device__ inline BufferDescriptor make_buffer(const void* base, uint32_t bytes) {
  constexpr int kRawDwords = 0x00020000;  // DATA_FORMAT 32, no stride, no swizzle (CDNA3 ISA, buffer resource)
  const auto scalar = [](uint64_t half) { return static_cast<uint32_t>(__builtin_amdgcn_readfirstlane(half)); };
  const auto address = reinterpret_cast<uint64_t>(base);
  const uint64_t same = uint64_t{scalar(address >> 32)} << 32 | scalar(address & 0xFFFFFFFF);
  return __builtin_amdgcn_make_buffer_rsrc(reinterpret_cast<void*>(same), 0, static_cast<int>(scalar(bytes)),
                                           kRawDwords);
}

constexpr uint32_t kOutOfRange = 0x80000000u;  // an offset beyond every buffer

/// ROWS × COLUMNS elements from an element of the view on, or what of them is in the view. The view's rows do not
/// overlap, have whole 16-byte chunks of columns, and ROWS of them lie within 2^31 bytes. Chunks may start at any
/// element: gfx9 runs in unaligned access mode, where an aligned access is only faster.
template <class T, int ROWS, int COLUMNS>
struct TileWindow {
  static constexpr int kRows = ROWS, kColumns = COLUMNS;
  T* data;                  // the first row's and column's
  int rows, columns;        // inside the view; either may be negative
  uint32_t row_bytes;       // from row to row

  /// From row `first_row` on, the view's columns from the first on: at most COLUMNS.
  __device__ TileWindow(const MatrixView<T>& view, int64_t first_row)
      : TileWindow(view, first_row, 0, static_cast<int>(view.sizes[1])) {}
  /// From row `first_row` and column `first_column` on.
  __device__ TileWindow(const MatrixView<T>& view, int64_t first_row, int64_t first_column)
      : TileWindow(view, first_row, first_column, inside(view.sizes[1] - first_column, COLUMNS)) {}

  __device__ BufferDescriptor descriptor() const {
    const bool is_empty = rows <= 0 || columns <= 0;
    return make_buffer(data, is_empty ? 0 : (rows - 1) * row_bytes + static_cast<uint32_t>(columns * sizeof(T)));
  }
  /// Whether a row is there to be written.
  __device__ bool has_row(int row) const { return row < rows; }
  /// Byte offset for descriptor(); where the row lies past the end it is beyond the buffer by itself.
  __device__ uint32_t offset(int row, int column) const {
    return column < columns ? row * row_bytes + static_cast<uint32_t>(column * sizeof(T)) : kOutOfRange;
  }

 private:
  __device__ static int inside(int64_t left, int most) { return static_cast<int>(left < most ? left : most); }
  __device__ TileWindow(const MatrixView<T>& view, int64_t first_row, int64_t first_column, int columns)
      : data(view.data + first_row * view.strides[0] + first_column),
        rows(inside(view.sizes[0] - first_row, ROWS)),
        columns(columns),
        row_bytes(static_cast<uint32_t>(view.strides[0] * sizeof(T))) {}
};

/// 16 bytes at `offset` + `step`, which is the same in all lanes. Where `offset` alone is beyond the buffer there are
/// zeros.
__device__ inline Chunk load_chunk(BufferDescriptor buffer, uint32_t offset, uint32_t step = 0) {
  return __builtin_amdgcn_raw_buffer_load_b128(buffer, offset, step, 0);
}

/// Writes 8 or 16 bytes at `offset`; beyond the buffer nothing is written.
template <class VALUES>
__device__ inline void store_words(BufferDescriptor buffer, uint32_t offset, const VALUES& values) {
  static_assert(sizeof(VALUES) == 8 || sizeof(VALUES) == 16, "what one instruction writes");
  if constexpr (sizeof(VALUES) == 8)
    __builtin_amdgcn_raw_buffer_store_b64(__builtin_bit_cast(Fragment, values), buffer, offset, 0, 0);
  else
    __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(Chunk, values), buffer, offset, 0, 0);
}

__device__ inline float load_float(BufferDescriptor buffer, uint32_t offset) {
  return __builtin_bit_cast(float, __builtin_amdgcn_raw_buffer_load_b32(buffer, offset, 0, 0));
}

/// The operand by row at column `first_column` of the window: one 16-byte read per run.
template <class TILE, class WINDOW>
__device__ inline TILE load_global(const WINDOW& window, int first_column) {
  using Layout = typename TILE::Layout;
  static_assert(TILE::kOwnsRows && TILE::kRows == WINDOW::kRows, "an operand by row, of the window's rows");
  static_assert(Layout::kRun * sizeof(typename TILE::Element) == 16, "runs of 16 bytes");
  const BufferDescriptor buffer = window.descriptor();
  TILE tile;
#pragma unroll
  for (int s = 0; s < TILE::kStrips; ++s) {
#pragma unroll
    for (int r = 0; r < TILE::kPieces / 2; ++r) {
      const int column = first_column + Layout::depth(r * Layout::kRun);
      const Chunk chunk = load_chunk(buffer, window.offset(Layout::owned(s), column));
      tile.pieces[s][2 * r] = chunk.lo;
      tile.pieces[s][2 * r + 1] = chunk.hi;
    }
  }
  return tile;
}

/// Writes the transpose of a product: its column is the window's row, its rows from `first_column` on are columns. One
/// write per span, of 16 bytes where the product's left operand was read transposed from 16-bit elements. Rounds by
/// kMode; NaN becomes NaN.
template <Rounding kMode, class TILE, class WINDOW>
__device__ inline void store_transposed(const WINDOW& window, const TILE& tile, int first_column) {
  using Layout = typename TILE::Layout;
  using T = std::remove_pointer_t<decltype(window.data)>;
  static_assert(!TILE::kOwnsRows && TILE::kColumns == WINDOW::kRows, "a product, of the window's rows as columns");
  constexpr int kSpan = Layout::kSpan, kCount = kSpan * sizeof(T) > 16 ? 16 / sizeof(T) : kSpan;
#pragma unroll
  for (int s = 0; s < TILE::kStrips; ++s) {
    const int row = Layout::owned(s);
    if (!window.has_row(row)) continue;
    T* const destination = reinterpret_cast<T*>(reinterpret_cast<char*>(window.data) +
                                                static_cast<uint64_t>(row) * window.row_bytes);
#pragma unroll
    for (int e = 0; e < TILE::kPerStrip; e += kCount) {
      const int span = e / kSpan, place = e % kSpan;
      const int column = first_column + Layout::depth(kSpan * span) + place;
      if (column >= window.columns) continue;
      Vec<T, kCount> values;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        values[i] = from_float<T, kMode>(tile.get(s, Layout::element_at(span, place + i)));
      __builtin_memcpy(destination + column, &values, sizeof(values));
    }
  }
}

}  // namespace aiter_like::tile

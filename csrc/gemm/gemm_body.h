// SPDX-License-Identifier: MIT
// What a workgroup of a matrix product a · bᵀ does, composed from the tile library. An operator says where the operands
// come from, how products are added up and what happens to a sum; the loop between is the same.
//
// A workgroup computes kBlockM × kBlockN elements. Its waves are a grid of kWavesM × kWavesN parts of the tile and with
// kWavesK > 1 share the depth of each part: their sums meet in LDS at the end, in a fixed order. The sums are kept
// transposed, [columns of out, rows of out], so that a lane has neighbours of a row of out.
//
//   operand policies      ThroughLds (as it stands in memory), Preshuffled (straight to registers)
//   accumulate policies   AddProducts; others scale the products of a step first
//   a finish              float operator()(Sum x, int64_t row, int64_t column) makes an element of out of a sum
#pragma once

#include <type_traits>

#include "aiter_like/dtype.h"
#include "aiter_like/gpu.h"
#include "aiter_like/tile/fence.h"
#include "aiter_like/tile/global.h"
#include "aiter_like/tile/mma.h"
#include "aiter_like/tile/order.h"
#include "aiter_like/tile/staging.h"

namespace aiter_like::gemm {

using namespace tile;

/// A configuration, and the tiles that follow from it. A Config has
///   Element, Sum                       what is multiplied: bf16, f16, fp8, int8_t; what is added up: float, int32_t
///   kBlockM, kBlockN                   of out, for a workgroup
///   kWavesM, kWavesN, kWavesK          waves along the rows, the columns and the depth
///   kSplits                            workgroups that share the depth; above 1 a second kernel adds their sums up
template <class Config>
struct Shape : Config {
  using Element = typename Config::Element;
  using Sum = typename Config::Sum;
  static constexpr int kParts = Config::kWavesM * Config::kWavesN;
  static constexpr int kThreads = kParts * Config::kWavesK * kWaveSize;
  static constexpr int kWaveM = Config::kBlockM / Config::kWavesM, kWaveN = Config::kBlockN / Config::kWavesN;

  /// 16 bytes of each lane cover a slice of the depth; a row of a wave's tile in LDS is all 32 banks, two slices.
  static constexpr int kRun = 16 / sizeof(Element), kSlice = 4 * kRun, kSlices = 2, kWaveDepth = kSlices * kSlice;
  static constexpr int kDepth = kWaveDepth * Config::kWavesK;

  using Sums = RegTile<Sum, kWaveN, kWaveM, Product<>>;

  /// The sums of the waves that share a part with its first one, in LDS.
  struct WaveSums {
    static constexpr int kCount = Config::kWavesK > 1 ? Sums::kStrips * Sums::kPieces : 1;
    typename Sums::Piece pieces[Config::kWavesK > 1 ? (Config::kWavesK - 1) * kParts : 1][kCount][kWaveSize];
  };
};

/// What a workgroup has in LDS: the operands of a step, then the sums of the waves that share a part.
template <class Shape, class Left, class Right>
union Memory {
  struct {
    typename Left::Memory left;
    typename Right::Memory right;
  } operands;
  typename Shape::WaveSums sums;
};

/// The part of the tile and of a step's depth that a wave has, and where that is in out.
template <class Shape>
struct WavePlace {
  int part = wave_index() % Shape::kParts, depth = wave_index() / Shape::kParts;
  int tile_row = part / Shape::kWavesN * Shape::kWaveM, tile_column = part % Shape::kWavesN * Shape::kWaveN;
  int64_t first_row, first_column;  // of the workgroup's tile

  __device__ explicit WavePlace(TilePlace tile)
      : first_row(int64_t{tile.row} * Shape::kBlockM), first_column(int64_t{tile.column} * Shape::kBlockN) {}
  __device__ int64_t row() const { return first_row + tile_row; }
  __device__ int64_t column() const { return first_column + tile_column; }
};

/// The part of the depth that a workgroup has.
struct Span {
  int64_t first, end;
};
__device__ inline Span span_of(int64_t depth, int64_t split, int64_t split_depth) {
  const int64_t first = split * split_depth;
  return {first, depth - first < split_depth ? depth : first + split_depth};
}

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
  /// What was fetched becomes the current step; a barrier follows.
  __device__ void publish(Memory& lds) { staged_.store(lds); }
  /// Slice `s` of the current step, for this wave.
  __device__ Slice slice(const Memory& lds, int s) const {
    return load<Slice>(lds, wave_row_, wave_depth_ + s * Shape::kSlice);
  }

 private:
  MatrixView<const Element> matrix_;
  int64_t first_row_;
  int wave_row_, wave_depth_;
  Staged<Memory, Shape::kThreads> staged_;
};

/// Rows in bands of 16, each cut into packs of 16 bytes that follow one another row by row (ops/layout/
/// shuffle_weight.py, layout (16, 16)): the order in which the lanes of a wave take them, so that they go straight to
/// registers. ROWS of them from `first_row` on, for one wave.
template <class Shape, int ROWS>
class Preshuffled {
 public:
  using Element = typename Shape::Element;
  struct Memory {};
  using Slice = RegTile<Element, ROWS, Shape::kSlice, OperandByRow<Shape::kRun>>;
  static constexpr int kBand = 16;

  /// `matrix` [rows, depth] with whole bands, stored without gaps; beyond `end` the depth reads as zero.
  __device__ Preshuffled(const MatrixView<const Element>& matrix, int64_t first_row, int wave_depth, int64_t end)
      : end_(end), wave_depth_(wave_depth * Shape::kWaveDepth) {
    const int64_t left = matrix.sizes[0] - first_row, rows = left < ROWS ? left : ROWS;
    band_bytes_ = static_cast<uint32_t>(kBand * matrix.sizes[1] * sizeof(Element));
    buffer_ = make_buffer(matrix.data + first_row * matrix.sizes[1],
                          rows > 0 ? static_cast<uint32_t>(rows / kBand * band_bytes_) : 0);
  }

  __device__ void fetch(int64_t k) {
#pragma unroll
    for (int s = 0; s < Shape::kSlices; ++s) {
      const int64_t depth = k + wave_depth_ + s * Shape::kSlice + Slice::Layout::first_depth();
      const uint32_t offset = depth < end_ ? static_cast<uint32_t>((depth * kBand) * sizeof(Element)) +
                                                 Slice::Layout::owner() * sizeof(Chunk)
                                           : kOutOfRange;
#pragma unroll
      for (int strip = 0; strip < Slice::kStrips; ++strip)
        next_[s][strip] = load_chunk(buffer_, offset + strip * band_bytes_);
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
  BufferDescriptor buffer_;
  uint32_t band_bytes_;
  int64_t end_;
  int wave_depth_;
  Chunk next_[Shape::kSlices][Slice::kStrips];
  Slice slices_[Shape::kSlices];
};

/// Adds the products of a step to the sums as they are.
struct AddProducts {
  __device__ void fetch(int64_t) {}
  template <class Sums, class Products>
  __device__ void add(Sums& sums, Products products) {
    products(sums);
  }
};

/// b · aᵀ over a part of the depth, for this wave's part of the tile and share of each step. `accumulate` has
/// fetch(k), called with those of the operands, and add(sums, products), products(tile) being what adds the products of
/// the current step to a tile like the sums.
template <class Shape, class Left, class Right, class Accumulate>
__device__ typename Shape::Sums multiply(Left& left, Right& right, Accumulate& accumulate, Span span,
                                         Memory<Shape, Left, Right>& lds) {
  typename Shape::Sums sums;
  clear(sums);
  const auto fetch = [&](int64_t k) {
    left.fetch(k);
    right.fetch(k);
    accumulate.fetch(k);
  };
  if (span.first < span.end) fetch(span.first);
  for (int64_t k = span.first; k < span.end; k += Shape::kDepth) {
    left.publish(lds.operands.left);
    right.publish(lds.operands.right);
    workgroup_barrier();  // The step is there.
    Accumulate current = accumulate;
    if (k + Shape::kDepth < span.end) fetch(k + Shape::kDepth);
    current.add(sums, [&](typename Shape::Sums& tile) {
#pragma unroll
      for (int s = 0; s < Shape::kSlices; ++s) {
        const auto a_slice = left.slice(lds.operands.left, s);
        const auto b_slice = right.slice(lds.operands.right, s);
        mma<Form::ABt>(tile, b_slice, a_slice);
      }
    });
    workgroup_barrier();  // All waves have read it.
  }
  return sums;
}

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

/// Elements `element` … of strip `strip` of the sums, neighbours in a row of out.
template <class Sums>
__device__ Vec<typename Sums::Element, kSumColumns> run_of(const Sums& sums, int strip, int element) {
  static_assert(Sums::Layout::kSpan == kSumColumns && Sums::kPieceElements % kSumColumns == 0, "whole runs");
  Vec<typename Sums::Element, kSumColumns> run;
#pragma unroll
  for (int i = 0; i < kSumColumns; ++i)
    run[i] = sums.pieces[strip][element / Sums::kPieceElements][element % Sums::kPieceElements + i];
  return run;
}

/// Where the sums of a split go: [splits, rows, columns], columns a multiple of 4.
template <class Sum>
struct Partials {
  Sum* data;
  int64_t rows, columns;

  __device__ Sum* at(int64_t split, int64_t row, int64_t column) const {
    return data + (split * rows + row) * columns + column;
  }
};

/// Writes the sums of a wave, whose first element is (row, column) of out, as they are.
template <class Sums, class Sum>
__device__ void store_partials(const Partials<Sum>& partials, const Sums& sums, int64_t split, int64_t row,
                               int64_t column) {
#pragma unroll
  for (int s = 0; s < Sums::kStrips; ++s) {
    const int64_t m = row + Sums::Layout::owned(s);
    if (m >= partials.rows) continue;
#pragma unroll
    for (int e = 0; e < Sums::kPerStrip; e += kSumColumns) {
      const int64_t n = column + Sums::Layout::depth(e);
      const auto run = run_of(sums, s, e);
      if (n < partials.columns) __builtin_memcpy(partials.at(split, m, n), &run, sizeof(run));
    }
  }
}

/// Writes the sums of a wave, finished, to its window of out, whose first element is (row, column). What stands over the
/// edges is finished as its neighbour inside is, and not written: no branch keeps the loads of the finish apart.
template <class Window, class Sums, class Finish>
__device__ void store_finished(const Window& window, const Sums& sums, int64_t row, int64_t column, Finish finish) {
  using Out = std::remove_pointer_t<decltype(window.data)>;
  if (window.rows <= 0 || window.columns <= 0) return;
  const BufferDescriptor buffer = window.descriptor();
#pragma unroll
  for (int s = 0; s < Sums::kStrips; ++s) {
    const int m = Sums::Layout::owned(s), inside = m < window.rows ? m : window.rows - 1;
#pragma unroll
    for (int e = 0; e < Sums::kPerStrip; e += kSumColumns) {
      const int n = Sums::Layout::depth(e), first = n < window.columns ? n : window.columns - kSumColumns;
      const auto run = run_of(sums, s, e);
      Vec<Out, kSumColumns> values;
#pragma unroll
      for (int i = 0; i < kSumColumns; ++i)
        values[i] = from_float<Out>(finish(run[i], row + inside, column + first + i));
      store_words(buffer, window.offset(m, n), values);
    }
    keep_order();  // The values of one strip at a time: more would need more registers.
  }
}

/// Writes the sums of a wave to `partials` (kSplits > 1) or finished to `out`, whose row and column are the same as those
/// of `wave`.
template <class Shape, class Sums, class Out, class Finish>
__device__ void store_sums(const Sums& sums, const WavePlace<Shape>& wave, int64_t split,
                           const MatrixView<Out>& out, const Partials<typename Shape::Sum>& partials, Finish finish) {
  const int64_t row = wave.row(), column = wave.column();
  if constexpr (Shape::kSplits > 1)
    store_partials(partials, sums, split, row, column);
  else
    store_finished(TileWindow<Out, Shape::kWaveM, Shape::kWaveN>(out, row, column), sums, row, column, finish);
}

/// The same where waves share a part: those along the depth are added up, and the first one of each part writes them.
template <class Shape, class Sums, class Out, class Finish>
__device__ void store_sums(Sums& sums, const WavePlace<Shape>& wave, int64_t split,
                           const MatrixView<Out>& out, const Partials<typename Shape::Sum>& partials, Finish finish,
                           typename Shape::WaveSums& lds) {
  if constexpr (Shape::kWavesK > 1) {
    add_waves<Shape>(sums, wave, lds);
    if (wave.depth > 0) return;
  }
  store_sums<Shape>(sums, wave, split, out, partials, finish);
}

/// Adds the partial sums of kSumColumns elements up, in the order of the splits, and finishes them.
template <int kSplits, class Sum, class Out, class Finish>
__device__ void sum_partials(const Partials<Sum>& partials, const MatrixView<Out>& out, uint32_t workgroup,
                             Finish finish) {
  const int64_t size = partials.rows * partials.columns;
  const int64_t index = (int64_t{workgroup} * kSumThreads + thread_index()) * kSumColumns;
  if (index >= size) return;
  const int64_t row = index / partials.columns, column = index % partials.columns;
  Vec<Sum, kSumColumns> sum{};
  for (int split = 0; split < kSplits; ++split) {
    Vec<Sum, kSumColumns> part;
    __builtin_memcpy(&part, partials.at(split, row, column), sizeof(part));
#pragma unroll
    for (int i = 0; i < kSumColumns; ++i) sum[i] += part[i];
  }
  Vec<Out, kSumColumns> values;
#pragma unroll
  for (int i = 0; i < kSumColumns; ++i) values[i] = from_float<Out>(finish(sum[i], row, column + i));
  __builtin_memcpy(out.data + row * out.strides[0] + column, &values, sizeof(values));
}

/// An element at an address of any alignment.
template <class T>
__device__ float element_of(const T* data) {
  T value;
  __builtin_memcpy(&value, data, sizeof(T));
  return to_float(value);
}

}  // namespace aiter_like::gemm

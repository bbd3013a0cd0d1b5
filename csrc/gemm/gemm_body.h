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
//   a loop                multiply; gemm_pipeline.h and gemm_scaled_pipeline.h have faster ones for large tiles
//   a finish              float operator()(Sum x, int64_t row, int64_t column) makes an element of out of a sum
#pragma once

#include <type_traits>

#include "aiter_like/dtype.h"
#include "aiter_like/gpu.h"
#include "aiter_like/tile/convert.h"
#include "aiter_like/tile/fence.h"
#include "aiter_like/tile/global.h"
#include "aiter_like/tile/mma.h"
#include "aiter_like/tile/order.h"
#include "aiter_like/tile/staging.h"

namespace aiter_like::gemm {

using namespace tile;

/// The sums of WAVES waves, COUNT pieces of each lane: no room in LDS where no waves share a part.
template <class Piece, int WAVES, int COUNT>
struct SharedPart {
  Piece pieces[WAVES][COUNT][kWaveSize];
};
template <class Piece, int COUNT>
struct SharedPart<Piece, 0, COUNT> {};

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

  /// Steps that are under way while one is multiplied: two where few rows make it short beside the time of the memory.
  static constexpr int kAhead = kParts == 1 && Config::kWavesK > 1 ? 2 : 1;

  using Sums = RegTile<Sum, kWaveN, kWaveM, Product<>>;

  /// The sums' place in LDS: a strip of each part on its way to memory, and the sums of the waves that share a part
  /// with its first one.
  static constexpr int kStripRows = kWaveM < 32 ? kWaveM : 32;
  struct WaveSums : SharedPart<typename Sums::Piece, (Config::kWavesK - 1) * kParts, Sums::kStrips * Sums::kPieces> {
    LdsTile<Sum, kStripRows, kWaveN, SwizzledByRow> strips[kParts];
  };
};

/// A workgroup's LDS: the operands of a step, then the sums of the waves that share a part.
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
  int64_t first_row, first_column;  // the workgroup's tile's

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

/// Adds the products of a step to the sums as they are.
struct AddProducts {
  __device__ void fetch(int64_t) {}
  __device__ void publish() {}
  template <class Sums, class Products>
  __device__ void add(Sums& sums, Products products) {
    products(sums);
  }
};

/// Slice `s` of the left operand: all rows of a wave, or ROWS of them from `row` on.
template <int ROWS, class Shape, class Left>
__device__ auto part_of(const Left& left, const typename Left::Memory& lds, int s, int row) {
  if constexpr (ROWS == Shape::kWaveM)
    return left.slice(lds, s);
  else
    return left.template slice<ROWS>(lds, s, row);
}

/// b · aᵀ over a part of the depth, for this wave's part of the tile and share of each step. `accumulate` has fetch(k)
/// and publish(), called with those of the operands, and add(sums, products): products(tile) adds the products of the
/// current step to a tile like the sums, or with more arguments those of its slices `first` to `last`, and of the rows
/// of a from `row` on to a tile of fewer columns.
template <class Shape, class Left, class Right, class Accumulate>
__device__ typename Shape::Sums multiply(const Left& left, const Right& right, const Accumulate& accumulate, Span span,
                                         Memory<Shape, Left, Right>& lds) {
  struct Step {
    Left left;
    Right right;
    Accumulate accumulate;
  };
  constexpr int kSteps = Shape::kAhead, kDepth = Shape::kDepth;
  typename Shape::Sums sums;
  clear(sums);
  const auto publish = [&](Step& step) {
    step.left.publish(lds.operands.left);
    step.right.publish(lds.operands.right);
    step.accumulate.publish();
    workgroup_barrier();  // The step is there.
  };
  const auto add = [&](const Step& step, Accumulate& current) {
    current.add(sums, [&](auto& tile, int first = 0, int last = Shape::kSlices, int row = 0) {
#pragma unroll
      for (int s = first; s < last; ++s) {
        const auto b_slice = step.right.slice(lds.operands.right, s);
        mma<Form::ABt>(tile, b_slice, part_of<std::decay_t<decltype(tile)>::kColumns, Shape>(
                                          step.left, lds.operands.left, s, row));
      }
    });
  };
  if constexpr (kSteps == 1) {
    Step step{left, right, accumulate};
    const auto fetch = [&](int64_t k) {
      step.left.fetch(k);
      step.right.fetch(k);
      step.accumulate.fetch(k);
    };
    if (span.first < span.end) fetch(span.first);
    for (int64_t k = span.first; k < span.end; k += kDepth) {
      publish(step);
      Accumulate current = step.accumulate;
      if (k + kDepth < span.end) fetch(k + kDepth);
      add(step, current);
      workgroup_barrier();  // All waves have read it.
    }
  } else {
    static_assert(kSteps == 2, "as many as are made here");
    Step steps[kSteps] = {{left, right, accumulate}, {left, right, accumulate}};
    const auto fetch_rows = [](Step& step, int64_t k) {
      step.left.fetch(k);
      step.accumulate.fetch(k);
      keep_order();
    };
    const auto fetch_weights = [](Step& step, int64_t k) {
      step.right.fetch(k);
      keep_order();
    };
    int64_t k = span.first;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      fetch_rows(steps[i], k + i * kDepth);
      fetch_weights(steps[i], k + i * kDepth);
    }
    // Loads beyond the end read nothing, so that no branch hides from the compiler which ones are under way. Weights
    // are fetched to where the last ones were: registers that the loop would copy would be waited for.
    for (; k + (kSteps - 1) * kDepth < span.end; k += kSteps * kDepth) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        publish(steps[i]);
        Accumulate current = steps[i].accumulate;
        fetch_rows(steps[i], k + (kSteps + i) * kDepth);
        add(steps[i], current);
        keep_order();
        fetch_weights(steps[i], k + (kSteps + i) * kDepth);
        workgroup_barrier();  // All waves have read it.
      }
    }
    if (k < span.end) {
      publish(steps[0]);
      add(steps[0], steps[0].accumulate);
      workgroup_barrier();
    }
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

/// The kernel of a body. It waits for all lines of its arguments at once where two steps are under way.
template <class Body>
__device__ __forceinline__ void multiply_tile(const typename Body::Args& args) {
  if constexpr (Body::Shape::kAhead > 1) fetch_arguments<typename Body::Args>();
  __shared__ typename Body::Memory lds;
  Body::multiply(args, workgroup_index(), lds);
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

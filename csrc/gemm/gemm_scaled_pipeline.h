// SPDX-License-Identifier: MIT
// The main loop of products with block scales whose time is that of the matrix units. A step is one block of the depth,
// cut into two phases by rows: each wave has half of its rows in each. A strip of 32 rows is multiplied with all of the
// block into fresh sums, which are scaled and added to the total while the next strip is multiplied: plain fused
// multiply-adds, two for each matrix instruction, which leaves time for seven.
//
// LDS has a slot for each phase's rows of the left operand and one for the right operand. In the time of phase p a wave
//   multiplies      its strips of slot p, which it reads kAhead runs ahead of their use
//   scales          the strip before, by a scale of the row times the one of the columns
//   stores          the other slot's rows of the next phase from registers; then a barrier: the slot can be read
//   loads           to the same registers those rows of the step after, and the scales of each strip that is done
// and the right operand likewise, once a step: as each run has been used for the last time it comes from its slot or,
// shuffled, from registers that were loaded in the time of phase 0.
// Beyond the depth loads give zeros, so that the last step is as the others. scaled_schedule.h has the order.
//
// A wave has 256 registers at most and two waves share a SIMD: the compiler then has the products of matrix
// instructions in vector registers, where the scaling reads them.
// A step of two workgroups of 128 × 128 × 128 on a CU, modelled (version 2 of the cycle model, 2100 MHz; clang 22, 4864
// columns): plain 2,145 clk, shuffled 2,080, of which 2,048 are those of MFMA. LDS is busy for 2 · 768 clk, shuffled
// 2 · 640, where waves of 64 × 64 and of 128 × 32 need least. The start and end of such a pair take some 18,000.
#pragma once

#include "block_scales.h"
#include "gemm_pipeline.h"
#include "scaled_schedule.h"

namespace aiter_like::gemm {

/// An operand [rows, depth] through LDS, a block of the depth at a time: BLOCK rows from `first_row` on, of which a
/// wave has ROWS from `wave_row` on. There is a slot for each of PARTS parts of every wave's rows.
template <class Shape, int BLOCK, int ROWS, int PARTS>
class BlocksThroughLds {
 public:
  using Element = typename Shape::Element;
  using Layout = typename Wide<Shape>::Layout;
  static constexpr bool kIsInLds = true;
  static constexpr int kSlotRows = BLOCK / PARTS, kPartRows = ROWS / PARTS, kStrips = kPartRows / Layout::kWidth;
  static constexpr int kChunksPerRow = Shape::kDepth / Shape::kRun, kRowsAtOnce = Shape::kThreads / kChunksPerRow;
  static constexpr int kShare = kSlotRows / kRowsAtOnce;  // chunks of a work-item of each part
  static_assert(kShare * kRowsAtOnce == kSlotRows && kStrips * Layout::kWidth * PARTS == ROWS, "whole shares, strips");
  using Slot = LdsTile<Element, kSlotRows, Shape::kDepth, SwizzledByRow>;
  struct Memory {
    Slot slots[PARTS];
  };

  __device__ BlocksThroughLds(const MatrixView<const Element>& matrix, int64_t first_row, int wave_row, Span span)
      : left_(static_cast<int>(span.end - span.first)), slot_row_(wave_row / ROWS * kPartRows) {
    const MatrixView<const Element> part{
        matrix.data + span.first, {matrix.sizes[0], span.end - span.first}, {matrix.strides[0], 1}};
    const TileWindow<const Element, BLOCK, Shape::kDepth> window(part, first_row);
    buffer_ = window.descriptor();
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        offsets_[p][i] = row(p, i) * window.row_bytes + chunk() * sizeof(Chunk);
      }
    }
  }
  /// Reads the rows(i) of the matrix for rows i of the tile; negative ones, which are none, are zeros. The matrix lies
  /// within 2^31 bytes.
  template <class Rows>
  __device__ BlocksThroughLds(const MatrixView<const Element>& matrix, const Rows& rows, int wave_row, Span span)
      : left_(static_cast<int>(span.end - span.first)), slot_row_(wave_row / ROWS * kPartRows) {
    const AnyRows any(matrix, span);
    buffer_ = any.buffer;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
#pragma unroll
      for (int i = 0; i < kShare; ++i) offsets_[p][i] = any.offset(rows(row(p, i))) + chunk() * sizeof(Chunk);
    }
  }

  /// Starts the load of chunk `i` of part `p` of the step that is next.
  __device__ void load(int p, int i) {
    const uint32_t past = chunk() * Shape::kRun < left_ ? 0 : kOutOfRange;
    staged_[p][i] = load_chunk(buffer_, offsets_[p][i] | past, step_bytes_);
  }
  /// Goes on to the step after that one. Beyond the depth lanes are out of range by their offsets.
  __device__ void advance() {
    left_ -= Shape::kDepth;
    step_bytes_ = left_ > 0 ? step_bytes_ + Shape::kDepth * sizeof(Element) : 0;
  }
  __device__ void store(Memory& lds, int p, int i) const {
    lds.slots[p].template at<Chunk>(slot_row(i), chunk() * sizeof(Chunk)) = staged_[p][i];
  }
  /// This lane's run `run` of strip `strip` of part `p`.
  __device__ Chunk read(const Memory& lds, int p, int strip, int run) const {
    return lds.slots[p].template at<Chunk>(slot_row_ + Layout::owned(strip),
                                           Layout::depth(run * Shape::kRun) * static_cast<int>(sizeof(Element)));
  }

 private:
  __device__ static int slot_row(int i) { return thread_index() / kChunksPerRow + i * kRowsAtOnce; }
  /// A row of the tile.
  __device__ static int row(int p, int i) {
    return slot_row(i) / kPartRows * ROWS + p * kPartRows + slot_row(i) % kPartRows;
  }
  __device__ static int chunk() { return thread_index() % kChunksPerRow; }

  BufferDescriptor buffer_;
  int left_;  // what is left of the depth, from the next step on
  uint32_t step_bytes_ = 0;
  int slot_row_;
  uint32_t offsets_[PARTS][kShare];
  Chunk staged_[PARTS][kShare];
};

/// The scales of a wave's part of out, a block of the depth ahead. Its columns lie within one block, or with HALVES 2,
/// gates and what they let through by turns, in a block for each half.
template <class Shape, int HALVES = 1>
class ScalesAhead {
 public:
  using Layout = typename Wide<Shape>::Sums::Layout;
  static constexpr int kStrips = Wide<Shape>::Sums::kStrips;
  static_assert(Shape::kDepth == kScaleBlock && kScaleBlock % Shape::kWaveN == 0, "a wave must stay in a block");

  /// Reads the blocks of `span`, for `rows` rows of a and `columns` of out.
  __device__ ScalesAhead(const ScaleMatrix& a_scale, const ScaleMatrix& b_scale, const WavePlace<Shape>& wave,
                         int64_t rows, int64_t columns, Span span)
      : a_stride_(a_scale.strides[1]),
        b_stride_(b_scale.strides[1]),
        left_(wave.column() < columns ? span.end - span.first : 0) {
    const int64_t block = span.first / kScaleBlock, left = rows - wave.row();
    a_scale_ = a_scale.data + wave.row() * a_scale.strides[0] + block * a_stride_;
    b_scale_[0] = b_scale.data + wave.column() / kScaleBlock * b_scale.strides[0] + block * b_stride_;
    const auto row_bytes = static_cast<uint32_t>(a_scale.strides[0] * sizeof(float));
    const int count = static_cast<int>(left < Shape::kWaveM ? left : Shape::kWaveM);
    a_bytes_ = count > 0 ? (count - 1) * row_bytes + sizeof(float) : 0;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) offsets_[s] = Layout::owned(s) * row_bytes;
  }
  /// Reads rows(i) of a's scales, which have a_rows and lie within 2^31 bytes, for rows i of the tile, and columns(i)
  /// of b's rows.
  template <class Rows, class Columns>
  __device__ ScalesAhead(const ScaleMatrix& a_scale, int64_t a_rows, const Rows& rows, const ScaleMatrix& b_scale,
                         const Columns& columns, const WavePlace<Shape>& wave, Span span)
      : a_stride_(a_scale.strides[1]), b_stride_(b_scale.strides[1]), left_(span.end - span.first) {
    const int64_t block = span.first / kScaleBlock;
    a_scale_ = a_scale.data + block * a_stride_;
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
      b_scale_[half] = b_scale.data + block_of<Shape>(columns, wave, half) * b_scale.strides[0] + block * b_stride_;
    const auto row_bytes = static_cast<uint32_t>(a_scale.strides[0] * sizeof(float));
    a_bytes_ = static_cast<uint32_t>(a_rows - 1) * row_bytes + sizeof(float);
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const int64_t row = rows(wave.tile_row + Layout::owned(s));
      offsets_[s] = row < 0 ? kOutOfRange : static_cast<uint32_t>(row) * row_bytes;
    }
  }

  /// Starts the load of a scale of strip `s`'s rows, of the block that is next; past the edges there are zeros.
  __device__ void load(int s) {
    a_[s] = load_float(make_buffer(a_scale_, left_ > 0 ? a_bytes_ : 0), offsets_[s]);
  }
  __device__ void load_columns() {
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
      b_next_[half] = load_float(make_buffer(b_scale_[half], left_ > 0 ? sizeof(float) : 0), 0);
  }
  /// Goes on to the block after that one.
  __device__ void advance() {
    left_ -= kScaleBlock;
    a_scale_ += a_stride_;
#pragma unroll
    for (int half = 0; half < HALVES; ++half) b_scale_[half] += b_stride_;
  }
  /// The block whose columns' scale has been loaded becomes the current one. Opaque: the compiler would copy it, and
  /// wait for it, right behind its load.
  __device__ void publish() {
#pragma unroll
    for (int half = 0; half < HALVES; ++half) b_[half] = bits_float(opaque(float_bits(b_next_[half])));
  }
  __device__ float factor(int s, int half) const { return a_[s] * b_[half]; }

 private:
  const float *a_scale_, *b_scale_[HALVES];
  int64_t a_stride_, b_stride_;
  int64_t left_;  // what is left of the depth, from the next block on
  uint32_t a_bytes_, offsets_[kStrips];
  float a_[kStrips], b_[HALVES], b_next_[HALVES];
};

/// Σ over blocks of b · aᵀ times its scales, for this wave's part of the tile.
template <class Shape, class Left, class Right, int HALVES = 1>
class ScaledPipeline {
 public:
  using Sums = typename Wide<Shape>::Sums;
  using Scales = ScalesAhead<Shape, HALVES>;
  static constexpr ScaledSchedule kSchedule{Left::kStrips, Right::kStrips, Shape::kSlices * Wide<Shape>::kRuns,
                                            Left::kShare, Right::kShare, Sums::kPieceElements * Right::kStrips,
                                            Right::kIsInLds};
  struct Memory {
    typename Left::Memory left;
    typename Right::Memory right;
  };

  __device__ __attribute__((always_inline)) static void run(Sums& sums, Left& left, Right& right, Scales& scales,
                                                            Span span, Memory& lds) {
    ScaledPipeline loop(left, right, scales, lds);
    loop.start();
    for (int64_t k = span.first; k < span.end; k += Shape::kDepth) loop.step();
    loop.scale_last();
    workgroup_barrier();  // All waves have read their operands.
    loop.give(sums);
  }

 private:
  using Element = typename Shape::Element;
  using Piece = typename Sums::Piece;
  static constexpr int kStrips = kSchedule.strips, kRuns = kSchedule.runs, kColumns = kSchedule.columns();
  static constexpr int kElements = Sums::kPieceElements, kScaled = kSchedule.elements;
  static_assert(Shape::kWavesK == 1 && Shape::kSlices == 2, "a step is a block of one wave's depth");
  static_assert(Sums::kStrips == kSchedule.kPhases * kStrips && kSchedule.fits(), "a place for each access");

  __device__ ScaledPipeline(Left& left, Right& right, Scales& scales, Memory& lds)
      : left(left), right(right), scales(scales), lds(lds) {}

  __device__ __attribute__((always_inline)) void start() {
    load_part(left, 0);
    if constexpr (Right::kIsInLds) load_part(right, 0);
    keep_order();
    scales.load_columns();
    load_part(left, 1);
    prefetch_all();
#pragma unroll
    for (int s = 0; s < kStrips; ++s) scales.load(s);
    keep_order();
    clear_sums();
    keep_order();
#pragma unroll
    for (int i = 0; i < Left::kShare; ++i) left.store(lds.left, 0, i);
    if constexpr (Right::kIsInLds) {
#pragma unroll
      for (int i = 0; i < Right::kShare; ++i) right.store(lds.right, 0, i);
    }
    scales.publish();
    left.advance();
    right.advance();
    load_part(left, 0);
    if constexpr (Right::kIsInLds) load_part(right, 0);
#pragma unroll
    for (int s = kStrips; s < Sums::kStrips; ++s) scales.load(s);
    scales.advance();
    wait_lds();
    meet();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) take_column(c);
#pragma unroll
    for (int piece = 0; piece < kSchedule.ahead(); ++piece) rows[piece] = read_left(0, piece);
  }
  template <class Operand>
  __device__ static void load_part(Operand& operand, int p) {
#pragma unroll
    for (int i = 0; i < Operand::kShare; ++i) operand.load(p, i);
  }
  __device__ void prefetch_all() {
    if constexpr (!Right::kIsInLds) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) prefetch(c);
    }
  }
  __device__ void clear_sums() {
#pragma unroll
    for (int s = 0; s < Sums::kStrips; ++s) {
#pragma unroll
      for (int e = 0; e < kScaled; ++e) total[s][e] = 0;
    }
#pragma unroll
    for (int c = 0; c < Right::kStrips; ++c) block[1][c] = Piece{};
#pragma unroll
    for (int half = 0; half < HALVES; ++half) factors[half] = 0;
  }

  /// Column strip and run of what `columns` has at `c`.
  static constexpr int strip_of(int c) { return c % Right::kStrips; }
  static constexpr int run_of(int c) { return c / Right::kStrips; }
  __device__ void prefetch(int c) {
    constexpr int kSliceRuns = Wide<Shape>::kRuns;
    prefetched[c] = right.load(run_of(c) / kSliceRuns, strip_of(c), run_of(c) % kSliceRuns);
  }
  __device__ void take_column(int c) {
    if constexpr (Right::kIsInLds) {
      columns[c] = right.read(lds.right, 0, strip_of(c), run_of(c));
    } else {
      columns[c] = prefetched[c];
      asm volatile("" : "+v"(columns[c]));  // Here, not right behind the load.
    }
  }
  __device__ Chunk read_left(int p, int piece) const { return left.read(lds.left, p, piece / kRuns, piece % kRuns); }

  __device__ __attribute__((always_inline)) void step() {
    phase<0>();
    left.advance();
    right.advance();
    phase<1>();
    scales.advance();
  }
  template <int PHASE>
  __device__ __attribute__((always_inline)) void phase() {
    places<PHASE>(std::make_integer_sequence<int, kSchedule.places()>{});
    keep_order();
  }
  /// The places are constants from the start: arrays that loops index stay in memory where these are unrolled late.
  template <int PHASE, int... PLACES>
  __device__ __attribute__((always_inline)) void places(std::integer_sequence<int, PLACES...>) {
    (place<PHASE, PLACES>(), ...);
  }
  template <int PHASE, int PLACE>
  __device__ __attribute__((always_inline)) void place() {
    constexpr ScaledPlace kNow = kSchedule.at(PHASE, PLACE);
    keep_order();
    if constexpr (kNow.is_behind_barrier) {
      wait_lds();
      meet();
      keep_order();
    }
    multiply<kNow.strip, kNow.run, kNow.product, kNow.row>();
    keep_order();
    scale<kNow.scaled_strip, kNow.first_scaled, kNow.end_scaled>();
    if constexpr (kNow.read_row >= 0) rows[kNow.read_row] = read_left(kNow.read_phase, kNow.read_piece);
    if constexpr (kNow.ends_strip) {
#pragma unroll
      for (int half = 0; half < HALVES; ++half) factors[half] = scales.factor(kNow.strip, half);
      scales.load(kNow.strip);
      if constexpr (kNow.ends_block) scales.publish();
    }
    if constexpr (kNow.loads_column_scales) scales.load_columns();
    move<1 - PHASE, kNow.left_store, kNow.left_load>(left, lds.left);
    if constexpr (kNow.prefetch >= 0) prefetch(kNow.prefetch);
    if constexpr (Right::kIsInLds) move<0, kNow.right_store, kNow.right_load>(right, lds.right);
    take_columns<kNow.first_taken>(std::make_integer_sequence<int, kNow.taken>{});
  }
  template <int PART, int STORE, int LOAD, class Operand>
  __device__ __attribute__((always_inline)) static void move(Operand& operand, typename Operand::Memory& memory) {
    if constexpr (STORE >= 0) operand.store(memory, PART, STORE);
    if constexpr (LOAD >= 0) operand.load(PART, LOAD);
  }
  template <int FIRST, int... COLUMNS>
  __device__ __attribute__((always_inline)) void take_columns(std::integer_sequence<int, COLUMNS...>) {
    (take_column(FIRST + COLUMNS), ...);
  }

  template <int STRIP, int RUN, int PRODUCT, int ROW>
  __device__ __attribute__((always_inline)) void multiply() {
    constexpr int kColumn = PRODUCT % Right::kStrips;
    constexpr bool kIsLow = PRODUCT < Right::kStrips;
    const Chunk &a = rows[ROW], &b = columns[RUN * Right::kStrips + kColumn];
    using Instruction = Mfma<Element, Wide<Shape>::kWidth>;
    Piece& sum = block[STRIP % 2][kColumn];
    if constexpr (RUN == 0 && kIsLow)
      sum = Instruction::multiply(b.lo, a.lo, Piece{});
    else
      sum = kIsLow ? Instruction::multiply(b.lo, a.lo, sum) : Instruction::multiply(b.hi, a.hi, sum);
  }
  /// Adds elements [FIRST, END) of the products of strip `STRIP` to the total.
  template <int STRIP, int FIRST, int END>
  __device__ __attribute__((always_inline)) void scale() {
#pragma unroll
    for (int e = FIRST; e < END; ++e) {
      const float factor = factors[e % kElements / (kElements / HALVES)];
      float sum = __builtin_fmaf(block[STRIP % 2][e / kElements][e % kElements], factor, total[STRIP][e]);
      asm("" : "+v"(sum));  // Out of reach of the vectoriser: packed instructions do not run beside matrix ones.
      total[STRIP][e] = sum;
    }
  }
  __device__ void scale_last() { scale<Sums::kStrips - 1, 0, kScaled>(); }
  __device__ void give(Sums& sums) const {
#pragma unroll
    for (int s = 0; s < Sums::kStrips; ++s) {
#pragma unroll
      for (int e = 0; e < kScaled; ++e) sums.pieces[s][e / kElements][e % kElements] = total[s][e];
    }
  }

  Left& left;
  Right& right;
  Scales& scales;
  Memory& lds;
  Chunk rows[kSchedule.ring()];                 // the left operand's, for pieces to come
  Chunk columns[kColumns];           // the right operand's, a block
  Chunk prefetched[kColumns];        // the next block's, where it does not come from LDS
  Piece block[2][Right::kStrips];    // the products of a block: of the strip before, and of the current one
  float factors[HALVES];             // the strip before's
  float total[Sums::kStrips][kScaled];
};

/// The product of a workgroup with scales of blocks, by the loop that suits the shape. BAND: rows of the bands that b
/// is shuffled in, or 0.
template <class Shape, int BAND, bool PIPELINED = Shape::kWavesK == 1 && Shape::kWaveM % 64 == 0>
struct ScaledLoop {
  static constexpr bool kIsPipelined = true;
  using Matrix = MatrixView<const typename Shape::Element>;
  using Left = BlocksThroughLds<Shape, Shape::kBlockM, Shape::kWaveM, 2>;
  using Right = std::conditional_t<(BAND > 0), PreshuffledSlices<Shape, Shape::kWaveN, BAND ? BAND : 16>,
                                   BlocksThroughLds<Shape, Shape::kBlockN, Shape::kWaveN, 1>>;
  using Loop = ScaledPipeline<Shape, Left, Right>;
  union Memory {
    typename Loop::Memory operands;
    typename Shape::WaveSums sums;
  };
  static constexpr int kWavesPerSimd = 2;  // Matrix instructions then have their sums where the scaling reads them.

  __device__ __attribute__((always_inline)) static typename Loop::Sums multiply(
      const Matrix& a, const Matrix& b, const ScaleMatrix& a_scale, const ScaleMatrix& b_scale,
      const WavePlace<Shape>& wave, Span span, Memory& lds) {
    typename Loop::Sums sums;
    Left left(a, wave.first_row, wave.tile_row, span);
    Right right(b, wave.first_column, wave.tile_column, span);
    typename Loop::Scales scales(a_scale, b_scale, wave, a.sizes[0], b.sizes[0], span);
    Loop::run(sums, left, right, scales, span, lds.operands);
    return sums;
  }
};

/// Few rows, or waves that share the depth: little to multiply between two accesses, and memory sets the time.
template <class Shape, int BAND>
struct ScaledLoop<Shape, BAND, false> {
  static constexpr bool kIsPipelined = false;
  using Matrix = MatrixView<const typename Shape::Element>;
  using Left = ThroughLds<Shape, Shape::kBlockM, Shape::kWaveM>;
  using Right = std::conditional_t<(BAND > 0), Preshuffled<Shape, Shape::kWaveN, BAND ? BAND : 16>,
                                   ThroughLds<Shape, Shape::kBlockN, Shape::kWaveN>>;
  using Memory = gemm::Memory<Shape, Left, Right>;

  /// The compiler must leave registers for as many workgroups as LDS holds of those whose weights go through it.
  static constexpr int kLdsBytes = 65536, kStepBytes = (Shape::kBlockM + Shape::kBlockN) * Shape::kDepth;
  static constexpr int kWavesPerSimd = kLdsBytes / kStepBytes * Shape::kThreads / kWaveSize / 4;

  __device__ __attribute__((always_inline)) static typename Shape::Sums multiply(
      const Matrix& a, const Matrix& b, const ScaleMatrix& a_scale, const ScaleMatrix& b_scale,
      const WavePlace<Shape>& wave, Span span, Memory& lds) {
    Left left(a, wave.first_row, wave.tile_row, wave.depth, span.end);
    Right right = right_of(b, wave, span);
    AddScaledBlocks<Shape> accumulate(a_scale, b_scale, wave, a.sizes[0], b.sizes[0], a.sizes[1]);
    return gemm::multiply<Shape>(left, right, accumulate, span, lds);
  }

 private:
  __device__ static Right right_of(const Matrix& b, const WavePlace<Shape>& wave, Span span) {
    if constexpr (BAND > 0)
      return Right(b, wave.column(), wave.depth, span.end);
    else
      return Right(b, wave.first_column, wave.tile_column, wave.depth, span.end);
  }
};

}  // namespace aiter_like::gemm

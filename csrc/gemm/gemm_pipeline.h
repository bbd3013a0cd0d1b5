// SPDX-License-Identifier: MIT
// The main loop of products whose time is that of the matrix units: one wave on each SIMD is enough, because memory
// accesses stand between the matrix instructions and what they bring is used a slice of the depth or more later.
//
// LDS has a slot for each slice of a step, kSlices of them. In the time of slice s a wave
//   multiplies      slice s, whose rows of the left operand come from slot s, kAhead strips ahead of their use
//   stores          slice s + 1 from registers to its slot; then a barrier: the slot can be read, slot s is free
//   loads           in slice 0 the next step of what goes through LDS, whole lines of memory
//   prefetches      slice s + 1 of the right operand to registers, from its slot or, shuffled, from memory
// Beyond the depth loads give zeros, so that the last step is as the others.
//
// A step of 256 × 256 × 128 bytes on a CU, modelled (version 2 of the cycle model, 2100 MHz; clang 22, 4864 columns,
// one tile per CU): shuffled 4,231 clk, plain 4,246, of which 4,096 are those of MFMA in bf16, fp8 and int8. LDS is
// read for 1,024 clk, plain for 1,280; 64 loads of 1,024 bytes take 1,024 clk of the address unit. The start and end of
// a tile of 256 × 256 take some 25,000: so many roundings, and first loads that nothing hides. tests/ops/
// test_gemm_gates.py holds what a step takes.
#pragma once

#include <utility>

#include "aiter_like/tile/fence.h"
#include "aiter_like/tile/spread.h"
#include "gemm_body.h"

namespace aiter_like::gemm {

/// The waves' products: matrix instructions 32 wide; a lane's 16 bytes are operands of two. Those 16 wide take as long,
/// but the compiler keeps only the wider ones' sums where they are, without copies.
template <class Shape>
struct Wide {
  static constexpr int kWidth = 32;
  using Layout = OperandByRow<Shape::kRun, kWidth>;
  static constexpr int kRuns = Shape::kSlice / (Shape::kRun * Layout::kGroups);  // runs of a lane in a slice
  using Sums = RegTile<typename Shape::Sum, Shape::kWaveN, Shape::kWaveM, Product<1, kWidth>>;
};

/// How many pieces are in registers: a divisor of all of a slice, so that each slice begins with the same one.
constexpr __host__ __device__ int ring_of(int pieces) {
  int ring = 4;
  while (pieces % ring) ++ring;
  return ring;
}

/// An operand [rows, depth] through LDS, slice by slice: BLOCK rows from `first_row` on, of which a wave has ROWS from
/// `wave_row` on.
template <class Shape, int BLOCK, int ROWS>
class SlicesThroughLds {
 public:
  using Element = typename Shape::Element;
  using Layout = typename Wide<Shape>::Layout;
  static constexpr bool kIsInLds = true;
  static constexpr int kChunksPerRow = Shape::kSlice / Shape::kRun, kRowsAtOnce = Shape::kThreads / kChunksPerRow;
  static constexpr int kShare = (BLOCK + kRowsAtOnce - 1) / kRowsAtOnce;  // chunks of a work-item of each slice
  static constexpr int kStrips = ROWS / Wide<Shape>::kWidth;
  /// Every work-item moves as much; beyond the block there are zeros, which nobody reads.
  using Slot = LdsTile<Element, kShare * kRowsAtOnce, Shape::kSlice, SwizzledByRow>;
  struct Memory {
    Slot slots[Shape::kSlices];
  };

  __device__ SlicesThroughLds(const MatrixView<const Element>& matrix, int64_t first_row, int wave_row, Span span)
      : left_(static_cast<int>(span.end - span.first)), wave_row_(wave_row) {
    const MatrixView<const Element> part{
        matrix.data + span.first, {matrix.sizes[0], span.end - span.first}, {matrix.strides[0], 1}};
    const TileWindow<const Element, BLOCK, Shape::kDepth> window(part, first_row);
    buffer_ = window.descriptor();
#pragma unroll
    for (int i = 0; i < kShare; ++i) offsets_[i] = row(i) * window.row_bytes + chunk() * sizeof(Chunk);
  }
  /// Reads the rows(i) of the matrix for rows i of the tile; negative ones, which are none, are zeros. The matrix lies
  /// within 2^31 bytes.
  template <class Rows>
  __device__ SlicesThroughLds(const MatrixView<const Element>& matrix, const Rows& rows, int wave_row, Span span)
      : left_(static_cast<int>(span.end - span.first)), wave_row_(wave_row) {
    const AnyRows any(matrix, span);
    buffer_ = any.buffer;
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const uint32_t offset = row(i) < BLOCK ? any.offset(rows(row(i))) : kOutOfRange;
      offsets_[i] = offset + chunk() * sizeof(Chunk);
    }
  }

  /// Starts the load of chunk `i` of slice `s` of the step that is next.
  __device__ void load(int s, int i) {
    const uint32_t past = chunk() * Shape::kRun + s * Shape::kSlice < left_ ? 0 : kOutOfRange;
    staged_[s][i] = load_chunk(buffer_, (offsets_[i] | past) + s * Shape::kSlice * sizeof(Element), step_bytes_);
  }
  /// Goes on to the step after that one. The buffer's bound less `step_bytes_` must not wrap around,
  /// whichever of them the hardware compares an offset with: beyond the depth, lanes are out of range by their offsets.
  __device__ void advance() {
    left_ -= Shape::kDepth;
    step_bytes_ = left_ > 0 ? step_bytes_ + Shape::kDepth * sizeof(Element) : 0;
  }
  __device__ void store(Memory& lds, int s, int i) const {
    lds.slots[s].template at<Chunk>(row(i), chunk() * sizeof(Chunk)) = staged_[s][i];
  }
  /// This lane's run `run` of strip `strip` of slice `s`.
  __device__ Chunk read(const Memory& lds, int s, int strip, int run) const {
    return lds.slots[s].template at<Chunk>(wave_row_ + Layout::owned(strip),
                                           Layout::depth(run * Shape::kRun) * static_cast<int>(sizeof(Element)));
  }

 private:
  __device__ static int row(int i) { return thread_index() / kChunksPerRow + i * kRowsAtOnce; }
  __device__ static int chunk() { return thread_index() % kChunksPerRow; }

  BufferDescriptor buffer_;
  int left_;  // what is left of the depth, from the next step on
  uint32_t step_bytes_ = 0;
  int wave_row_;
  uint32_t offsets_[kShare];
  Chunk staged_[Shape::kSlices][kShare];
};

/// Rows shuffled in bands of BAND straight to registers (gemm_operands.h has the layout): ROWS of them for
/// one wave, from tile_row + wave_row on. `matrix` [rows, depth or more] has whole bands, stored without gaps. Beyond
/// the span's end the depth reads as zero: there may be NaN, or the next band.
template <class Shape, int ROWS, int BAND>
class PreshuffledSlices {
 public:
  using Element = typename Shape::Element;
  using Layout = typename Wide<Shape>::Layout;
  struct Memory {};
  static constexpr bool kIsInLds = false;
  static constexpr int kShare = 0, kStrips = ROWS / Wide<Shape>::kWidth, kPackBytes = BAND * sizeof(Chunk);
  static_assert(Wide<Shape>::kWidth % BAND == 0, "a strip has whole bands");
  /// Shuffled weights have a multiple of 32 columns, in 16 bits a slice: no part of one lies beyond the end.
  static constexpr bool kEndsWithSlice = 32 % Shape::kSlice == 0;

  __device__ PreshuffledSlices(const MatrixView<const Element>& matrix, int64_t tile_row, int wave_row, Span span)
      : left_(static_cast<int>(span.end - span.first)) {
    const int64_t first_row = tile_row + wave_row, rows = matrix.sizes[0] - first_row;
    const int64_t depth = matrix.sizes[1], skipped = span.first * BAND;  // elements of the first band
    const int64_t elements = (rows < ROWS ? rows : ROWS) * depth - skipped;
    buffer_ = make_buffer(matrix.data + first_row * depth + skipped,
                          rows > 0 ? static_cast<uint32_t>(elements * sizeof(Element)) : 0);
    const auto band_bytes = static_cast<uint32_t>(BAND * depth * sizeof(Element));
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      const int row = Layout::owned(strip);
      offsets_[strip] = row / BAND * band_bytes + Layout::group() * kPackBytes + row % BAND * sizeof(Chunk);
    }
  }
  /// The rows(i) of the matrix, which lies within 2^31 bytes, for rows i of the tile from `wave_row` on.
  template <class Rows>
  __device__ PreshuffledSlices(const MatrixView<const Element>& matrix, const Rows& rows, int wave_row, Span span)
      : left_(static_cast<int>(span.end - span.first)) {
    const auto band_bytes = static_cast<uint32_t>(BAND * matrix.sizes[1] * sizeof(Element));
    const int64_t skipped = span.first * BAND;  // elements of the first band
    const int64_t elements = matrix.sizes[0] * matrix.sizes[1] - skipped;
    buffer_ = make_buffer(matrix.data + skipped, static_cast<uint32_t>(elements * sizeof(Element)));
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      const auto row = static_cast<uint32_t>(rows(wave_row + Layout::owned(strip)));
      offsets_[strip] = row / BAND * band_bytes + Layout::group() * kPackBytes + row % BAND * sizeof(Chunk);
    }
  }

  /// Starts the load of run `run` of strip `strip` of slice `s` of the step that is next.
  __device__ Chunk load(int s, int strip, int run) const {
    const int depth = s * Shape::kSlice + Layout::depth_after_first(run * Shape::kRun);
    const bool is_inside = (kEndsWithSlice ? s * Shape::kSlice : depth + Layout::first_depth()) < left_;
    const uint32_t offset = is_inside ? offsets_[strip] : kOutOfRange;
    return load_chunk(buffer_, offset + depth / Shape::kRun * kPackBytes, step_bytes_);
  }
  __device__ void advance() {
    left_ -= Shape::kDepth;
    step_bytes_ = left_ > 0 ? step_bytes_ + Shape::kDepth * BAND * sizeof(Element) : 0;
  }

 private:
  BufferDescriptor buffer_;
  int left_;  // what is left of the depth, from the next step on
  uint32_t step_bytes_ = 0;
  uint32_t offsets_[kStrips];
};

/// b · aᵀ over a part of the depth, for this wave's part of the tile. A slice is cut into pieces, one for each run of
/// each strip of the left operand; a place is that of a matrix instruction.
template <class Shape, class Left, class Right>
class Pipeline {
 public:
  using Sums = typename Wide<Shape>::Sums;
  struct Memory {
    typename Left::Memory left;
    typename Right::Memory right;
  };

  __device__ __attribute__((always_inline)) static void run(Sums& sums, Left& left, Right& right, Span span,
                                                            Memory& lds) {
    Pipeline loop(sums, left, right, lds);
    loop.start();
    for (int64_t k = span.first; k < span.end; k += Shape::kDepth) {
      left.advance();
      if constexpr (Right::kIsInLds) right.advance();
      loop.template slice<0>();
      if constexpr (!Right::kIsInLds) right.advance();
      loop.template slice<1>();
    }
    loop.pin_sums();
    workgroup_barrier();  // All waves have read their operands.
  }

 private:
  using Element = typename Shape::Element;
  static constexpr int kRuns = Wide<Shape>::kRuns, kPieces = kRuns * Left::kStrips;
  static constexpr int kColumns = kRuns * Right::kStrips, kProducts = 2 * Right::kStrips;  // places of a piece
  static constexpr int kAhead = kPieces >= 8 ? 3 : 2, kRing = ring_of(kPieces);
  static constexpr int kPlaces = kPieces * kProducts, kBarrier = kPlaces - kAhead * kProducts;
  static_assert(Shape::kSlices == 2 && Shape::kWavesK == 1 && kAhead < kRing, "the order of accesses");

  // When a slice's accesses begin.
  static constexpr Spread kLeftStores{1, kBarrier, Left::kShare}, kRightStores{2, kBarrier, Right::kShare};
  // Each after the store of what its registers hold.
  static constexpr Spread kLeftLoads{kLeftStores.from, kPlaces, Left::kShare};
  static constexpr Spread kRightLoads{kRightStores.from, kPlaces, Right::kShare};
  static constexpr Spread kPrefetches = Right::kIsInLds
                                            ? Spread{kBarrier + 1, kPlaces - kProducts / 2, kColumns}
                                            : Spread{1, kPlaces / 2, kColumns};

  static_assert(kLeftStores.fits() && kRightStores.fits() && kPrefetches.fits(), "a place for each access");
  static_assert(kLeftLoads.is_behind(kLeftStores) && kRightLoads.is_behind(kRightStores),
                "registers are stored before they are loaded");

  __device__ Pipeline(Sums& sums, Left& left, Right& right, Memory& lds)
      : sums(sums), left(left), right(right), lds(lds) {}

  __device__ __attribute__((always_inline)) void start() {
    load_step_of(left, Left::kShare);
    if constexpr (Right::kIsInLds) load_step_of(right, Right::kShare);
    keep_order();
    clear(sums);
    pin_sums();
    keep_order();
#pragma unroll
    for (int i = 0; i < Left::kShare; ++i) left.store(lds.left, 0, i);
    if constexpr (Right::kIsInLds) {
#pragma unroll
      for (int i = 0; i < Right::kShare; ++i) right.store(lds.right, 0, i);
    }
    wait_lds();
    meet();
#pragma unroll
    for (int i = 0; i < kColumns; ++i) prefetch(0, i);
#pragma unroll
    for (int piece = 0; piece < kAhead; ++piece) rows[piece] = read_left(0, piece);
  }
  template <class Operand>
  __device__ static void load_step_of(Operand& operand, int share) {
#pragma unroll
    for (int i = 0; i < share; ++i) {
      operand.load(1, i);
      operand.load(0, i);
    }
  }
  /// The sums are in accumulation registers here, and so in all of the loop: left to itself, the compiler has some of
  /// them in vector registers, too few for the rest, and moves others about.
  __device__ void pin_sums() {
    if constexpr (Shape::kThreads > 256) return;  // No more than 256 registers of both kinds.
#pragma unroll
    for (int s = 0; s < Sums::kStrips; ++s) {
#pragma unroll
      for (int p = 0; p < Sums::kPieces; ++p) asm volatile("" : "+a"(sums.pieces[s][p]));
    }
  }
  __device__ void prefetch(int s, int i) {
    if constexpr (Right::kIsInLds)
      columns[s][i] = right.read(lds.right, s, i % Right::kStrips, i / Right::kStrips);
    else
      columns[s][i] = right.load(s, i % Right::kStrips, i / Right::kStrips);
  }
  __device__ Chunk read_left(int s, int piece) const {
    return left.read(lds.left, s, piece % Left::kStrips, piece / Left::kStrips);
  }

  template <int SLICE>
  __device__ __attribute__((always_inline)) void slice() {
    places<SLICE>(std::make_integer_sequence<int, kPlaces>{});
    keep_order();
  }
  /// The places are constants from the start: arrays that loops index stay in memory where these are unrolled late.
  template <int SLICE, int... PLACES>
  __device__ __attribute__((always_inline)) void places(std::integer_sequence<int, PLACES...>) {
    (place<SLICE, PLACES>(), ...);
  }
  template <int SLICE, int PLACE>
  __device__ __attribute__((always_inline)) void place() {
    constexpr int kNext = 1 - SLICE, kPiece = PLACE / kProducts, kProduct = PLACE % kProducts;
    keep_order();
    if constexpr (PLACE == kBarrier) {
      wait_lds();
      meet();
      keep_order();
    }
    multiply(SLICE, kPiece, kProduct);
    keep_order();
    if constexpr (kProduct == 0) {
      constexpr int kLater = kPiece + kAhead;
      rows[kLater % kRing] = read_left(kLater < kPieces ? SLICE : kNext, kLater % kPieces);
    }
    if constexpr (kPrefetches.at(PLACE) >= 0) prefetch(kNext, kPrefetches.at(PLACE));
    move<SLICE, kLeftStores.at(PLACE), kLeftLoads.at(PLACE)>(left, lds.left);
    if constexpr (Right::kIsInLds) move<SLICE, kRightStores.at(PLACE), kRightLoads.at(PLACE)>(right, lds.right);
  }
  template <int SLICE, int STORE, int LOAD, class Operand>
  __device__ __attribute__((always_inline)) static void move(Operand& operand, typename Operand::Memory& memory) {
    if constexpr (STORE >= 0) operand.store(memory, 1 - SLICE, STORE);
    if constexpr (SLICE == 0 && LOAD >= 0) {
      operand.load(1, LOAD);
      operand.load(0, LOAD);
    }
  }
  __device__ void multiply(int s, int piece, int product) {
    const int strip = product % Right::kStrips;
    const Chunk &a = rows[piece % kRing], &b = columns[s][piece / Left::kStrips * Right::kStrips + strip];
    auto& sum = sums.pieces[piece % Left::kStrips][strip];
    using Instruction = Mfma<Element, Wide<Shape>::kWidth>;
    sum = product < Right::kStrips ? Instruction::multiply(b.lo, a.lo, sum) : Instruction::multiply(b.hi, a.hi, sum);
  }

  Sums& sums;
  Left& left;
  Right& right;
  Memory& lds;
  Chunk rows[kRing];                        // the left operand's, for pieces to come
  Chunk columns[Shape::kSlices][kColumns];  // the right operand's
};

/// b · aᵀ of a workgroup without anything between its products, by the loop that suits the shape. BAND: rows of the
/// bands that b is shuffled in, or 0.
template <class Shape, int BAND,
          bool PIPELINED = Shape::kWavesK == 1 && Shape::kWaveM % 32 == 0 && Shape::kWaveM >= 64 &&
                           Shape::kWaveN % 32 == 0>
struct MainLoop {
  static constexpr bool kIsPipelined = true;
  using Matrix = MatrixView<const typename Shape::Element>;
  using Left = SlicesThroughLds<Shape, Shape::kBlockM, Shape::kWaveM>;
  using Right = std::conditional_t<(BAND > 0), PreshuffledSlices<Shape, Shape::kWaveN, BAND ? BAND : 16>,
                                   SlicesThroughLds<Shape, Shape::kBlockN, Shape::kWaveN>>;
  using Loop = Pipeline<Shape, Left, Right>;
  union Memory {
    typename Loop::Memory operands;
    typename Shape::WaveSums sums;
  };

  __device__ __attribute__((always_inline)) static typename Loop::Sums multiply(const Matrix& a, const Matrix& b,
                                                                                const WavePlace<Shape>& wave,
                                                                                Span span, Memory& lds) {
    typename Loop::Sums sums;
    Left left(a, wave.first_row, wave.tile_row, span);
    Right right(b, wave.first_column, wave.tile_column, span);
    Loop::run(sums, left, right, span, lds.operands);
    return sums;
  }
};

/// Waves that share the depth have little to multiply between two accesses: the plain loop.
template <class Shape, int BAND>
struct MainLoop<Shape, BAND, false> {
  static constexpr bool kIsPipelined = false;
  using Matrix = MatrixView<const typename Shape::Element>;
  using Left = ThroughLds<Shape, Shape::kBlockM, Shape::kWaveM>;
  using Right = std::conditional_t<(BAND > 0), Preshuffled<Shape, Shape::kWaveN, BAND ? BAND : 16>,
                                   ThroughLds<Shape, Shape::kBlockN, Shape::kWaveN>>;
  using Memory = gemm::Memory<Shape, Left, Right>;

  __device__ __attribute__((always_inline)) static typename Shape::Sums multiply(const Matrix& a, const Matrix& b,
                                                                                 const WavePlace<Shape>& wave,
                                                                                 Span span, Memory& lds) {
    Left left(a, wave.first_row, wave.tile_row, wave.depth, span.end);
    Right right = right_of(b, wave, span);
    AddProducts accumulate;
    return gemm::multiply<Shape>(left, right, accumulate, span, lds);
  }

  __device__ static Right right_of(const Matrix& b, const WavePlace<Shape>& wave, Span span) {
    if constexpr (BAND > 0)
      return Right(b, wave.column(), wave.depth, span.end);
    else
      return Right(b, wave.first_column, wave.tile_column, wave.depth, span.end);
  }
};

}  // namespace aiter_like::gemm

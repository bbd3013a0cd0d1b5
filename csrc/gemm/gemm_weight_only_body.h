// SPDX-License-Identifier: MIT
// What a workgroup of gemm_weight_only does: the weights are made 16-bit numbers, as what they are unscaled, on
// their way to LDS or, where no other wave needs them, from registers to registers; the products of a group of them are
// scaled when they are added to the sums.
//
// A wave's step of 64 × 64 weights and as many activations is 64 MFMA. Per lane, 32 weights (16 of each wave of a tile
// of 128 × 128) become floats and pairs of them one dword: about 2 instructions a weight, 1 per MFMA; scaling the
// products is 64 FMA, 1 per MFMA. Scaling the weights instead would be an instruction and a rounding for each of them,
// and inexact.
#pragma once

#include <utility>

#include "../activation/activation.h"
#include "aiter_like/tile/fence.h"
#include "gemm_body.h"

namespace aiter_like {

template <class Element, class OutElement, class BiasElement, class ScaleElement>
struct GemmWeightOnlyArgs {
  tile::MatrixView<const Element> a;            // [m, k]
  tile::MatrixView<const int8_t> b;             // [n, bytes of k weights]
  tile::MatrixView<const ScaleElement> scale;   // [n, or a scale's part of it; groups]
  tile::MatrixView<const int8_t> zero_points;   // [n, groups]; read where the build has some
  tile::MatrixView<OutElement> out;             // [m, n]
  tile::MatrixView<const OutElement> residual;  // [m, n]; read where the build has one
  const BiasElement* bias;                      // [n]; read where the build has one
  gemm::Partials<float> partials;               // used where the depth is split
  tile::TileOrder order;
  int64_t split_depth;                          // k of each split, a multiple of Shape::kDepth
};

namespace gemm_weight_only {

using namespace gemm;

/// The entries of a matrix [rows / ROWS, groups] for a tile's rows, of which each has less than 2^31 / 256 bytes.
template <class T, int ROWS = 1>
class GroupEntries {
 public:
  __device__ GroupEntries(const MatrixView<const T>& matrix, int64_t first_row, int block)
      : groups_(static_cast<uint32_t>(matrix.sizes[1])), skipped_(static_cast<int>(first_row % ROWS)) {
    const int64_t first = first_row / ROWS, left = matrix.sizes[0] - first;
    const int64_t most = (skipped_ + block + ROWS - 1) / ROWS, rows = left < most ? left : most;
    buffer_ = make_buffer(matrix.data + first * matrix.sizes[1],
                          rows > 0 ? static_cast<uint32_t>(rows * matrix.sizes[1] * sizeof(T)) : 0);
  }
  /// Starts the load of the entry of a row of the tile; 0 beyond the matrix. A register as it is loaded: a loop would
  /// wait for a smaller value to copy it.
  __device__ uint32_t load(int row, int64_t group) const {
    const uint32_t entry = static_cast<uint32_t>(skipped_ + row) / ROWS * groups_ + static_cast<uint32_t>(group);
    const uint32_t offset = group < groups_ ? entry * static_cast<uint32_t>(sizeof(T)) : kOutOfRange;
    if constexpr (sizeof(T) == 4) return __builtin_amdgcn_raw_buffer_load_b32(buffer_, offset, 0, 0);
    else if constexpr (sizeof(T) == 2) return __builtin_amdgcn_raw_buffer_load_b16(buffer_, offset, 0, 0);
    else return __builtin_amdgcn_raw_buffer_load_b8(buffer_, offset, 0, 0);
  }
  /// The entry that was loaded.
  __device__ static T entry(uint32_t loaded) {
    if constexpr (sizeof(T) == 4) return __builtin_bit_cast(T, loaded);
    else if constexpr (sizeof(T) == 2) return __builtin_bit_cast(T, static_cast<uint16_t>(loaded));
    else return static_cast<T>(loaded);
  }

 private:
  BufferDescriptor buffer_;
  uint32_t groups_;
  int skipped_;  // rows before the tile's of those that share its first entry
};

/// Weights as 16-bit numbers. One of 4 bits, taken as the upper half of a byte, is kTimes itself.
template <class Shape>
struct Numbers {
  using Element = typename Shape::Element;
  static constexpr int kTimes = Shape::kBits == 4 ? 16 : 1;

  /// The `index`-th eight of the weights in `words`, less a zero point that is taken kTimes too.
  template <class Words>
  __device__ static Chunk eight(const Words& words, int index, float zero) {
    Chunk result;
    if constexpr (Shape::kBits == 4) {
      const uint32_t upper = words[index] & 0xF0F0F0F0u, lower = words[index] << 4 & 0xF0F0F0F0u;
#pragma unroll
      for (int b = 0; b < 4; ++b) result[b] = pair(number(lower, b), number(upper, b), zero);
    } else {
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const uint32_t word = words[2 * index + b / 2];
        if constexpr (Shape::kIsFp8) result[b] = fp8_pair(word, b % 2 == 1);
        else result[b] = pair(number(word, b % 2 * 2), number(word, b % 2 * 2 + 1), zero);
      }
    }
    return result;
  }

 private:
  /// Byte `b` with its sign: by SDWA one instruction with both compilers, which a shift and a cast are not.
  __device__ static float number(uint32_t bytes, int b) {
    return static_cast<float>(static_cast<int32_t>(__builtin_amdgcn_sbfe(bytes, 8 * b, 8)));
  }
  /// The lower two bytes of a word, or the upper two.
  __device__ static uint32_t fp8_pair(uint32_t word, bool is_upper) {
    const auto bits = static_cast<int>(word);
    const auto two = is_upper ? __builtin_amdgcn_cvt_pk_f32_fp8(bits, true) :
                                __builtin_amdgcn_cvt_pk_f32_fp8(bits, false);
    return Pack<Element, Rounding::kTowardZero>::pack(two[0], two[1]);  // exact
  }
  __device__ static uint32_t pair(float low, float high, float zero) {
    if constexpr (Shape::kHasZeroPoints) low -= zero, high -= zero;
    return Pack<Element, Rounding::kTowardZero>::pack(low, high);  // exact
  }
};

/// Weights [rows, depth] of Shape::kBits that go through LDS as Numbers, less their zero points. BLOCK rows from
/// `first_row` on, of which a wave has ROWS from `wave_row` on. What travels in registers while a step is multiplied is
/// as it stands in memory.
template <class Shape, int BLOCK, int ROWS>
class Dequantised {
 public:
  using Element = typename Shape::Element;
  using Memory = LdsTile<Element, BLOCK, Shape::kDepth, SwizzledByRow>;
  using Slice = RegTile<Element, ROWS, Shape::kSlice, OperandByRow<Shape::kRun>>;

  __device__ Dequantised(const MatrixView<const int8_t>& matrix, const MatrixView<const int8_t>& zero_points,
                         int64_t first_row, int wave_row, int wave_depth, int64_t end)
      : matrix_{matrix.data, {matrix.sizes[0], end * Shape::kBits / 8}, {matrix.strides[0], 1}},
        zero_points_(zero_points, first_row, BLOCK),
        first_row_(first_row),
        wave_row_(wave_row),
        wave_depth_(wave_depth * Shape::kWaveDepth) {}

  __device__ void fetch(int64_t k) {
    const TileWindow<const int8_t, BLOCK, kRowBytes> window(matrix_, first_row_, k * Shape::kBits / 8);
    const BufferDescriptor buffer = window.descriptor();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t offset = window.offset(row(i), piece(i) * kPieceBytes);
      if constexpr (kPieceBytes == 16)
        words_[i] = load_chunk(buffer, offset);
      else
        words_[i] = __builtin_amdgcn_raw_buffer_load_b64(buffer, offset, 0, 0);
      if constexpr (Shape::kHasZeroPoints)
        zeros_[i] = zero_points_.load(row(i), Shape::kGroupSize ? (k + piece(i) * kPieceWeights) / kGroup : 0);
    }
  }

  __device__ void publish(Memory& lds) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float zero = 0;
      if constexpr (Shape::kHasZeroPoints)
        zero = static_cast<float>(Numbers<Shape>::kTimes * GroupEntries<int8_t>::entry(zeros_[i]));
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int byte = (piece(i) * kPieceWeights + c * kRun) * static_cast<int>(sizeof(Element));
        lds.template at<Chunk>(row(i), byte) = Numbers<Shape>::eight(words_[i], c, zero);
      }
    }
  }
  __device__ Slice slice(const Memory& lds, int s) const {
    return load<Slice>(lds, wave_row_, wave_depth_ + s * Shape::kSlice);
  }

 private:
  static constexpr int kRun = Shape::kRun, kGroup = Shape::kGroupSize ? Shape::kGroupSize : 1;
  static constexpr int kRowBytes = Shape::kDepth * Shape::kBits / 8;
  static constexpr int kBytes = BLOCK * kRowBytes / Shape::kThreads;  // bytes of a work-item
  static constexpr int kPieceBytes = kBytes < 16 ? kBytes : 16, kCount = kBytes / kPieceBytes;
  static constexpr int kPieceWeights = kPieceBytes * 8 / Shape::kBits, kChunks = kPieceWeights / kRun;
  static_assert(kPieceBytes >= 8 && kCount * kPieceBytes == kBytes, "whole pieces of 8 or 16 bytes");
  using Words = __attribute__((ext_vector_type(kPieceBytes / 4))) uint32_t;

  // Neighbours have the pieces that become 128 bytes of a row in LDS, then those of the next row: what 8 lanes write at
  // a time lies in all banks. Further pieces of a row come when all rows have been dealt out.
  static constexpr int kNeighbours = 8 / kChunks;
  __device__ static int index(int i) { return thread_index() + i * Shape::kThreads; }
  __device__ static int row(int i) { return index(i) / kNeighbours % BLOCK; }
  __device__ static int piece(int i) { return index(i) / (kNeighbours * BLOCK) * kNeighbours + index(i) % kNeighbours; }

  MatrixView<const int8_t> matrix_;
  GroupEntries<int8_t> zero_points_;
  int64_t first_row_;
  int wave_row_, wave_depth_;
  Words words_[kCount];
  uint32_t zeros_[kCount];
};

/// A shape for few rows, whose weights each one wave alone takes: with no LDS for them a step is twice as deep, so that
/// more is under way.
template <class Config>
struct FewRowsShape : gemm::Shape<Config> {
  using Base = gemm::Shape<Config>;
  static constexpr int kSlices = 4, kWaveDepth = kSlices * Base::kSlice, kDepth = kWaveDepth * Config::kWavesK;
  static constexpr int kAhead = 2;

  /// A lane's weights of a group lie side by side, so that it loads them at once: the four groups of lanes share the
  /// depth of a group of weights, instead of that of a slice.
  static constexpr int kBlock =
      Config::kGroupSize > 0 && Config::kGroupSize < kWaveDepth ? Config::kGroupSize : kWaveDepth;
  static constexpr int kBlocks = kWaveDepth / kBlock, kBlockSlices = kBlock / Base::kSlice, kLaneWeights = kBlock / 4;

  /// The first of a wave's depth that this lane has in slice `s`. LDS serves rows 0 to 3 of a group of lanes together
  /// with rows 4 to 7 of its neighbour: what these two have must be no odd multiple of 64 bytes apart, which is half of
  /// all banks, as the swizzle of the rows is.
  __device__ static int depth(int s) {
    const int group = lane_index() / 16, place = kLaneWeights == 32 ? group >> 1 | (group & 1) << 1 : group;
    return s / kBlockSlices * kBlock + place * kLaneWeights + s % kBlockSlices * Base::kRun;
  }
};

/// Activations for weights in that order, through LDS.
template <class Shape, int BLOCK, int ROWS>
class RowsInBlocks : public ThroughLds<Shape, BLOCK, ROWS> {
  using Base = ThroughLds<Shape, BLOCK, ROWS>;

 public:
  using typename Base::Memory, typename Base::Slice;
  __device__ RowsInBlocks(const MatrixView<const typename Shape::Element>& matrix, int64_t first_row, int wave_row,
                          int wave_depth, int64_t end)
      : Base(matrix, first_row, wave_row, wave_depth, end),
        wave_row_(wave_row),
        wave_depth_(wave_depth * Shape::kWaveDepth) {}

  __device__ Slice slice(const Memory& lds, int s) const {
    Slice slice;
#pragma unroll
    for (int strip = 0; strip < Slice::kStrips; ++strip) {
      const int byte = (wave_depth_ + Shape::depth(s)) * static_cast<int>(sizeof(typename Shape::Element));
      const Chunk chunk = lds.template at<Chunk>(wave_row_ + Slice::Layout::owned(strip), byte);
      slice.pieces[strip][0] = chunk.lo;
      slice.pieces[strip][1] = chunk.hi;
    }
    return slice;
  }

 private:
  int wave_row_, wave_depth_;
};

/// Weights [rows, depth] that go straight to registers, ROWS of them from `first_row` on for one wave, and become
/// Numbers, less their zero points, when they are multiplied.
template <class Shape, int ROWS>
class Straight {
 public:
  using Element = typename Shape::Element;
  struct Memory {};
  using Slice = RegTile<Element, ROWS, Shape::kSlice, OperandByRow<Shape::kRun>>;
  static_assert(Shape::kAhead > 1, "what is fetched takes the place of what has been multiplied");

  __device__ Straight(const MatrixView<const int8_t>& matrix, const MatrixView<const int8_t>& zero_points,
                      int64_t first_row, int wave_depth, int64_t end)
      : matrix_{matrix.data, {matrix.sizes[0], end * Shape::kBits / 8}, {matrix.strides[0], 1}},
        zero_points_(zero_points, first_row, ROWS),
        first_row_(first_row),
        wave_depth_(wave_depth * Shape::kWaveDepth) {}

  __device__ void fetch(int64_t k) {
    const int64_t first = k + wave_depth_;
    const TileWindow<const int8_t, ROWS, kBytes> window(matrix_, first_row_, first * Shape::kBits / 8);
    const BufferDescriptor buffer = window.descriptor();
#pragma unroll
    for (int strip = 0; strip < Slice::kStrips; ++strip) {
      const int row = Slice::Layout::owned(strip);
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int block = p / kBlockPieces, byte = Shape::depth(block * Shape::kBlockSlices) * Shape::kBits / 8;
        load_words(buffer, window.offset(row, byte + p % kBlockPieces * kPieceWords * 4), words_[strip], p);
      }
#pragma unroll
      for (int b = 0; b < Shape::kBlocks; ++b) {
        if constexpr (Shape::kHasZeroPoints)
          zeros_[strip][b] = zero_points_.load(row, Shape::kGroupSize ? (first + b * Shape::kBlock) / kGroup : 0);
      }
    }
  }
  __device__ void publish(Memory&) {}
  __device__ Slice slice(const Memory&, int s) const {
    Slice slice;
#pragma unroll
    for (int strip = 0; strip < Slice::kStrips; ++strip) {
      float zero = 0;
      if constexpr (Shape::kHasZeroPoints)
        zero = static_cast<float>(Numbers<Shape>::kTimes *
                                  GroupEntries<int8_t>::entry(zeros_[strip][s / Shape::kBlockSlices]));
      const Chunk chunk = Numbers<Shape>::eight(words_[strip], s, zero);
      slice.pieces[strip][0] = chunk.lo;
      slice.pieces[strip][1] = chunk.hi;
    }
    return slice;
  }

 private:
  static constexpr int kGroup = Shape::kGroupSize ? Shape::kGroupSize : 1;
  // Bytes of a row; words of a lane
  static constexpr int kBytes = Shape::kWaveDepth * Shape::kBits / 8, kWords = kBytes / 4 / 4;
  static constexpr int kBlockWords = kWords / Shape::kBlocks, kPieceWords = kBlockWords < 4 ? kBlockWords : 4;
  static constexpr int kBlockPieces = kBlockWords / kPieceWords, kPieces = kWords / kPieceWords;

  __device__ static void load_words(BufferDescriptor buffer, uint32_t offset, uint32_t (&words)[kWords], int piece) {
    if constexpr (kPieceWords == 4) {
      const Chunk found = load_chunk(buffer, offset);
#pragma unroll
      for (int w = 0; w < 4; ++w) words[piece * 4 + w] = found[w];
    } else if constexpr (kPieceWords == 2) {
      const auto found = __builtin_amdgcn_raw_buffer_load_b64(buffer, offset, 0, 0);
      words[piece * 2] = found[0], words[piece * 2 + 1] = found[1];
    } else {
      words[piece] = __builtin_amdgcn_raw_buffer_load_b32(buffer, offset, 0, 0);
    }
  }

  MatrixView<const int8_t> matrix_;
  GroupEntries<int8_t> zero_points_;
  int64_t first_row_;
  int wave_depth_;
  uint32_t words_[Slice::kStrips][kWords], zeros_[Slice::kStrips][Shape::kBlocks];
};

/// Adds the products of each group of a step times its scale. A lane needs the scales of the rows of its sums, which
/// its 16 neighbours have alike: each loads one, and DPP hands it to the others.
template <class Shape, class ScaleElement>
class AddScaledGroups {
  using Sums = typename Shape::Sums;
  using Entries = GroupEntries<ScaleElement, Shape::kScaleRows>;

 public:
  __device__ AddScaledGroups(const MatrixView<const ScaleElement>& scale, int64_t first_row, int wave_row,
                             int wave_depth)
      : entries_(scale, first_row, Shape::kBlockN),
        row_(wave_row + Sums::Layout::depth(lane_index() % kRowLanes % Sums::kPerStrip)),
        wave_depth_(wave_depth * Shape::kWaveDepth) {}

  __device__ void fetch(int64_t k) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      next_[g] = entries_.load(row_, (k + wave_depth_ + g * kGroupDepth) / Shape::kGroupSize);
  }
  __device__ void publish() {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) scales_[g] = to_float(Entries::entry(next_[g])) * (1.f / kTimes);
  }
  template <class Products>
  __device__ void add(Sums& sums, Products products) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g > 0) keep_order();  // or the products of all groups are in registers at a time
      Sums part;
      clear(part);
      products(part, g * kGroupSlices, (g + 1) * kGroupSlices);
      add_scaled(sums, part, scales_[g], std::make_integer_sequence<int, Sums::kPerStrip>{});
    }
  }

 private:
  static constexpr int kTimes = Numbers<Shape>::kTimes, kRowLanes = 16;
  static constexpr int kGroupDepth = Shape::kGroupSize < Shape::kWaveDepth ? Shape::kGroupSize : Shape::kWaveDepth;
  static constexpr int kGroups = Shape::kWaveDepth / kGroupDepth, kGroupSlices = Shape::kSlices / kGroups;
  static_assert(kGroupDepth % Shape::kSlice == 0, "groups of whole slices");
  static_assert(Sums::kPerStrip <= kRowLanes, "each value of a row of lanes has a lane");

  template <int... E>
  __device__ static void add_scaled(Sums& sums, const Sums& part, float scale, std::integer_sequence<int, E...>) {
    (add_element<E>(sums, part, from_lane<E>(scale)), ...);
  }
  /// The value of lane `LANE` of this lane's row of 16.
  template <int LANE>
  __device__ static float from_lane(float x) {
    constexpr int kRowNewBroadcast = 0x150;
    return bits_float(__builtin_amdgcn_update_dpp(0, float_bits(x), kRowNewBroadcast + LANE, 0xF, 0xF, true));
  }
  template <int E>
  __device__ static void add_element(Sums& sums, const Sums& part, float scale) {
#pragma unroll
    for (int s = 0; s < Sums::kStrips; ++s) sums.set(s, E, __builtin_fmaf(part.get(s, E), scale, sums.get(s, E)));
  }

  Entries entries_;
  int row_, wave_depth_;
  uint32_t next_[kGroups];
  float scales_[kGroups];
};

template <class Shape, bool kHasFewRows>
struct Operands {
  using Left = ThroughLds<Shape, Shape::kBlockM, Shape::kWaveM>;
  using Right = Dequantised<Shape, Shape::kBlockN, Shape::kWaveN>;
};
template <class Shape>
struct Operands<Shape, true> {
  using Left = RowsInBlocks<Shape, Shape::kBlockM, Shape::kWaveM>;
  using Right = Straight<Shape, Shape::kWaveN>;
};

/// A Config has also OutElement (of out and residual), BiasElement, ScaleElement, kBits, kIsFp8, kGroupSize (0: a scale
/// for all of a row), kScaleRows (rows that share one; 0: all), kHasZeroPoints, kHasBias, kHasResidual, kHasActivation
/// and kActivation.
template <class Config>
struct Body {
  static constexpr bool kHasFewRows = Config::kWavesM == 1;  // each of the weights is then one wave's alone
  using Shape = std::conditional_t<kHasFewRows, FewRowsShape<Config>, gemm::Shape<Config>>;
  using OutElement = typename Config::OutElement;
  using ScaleElement = typename Config::ScaleElement;
  using Args = GemmWeightOnlyArgs<typename Config::Element, OutElement, typename Config::BiasElement, ScaleElement>;
  using Left = typename Operands<Shape, kHasFewRows>::Left;
  using Right = typename Operands<Shape, kHasFewRows>::Right;
  using Memory = gemm::Memory<Shape, Left, Right>;

  /// The workgroups of a compute unit, which registers must allow: as many as LDS has room for, but two for few rows.
  /// It is one where a step of waves of 64 × 64 has two groups of products: two would spill.
  static constexpr int kLdsBytes = 65536, kSimds = 4;
  static constexpr int kFitting = static_cast<int>(kLdsBytes / sizeof(Memory));
  static constexpr int kWorkgroups = kHasFewRows ? 2 : Config::kGroupSize == Shape::kSlice ? 1 : kFitting;
  static constexpr int kWavesPerSimd = kWorkgroups * Shape::kThreads / kWaveSize / kSimds;

  /// From a sum to the element of out, before it is rounded.
  struct Finish {
    const Args& args;
    __device__ float operator()(float x, int64_t row, int64_t column) const {
      if constexpr (Config::kGroupSize == 0)
        x *= element_of(args.scale.data + (Config::kScaleRows == 0 ? 0 : column)) * (1.f / Numbers<Shape>::kTimes);
      if constexpr (Config::kHasBias) x += element_of(args.bias + column);
      if constexpr (Config::kHasActivation) x = activated<Config::kActivation, OutElement>(x);
      if constexpr (Config::kHasResidual) x += element_of(args.residual.data + row * args.residual.strides[0] + column);
      return x;
    }
  };

  /// Runs workgroup `workgroup` (tile, 0, split).
  __device__ __attribute__((always_inline)) static void multiply(const Args& args, WorkgroupIndex workgroup,
                                                                 Memory& lds) {
    const WavePlace<Shape> wave(args.order.at(workgroup.x));
    const Span span = span_of(args.a.sizes[1], workgroup.z, args.split_depth);
    Left left(args.a, wave.first_row, wave.tile_row, wave.depth, span.end);
    Right right = [&] {
      if constexpr (kHasFewRows)
        return Right(args.b, args.zero_points, wave.column(), wave.depth, span.end);
      else
        return Right(args.b, args.zero_points, wave.first_column, wave.tile_column, wave.depth, span.end);
    }();
    auto accumulate = [&] {
      if constexpr (Config::kGroupSize > 0)
        return AddScaledGroups<Shape, ScaleElement>(args.scale, wave.first_column, wave.tile_column, wave.depth);
      else
        return AddProducts{};
    }();
    auto sums = gemm::multiply<Shape>(left, right, accumulate, span, lds);
    store_sums<Shape>(sums, wave, workgroup.z, args.out, args.partials, Finish{args}, lds.sums);
  }

  /// Runs workgroup `workgroup` of the second kernel.
  __device__ static void sum(const Args& args, uint32_t workgroup) {
    sum_partials<Config::kSplits>(args.partials, args.out, workgroup, Finish{args});
  }
};

}  // namespace gemm_weight_only
}  // namespace aiter_like

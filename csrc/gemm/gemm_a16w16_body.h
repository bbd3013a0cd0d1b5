// SPDX-License-Identifier: MIT
// What a workgroup of gemm_a16w16 does, composed from the tile library.
//
// A workgroup computes kBlockM × kBlockN elements of a · bᵀ. Its waves are a grid of kWavesM × kWavesN parts of the
// tile and, with kWavesK > 1, share the depth of each part: their sums meet in LDS at the end, in a fixed order. The
// sums are kept transposed, [columns of out, rows of out], so that a lane has neighbours of a row of out.
#pragma once

#include <type_traits>

#include "../activation/activation.h"
#include "aiter_like/dtype.h"
#include "aiter_like/gpu.h"
#include "aiter_like/tile/map.h"
#include "aiter_like/tile/mma.h"
#include "aiter_like/tile/order.h"
#include "aiter_like/tile/staging.h"

namespace aiter_like {

template <class Element, class OutElement, class BiasElement>
struct GemmA16w16Args {
  tile::MatrixView<const Element> a, b;  // [m, k], [n, k]
  tile::MatrixView<OutElement> out;      // [m, n]
  tile::MatrixView<const OutElement> residual;  // [m, n]; read where the build has one
  const BiasElement* bias;               // [n]; read where the build has one
  float* partials;                       // [splits, m, n] where the depth is split
  tile::TileOrder order;
  int64_t split_depth;                   // of k for each split, a multiple of Shape::kDepth
};

namespace gemm_a16w16 {

using namespace tile;

/// A configuration, and the tiles that follow from it. A Config has
///   Element, OutElement, BiasElement   of a and b: bf16 or f16; of out and residual; of bias
///   kBlockM, kBlockN                   of out, for a workgroup
///   kWavesM, kWavesN, kWavesK          waves along the rows, the columns and the depth
///   kHasBias, kHasResidual, kHasActivation, kActivation
///   kIsSplit                           workgroups share the depth too; a second kernel adds their sums up
template <class Config>
struct Shape : Config {
  using Element = typename Config::Element;
  using Args = GemmA16w16Args<Element, typename Config::OutElement, typename Config::BiasElement>;
  static constexpr int kParts = Config::kWavesM * Config::kWavesN;
  static constexpr int kThreads = kParts * Config::kWavesK * kWaveSize;
  static constexpr int kWaveM = Config::kBlockM / Config::kWavesM, kWaveN = Config::kBlockN / Config::kWavesN;

  /// 16 bytes of each lane cover a slice of the depth; a row of a wave's tile in LDS is all 32 banks, two slices.
  static constexpr int kRun = 16 / sizeof(Element), kSlice = 4 * kRun, kSlices = 2, kWaveDepth = kSlices * kSlice;
  static constexpr int kDepth = kWaveDepth * Config::kWavesK;

  using LeftTile = LdsTile<Element, Config::kBlockM, kDepth, SwizzledByRow>;
  using RightTile = LdsTile<Element, Config::kBlockN, kDepth, SwizzledByRow>;
  using LeftSlice = RegTile<Element, kWaveM, kSlice, OperandByRow<kRun>>;
  using RightSlice = RegTile<Element, kWaveN, kSlice, OperandByRow<kRun>>;
  using Sums = RegTile<float, kWaveN, kWaveM, Product<>>;
  static constexpr int kSumPieces = Sums::kStrips * Sums::kPieces;

  struct Operands {
    LeftTile left;
    RightTile right;
  };
  /// In LDS: the operands of a step, then the sums of the waves that share a part with its first one.
  union Memory {
    Operands operands;
    Accumulator sums[Config::kWavesK > 1 ? (Config::kWavesK - 1) * kParts : 1][kSumPieces][kWaveSize];
  };
};

/// The part of the tile that a wave has.
template <class Shape>
struct WavePlace {
  int part = wave_index() % Shape::kParts, depth = wave_index() / Shape::kParts;
  int row = part / Shape::kWavesN * Shape::kWaveM, column = part % Shape::kWavesN * Shape::kWaveN;
};

/// b · aᵀ over the columns `first` to `end` of both, for this wave's part and share of the depth. While a step is
/// multiplied the next one travels in registers.
template <class Shape>
__device__ typename Shape::Sums multiply(const typename Shape::Args& args, int64_t first_row, int64_t first_column,
                                         int64_t first, int64_t end, const WavePlace<Shape>& wave,
                                         typename Shape::Operands& lds) {
  using Matrix = MatrixView<const typename Shape::Element>;
  const Matrix a{args.a.data, {args.a.sizes[0], end}, {args.a.strides[0], 1}};
  const Matrix b{args.b.data, {args.b.sizes[0], end}, {args.b.strides[0], 1}};
  Staged<typename Shape::LeftTile, Shape::kThreads> left;
  Staged<typename Shape::RightTile, Shape::kThreads> right;
  const auto fetch = [&](int64_t k) {
    left.load(TileWindow<const typename Shape::Element, Shape::kBlockM, Shape::kDepth>(a, first_row, k));
    right.load(TileWindow<const typename Shape::Element, Shape::kBlockN, Shape::kDepth>(b, first_column, k));
  };
  typename Shape::Sums sums;
  clear(sums);
  if (first < end) fetch(first);
  for (int64_t k = first; k < end; k += Shape::kDepth) {
    left.store(lds.left);
    right.store(lds.right);
    workgroup_barrier();  // The step is there.
    if (k + Shape::kDepth < end) fetch(k + Shape::kDepth);
#pragma unroll
    for (int s = 0; s < Shape::kSlices; ++s) {
      const int depth = wave.depth * Shape::kWaveDepth + s * Shape::kSlice;
      const auto a_slice = load<typename Shape::LeftSlice>(lds.left, wave.row, depth);
      const auto b_slice = load<typename Shape::RightSlice>(lds.right, wave.column, depth);
      mma<Form::ABt>(sums, b_slice, a_slice);
    }
    workgroup_barrier();  // All waves have read it.
  }
  return sums;
}

/// Adds the sums of the waves of a part up in its first wave, in the order of the waves.
template <class Shape>
__device__ void add_waves(typename Shape::Sums& sums, const WavePlace<Shape>& wave, typename Shape::Memory& lds) {
  const auto piece = [&](int depth, int strip, int p) -> Accumulator& {
    return lds.sums[(depth - 1) * Shape::kParts + wave.part][strip * Shape::Sums::kPieces + p][lane_index()];
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

template <class T>
__device__ float element_of(const T* data) {
  T value;
  __builtin_memcpy(&value, data, sizeof(T));
  return to_float(value);
}

/// From an element of a · bᵀ inside of out to the one of out, before it is rounded.
template <class Shape>
__device__ float finished(const typename Shape::Args& args, float x, int64_t row, int64_t column) {
  if constexpr (Shape::kHasBias) x += element_of(args.bias + column);
  if constexpr (Shape::kHasActivation) x = activated<Shape::kActivation, typename Shape::OutElement>(x);
  if constexpr (Shape::kHasResidual) x += element_of(args.residual.data + row * args.residual.strides[0] + column);
  return x;
}

/// What workgroup `workgroup` (tile, 0, split) does. `lds` is a Shape<Config>::Memory.
template <class Config>
__device__ __attribute__((always_inline)) void product_body(const typename Shape<Config>::Args& args,
                                                            WorkgroupIndex workgroup,
                                                            typename Shape<Config>::Memory& lds) {
  using Shape = gemm_a16w16::Shape<Config>;
  const TilePlace place = args.order.at(workgroup.x);
  const int64_t first_row = int64_t{place.row} * Shape::kBlockM, first_column = int64_t{place.column} * Shape::kBlockN;
  const int64_t k = args.a.sizes[1], first = workgroup.z * args.split_depth;
  const int64_t end = k - first < args.split_depth ? k : first + args.split_depth;

  const WavePlace<Shape> wave;
  auto sums = multiply<Shape>(args, first_row, first_column, first, end, wave, lds.operands);
  if constexpr (Shape::kWavesK > 1) {
    add_waves<Shape>(sums, wave, lds);
    if (wave.depth > 0) return;
  }
  const int64_t row = first_row + wave.row, column = first_column + wave.column;
  const int64_t rows = args.out.sizes[0], columns = args.out.sizes[1];
  if constexpr (Shape::kIsSplit) {
    const MatrixView<float> partial{args.partials + workgroup.z * rows * columns, {rows, columns}, {columns, 1}};
    store_transposed<Rounding::kNearestEven>(TileWindow<float, Shape::kWaveM, Shape::kWaveN>(partial, row, column),
                                             sums, 0);
  } else {
    map_indexed(sums, [&](float x, int n, int m) {
      return row + m < rows && column + n < columns ? finished<Shape>(args, x, row + m, column + n) : x;
    });
    using OutWindow = TileWindow<typename Shape::OutElement, Shape::kWaveM, Shape::kWaveN>;
    store_transposed<Rounding::kNearestEven>(OutWindow(args.out, row, column), sums, 0);
  }
}

constexpr int kSumThreads = 256, kSumColumns = 4;  // of a work-item

/// Adds the partial sums of kSumColumns elements up, in the order of the splits, and finishes them.
template <class Config>
__device__ void sum_body(const typename Shape<Config>::Args& args, uint32_t workgroup, int splits) {
  using Shape = gemm_a16w16::Shape<Config>;
  using OutElement = typename Shape::OutElement;
  const int64_t rows = args.out.sizes[0], columns = args.out.sizes[1], size = rows * columns;
  const int64_t index = (int64_t{workgroup} * kSumThreads + thread_index()) * kSumColumns;
  if (index >= size) return;
  const int64_t row = index / columns, column = index % columns;
  Accumulator sum{};
  for (int split = 0; split < splits; ++split) {
    Accumulator part;
    __builtin_memcpy(&part, args.partials + split * size + index, sizeof(part));
    sum += part;
  }
  Vec<OutElement, kSumColumns> values;
#pragma unroll
  for (int i = 0; i < kSumColumns; ++i)
    values[i] = from_float<OutElement>(finished<Shape>(args, sum[i], row, column + i));
  __builtin_memcpy(args.out.data + row * args.out.strides[0] + column, &values, sizeof(values));
}

}  // namespace gemm_a16w16
}  // namespace aiter_like

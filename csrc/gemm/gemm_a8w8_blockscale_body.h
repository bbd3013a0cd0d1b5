// SPDX-License-Identifier: MIT
// What a workgroup of gemm_a8w8_blockscale does: fp8 operands, products scaled block by block, sums in fp32.
#pragma once

#include "block_scales.h"

namespace aiter_like {

template <class OutElement>
struct GemmA8w8BlockscaleArgs {
  tile::MatrixView<const fp8> a, b;    // [m, k], [n, k]
  tile::MatrixView<OutElement> out;    // [m, n]
  gemm::ScaleMatrix a_scale, b_scale;  // [m, ceil(k / 128)], [ceil(n / 128), ceil(k / 128)]
  gemm::Partials<float> partials;      // where the depth is split
  tile::TileOrder order;
  int64_t split_depth;                 // of k for each split, a multiple of Shape::kDepth
};

namespace gemm_a8w8_blockscale {

using namespace gemm;

/// A Config has also OutElement and kIsPreshuffled.
template <class Config>
struct Body {
  using Shape = gemm::Shape<Config>;
  using Args = GemmA8w8BlockscaleArgs<typename Config::OutElement>;
  using Left = ThroughLds<Shape, Shape::kBlockM, Shape::kWaveM>;
  using Right = std::conditional_t<Config::kIsPreshuffled, Preshuffled<Shape, Shape::kWaveN>,
                                   ThroughLds<Shape, Shape::kBlockN, Shape::kWaveN>>;
  using Memory = gemm::Memory<Shape, Left, Right>;

  /// What LDS holds of workgroups whose weights go through it, the compiler must leave registers for.
  static constexpr int kLdsBytes = 65536, kStepBytes = (Shape::kBlockM + Shape::kBlockN) * Shape::kDepth;
  static constexpr int kWavesPerSimd = kLdsBytes / kStepBytes * Shape::kThreads / kWaveSize / 4;

  struct Finish {
    __device__ float operator()(float x, int64_t, int64_t) const { return x; }
  };

  __device__ static Right right_of(const Args& args, const WavePlace<Shape>& wave, int64_t end) {
    if constexpr (Config::kIsPreshuffled)
      return Right(args.b, wave.column(), wave.depth, end);
    else
      return Right(args.b, wave.first_column, wave.tile_column, wave.depth, end);
  }

  /// What workgroup `workgroup` (tile, 0, split) does.
  __device__ __attribute__((always_inline)) static void multiply(const Args& args, WorkgroupIndex workgroup,
                                                                 Memory& lds) {
    const WavePlace<Shape> wave(args.order.at(workgroup.x));
    const int64_t m = args.out.sizes[0], n = args.out.sizes[1], k = args.a.sizes[1];
    const Span span = span_of(k, workgroup.z, args.split_depth);
    Left left(args.a, wave.first_row, wave.tile_row, wave.depth, span.end);
    Right right = right_of(args, wave, span.end);
    AddScaledBlocks<Shape> accumulate(args.a_scale, args.b_scale, wave, m, n, k);
    auto sums = gemm::multiply<Shape>(left, right, accumulate, span, lds);
    store_sums<Shape>(sums, wave, workgroup.z, args.out, args.partials, Finish{}, lds.sums);
  }

  /// What workgroup `workgroup` of the second kernel does.
  __device__ static void sum(const Args& args, uint32_t workgroup) {
    sum_partials<Config::kSplits>(args.partials, args.out, workgroup, Finish{});
  }
};

}  // namespace gemm_a8w8_blockscale
}  // namespace aiter_like

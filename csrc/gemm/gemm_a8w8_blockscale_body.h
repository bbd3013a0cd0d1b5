// SPDX-License-Identifier: MIT
// What a workgroup of gemm_a8w8_blockscale does: fp8 operands, products scaled block by block, sums in fp32.
#pragma once

#include "gemm_scaled_pipeline.h"

namespace aiter_like {

template <class OutElement>
struct GemmA8w8BlockscaleArgs {
  tile::MatrixView<const fp8> a, b;    // [m, k], [n, k]
  tile::MatrixView<OutElement> out;    // [m, n]
  gemm::ScaleMatrix a_scale, b_scale;  // [m, ceil(k / 128)], [ceil(n / 128), ceil(k / 128)]
  gemm::Partials<float> partials;      // used where the depth is split
  tile::TileOrder order;
  int64_t split_depth;                 // k of each split, a multiple of Shape::kDepth
};

namespace gemm_a8w8_blockscale {

using namespace gemm;

/// A Config has also OutElement and kIsPreshuffled.
template <class Config>
struct Body {
  using Shape = gemm::Shape<Config>;
  using Args = GemmA8w8BlockscaleArgs<typename Config::OutElement>;
  using Loop = ScaledLoop<Shape, Config::kIsPreshuffled ? 16 : 0>;
  using Memory = typename Loop::Memory;
  static constexpr int kWavesPerSimd = Loop::kWavesPerSimd;

  struct Finish {
    __device__ float operator()(float x, int64_t, int64_t) const { return x; }
  };

  /// Runs workgroup `workgroup` (tile, 0, split).
  __device__ __attribute__((always_inline)) static void multiply(const Args& args, WorkgroupIndex workgroup,
                                                                 Memory& lds) {
    const WavePlace<Shape> wave(args.order.at(workgroup.x));
    const Span span = span_of(args.a.sizes[1], workgroup.z, args.split_depth);
    auto sums = Loop::multiply(args.a, args.b, args.a_scale, args.b_scale, wave, span, lds);
    store_sums<Shape>(sums, wave, workgroup.z, args.out, args.partials, Finish{}, lds.sums);
  }

  /// Runs workgroup `workgroup` of the second kernel.
  __device__ static void sum(const Args& args, uint32_t workgroup) {
    sum_partials<Config::kSplits>(args.partials, args.out, workgroup, Finish{});
  }
};

}  // namespace gemm_a8w8_blockscale
}  // namespace aiter_like

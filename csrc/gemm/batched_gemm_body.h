// SPDX-License-Identifier: MIT
// What a workgroup of batched_gemm does: it finds its matrix of the batch; operands through LDS, then scales and bias.
#pragma once

#include "gemm_pipeline.h"

namespace aiter_like {

template <class Config>
struct BatchedGemmArgs {
  tile::GlobalView<const typename Config::Element, 3> a, b;  // [batch, m, k], [batch, n, k]
  tile::GlobalView<typename Config::OutElement, 3> out;      // [batch, m, n]
  gemm::VectorPerMatrix<typename Config::BiasElement> bias;  // n each; read where the build has one
  gemm::VectorPerMatrix<float> a_scale, b_scale;             // m and n each; read where the build has them
  gemm::Partials<typename Config::Sum> partials;             // used where the depth is split
  tile::TileOrder order;                                     // order of each matrix's tiles
  int64_t split_depth;                                       // k of each split, a multiple of Shape::kDepth
};

namespace batched_gemm {

using namespace gemm;

/// A Config has also OutElement, BiasElement, kHasBias and kHasScales.
template <class Config>
struct Body {
  using Shape = gemm::Shape<Config>;
  using Args = BatchedGemmArgs<Config>;
  using Loop = MainLoop<Shape, 0>;
  using Memory = typename Loop::Memory;

  __device__ static ScaleAndBias<Config> finish_of(const Args& args, int64_t matrix) {
    return {args.a_scale.at(matrix), args.b_scale.at(matrix), args.bias.at(matrix)};
  }

  /// Runs workgroup `workgroup` (tile of a matrix, 0, split).
  __device__ __attribute__((always_inline)) static void multiply(const Args& args, WorkgroupIndex workgroup,
                                                                 Memory& lds) {
    const uint32_t tiles = args.order.count();
    const uint32_t index = neighbour_on_xcd(workgroup.x, tiles * static_cast<uint32_t>(args.a.sizes[0]));
    const int64_t matrix = index / tiles;
    const WavePlace<Shape> wave(args.order.place(index % tiles));
    const Span span = span_of(args.a.sizes[2], workgroup.z, args.split_depth);
    auto sums = Loop::multiply(args.a.template select<0>(matrix), args.b.template select<0>(matrix), wave, span, lds);
    store_sums<Shape>(sums, wave, workgroup.z, args.out.template select<0>(matrix),
                      args.partials.template of_matrix<Shape::kSplits>(matrix), finish_of(args, matrix), lds.sums);
  }

  /// Runs workgroup `workgroup` (elements, matrix) of the second kernel.
  __device__ static void sum(const Args& args, WorkgroupIndex workgroup) {
    const int64_t matrix = workgroup.y;
    sum_partials<Config::kSplits>(args.partials.template of_matrix<Config::kSplits>(matrix),
                                  args.out.template select<0>(matrix), workgroup.x, finish_of(args, matrix));
  }
};

}  // namespace batched_gemm
}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// What a workgroup of gemm_a16w16 does: operands through LDS, sums in fp32, then bias, activation and residual.
#pragma once

#include "../activation/activation.h"
#include "gemm_pipeline.h"

namespace aiter_like {

template <class Element, class OutElement, class BiasElement>
struct GemmA16w16Args {
  tile::MatrixView<const Element> a, b;         // [m, k], [n, k]
  tile::MatrixView<OutElement> out;             // [m, n]
  tile::MatrixView<const OutElement> residual;  // [m, n]; read where the build has one
  const BiasElement* bias;                      // [n]; read where the build has one
  gemm::Partials<float> partials;               // where the depth is split
  tile::TileOrder order;
  int64_t split_depth;                          // of k for each split, a multiple of Shape::kDepth
};

namespace gemm_a16w16 {

using namespace gemm;

/// A Config has also OutElement (of out and residual), BiasElement, kIsShuffled (b), kHasBias, kHasResidual,
/// kHasActivation and kActivation.
template <class Config>
struct Body {
  using Shape = gemm::Shape<Config>;
  using Element = typename Config::Element;
  using OutElement = typename Config::OutElement;
  using Args = GemmA16w16Args<Element, OutElement, typename Config::BiasElement>;
  using Loop = MainLoop<Shape, Config::kIsShuffled ? 16 : 0>;
  using Memory = typename Loop::Memory;

  /// From an element of a · bᵀ to the one of out, before it is rounded.
  struct Finish {
    const Args& args;
    __device__ float operator()(float x, int64_t row, int64_t column) const {
      if constexpr (Config::kHasBias) x += element_of(args.bias + column);
      if constexpr (Config::kHasActivation) x = activated<Config::kActivation, OutElement>(x);
      if constexpr (Config::kHasResidual) x += element_of(args.residual.data + row * args.residual.strides[0] + column);
      return x;
    }
  };

  /// What workgroup `workgroup` (tile, 0, split) does.
  __device__ __attribute__((always_inline)) static void multiply(const Args& args, WorkgroupIndex workgroup,
                                                                 Memory& lds) {
    const WavePlace<Shape> wave(args.order.at(workgroup.x));
    const Span span = span_of(args.a.sizes[1], workgroup.z, args.split_depth);
    auto sums = Loop::multiply(args.a, args.b, wave, span, lds);
    store_sums<Shape>(sums, wave, workgroup.z, args.out, args.partials, Finish{args}, lds.sums);
  }

  /// What workgroup `workgroup` of the second kernel does.
  __device__ static void sum(const Args& args, uint32_t workgroup) {
    sum_partials<Config::kSplits>(args.partials, args.out, workgroup, Finish{args});
  }
};

}  // namespace gemm_a16w16
}  // namespace aiter_like

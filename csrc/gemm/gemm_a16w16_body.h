// SPDX-License-Identifier: MIT
// What a workgroup of gemm_a16w16 does: operands through LDS, sums in fp32, then bias, activation and residual.
#pragma once

#include "../activation/activation.h"
#include "gemm_gated.h"
#include "gemm_pipeline.h"

namespace aiter_like {

template <class Element, class OutElement, class BiasElement>
struct GemmA16w16Args {
  tile::MatrixView<const Element> a, b;         // [m, k]; [n, k], or [2 n, k] if kIsGated
  tile::MatrixView<OutElement> out;             // [m, n]
  tile::MatrixView<const OutElement> residual;  // [m, n]; read where the build has one
  const BiasElement* bias;                      // one for each row of b; read where the build has one
  gemm::Partials<float> partials;               // used where the depth is split
  tile::TileOrder order;
  int64_t split_depth;                          // k of each split, a multiple of Shape::kDepth
};

namespace gemm_a16w16 {

using namespace gemm;

/// A Config has also OutElement (of out and residual), BiasElement, kIsShuffled (b), kHasBias, kHasResidual,
/// kHasActivation, kActivation and kIsGated: out = act(gate) · up, gate the first and up the second half of b's rows.
template <class Config>
struct Body {
  using Shape = gemm::Shape<Config>;
  using Element = typename Config::Element;
  using OutElement = typename Config::OutElement;
  using Args = GemmA16w16Args<Element, OutElement, typename Config::BiasElement>;
  using Loop = std::conditional_t<Config::kIsGated, GatedLoop<Shape>, MainLoop<Shape, Config::kIsShuffled ? 16 : 0>>;
  using Memory = typename Loop::Memory;
  static_assert(!Config::kIsGated || !Config::kIsShuffled, "gates of shuffled weights have no loop");

  /// From an element of a · bᵀ, or from gate and up, to the one of out, before it is rounded.
  struct Finish {
    const Args& args;
    __device__ float operator()(float x, int64_t row, int64_t column) const {
      return last(activated_of(with_bias(x, column)), row, column);
    }
    __device__ float gated(float gate, float up, int64_t column) const {
      return activated_of(with_bias(gate, column)) * with_bias(up, args.out.sizes[1] + column);
    }
    __device__ float last(float x, int64_t row, int64_t column) const {
      if constexpr (Config::kHasResidual) x += element_of(args.residual.data + row * args.residual.strides[0] + column);
      return x;
    }

   private:
    __device__ float with_bias(float x, int64_t column) const {
      if constexpr (Config::kHasBias) x += element_of(args.bias + column);
      return x;
    }
    __device__ static float activated_of(float x) {
      if constexpr (Config::kHasActivation) return activated<Config::kActivation, OutElement>(x);
      return x;
    }
  };

  /// Runs workgroup `workgroup` (tile, 0, split).
  __device__ __attribute__((always_inline)) static void multiply(const Args& args, WorkgroupIndex workgroup,
                                                                 Memory& lds) {
    const TilePlace tile = args.order.at(workgroup.x);
    const WavePlace<Shape> wave(tile);
    const Span span = span_of(args.a.sizes[1], workgroup.z, args.split_depth);
    auto sums = Loop::multiply(args.a, args.b, wave, span, lds);
    const Finish finish{args};
    if constexpr (Config::kIsGated)
      store_gated_sums<Shape>(sums, tile, workgroup.z, args.out, args.partials, finish, lds.sums);
    else
      store_sums<Shape>(sums, wave, workgroup.z, args.out, args.partials, finish, lds.sums);
  }

  /// Runs workgroup `workgroup` of the second kernel.
  __device__ static void sum(const Args& args, uint32_t workgroup) {
    const Finish finish{args};
    if constexpr (Config::kIsGated) sum_gated_partials<Config::kSplits>(args.partials, args.out, workgroup, finish);
    else sum_partials<Config::kSplits>(args.partials, args.out, workgroup, finish);
  }
};

}  // namespace gemm_a16w16
}  // namespace aiter_like

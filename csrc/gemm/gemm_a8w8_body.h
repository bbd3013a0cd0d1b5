// SPDX-License-Identifier: MIT
// What a workgroup of gemm_a8w8 does: sums of fp8 in fp32 or of int8 in int32, then scales and bias.
#pragma once

#include "gemm_pipeline.h"

namespace aiter_like {

/// Scales of one axis of out: one for each index, or a single one.
struct GemmScales {
  const float* data;
  bool is_each;

  __device__ float at(int64_t index) const { return gemm::element_of(data + (is_each ? index : 0)); }
};

template <class Element, class Sum, class OutElement, class BiasElement>
struct GemmA8w8Args {
  tile::MatrixView<const Element> a, b;  // [m, k], [n, k]; shuffled, b may have more columns
  tile::MatrixView<OutElement> out;      // [m, n]
  GemmScales a_scale, b_scale;           // scales of rows and columns of out
  const BiasElement* bias;               // [n]; read where the build has one
  gemm::Partials<Sum> partials;          // used where the depth is split
  tile::TileOrder order;
  int64_t split_depth;                   // k of each split, a multiple of Shape::kDepth
};

namespace gemm_a8w8 {

using namespace gemm;

/// A Config has also OutElement, BiasElement, kHasBias and kBand: the rows of a band where b is shuffled, else 0.
template <class Config>
struct Body {
  using Shape = gemm::Shape<Config>;
  using Element = typename Config::Element;
  using Sum = typename Config::Sum;
  using OutElement = typename Config::OutElement;
  using Args = GemmA8w8Args<Element, Sum, OutElement, typename Config::BiasElement>;
  using Loop = MainLoop<Shape, Config::kBand>;
  using Memory = typename Loop::Memory;

  /// From an element of a · bᵀ to the one of out, before it is rounded.
  struct Finish {
    const Args& args;
    __device__ float operator()(Sum x, int64_t row, int64_t column) const {
      float y = static_cast<float>(x) * args.a_scale.at(row) * args.b_scale.at(column);
      if constexpr (Config::kHasBias) y += element_of(args.bias + column);
      return y;
    }
  };

  /// Runs workgroup `workgroup` (tile, 0, split).
  __device__ __attribute__((always_inline)) static void multiply(const Args& args, WorkgroupIndex workgroup,
                                                                 Memory& lds) {
    const WavePlace<Shape> wave(args.order.at(workgroup.x));
    const Span span = span_of(args.a.sizes[1], workgroup.z, args.split_depth);
    auto sums = Loop::multiply(args.a, args.b, wave, span, lds);
    store_sums<Shape>(sums, wave, workgroup.z, args.out, args.partials, Finish{args}, lds.sums);
  }

  /// Runs workgroup `workgroup` of the second kernel.
  __device__ static void sum(const Args& args, uint32_t workgroup) {
    sum_partials<Config::kSplits>(args.partials, args.out, workgroup, Finish{args});
  }
};

}  // namespace gemm_a8w8
}  // namespace aiter_like

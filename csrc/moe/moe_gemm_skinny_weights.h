// SPDX-License-Identifier: MIT
// How moe_gemm_skinny reads and multiplies weights: policies by their format, and by their order in memory.
#pragma once

#include "../gemm/packed_unit.h"

namespace aiter_like::moe_skinny {

struct PlainProducts;  // moe_gemm_skinny_body.h has these.
struct PackedProducts;
struct GroupedProducts;

/// Weights that are elements of a. A policy has
///   Unit, Products          the matrix instruction; how a step's operands go through it
///   Exchange                what the lanes of a wave exchange in LDS for so many units
///   kParts, row_depth()     parts of a step's depth, by which rows of a go to the instruction; where a lane reads one
///   kMultiple               so many weights a row has, or a multiple
///   direct()                the instruction's operand from runs that lie in memory as it wants them
template <class Element>
struct PlainWeights {
  using Unit = skinny::Unit<Element>;
  using Products = PlainProducts;
  template <int kUnits>
  using Exchange = typename Unit::Exchange;
  static constexpr int kParts = 1, kMultiple = 1;
  __device__ static int row_depth(int) { return Unit::depth(); }
  template <class Runs, class Lds>
  __device__ static auto direct(const Runs& runs, Lds&) {
    return Unit::direct(runs);
  }
};

#if defined(__HIP__)

/// Weights of fewer bits than a.
template <class Element, skinny::Format FORMAT>
struct PackedWeights : PlainWeights<Element> {
  using Unit = skinny::PackedUnit<Element, FORMAT>;
  using Products = PackedProducts;
  static constexpr int kParts = Unit::kParts, kMultiple = Unit::kRun;
  __device__ static int row_depth(int part) { return Unit::row_depth(part); }
  template <class Runs, class Lds>
  __device__ static auto direct(const Runs& runs, Lds&) {
    return Unit::direct(runs);
  }
};

/// Weights of which each kGroup along the depth share a scale, by which the sums over them are scaled.
template <class Element, skinny::Format FORMAT, int kGroup>
struct GroupedWeights {
  using Unit = skinny::GroupedUnit<Element, FORMAT, kGroup>;
  using Products = GroupedProducts;
  template <int kUnits>
  struct Exchange : Unit::Exchange {
    float scales[kUnits][Unit::kStepGroups][Unit::kColumns];
  };
  static constexpr int kParts = Unit::kParts, kMultiple = Unit::kRun;
  __device__ static int row_depth(int part) { return Unit::row_depth(part); }
  template <class Runs, class Lds>
  __device__ static auto direct(const Runs& runs, Lds& lds) {
    return Unit::direct(runs, lds);
  }
};

/// Weights by their format; kGroup is 0 where sums over groups have no scales.
template <class Element, skinny::Format FORMAT, int kGroup>
using WeightsOf = std::conditional_t<
    FORMAT == skinny::Format::same, PlainWeights<Element>,
    std::conditional_t<kGroup == 0, PackedWeights<Element, FORMAT>, GroupedWeights<Element, FORMAT, kGroup>>>;

#else

template <class Element, skinny::Format, int>
using WeightsOf = PlainWeights<Element>;

#endif

/// Rows of the weights one after the other.
struct RowsInOrder {
  static constexpr uint32_t kApart = 1;  // runs of a row
  __device__ static uint64_t unit_offset(uint32_t row, uint32_t row_bytes) { return uint64_t{row} * row_bytes; }
  __device__ static uint32_t row_offset(uint32_t row, uint32_t row_bytes) { return row * row_bytes; }
  template <class Unit>
  __device__ static int column(int run) {
    return Unit::column(run);
  }
  template <class Unit>
  __device__ static int depth(int) {
    return Unit::depth();
  }
  template <class Weights, class Runs, class Lds>
  __device__ static auto columns(const Runs& runs, Lds& lds) {
    return Weights::Unit::columns(runs, lds);
  }
};

/// Rows as shuffle_weight puts them: runs of kBand rows side by side.
struct ShuffledRows {
  static constexpr uint32_t kBand = 16, kApart = kBand;
  __device__ static uint64_t unit_offset(uint32_t row, uint32_t row_bytes) {
    return uint64_t{row / kBand * kBand} * row_bytes + row % kBand * skinny::kRunBytes;
  }
  __device__ static uint32_t row_offset(uint32_t row, uint32_t) { return row * skinny::kRunBytes; }
  template <class Unit>
  __device__ static int column(int run) {
    return Unit::direct_column(run);
  }
  template <class Unit>
  __device__ static int depth(int run) {
    return Unit::direct_depth(run);
  }
  template <class Weights, class Runs, class Lds>
  __device__ static auto columns(const Runs& runs, Lds& lds) {
    return Weights::direct(runs, lds);
  }
};

}  // namespace aiter_like::moe_skinny

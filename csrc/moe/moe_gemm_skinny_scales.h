// SPDX-License-Identifier: MIT
// The scales of moe_gemm_skinny: a policy for each kind tells which scales a call has, and In<Shape> how a lane reads
// those of a step and what it does with them.
#pragma once

#include <tuple>
#include <type_traits>

#include "aiter_like/dtype.h"
#include "moe_gemm_skinny_weights.h"

namespace aiter_like {

template <class Config>
struct MoeGemmSkinnyArgs;

namespace moe_skinny {

using skinny::within;

/// Scales of rows of a and of b; of rows of b alone; of blocks of both; of mxfp4's groups of 32; of groups of rows of
/// b, or of blocks of fp8, by which the sums over them are scaled.
enum class ScaleKind { none, rows, weights, blocks, groups, sums };
constexpr uint32_t kScaleBlock = 128, kScaleGroup = 32;

/// A lane without scales, which does nothing, and from which the other kinds differ. Products of GROUPS parts of a
/// step's depth are scaled apart.
template <class Shape, int GROUPS = 1>
struct Unscaled {
  using Args = MoeGemmSkinnyArgs<Shape>;
  static constexpr int kGroups = GROUPS;
  /// The scales of a step.
  struct Step {
    float a[Shape::kUnitsM][kGroups];  // of the lane's rows of a, where blocks have scales
    /// The factor of a product of units n and m, and those of each of its rows of the weights.
    __device__ float of_product(float factor, int, int, int) const { return factor; }
    __device__ float of_row(float scale, int, int) const { return scale; }
    /// Those that widen unit n of mxfp4.
    __device__ uint32_t exponents(int) const { return 0; }
  };
  /// Finds the scales of the lane's rows.
  __device__ void start(const Args&, uint32_t, uint32_t) {}
  __device__ void select(const Args&, int64_t) {}
  /// Loads what scales the step that begins at `k`; of_pair is the row of a that all others count from.
  __device__ void load(const Args&, Step&, uint32_t, uint32_t) const {}
  /// Follows load() of a step that reaches beyond the depth.
  __device__ void complete(const Args&, Step&, uint32_t) const {}
  /// A sum that no step has scaled, times the scales of a pair and of row `row` of the weights.
  template <class Row>
  __device__ static float scaled(const Args&, float sum, const Row&, uint32_t) {
    return sum;
  }
};

/// Finds the scales that a lane needs for each of its units: of its row of the instruction's operand, or of the rows of
/// its kEach sums; kSharing rows of b share a scale.
template <class Shape, int kEach, uint32_t kSharing = 1, int GROUPS = 1>
class ScaledRows : public Unscaled<Shape, GROUPS> {
  using Unit = typename Shape::Unit;

 public:
  using Args = MoeGemmSkinnyArgs<Shape>;
  __device__ void start(const Args& args, uint32_t first_row, uint32_t strip_rows) {
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int column = kEach == 1 ? lane_index() % Unit::kColumns : Unit::sum_column(lane_index(), i);
        row_[u][i] =
            (Shape::unit_row(u, first_row, strip_rows) + within(column, strip_rows)) / kSharing * args.b_scale_row;
      }
    }
  }
  __device__ void select(const Args& args, int64_t expert) { expert_ = expert * args.b_scale_expert; }

 protected:
  __device__ auto* scales(const Args& args, int u, int i = 0) const { return args.b_scale + expert_ + row_[u][i]; }

  int64_t expert_ = 0;
  uint32_t row_[Shape::kUnitsN][kEach];
};

constexpr int kLaneSums = 4;  // in a unit

struct NoScales {
  static constexpr bool kIsOfA = false, kIsOfB = false;
  static constexpr bool kIsOfProducts = false;  // which are scaled before they are added up
  static constexpr uint32_t kRows = 1;          // of b share a scale
  /// Numbers of b_scale along the depth, 0 where a row has one.
  static constexpr int64_t groups(int64_t) { return 0; }
  /// The scale of the row of a that pair `pair` has, or of any row if it is none.
  template <class Args, class Pair>
  __device__ static float of_a(const Args&, Pair, bool) {
    return 1.f;
  }
  /// The compiler drops what sums of a token's pairs find of rows, but orders instructions as where these have scales.
  template <class Shape>
  using In = std::conditional_t<Shape::kIsSum, ScaledRows<Shape, kLaneSums>, Unscaled<Shape>>;
};

/// Scales of rows: those of sums over all of the depth come at the end.
template <class Shape>
struct RowScalesOfSums : Unscaled<Shape> {
  template <class Row>
  __device__ static float scaled(const MoeGemmSkinnyArgs<Shape>& args, float sum, const Row& pair, uint32_t row) {
    return sum * (pair.scale *
                  to_float(args.b_scale[pair.expert * args.b_scale_expert + uint64_t{row} * args.b_scale_row]));
  }
};

/// Those of sums over several pairs come with the products of each.
template <class Shape>
struct RowScalesOfProducts : ScaledRows<Shape, kLaneSums> {
  struct Step : Unscaled<Shape>::Step {
    float b[Shape::kUnitsN][kLaneSums];
    __device__ float of_row(float scale, int n, int i) const { return scale * b[n][i]; }
  };
  __device__ void load(const MoeGemmSkinnyArgs<Shape>& args, Step& step, uint32_t, uint32_t) const {
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
#pragma unroll
      for (int i = 0; i < kLaneSums; ++i) step.b[u][i] = to_float(*this->scales(args, u, i));
    }
  }
};

/// Scales of rows of b alone.
struct WeightScales : NoScales {
  static constexpr bool kIsOfB = true;
  template <class Shape>
  using In = std::conditional_t<Shape::kIsSum, RowScalesOfProducts<Shape>, RowScalesOfSums<Shape>>;
};

/// Scales of rows of a and of b.
struct RowScales : WeightScales {
  static constexpr bool kIsOfA = true;
  template <class Args, class Pair>
  __device__ static float of_a(const Args& args, Pair pair, bool is_one) {
    return args.a_scale[is_one ? uint64_t{pair / args.row_division} * args.a_scale_row : 0];
  }
};

/// Scales of blocks of kScaleBlock along the depth: of a row of a, and of kScaleBlock rows of b.
struct BlockScales : NoScales {
  static constexpr bool kIsOfA = true, kIsOfB = true, kIsOfProducts = true;
  static constexpr uint32_t kRows = kScaleBlock;
  static constexpr int64_t groups(int64_t depth) { return (depth + kScaleBlock - 1) / kScaleBlock; }

  template <class Shape>
  class In : public ScaledRows<Shape, 1, 1, Shape::Unit::kDepth / kScaleBlock> {
    using Base = ScaledRows<Shape, 1, 1, Shape::Unit::kDepth / kScaleBlock>;
    using Base::row_;

   public:
    using Args = MoeGemmSkinnyArgs<Shape>;
    using Base::kGroups;
    static_assert(kScaleBlock % Shape::kStripRows == 0, "rows that lie together share a block");
    static_assert(kGroups * kScaleBlock == Shape::Unit::kDepth, "a step has whole blocks");
    struct Step : Base::Step {
      float b[Shape::kStrips][kGroups];
      __device__ float of_product(float factor, int n, int m, int group) const {
        return factor * this->a[m][group] * b[n / Shape::kStripUnits][group];
      }
    };
    __device__ void start(const Args& args, uint32_t first_row, uint32_t strip_rows) {
#pragma unroll
      for (int u = 0; u < Shape::kStrips; ++u)
        row_[u][0] = (u * strip_rows + first_row) / kScaleBlock * args.b_scale_row;
    }
    /// Finds the scales of `row` of a, which the lane's sums of unit m belong to.
    __device__ void start_row(const Args& args, int m, uint64_t row) {
      a_scale_[m] = args.a_scale + row * args.a_scale_row;
    }
    __device__ void load(const Args& args, Step& step, uint32_t k, uint32_t of_pair) const {
      const uint32_t blocks = (args.depth + kScaleBlock - 1) / kScaleBlock;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const uint32_t block = within(k / kScaleBlock + g, blocks);
#pragma unroll
        for (int u = 0; u < Shape::kStrips; ++u) step.b[u][g] = this->scales(args, u)[block * args.b_scale_group];
#pragma unroll
        for (int u = 0; u < Shape::kUnitsM; ++u)
          step.a[u][g] = a_scale_[u][uint64_t{of_pair} * args.a_scale_row + block * args.a_scale_group];
      }
    }

   private:
    const float* a_scale_[Shape::kUnitsM];
  };
};

/// Powers of two of mxfp4, one for each kScaleGroup along the depth, which widen the weights.
struct GroupScales : NoScales {
  static constexpr bool kIsOfB = true;
  static constexpr int64_t groups(int64_t depth) { return depth / kScaleGroup; }

  template <class Shape>
  struct In : ScaledRows<Shape, 1> {
    using Args = MoeGemmSkinnyArgs<Shape>;
    struct Step : Unscaled<Shape>::Step {
      uint32_t bytes[Shape::kUnitsN];  // one for each of the lane's groups
      __device__ uint32_t exponents(int n) const { return bytes[n]; }
    };
    /// The lane's four groups of a step. Where the groups of a row follow one another, a step that reaches beyond the
    /// depth has those of the last four: to take them apart would be to wait for them.
    __device__ void load(const Args& args, Step& step, uint32_t k, uint32_t) const {
      const uint32_t first = first_group(k), groups = args.depth / kScaleGroup;
#pragma unroll
      for (int u = 0; u < Shape::kUnitsN; ++u) {
        const uint8_t* row = this->scales(args, u);
        if (args.are_groups_dense) {
          __builtin_memcpy(&step.bytes[u], row + (first + 4 <= groups ? first : groups - 4), 4);
          continue;
        }
        step.bytes[u] = 0;
#pragma unroll
        for (int g = 0; g < 4; ++g)
          step.bytes[u] |= uint32_t{row[within(first + g, groups) * args.b_scale_group]} << 8 * g;
      }
    }
    /// Puts the lane's groups in their places.
    __device__ void complete(const Args& args, Step& step, uint32_t k) const {
      if (!args.are_groups_dense) return;
      const uint32_t end = first_group(k) + 4, groups = args.depth / kScaleGroup;
      const uint32_t beyond = end <= groups ? 0 : within(end - groups, 4);
#pragma unroll
      for (int u = 0; u < Shape::kUnitsN; ++u) step.bytes[u] >>= 8 * beyond;
    }

   private:
    __device__ static uint32_t first_group(uint32_t k) {
      return k / kScaleGroup + lane_index() / Shape::Unit::kColumns * 4;
    }
  };
};

/// Scales of groups of kGroup along the depth, by which the sums over them are scaled; kScaleBlock rows of b share one
/// where weights are fp8.
template <class Config>
struct SumScales : NoScales {
  static constexpr bool kIsOfB = true;
  static constexpr uint32_t kGroup = Config::kGroup;
  static constexpr uint32_t kRows = Config::kFormat == skinny::Format::fp8 ? kScaleBlock : 1;
  static constexpr int64_t groups(int64_t depth) { return (depth + kGroup - 1) / kGroup; }

  template <class Shape>
  struct In : ScaledRows<Shape, 1, kRows> {
    using Unit = typename Shape::Unit;
    using Args = MoeGemmSkinnyArgs<Shape>;
    struct Step : Unscaled<Shape>::Step {
      float groups[Shape::kUnitsN][Unit::kLaneGroups];
    };
    /// Loads those of a step's groups that are the lane's; those beyond the depth scale zeros.
    __device__ void load(const Args& args, Step& step, uint32_t k, uint32_t) const {
      const uint32_t groups = (args.depth + kGroup - 1) / kGroup;
#pragma unroll
      for (int u = 0; u < Shape::kUnitsN; ++u) {
        const auto* row = this->scales(args, u);
#pragma unroll
        for (int i = 0; i < Unit::kLaneGroups; ++i)
          step.groups[u][i] = to_float(row[within(k / kGroup + Unit::group(i), groups) * args.b_scale_group]);
      }
    }
  };
};

/// The policy of each ScaleKind, in their order.
template <class Config>
using ScalesOf = std::tuple_element_t<static_cast<size_t>(Config::kScales), std::tuple<
    NoScales, RowScales, WeightScales, BlockScales, GroupScales, SumScales<Config>>>;

}  // namespace moe_skinny
}  // namespace aiter_like

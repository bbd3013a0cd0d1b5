// SPDX-License-Identifier: MIT
// The scales of moe_gemm_skinny: a policy for each kind tells which scales a call has, and In<Shape> how a lane reads
// those of a step and what it does with them.
#pragma once

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

/// Does nothing, as a lane without scales; other kinds say what they do otherwise.
template <class Shape>
class Unscaled {
 public:
  using Args = MoeGemmSkinnyArgs<Shape>;
  static constexpr int kGroups = 1;  // parts of a step's depth whose products are scaled apart
  /// The scales of a step.
  struct Step {
    /// The factor of a product of units n and m, and those of each of its rows of the weights.
    __device__ float of_product(float factor, float, int, int) const { return factor; }
    __device__ float of_row(float scale, int, int) const { return scale; }
    /// Those that widen unit n of mxfp4.
    __device__ uint32_t exponents(int) const { return 0; }
  };
  /// Finds the scales of the lane's rows.
  __device__ void start(const Args&, uint32_t, uint32_t) {}
  /// rows(m): the row of a that the lane's sums of unit m belong to.
  template <class Rows>
  __device__ void start_rows(const Args&, const Rows&) {}
  __device__ void select(const Args&, int64_t) {}
  /// Loads what scales the step that begins at `k`; of_pair is the row of a that all others count from.
  template <class AScale>
  __device__ void load(const Args&, Step&, AScale&, uint32_t, uint32_t) const {}
  /// Follows load() of a step that reaches beyond the depth.
  __device__ void complete(const Args&, Step&, uint32_t) const {}
  /// The factor of row `row` of the weights and of a pair, for sums that no step has scaled.
  template <class Row>
  __device__ static float scaled(const Args&, float sum, const Row&, uint32_t) {
    return sum;
  }
};

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
  template <class Shape>
  using In = Unscaled<Shape>;
};

/// Scales of rows: those of sums over all of the depth come at the end.
template <class Shape>
class RowScalesOfSums : public Unscaled<Shape> {
 public:
  template <class Row>
  __device__ static float scaled(const MoeGemmSkinnyArgs<Shape>& args, float sum, const Row& pair, uint32_t row) {
    return sum * (pair.scale *
                  to_float(args.b_scale[pair.expert * args.b_scale_expert + uint64_t{row} * args.b_scale_row]));
  }
};

/// Those of sums over several pairs come with the products of each.
template <class Shape>
class RowScalesOfProducts : public Unscaled<Shape> {
  static constexpr int kSums = 4;  // of a lane in a unit

 public:
  using Args = MoeGemmSkinnyArgs<Shape>;
  struct Step : Unscaled<Shape>::Step {
    float b[Shape::kUnitsN][kSums];
    __device__ float of_row(float scale, int n, int i) const { return scale * b[n][i]; }
  };
  __device__ void start(const Args& args, uint32_t first_row, uint32_t strip_rows) {
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
#pragma unroll
      for (int i = 0; i < kSums; ++i)
        row_[u][i] = (Shape::unit_row(u, first_row, strip_rows) +
                      within(Shape::Unit::sum_column(lane_index(), i), strip_rows)) * args.b_scale_row;
    }
  }
  __device__ void select(const Args& args, int64_t expert) { expert_ = expert * args.b_scale_expert; }
  template <class AScale>
  __device__ void load(const Args& args, Step& step, AScale&, uint32_t, uint32_t) const {
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) step.b[u][i] = to_float(args.b_scale[expert_ + row_[u][i]]);
    }
  }

 private:
  int64_t expert_ = 0;
  uint32_t row_[Shape::kUnitsN][kSums];
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
  class In : public Unscaled<Shape> {
    using Unit = typename Shape::Unit;

   public:
    using Args = MoeGemmSkinnyArgs<Shape>;
    static constexpr int kGroups = Unit::kDepth / kScaleBlock;
    static_assert(kScaleBlock % Shape::kStripRows == 0, "rows that lie together share a block");
    static_assert(kGroups * kScaleBlock == Unit::kDepth, "a step has whole blocks");
    struct Step : Unscaled<Shape>::Step {
      float b[Shape::kStrips][kGroups];
      __device__ float of_product(float factor, float of_row, int n, int group) const {
        return factor * of_row * b[n / Shape::kStripUnits][group];
      }
    };
    __device__ void start(const Args& args, uint32_t first_row, uint32_t strip_rows) {
#pragma unroll
      for (int u = 0; u < Shape::kStrips; ++u)
        row_[u] = (u * strip_rows + first_row) / kScaleBlock * args.b_scale_row;
    }
    template <class Rows>
    __device__ void start_rows(const Args& args, const Rows& rows) {
#pragma unroll
      for (int m = 0; m < Shape::kUnitsM; ++m) a_scale_[m] = args.a_scale + uint64_t{rows(m)} * args.a_scale_row;
    }
    __device__ void select(const Args& args, int64_t expert) { expert_ = expert * args.b_scale_expert; }
    template <class AScale>
    __device__ void load(const Args& args, Step& step, AScale& a_scale, uint32_t k, uint32_t of_pair) const {
      const uint32_t blocks = (args.depth + kScaleBlock - 1) / kScaleBlock;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const uint32_t block = within(k / kScaleBlock + g, blocks);
#pragma unroll
        for (int u = 0; u < Shape::kStrips; ++u)
          step.b[u][g] = args.b_scale[expert_ + row_[u] + block * args.b_scale_group];
#pragma unroll
        for (int u = 0; u < Shape::kUnitsM; ++u)
          a_scale[u][g] = a_scale_[u][uint64_t{of_pair} * args.a_scale_row + block * args.a_scale_group];
      }
    }

   private:
    int64_t expert_ = 0;
    uint32_t row_[Shape::kStrips];
    const float* a_scale_[Shape::kUnitsM];
  };
};

/// Finds the scale of a lane's row of each unit; kRows rows of b share one.
template <class Shape, uint32_t kRows>
class LaneRows : public Unscaled<Shape> {
 public:
  using Args = MoeGemmSkinnyArgs<Shape>;
  __device__ void start(const Args& args, uint32_t first_row, uint32_t strip_rows) {
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u)
      row_[u] = (Shape::unit_row(u, first_row, strip_rows) +
                 within(lane_index() % Shape::Unit::kColumns, strip_rows)) / kRows * args.b_scale_row;
  }
  __device__ void select(const Args& args, int64_t expert) { expert_ = expert * args.b_scale_expert; }

 protected:
  __device__ auto* of_unit(const Args& args, int u) const { return args.b_scale + expert_ + row_[u]; }

 private:
  int64_t expert_ = 0;
  uint32_t row_[Shape::kUnitsN];
};

/// Powers of two of mxfp4, one for each kScaleGroup along the depth, which widen the weights.
struct GroupScales : NoScales {
  static constexpr bool kIsOfB = true;
  static constexpr int64_t groups(int64_t depth) { return depth / kScaleGroup; }

  template <class Shape>
  class In : public LaneRows<Shape, 1> {
    using Unit = typename Shape::Unit;

   public:
    using Args = MoeGemmSkinnyArgs<Shape>;
    struct Step : Unscaled<Shape>::Step {
      uint32_t bytes[Shape::kUnitsN];  // one for each of the lane's groups
      __device__ uint32_t exponents(int n) const { return bytes[n]; }
    };
    /// The lane's four groups of a step. Where the groups of a row follow one another, a step that reaches beyond the
    /// depth has those of the last four: to take them apart would be to wait for them.
    template <class AScale>
    __device__ void load(const Args& args, Step& step, AScale&, uint32_t k, uint32_t) const {
      const uint32_t first = first_group(k), groups = args.depth / kScaleGroup;
#pragma unroll
      for (int u = 0; u < Shape::kUnitsN; ++u) {
        const uint8_t* row = this->of_unit(args, u);
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
      return k / kScaleGroup + lane_index() / Unit::kColumns * 4;
    }
  };
};

/// Scales of groups of kGroup along the depth, by which the sums over them are scaled; kSharing rows of b share one.
template <int kGroup, uint32_t kSharing>
struct SumScales : NoScales {
  static constexpr bool kIsOfB = true;
  static constexpr uint32_t kRows = kSharing;
  static constexpr int64_t groups(int64_t depth) { return (depth + kGroup - 1) / kGroup; }

  template <class Shape>
  class In : public LaneRows<Shape, kSharing> {
    using Unit = typename Shape::Unit;

   public:
    using Args = MoeGemmSkinnyArgs<Shape>;
    struct Step : Unscaled<Shape>::Step {
      float groups[Shape::kUnitsN][Unit::kLaneGroups];
    };
    /// Loads those of a step's groups that are the lane's; those beyond the depth scale zeros.
    template <class AScale>
    __device__ void load(const Args& args, Step& step, AScale&, uint32_t k, uint32_t) const {
      const uint32_t groups = (args.depth + kGroup - 1) / kGroup;
#pragma unroll
      for (int u = 0; u < Shape::kUnitsN; ++u) {
        const auto* row = this->of_unit(args, u);
#pragma unroll
        for (int i = 0; i < Unit::kLaneGroups; ++i)
          step.groups[u][i] = to_float(row[within(k / kGroup + Unit::group(i), groups) * args.b_scale_group]);
      }
    }
  };
};

template <class Config, ScaleKind kScales = Config::kScales>
struct ScalesOf {
  using Type = SumScales<Config::kGroup, Config::kFormat == skinny::Format::fp8 ? kScaleBlock : 1>;
};
template <class Config>
struct ScalesOf<Config, ScaleKind::none> {
  using Type = NoScales;
};
template <class Config>
struct ScalesOf<Config, ScaleKind::rows> {
  using Type = RowScales;
};
template <class Config>
struct ScalesOf<Config, ScaleKind::weights> {
  using Type = WeightScales;
};
template <class Config>
struct ScalesOf<Config, ScaleKind::blocks> {
  using Type = BlockScales;
};
template <class Config>
struct ScalesOf<Config, ScaleKind::groups> {
  using Type = GroupScales;
};

}  // namespace moe_skinny
}  // namespace aiter_like

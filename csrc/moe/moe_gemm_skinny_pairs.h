// SPDX-License-Identifier: MIT
// What moe_gemm_skinny is asked, what follows from a configuration, and which pairs a workgroup has.
#pragma once

#include <type_traits>

#include "../gemm/packed_unit.h"
#include "aiter_like/dtype.h"
#include "aiter_like/gpu.h"

namespace aiter_like {

template <class Config>
struct MoeGemmSkinnyArgs {
  const typename Config::Element* a;         // [a_rows, depth]
  const typename Config::Weight* b;          // [num_experts, n, depth, or a half of it where two are in a byte]
  typename Config::OutElement* out;          // [pairs, columns], or [tokens, columns]
  const typename Config::BiasElement* bias;  // [num_experts, n]
  const typename Config::Scale* b_scale;     // as a MoeGemmCall has them
  const float *a_scale, *weights;
  const int32_t *experts, *sorted_ids, *valid;
  int64_t b_expert, bias_expert, b_scale_expert;  // strides in elements
  uint32_t a_row, b_row, out_row, a_scale_row, a_scale_group, b_scale_row, b_scale_group;
  uint32_t num_experts, pairs, slots, block, places, columns, n, depth;
  uint32_t steps;         // of the depth of a pair
  uint32_t of_steps;      // ceil(2^31 / steps), by which steps are divided
  uint32_t row_division;  // a pair's row of a is pair / row_division
  bool are_groups_dense;  // those of a row follow one another
  float limit;
};

namespace moe_skinny {

using skinny::Run, skinny::uniform, skinny::unit_begin, skinny::within;

enum class Rows { pair, token, sorted };  // a workgroup has: one pair, the sum of a token's pairs, a block of pairs
/// Of rows of a and of b; of rows of b alone; of blocks of both; of mxfp4's groups of 32; of groups of rows of b, or of
/// blocks of fp8, by which the sums over them are scaled.
enum class Scales { none, rows, weights, blocks, groups, sums };
constexpr int kMostSlots = 32;  // of a token whose pairs are added up: a lane each
constexpr uint32_t kScaleBlock = 128, kScaleGroup = 32;

/// The matrix instruction of a configuration, by way of its weights.
template <class Element, skinny::Format FORMAT, int kGroup>
struct UnitOf {
#if defined(__HIP__)
  using Type = skinny::GroupedUnit<Element, FORMAT, kGroup>;
#endif
};
template <class Element, skinny::Format FORMAT>
struct UnitOf<Element, FORMAT, 0> {
#if defined(__HIP__)
  using Type = skinny::PackedUnit<Element, FORMAT>;
#endif
};
template <class Element>
struct UnitOf<Element, skinny::Format::same, 0> {
  using Type = skinny::Unit<Element>;
};

/// What the lanes of a wave exchange in LDS: also a step's scales of sums, by units, groups and rows of the weights.
template <class Unit, int kUnits, bool kScalesSums>
struct ExchangeOf : Unit::Exchange {};
template <class Unit, int kUnits>
struct ExchangeOf<Unit, kUnits, true> : Unit::Exchange {
  float scales[kUnits][Unit::kStepGroups][Unit::kColumns];
};

/// A configuration, and what follows from it. A Config has
///   Element, OutElement, BiasElement        of a; of out; of bias
///   Weight, Scale, kFormat                  of b as stored; of b_scale; how a weight is stored in a Weight
///   kRows, kScales                          what the rows of a workgroup are; what scales there are
///   kGroup                                  weights along the depth that share one by which sums are scaled, or 0
///   kBlockM, kBlockN                        rows; columns of out of a team
///   kTeams, kWaves, kStages                 teams; a team's waves along the depth; steps that a wave has under way
///   kHasBias, kHasWeights, kIsShuffled
///   kHasActivation, kActivation, kIsGated, kIsInterleaved
template <class Config>
struct Shape : Config {
  using Unit = typename UnitOf<typename Config::Element, Config::kFormat, Config::kGroup>::Type;
  static constexpr bool kIsPacked = Config::kFormat != skinny::Format::same;
  static constexpr int kParts = [] {  // of a step's depth, by which rows of a go to the instruction
    if constexpr (kIsPacked) return Unit::kParts;
    else return 1;
  }();
  static constexpr int kRowRun = skinny::kRunBytes / sizeof(typename Config::Element);
  static constexpr int kThreads = Config::kTeams * Config::kWaves * kWaveSize;
  static constexpr int kColumns = Config::kTeams * Config::kBlockN;  // of a workgroup
  static constexpr int kHalves = Config::kIsGated ? 2 : 1;

  // The rows of the weights of a team lie in kStrips places, kStripRows in each.
  static constexpr int kStrips = Config::kIsInterleaved ? 1 : kHalves;
  static constexpr int kStripRows = Config::kBlockN * kHalves / kStrips;
  static constexpr int kStripUnits = kStripRows / Unit::kColumns, kUnitsN = kStrips * kStripUnits;
  static constexpr int kUnitsM = (Config::kBlockM + Unit::kRows - 1) / Unit::kRows;
  static constexpr int kRowRuns = (Config::kBlockM + Unit::kRunRows - 1) / Unit::kRunRows / kUnitsM;  // of a unit
  static_assert(kStripUnits * Unit::kColumns == kStripRows, "whole units");
  static constexpr int kTiles = kUnitsN * kUnitsM;

  // The products of a step are scaled before they are added up: where blocks of the depth have a scale each, or pairs
  // a weight. Of a sum for each pair the scales of rows come at the end.
  static constexpr bool kIsSum = Config::kRows == Rows::token, kHasBlocks = Config::kScales == Scales::blocks;
  static constexpr bool kHasRowScales = Config::kScales == Scales::rows || Config::kScales == Scales::weights;
  static constexpr bool kHasGroups = Config::kScales == Scales::groups;
  static constexpr bool kScalesSums = Config::kScales == Scales::sums;
  static_assert(kScalesSums == (Config::kGroup != 0), "groups have a size where sums over them are scaled");
  static constexpr uint32_t kScaleRows =  // So many rows of b share a scale.
      kHasBlocks || (kScalesSums && Config::kFormat == skinny::Format::fp8) ? kScaleBlock : 1;
  static constexpr int kLaneGroups = [] {  // of the scales of a step
    if constexpr (kScalesSums) return Unit::kLaneGroups;
    else return 1;
  }();
  static constexpr bool kScalesProducts = kIsSum || kHasBlocks;
  static constexpr int kGroups = kHasBlocks ? Unit::kDepth / kScaleBlock : 1;
  using Sums = std::conditional_t<kScalesProducts, skinny::FloatSums, typename Unit::Sums>;
  static_assert(!kHasBlocks || kGroups * kScaleBlock == Unit::kDepth, "a step has whole blocks");

  using Exchange = ExchangeOf<Unit, kUnitsN, kScalesSums>;
  static constexpr int kRowCount = kIsSum ? kMostSlots : Config::kBlockM;
  /// Of each row, or of each pair that is added up.
  struct Row {
    int32_t pair;  // negative: none
    int32_t expert;
    float weight, scale;
  };
  /// In LDS: of each wave what it exchanges between its lanes, and at the end its sums.
  union WaveMemory {
    Exchange exchange;
    float sums[kTiles][kWaveSize * 4];
    Row rows[kMostSlots];
  };
  struct Memory {
    WaveMemory waves[Config::kTeams * Config::kWaves];
    Row rows[kRowCount];
  };
};

/// The pairs of a workgroup: each wave has all of them, a lane one of them, or two where it has few lanes.
template <class Shape>
class Work {
  using Args = MoeGemmSkinnyArgs<Shape>;
  using Row = typename Shape::Row;

 public:
  /// `index` of the pair, token or block. False: nothing is to be written.
  __device__ bool start(const Args& args, uint32_t index, typename Shape::Memory& lds) {
    if constexpr (Shape::kRows == Rows::pair) {
      expert_ = static_cast<int32_t>(uniform(static_cast<uint32_t>(args.experts[index])));
      rows_[0] = row(args, index, index, expert_);
      return is_here(args, expert_);
    } else if constexpr (Shape::kRows == Rows::sorted) {
      return start_block(args, index);
    } else {
      start_sum(args, index * args.slots, lds.waves[wave_index()].rows);
      return true;
    }
  }
  /// For all waves, what the end asks for. A barrier follows.
  __device__ void publish(typename Shape::Memory& lds) const {
    if (wave_index() != 0) return;
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const int m = own * kWaveSize + lane_index();
      if (m < Shape::kRowCount) lds.rows[m] = rows_[own];
    }
  }

  /// Pairs that are multiplied one after the other.
  __device__ uint32_t count() const { return Shape::kIsSum ? count_ : 1; }
  __device__ int32_t expert(uint32_t segment) const {
    return Shape::kIsSum ? static_cast<int32_t>(of_segment(static_cast<uint32_t>(rows_[0].expert), segment)) : expert_;
  }
  /// By what the products of pair `segment` are multiplied.
  __device__ float factor(uint32_t segment) const {
    return bits_float(of_segment(float_bits(rows_[0].weight * rows_[0].scale), segment));
  }
  /// The row of a of pair `segment`.
  __device__ uint32_t pair_row(const Args& args, uint32_t segment) const {
    return of_segment(static_cast<uint32_t>(rows_[0].pair), segment) / args.row_division;
  }
  /// The row of a that row `m` is; another one that is read anyway in place of none.
  __device__ uint32_t row_of(const Args& args, uint32_t m) const {
    if constexpr (Shape::kRows == Rows::pair) return static_cast<uint32_t>(rows_[0].pair) / args.row_division;
    uint32_t pair = 0;
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const uint32_t found = from_lane(static_cast<uint32_t>(rows_[own].pair), static_cast<int>(m % kWaveSize));
      if (m / kWaveSize == own) pair = found;
    }
    const uint32_t first = of_lane(static_cast<uint32_t>(rows_[0].pair), 0);
    pair = pair < args.pairs ? pair : first < args.pairs ? first : 0;
    return pair / args.row_division;
  }

 private:
  static constexpr int kOwn = (Shape::kRowCount + kWaveSize - 1) / kWaveSize;

  __device__ static uint32_t of_segment(uint32_t x, uint32_t segment) {
    return of_lane(x, static_cast<int>(segment));
  }
  __device__ static bool is_here(const Args& args, int32_t expert) {
    return static_cast<uint32_t>(expert) < args.num_experts;
  }
  __device__ static Row row(const Args& args, uint32_t pair, uint32_t place, int32_t expert) {
    Row result{static_cast<int32_t>(pair), expert, 1.f, 1.f};
    if constexpr (Shape::kHasWeights) result.weight = args.weights[place];
    if constexpr (Shape::kScales == Scales::rows)
      result.scale = args.a_scale[uint64_t{pair / args.row_division} * args.a_scale_row];
    return result;
  }

  /// Asks for all that tells of the block at once, though it may lie beyond what is valid.
  __device__ bool start_block(const Args& args, uint32_t index) {
    const uint32_t begin = index * args.block;
    uint32_t ids[kOwn];
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const uint32_t place = within(begin + own * kWaveSize + lane_index(), args.places);
      ids[own] = static_cast<uint32_t>(args.sorted_ids[place]);
      if constexpr (Shape::kHasWeights) rows_[own].weight = args.weights[place];
    }
    const int32_t expert = args.experts[index], valid = args.valid[0];
    expert_ = static_cast<int32_t>(uniform(static_cast<uint32_t>(expert)));
    const uint32_t end = uniform(valid > 0 ? within(static_cast<uint32_t>(valid), args.places + 1) : 0);
    if (begin >= end || !is_here(args, expert_)) return false;
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const uint32_t m = own * kWaveSize + lane_index(), slot = ids[own] >> 24;
      const uint64_t pair = uint64_t{ids[own] & 0xFFFFFFu} * args.slots + slot;
      const bool is_one = m < args.block && begin + m < end && slot < args.slots && pair < args.pairs;
      rows_[own].pair = is_one ? static_cast<int32_t>(pair) : -1;
      rows_[own].expert = expert_;
      rows_[own].scale = 1.f;
      if constexpr (Shape::kScales == Scales::rows)
        rows_[own].scale = args.a_scale[is_one ? pair / args.row_division * args.a_scale_row : 0];
    }
    return true;
  }

  /// Leaves those of a token's pairs whose experts are here, by way of a wave's own memory.
  __device__ void start_sum(const Args& args, uint32_t first, Row (&list)[kMostSlots]) {
    const auto lane = static_cast<uint32_t>(lane_index());
    const uint32_t own = first + within(lane, args.slots);
    const Row found = row(args, own, own, args.experts[own]);
    const uint64_t here = lanes_with(lane < args.slots && is_here(args, found.expert));
    count_ = skinny::lanes_below(here, kWaveSize);
    if (here >> lane & 1) list[skinny::lanes_below(here, lane)] = found;
    wave_barrier();
    if (count_ == 0) rows_[0] = {static_cast<int32_t>(first), 0, 0.f, 0.f};  // nothing is read of them
    else rows_[0] = list[within(lane, count_)];
    wave_barrier();
  }

  int32_t expert_ = 0;
  uint32_t count_ = 0;
  Row rows_[kOwn];
};

}  // namespace moe_skinny
}  // namespace aiter_like

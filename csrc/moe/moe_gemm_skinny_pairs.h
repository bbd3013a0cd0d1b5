// SPDX-License-Identifier: MIT
// What moe_gemm_skinny is asked, what follows from a configuration, and which pairs a workgroup has.
#pragma once

#include <type_traits>

#include "aiter_like/gpu.h"
#include "moe_gemm_skinny_scales.h"

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

using skinny::Run, skinny::uniform, skinny::unit_begin;

enum class Rows { pair, token, sorted };  // a workgroup has: one pair, the sum of a token's pairs, a block of pairs
constexpr int kMostSlots = 32;  // of a token whose pairs are added up: a lane each

template <class Shape, Rows kRows = Shape::kRows>
class Work;

/// A configuration, and what follows from it. A Config has
///   Element, OutElement, BiasElement        of a; of out; of bias
///   Weight, Scale, kFormat                  of b as stored; of b_scale; how a weight is stored in a Weight
///   kRows, kScales                          what the rows of a workgroup are; what scales there are
///   kGroup                                  weights along the depth that share one by which sums are scaled, or 0
///   kBlockM, kBlockN                        rows; columns of out of a team
///   kTeams, kWaves, kStages                 teams; a team's waves along the depth; steps that a wave has under way
///   Order, Finish                           how rows of the weights lie; what becomes of the sums of an element
///   kHasBias, kHasWeights
///   kIsInterleaved                          gates and what they let through take turns in the rows of the weights
template <class Config>
struct Shape : Config {
  using Weights = WeightsOf<typename Config::Element, Config::kFormat, Config::kGroup>;
  using Scales = ScalesOf<Config>;
  using Unit = typename Weights::Unit;
  static constexpr int kParts = Weights::kParts;
  static constexpr int kRowRun = skinny::kRunBytes / sizeof(typename Config::Element);
  static constexpr int kThreads = Config::kTeams * Config::kWaves * kWaveSize;
  static constexpr int kColumns = Config::kTeams * Config::kBlockN;  // of a workgroup
  static constexpr int kHalves = Config::Finish::kHalves;

  // The rows of the weights of a team lie in kStrips places, kStripRows in each.
  static constexpr int kStrips = Config::kIsInterleaved ? 1 : kHalves;
  static constexpr int kStripRows = Config::kBlockN * kHalves / kStrips;
  static constexpr int kStripUnits = kStripRows / Unit::kColumns, kUnitsN = kStrips * kStripUnits;
  static constexpr int kUnitsM = (Config::kBlockM + Unit::kRows - 1) / Unit::kRows;
  static constexpr int kRowRuns = (Config::kBlockM + Unit::kRunRows - 1) / Unit::kRunRows / kUnitsM;  // of a unit
  static_assert(kStripUnits * Unit::kColumns == kStripRows, "whole units");
  static constexpr int kTiles = kUnitsN * kUnitsM;

  // The products of a step are scaled before they are added up: where blocks of the depth have a scale each, or pairs
  // a weight.
  static constexpr bool kIsSum = Config::kRows == Rows::token;
  static constexpr bool kScalesProducts = kIsSum || Scales::kIsOfProducts;
  using Sums = std::conditional_t<kScalesProducts, skinny::FloatSums, typename Unit::Sums>;

  using Exchange = typename Weights::template Exchange<kUnitsN>;
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

  /// The row of the weights that unit `u` begins with, of a team whose strips begin with `first_row`.
  __device__ static uint32_t unit_row(int u, uint32_t first_row, uint32_t strip_rows) {
    return u / kStripUnits * strip_rows +
           unit_begin<Unit::kColumns>(first_row + u % kStripUnits * Unit::kColumns, strip_rows);
  }
};

/// A wave's pairs of a workgroup: each wave has all of them, a lane one of them, or two where it has few lanes.
template <class Shape>
class Pairs {
 protected:
  using Args = MoeGemmSkinnyArgs<Shape>;
  using Row = typename Shape::Row;
  static constexpr int kOwn = (Shape::kRowCount + kWaveSize - 1) / kWaveSize;

  __device__ static bool is_here(const Args& args, int32_t expert) {
    return static_cast<uint32_t>(expert) < args.num_experts;
  }
  __device__ static Row row(const Args& args, uint32_t pair, uint32_t place, int32_t expert) {
    Row result{static_cast<int32_t>(pair), expert, 1.f, 1.f};
    if constexpr (Shape::kHasWeights) result.weight = args.weights[place];
    result.scale = Shape::Scales::of_a(args, pair, true);
    return result;
  }

  int32_t expert_ = 0;  // Pairs that share an expert have this one.
  uint32_t count_ = 0;  // This many pairs are added up.
  Row rows_[kOwn];

 public:
  /// For all waves, what the end asks for. A barrier follows.
  __device__ void publish(typename Shape::Memory& lds) const {
    if (wave_index() != 0) return;
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const int m = own * kWaveSize + lane_index();
      if (m < Shape::kRowCount) lds.rows[m] = rows_[own];
    }
  }
};

/// Pairs of one expert. Workgroups that multiply pairs one after the other have more than one segment.
template <class Shape>
class OneExpert : public Pairs<Shape> {
 public:
  using Args = MoeGemmSkinnyArgs<Shape>;
  __device__ static uint32_t count() { return 1; }  // of the segments
  __device__ int32_t expert(uint32_t) const { return this->expert_; }
  /// The factor of the products of step `number`.
  __device__ static float factor(const Args&, uint32_t) { return 1.f; }
  /// The place where step `number` begins in the depth of its segment, which select(segment) makes the one that is
  /// read; beyond the depth for none.
  template <class Select>
  __device__ static uint32_t begin(const Args&, uint32_t number, Select) {
    return number * Shape::Unit::kDepth;
  }
};

/// A workgroup's pair.
template <class Shape>
class Work<Shape, Rows::pair> : public OneExpert<Shape> {
 public:
  using Args = MoeGemmSkinnyArgs<Shape>;
  /// `index` of the pair, token or block. False: nothing is to be written.
  __device__ bool start(const Args& args, uint32_t index, typename Shape::Memory&) {
    this->expert_ = static_cast<int32_t>(uniform(static_cast<uint32_t>(args.experts[index])));
    this->rows_[0] = this->row(args, index, index, this->expert_);
    return this->is_here(args, this->expert_);
  }
  /// The row of a that row `m` is; another one that is read anyway in place of none.
  __device__ uint32_t row_of(const Args& args, uint32_t) const {
    return static_cast<uint32_t>(this->rows_[0].pair) / args.row_division;
  }
};

/// A workgroup's block of sorted pairs.
template <class Shape>
class Work<Shape, Rows::sorted> : public OneExpert<Shape> {
  using OneExpert<Shape>::kOwn, OneExpert<Shape>::rows_, OneExpert<Shape>::expert_;

 public:
  using Args = MoeGemmSkinnyArgs<Shape>;
  /// Asks for all that tells of the block at once, though it may lie beyond what is valid.
  __device__ bool start(const Args& args, uint32_t index, typename Shape::Memory&) {
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
    if (begin >= end || !this->is_here(args, expert_)) return false;
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const uint32_t m = own * kWaveSize + lane_index(), slot = ids[own] >> 24;
      const uint64_t pair = uint64_t{ids[own] & 0xFFFFFFu} * args.slots + slot;
      const bool is_one = m < args.block && begin + m < end && slot < args.slots && pair < args.pairs;
      rows_[own].pair = is_one ? static_cast<int32_t>(pair) : -1;
      rows_[own].expert = expert_;
      rows_[own].scale = Shape::Scales::of_a(args, pair, is_one);
    }
    return true;
  }
  __device__ uint32_t row_of(const Args& args, uint32_t m) const {
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
};

/// A workgroup's token, whose pairs are segments of its depth.
template <class Shape>
class Work<Shape, Rows::token> : public Pairs<Shape> {
  using Pairs<Shape>::rows_, Pairs<Shape>::count_;
  using Row = typename Shape::Row;

 public:
  using Args = MoeGemmSkinnyArgs<Shape>;
  /// Leaves those of a token's pairs whose experts are here, by way of a wave's own memory.
  __device__ bool start(const Args& args, uint32_t index, typename Shape::Memory& lds) {
    const uint32_t first = index * args.slots;
    Row(&list)[kMostSlots] = lds.waves[wave_index()].rows;
    const auto lane = static_cast<uint32_t>(lane_index());
    const uint32_t own = first + within(lane, args.slots);
    const Row found = this->row(args, own, own, args.experts[own]);
    const uint64_t here = lanes_with(lane < args.slots && this->is_here(args, found.expert));
    count_ = skinny::lanes_below(here, kWaveSize);
    if (here >> lane & 1) list[skinny::lanes_below(here, lane)] = found;
    wave_barrier();
    if (count_ == 0) rows_[0] = {static_cast<int32_t>(first), 0, 0.f, 0.f};  // nothing is read of them
    else rows_[0] = list[within(lane, count_)];
    wave_barrier();
    return true;
  }
  __device__ uint32_t count() const { return count_; }
  __device__ int32_t expert(uint32_t segment) const {
    return static_cast<int32_t>(of_segment(static_cast<uint32_t>(rows_[0].expert), segment));
  }
  __device__ float factor(const Args& args, uint32_t number) const {
    const uint32_t segment = segment_of(args, number);
    return segment < count_ ? bits_float(of_segment(float_bits(rows_[0].weight * rows_[0].scale), segment)) : 0.f;
  }
  __device__ uint32_t pair_row(const Args& args, uint32_t segment) const {
    return of_segment(static_cast<uint32_t>(rows_[0].pair), segment) / args.row_division;
  }
  template <class Select>
  __device__ uint32_t begin(const Args& args, uint32_t number, Select select) const {
    const uint32_t segment = segment_of(args, number);
    const bool is_one = segment < count_;
    select(is_one ? segment : 0);
    return is_one ? (number - segment * args.steps) * Shape::Unit::kDepth : args.depth;
  }
  __device__ static uint32_t row_of(const Args&, uint32_t) { return 0; }

 private:
  __device__ static uint32_t of_segment(uint32_t x, uint32_t segment) { return of_lane(x, static_cast<int>(segment)); }
  __device__ static uint32_t segment_of(const Args& args, uint32_t number) {
    return static_cast<uint32_t>((uint64_t{number} * args.of_steps) >> 31);
  }
};

}  // namespace moe_skinny
}  // namespace aiter_like

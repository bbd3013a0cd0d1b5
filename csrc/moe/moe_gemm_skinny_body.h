// SPDX-License-Identifier: MIT
// Products of few rows with the matrices of their experts. A team of waves has kBlockN columns of out for a pair, a token
// or a block of sorted pairs; its waves share the depth, step by step, and add their sums up in LDS, in their order.
// Teams share a workgroup where a depth is too short for four waves, which a compute unit has four SIMDs for.
//
// Each wave streams its steps of the weights through registers, kStages of them ahead, as gemm_a16w16_skinny_body.h
// does. Where few workgroups would leave compute units idle, the rows that a matrix instruction has besides those of a
// hold further parts of the depth (kParts): virtual row r of a is part r % kParts of row r / kParts, and so with rows
// of the weights. Of the products those of equal parts count. A workgroup has fewer columns and deeper steps then.
#pragma once

#include <type_traits>

#include "../activation/activation.h"
#include "../gemm/skinny_unit.h"
#include "aiter_like/dtype.h"
#include "aiter_like/gpu.h"

namespace aiter_like {

template <class Config>
struct MoeGemmSkinnyArgs {
  const typename Config::Element *a, *b;     // [a_rows, depth]; [num_experts, n, depth]
  typename Config::OutElement* out;          // [pairs, columns], or [tokens, columns]
  const typename Config::BiasElement* bias;  // [num_experts, n]
  const float *a_scale, *b_scale, *weights;  // as a MoeGemmCall has them
  const int32_t *experts, *sorted_ids, *valid;
  int64_t b_expert, bias_expert, b_scale_expert;  // strides in elements
  uint32_t a_row, b_row, out_row, a_scale_row, a_scale_group, b_scale_row, b_scale_group;
  uint32_t num_experts, pairs, slots, block, places, columns, n, depth;
  uint32_t steps;         // of the depth of a pair
  uint32_t of_steps;      // ceil(2^31 / steps), by which steps are divided
  uint32_t row_division;  // a pair's row of a is pair / row_division
  float limit;
};

namespace moe_skinny {

using skinny::of_lane, skinny::Run, skinny::uniform, skinny::unit_begin, skinny::within;

enum class Rows { pair, token, sorted };  // a workgroup has: one pair, the sum of a token's pairs, a block of pairs
enum class Scales { none, rows, blocks };
constexpr int kMostSlots = 32;  // of a token whose pairs are added up: a lane each
constexpr uint32_t kScaleBlock = 128;

/// A configuration, and what follows from it. A Config has
///   Element, OutElement, BiasElement        of a and b; of out; of bias
///   kRows, kScales                          what the rows of a workgroup are; what scales there are
///   kBlockM, kBlockN, kParts                rows; columns of out of a team; parts of the depth beside each other
///   kTeams, kWaves, kStages                 teams; a team's waves along the depth; steps that a wave has under way
///   kHasBias, kHasWeights, kIsShuffled
///   kHasActivation, kActivation, kIsGated, kIsInterleaved
template <class Config>
struct Shape : Config {
  using Unit = skinny::Unit<typename Config::Element>;
  static constexpr int kThreads = Config::kTeams * Config::kWaves * kWaveSize, kParts = Config::kParts;
  static constexpr int kColumns = Config::kTeams * Config::kBlockN;  // of a workgroup
  static constexpr int kHalves = Config::kIsGated ? 2 : 1;

  // The rows of the weights of a team lie in kStrips places, kStripRows in each.
  static constexpr int kStrips = Config::kIsInterleaved ? 1 : kHalves;
  static constexpr int kStripRows = Config::kBlockN * kHalves / kStrips;
  static constexpr int kUnitRows = Unit::kColumns / kParts;  // of the weights
  static constexpr int kUnitsN = kStripRows * kStrips / kUnitRows;
  static constexpr int kSpan = kUnitRows < kStripRows ? kUnitRows : kStripRows;  // of a unit that lie together
  static constexpr int kSpans = kUnitRows / kSpan, kStripSpans = kStripRows / kSpan;
  static_assert(kUnitsN * kUnitRows == kStripRows * kStrips && kSpan * kSpans == kUnitRows, "whole units");

  static constexpr int kVirtualRows = Config::kBlockM * kParts;
  static constexpr int kUnitsM = (kVirtualRows + Unit::kRows - 1) / Unit::kRows;
  static constexpr int kRowRuns = (kVirtualRows + Unit::kRunRows - 1) / Unit::kRunRows / kUnitsM;  // of a unit
  static constexpr int kTiles = kUnitsN * kUnitsM;
  static constexpr uint32_t kStepDepth = Unit::kDepth * kParts;

  // The products of a step are scaled before they are added up: where blocks of the depth have a scale each, or pairs
  // a weight. Of a sum for each pair the scales of rows come at the end.
  static constexpr bool kIsSum = Config::kRows == Rows::token, kHasBlocks = Config::kScales == Scales::blocks;
  static constexpr bool kHasRowScales = Config::kScales == Scales::rows;
  static constexpr bool kScalesProducts = kIsSum || kHasBlocks;
  static constexpr int kGroups = kHasBlocks ? Unit::kDepth / kScaleBlock : 1;
  using Sums = std::conditional_t<kScalesProducts, skinny::FloatSums, typename Unit::Sums>;
  static_assert(!kHasBlocks || kGroups * kScaleBlock == Unit::kDepth, "a step has whole blocks");

  static constexpr int kRowCount = kIsSum ? kMostSlots : Config::kBlockM;
  /// Of each row, or of each pair that is added up.
  struct Row {
    int32_t pair;  // negative: none
    int32_t expert;
    float weight, scale;
  };
  /// In LDS: of each wave what it exchanges between its lanes, and at the end its sums.
  union WaveMemory {
    typename Unit::Exchange exchange;
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
      const uint32_t found = skinny::from_lane(static_cast<uint32_t>(rows_[own].pair), m % kWaveSize);
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
    if constexpr (Shape::kHasRowScales)
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
      if constexpr (Shape::kHasRowScales)
        rows_[own].scale = args.a_scale[is_one ? pair / args.row_division * args.a_scale_row : 0];
    }
    return true;
  }

  /// Leaves those of a token's pairs whose experts are here, by way of a wave's own memory.
  __device__ void start_sum(const Args& args, uint32_t first, Row (&list)[kMostSlots]) {
    const auto lane = static_cast<uint32_t>(lane_index());
    const uint32_t own = first + within(lane, args.slots);
    const Row found = row(args, own, own, args.experts[own]);
    const uint64_t here = skinny::lanes_where(lane < args.slots && is_here(args, found.expert));
    count_ = skinny::bits_below(here, kWaveSize);
    if (here >> lane & 1) list[skinny::bits_below(here, lane)] = found;
    skinny::keep_wave_order();
    if (count_ == 0) rows_[0] = {static_cast<int32_t>(first), 0, 0.f, 0.f};  // nothing is read of them
    else rows_[0] = list[within(lane, count_)];
    skinny::keep_wave_order();
  }

  int32_t expert_ = 0;
  uint32_t count_ = 0;
  Row rows_[kOwn];
};

/// What a lane has of the operands for a step, and the scales of its products.
template <class Shape>
struct Step {
  static constexpr int kScaleRows = Shape::kHasRowScales ? 4 : 1;  // of the weights, in a lane's sums of a unit
  static constexpr int kScaleUnits = Shape::kHasBlocks ? Shape::kUnitsN / Shape::kStripSpans : Shape::kUnitsN;
  static_assert(!Shape::kHasBlocks || kScaleBlock % Shape::kStripRows == 0, "rows that lie together share a block");
  Run weights[Shape::kUnitsN][Shape::Unit::kColumnRuns], a[Shape::kUnitsM][Shape::kRowRuns];
  float a_scale[Shape::kUnitsM][Shape::kGroups], b_scale[kScaleUnits][Shape::kGroups][kScaleRows];

  /// sums += weights · aᵀ, scaled
  __device__ void multiply(typename Shape::Sums (&sums)[Shape::kTiles], float factor,
                           typename Shape::Unit::Exchange& lds) const {
    using Unit = typename Shape::Unit;
    decltype(Unit::rows(a[0], lds)) rows[Shape::kUnitsM];
#pragma unroll
    for (int m = 0; m < Shape::kUnitsM; ++m) rows[m] = Unit::rows(a[m], lds);
#pragma unroll
    for (int n = 0; n < Shape::kUnitsN; ++n) {
      const auto columns = [&] {
        if constexpr (Shape::kIsShuffled) return Unit::direct(weights[n]);
        else return Unit::columns(weights[n], lds);
      }();
#pragma unroll
      for (int m = 0; m < Shape::kUnitsM; ++m) {
        auto& sum = sums[n * Shape::kUnitsM + m];
        if constexpr (!Shape::kScalesProducts) Unit::multiply(sum, columns, rows[m]);
        else add_scaled<0>(sum, columns, rows[m], factor, n, m);
      }
    }
  }

 private:
  template <int kGroup, class Columns, class Rows>
  __device__ void add_scaled(skinny::FloatSums& sum, const Columns& columns, const Rows& rows, float factor, int n,
                             int m) const {
    typename Shape::Unit::Sums product = {};
    Shape::Unit::template multiply<kGroup, Shape::kGroups>(product, columns, rows);
    const float scale = Shape::kHasBlocks ? factor * a_scale[m][kGroup] * b_scale[n / Shape::kStripSpans][kGroup][0] : factor;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float of_row = Shape::kHasRowScales ? scale * b_scale[n][kGroup][i % kScaleRows] : scale;
      sum[i] = __builtin_fmaf(product[i], of_row, sum[i]);
    }
    if constexpr (kGroup + 1 < Shape::kGroups) add_scaled<kGroup + 1>(sum, columns, rows, factor, n, m);
  }
};

/// Where a lane reads.
template <class Shape, bool kIsAligned>
class Reader {
 public:
  using Element = typename Shape::Element;
  using Unit = typename Shape::Unit;
  using Args = MoeGemmSkinnyArgs<Shape>;

  __device__ Reader(const Args& args, const Work<Shape>& work, uint32_t first_column)
      : args_(args), work_(work), b_(reinterpret_cast<const char*>(args.b)) {
    const uint32_t strip_rows = args.n / Shape::kStrips, row_bytes = args.b_row * kBytes;
    const uint32_t first_row = first_column * (Shape::kIsInterleaved ? 2 : 1);
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
      const uint32_t own = first_row + u % Shape::kStripSpans * Shape::kSpan;
      const uint32_t row = u / Shape::kStripSpans * strip_rows + unit_begin<Shape::kSpan>(own, strip_rows);
      unit_[u] = Shape::kIsShuffled ? uint64_t{row / kBand * kBand} * row_bytes + row % kBand * skinny::kRunBytes
                                    : uint64_t{row} * row_bytes;
    }
    if constexpr (Shape::kScalesProducts) start_scales(first_row, strip_rows);
#pragma unroll
    for (int run = 0; run < Unit::kColumnRuns; ++run) {
      const uint32_t of_virtual = (Shape::kIsShuffled ? Unit::direct_column(run) : Unit::column(run)) / Shape::kParts;
      const uint32_t row = within(of_virtual % Shape::kSpan, strip_rows);
      of_column_[run] = of_virtual / Shape::kSpan * strip_rows * row_bytes +
                        row * (Shape::kIsShuffled ? skinny::kRunBytes : row_bytes);
    }
    column_depth_ = (Shape::kIsShuffled ? Unit::direct_column(0) : Unit::column(0)) % Shape::kParts * Unit::kDepth;
    row_depth_ = Unit::row(0) % Shape::kParts * Unit::kDepth + Unit::depth();
    const auto row_of = [&](int virtual_row) {
      const int m = virtual_row / Shape::kParts;
      return Shape::kIsSum ? 0 : work.row_of(args, m < Shape::kBlockM ? m : 0);
    };
#pragma unroll
    for (int u = 0; u < Shape::kUnitsM; ++u) {
#pragma unroll
      for (int run = 0; run < Shape::kRowRuns; ++run)
        of_row_[u][run] = row_of(u * Unit::kRows + Unit::row(run)) * args.a_row * kBytes;
      if constexpr (Shape::kHasBlocks)
        a_scale_[u] = args.a_scale + uint64_t{row_of(u * Unit::kRows + Unit::sum_row(lane_index(), 0))} * args.a_scale_row;
    }
    select(0);
  }

  /// Starts the loads of a step, which lies within the depth.
  __device__ void load(Step<Shape>& step, uint32_t number) {
    const uint32_t k = begin(number);
    load_from(step, k, [](uint32_t at) { return at; });
  }
  /// As load, for a step that reaches beyond the depth, or is none; complete() follows. Lanes beyond read what begins
  /// a row.
  __device__ void load_part(Step<Shape>& step, uint32_t number) {
    const uint32_t k = begin(number);
    load_from(step, k, [&](uint32_t at) { return at + Unit::kRun <= args_.depth ? at : 0; });
  }
  /// Puts zeros where load_part was beyond the depth, and the elements of the last run, if it is no whole one.
  __device__ void complete(Step<Shape>& step, uint32_t number) {
    const uint32_t k = begin(number), rest = args_.depth % Unit::kRun;
    each(step, k, [&](Run& run, const char* row, uint32_t offset, uint32_t at) {
      const uint32_t mask = at + Unit::kRun <= args_.depth ? 0xFFFFFFFFu : 0u;
#pragma unroll
      for (int w = 0; w < 4; ++w) run[w] &= mask;
      if (rest == 0 || at != args_.depth - rest) return;
      for (uint32_t e = 0; e < rest; ++e) {
        const auto element = *reinterpret_cast<const Element*>(row + offset + (at + e) * kBytes);
        const uint32_t bits = static_cast<uint32_t>(bits_of(element)) << (8 * kBytes * (e % kPerWord));
#pragma unroll
        for (uint32_t w = 0; w < 4; ++w) run[w] |= e / kPerWord == w ? bits : 0u;
      }
    });
  }
  /// By what the products of a step are multiplied.
  __device__ float factor(uint32_t number) const {
    if constexpr (!Shape::kIsSum) return 1.f;
    const uint32_t segment = segment_of(number);
    return segment < work_.count() ? work_.factor(segment) : 0.f;
  }
  /// How many steps, from the first on, lie within the depth.
  __device__ uint32_t whole_steps() const {
    if (args_.depth % Shape::kStepDepth == 0) return steps();
    return Shape::kIsSum ? 0 : args_.depth / Shape::kStepDepth;
  }
  __device__ uint32_t steps() const { return args_.steps * work_.count(); }

 private:
  static constexpr uint32_t kBytes = sizeof(Element), kPerWord = 4 / kBytes;
  static constexpr uint32_t kBand = 16;  // rows that shuffle_weight puts together

  const Args& args_;
  const Work<Shape>& work_;
  const char* b_;                                                            // of the pair's expert
  uint64_t unit_[Shape::kUnitsN];                                            // bytes to a unit's rows of the weights
  uint32_t of_column_[Unit::kColumnRuns], of_row_[Shape::kUnitsM][Shape::kRowRuns];  // from there to the lane's
  uint32_t column_depth_, row_depth_, of_pair_ = 0;
  int64_t expert_scales_ = 0;
  uint32_t scale_row_[Step<Shape>::kScaleUnits][Step<Shape>::kScaleRows];
  const float* a_scale_[Shape::kUnitsM];

  __device__ static uint32_t bits_of(int8_t x) { return static_cast<uint8_t>(x); }
  template <class T>
  __device__ static uint32_t bits_of(T x) {
    return x.bits;
  }

  __device__ uint32_t segment_of(uint32_t number) const {
    return static_cast<uint32_t>((uint64_t{number} * args_.of_steps) >> 31);
  }
  /// Makes pair `segment` the one that is read.
  __device__ void select(uint32_t segment) {
    const int64_t expert = work_.expert(segment);
    b_ = reinterpret_cast<const char*>(args_.b + expert * args_.b_expert);
    if constexpr (Shape::kIsSum) of_pair_ = work_.pair_row(args_, segment);
    if constexpr (Shape::kScalesProducts) expert_scales_ = expert * args_.b_scale_expert;
  }
  /// Where step `number` begins in the depth of its pair; beyond the depth for none.
  __device__ uint32_t begin(uint32_t number) {
    if constexpr (!Shape::kIsSum) return number * Shape::kStepDepth;
    const uint32_t segment = segment_of(number);
    const bool is_one = segment < work_.count();
    select(is_one ? segment : 0);
    return is_one ? (number - segment * args_.steps) * Shape::kStepDepth : args_.depth;
  }

  /// f(run, base, offset, at) for each run of a step that begins at `k`: elements from `at` on of a row that is at
  /// base + offset.
  template <class F>
  __device__ void each_weight(Step<Shape>& step, uint32_t k, F f) const {
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
#pragma unroll
      for (int run = 0; run < Unit::kColumnRuns; ++run) {
        const uint32_t depth = Shape::kIsShuffled ? Unit::direct_depth(run) : Unit::depth();
        f(step.weights[u][run], b_ + unit_[u], of_column_[run], k + column_depth_ + depth);
      }
    }
  }
  template <class F>
  __device__ void each_row(Step<Shape>& step, uint32_t k, F f) const {
    const char* const a = reinterpret_cast<const char*>(args_.a) + uint64_t{of_pair_} * args_.a_row * kBytes;
#pragma unroll
    for (int u = 0; u < Shape::kUnitsM; ++u) {
#pragma unroll
      for (int run = 0; run < Shape::kRowRuns; ++run) f(step.a[u][run], a, of_row_[u][run], k + row_depth_);
    }
  }
  /// Both. A shuffled row has no part of a run.
  template <class F>
  __device__ void each(Step<Shape>& step, uint32_t k, F f) const {
    each_weight(step, k, f);
    each_row(step, k, f);
  }
  template <class F>
  __device__ void load_from(Step<Shape>& step, uint32_t k, F clamped) const {
    constexpr uint32_t kApart = Shape::kIsShuffled ? kBand : 1;  // runs of a row
    each_weight(step, k, [&](Run& run, const char* base, uint32_t offset, uint32_t at) {
      run = skinny::load_run<kIsAligned, Element>(base + (offset + clamped(at) * (kBytes * kApart)));
    });
    each_row(step, k, [&](Run& run, const char* base, uint32_t offset, uint32_t at) {
      run = skinny::load_run<kIsAligned, Element>(base + (offset + clamped(at) * kBytes));
    });
    if constexpr (Shape::kScalesProducts) load_scales(step, k);
  }

  /// Where the scales of a lane's rows are: of each strip, whose rows share a block, or of each unit.
  __device__ void start_scales(uint32_t first_row, uint32_t strip_rows) {
#pragma unroll
    for (int u = 0; u < Step<Shape>::kScaleUnits; ++u) {
#pragma unroll
      for (int i = 0; i < Step<Shape>::kScaleRows; ++i) {
        const uint32_t j = Unit::sum_column(lane_index(), i) / Shape::kParts, half = j / Shape::kSpan;
        const uint32_t own = first_row + u % Shape::kStripSpans * Shape::kSpan;
        if constexpr (Shape::kHasBlocks)
          scale_row_[u][i] = ((u + half) * strip_rows + first_row) / kScaleBlock * args_.b_scale_row;
        else
          scale_row_[u][i] = ((u / Shape::kStripSpans + half) * strip_rows + unit_begin<Shape::kSpan>(own, strip_rows) +
                              within(j % Shape::kSpan, strip_rows)) * args_.b_scale_row;
      }
    }
  }
  __device__ void load_scales(Step<Shape>& step, uint32_t k) const {
    const int lane = lane_index();
    if constexpr (Shape::kHasRowScales) {
#pragma unroll
      for (int u = 0; u < Shape::kUnitsN; ++u) {
#pragma unroll
        for (int i = 0; i < Step<Shape>::kScaleRows; ++i)
          step.b_scale[u][0][i] = args_.b_scale[expert_scales_ + scale_row_[u][i]];
      }
    }
    if constexpr (Shape::kHasBlocks) {
      const uint32_t blocks = (args_.depth + kScaleBlock - 1) / kScaleBlock;
      const uint32_t virtual_row = Unit::sum_row(lane, 0), part = virtual_row % Shape::kParts;
#pragma unroll
      for (int g = 0; g < Shape::kGroups; ++g) {
        const uint32_t block = within((k + part * Unit::kDepth) / kScaleBlock + g, blocks);
#pragma unroll
        for (int u = 0; u < Step<Shape>::kScaleUnits; ++u)
          step.b_scale[u][g][0] = args_.b_scale[expert_scales_ + scale_row_[u][0] + block * args_.b_scale_group];
#pragma unroll
        for (int u = 0; u < Shape::kUnitsM; ++u)
          step.a_scale[u][g] = a_scale_[u][uint64_t{of_pair_} * args_.a_scale_row + block * args_.a_scale_group];
      }
    }
  }
};

/// Adds up what this wave has of the depth: every kWaves-th step.
template <class Shape, bool kIsAligned>
__device__ void multiply(const MoeGemmSkinnyArgs<Shape>& args, const Work<Shape>& work, uint32_t first_column,
                         typename Shape::Sums (&sums)[Shape::kTiles], typename Shape::Unit::Exchange& lds) {
  constexpr uint32_t kStages = Shape::kStages, kApart = Shape::kWaves, kRound = kStages * kApart;
  Reader<Shape, kIsAligned> reader(args, work, first_column);
  const uint32_t end = reader.steps(), whole_end = reader.whole_steps();
  uint32_t number = wave_index() % Shape::kWaves;
  const auto is_whole = [&](uint32_t round) { return round + (kRound - kApart) < whole_end; };

  Step<Shape> current[kStages];
  if (is_whole(number + kRound)) {
#pragma unroll
    for (uint32_t s = 0; s < kStages; ++s) {
      reader.load(current[s], number + s * kApart);
      skinny::keep_order();
    }
    number += kRound;
    do {
#pragma unroll
      for (uint32_t s = 0; s < kStages; ++s) {
        current[s].multiply(sums, reader.factor(number - kRound + s * kApart), lds);
        reader.load(current[s], number + s * kApart);
        skinny::keep_order();
      }
      number += kRound;
    } while (is_whole(number));
#pragma unroll
    for (uint32_t s = 0; s < kStages; ++s)
      current[s].multiply(sums, reader.factor(number - kRound + s * kApart), lds);
    skinny::settle_before_branch();
  }
  // What is left: less than a round, or one with a step that reaches beyond the depth, or all of a short depth.
  for (; number < end; number += kRound) {
    const auto step = [&](uint32_t s) { return number + s * kApart < end ? number + s * kApart : end; };
#pragma unroll
    for (uint32_t s = 0; s < kStages; ++s) {
      reader.load_part(current[s], step(s));
      skinny::keep_order();
    }
#pragma unroll
    for (uint32_t s = 0; s < kStages; ++s) {
      reader.complete(current[s], step(s));
      current[s].multiply(sums, reader.factor(step(s)), lds);
    }
    skinny::settle_before_branch();
  }
}

/// From the sums of an element of out, gate and up if kIsGated, to the element.
template <class Shape>
__device__ typename Shape::OutElement finished(const MoeGemmSkinnyArgs<Shape>& args, float (&x)[Shape::kHalves],
                                               const typename Shape::Memory& lds, uint32_t m, uint32_t column,
                                               uint32_t pairs) {
  using OutElement = typename Shape::OutElement;
#pragma unroll
  for (uint32_t half = 0; half < Shape::kHalves; ++half) {
    const uint32_t row = Shape::kIsInterleaved ? 2 * column + half : half * args.columns + column;
    const auto of_pair = [&](uint32_t index) {
      const typename Shape::Row& pair = lds.rows[index];
      float y = Shape::kIsSum ? 0.f : x[half];
      if constexpr (Shape::kHasRowScales && !Shape::kIsSum)
        y *= pair.scale * args.b_scale[pair.expert * args.b_scale_expert + uint64_t{row} * args.b_scale_row];
      if constexpr (Shape::kHasBias) y += to_float(args.bias[pair.expert * args.bias_expert + row]);
      if constexpr (Shape::kHasWeights) y *= pair.weight;
      return y;
    };
    if constexpr (!Shape::kIsSum) {
      x[half] = of_pair(m);
    } else if constexpr (Shape::kHasBias) {
      for (uint32_t index = 0; index < pairs; ++index) x[half] += of_pair(index);
    }
  }
  if constexpr (Shape::kIsGated) {
    float y[1], gate[1] = {x[0]}, up[1] = {x[1]};
    gated<Shape::kActivation, OutElement>(y, gate, up, args.limit);
    return from_float<OutElement>(y[0]);
  } else if constexpr (Shape::kHasActivation) {
    return from_float<OutElement>(activated<Shape::kActivation, OutElement>(x[0]));
  } else {
    return from_float<OutElement>(x[0]);
  }
}

/// The sum of row m and column `local` of the workgroup, in the order of the waves.
template <class Shape>
__device__ float total(const MoeGemmSkinnyArgs<Shape>& args, const typename Shape::Memory& lds, uint32_t first_column,
                       uint32_t m, uint32_t local, uint32_t half) {
  using Unit = typename Shape::Unit;
  const uint32_t team = local / Shape::kBlockN;
  first_column += team * Shape::kBlockN, local %= Shape::kBlockN;
  const uint32_t strip_rows = args.n / Shape::kStrips, first_row = first_column * (Shape::kIsInterleaved ? 2 : 1);
  const uint32_t of_strip = Shape::kIsInterleaved ? 2 * local + half : local;
  const uint32_t own_row = first_row + of_strip / Shape::kSpan * Shape::kSpan;
  const uint32_t strip = Shape::kIsInterleaved ? 0 : half;
  const uint32_t unit = (strip * Shape::kStripSpans + of_strip / Shape::kSpan) / Shape::kSpans;
  const uint32_t moved = first_row + of_strip - unit_begin<Shape::kSpan>(own_row, strip_rows);
  const uint32_t row = moved % Shape::kSpan + strip % Shape::kSpans * Shape::kSpan;  // beyond the columns any one
  const uint32_t tile = unit * Shape::kUnitsM + m * Shape::kParts / Unit::kRows;
  float sum = 0.f;
#pragma unroll
  for (int wave = 0; wave < Shape::kWaves; ++wave) {
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part)
      sum += lds.waves[team * Shape::kWaves + wave].sums[tile][Unit::sum_place(static_cast<int>(row * Shape::kParts + part),
                                                        static_cast<int>(m * Shape::kParts % Unit::kRows + part))];
  }
  return sum;
}

/// What workgroup (strip of columns, pair or token or block) does.
template <class Shape, bool kIsAligned>
__device__ __forceinline__ void product_body(const MoeGemmSkinnyArgs<Shape>& args, WorkgroupIndex workgroup,
                                             typename Shape::Memory& lds) {
  const uint32_t first_column = workgroup.x * Shape::kColumns;
  Work<Shape> work;
  if (!work.start(args, workgroup.y, lds)) return;
  auto& own = lds.waves[wave_index()];
  typename Shape::Sums sums[Shape::kTiles] = {};
  const uint32_t team_column = first_column + wave_index() / Shape::kWaves * Shape::kBlockN;
  if (Shape::kTeams == 1 || team_column < args.columns)
    multiply<Shape, kIsAligned>(args, work, team_column, sums, own.exchange);
#pragma unroll
  for (int t = 0; t < Shape::kTiles; ++t)
    store_vec(&own.sums[t][lane_index() * 4],
              Vec<float, 4>{{static_cast<float>(sums[t][0]), static_cast<float>(sums[t][1]),
                             static_cast<float>(sums[t][2]), static_cast<float>(sums[t][3])}});
  work.publish(lds);
  workgroup_barrier();

  constexpr int kElements = Shape::kBlockM * Shape::kColumns, kEach = 4;  // under way
  for (int base = 0; base < kElements; base += kEach * Shape::kThreads) {
    typename Shape::OutElement y[kEach];
    const auto place = [&](int e) {
      const int index = base + e * Shape::kThreads + thread_index();
      return index < kElements ? index : kElements - 1;
    };
    constexpr int kNeighbours = Shape::kColumns < 4 ? Shape::kColumns : 4;  // whose sums lie side by side
    const auto row = [&](int e) { return static_cast<uint32_t>(place(e) / kNeighbours % Shape::kBlockM); };
    const auto local = [&](int e) {
      return static_cast<uint32_t>(place(e) / (kNeighbours * Shape::kBlockM) * kNeighbours + place(e) % kNeighbours);
    };
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (e > 0 && base + e * Shape::kThreads >= kElements) continue;
      float x[Shape::kHalves];
#pragma unroll
      for (uint32_t half = 0; half < Shape::kHalves; ++half)
        x[half] = total<Shape>(args, lds, first_column, row(e), local(e), half);
      y[e] = finished(args, x, lds, row(e), within(first_column + local(e), args.columns), work.count());
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const uint32_t column = first_column + local(e);
      const int32_t pair = Shape::kIsSum ? static_cast<int32_t>(workgroup.y) : lds.rows[row(e)].pair;
      if (base + e * Shape::kThreads + thread_index() < kElements && column < args.columns && pair >= 0)
        args.out[uint64_t{static_cast<uint32_t>(pair)} * args.out_row + column] = y[e];
    }
  }
}

}  // namespace moe_skinny
}  // namespace aiter_like

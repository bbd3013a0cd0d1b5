// SPDX-License-Identifier: MIT
// Products of few rows with the matrices of their experts. A team of waves has kBlockN columns of out for a pair, a
// token or a block of sorted pairs; its waves share the depth, step by step, and add their sums up in LDS, in their
// order. Teams share a workgroup where a depth is too short for four waves, for which a compute unit has four SIMDs.
//
// Each wave streams its steps of the weights through registers, kStages of them ahead, as gemm_a16w16_skinny_body.h
// does. A single row of a has a unit of 16 for itself: the matrix units have the time, as memory is what is waited for.
#pragma once

#include "../activation/activation.h"
#include "moe_gemm_skinny_pairs.h"

namespace aiter_like::moe_skinny {

/// What a lane has of the operands for a step, and the scales of its products.
template <class Shape>
struct Step {
  using Unit = typename Shape::Unit;
  static constexpr int kScaleRows = Shape::kHasRowScales ? 4 : 1;  // of the weights, in a lane's sums of a unit
  static constexpr int kScaleUnits = Shape::kHasBlocks ? Shape::kStrips : Shape::kUnitsN;
  static_assert(!Shape::kHasBlocks || kScaleBlock % Shape::kStripRows == 0, "rows that lie together share a block");
  Run weights[Shape::kUnitsN][Unit::kColumnRuns], a[Shape::kUnitsM][Shape::kParts][Shape::kRowRuns];
  float a_scale[Shape::kUnitsM][Shape::kGroups], b_scale[kScaleUnits][Shape::kGroups][kScaleRows];
  uint32_t exponents[Shape::kUnitsN];  // of mxfp4, a byte for each of the lane's groups
  float group_scales[Shape::kUnitsN][Shape::kLaneGroups];  // The sums over groups take these.

  /// sums += weights · aᵀ, scaled
  __device__ void multiply(typename Shape::Sums (&sums)[Shape::kTiles], float factor,
                           typename Shape::Exchange& lds) const {
    if constexpr (Shape::kScalesSums) multiply_grouped(sums, factor, lds);
    else if constexpr (Shape::kIsPacked) multiply_packed(sums, factor, lds);
    else multiply_plain(sums, factor, lds);
  }

 private:
  __device__ void multiply_plain(typename Shape::Sums (&sums)[Shape::kTiles], float factor,
                                 typename Shape::Exchange& lds) const {
    decltype(Unit::rows(a[0][0], lds)) rows[Shape::kUnitsM];
#pragma unroll
    for (int m = 0; m < Shape::kUnitsM; ++m) rows[m] = Unit::rows(a[m][0], lds);
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
        else add_groups<0>(sum, columns, rows[m], factor, n, m);
      }
    }
  }

  template <int kGroup, class Columns, class Rows>
  __device__ void add_groups(skinny::FloatSums& sum, const Columns& columns, const Rows& rows, float factor, int n,
                             int m) const {
    typename Unit::Sums product = {};
    Unit::template multiply<kGroup, Shape::kGroups>(product, columns, rows);
    add_scaled<kGroup>(sum, product, factor, n, m);
    if constexpr (kGroup + 1 < Shape::kGroups) add_groups<kGroup + 1>(sum, columns, rows, factor, n, m);
  }

  /// sum += product, times its scales
  template <int kGroup>
  __device__ void add_scaled(skinny::FloatSums& sum, const typename Unit::Sums& product, float factor, int n,
                             int m) const {
    const float scale =
        Shape::kHasBlocks ? factor * a_scale[m][kGroup] * b_scale[n / Shape::kStripUnits][kGroup][0] : factor;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float of_row = Shape::kHasRowScales ? scale * b_scale[n][kGroup][i % kScaleRows] : scale;
      sum[i] = __builtin_fmaf(product[i], of_row, sum[i]);
    }
  }

  __device__ auto columns_of(int n, typename Shape::Exchange& lds) const {
    if constexpr (!Shape::kIsShuffled) return Unit::columns(weights[n], lds);
    else if constexpr (Shape::kScalesSums) return Unit::direct(weights[n], lds);
    else return Unit::direct(weights[n]);
  }

  __device__ void multiply_grouped(typename Shape::Sums (&sums)[Shape::kTiles], float factor,
                                   typename Shape::Exchange& lds) const {
    typename Unit::Operand packed[Shape::kUnitsN];
#pragma unroll
    for (int n = 0; n < Shape::kUnitsN; ++n) packed[n] = columns_of(n, lds);
#pragma unroll
    for (int n = 0; n < Shape::kUnitsN; ++n) {
      // Each lane has scales of a row of the weights, and needs those of four for each group.
#pragma unroll
      for (int i = 0; i < Shape::kLaneGroups; ++i)
        lds.scales[n][Unit::group(i)][lane_index() % Unit::kColumns] = group_scales[n][i] * factor;
    }
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      decltype(Unit::rows(a[0][0], lds)) rows[Shape::kUnitsM];
#pragma unroll
      for (int m = 0; m < Shape::kUnitsM; ++m) rows[m] = Unit::rows(a[m][part], lds);
#pragma unroll
      for (int n = 0; n < Shape::kUnitsN; ++n) {
        Vec<float, 4> scales[Unit::kPartGroups];
#pragma unroll
        for (int g = 0; g < Unit::kPartGroups; ++g)
          scales[g] = load_vec<4>(&lds.scales[n][part * Unit::kPartGroups + g][Unit::sum_column(lane_index(), 0)]);
#pragma unroll
        for (int m = 0; m < Shape::kUnitsM; ++m)
          Unit::multiply_scaled(sums[n * Shape::kUnitsM + m], packed[n], rows[m], part, scales);
      }
    }
  }

  __device__ void multiply_packed(typename Shape::Sums (&sums)[Shape::kTiles], float factor,
                                  typename Shape::Exchange& lds) const {
    typename Unit::Operand packed[Shape::kUnitsN];
    bool are_normal = true;
#pragma unroll
    for (int n = 0; n < Shape::kUnitsN; ++n) {
      packed[n] = columns_of(n, lds);
      if constexpr (Shape::kHasGroups) are_normal &= Unit::are_normal(exponents[n]);
    }
    if constexpr (Shape::kHasGroups) are_normal = lanes_with(!are_normal) == 0;
    typename Unit::Sums products[Shape::kScalesProducts ? Shape::kTiles : 1] = {};
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      typename Unit::Operand rows[Shape::kUnitsM];
#pragma unroll
      for (int m = 0; m < Shape::kUnitsM; ++m) rows[m] = Unit::rows(a[m][part], lds);
#pragma unroll
      for (int n = 0; n < Shape::kUnitsN; ++n) {
        const typename Unit::Operand columns = Unit::widened(packed[n], part, exponents[n], are_normal);
#pragma unroll
        for (int m = 0; m < Shape::kUnitsM; ++m) {
          const int tile = n * Shape::kUnitsM + m;
          if constexpr (Shape::kScalesProducts) Unit::multiply(products[tile], columns, rows[m]);
          else Unit::multiply(sums[tile], columns, rows[m]);
        }
      }
    }
    if constexpr (Shape::kScalesProducts) {
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile)
        add_scaled<0>(sums[tile], products[tile], factor, tile / Shape::kUnitsM, tile % Shape::kUnitsM);
    }
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
    const uint32_t strip_rows = args.n / Shape::kStrips, row_bytes = args.b_row * kWeightBytes;
    const uint32_t first_row = first_column * (Shape::kIsInterleaved ? 2 : 1);
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
      const uint32_t row = unit_row(u, first_row, strip_rows);
      unit_[u] = Shape::kIsShuffled ? uint64_t{row / kBand * kBand} * row_bytes + row % kBand * skinny::kRunBytes
                                    : uint64_t{row} * row_bytes;
    }
    if constexpr (kReadsScales) start_scales(first_row, strip_rows);
#pragma unroll
    for (int run = 0; run < Unit::kColumnRuns; ++run) {
      const uint32_t row = within(Shape::kIsShuffled ? Unit::direct_column(run) : Unit::column(run), strip_rows);
      of_column_[run] = row * (Shape::kIsShuffled ? skinny::kRunBytes : row_bytes);
    }
    const auto row_of = [&](int m) {
      return Shape::kIsSum ? 0 : work.row_of(args, m < Shape::kBlockM ? m : 0);
    };
#pragma unroll
    for (int u = 0; u < Shape::kUnitsM; ++u) {
#pragma unroll
      for (int run = 0; run < Shape::kRowRuns; ++run)
        of_row_[u][run] = row_of(u * Unit::kRows + Unit::row(run)) * args.a_row * kBytes;
      if constexpr (Shape::kHasBlocks) {
        const uint64_t row = row_of(u * Unit::kRows + Unit::sum_row(lane_index(), 0));
        a_scale_[u] = args.a_scale + row * args.a_scale_row;
      }
    }
    select(0);
  }

  /// Starts the loads of a step, which lies within the depth.
  __device__ void load(Step<Shape>& step, uint32_t number) {
    const uint32_t k = begin(number);
    load_from(step, k, [](uint32_t at, int) { return at; });
  }
  /// As load, for a step that reaches beyond the depth, or is none; complete() follows. Lanes beyond read what begins
  /// a row.
  __device__ void load_part(Step<Shape>& step, uint32_t number) {
    const uint32_t k = begin(number);
    load_from(step, k, [&](uint32_t at, int elements) { return at + elements <= args_.depth ? at : 0; });
  }
  /// Puts zeros where load_part was beyond the depth, and the elements of the last run, if it is no whole one. Packed
  /// weights have none but whole ones.
  __device__ void complete(Step<Shape>& step, uint32_t number) {
    const uint32_t k = begin(number);
    if (k + Unit::kDepth <= args_.depth) return;
    const uint32_t rest = Shape::kIsPacked ? 0 : args_.depth % Unit::kRun;
    const auto mask = [&](Run& run, uint32_t at, int elements) {
      const uint32_t bits = at + elements <= args_.depth ? 0xFFFFFFFFu : 0u;
#pragma unroll
      for (int w = 0; w < 4; ++w) run[w] &= bits;
    };
    const auto put_rest = [&](Run& run, const char* row, uint32_t offset, uint32_t at) {
      if (rest == 0 || at != args_.depth - rest) return;
      for (uint32_t e = 0; e < rest; ++e) {
        const auto element = *reinterpret_cast<const Element*>(row + offset + (at + e) * kBytes);
        const uint32_t bits = static_cast<uint32_t>(bits_of(element)) << (8 * kBytes * (e % kPerWord));
#pragma unroll
        for (uint32_t w = 0; w < 4; ++w) run[w] |= e / kPerWord == w ? bits : 0u;
      }
    };
    // A shuffled row has no part of a run.
    each_weight(step, k, [&](Run& run, const char* row, uint32_t offset, uint32_t at) {
      mask(run, at, Unit::kRun);
      put_rest(run, row, offset, at);
    });
    each_row(step, k, [&](Run& run, const char* row, uint32_t offset, uint32_t at) {
      mask(run, at, Shape::kRowRun);
      put_rest(run, row, offset, at);
    });
    if constexpr (Shape::kHasGroups) complete_groups(step, k);
  }
  /// By what the products of a step are multiplied.
  __device__ float factor(uint32_t number) const {
    if constexpr (!Shape::kIsSum) return 1.f;
    const uint32_t segment = segment_of(number);
    return segment < work_.count() ? work_.factor(segment) : 0.f;
  }
  /// How many steps, from the first on, lie within the depth.
  __device__ uint32_t whole_steps() const {
    if (args_.depth % Shape::Unit::kDepth == 0) return steps();
    return Shape::kIsSum ? 0 : args_.depth / Shape::Unit::kDepth;
  }
  __device__ uint32_t steps() const { return args_.steps * work_.count(); }

 private:
  static constexpr uint32_t kBytes = sizeof(Element), kPerWord = 4 / kBytes;
  static constexpr uint32_t kWeightBytes = sizeof(typename Shape::Weight);
  static constexpr uint32_t kBand = 16;  // rows that shuffle_weight puts together
  static constexpr bool kReadsScales = Shape::kScalesProducts || Shape::kHasGroups || Shape::kScalesSums;

  const Args& args_;
  const Work<Shape>& work_;
  const char* b_;                                                            // of the pair's expert
  uint64_t unit_[Shape::kUnitsN];                                            // bytes to a unit's rows of the weights
  uint32_t of_column_[Unit::kColumnRuns], of_row_[Shape::kUnitsM][Shape::kRowRuns];  // from there to the lane's
  uint32_t of_pair_ = 0;
  int64_t expert_scales_ = 0;
  uint32_t scale_row_[Step<Shape>::kScaleUnits][Step<Shape>::kScaleRows];
  const float* a_scale_[Shape::kUnitsM];

  __device__ static uint32_t bits_of(int8_t x) { return static_cast<uint8_t>(x); }
  template <class T>
  __device__ static uint32_t bits_of(T x) {
    return x.bits;
  }

  /// The row of the weights that unit `u` begins with, of a team whose strips begin with `first_row`.
  __device__ static uint32_t unit_row(int u, uint32_t first_row, uint32_t strip_rows) {
    return u / Shape::kStripUnits * strip_rows +
           unit_begin<Unit::kColumns>(first_row + u % Shape::kStripUnits * Unit::kColumns, strip_rows);
  }
  __device__ uint32_t segment_of(uint32_t number) const {
    return static_cast<uint32_t>((uint64_t{number} * args_.of_steps) >> 31);
  }
  /// Makes pair `segment` the one that is read.
  __device__ void select(uint32_t segment) {
    const int64_t expert = work_.expert(segment);
    b_ = reinterpret_cast<const char*>(args_.b + expert * args_.b_expert);
    if constexpr (Shape::kIsSum) of_pair_ = work_.pair_row(args_, segment);
    if constexpr (kReadsScales) expert_scales_ = expert * args_.b_scale_expert;
  }
  /// Where step `number` begins in the depth of its pair; beyond the depth for none.
  __device__ uint32_t begin(uint32_t number) {
    if constexpr (!Shape::kIsSum) return number * Shape::Unit::kDepth;
    const uint32_t segment = segment_of(number);
    const bool is_one = segment < work_.count();
    select(is_one ? segment : 0);
    return is_one ? (number - segment * args_.steps) * Shape::Unit::kDepth : args_.depth;
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
        f(step.weights[u][run], b_ + unit_[u], of_column_[run], k + depth);
      }
    }
  }
  template <class F>
  __device__ void each_row(Step<Shape>& step, uint32_t k, F f) const {
    const char* const a = reinterpret_cast<const char*>(args_.a) + uint64_t{of_pair_} * args_.a_row * kBytes;
#pragma unroll
    for (int u = 0; u < Shape::kUnitsM; ++u) {
#pragma unroll
      for (int part = 0; part < Shape::kParts; ++part) {
#pragma unroll
        for (int run = 0; run < Shape::kRowRuns; ++run)
          f(step.a[u][part][run], a, of_row_[u][run], k + row_depth(part));
      }
    }
  }
  __device__ static uint32_t row_depth(int part) {
    if constexpr (Shape::kIsPacked) return Unit::row_depth(part);
    else return Unit::depth();
  }
  /// Bytes to a weight that begins a run.
  __device__ static uint32_t weight_bytes(uint32_t at) { return at / Unit::kRun * skinny::kRunBytes; }
  template <class F>
  __device__ void load_from(Step<Shape>& step, uint32_t k, F clamped) const {
    constexpr uint32_t kApart = Shape::kIsShuffled ? kBand : 1;  // runs of a row
    each_weight(step, k, [&](Run& run, const char* base, uint32_t offset, uint32_t at) {
      run = skinny::load_run<kIsAligned, typename Shape::Weight>(
          base + (offset + weight_bytes(clamped(at, Unit::kRun)) * kApart));
    });
    each_row(step, k, [&](Run& run, const char* base, uint32_t offset, uint32_t at) {
      run = skinny::load_run<kIsAligned, Element>(base + (offset + clamped(at, Shape::kRowRun) * kBytes));
    });
    if constexpr (Shape::kScalesProducts) load_scales(step, k);
    if constexpr (Shape::kHasGroups) load_groups(step, k);
    if constexpr (Shape::kScalesSums) load_group_scales(step, k);
  }

  /// Where the scales of a lane's rows are: of each strip, whose rows share a block, or of each unit.
  __device__ void start_scales(uint32_t first_row, uint32_t strip_rows) {
#pragma unroll
    for (int u = 0; u < Step<Shape>::kScaleUnits; ++u) {
#pragma unroll
      for (int i = 0; i < Step<Shape>::kScaleRows; ++i) {
        if constexpr (Shape::kHasBlocks)
          scale_row_[u][i] = (u * strip_rows + first_row) / kScaleBlock * args_.b_scale_row;
        else if constexpr (Shape::kHasGroups || Shape::kScalesSums)  // of the lane's row of the instruction's operand
          scale_row_[u][i] = (unit_row(u, first_row, strip_rows) +
                              within(lane_index() % Unit::kColumns, strip_rows)) / Shape::kScaleRows *
                             args_.b_scale_row;
        else
          scale_row_[u][i] = (unit_row(u, first_row, strip_rows) +
                              within(Unit::sum_column(lane_index(), i), strip_rows)) * args_.b_scale_row;
      }
    }
  }
  /// Of mxfp4 the powers of two of the lane's four groups of a step. Where the groups of a row follow one another, of a
  /// step that reaches beyond the depth those of the last four: to take them apart would be to wait for them.
  __device__ void load_groups(Step<Shape>& step, uint32_t k) const {
    const uint32_t first = first_group(k), groups = args_.depth / kScaleGroup;
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
      const uint8_t* row = args_.b_scale + expert_scales_ + scale_row_[u][0];
      if (args_.are_groups_dense) {
        __builtin_memcpy(&step.exponents[u], row + (first + 4 <= groups ? first : groups - 4), 4);
        continue;
      }
      step.exponents[u] = 0;
#pragma unroll
      for (int g = 0; g < 4; ++g)
        step.exponents[u] |= uint32_t{row[within(first + g, groups) * args_.b_scale_group]} << 8 * g;
    }
  }
  /// Puts the lane's groups in their places after load_groups.
  __device__ void complete_groups(Step<Shape>& step, uint32_t k) const {
    if (!args_.are_groups_dense) return;
    const uint32_t end = first_group(k) + 4, groups = args_.depth / kScaleGroup;
    const uint32_t beyond = end <= groups ? 0 : within(end - groups, 4);
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) step.exponents[u] >>= 8 * beyond;
  }
  __device__ static uint32_t first_group(uint32_t k) {
    return k / kScaleGroup + lane_index() / Unit::kColumns * 4;
  }
  /// Of a step's groups, those of the lane; those beyond the depth scale zeros.
  __device__ void load_group_scales(Step<Shape>& step, uint32_t k) const {
    const uint32_t groups = (args_.depth + Shape::kGroup - 1) / Shape::kGroup;
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
      const auto* row = args_.b_scale + expert_scales_ + scale_row_[u][0];
#pragma unroll
      for (int i = 0; i < Shape::kLaneGroups; ++i)
        step.group_scales[u][i] =
            to_float(row[within(k / Shape::kGroup + Unit::group(i), groups) * args_.b_scale_group]);
    }
  }
  __device__ void load_scales(Step<Shape>& step, uint32_t k) const {
    if constexpr (Shape::kHasRowScales) {
#pragma unroll
      for (int u = 0; u < Shape::kUnitsN; ++u) {
#pragma unroll
        for (int i = 0; i < Step<Shape>::kScaleRows; ++i)
          step.b_scale[u][0][i] = to_float(args_.b_scale[expert_scales_ + scale_row_[u][i]]);
      }
    }
    if constexpr (Shape::kHasBlocks) {
      const uint32_t blocks = (args_.depth + kScaleBlock - 1) / kScaleBlock;
#pragma unroll
      for (int g = 0; g < Shape::kGroups; ++g) {
        const uint32_t block = within(k / kScaleBlock + g, blocks);
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
                         typename Shape::Sums (&sums)[Shape::kTiles], typename Shape::Exchange& lds) {
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
        y *= pair.scale * to_float(args.b_scale[pair.expert * args.b_scale_expert + uint64_t{row} * args.b_scale_row]);
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
  const uint32_t strip = Shape::kIsInterleaved ? 0 : half;
  const uint32_t begin = unit_begin<Unit::kColumns>(first_row + of_strip / Unit::kColumns * Unit::kColumns, strip_rows);
  const int row = static_cast<int>((first_row + of_strip - begin) % Unit::kColumns);  // beyond the columns any one
  const uint32_t unit = strip * Shape::kStripUnits + of_strip / Unit::kColumns;
  const uint32_t tile = unit * Shape::kUnitsM + m / Unit::kRows;
  const int place = Unit::sum_place(row, static_cast<int>(m % Unit::kRows));
  float sum = 0.f;
#pragma unroll
  for (int wave = 0; wave < Shape::kWaves; ++wave) sum += lds.waves[team * Shape::kWaves + wave].sums[tile][place];
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
    constexpr int kNeighbours = 4;  // whose sums lie side by side
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

}  // namespace aiter_like::moe_skinny

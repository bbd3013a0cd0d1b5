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

/// A lane's part of the operands of a step, and the scales of its products.
template <class Shape>
struct Step {
  using Unit = typename Shape::Unit;
  using Scales = typename Shape::Scales::template In<Shape>;
  Run weights[Shape::kUnitsN][Unit::kColumnRuns], a[Shape::kUnitsM][Shape::kParts][Shape::kRowRuns];
  typename Scales::Step scales;

  __device__ auto columns(int n, typename Shape::Exchange& lds) const {
    return Shape::Order::template columns<typename Shape::Weights>(weights[n], lds);
  }
  /// sum += product, times its scales
  __device__ void add_scaled(skinny::FloatSums& sum, const typename Unit::Sums& product, float factor, int group, int n,
                             int m) const {
    const float scale = scales.of_product(factor, n, m, group);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __builtin_fmaf(product[i], scales.of_row(scale, n, i), sum[i]);
  }
};

// Products have multiply(): sums += weights · aᵀ of a step, scaled.

/// Products of operands that the instruction takes as they are.
struct PlainProducts {
  template <class Shape>
  __device__ static void multiply(const Step<Shape>& step, typename Shape::Sums (&sums)[Shape::kTiles], float factor,
                                  typename Shape::Exchange& lds) {
    using Unit = typename Shape::Unit;
    decltype(Unit::rows(step.a[0][0], lds)) rows[Shape::kUnitsM];
#pragma unroll
    for (int m = 0; m < Shape::kUnitsM; ++m) rows[m] = Unit::rows(step.a[m][0], lds);
#pragma unroll
    for (int n = 0; n < Shape::kUnitsN; ++n) {
      const auto columns = step.columns(n, lds);
#pragma unroll
      for (int m = 0; m < Shape::kUnitsM; ++m) {
        auto& sum = sums[n * Shape::kUnitsM + m];
        if constexpr (!Shape::kScalesProducts) Unit::multiply(sum, columns, rows[m]);
        else add_groups<0>(step, sum, columns, rows[m], factor, n, m);
      }
    }
  }

 private:
  template <int kGroup, class Shape, class Columns, class Rows>
  __device__ static void add_groups(const Step<Shape>& step, skinny::FloatSums& sum, const Columns& columns,
                                    const Rows& rows, float factor, int n, int m) {
    using Unit = typename Shape::Unit;
    constexpr int kGroups = Shape::Scales::template In<Shape>::kGroups;
    typename Unit::Sums product = {};
    Unit::template multiply<kGroup, kGroups>(product, columns, rows);
    step.add_scaled(sum, product, factor, kGroup, n, m);
    if constexpr (kGroup + 1 < kGroups) add_groups<kGroup + 1>(step, sum, columns, rows, factor, n, m);
  }
};

/// Products of weights that are widened first, all columns of a part of the depth before the next part's rows.
struct PackedProducts {
  template <class Shape>
  __device__ static void multiply(const Step<Shape>& step, typename Shape::Sums (&sums)[Shape::kTiles], float factor,
                                  typename Shape::Exchange& lds) {
    using Unit = typename Shape::Unit;
    typename Unit::Operand packed[Shape::kUnitsN];
    bool are_normal = true;  // This is asked of mxfp4 alone.
#pragma unroll
    for (int n = 0; n < Shape::kUnitsN; ++n) {
      packed[n] = step.columns(n, lds);
      are_normal &= Unit::are_normal(step.scales.exponents(n));
    }
    are_normal = lanes_with(!are_normal) == 0;
    typename Unit::Sums products[Shape::kScalesProducts ? Shape::kTiles : 1] = {};
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      typename Unit::Operand rows[Shape::kUnitsM];
#pragma unroll
      for (int m = 0; m < Shape::kUnitsM; ++m) rows[m] = Unit::rows(step.a[m][part], lds);
#pragma unroll
      for (int n = 0; n < Shape::kUnitsN; ++n) {
        const typename Unit::Operand columns =
            Unit::widened(packed[n], part, step.scales.exponents(n), are_normal);
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
        step.add_scaled(sums[tile], products[tile], factor, 0, tile / Shape::kUnitsM, tile % Shape::kUnitsM);
    }
  }
};

/// Products of weights whose sums are scaled group by group.
struct GroupedProducts {
  template <class Shape>
  __device__ static void multiply(const Step<Shape>& step, typename Shape::Sums (&sums)[Shape::kTiles], float factor,
                                  typename Shape::Exchange& lds) {
    using Unit = typename Shape::Unit;
    typename Unit::Operand packed[Shape::kUnitsN];
#pragma unroll
    for (int n = 0; n < Shape::kUnitsN; ++n) packed[n] = step.columns(n, lds);
#pragma unroll
    for (int n = 0; n < Shape::kUnitsN; ++n) {
      // Each lane has scales of a row of the weights, and needs those of four for each group.
#pragma unroll
      for (int i = 0; i < Unit::kLaneGroups; ++i)
        lds.scales[n][Unit::group(i)][lane_index() % Unit::kColumns] = step.scales.groups[n][i] * factor;
    }
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      decltype(Unit::rows(step.a[0][0], lds)) rows[Shape::kUnitsM];
#pragma unroll
      for (int m = 0; m < Shape::kUnitsM; ++m) rows[m] = Unit::rows(step.a[m][part], lds);
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
};

/// Reads the operands and the scales of a lane.
template <class Shape, bool kIsAligned>
class Reader {
 public:
  using Element = typename Shape::Element;
  using Unit = typename Shape::Unit;
  using Order = typename Shape::Order;
  using Args = MoeGemmSkinnyArgs<Shape>;

  __device__ Reader(const Args& args, const Work<Shape>& work, uint32_t first_column)
      : args_(args), work_(work), b_(reinterpret_cast<const char*>(args.b)) {
    const uint32_t strip_rows = args.n / Shape::kStrips, row_bytes = args.b_row * kWeightBytes;
    const uint32_t first_row = first_column * (Shape::kIsInterleaved ? 2 : 1);
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u)
      unit_[u] = Order::unit_offset(Shape::unit_row(u, first_row, strip_rows), row_bytes);
    scales_.start(args, first_row, strip_rows);
#pragma unroll
    for (int run = 0; run < Unit::kColumnRuns; ++run)
      of_column_[run] = Order::row_offset(within(Order::template column<Unit>(run), strip_rows), row_bytes);
    const auto row_of = [&](int m) { return work.row_of(args, m < Shape::kBlockM ? m : 0); };
#pragma unroll
    for (int u = 0; u < Shape::kUnitsM; ++u) {
#pragma unroll
      for (int run = 0; run < Shape::kRowRuns; ++run)
        of_row_[u][run] = row_of(u * Unit::kRows + Unit::row(run)) * args.a_row * kBytes;
      if constexpr (Shape::Scales::kIsOfProducts)
        scales_.start_row(args, u, row_of(u * Unit::kRows + Unit::sum_row(lane_index(), 0)));
    }
    select(0);
  }

  /// Starts the loads of a step, which lies within the depth.
  __device__ void load(Step<Shape>& step, uint32_t number) {
    const uint32_t k = begin(number);
    load_from(step, k, [](uint32_t at, int) { return at; });
  }
  /// Like load(), for a step that reaches beyond the depth, or is none; complete() follows. Lanes beyond read the first
  /// elements of a row.
  __device__ void load_part(Step<Shape>& step, uint32_t number) {
    const uint32_t k = begin(number);
    load_from(step, k, [&](uint32_t at, int elements) { return at + elements <= args_.depth ? at : 0; });
  }
  /// Puts zeros where load_part was beyond the depth, and the elements of the last run, if it is no whole one. Packed
  /// weights have whole ones only.
  __device__ void complete(Step<Shape>& step, uint32_t number) {
    const uint32_t k = begin(number);
    if (k + Unit::kDepth <= args_.depth) return;
    const uint32_t rest = Shape::Weights::kMultiple == 1 ? args_.depth % Unit::kRun : 0;
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
    scales_.complete(args_, step.scales, k);
  }
  /// The factor of the products of a step.
  __device__ float factor(uint32_t number) const { return work_.factor(args_, number); }
  /// How many steps, from the first on, lie within the depth.
  __device__ uint32_t whole_steps() const {
    if (args_.depth % Shape::Unit::kDepth == 0) return steps();
    return Shape::kIsSum ? 0 : args_.depth / Shape::Unit::kDepth;
  }
  __device__ uint32_t steps() const { return args_.steps * work_.count(); }

 private:
  static constexpr uint32_t kBytes = sizeof(Element), kPerWord = 4 / kBytes;
  static constexpr uint32_t kWeightBytes = sizeof(typename Shape::Weight);

  const Args& args_;
  const Work<Shape>& work_;
  const char* b_;                                                            // of the pair's expert
  uint64_t unit_[Shape::kUnitsN];                                            // bytes to a unit's rows of the weights
  uint32_t of_column_[Unit::kColumnRuns], of_row_[Shape::kUnitsM][Shape::kRowRuns];  // from there to the lane's
  uint32_t of_pair_ = 0;
  typename Shape::Scales::template In<Shape> scales_;

  __device__ static uint32_t bits_of(int8_t x) { return static_cast<uint8_t>(x); }
  template <class T>
  __device__ static uint32_t bits_of(T x) {
    return x.bits;
  }

  /// Makes pair `segment` the one that is read.
  __device__ void select(uint32_t segment) {
    const int64_t expert = work_.expert(segment);
    b_ = reinterpret_cast<const char*>(args_.b + expert * args_.b_expert);
    if constexpr (Shape::kIsSum) of_pair_ = work_.pair_row(args_, segment);
    scales_.select(args_, expert);
  }
  /// The place in its pair's depth where step `number` begins; beyond the depth for none.
  __device__ uint32_t begin(uint32_t number) {
    return work_.begin(args_, number, [&](uint32_t segment) { select(segment); });
  }

  /// f(run, base, offset, at) for each run of a step that begins at `k`: elements from `at` on of a row that is at
  /// base + offset.
  template <class F>
  __device__ void each_weight(Step<Shape>& step, uint32_t k, F f) const {
#pragma unroll
    for (int u = 0; u < Shape::kUnitsN; ++u) {
#pragma unroll
      for (int run = 0; run < Unit::kColumnRuns; ++run) {
        const uint32_t depth = Order::template depth<Unit>(run);
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
          f(step.a[u][part][run], a, of_row_[u][run], k + Shape::Weights::row_depth(part));
      }
    }
  }
  /// Bytes to a weight that begins a run.
  __device__ static uint32_t weight_bytes(uint32_t at) { return at / Unit::kRun * skinny::kRunBytes; }
  template <class F>
  __device__ void load_from(Step<Shape>& step, uint32_t k, F clamped) const {
    each_weight(step, k, [&](Run& run, const char* base, uint32_t offset, uint32_t at) {
      run = skinny::load_run<kIsAligned, typename Shape::Weight>(
          base + (offset + weight_bytes(clamped(at, Unit::kRun)) * Order::kApart));
    });
    each_row(step, k, [&](Run& run, const char* base, uint32_t offset, uint32_t at) {
      run = skinny::load_run<kIsAligned, Element>(base + (offset + clamped(at, Shape::kRowRun) * kBytes));
    });
    scales_.load(args_, step.scales, k, of_pair_);
  }
};

/// Adds up what this wave has of the depth: every kWaves-th step.
template <class Shape, bool kIsAligned>
__device__ void multiply(const MoeGemmSkinnyArgs<Shape>& args, const Work<Shape>& work, uint32_t first_column,
                         typename Shape::Sums (&sums)[Shape::kTiles], typename Shape::Exchange& lds) {
  using Products = typename Shape::Weights::Products;
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
        Products::multiply(current[s], sums, reader.factor(number - kRound + s * kApart), lds);
        reader.load(current[s], number + s * kApart);
        skinny::keep_order();
      }
      number += kRound;
    } while (is_whole(number));
#pragma unroll
    for (uint32_t s = 0; s < kStages; ++s)
      Products::multiply(current[s], sums, reader.factor(number - kRound + s * kApart), lds);
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
      Products::multiply(current[s], sums, reader.factor(step(s)), lds);
    }
    skinny::settle_before_branch();
  }
}

/// A Finish makes an element of its sums: of one, or of gate and up.
struct AsItIs {
  static constexpr int kHalves = 1;
  template <class OutElement>
  __device__ static OutElement result(const float (&x)[1], float) {
    return from_float<OutElement>(x[0]);
  }
};
template <Activation kActivation>
struct Activated {
  static constexpr int kHalves = 1;
  template <class OutElement>
  __device__ static OutElement result(const float (&x)[1], float) {
    return from_float<OutElement>(activated<kActivation, OutElement>(x[0]));
  }
};
template <Activation kActivation>
struct Gated {
  static constexpr int kHalves = 2;
  template <class OutElement>
  __device__ static OutElement result(const float (&x)[2], float limit) {
    float y[1], gate[1] = {x[0]}, up[1] = {x[1]};
    gated<kActivation, OutElement>(y, gate, up, limit);
    return from_float<OutElement>(y[0]);
  }
};

/// From the sums of an element of out to the element.
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
      if (Shape::Scales::kIsOfB) y = Shape::Scales::template In<Shape>::scaled(args, y, pair, row);
      if (Shape::kHasBias) y += to_float(args.bias[pair.expert * args.bias_expert + row]);
      if (Shape::kHasWeights) y *= pair.weight;
      return y;
    };
    if constexpr (!Shape::kIsSum) {
      x[half] = of_pair(m);
    } else if (Shape::kHasBias) {
      for (uint32_t index = 0; index < pairs; ++index) x[half] += of_pair(index);
    }
  }
  return Shape::Finish::template result<OutElement>(x, args.limit);
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

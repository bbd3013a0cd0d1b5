// SPDX-License-Identifier: MIT
// What a workgroup of moe_gemm does: its rows are some of a block of what moe_sorting has sorted, which has one expert;
// rows of a are gathered on the way to LDS, those of out scattered; between are scales, bias, weight and activation.
#pragma once

#include "../activation/activation.h"
#include "../gemm/chosen_loops.h"
#include "../gemm/gate_bands.h"

namespace aiter_like {

template <class Config>
struct MoeGemmArgs {
  tile::MatrixView<const typename Config::Element> a;        // [tokens or pairs, k]
  tile::GlobalView<const typename Config::Element, 3> b;     // [experts, n, k]
  tile::MatrixView<typename Config::OutElement> out;         // [pairs, columns]
  const int32_t *experts, *sorted_ids, *valid;               // [blocks], [places], [1]
  const float* weights;                                      // [places], or null
  gemm::VectorPerMatrix<typename Config::BiasElement> bias;  // n each; read where the build has one
  gemm::ScaleMatrix a_scale;                                 // [rows of a, 1 or ceil(k / 128)]; where there are scales
  const float* b_scale;                                      // [experts, n or ceil(n / 128), 1 or ceil(k / 128)]
  int64_t b_scale_strides[3];
  int64_t places;                                            // each has an expert; valid says how many count
  int32_t slots, block;
  bool is_of_pairs;                                          // a has a row for each pair
  float limit;
  tile::TileOrder order;                                     // order of all places
};

namespace moe_gemm {

using namespace gemm;

/// The places that a tile has.
struct Places {
  const int32_t* sorted_ids;
  int64_t first, end;  // the first of the tile, and where places end to count
  uint32_t slots, pairs;
  bool is_of_pairs;

  /// The pair of the tile's row, whatever its number is; -1 where there is none.
  __device__ int32_t pair(int row) const {
    const uint32_t number = at(row), token = number & 0xFFFFFF, slot = number >> 24, pair = token * slots + slot;
    return slot < slots && pair < pairs && first + row < end ? static_cast<int32_t>(pair) : -1;
  }
  /// The row of a that the tile's row is made of.
  __device__ int64_t operator()(int row) const {
    const int32_t found = pair(row);
    return found < 0 || is_of_pairs ? found : static_cast<int32_t>(at(row) & 0xFFFFFF);
  }

 private:
  __device__ uint32_t at(int row) const {
    const int64_t place = first + row;
    return static_cast<uint32_t>(sorted_ids[place < end ? place : end - 1]);
  }
};

/// A Config has also OutElement, BiasElement, kIsShuffled (the matrices b), kHasBias, kHasScales (of rows and columns),
/// kHasBlockScales, kHasActivation, kActivation, kIsGated and kIsInterleaved.
template <class Config>
struct Body {
  using Shape = gemm::Shape<Config>;
  using Args = MoeGemmArgs<Config>;
  using OutElement = typename Config::OutElement;
  static constexpr int kBand = Config::kIsShuffled ? 16 : 0, kHalves = Config::kIsGated ? 2 : 1;
  using Loop = std::conditional_t<Config::kHasBlockScales, ChosenScaledLoop<Shape, kBand, kHalves>,
                                  ChosenLoop<Shape, kBand>>;
  using Memory = typename Loop::Memory;
  using Columns = std::conditional_t<Config::kIsGated, GateRows<Config::kIsInterleaved>, RowsInOrder>;
  static_assert(Config::kSplits == 1, "blocks of many experts share the depth with nobody");

  /// Facts about a row of the tile that do not depend on the column.
  struct Row {
    int32_t pair;
    float scale, weight;
  };
  /// Those of a wave, a row in each lane: LDS is full of sums.
  class Rows {
   public:
    __device__ Rows(const Args& args, const Places& places, int first_row) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int row = first_row + i * kWaveSize + lane_index() % Shape::kWaveM;
        rows_[i] = {places.pair(row), 1.f, 1.f};
        if (rows_[i].pair < 0) continue;
        if constexpr (Config::kHasScales) rows_[i].scale = args.a_scale.data[places(row) * args.a_scale.strides[0]];
        if (args.weights != nullptr) rows_[i].weight = args.weights[places.first + row];
      }
    }
    /// Row `row` of the wave, whose number past a multiple of 64 is another one in each lane; all lanes ask.
    __device__ Row at(int row, int first) const {
      const Row& of_lane = rows_[first / kWaveSize];
      const int lane = row % kWaveSize;
      Row found{from_lane(of_lane.pair, lane), 1.f, from_lane(of_lane.weight, lane)};
      if constexpr (Config::kHasScales) found.scale = from_lane(of_lane.scale, lane);
      return found;
    }

   private:
    static constexpr int kCount = (Shape::kWaveM + kWaveSize - 1) / kWaveSize;
    Row rows_[kCount];
  };

  /// Scales and biases of a run of columns, and how a sum becomes an element of out.
  struct Finish {
    float scales[kHalves][kSumColumns], biases[kHalves][kSumColumns];
    float limit;

    __device__ Finish(const Args& args, int64_t expert, const Columns& columns, int tile_column) : limit(args.limit) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < kSumColumns; ++i) {
          const int64_t row = columns(tile_column + half * kGateBand + i);
          if constexpr (Config::kHasScales)
            scales[half][i] = args.b_scale[expert * args.b_scale_strides[0] + row * args.b_scale_strides[1]];
          if constexpr (Config::kHasBias) biases[half][i] = element_of(args.bias.at(expert) + row);
        }
      }
    }
    template <class Run>
    __device__ void product(float (&values)[kSumColumns], const Run& sums, const Row& row, int half) const {
#pragma unroll
      for (int i = 0; i < kSumColumns; ++i) {
        float x = static_cast<float>(sums[i]);
        if constexpr (Config::kHasScales) x = x * row.scale * scales[half][i];
        if constexpr (Config::kHasBias) x += biases[half][i];
        values[i] = x * row.weight;
      }
    }
    template <class Run>
    __device__ void operator()(float (&values)[kSumColumns], const Row& row, const Run& sums) const {
      product(values, sums, row, 0);
      if constexpr (Config::kHasActivation) {
#pragma unroll
        for (float& x : values) x = activated<Config::kActivation, OutElement>(x);
      }
    }
    template <class Run>
    __device__ void operator()(float (&values)[kSumColumns], const Row& row, const Run& gates, const Run& ups) const {
      float gate[kSumColumns], up[kSumColumns];
      product(gate, gates, row, 0);
      product(up, ups, row, 1);
      gated<Config::kActivation, OutElement>(values, gate, up, limit);
    }
  };

  /// Runs workgroup `workgroup` (tile).
  __device__ __attribute__((always_inline)) static void multiply(const Args& args, WorkgroupIndex workgroup,
                                                                 Memory& lds) {
    const int64_t valid = args.valid[0], end = valid < args.places ? valid : args.places;
    if (end <= 0) return;
    const TileOrder order{static_cast<uint32_t>((end - 1) / Shape::kBlockM + 1), args.order.columns};
    if (workgroup.x >= order.count()) return;
    const TilePlace tile = order.at(workgroup.x);
    const int64_t first = int64_t{tile.row} * Shape::kBlockM;
    const int64_t expert = args.experts[first / args.block];
    if (static_cast<uint64_t>(expert) >= static_cast<uint64_t>(args.b.sizes[0])) return;
    const Places places{args.sorted_ids, first, end, static_cast<uint32_t>(args.slots),
                        static_cast<uint32_t>(args.out.sizes[0]), args.is_of_pairs};
    if (args.block > Shape::kBlockM && !has_pairs(places)) return;
    const WavePlace<Shape> wave(tile);
    const Columns columns = columns_of(args, wave);
    auto sums = product(args, expert, places, columns, wave, lds);
    const Rows rows(args, places, wave.tile_row);
    if constexpr (Shape::kWavesK > 1) {
      add_waves<Shape>(sums, wave, lds.sums);
      if (wave.depth > 0) return;
    }
    store(args, expert, columns, rows, sums, wave, lds.sums.strips[wave.part]);
  }

 private:
  /// Whether a tile is not all padding; the same in all waves.
  __device__ static bool has_pairs(const Places& places) {
    bool has = false;
#pragma unroll
    for (int row = 0; row < Shape::kBlockM; row += kWaveSize) {
      const int mine = row + lane_index();
      has |= mine < Shape::kBlockM && places.pair(mine) >= 0;
    }
    return __builtin_amdgcn_ballot_w64(has) != 0;
  }

  __device__ static Columns columns_of(const Args& args, const WavePlace<Shape>& wave) {
    return {wave.first_column / kHalves, args.out.sizes[1]};
  }

  __device__ __attribute__((always_inline)) static auto product(const Args& args, int64_t expert, const Places& places,
                                                                const Columns& columns, const WavePlace<Shape>& wave,
                                                                Memory& lds) {
    const Span span{0, args.a.sizes[1]};
    const auto b = args.b.template select<0>(expert);
    if constexpr (Config::kHasBlockScales) {
      const ScaleMatrix b_scale{args.b_scale + expert * args.b_scale_strides[0],
                                {args.b_scale_strides[1], args.b_scale_strides[2]}};
      return Loop::multiply(args.a, places, b, columns, ScalesOfBlocks{args.a_scale, b_scale}, wave, span, lds);
    } else {
      return Loop::multiply(args.a, places, b, columns, wave, span, lds);
    }
  }

  template <class Sums, class Strip>
  __device__ static void store(const Args& args, int64_t expert, const Columns& columns, const Rows& rows,
                               const Sums& sums, const WavePlace<Shape>& wave, Strip& strip) {
    const auto write = [&](const Row& row, int64_t column, const float (&values)[kSumColumns]) {
      if (row.pair < 0 || column >= args.out.sizes[1]) return;
      const auto result = rounded<OutElement>(values);
      __builtin_memcpy(args.out.data + row.pair * args.out.strides[0] + column, &result, sizeof(result));
    };
    float values[kSumColumns];
    if constexpr (Config::kIsGated) {
      const GatePlace<Shape::kWaveN> place;
      const Finish finish(args, expert, columns, wave.tile_column + place.tile_column());
      const int64_t column = wave.column() / 2 + place.column();
      each_gated_run(sums, strip, [&](int m, const auto& gates, const auto& ups) {
        const Row row = rows.at(place.row + m, m);
        finish(values, row, gates, ups);
        write(row, column, values);
      });
    } else {
      const RunPlace<Shape::kWaveN> place;
      const Finish finish(args, expert, columns, wave.tile_column + place.column);
      const int64_t column = wave.column() + place.column;
      each_run(sums, strip, [&](int m, const auto& run) {
        const Row row = rows.at(place.row + m, m);
        finish(values, row, run);
        write(row, column, values);
      });
    }
  }
};

}  // namespace moe_gemm
}  // namespace aiter_like

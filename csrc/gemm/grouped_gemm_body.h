// SPDX-License-Identifier: MIT
// What a workgroup of grouped_gemm does: it finds its group by the offsets, which the host does not know; operands
// through LDS, rows as they stand or chosen by an index; then scales and bias.
#pragma once

#include "chosen_rows.h"
#include "gemm_pipeline.h"

namespace aiter_like {

template <class Config>
struct GroupedGemmArgs {
  tile::MatrixView<const typename Config::Element> a;        // [rows, k]; rows of an index: [any, k]
  tile::GlobalView<const typename Config::Element, 3> b;     // [groups, n, k]
  tile::MatrixView<typename Config::OutElement> out;         // [rows, n]
  const int32_t* group_offsets;                              // [groups + 1]
  const int32_t* row_index;                                  // [rows]; read where the build chooses rows
  gemm::VectorPerMatrix<typename Config::BiasElement> bias;  // n each; read where the build has one
  const float* a_scale;                                      // [rows of a]; read where the build has scales
  gemm::VectorPerMatrix<float> b_scale;                      // n each; likewise
  tile::TileOrder order;                                     // order of slots (GroupPlace) and columns
};

namespace grouped_gemm {

using namespace gemm;

/// The group of a tile of rows, by its number. Group i has the numbers from offset / kBlock + i on. These are always as
/// many as it needs, so that it is found without adding the sizes of those before it up, and a launch of
/// rows / kBlock + groups of them has all.
struct GroupPlace {
  int64_t group, first, rows;  // rows of out; none where the number has no tile
  uint32_t tile;               // tile of the group's rows

  template <int kBlock>
  __device__ static GroupPlace of(const int32_t* offsets, uint32_t groups, int64_t rows, uint32_t slot) {
    const auto offset = [&](uint32_t i) {
      const int64_t value = offsets[i];
      return value < 0 ? int64_t{0} : value < rows ? value : rows;
    };
    const auto start = [&](uint32_t i) { return static_cast<uint32_t>(offset(i) / kBlock) + i; };
    uint32_t count = 0;  // groups that start at or before the slot; every lane looks at some
    for (uint32_t i = 0; i < groups; i += kWaveSize) {
      const uint32_t group = i + lane_index();
      count += __builtin_popcountll(__builtin_amdgcn_ballot_w64(group < groups && start(group) <= slot));
    }
    if (count == 0) return {0, 0, 0, 0};
    const uint32_t group = count - 1;
    const int64_t first = offset(group), size = offset(group + 1) - first;
    const uint32_t tile = slot - start(group);
    const bool is_inside = start(group) <= slot && int64_t{tile} * kBlock < size;  // whatever the offsets are
    return {group, first, is_inside ? size : 0, tile};
  }
};

/// A Config has also OutElement, BiasElement, kHasBias, kHasScales, kIsGathered and kIsShuffled (the matrices b).
template <class Config>
struct Body {
  using Shape = gemm::Shape<Config>;
  using Args = GroupedGemmArgs<Config>;
  static constexpr int kBand = Config::kIsShuffled ? 16 : 0;
  using Loop = MainLoop<Shape, kBand>;  // for rows as they stand
  using Left = ChosenRows<Shape, Shape::kBlockM, Shape::kWaveM>;
  using Right = typename MainLoop<Shape, kBand, false>::Right;
  using Memory = std::conditional_t<Config::kIsGathered, gemm::Memory<Shape, Left, Right>, typename Loop::Memory>;
  static_assert(Config::kSplits == 1, "groups of many sizes share the depth with nobody");

  /// ScaleAndBias, with the scale of the row that was chosen; where none was, with another's, and nothing is written: a
  /// branch would tear the accesses to LDS around it into pieces.
  struct FinishChosen {
    ScaleAndBias<Config> finish;
    RowIndex index;
    template <class Sum>
    __device__ float operator()(Sum x, int64_t row, int64_t column) const {
      const int64_t source = index.rows[row];
      return finish(x, static_cast<uint64_t>(source) < static_cast<uint64_t>(index.matrix_rows) ? source : 0, column);
    }
  };

  /// Runs workgroup `workgroup` (tile).
  __device__ __attribute__((always_inline)) static void multiply(const Args& args, WorkgroupIndex workgroup,
                                                                 Memory& lds) {
    const TilePlace tile = args.order.at(workgroup.x);
    const auto place = GroupPlace::of<Shape::kBlockM>(args.group_offsets, static_cast<uint32_t>(args.b.sizes[0]),
                                                      args.out.sizes[0], tile.row);
    if (place.rows == 0) return;
    const WavePlace<Shape> wave({place.tile, tile.column});
    const Span span{0, args.a.sizes[1]};
    const auto b = args.b.template select<0>(place.group);
    const auto out = args.out.slice(place.first, place.rows);
    const float* const column_scale = args.b_scale.at(place.group);
    const auto* const bias = args.bias.at(place.group);
    if constexpr (Config::kIsGathered) {
      const RowIndex index{args.row_index + place.first, place.rows, args.a.sizes[0]};
      Left left(args.a, [&](int row) { return index.at(wave.first_row + row); }, wave.tile_row, wave.depth, span.end);
      Right right = MainLoop<Shape, kBand, false>::right_of(b, wave, span);
      AddProducts accumulate;
      auto sums = gemm::multiply<Shape>(left, right, accumulate, span, lds);
      const FinishChosen finish{{args.a_scale, column_scale, bias}, index};
      store_sums<Shape>(sums, wave, 0, ChosenRowsView<typename Config::OutElement>{out, index}, {}, finish, lds.sums);
    } else {
      auto sums = Loop::multiply(args.a.slice(place.first, place.rows), b, wave, span, lds);
      const ScaleAndBias<Config> finish{args.a_scale + place.first, column_scale, bias};
      store_sums<Shape>(sums, wave, 0, out, {}, finish, lds.sums);
    }
  }
};

}  // namespace grouped_gemm
}  // namespace aiter_like

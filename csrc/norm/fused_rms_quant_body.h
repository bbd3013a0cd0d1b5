// SPDX-License-Identifier: MIT
// RMSNorm of a matrix, quantised to fp8 or int8, and of a second one as it is, in one launch; y = x / sqrt(mean(x²) +
// epsilon) · weight, row by row, in fp32. x is input, or input + residual_in, whose rounded sum becomes residual_out.
// HIP (gfx9) and CUDA. fused_rms_quant.hip says what a Config holds; its Layout covers a row of input, its SecondLayout
// one of second.
//
//   1. the first workgroups take the rows of input, the others those of second: each loads its row into registers
//   2. stores the sum with the residual; the sum of squares over the row's lanes
//   3. stores y as it is: of second always, of input if kHasPlain
//   4. scale found per row: largest magnitude of y over the row's lanes; y quantised is stored
//
// Tile: kLanes lanes take a row, kVectors · kVec elements each. LDS: 8 bytes per wave.
// Bound: at decode sizes the time of a launch, which is why there is only one; at larger ones memory:
// sizeof(Element) + 1 bytes per element of input, 3 · sizeof(Element) + 1 with a residual; 2 · sizeof(Element) per
// element of second.
#pragma once

#include "aiter_like/preload.h"
#include "aiter_like/quant.h"

namespace aiter_like {

/// How y is quantised: not at all, by a scale in memory, or by scales found per row or per kGroup columns (quant.h).
enum class Quant { none, fixed, found };

/// The arguments of either matrix.
template <class Config>
struct NormSide {
  using Element = typename Config::Element;

  Matrix<const Element> input;
  Matrix<Element> out;  // y as it is
  const typename Config::Weight* weight;
  int64_t rows;
  int hidden;
  float epsilon;
};

template <class Config>
struct FusedRmsQuantArgs {
  using Element = typename Config::Element;

  NormSide<Config> first, second;
  Matrix<typename Config::Out> out;
  Matrix<Element> residual_out;
  Matrix<const Element> residual_in;
  float* scale;                        // [1] if Quant::fixed
  int64_t scale_stride, group_stride;  // scales from row to row, from group to group
  int64_t first_rows;                  // rounded up to whole workgroups
  static constexpr Preload preload() {
    using A = FusedRmsQuantArgs;
    return {offsetof(A, first_rows), offsetof(A, first.rows), offsetof(A, first.hidden), offsetof(A, first.input.data),
            offsetof(A, first.input.stride), offsetof(A, first.weight), offsetof(A, out.data)};
  }
};

/// One workgroup's work on its rows.
template <class Config, bool kIsAligned>
struct FusedRmsQuantBody {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;
  using Out = typename Config::Out;
  using Layout = typename Config::template Layout<kIsAligned>;
  using SecondLayout = typename Config::template SecondLayout<kIsAligned>;
  using Args = FusedRmsQuantArgs<Config>;

  static constexpr int kBytes = (Config::kHasResidual ? 4 : sizeof(Element)) + sizeof(Weight);  // bytes of registers
  static constexpr int kMinGroups = Layout::min_groups(kBytes);

  __device__ __forceinline__ static void run(const Args& args) {
    if (!Config::kHasSecond || int64_t{workgroup_index().x} * Layout::kRows < args.first_rows)
      norm_rows<Layout, true>(args, args.first, Layout::row());
    else
      norm_rows<SecondLayout, false>(args, args.second, SecondLayout::row() - args.first_rows);
  }

 private:
  /// The lane's row, number `index` of input (kIsFirst) or of second.
  template <class Rows, bool kIsFirst>
  __device__ static void norm_rows(const Args& args, const NormSide<Config>& side, int64_t index) {
    constexpr bool kHasResidual = kIsFirst && Config::kHasResidual, kHasPlain = !kIsFirst || Config::kHasPlain;
    __shared__ RowScratch<Rows> squares_scratch, amax_scratch;
    // Lanes of a row that is not there take part in the reductions with zeros.
    const int64_t row = index < side.rows ? index : side.rows - 1;
    const int hidden = index < side.rows ? side.hidden : 0;

    SumTile<Rows, Element, kHasResidual> x;
    RowTile<Rows, Weight> weight;
    x.load(side.input.row(row), hidden);
    weight.load(side.weight, hidden);  // with the row, not after the reduction
    if constexpr (kHasPlain) await_arguments(side.out.data, side.out.stride);
    if constexpr (kIsFirst && Config::kQuant != Quant::none) await_arguments(args.out.stride, args.scale);
    if constexpr (kIsFirst && Config::kQuant == Quant::found) await_arguments(args.scale_stride);
    if constexpr (kHasResidual) await_arguments(args.residual_out.data, args.residual_out.stride);
    if constexpr (kHasResidual) {
      x.add(args.residual_in.row(row), hidden);
      store_row<Rows>(args.residual_out.row(row), hidden, [&](int v, int e) { return x.at(v, e); });
    }
    const float squares = lane_sum<Rows>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
    const float mean = row_sum<Rows>(squares, squares_scratch) / static_cast<float>(side.hidden);
    x.drop_floats();
    const float inverse_rms = reciprocal_square_root(mean + side.epsilon);
    const auto normed = [&](int v, int e) {
      const float y = x.at(v, e) * inverse_rms * (Config::kIsGemma ? weight.at(v, e) + 1.f : weight.at(v, e));
      return Config::kIsRounded ? to_float(from_float<Element>(y)) : y;
    };

    if constexpr (kHasPlain) store_row<Rows>(side.out.row(row), hidden, normed);
    if constexpr (Config::kQuant == Quant::none || !kIsFirst) {
      return;
    } else if constexpr (Config::kQuant == Quant::fixed) {
      store_quantised<Rows>(args.out.row(row), hidden, 1.f / *args.scale, normed);
    } else if constexpr (Config::kGroup > 0) {
      store_groups<Rows, Config::kGroup>(args.out.row(row), args.scale + row * args.scale_stride, args.group_stride,
                                         hidden, normed);
    } else {
      const QuantScale scale = quant_scale<Out>(row_max<Rows>(lane_amax<Rows>(normed), amax_scratch));
      if (Rows::lane() == 0 && hidden > 0) args.scale[row * args.scale_stride] = scale.scale;
      x.drop_floats();
      weight.drop_floats();
      store_quantised<Rows>(args.out.row(row), hidden, scale.inverse, normed);
    }
  }
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void fused_rms_quant_kernel(
    AITER_LIKE_PRELOADED(typename Body::Args)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  load_arguments_first();
  Body::run(args);
}

template <class Config>
void launch_fused_rms_quant(FusedRmsQuantArgs<Config> args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const uint32_t workgroups = Layout::workgroups(args.first.rows);
  args.first_rows = int64_t{workgroups} * Layout::kRows;
  const auto kernel = is_aligned ? fused_rms_quant_kernel<FusedRmsQuantBody<Config, true>>
                                 : fused_rms_quant_kernel<FusedRmsQuantBody<Config, false>>;
  launch_named("fused_rms_quant_kernel", kernel, workgroups + Layout::workgroups(args.second.rows), Layout::kThreads,
               stream, args);
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Dynamic quantisation of [tokens, heads, columns], of any strides, to fp8 or int8 [tokens, heads · columns] with a
// scale per kGroup columns, by the rule of quant.h: the flattening of attention's output without a copy. HIP (gfx9) and
// CUDA. flatten_group_quant.hip says what a Config holds.
//
//   1. each lane loads its 16-byte vectors of a head's row into registers
//   2. largest magnitude over a group's lanes, within a wave
//   3. multiply with 1 / scale, round, store; one lane per group stores the scale
// A row longer than the registers' capacity (kIsWhole 0) is taken in pieces.
//
// Tile: kLanes lanes take a head's row, kVectors · kVec elements each. LDS: none.
// Bound: memory. sizeof(Element) + 1 bytes per element and 4 per group: 8192 × 128 × 128 bf16 = 407 MB, 77 us at
// 5.3 TB/s.
#pragma once

#include "aiter_like/math.h"
#include "aiter_like/quant.h"
#include "aiter_like/rows/scales.h"

namespace aiter_like {

template <class Config>
struct FlattenGroupQuantArgs {
  Matrix<typename Config::Out> out;  // [tokens, heads · columns]
  const typename Config::Element* input;
  int64_t token_stride, head_stride;
  Matrix<float> scale;  // [tokens, heads · columns / Config::kGroup]
  int64_t group_stride;
  Divider heads;
  uint32_t rows;  // tokens · heads
  int columns;
};

/// One workgroup's work on its rows.
template <class Config, bool kIsAligned>
struct FlattenGroupQuantBody {
  using Element = typename Config::Element;
  using Out = typename Config::Out;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = FlattenGroupQuantArgs<Config>;

  static constexpr int kMinGroups = Layout::min_groups(sizeof(Element));

  __device__ __forceinline__ static void run(const Args& args) {
    // Lanes of a row that is not there take part in the reductions with zeros.
    const auto index = static_cast<uint32_t>(Layout::row());
    const bool is_there = index < args.rows;
    const uint32_t token = is_there ? args.heads.divide(index) : 0;
    const uint32_t head = is_there ? index - token * args.heads.divisor : 0;
    const int columns = is_there ? args.columns : 0;
    const int64_t column = int64_t{head} * args.columns;
    const Element* input = args.input + token * args.token_stride + head * args.head_stride;
    Out* out = args.out.row(token) + column;
    float* scale = args.scale.row(token) + column / Config::kGroup * args.group_stride;

    RowTile<Layout, Element> x;
    for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
      x.load(input + start, columns - start);
      store_groups<Layout, Config::kGroup>(out + start, scale + start / Config::kGroup * args.group_stride,
                                           args.group_stride, columns - start,
                                           [&](int v, int e) { return x.at(v, e); });
      if constexpr (Config::kIsWhole) break;
    }
  }
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void flatten_group_quant_kernel(
    typename Body::Args args) {
  await_stream();
  Body::run(args);
}

template <class Config>
void launch_flatten_group_quant(const FlattenGroupQuantArgs<Config>& args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const dim3 grid(Layout::workgroups(args.rows));
  const auto kernel = is_aligned ? flatten_group_quant_kernel<FlattenGroupQuantBody<Config, true>>
                                 : flatten_group_quant_kernel<FlattenGroupQuantBody<Config, false>>;
  launch_named("flatten_group_quant_kernel", kernel, grid, Layout::kThreads, stream, args);
}

}  // namespace aiter_like

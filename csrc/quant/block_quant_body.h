// SPDX-License-Identifier: MIT
// Dynamic quantisation of matrices to fp8 or int8 with a scale per block of kBlockRows × kBlockColumns elements, by the
// rule of quant.h. HIP (gfx9) and CUDA. block_quant.hip says what a Config holds.
//
//   1. a workgroup loads its block into registers, a row's lanes beside one another, kRows rows at a time
//   2. largest magnitude over the workgroup, through LDS
//   3. multiply with 1 / scale, round, store; one lane stores the scale
// A block of more than kMostTiles · kRows rows is read twice, the second time from cache. Blocks at a matrix's edges
// end there: what they lack takes part with zeros.
//
// Tile: 256 lanes hold 8 accesses of 16 bytes each: 128 × 128 16-bit elements. LDS: 4 bytes per wave.
// Bound: memory. sizeof(Element) + 1 bytes per element for 5 instructions: 8192 × 8192 bf16 = 201 MB, 38 us at
// 5.3 TB/s.
#pragma once

#include "aiter_like/math.h"
#include "aiter_like/quant.h"
#include "aiter_like/ffi.h"

namespace aiter_like {

constexpr int kMostTiles = 8;  // that a lane holds: 32 registers

template <class Config>
struct BlockQuantArgs {
  Matrix<typename Config::Out> out;              // [matrices · rows, columns]
  Matrix<const typename Config::Element> input;
  float* scale;                 // [matrices, row_blocks, column_blocks]
  Divider row_blocks, column_blocks;  // a matrix's
  int64_t rows;                 // a matrix's
  int columns;
};

/// One workgroup's work on its block.
template <class Config, bool kIsAligned>
struct BlockQuantBody {
  using Element = typename Config::Element;
  using Out = typename Config::Out;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = BlockQuantArgs<Config>;

  static constexpr int kMinGroups = Layout::min_groups(kMostTiles * sizeof(Element));

  __device__ __forceinline__ static void run(const Args& args) {
    constexpr int kPasses = (Config::kBlockRows + Layout::kRows - 1) / Layout::kRows;
    constexpr int kTiles = kPasses < kMostTiles ? kPasses : kMostTiles;
    __shared__ RowScratch<Layout> scratch;
    // Counts all matrices' row blocks
    const uint32_t block = workgroup_index().x, band = args.column_blocks.divide(block);
    const uint32_t matrix = args.row_blocks.divide(band);
    const int column = static_cast<int>(block - band * args.column_blocks.divisor) * Config::kBlockColumns;
    const int64_t first = int64_t{band - matrix * args.row_blocks.divisor} * Config::kBlockRows;  // row of the matrix
    const int64_t left = args.rows - first;
    const int rows = left < Config::kBlockRows ? static_cast<int>(left) : Config::kBlockRows;

    const auto row_of = [&](int pass) { return pass * Layout::kRows + thread_index() / Layout::kLanes; };
    const auto columns_of = [&](int pass) { return row_of(pass) < rows ? args.columns - column : 0; };
    const auto place = [&](const auto& tensor, int pass) {
      return tensor.row(int64_t{matrix} * args.rows + first + (row_of(pass) < rows ? row_of(pass) : 0)) + column;
    };
    RowTile<Layout, Element> x[kTiles];
    const auto load = [&](int pass) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) x[t].load(place(args.input, pass + t), columns_of(pass + t));
    };

    float amax = 0.f;
    for (int pass = 0; pass < kPasses; pass += kTiles) {
      load(pass);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        amax = larger(amax, lane_amax<Layout>([&](int v, int e) { return x[t].at(v, e); }));
    }
    const QuantScale scale = quant_scale<Out>(workgroup_max<Layout::kThreads>(amax, scratch.partial));
    if (thread_index() == 0) args.scale[block] = scale.scale;
    for (int pass = 0; pass < kPasses; pass += kTiles) {
      if constexpr (kPasses > kTiles) load(pass);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        x[t].drop_floats();
        store_quantised<Layout>(place(args.out, pass + t), columns_of(pass + t), scale.inverse,
                                [&](int v, int e) { return x[t].at(v, e); });
      }
    }
  }
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void block_quant_kernel(
    typename Body::Args args) {
  await_stream();
  Body::run(args);
}

template <class Config>
void launch_block_quant(const BlockQuantArgs<Config>& args, int64_t blocks, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const dim3 grid(static_cast<uint32_t>(blocks));
  const auto kernel = is_aligned ? block_quant_kernel<BlockQuantBody<Config, true>>
                                 : block_quant_kernel<BlockQuantBody<Config, false>>;
  launch_named("block_quant_kernel", kernel, grid, Layout::kThreads, stream, args);
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Dynamic quantisation of matrices to fp8 or int8 with a scale per block of BLOCK_ROWS × BLOCK_COLUMNS elements, by the
// rule of quant.h. HIP (gfx9) and CUDA. One build per combination of the macros below.
//
//   1. a workgroup loads its block into registers, a row's lanes beside one another, kRows rows at a time
//   2. largest magnitude over the workgroup, through LDS
//   3. multiply with 1 / scale, round, store; one lane stores the scale
// A block of more than kMostTiles · kRows rows is read twice, the second time from cache. Blocks at a matrix's edges
// end there: what they lack takes part with zeros.
//
// Tile: 256 lanes hold 8 accesses of 16 bytes each: 128 × 128 16-bit elements. LDS: 4 bytes per wave.
// Bound: memory. sizeof(ELEMENT) + 1 bytes per element for 5 instructions: 8192 × 8192 bf16 = 201 MB, 38 us at
// 5.3 TB/s.
#include "aiter_like/math.h"
#include "aiter_like/quant.h"
#include "aiter_like/ffi.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(BLOCK_ROWS) || !defined(BLOCK_COLUMNS) || !defined(VEC)
#error "block_quant.hip: -DELEMENT=bf16|f16|float -DOUT=fp8|int8_t -DBLOCK_ROWS -DBLOCK_COLUMNS=32|64|128 -DVEC"
#endif

namespace aiter_like {

constexpr int kMostTiles = 8;  // that a lane holds: 32 registers

struct BlockQuantArgs {
  Matrix<OUT> out;              // [matrices · rows, columns]
  Matrix<const ELEMENT> input;
  float* scale;                 // [matrices, row_blocks, column_blocks]
  Divider row_blocks, column_blocks;  // a matrix's
  int64_t rows;                 // a matrix's
  int columns;
};

template <bool kIsAligned, class Layout = RowLayout<BLOCK_COLUMNS / VEC, 1, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(kMostTiles * sizeof(ELEMENT))) void
block_quant_kernel(BlockQuantArgs args) {
  await_stream();
  constexpr int kPasses = (BLOCK_ROWS + Layout::kRows - 1) / Layout::kRows;
  constexpr int kTiles = kPasses < kMostTiles ? kPasses : kMostTiles;
  __shared__ RowScratch<Layout> scratch;
  // Counts all matrices' row blocks
  const uint32_t block = workgroup_index().x, band = args.column_blocks.divide(block);
  const uint32_t matrix = args.row_blocks.divide(band);
  const int column = static_cast<int>(block - band * args.column_blocks.divisor) * BLOCK_COLUMNS;
  const int64_t first = int64_t{band - matrix * args.row_blocks.divisor} * BLOCK_ROWS;  // row of the matrix
  const int64_t left = args.rows - first;
  const int rows = left < BLOCK_ROWS ? static_cast<int>(left) : BLOCK_ROWS;

  const auto row_of = [&](int pass) { return pass * Layout::kRows + thread_index() / Layout::kLanes; };
  const auto columns_of = [&](int pass) { return row_of(pass) < rows ? args.columns - column : 0; };
  const auto place = [&](const auto& tensor, int pass) {
    return tensor.row(int64_t{matrix} * args.rows + first + (row_of(pass) < rows ? row_of(pass) : 0)) + column;
  };
  RowTile<Layout, ELEMENT> x[kTiles];
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
  const QuantScale scale = quant_scale<OUT>(workgroup_max<Layout::kThreads>(amax, scratch.partial));
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

void launch_block_quant(const BlockQuantArgs& args, int64_t blocks, bool is_aligned, Stream stream) {
  using Layout = RowLayout<BLOCK_COLUMNS / VEC, 1, VEC>;
  const dim3 grid(static_cast<uint32_t>(blocks));
  launch_named("block_quant_kernel", is_aligned ? block_quant_kernel<true> : block_quant_kernel<false>, grid,
               Layout::kThreads, stream, args);
}

#if AITER_LIKE_HOST_PASS

void block_quant(ffi::Tensor out, ffi::Tensor scale, ffi::Tensor input, int64_t block_rows, int64_t block_columns) {
  ffi::Match match("block_quant");
  match.built(block_rows == BLOCK_ROWS && block_columns == BLOCK_COLUMNS, "blocks");
  match.require(input.ndim() >= 2, "input must have at least 2 dimensions");
  ffi::Size rows{"rows", 1 << 24}, columns{"columns"};
  BlockQuantArgs args{};
  args.input = match.rows<const ELEMENT>(input, rows, columns, "input");
  args.out = match.rows<OUT>(out, rows, columns, "out");
  args.rows = input.size(-2), args.columns = columns;
  if (rows == 0) return;
  const int64_t row_blocks = (args.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  const int64_t column_blocks = (columns + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
  const int64_t blocks = rows / args.rows * row_blocks * column_blocks;
  match.require(blocks < int64_t{1} << 24, "at most 2^24 - 1 blocks");
  args.scale = match.elements<float>(scale, blocks, "scale");
  args.row_blocks = Divider(row_blocks), args.column_blocks = Divider(column_blocks);
  launch_block_quant(args, blocks, ffi::takes_vectors(VEC, input, out), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(block_quant, aiter_like::block_quant);
#endif

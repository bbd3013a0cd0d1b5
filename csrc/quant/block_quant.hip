// SPDX-License-Identifier: MIT
// block_quant of PyTorch tensors; block_quant_body.h has the kernel. One build per combination of the macros.
#include "block_quant_body.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(BLOCK_ROWS) || !defined(BLOCK_COLUMNS) || !defined(VEC)
#error "block_quant.hip: -DELEMENT=bf16|f16|float -DOUT=fp8|int8_t -DBLOCK_ROWS -DBLOCK_COLUMNS=32|64|128 -DVEC"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Out = OUT;
  template <bool kIsAligned>
  using Layout = RowLayout<BLOCK_COLUMNS / VEC, 1, VEC, kIsAligned>;
  static constexpr int kBlockRows = BLOCK_ROWS, kBlockColumns = BLOCK_COLUMNS;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_block_quant(const BlockQuantArgs<Config>&, int64_t, bool, Stream);

#if AITER_LIKE_HOST_PASS

void block_quant(ffi::Tensor out, ffi::Tensor scale, ffi::Tensor input, int64_t block_rows, int64_t block_columns) {
  ffi::Match match("block_quant");
  match.built(block_rows == BLOCK_ROWS && block_columns == BLOCK_COLUMNS, "blocks");
  match.require(input.ndim() >= 2, "input must have at least 2 dimensions");
  ffi::Size rows{"rows", 1 << 24}, columns{"columns"};
  BlockQuantArgs<Config> args{};
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

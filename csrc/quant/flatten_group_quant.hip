// SPDX-License-Identifier: MIT
// Dynamic quantisation of [tokens, heads, columns], of any strides, to fp8 or int8 [tokens, heads · columns] with a
// scale per GROUP columns, by the rule of quant.h: the flattening of attention's output without a copy. HIP (gfx9) and
// CUDA. One build per combination of the macros below.
//
//   1. each lane loads its 16-byte vectors of a head's row into registers
//   2. largest magnitude over a group's lanes, within a wave
//   3. multiply with 1 / scale, round, store; one lane per group stores the scale
// A row longer than the registers' capacity (IS_WHOLE 0) is taken in pieces.
//
// Tile: LANES lanes take a head's row, VECTORS · VEC elements each. LDS: none.
// Bound: memory. sizeof(ELEMENT) + 1 bytes per element and 4 per group: 8192 × 128 × 128 bf16 = 407 MB, 77 us at
// 5.3 TB/s.
#include "aiter_like/math.h"
#include "aiter_like/quant.h"
#include "aiter_like/rows/scales.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC) || \
    !defined(IS_WHOLE) || !defined(GROUP)
#error "flatten_group_quant.hip: -DELEMENT=bf16|f16|float -DOUT=fp8|int8_t -DGROUP=32|64|128 and sizes"
#endif

namespace aiter_like {

struct FlattenGroupQuantArgs {
  Matrix<OUT> out;  // [tokens, heads · columns]
  const ELEMENT* input;
  int64_t token_stride, head_stride;
  Matrix<float> scale;  // [tokens, heads · columns / GROUP]
  int64_t group_stride;
  Divider heads;
  uint32_t rows;  // tokens · heads
  int columns;
};

template <bool kIsAligned, class Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(sizeof(ELEMENT))) void flatten_group_quant_kernel(
    FlattenGroupQuantArgs args) {
  await_stream();
  // Lanes of a row that is not there take part in the reductions with zeros.
  const auto index = static_cast<uint32_t>(Layout::row());
  const bool is_there = index < args.rows;
  const uint32_t token = is_there ? args.heads.divide(index) : 0;
  const uint32_t head = is_there ? index - token * args.heads.divisor : 0;
  const int columns = is_there ? args.columns : 0;
  const int64_t column = int64_t{head} * args.columns;
  const ELEMENT* input = args.input + token * args.token_stride + head * args.head_stride;
  OUT* out = args.out.row(token) + column;
  float* scale = args.scale.row(token) + column / GROUP * args.group_stride;

  RowTile<Layout, ELEMENT> x;
  for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
    x.load(input + start, columns - start);
    store_groups<Layout, GROUP>(out + start, scale + start / GROUP * args.group_stride, args.group_stride,
                                columns - start, [&](int v, int e) { return x.at(v, e); });
    if constexpr (IS_WHOLE) break;
  }
}

void launch_flatten_group_quant(const FlattenGroupQuantArgs& args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const dim3 grid(Layout::workgroups(args.rows));
  const auto kernel = is_aligned ? flatten_group_quant_kernel<true> : flatten_group_quant_kernel<false>;
  launch_named("flatten_group_quant_kernel", kernel, grid, Layout::kThreads, stream, args);
}

#if AITER_LIKE_HOST_PASS

void flatten_group_quant(ffi::Tensor out, ffi::Tensor scale, ffi::Tensor input, int64_t group_size) {
  ffi::Match match("flatten_group_quant");
  match.built(group_size == GROUP, "groups");
  ffi::Size tokens{"tokens"}, heads{"heads"}, columns{"columns"};
  const auto x = match.take<const ELEMENT>(input, {tokens, heads, columns}, "input");
  if (tokens * heads * columns == 0) return;
  match.require(tokens * heads < int64_t{1} << 24 && heads * columns < int64_t{1} << 31 && columns % GROUP == 0,
                "at most 2^24 - 1 heads of all tokens, and whole groups in each");
  FlattenGroupQuantArgs args{};
  args.out = match.rows<OUT>(out, tokens, heads * columns, "out");
  const auto scales = ffi::row_scales(match, scale, tokens, heads * columns / GROUP);
  args.scale = {scales.data, scales.row}, args.group_stride = scales.group;
  args.input = x, args.token_stride = x.step(0), args.head_stride = x.step(1);
  args.heads = Divider(heads);
  args.rows = tokens * heads, args.columns = columns;
  match.built(!IS_WHOLE || columns <= LANES * VECTORS * VEC, "row lengths");
  launch_flatten_group_quant(args, ffi::takes_vectors(VEC, input, out), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(flatten_group_quant, aiter_like::flatten_group_quant);
#endif

// SPDX-License-Identifier: MIT
// Quantisation of a matrix to int8 towards zero: q = trunc(x · (1 / scale)), within −128 … 127, NaN 0. The scale is one
// number in memory, or (IS_DYNAMIC 1) found for each row by the rule of quant.h. HIP (gfx9) and CUDA. One build per
// combination of the macros below.
//
//   1. each lane loads its 16-byte vectors of the row into registers
//   2. IS_DYNAMIC: largest magnitude over the row's lanes, through LDS beyond a wave; one lane stores the scale
//   3. multiply with 1 / scale, cut off, store
// A row longer than the registers' capacity (IS_WHOLE 0) is taken in pieces, where dynamic read twice.
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 4 bytes per wave.
// Bound: memory. A row moves columns · (sizeof(ELEMENT) + 1) bytes: 8192 × 8192 bf16 = 201 MB, 38 us at 5.3 TB/s.
#include "aiter_like/quant.h"
#include "aiter_like/rows/scales.h"

#if !defined(ELEMENT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC) || !defined(IS_WHOLE) || \
    !defined(IS_DYNAMIC)
#error "truncated_quant.hip: -DELEMENT=bf16|f16|float, sizes and flags"
#endif

namespace aiter_like {

struct TruncatedQuantArgs {
  Matrix<int8_t> out;
  Matrix<const ELEMENT> input;
  float* scale;             // [1], or [rows] where dynamic
  const float* scale_ub;    // [1] or null: no scale that is found is above scale_ub / 127
  const int32_t* num_rows;  // [1] or null: only num_rows · num_rows_factor rows are quantised
  int64_t rows, num_rows_factor;
  int columns;
};

/// A lane's int8 of one element: −128 … 127.
__device__ inline int truncated(float y) {
  const float limited = y > 127.f ? 127.f : y < -128.f ? -128.f : y;
  return limited == limited ? static_cast<int>(limited) : 0;
}

template <bool kIsAligned, class Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(sizeof(ELEMENT))) void truncated_quant_kernel(
    TruncatedQuantArgs args) {
  await_stream();
  __shared__ RowScratch<Layout> scratch;
  int64_t rows = args.rows;
  if (args.num_rows != nullptr) {
    const int64_t wanted = *args.num_rows * args.num_rows_factor;
    rows = wanted < rows ? wanted : rows;
  }
  // Lanes of a row that is not there take part in the reduction with zeros.
  const bool is_there = Layout::row() < rows;
  const int64_t row = is_there ? Layout::row() : 0;
  const int columns = is_there ? args.columns : 0;

  RowTile<Layout, ELEMENT> x;
  float inverse = 0.f;
  if constexpr (IS_DYNAMIC) {
    float amax = 0.f;
    for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
      x.load(args.input.row(row) + start, columns - start);
      amax = larger(amax, lane_amax<Layout>([&](int v, int e) { return x.at(v, e); }));
      if constexpr (IS_WHOLE) break;
    }
    amax = row_max<Layout>(amax, scratch);
    if (args.scale_ub != nullptr) amax = amax > *args.scale_ub ? *args.scale_ub : amax;
    const QuantScale scale = quant_scale<int8_t>(amax);
    if (Layout::lane() == 0 && is_there) args.scale[row] = scale.scale;
    inverse = scale.inverse;
    x.drop_floats();
  } else {
    inverse = 1.f / *args.scale;
  }
  for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
    if constexpr (!IS_DYNAMIC || !IS_WHOLE) x.load(args.input.row(row) + start, columns - start);
    int8_t* const out = args.out.row(row) + start;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const int column = Layout::column(v);
      if (column >= columns - start) continue;
      Vec<int8_t, VEC> q;
#pragma unroll
      for (int e = 0; e < VEC; ++e) q[e] = static_cast<int8_t>(truncated(x.at(v, e) * inverse));
      if constexpr (kIsAligned) {
        store_vec<VEC>(Layout::place(out, v), q);
      } else {
#pragma unroll
        for (int e = 0; e < VEC; ++e)
          if (column + e < columns - start) out[column + e] = q[e];
      }
    }
    if constexpr (IS_WHOLE) break;
  }
}

void launch_truncated_quant(const TruncatedQuantArgs& args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const dim3 grid(Layout::workgroups(args.rows));
  launch_named("truncated_quant_kernel", is_aligned ? truncated_quant_kernel<true> : truncated_quant_kernel<false>,
               grid, Layout::kThreads, stream, args);
}

#if AITER_LIKE_HOST_PASS

void truncated_quant(ffi::Tensor out, ffi::Tensor scale, ffi::Tensor input, bool is_dynamic,
                     ffi::OptionalTensor scale_ub, ffi::OptionalTensor num_rows, int64_t num_rows_factor) {
  ffi::Match match("truncated_quant");
  match.built(is_dynamic == bool{IS_DYNAMIC});
  ffi::Size rows{"rows", 1 << 24}, columns{"columns"};
  TruncatedQuantArgs args{};
  args.input = match.rows<const ELEMENT>(input, rows, columns, "input");
  args.out = match.rows<int8_t>(out, rows, columns, "out");
  args.scale_ub = match.elements<const float>(scale_ub, 1, "scale_ub");
  args.num_rows = match.elements<const int32_t>(num_rows, 1, "num_rows");
  args.num_rows_factor = num_rows_factor, args.rows = rows, args.columns = columns;
  if (rows == 0) return;
  match.built(!IS_WHOLE || columns <= LANES * VECTORS * VEC, "row lengths");
  args.scale = match.elements<float>(scale, IS_DYNAMIC ? rows : 1, "scale");
  launch_truncated_quant(args, ffi::takes_vectors(VEC, input, out), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(truncated_quant, aiter_like::truncated_quant);
#endif

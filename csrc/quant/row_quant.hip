// SPDX-License-Identifier: MIT
// Dynamic quantisation of a matrix to fp8 or int8: a scale per row (kGroup 0) or per kGroup columns of a row, from the
// largest magnitude of x = input · smooth_scale. HIP (gfx9) and CUDA. One build per Config.
//
//   1. each lane loads its 16-byte vectors of the row into registers
//   2. largest magnitude over the row's lanes (through LDS beyond a wave), or over a group's within a wave
//   3. multiply with 1 / scale, round, store; one lane stores the scale
// A row longer than the registers' capacity (kIsWhole 0) is taken in pieces, for kGroup 0 read twice.
//
// Tile: kLanes lanes take a row, kVectors · kVec elements each. LDS: 4 bytes per wave.
// Bound: memory. A row moves columns · (sizeof(Element) + 1) bytes for 5 instructions per element: 8192 × 8192 bf16 =
// 201 MB, 38 us at 5.3 TB/s.
#include "aiter_like/preload.h"
#include "aiter_like/quant.h"
#include "aiter_like/rows/scales.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(SMOOTH) || !defined(LANES) || !defined(VECTORS) || \
    !defined(VEC) || !defined(IS_WHOLE) || !defined(GROUP) || !defined(HAS_SMOOTH)
#error "row_quant.hip: -DELEMENT=bf16|f16|float -DOUT=fp8|int8_t -DSMOOTH=float -DGROUP=0|32|64|128, sizes and flags"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Out = OUT;
  using Smooth = SMOOTH;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
  static constexpr bool kIsWhole = IS_WHOLE;  // a row fits in the lanes' registers
  static constexpr int kGroup = GROUP;        // columns that share a scale; 0: a row's
  static constexpr bool kHasSmooth = HAS_SMOOTH;
};

template <class Config>
struct RowQuantArgs {
  Matrix<typename Config::Out> out;
  Matrix<const typename Config::Element> input;
  const typename Config::Smooth* smooth_scale;  // [columns]
  const float* scale_ub;                        // [1] or null: no scale is above scale_ub / largest
  const int32_t* num_rows;                      // [1] or null: only num_rows · num_rows_factor rows are quantised
  float* scale;
  int64_t scale_stride, group_stride;  // scales from row to row, from group to group
  int64_t rows, num_rows_factor;
  int columns;
  static constexpr Preload preload() {
    using A = RowQuantArgs;
    return {offsetof(A, rows), offsetof(A, columns), offsetof(A, input.data), offsetof(A, input.stride),
            offsetof(A, num_rows), offsetof(A, out.data), offsetof(A, scale)};
  }
};

/// Bytes of registers for an element of x.
template <class Config>
constexpr int kBytes = Config::kHasSmooth ? 4 : sizeof(typename Config::Element);

template <class Config, bool kIsAligned, class Layout = typename Config::template Layout<kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(kBytes<Config>)) void row_quant_kernel(
    AITER_LIKE_PRELOADED(RowQuantArgs<Config>)) {
  await_stream();
  using Out = typename Config::Out;
  constexpr int kGroup = Config::kGroup;
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
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

  SumTile<Layout, typename Config::Element, Config::kHasSmooth> x;
  const auto load = [&](int start) {
    x.load(args.input.row(row) + start, columns - start);
    if constexpr (Config::kHasSmooth) {
      RowTile<Layout, typename Config::Smooth> smooth;
      each_vector<Layout>([&](int v) { smooth.load(args.smooth_scale + start, columns - start, v); }, [&](int v) {
#pragma unroll
        for (int e = 0; e < Layout::kVec; ++e) x.set(v, e, x.at(v, e) * smooth.at(v, e));
      });
    }
    await_arguments(args.out.stride, args.scale_stride);
    if constexpr (kGroup > 0) await_arguments(args.group_stride);
    else await_arguments(args.scale_ub);
  };
  const auto value = [&](int v, int e) { return x.at(v, e); };

  QuantScale scale{};
  if constexpr (kGroup == 0) {
    float amax = 0.f;
    for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
      load(start);
      amax = larger(amax, lane_amax<Layout>(value));
      if constexpr (Config::kIsWhole) break;
    }
    amax = row_max<Layout>(amax, scratch);
    if (args.scale_ub != nullptr) amax = amax > *args.scale_ub ? *args.scale_ub : amax;
    scale = quant_scale<Out>(amax);
    if (Layout::lane() == 0 && is_there) args.scale[row * args.scale_stride] = scale.scale;
    x.drop_floats();
  }
  for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
    if constexpr (kGroup > 0 || !Config::kIsWhole) load(start);
    if constexpr (kGroup == 0)
      store_quantised<Layout>(args.out.row(row) + start, columns - start, scale.inverse, value);
    else
      store_groups<Layout, kGroup>(args.out.row(row) + start,
                                   args.scale + row * args.scale_stride + start / kGroup * args.group_stride,
                                   args.group_stride, columns - start, value);
    if constexpr (Config::kIsWhole) break;
  }
}

template <class Config>
void launch_row_quant(const RowQuantArgs<Config>& args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const dim3 grid(Layout::workgroups(args.rows));
  const auto kernel = is_aligned ? row_quant_kernel<Config, true> : row_quant_kernel<Config, false>;
  launch_named("row_quant_kernel", kernel, grid, Layout::kThreads, stream, args);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_row_quant(const RowQuantArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void row_quant(ffi::Tensor out, ffi::Tensor scale, ffi::Tensor input, int64_t group_size,
               ffi::OptionalTensor smooth_scale, ffi::OptionalTensor scale_ub, ffi::OptionalTensor num_rows,
               int64_t num_rows_factor) {
  ffi::Match match("row_quant");
  match.built(group_size == GROUP && smooth_scale.has_value() == HAS_SMOOTH);
  ffi::Size rows{"rows", 1 << 24}, columns{"columns"};
  RowQuantArgs<Config> args{};
  args.input = match.rows<const ELEMENT>(input, rows, columns, "input");
  args.out = match.rows<OUT>(out, rows, columns, "out");
  args.smooth_scale = match.elements<const SMOOTH>(smooth_scale, columns, "smooth_scale");
  args.scale_ub = match.elements<const float>(scale_ub, 1, "scale_ub");
  args.num_rows = match.elements<const int32_t>(num_rows, 1, "num_rows");
  args.num_rows_factor = num_rows_factor, args.rows = rows, args.columns = columns;
  if (rows == 0) return;
  match.built(!IS_WHOLE || columns <= LANES * VECTORS * VEC, "row lengths");
  match.require(GROUP == 0 || columns % GROUP == 0, "group_size must divide the row");
  const auto scales = ffi::row_scales(match, scale, rows, GROUP == 0 ? 1 : columns / GROUP);
  args.scale = scales.data, args.scale_stride = scales.row, args.group_stride = scales.group;
  launch_row_quant(args, ffi::takes_vectors(VEC, input, out, smooth_scale), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(row_quant, aiter_like::row_quant);
#endif

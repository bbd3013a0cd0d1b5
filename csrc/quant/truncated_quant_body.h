// SPDX-License-Identifier: MIT
// Quantisation of a matrix to int8 towards zero: q = trunc(x · (1 / scale)), within −128 … 127, NaN 0. The scale is one
// number in memory, or (kIsDynamic 1) found for each row by the rule of quant.h. HIP (gfx9) and CUDA. One build per
// combination of the macros below.
//
//   1. each lane loads its 16-byte vectors of the row into registers
//   2. kIsDynamic: largest magnitude over the row's lanes, through LDS beyond a wave; one lane stores the scale
//   3. multiply with 1 / scale, cut off, store
// A row longer than the registers' capacity (kIsWhole 0) is taken in pieces, where dynamic read twice.
//
// Tile: kLanes lanes take a row, kVectors · kVec elements each. LDS: 4 bytes per wave.
// Bound: memory. A row moves columns · (sizeof(Element) + 1) bytes: 8192 × 8192 bf16 = 201 MB, 38 us at 5.3 TB/s.
#pragma once

#include "aiter_like/quant.h"
#include "aiter_like/rows/scales.h"

namespace aiter_like {

template <class Config>
struct TruncatedQuantArgs {
  Matrix<int8_t> out;
  Matrix<const typename Config::Element> input;
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

/// One workgroup's work on its rows.
template <class Config, bool kIsAligned>
struct TruncatedQuantBody {
  using Element = typename Config::Element;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = TruncatedQuantArgs<Config>;

  static constexpr int kMinGroups = Layout::min_groups(sizeof(Element));

  __device__ __forceinline__ static void run(const Args& args) {
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

    RowTile<Layout, Element> x;
    float inverse = 0.f;
    if constexpr (Config::kIsDynamic) {
      float amax = 0.f;
      for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
        x.load(args.input.row(row) + start, columns - start);
        amax = larger(amax, lane_amax<Layout>([&](int v, int e) { return x.at(v, e); }));
        if constexpr (Config::kIsWhole) break;
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
      if constexpr (!Config::kIsDynamic || !Config::kIsWhole) x.load(args.input.row(row) + start, columns - start);
      int8_t* const out = args.out.row(row) + start;
#pragma unroll
      for (int v = 0; v < Layout::kVectors; ++v) {
        const int column = Layout::column(v);
        if (column >= columns - start) continue;
        Vec<int8_t, Layout::kVec> q;
#pragma unroll
        for (int e = 0; e < Layout::kVec; ++e) q[e] = static_cast<int8_t>(truncated(x.at(v, e) * inverse));
        if constexpr (kIsAligned) {
          store_vec<Layout::kVec>(Layout::place(out, v), q);
        } else {
#pragma unroll
          for (int e = 0; e < Layout::kVec; ++e)
            if (column + e < columns - start) out[column + e] = q[e];
        }
      }
      if constexpr (Config::kIsWhole) break;
    }
  }
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void truncated_quant_kernel(
    typename Body::Args args) {
  await_stream();
  Body::run(args);
}

template <class Config>
void launch_truncated_quant(const TruncatedQuantArgs<Config>& args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const dim3 grid(Layout::workgroups(args.rows));
  const auto kernel = is_aligned ? truncated_quant_kernel<TruncatedQuantBody<Config, true>>
                                 : truncated_quant_kernel<TruncatedQuantBody<Config, false>>;
  launch_named("truncated_quant_kernel", kernel, grid, Layout::kThreads, stream, args);
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// Host helpers of the exported functions of matrix products: views of tensors, the tiles of out and their launch.
#pragma once

#include "aiter_like/ffi.h"
#include "gemm_body.h"

namespace aiter_like::gemm {

/// Launches `kernel` over the tiles of all `matrices`, and with kSplits > 1 `sum_kernel` over what the splits left, a
/// matrix along y. Both passes compile this: the device pass emits a kernel only where a launch of it is instantiated.
template <class Shape, class Args>
void launch_tiles(void (*kernel)(Args), void (*sum_kernel)(Args), const Args& args, const char* name, Stream stream,
                  uint32_t matrices = 1) {
  const dim3 grid(args.order.rows * args.order.columns * matrices, 1, Shape::kSplits);
  kernel<<<grid, Shape::kThreads, 0, stream>>>(args);
  check_launch(name);
  if constexpr (Shape::kSplits > 1) {
    constexpr int64_t kPerGroup = kSumThreads * kSumColumns;
    const int64_t groups = (args.partials.rows * args.partials.columns + kPerGroup - 1) / kPerGroup;
    sum_kernel<<<dim3(static_cast<uint32_t>(groups), matrices), kSumThreads, 0, stream>>>(args);
    check_launch(name);
  }
}

#if AITER_LIKE_HOST_PASS

constexpr int64_t kMaxRowBytes = int64_t{1} << 23;  // 256 rows within 31 bits

/// The view of a matrix, or of matrices of a batch at any distance from each other, whose rows are contiguous. A single
/// row is as far from the next one as it is long. Sizes of 0 for none.
template <class T, int RANK = 2>
tile::GlobalView<T, RANK> view_of(ffi::Match& match, const ffi::OptionalTensor& tensor, const ffi::Shape& shape,
                                  const char* name, ffi::Layout layout = ffi::kRows) {
  tile::GlobalView<T, RANK> view{};
  if (!tensor.has_value()) return view;
  const ffi::View<T> taken = match.take<T>(tensor, shape, name, layout);
  view.data = taken;
  for (int d = 0; d < RANK; ++d) view.sizes[d] = taken.sizes[d], view.strides[d] = taken.strides[d];
  const int64_t columns = view.sizes[RANK - 1];
  int64_t& stride = view.strides[RANK - 2];
  if (view.sizes[RANK - 2] <= 1) stride = columns;
  view.strides[RANK - 1] = 1;
  match.require(stride >= columns && stride * int64_t{sizeof(T)} < kMaxRowBytes, name,
                "must have rows that do not overlap and are less than 2^23 bytes apart");
  return view;
}

/// The tiles of out [m, n], or of each of `matrices`.
/// Throws ValueError where one launch cannot hold them.
template <class Shape>
tile::TileOrder tiles_of(const ffi::Match& match, int64_t m, int64_t n, int64_t matrices = 1) {
  const int64_t rows = (m + Shape::kBlockM - 1) / Shape::kBlockM, columns = (n + Shape::kBlockN - 1) / Shape::kBlockN;
  constexpr int64_t kMaxGrid = int64_t{1} << 31;
  constexpr int64_t kMaxTiles = kMaxGrid / Shape::kThreads, kMaxMatrices = int64_t{1} << 16;
  match.require(rows < kMaxGrid && columns < kMaxGrid && matrices < kMaxGrid && rows * columns < kMaxTiles / matrices &&
                    (Shape::kSplits == 1 || (m * n < kMaxGrid && matrices < kMaxMatrices)),
                "out has too many tiles for one launch");
  return {static_cast<uint32_t>(rows), static_cast<uint32_t>(columns)};
}

/// Shares out [m, n, k], or that many `matrices` of it, and calls launch() with the memory of splits, if there are any
/// sums.
template <class Shape, class Args, class Launch>
void run(const ffi::Match& match, Args& args, int64_t m, int64_t n, int64_t k, DLDevice device, Launch launch,
         int64_t matrices = 1) {
  match.require(k % Shape::kRun == 0 && n % 4 == 0, "k must be a multiple of 16 bytes of elements, n of 4");
  if (m == 0 || n == 0 || matrices == 0) return;
  args.order = tiles_of<Shape>(match, m, n, matrices);
  constexpr int64_t kStep = int64_t{Shape::kDepth} * Shape::kSplits;  // a split has a multiple of a step
  args.split_depth = (k + kStep - 1) / kStep * Shape::kDepth;
  using Sum = typename Shape::Sum;
  const int64_t sums = Shape::kSplits > 1 ? matrices * Shape::kSplits * m * n : 0;
  const ffi::Scratch scratch(sums * int64_t{sizeof(Sum)}, device);
  if constexpr (Shape::kSplits > 1) args.partials = {scratch.data<Sum>(), m, n};
  launch();
}

#endif

}  // namespace aiter_like::gemm

// SPDX-License-Identifier: MIT
// What the exported functions of matrix products share: views of tensors, the tiles of out and their launch.
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

/// From row to row of a matrix, or of the matrices of a batch, whose rows are contiguous. A single row is as far from
/// the next one as it is long.
/// Throws TypeError for another element type, ValueError for another layout; `op` and `name` stand in the message.
template <class T>
int64_t row_stride_of(const ffi::Tensor& tensor, int rank, const char* op, const char* name) {
  if (!ffi::has_element<std::remove_const_t<T>>(tensor))
    TVM_FFI_THROW(TypeError) << op << ": " << name << " has another dtype than this module was built for";
  if (tensor.ndim() != rank || (tensor.size(rank - 1) > 1 && tensor.stride(rank - 1) != 1))
    TVM_FFI_THROW(ValueError) << op << ": " << name << " must have " << rank << " dimensions and contiguous rows";
  const int64_t columns = tensor.size(rank - 1), stride = tensor.size(rank - 2) > 1 ? tensor.stride(rank - 2) : columns;
  if (stride < columns || stride * static_cast<int64_t>(sizeof(T)) >= kMaxRowBytes)
    TVM_FFI_THROW(ValueError) << op << ": rows of " << name << " must not overlap, nor be 2^23 bytes apart";
  return stride;
}

template <class T>
tile::MatrixView<T> matrix_view(const ffi::Tensor& tensor, const char* op, const char* name) {
  const int64_t stride = row_stride_of<T>(tensor, 2, op, name);
  return {static_cast<T*>(tensor.data_ptr()), {tensor.size(0), tensor.size(1)}, {stride, 1}};
}

/// Matrices at any distance from each other.
template <class T>
tile::GlobalView<T, 3> batch_view(const ffi::Tensor& tensor, const char* op, const char* name) {
  const int64_t stride = row_stride_of<T>(tensor, 3, op, name);
  return {static_cast<T*>(tensor.data_ptr()),
          {tensor.size(0), tensor.size(1), tensor.size(2)},
          {tensor.stride(0), stride, 1}};
}

/// The vector of `size` elements, contiguous.
/// Throws TypeError for another element type, ValueError for another shape.
template <class T>
const T* vector_of(const ffi::Tensor& tensor, int64_t size, const char* op, const char* name) {
  if (!ffi::has_element<T>(tensor))
    TVM_FFI_THROW(TypeError) << op << ": " << name << " has another dtype than this module was built for";
  if (tensor.ndim() != 1 || tensor.size(0) != size || !tensor.IsContiguous())
    TVM_FFI_THROW(ValueError) << op << ": " << name << " must be contiguous, of " << size << " elements";
  return static_cast<const T*>(tensor.data_ptr());
}

/// The `size` elements that each matrix of a batch has, contiguous.
/// Throws TypeError for another element type, ValueError for another shape.
template <class T>
VectorPerMatrix<T> vectors_of(const ffi::Tensor& tensor, int64_t batch, int64_t size, const char* op,
                              const char* name) {
  if (!ffi::has_element<T>(tensor))
    TVM_FFI_THROW(TypeError) << op << ": " << name << " has another dtype than this module was built for";
  if (tensor.ndim() != 2 || tensor.size(0) != batch || tensor.size(1) != size || (size > 1 && tensor.stride(1) != 1))
    TVM_FFI_THROW(ValueError) << op << ": " << name << " must be [" << batch << ", " << size
                              << "] with a contiguous last dimension";
  return {static_cast<const T*>(tensor.data_ptr()), tensor.stride(0)};
}

/// The tiles of out [m, n], or of each of `matrices`.
/// Throws ValueError where one launch cannot hold them.
template <class Shape>
tile::TileOrder tiles_of(int64_t m, int64_t n, const char* op, int64_t matrices = 1) {
  const int64_t rows = (m + Shape::kBlockM - 1) / Shape::kBlockM, columns = (n + Shape::kBlockN - 1) / Shape::kBlockN;
  constexpr int64_t kMaxGrid = int64_t{1} << 31;
  constexpr int64_t kMaxTiles = kMaxGrid / Shape::kThreads, kMaxMatrices = int64_t{1} << 16;
  if (rows >= kMaxGrid || columns >= kMaxGrid || matrices >= kMaxGrid || rows * columns >= kMaxTiles / matrices ||
      (Shape::kSplits > 1 && (m * n >= kMaxGrid || matrices >= kMaxMatrices)))
    TVM_FFI_THROW(ValueError) << op << ": out has too many tiles for one launch";
  return {static_cast<uint32_t>(rows), static_cast<uint32_t>(columns)};
}

/// Of `k`, what each split has: a multiple of a step.
template <class Shape>
int64_t split_depth_of(int64_t k) {
  constexpr int64_t kStep = int64_t{Shape::kDepth} * Shape::kSplits;
  return (k + kStep - 1) / kStep * Shape::kDepth;
}

/// Calls launch() with args.partials set where there are splits.
template <class Shape, class Args, class Launch>
void with_partials(Args& args, int64_t m, int64_t n, DLDevice device, Launch launch, int64_t matrices = 1) {
  if constexpr (Shape::kSplits > 1) {
    using Sum = typename Shape::Sum;
    const ffi::Scratch scratch(matrices * Shape::kSplits * m * n * static_cast<int64_t>(sizeof(Sum)), device);
    args.partials = {static_cast<Sum*>(scratch.data()), m, n};
    launch();
  } else {
    launch();
  }
}

#endif

}  // namespace aiter_like::gemm

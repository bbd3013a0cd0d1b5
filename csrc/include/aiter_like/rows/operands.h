// SPDX-License-Identifier: MIT
// Tensors of one shape at the boundary of a kernel that works row by row: checked against the first one, turned into
// the kernel's arguments. Host pass only.
#pragma once

#include "aiter_like/ffi.h"
#include "aiter_like/rows/rows.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like::ffi {

/// Collects a kernel's matrices [rows, size] and vectors [size], and whether all of them can be accessed kVec elements
/// at a time.
template <int kVec>
class RowOperands {
 public:
  RowOperands(const char* op, const Tensor& first) : op_(op), device_(first.device()) {
    const int last = first.ndim() - 1;
    if (last < 0) TVM_FFI_THROW(ValueError) << op_ << ": input must have at least 1 dimension, got a scalar";
    size_ = first.size(last);
    rows_ = size_ == 0 ? 0 : first.numel() / size_;
    if (rows_ >= (int64_t{1} << 24) || size_ >= (int64_t{1} << 31))
      TVM_FFI_THROW(ValueError) << op_ << ": at most 2^24 - 1 rows of 2^31 - 1 elements, got " << rows_ << " of "
                                << size_;
    is_aligned_ = size_ % kVec == 0;
  }

  int64_t rows() const { return rows_; }
  int64_t size() const { return size_; }
  bool is_aligned() const { return is_aligned_; }

  /// Throws TypeError or ValueError unless `tensor` has the first one's shape and evenly spaced rows.
  template <class T>
  Matrix<T> matrix(const Tensor& tensor, const char* name) {
    const Rows rows = take<T>(tensor, name);
    if (rows.count != rows_ || rows.size != size_)
      TVM_FFI_THROW(ValueError) << op_ << ": " << name << " must have the shape of input";
    return {static_cast<T*>(rows.data), rows.stride};
  }
  template <class T>
  Matrix<T> matrix(const Optional<Tensor>& tensor, const char* name) {
    return tensor.has_value() ? matrix<T>(tensor.value(), name) : Matrix<T>{};
  }

  /// Throws TypeError or ValueError unless `tensor` is a contiguous [size].
  template <class T>
  T* vector(const Tensor& tensor, const char* name) {
    const Rows rows = take<T>(tensor, name);
    if (rows.count > 1 || rows.size != size_)
      TVM_FFI_THROW(ValueError) << op_ << ": " << name << " must have shape (" << size_ << ",)";
    return static_cast<T*>(rows.data);
  }
  template <class T>
  T* vector(const Optional<Tensor>& tensor, const char* name) {
    return tensor.has_value() ? vector<T>(tensor.value(), name) : nullptr;
  }

  /// The scales [rows, groups] of a quantiser. `group_stride` becomes the number of elements from group to group.
  /// Throws TypeError or ValueError unless `tensor` is such a matrix, or has that many dense elements.
  Matrix<float> scales(const Tensor& tensor, int64_t groups, int64_t& group_stride) const {
    if (!has_element<float>(tensor)) TVM_FFI_THROW(TypeError) << op_ << ": scale must have dtype float32";
    if (tensor.numel() != rows_ * groups)
      TVM_FFI_THROW(ValueError) << op_ << ": scale must have " << rows_ << " x " << groups << " elements";
    const bool is_matrix = tensor.ndim() == 2 && tensor.size(1) == groups;
    if (!is_matrix && !tensor.IsContiguous()) TVM_FFI_THROW(ValueError) << op_ << ": scale must be dense in memory";
    group_stride = is_matrix ? tensor.stride(1) : 1;
    return {static_cast<float*>(tensor.data_ptr()), is_matrix ? tensor.stride(0) : groups};
  }

 private:
  template <class T>
  Rows take(const Tensor& tensor, const char* name) {
    using Element = std::remove_const_t<T>;
    const Rows found = ffi::rows<Element>(tensor, (std::string(op_) + ": " + name).c_str());
    if (tensor.device().device_type != device_.device_type || tensor.device().device_id != device_.device_id)
      TVM_FFI_THROW(ValueError) << op_ << ": " << name << " must be on the device of input";
    constexpr int64_t kBytes = kVec * sizeof(Element);
    is_aligned_ = is_aligned_ && found.is_aligned(kBytes < 16 ? kBytes : 16, sizeof(Element));
    return found;
  }

  const char* op_;
  DLDevice device_;
  int64_t rows_, size_;
  bool is_aligned_;
};

}  // namespace aiter_like::ffi
#endif

// SPDX-License-Identifier: MIT
// What a call's tensors must be, in the call's own words. The end of ffi.h, host pass only.
//   ffi::Match match("paged_attention");
//   ffi::Size tokens{"tokens"}, heads{"heads"};
//   args.q = match.take<const bf16>(q, {tokens, heads, 128}, "q");  // the first tensor that has a size sets it
//   args.sink = match.take<const float>(sink, {heads}, "sink");     // null for none
// TypeError for another element, ValueError for all else: "paged_attention: sink must have shape (heads) = (8), got
// (4)". Nothing is allocated, and no text made, unless something does not fit.
#pragma once

#include "aiter_like/shape.h"

namespace aiter_like::ffi {

class Match {
 public:
  explicit Match(const char* op) : op_(op) {}

  /// A tensor of elements T and of a shape; for none nothing.
  template <class T>
  View<T> take(const OptionalTensor& tensor, const Shape& shape, const char* name, Layout layout = kRows) {
    if (!tensor.has_value()) return {};
    check(*tensor, kElement<std::remove_const_t<T>>, name);
    check_shape(*tensor, shape, name, layout);
    return {static_cast<T*>((*tensor).data_ptr()), (*tensor).shape().data(), (*tensor).strides().data()};
  }
  /// A tensor of at least 1 dimension as `count` rows of `size` elements.
  template <class T>
  RowView<T> rows(const OptionalTensor& tensor, const Dim& count, const Dim& size, const char* name) {
    if (!tensor.has_value()) return {};
    check(*tensor, kElement<std::remove_const_t<T>>, name);
    const RowView<void> rows = check_rows(*tensor, {count, size}, name);
    return {static_cast<T*>(rows.data), rows.count, rows.size, rows.stride};
  }
  /// Elements of a tensor of whatever shape.
  template <class T>
  T* elements(const OptionalTensor& tensor, const Dim& count, const char* name, Layout layout = kDense) {
    if (!tensor.has_value()) return nullptr;
    check(*tensor, kElement<std::remove_const_t<T>>, name);
    if (!meets(count, (*tensor).numel(), name) || (layout == kDense && !(*tensor).IsContiguous()))
      refuse(name, "must have " + Shape{count}.text() + " elements, contiguous", *tensor);
    return static_cast<T*>((*tensor).data_ptr());
  }
  /// The memory of `bytes` that the caller gives; null for none.
  void* memory(const OptionalTensor& given, int64_t bytes, int alignment) {
    if (!given.has_value()) return nullptr;
    check(*given, kElement<void>, "workspace");
    void* const data = (*given).data_ptr();
    const int64_t size = (*given).numel() * (*given).dtype().bits / 8;
    if (size < bytes || !(*given).IsContiguous() || reinterpret_cast<uintptr_t>(data) % alignment != 0)
      refuse("workspace", "must have " + std::to_string(bytes) + " bytes, contiguous and aligned", *given);
    return data;
  }
  /// Elements to the next entry of a dimension, 0 where nothing follows, for arguments of 32 bits.
  template <class T>
  uint32_t near_step(const View<T>& view, int d) const {
    require(0 <= view.step(d) && view.step(d) < int64_t{1} << 31, "strides must be less than 2^31 elements");
    return static_cast<uint32_t>(view.step(d));
  }
  /// Throws AddressError, which another backend may answer.
  void require_aligned(const void* data, const char* name) const {
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0)
      TVM_FFI_THROW(AddressError) << op_ << ": " << name << " must begin at a multiple of 16 bytes";
  }
  /// The index among the types T of the elements' type.
  template <class... T>
  int one_of(const Tensor& tensor, const char* name) const {
    const bool is_that[] = {has_element<T>(tensor)...};
    for (size_t i = 0; i < sizeof...(T); ++i)
      if (is_that[i]) return static_cast<int>(i);
    refuse_element(tensor, {kElement<T>...}, name);
  }

  /// Whether this module, one of several, serves the call.
  void built(bool condition, const char* difference = "flags") const {
    if (!condition) TVM_FFI_THROW(ValueError) << op_ << ": this module was built for other " << difference;
  }
  /// Requires what no shape says, of all tensors or of the one that is named.
  void require(bool condition, const char* message) const {
    if (!condition) TVM_FFI_THROW(ValueError) << op_ << ": " << message;
  }
  void require(bool condition, const char* name, const char* message) const {
    if (!condition) TVM_FFI_THROW(ValueError) << op_ << ": " << name << ' ' << message;
  }

 private:
  [[gnu::noinline]] void check(const Tensor& tensor, DLDataType wanted, const char* name) {
    const DLDataType type = tensor.dtype();
    const bool has_bits = wanted.bits == 0 || (wanted.bits == type.bits && type.lanes == 1);
    if (!has_bits || (wanted.code != kAnyCode && wanted.code != type.code)) refuse_element(tensor, {wanted}, name);
    if (device_.device_id < 0) device_ = tensor.device();
    if (tensor.device().device_type != device_.device_type || tensor.device().device_id != device_.device_id)
      refuse(name, "must be on the device of the other tensors", tensor);
  }
  bool meets(const Dim& dim, int64_t got, const char* name) const {
    if (!dim.size) return dim.is_least ? got >= dim.number : got == dim.number;
    if (dim.size->value < 0) dim.size->value = got;
    if (got >= dim.size->limit)
      TVM_FFI_THROW(ValueError) << op_ << ": " << name << " must have less than " << dim.size->limit << ' '
                                << dim.size->name << ", got " << got;
    return got == dim.size->value;
  }
  [[gnu::noinline]] void check_shape(const Tensor& tensor, const Shape& shape, const char* name, Layout layout) const {
    bool is_met = tensor.ndim() == shape.rank;
    for (int d = 0; is_met && d < shape.rank; ++d) is_met = meets(shape.dims[d], tensor.size(d), name);
    if (!is_met) refuse(name, "must have shape " + shape.text(), tensor);
    const bool is_row = shape.rank == 0 || tensor.size(-1) <= 1 || tensor.stride(-1) == 1;
    if (layout == kRows && !is_row) refuse(name, "must be contiguous in its last dimension", tensor);
    if (layout == kDense && !tensor.IsContiguous()) refuse(name, "must be contiguous", tensor);
  }
  [[gnu::noinline]] RowView<void> check_rows(const Tensor& tensor, const Shape& shape, const char* name) const {
    if (tensor.ndim() == 0) refuse(name, "must have at least 1 dimension", tensor);
    const int64_t size = tensor.size(-1), count = size == 0 ? 0 : tensor.numel() / size;
    const int64_t stride = row_stride(tensor);
    if (stride < 0) refuse(name, "must have contiguous, evenly spaced rows", tensor);
    if (!meets(shape.dims[0], count, name) || !meets(shape.dims[1], size, name))
      refuse(name, "must have rows " + shape.text(), tensor);
    return {tensor.data_ptr(), count, size, stride};
  }

  [[noreturn, gnu::noinline]] void refuse(const char* name, const std::string& demand, const Tensor& tensor) const {
    std::string sizes;
    for (int d = 0; d < tensor.ndim(); ++d) sizes += (d ? ", " : "") + std::to_string(tensor.size(d));
    TVM_FFI_THROW(ValueError) << op_ << ": " << name << ' ' << demand << ", got (" << sizes << ')';
    __builtin_unreachable();
  }
  static std::string name_of(DLDataType type) { return tvm::ffi::DLDataTypeToString(type); }
  [[noreturn, gnu::noinline]] void refuse_element(const Tensor& tensor, std::initializer_list<DLDataType> types,
                                                  const char* name) const {
    std::string accepted;
    for (DLDataType type : types) {
      accepted += accepted.empty() ? "" : " or ";
      accepted += type.code == kAnyCode ? "of " + std::to_string(type.bits) + " bits" : name_of(type);
    }
    TVM_FFI_THROW(TypeError) << op_ << ": " << name << " must have dtype " << accepted << ", got "
                             << name_of(tensor.dtype());
    __builtin_unreachable();
  }

  const char* op_;
  DLDevice device_{kDLCPU, -1};  // the first tensor's
};

}  // namespace aiter_like::ffi

// SPDX-License-Identifier: MIT
// The boundary to Python: torch tensors in, typed errors out, through tvm-ffi. Empty in the device pass, where none of
// it is needed and parsing it would double the compile time. A module's entry stands under `#if AITER_LIKE_HOST_PASS`:
//   void rms_norm(ffi::Tensor out, ffi::Tensor x, double epsilon) { ... }
//   AITER_LIKE_EXPORT(rms_norm, aiter_like::rms_norm);
#pragma once

#if defined(__HIP_DEVICE_COMPILE__) || defined(__CUDA_ARCH__)
#define AITER_LIKE_HOST_PASS 0
#else
#define AITER_LIKE_HOST_PASS 1

// compile_ops.py compares the exported signature with the stub's annotations, once per loaded module.
#define TVM_FFI_DLL_EXPORT_INCLUDE_METADATA 1

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include "aiter_like/dtype.h"

namespace aiter_like::ffi {

using Tensor = tvm::ffi::TensorView;
using String = tvm::ffi::String;
template <class T>
using Optional = tvm::ffi::Optional<T>;

/// The stream that is current in torch for the tensor's device; null for CPU tensors (simulated device).
inline Stream stream_of(const Tensor& tensor) {
  const DLDevice device = tensor.device();
  return static_cast<Stream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

inline bool has_type(const Tensor& tensor, DLDataTypeCode code, int bits) {
  const DLDataType dtype = tensor.dtype();
  return dtype.code == code && dtype.bits == bits && dtype.lanes == 1;
}
inline bool is_bf16(const Tensor& tensor) { return has_type(tensor, kDLBfloat, 16); }
inline bool is_f16(const Tensor& tensor) { return has_type(tensor, kDLFloat, 16); }
inline bool is_f32(const Tensor& tensor) { return has_type(tensor, kDLFloat, 32); }

/// The element type of a tensor as DLPack names it.
template <class T>
constexpr DLDataType kElement = {};
template <>
constexpr DLDataType kElement<bf16> = {kDLBfloat, 16, 1};
template <>
constexpr DLDataType kElement<f16> = {kDLFloat, 16, 1};
template <>
constexpr DLDataType kElement<float> = {kDLFloat, 32, 1};
template <>
constexpr DLDataType kElement<uint8_t> = {kDLUInt, 8, 1};
template <>
constexpr DLDataType kElement<int8_t> = {kDLInt, 8, 1};
template <>
constexpr DLDataType kElement<int32_t> = {kDLInt, 32, 1};
template <>
constexpr DLDataType kElement<int64_t> = {kDLInt, 64, 1};
#if defined(__HIP__)
template <>
constexpr DLDataType kElement<fp8> = {kDLFloat8_e4m3fnuz, 8, 1};
#else
template <>
constexpr DLDataType kElement<fp8> = {kDLFloat8_e4m3fn, 8, 1};
#endif

/// Whether a tensor's elements are T, one of dtype.h.
template <class T>
inline bool has_element(const Tensor& tensor) {
  const DLDataType dtype = tensor.dtype();
  return dtype.code == kElement<T>.code && dtype.bits == kElement<T>.bits && dtype.lanes == 1;
}

/// ValueError in Python when `condition` does not hold. The message names op, argument and what is accepted.
inline void check_value(bool condition, const char* message) {
  if (!condition) TVM_FFI_THROW(ValueError) << message;
}

/// TypeError in Python when `condition` does not hold.
inline void check_type(bool condition, const char* message) {
  if (!condition) TVM_FFI_THROW(TypeError) << message;
}

/// Where the one element of `tensor` is; null for no tensor.
/// Throws TypeError for another element type, ValueError for another number of elements.
template <class T>
const T* scalar(const Optional<Tensor>& tensor, const char* name) {
  if (!tensor.has_value()) return nullptr;
  const Tensor value = tensor.value();
  if (!has_element<T>(value)) TVM_FFI_THROW(TypeError) << name << " has another dtype than this module was built for";
  if (value.numel() != 1) TVM_FFI_THROW(ValueError) << name << " must have one element, got " << value.numel();
  return static_cast<const T*>(value.data_ptr());
}

#if defined(__HIP__)
extern "C" {  // of the simulator, where that is in the process
__attribute__((weak)) uint64_t aiter_like_sim_register(uint64_t count, uint64_t* bases, const uint64_t* bytes,
                                                       const char* const* names, const uint8_t* writable);
__attribute__((weak)) void aiter_like_sim_unregister(uint64_t count, const uint64_t* bases);
}
#endif

/// Memory of torch's allocator for one call, for the current stream. On the simulated device, where that is host
/// memory, the bounds checker is told of it.
class Scratch {
 public:
  Scratch(int64_t bytes, DLDevice device)
      : tensor_(tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, tvm::ffi::ShapeView(&bytes, 1), {kDLUInt, 8, 1},
                                               device)),
        base_(reinterpret_cast<uint64_t>(tensor_.data_ptr())) {
#if defined(__HIP__)
    if (device.device_type != kDLCPU || !aiter_like_sim_register) return;
    const uint64_t size = bytes;
    const char* name = "scratch";
    const uint8_t is_writable = 1;
    count_ = aiter_like_sim_register(1, &base_, &size, &name, &is_writable);
#endif
  }
  ~Scratch() {
#if defined(__HIP__)
    if (count_ != 0) aiter_like_sim_unregister(count_, &base_);
#endif
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return tensor_.data_ptr(); }

 private:
  tvm::ffi::Tensor tensor_;
  uint64_t base_, count_ = 0;
};

/// A matrix of rows: the last dimension contiguous, the dimensions before it collapsed into one.
struct Rows {
  void* data;
  int64_t count;   // rows
  int64_t size;    // elements of a row
  int64_t stride;  // elements from row to row; 0 for a single row

  /// Whether each row begins at a multiple of `bytes`, a power of two.
  bool is_aligned(int64_t bytes, int64_t element_bytes) const {
    return (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride * element_bytes)) % bytes == 0;
  }
};

/// `tensor` as rows of T.
/// Throws TypeError for another element type, ValueError unless the rows are contiguous and evenly spaced; `name` (as
/// in "rms_norm: input") begins the message.
template <class T>
Rows rows(const Tensor& tensor, const char* name) {
  if (!has_element<T>(tensor)) TVM_FFI_THROW(TypeError) << name << " has another dtype than this module was built for";
  const int last = tensor.ndim() - 1;
  if (last < 0) TVM_FFI_THROW(ValueError) << name << " must have at least 1 dimension, got a scalar";
  const int64_t size = tensor.size(last);
  bool is_even = size <= 1 || tensor.stride(last) == 1;
  int64_t stride = 0, expected = -1;  // expected: stride of the next dimension outwards; -1 before the first
  for (int d = last - 1; d >= 0; --d) {
    if (tensor.size(d) == 1) continue;
    if (expected < 0) stride = expected = tensor.stride(d);
    is_even = is_even && tensor.stride(d) == expected;
    expected *= tensor.size(d);
  }
  if (!is_even) TVM_FFI_THROW(ValueError) << name << " must have contiguous, evenly spaced rows";
  return {tensor.data_ptr(), size == 0 ? 0 : tensor.numel() / size, size, stride};
}

}  // namespace aiter_like::ffi

/// The text of a macro's value, for a module that is built for one name.
#define AITER_LIKE_TEXT(name) AITER_LIKE_TEXT_OF(name)
#define AITER_LIKE_TEXT_OF(name) #name

/// Exports `function`, of a plain C++ signature, to Python as `name`. Not inside a namespace.
#include "aiter_like/export.h"

#endif

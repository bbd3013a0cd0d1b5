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
using OptionalTensor = Optional<Tensor>;

/// The stream that is current in torch for the tensor's device; null for CPU tensors (simulated device).
inline Stream stream_of(const Tensor& tensor) {
  const DLDevice device = tensor.device();
  return static_cast<Stream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

/// An element of so many bytes, of whatever type.
template <int kBytes>
struct Opaque {
  char bytes[kBytes];
};

/// The element type of a tensor as DLPack names it; for void anything.
constexpr uint8_t kAnyCode = 255;
template <class T>
constexpr DLDataType kElement = {};
template <>
constexpr DLDataType kElement<void> = {kAnyCode, 0, 1};
template <int kBytes>
constexpr DLDataType kElement<Opaque<kBytes>> = {kAnyCode, 8 * kBytes, 1};
template <>
constexpr DLDataType kElement<bf16> = {kDLBfloat, 16, 1};
template <>
constexpr DLDataType kElement<f16> = {kDLFloat, 16, 1};
template <>
constexpr DLDataType kElement<float> = {kDLFloat, 32, 1};
template <>
constexpr DLDataType kElement<bool> = {kDLBool, 8, 1};
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

/// Whether all entries of the dimensions before the last begin at a multiple of `bytes`, a power of two.
inline bool are_rows_aligned(const Tensor& tensor, int64_t bytes) {
  auto bits = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  for (int d = 0; d < tensor.ndim() - 1; ++d)
    if (tensor.size(d) > 1) bits |= static_cast<uintptr_t>(tensor.stride(d) * (tensor.dtype().bits / 8));
  return bits % bytes == 0;
}

/// Whether `count` neighbours of the last dimension, or 16 bytes of them, are one access wherever a multiple of `count`
/// begins. A tensor that is not there is in no one's way.
inline bool takes_vectors(int64_t count, const OptionalTensor& tensor) {
  if (!tensor.has_value()) return true;
  const int64_t size = (*tensor).size(-1), bytes = count * (*tensor).dtype().bits / 8;
  return size % count == 0 && (size <= 1 || (*tensor).stride(-1) == 1) &&
         are_rows_aligned(*tensor, bytes < 16 ? bytes : 16);
}
template <class... Tensors>
bool takes_vectors(int64_t count, const OptionalTensor& first, const Tensors&... others) {
  return takes_vectors(count, first) && takes_vectors(count, others...);
}

/// Elements from row to row of a tensor with at least 1 dimension, those before the last as if they were one: 0 for a
/// single row, -1 where rows are not contiguous and evenly spaced.
inline int64_t row_stride(const Tensor& tensor) {
  int64_t stride = 0, expected = -1;  // expected: of the next dimension outwards; -1 before the first
  if (tensor.size(-1) > 1 && tensor.stride(-1) != 1) return -1;
  for (int d = tensor.ndim() - 2; d >= 0; --d) {
    if (tensor.size(d) == 1) continue;
    if (expected < 0) stride = expected = tensor.stride(d);
    if (tensor.stride(d) != expected) return -1;
    expected *= tensor.size(d);
  }
  return stride;
}

#if defined(__HIP__)
extern "C" {  // the simulator has it, where that is in the process
__attribute__((weak)) uint64_t aiter_like_sim_register(uint64_t count, uint64_t* bases, const uint64_t* bytes,
                                                       const char* const* names, const uint8_t* writable);
__attribute__((weak)) void aiter_like_sim_unregister(uint64_t count, const uint64_t* bases);
}
#endif

/// Memory for one call: what the caller gives, or torch's allocator, for the current stream; none for 0 bytes. On the
/// simulated device, where the allocator's is host memory, the bounds checker is told of it.
class Scratch {
 public:
  Scratch(int64_t bytes, DLDevice device, void* given = nullptr) : data_(bytes > 0 ? given : nullptr) {
    if (bytes == 0 || given) return;
    const tvm::ffi::ShapeView shape(&bytes, 1);
    tensor_ = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, shape, {kDLUInt, 8, 1}, device);
    data_ = tensor_.data_ptr();
#if defined(__HIP__)
    if (device.device_type != kDLCPU || !aiter_like_sim_register) return;
    base_ = reinterpret_cast<uint64_t>(data_);
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

  template <class T>
  T* data() const {
    return static_cast<T*>(data_);
  }

 private:
  tvm::ffi::Tensor tensor_;
  void* data_;
  uint64_t base_ = 0, count_ = 0;
};

}  // namespace aiter_like::ffi

#include "aiter_like/match.h"

/// The text of a macro's value, for a module that is built for one name.
#define AITER_LIKE_TEXT(name) AITER_LIKE_TEXT_OF(name)
#define AITER_LIKE_TEXT_OF(name) #name

/// Exports `function`, of a plain C++ signature, to Python as `name`. It must not stand inside a namespace.
#include "aiter_like/export.h"

#endif

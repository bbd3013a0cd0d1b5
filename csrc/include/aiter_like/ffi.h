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

#include "aiter_like/gpu.h"

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

/// ValueError in Python when `condition` does not hold. The message names op, argument and what is accepted.
inline void check_value(bool condition, const char* message) {
  if (!condition) TVM_FFI_THROW(ValueError) << message;
}

/// TypeError in Python when `condition` does not hold.
inline void check_type(bool condition, const char* message) {
  if (!condition) TVM_FFI_THROW(TypeError) << message;
}

}  // namespace aiter_like::ffi

/// Exports `function`, of a plain C++ signature, to Python as `name`. Not inside a namespace.
#define AITER_LIKE_EXPORT(name, function) TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function)

#endif

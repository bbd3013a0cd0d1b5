// SPDX-License-Identifier: MIT
// Addresses that a kernel cannot take: its launcher throws AddressError, and dispatch goes on to the next backend.
#pragma once

#include "aiter_like/ffi.h"

#if AITER_LIKE_HOST_PASS

namespace aiter_like::ffi {

/// Throws AddressError unless vectors of `elements`, or of 16 bytes, may begin where `tensor` does.
inline void check_begin(const Tensor& tensor, int64_t elements, const char* op) {
  const int64_t size = elements * tensor.dtype().bits / 8, bytes = size < 16 ? size : 16;
  if (tensor.numel() != 0 && reinterpret_cast<uintptr_t>(tensor.data_ptr()) % bytes != 0)
    TVM_FFI_THROW(AddressError) << op << ": tensors must begin at a multiple of " << bytes << " bytes";
}

inline void check_begin(const Optional<Tensor>& tensor, int64_t elements, const char* op) {
  if (tensor.has_value()) check_begin(tensor.value(), elements, op);
}

}  // namespace aiter_like::ffi

#endif

// SPDX-License-Identifier: MIT
// Vectors of numbers at the boundary of the family's kernels. Host pass only.
#pragma once

#include "aiter_like/ffi.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like::ffi {

/// The data of a contiguous vector of T with at least `count` elements.
template <class T>
T* vector_of(const Tensor& tensor, int64_t count, const char* name) {
  const Rows rows = ffi::rows<T>(tensor, name);
  if (tensor.ndim() != 1 || rows.size < count)
    TVM_FFI_THROW(ValueError) << name << " must be a contiguous vector of at least " << count << " elements";
  return static_cast<T*>(rows.data);
}

/// As vector_of, or null where there is none.
template <class T>
T* vector_of(const Optional<Tensor>& tensor, int64_t count, const char* name) {
  return tensor.has_value() ? vector_of<T>(tensor.value(), count, name) : nullptr;
}

}  // namespace aiter_like::ffi
#endif

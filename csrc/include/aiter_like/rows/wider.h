// SPDX-License-Identifier: MIT
// Rows that 16 bytes do not divide: a layout of single elements is built for them, but most are multiples of two or
// four elements still, and lanes then take as many side by side. A launch chooses, since only it knows the addresses.
#pragma once

#include <type_traits>

#include "aiter_like/rows/rows.h"

namespace aiter_like {

/// A layout with equally many elements of a lane, kWide of them side by side; Layout itself where that does not divide
/// them.
template <class Layout, int kWide>
using WiderLayout = std::conditional_t<
    Layout::kVectors % kWide == 0,
    RowLayout<Layout::kLanes, Layout::kVectors / kWide, Layout::kVec * kWide, Layout::kIsAligned>, Layout>;

/// 4, 2 or 1: of so many elements a row's length, the address and stride of each matrix, and the vector's address are
/// multiples.
template <class T, class... Matrices>
inline int even_elements(int64_t size, const T* vector, const Matrices&... matrices) {
  uint64_t bits = static_cast<uint64_t>(size) | reinterpret_cast<uintptr_t>(vector) / sizeof(T);
  const auto take = [&](const auto& matrix) {
    bits |= static_cast<uint64_t>(matrix.stride) | reinterpret_cast<uintptr_t>(matrix.data) / sizeof(*matrix.data);
  };
  (take(matrices), ...);
  return bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
}

}  // namespace aiter_like

// SPDX-License-Identifier: MIT
// The scales that a kernel of rows writes, at its boundary. Host pass only.
#pragma once

#include "aiter_like/ffi.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like::ffi {

/// Elements from row to row, and from group to group of a row.
struct RowScales {
  float* data;
  int64_t row, group;
};

/// A matrix [rows, groups] with any strides, or as many dense elements of another shape; null for none.
inline RowScales row_scales(Match& match, const OptionalTensor& scale, int64_t rows, int64_t groups) {
  if (!scale.has_value()) return {};
  if ((*scale).ndim() != 2 || (*scale).size(1) != groups)
    return {match.elements<float>(scale, rows * groups, "scale"), groups, 1};
  const auto matrix = match.take<float>(scale, {rows, groups}, "scale", kStrided);
  return {matrix, matrix.stride(0), matrix.stride(1)};
}

}  // namespace aiter_like::ffi
#endif
